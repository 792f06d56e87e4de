"""What sums and products of a forward pass were made of.

Autograd keeps of a sum nothing at all, and of a product with frozen weights not its input. Rules
that share a result out among what it was made of need both, so they are noted here from below, by
the very result, which knows its node once autograd has seen it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode

from vizattn.operations import PRODUCTS, packets
from vizattn.running import run

# Operations whose operands are kept: of two activations, or of one and weights.
_KEPT = frozenset([*packets(["add", "addmm", "mean", "sum"]), *PRODUCTS])


class Operands(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes the operands of sums and products while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made: list[tuple[Tensor, list[Any]]] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation as it is, and note what it was made of."""
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", None)
        if packet not in _KEPT:
            return run(func, args, kwargs)
        result = run(func, args, kwargs)
        self._made.append((result, list(args)))
        return result

    def by_node(self) -> dict[Node, list[Any]]:
        """Arguments of each operation, by the node that stands for it in the graph."""
        return {made.grad_fn: args for made, args in self._made if made.grad_fn is not None}

    def forget(self) -> None:
        """Let all tensors go, and the graph with them."""
        self._made.clear()
