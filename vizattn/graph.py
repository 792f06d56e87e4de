"""Autograd's graph behind one forward pass, read and never changed.

Every result that depends on something with a gradient knows the node that made it, and every node
knows those whose results it used. From the number that somebody asks about, the graph is walked
down; the nodes of the attention calls are found in it by the very tensors that the recorder saw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from vizattn.calls import AttentionCall
from vizattn.errors import CaptureError

# Nodes of what multiplies weights and values, by how their names begin.
_PRODUCTS = ("ScaledDotProduct", "Bmm", "Mm", "Baddbmm")

# Nodes behind which autograd sees nothing, and what put them there.
_OPAQUE = {
    "CheckpointFunctionBackward": "reentrant activation checkpointing",
    "CompiledFunctionBackward": "torch.compile",
}

# Only the shape changes between the heads' outputs and the layer that joins them.
VIEWS = (
    "Transpose", "TBackward", "View", "UnsafeView", "ReshapeAlias", "Permute", "Clone", "Squeeze",
    "Unsqueeze", "Alias", "ToCopy", "Contiguous", "SwapAxes",
)  # fmt: skip

# How far the probe of a projection may be off by rounding: with 32 bits and more, and with 16.
_PROBE_ERROR = 1e-4, 5e-2


@dataclass(frozen=True)
class Graph:
    """What a tensor was made of.

    Attributes:
        root: The tensor that somebody asks about.
    """

    root: Tensor

    @cached_property
    def consumers(self) -> dict[Node, list[Node]]:
        """Every node that the root depends on, with the nodes that use its result."""
        start = self.root.grad_fn
        if start is None:
            raise CaptureError(
                "what was asked about has no gradient: the model switches gradients off inside "
                "its forward pass (torch.no_grad, .detach() or .data). Methods that need no "
                "gradient, such as rollout, work."
            )
        found: dict[Node, list[Node]] = {start: []}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for below, _ in node.next_functions:
                if below is None:
                    continue
                if below not in found:
                    found[below] = []
                    waiting.append(below)
                found[below].append(node)
        return found

    def nodes_of(self, calls: Sequence[AttentionCall]) -> list[Node]:
        """The node of every attention call.

        Raises:
            CaptureError: The root does not depend on some of them; says what may be the cause.
        """
        nodes = [self._node_of(call) for call in calls]
        missed = [call.module for call, node in zip(calls, nodes, strict=True) if node is None]
        if missed:
            raise CaptureError(
                f"{len(missed)} of {len(calls)} attention calls have no gradient to what was asked "
                f"about: {', '.join(dict.fromkeys(missed))}. {self._cause()}"
            )
        return [node for node in nodes if node is not None]

    def _node_of(self, call: AttentionCall) -> Node | None:
        made = call.output
        node = None if made is None else made.grad_fn
        if made is None or node is None or node not in self.consumers:
            return None
        return node if node.name().startswith(_PRODUCTS) else None

    def _cause(self) -> str:
        names = {node.name() for node in self.consumers}
        found = [cause for name, cause in _OPAQUE.items() if name in names]
        if found:
            return f"The graph is closed to autograd by {' and '.join(found)}; switch it off."
        return (
            "Something between them detached the graph, such as torch.no_grad or .detach() in the "
            "forward pass, or their output is not used for it."
        )

    def gradients(self, nodes: Sequence[Node], *, keep: bool = False) -> list[Tensor]:
        """The derivative of the root by the first output of every node.

        Args:
            nodes: Nodes that the root depends on.
            keep: Whether the graph is still needed afterwards.
        """
        edges = [GradientEdge(node, 0) for node in nodes]
        return list(torch.autograd.grad(self.root, edges, retain_graph=keep))

    def projection(self, call: AttentionCall) -> Tensor:
        """What the model makes of each head's output before it adds it to the tokens.

        The output layer's weights, cut into the parts of the heads, times the learnt scale behind
        it where there is one (LayerScale). It is asked of the graph, and checked there with a
        random vector, so no name of a module matters.

        Returns:
            ``[head, value, dim]``.

        Raises:
            CaptureError: Something else than one linear layer follows the heads.
        """
        node = self._node_of(call)
        if node is None or call.taken is None:
            self.nodes_of([call])
        assert node is not None
        assert call.taken is not None
        linear = self._after(node, VIEWS)
        matrix = _matrix(linear)
        n_values = call.taken.shape[-1]
        if matrix is None or linear is None or matrix.shape[0] % n_values:
            raise _unknown_projection(call)
        if not self._joins_heads(node, linear, matrix, call.taken):
            raise _unknown_projection(call)
        scaled = self._after(linear, VIEWS)
        if scaled is not None and scaled.name().startswith("MulBackward"):
            scale = _scale_of(scaled, matrix.shape[1])
            matrix = matrix if scale is None else matrix * scale
        return matrix.detach().reshape(-1, n_values, matrix.shape[1])

    def _after(self, node: Node, passed: tuple[str, ...]) -> Node | None:
        """The first node of another kind that a result goes to, as long as it goes one way."""
        while True:
            users = self.consumers[node]
            if len(users) != 1:
                return None
            node = users[0]
            if not node.name().startswith(passed):
                return node

    def _joins_heads(self, node: Node, linear: Node, matrix: Tensor, taken: Tensor) -> bool:
        """Whether a change of the layer's output comes back to each head through its own part."""
        shape: Any = linear._input_metadata[0].shape
        probe = torch.randn(tuple(shape), dtype=matrix.dtype, device=matrix.device)
        (back,) = torch.autograd.grad(
            [GradientEdge(linear, 0)],
            [GradientEdge(node, 0)],
            [probe],
            retain_graph=True,
        )
        expected = probe.reshape(-1, matrix.shape[1]) @ matrix.mT
        n_queries, n_values = taken.shape[-2:]
        n_heads = matrix.shape[0] // n_values
        if expected.shape[0] % n_queries:
            return False
        expected = expected.reshape(-1, n_queries, n_heads, n_values).transpose(1, 2)
        if back.shape != taken.shape:
            back = back.mT
        back = back.reshape(-1, n_queries, n_values)
        expected = expected.reshape(-1, n_queries, n_values)
        if back.shape != expected.shape:
            return False
        off = (back - expected).float().abs().amax() / expected.float().abs().amax()
        return bool(off < _PROBE_ERROR[matrix.dtype.itemsize < 4])


def _matrix(linear: Node | None) -> Tensor | None:
    """What a linear layer multiplies with, ``[in, out]``; ``None`` when it is something else."""
    name = "" if linear is None else linear.name()
    found: Any = None
    if name.startswith(("Addmm", "Mm")):
        found = getattr(linear, "_saved_mat2", None)
    return found if isinstance(found, Tensor) and found.dim() == 2 else None


def _scale_of(node: Any, width: int) -> Tensor | None:
    """A learnt number for each of ``width`` dimensions that a product multiplies with."""
    for name in ("_saved_other", "_saved_self"):
        found = getattr(node, name, None)
        if isinstance(found, Tensor) and found.numel() == width and found.shape[-1] == width:
            return found.flatten()
    return None


def _unknown_projection(call: AttentionCall) -> CaptureError:
    return CaptureError(
        f"{call.module or 'the model'} does not pass its heads to one linear layer, so it is not "
        f"known what each of them adds to the tokens. Raw attention and rollout work."
    )
