"""A model read out after each of its layers, and what every reading depends on in the attention.

Source: Bousselham et al. 2024, "LeGrad: An Explainability Method for Vision Transformers via
Feature Formation Sensitivity", section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node

from vizattn.blocks import block_of
from vizattn.calls import EVERYTHING, AttentionCall
from vizattn.capture import layer_of
from vizattn.errors import CaptureError
from vizattn.graph import Graph
from vizattn.layers import Attention
from vizattn.places import CallPlace
from vizattn.recorder import Recorder
from vizattn.tails import Tail, tail_of
from vizattn.targets import Goal
from vizattn.tracked import Tracked

Kept = Sequence[tuple[AttentionCall, CallPlace]]
Readings = Sequence[tuple[int, AttentionCall]]


def read_out(
    tracked: Tracked, goal: Goal, kept: Kept, nodes: Sequence[Node], *, own: bool = False
) -> Readings:
    """For every block, an attention call whose gradient is that of a reading after this block.

    It is the block's own call, or, where the model pools by attention, the pool's call to the
    tokens of this block. The graph is kept.

    Args:
        tracked: A pass that kept what its blocks put out.
        goal: What is read.
        kept: The attention calls of the pass.
        nodes: The nodes of these calls.
        own: Whether the tokens are read that the model reads at the end; else the mean of all.

    Returns:
        The number of the call whose place it has, and the call.

    Raises:
        CaptureError: It is not known how to read the model out, or its blocks give no tokens.
    """
    tail = tail_of(tracked.twin)
    if tail.pool is not None:
        last = len(kept) - 1
        blocks = [block_tokens(tracked, name) for name in tracked.blocks]
        return [(last, _pooled(tracked, tail, goal, tokens)) for tokens in blocks]
    found = []
    for index, (call, place) in enumerate(kept):
        tokens = block_tokens(tracked, block_of(tracked.twin, call.module))
        scalar = goal.value(tail(tokens, _read(tokens, place) if own else None))
        (gradient,) = Graph(scalar).gradients([nodes[index]], keep=True)
        found.append((index, replace(call, gradient=_upright(gradient, call))))
    return found


def _read(tokens: Tensor, place: CallPlace) -> Tensor | None:
    """The weights of the tokens that the model reads at the end, if they are known."""
    grid = None if place.queries is None else place.queries.grid
    if grid is None or grid.n_tokens != tokens.shape[1]:
        return None
    return grid.query.to(tokens)


def _pooled(tracked: Tracked, tail: Tail, goal: Goal, tokens: Tensor) -> AttentionCall:
    """The pool's own call to these tokens, with the gradient of what it reads."""
    recorder = Recorder(tracked.twin, keep=EVERYTHING)
    with recorder:
        vector = tail(tokens)
    if len(recorder.calls) != 1:
        raise CaptureError(
            f"the pooling head of {type(tracked.twin).__name__} made {len(recorder.calls)} "
            f"attention calls; one was expected."
        )
    (call,) = recorder.calls
    graph = Graph(goal.value(vector))
    (gradient,) = graph.gradients(graph.nodes_of([call]), keep=True)
    call.gradient = _upright(gradient, call)
    return call


def layers_of_readings(
    readings: Sequence[tuple[int, AttentionCall]], layers: Sequence[Attention], kept: Kept
) -> tuple[Attention, ...]:
    """The readings as layers of a record, each where the call lies whose place it has."""
    made = []
    for index, call in readings:
        layer = layers[index]
        reading = layer_of(call, kept[index][1])
        made.append(replace(reading, queries=layer.queries, keys=layer.keys))
    return tuple(made)


def _upright(gradient: Tensor, call: AttentionCall) -> Tensor:
    return gradient.mT if call.is_turned else gradient


def block_tokens(tracked: Tracked, name: str) -> Tensor:
    """What a block put out, ``[1, token, number]``.

    Raises:
        CaptureError: It put out something else.
    """
    found: Any = tracked.blocks[name]
    found = found[0] if isinstance(found, tuple | list) and found else found
    if not isinstance(found, Tensor) or found.dim() != 3 or found.shape[0] != 1:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise CaptureError(
            f"{name} does not put out tokens, [1, token, number], but {shape}, so it is not known "
            f"how to read the model out after it. GAE needs no such thing."
        )
    return found
