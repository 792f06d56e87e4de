"""Relevance that comes down to every attention call of a pass, by the rules of ``positive``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd.graph import Node

from vizattn.calls import AttentionCall
from vizattn.capture import layer_of
from vizattn.errors import CaptureError
from vizattn.graph import Graph
from vizattn.layers import LayerAttention
from vizattn.places import CallPlace
from vizattn.positive import divided, positive_relevance
from vizattn.tracked import Tracked

Kept = Sequence[tuple[AttentionCall, CallPlace]]


def relevance_of_outputs(
    need: str, tracked: Tracked, graph: Graph, kept: Kept, nodes: Sequence[Node]
) -> dict[str, Tensor]:
    """For each call, the relevance of what its heads put out, divided by it.

    With ``s`` for this and A for the weights, the relevance of the weights is half of A ⊙ (s vᵀ),
    so no matrix of them has to be kept.

    Args:
        need: The word it was asked with.
        tracked: A pass that noted what sums and products were made of.
        graph: The graph of the target.
        kept: Its attention calls.
        nodes: The nodes of these calls.

    Returns:
        By the word and the number of the call, ``[lead, query, value]`` as the record keeps values.

    Raises:
        CaptureError: There is an operation for which no rule is known.
    """
    outputs = [call.output for call, _ in kept if call.output is not None]
    found = relevance_of(outputs, tracked, graph, kept, nodes)
    shares = {}
    for index, (relevance, output, of) in enumerate(zip(found, outputs, kept, strict=True)):
        share, (call, place) = divided(relevance, output.detach()), of
        layer = layer_of(replace(call, gradient=share.mT if call.is_turned else share), place)
        assert layer.g is not None
        shares[f"{need}:{index}"] = layer.g.detach()
    return shares


def relevance_of(
    tensors: Sequence[Tensor], tracked: Tracked, graph: Graph, kept: Kept, nodes: Sequence[Node]
) -> list[Tensor]:
    """The relevance of some tensors of a pass, each in its own shape; that of the target is 1.

    Raises:
        CaptureError: There is an operation for which no rule is known.
    """
    assert tracked.operands is not None
    fused = {
        node: _in_own_order(call, place)
        for node, (call, place) in zip(nodes, kept, strict=True)
        if call.q is not None
    }
    ends = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    with positive_relevance(_above(graph, ends), tracked.operands.by_node(), fused):
        return list(torch.autograd.grad(graph.root, tensors, retain_graph=True))


def _in_own_order(call: AttentionCall, place: CallPlace) -> LayerAttention:
    """A fused call with heads and windows as the kernel got them."""
    order = torch.arange(place.windows.numel()).view_as(place.windows)
    layer = layer_of(call, replace(place, windows=order))
    assert isinstance(layer, LayerAttention)
    if call.k is None or call.q is None or call.k.shape[:-2] != call.q.shape[:-2]:
        raise CaptureError(
            f"heads of {call.module or 'an attention call'} share keys, for which no rule of "
            f"relevance is known. GAE and CP-LRP work."
        )
    return replace(layer, q=layer.q.detach(), k=layer.k.detach(), v=layer.values.detach())


def _above(graph: Graph, ends: Iterable[Node]) -> set[Node]:
    """All nodes that relevance passes on its way to what these made."""
    found: set[Node] = set()
    waiting = [user for end in ends for user in graph.consumers[end]]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += graph.consumers[node]
    return found
