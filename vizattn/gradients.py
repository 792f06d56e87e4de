"""From a model, a picture and a target to a record that also knows what the target depends on.

For every attention call the record holds ``g``, the derivative of the target by what each head put
out. The derivative by the weights is then ``g vᵀ``, row by row, so no more is kept than for q, k
and v. The model runs as it is, its output is bit-identical to that of a plain pass with gradients,
and parameters, flags, hooks and ``.grad`` of the caller stay as they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.autograd.graph import Node

from vizattn.attribution import relevance_of_outputs
from vizattn.calls import AttentionCall
from vizattn.capture import layers_of, pixels_of
from vizattn.errors import CaptureError
from vizattn.graph import Graph
from vizattn.grid import TokenGrid
from vizattn.images import ImageSource
from vizattn.landmarks import by_layers, by_tokens, last_read, lengths
from vizattn.layers import Attention
from vizattn.likeness import patch_embedding, settled
from vizattn.models import VisionModel, wrap_model
from vizattn.observation import run_module
from vizattn.outputs import vectors_of
from vizattn.passes import BASELINES, Values, answers_to_masks, integrated, last_attention
from vizattn.places import CallPlace
from vizattn.propagation import RULES, changed_rules
from vizattn.readouts import Kept, Readings, layers_of_readings, read_out
from vizattn.record import AttentionRecord
from vizattn.targets import PATCH, Goal, Target, asked_by_name, goal_of
from vizattn.tracked import Tracked, track

# What can be asked for: by attention outputs, what heads add to tokens, readings after each layer,
# by pixels (three rules); and by patch embeddings, tokens between layers, or before the last.
ATTENTION, ADDED, READOUTS, PLAIN = "attention", "added", "readouts", "plain"
OWN_READOUTS = "readouts:own"
NEEDS = (ATTENTION, ADDED, READOUTS, OWN_READOUTS, PLAIN, *RULES)
_TOKENS, _LAYERS = ":tokens", ":layers"
FEATURES, LENGTHS, RELEVANCE = "features", "lengths", "relevance"
EXTRAS = (
    *(rule + where for where in (_TOKENS, _LAYERS) for rule in (PLAIN, *RULES)),
    FEATURES,
    LENGTHS,
    RELEVANCE,
)
# And what takes passes of its own, with settings in the word.
_WAY = "integrated:"
PASSES = {
    "integrated:black:20": rf"integrated:({'|'.join(BASELINES)}):[1-9]\d*",
    "path:20": r"path:[1-9]\d*",
    "masks:500:7": r"masks:[1-9]\d*:[1-9]\d*",
}

# What is asked of the tokens between blocks.
_OF_BLOCKS = (READOUTS, LENGTHS)

# Floats of heads' contributions that are turned into coordinates at a time.
_PART_FLOATS = 2**23


def capture_gradients(
    model: VisionModel | nn.Module,
    image: ImageSource | Tensor,
    target: Target | None = None,
    *,
    needs: Iterable[str] = (ATTENTION,),
    **inputs: Any,
) -> AttentionRecord:
    """Run a model once on a picture and keep attention and what a target depends on in it.

    Args:
        model: From ``load_model`` or ``wrap_model``, or a module, which is wrapped as it is.
        image: Anything ``open_image`` takes, or preprocessed pixels ``[3, height, width]``.
        target: A class by index or name. For a model without classes an embedding to compare
            with, or its name: ``patch:X,Y`` of the same picture, ``picture:FILE``, ``text:WORDS``.
            When left out, the top class, or the embedding along its own direction.
        needs: Any of ``attention`` (``g`` of every layer), ``added`` (what keys add to tokens,
            ``gives``), ``readouts`` (the model read out after each layer from the mean of all
            tokens, with ``:own`` from those that it reads at the end), and ``plain``, ``cp``,
            ``attn`` (derivatives by the pixels, see ``propagation``). Each but ``added`` is one
            backward pass; readings are a short one for each layer. With ``:tokens`` behind one of
            the last three it is relevance of each patch's embedding before its position is added,
            with ``:layers`` of the tokens that enter each block. ``features`` are the tokens that
            the last attention reads, and derivatives by them. ``integrated:black:20`` is the mean
            derivative by the pixels from a baseline (``black``, ``mean``, ``blur``) in so many
            steps, and ``path:20`` those by the last attention's weights from the mean colour, each
            step a pass of its own; ``lengths`` are those of the tokens that enter each block, and
            ``relevance`` is passed down to each call as ``positive`` says. ``masks:500:7`` is how
            sure the model is of the target with parts of the picture covered by so many masks of so
            many cells (``masks``). All these go to ``extras``.
        inputs: Further keyword arguments of the model's own forward pass.

    Returns:
        What ``capture`` returns, and in it what was asked for.

    Raises:
        CaptureError: The model cannot be differentiated from the target to every attention call.
        TargetError: There is no such target.
    """
    wanted = tuple(needs)
    _refuse_unknown(wanted)
    model = model if isinstance(model, VisionModel) else wrap_model(model)
    pixels, frame = pixels_of(model, image)
    size = (pixels.shape[-2], pixels.shape[-1])
    target = settled(target, model)
    kind, asked = asked_by_name(target)
    of_blocks = any(name.startswith(_OF_BLOCKS) or name.endswith(_LAYERS) for name in wanted)
    tracked = track(
        model.module, pixels, inputs, model.readout,
        with_blocks=of_blocks or kind == PATCH,
        with_parts=any(name == FEATURES or name.endswith(_TOKENS) for name in wanted),
        with_operands=RELEVANCE in wanted,
    )  # fmt: skip
    seen = tracked.seen
    kept = seen.on_picture
    if kind == PATCH:
        target = patch_embedding(tracked, kept, model, frame, asked)
    noted = tracked.operands or nullcontext()
    with torch.inference_mode(False), torch.enable_grad(), noted:
        goal = goal_of(seen.output, model.module, model.labels, target, _grid(kept))
    by_pixels, readings, extras = _ask(tracked, goal, kept, wanted)
    values = _values(tracked.twin, _grid(kept), inputs, goal.value)
    for name in wanted:
        if name.startswith(_WAY):
            extras |= integrated(name, values, tracked, model.transform)
        elif name.startswith("masks:"):
            share = partial(goal.share, is_multi_label=model.is_multi_label)
            certainties = _values(tracked.twin, _grid(kept), inputs, share)
            extras[name] = answers_to_masks(name, certainties, tracked)
        elif name.startswith("path:"):
            extras |= last_attention(name, tracked, goal, _grid(kept), inputs, model.readout)
    for call in (*(call for call, _ in kept), *(call for _, call in chain(*readings.values()))):
        _let_go(call)
    layers = layers_of(seen, model, frame, size)
    if ADDED in wanted:
        layers = tuple(_with_gives(*each) for each in zip(layers, kept, strict=True))
    return AttentionRecord(
        layers,
        frame,
        size,
        model.name,
        seen.output[0].detach() if isinstance(seen.output, Tensor) else None,
        model.notes,
        goal.words if set(wanted) - {ADDED} else "",
        tracked.leaf.detach()[0] if by_pixels or _WAY in "".join(wanted) else None,
        by_pixels,
        {name: layers_of_readings(each, layers, kept) for name, each in readings.items()},
        extras,
    )


def _ask(
    tracked: Tracked, goal: Goal, kept: Kept, wanted: tuple[str, ...]
) -> tuple[dict[str, Tensor], dict[str, Readings], dict[str, Tensor]]:
    """One backward pass for each thing that is wanted: what came to pixels, readings, extras."""
    graph, calls = Graph(goal.scalar), [call for call, _ in kept]
    with torch.inference_mode(False), torch.enable_grad():
        nodes = graph.nodes_of(calls)
        if ADDED in wanted:
            for call in calls:
                call.projection = graph.projection(call)
        if ATTENTION in wanted:
            found = graph.gradients(nodes, keep=True)
            for call, gradient in zip(calls, found, strict=True):
                call.gradient = gradient.mT if call.is_turned else gradient
        readings = {
            name: read_out(tracked, goal, kept, nodes, own=name == OWN_READOUTS)
            for name in (READOUTS, OWN_READOUTS)
            if name in wanted
        }
        attention = {node: call.is_turned for node, call in zip(nodes, calls, strict=True)}
        rules = partial(_rules, graph, attention)
        by_pixels = {
            rule: _by_pixels(graph, tracked.leaf, rules(rule))
            for rule in (PLAIN, *RULES)
            if rule in wanted
        }
        extras = {}
        for name in (each for each in wanted if each in EXTRAS):
            if name == FEATURES:
                extras[name] = last_read(tracked, graph, kept, nodes)
            elif name == RELEVANCE:
                extras |= relevance_of_outputs(name, tracked, graph, kept, nodes)
            elif name == LENGTHS:
                extras[name] = lengths(tracked, kept)
            else:
                find = by_tokens if name.endswith(_TOKENS) else by_layers
                extras[name] = find(tracked, graph, kept, rules(name.partition(":")[0]))
    if tracked.operands is not None:
        tracked.operands.forget()
    return by_pixels, readings, extras


def _refuse_unknown(wanted: tuple[str, ...]) -> None:
    known = (*NEEDS, *EXTRAS)
    unknown = [
        name
        for name in wanted
        if name not in known and not any(re.fullmatch(form, name) for form in PASSES.values())
    ]
    if unknown:
        words = ", ".join((*known, *PASSES))
        raise CaptureError(f"got needs {', '.join(unknown)}; there are {words}.")


def _values(
    twin: nn.Module,
    grid: TokenGrid | None,
    inputs: dict[str, Any],
    read: Callable[[Tensor], Tensor],
) -> Values:
    """What was asked about, as a function of any pictures."""

    def values(batch: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, " batch"]:
        return read(vectors_of(run_module(twin, batch, inputs), twin, grid))

    return values


def _rules(graph: Graph, attention: dict[Node, bool], rule: str) -> AbstractContextManager[None]:
    """What changes derivatives on the way down; nothing for plain ones."""
    if rule == PLAIN:
        return nullcontext()
    return changed_rules(rule, graph.consumers, attention)


def _by_pixels(
    graph: Graph, leaf: Tensor, rules: AbstractContextManager[None]
) -> Float[Tensor, "3 height width"]:
    with rules:
        return torch.autograd.grad(graph.root, leaf, retain_graph=True)[0][0]


def _let_go(call: AttentionCall) -> None:
    """What is kept must not hold the graph."""
    for name, value in vars(call).items():
        if isinstance(value, Tensor):
            setattr(call, name, value.detach())
    call.output = None


def _grid(kept: Kept) -> TokenGrid | None:
    """The grid of the last keys that lie on the picture."""
    grids = [place.keys.grid for _, place in kept if place.keys is not None]
    return grids[-1] if grids else None


def _with_gives(layer: Attention, of: tuple[AttentionCall, CallPlace]) -> Attention:
    call, place = of
    assert call.projection is not None
    heads = place.windows.flatten() % len(call.projection)
    if layer.n_heads != len(call.projection):
        return layer
    return replace(layer, gives=added_by_key(layer.values, call.projection, heads, layer.n_heads))


def added_by_key(
    v: Float[Tensor, "lead key value"],
    projection: Float[Tensor, "head value dim"],
    heads: Int[Tensor, " lead"],
    n_heads: int,
) -> Float[Tensor, "lead key coordinate"]:
    """What each key adds to a token through each head, ``v W_O``, in few coordinates.

    The heads' contributions of one key are as many vectors as there are heads, so they span at most
    so many dimensions. In coordinates of that span, all lengths of their mixtures are kept.

    Args:
        v: Values, heads of a window after each other.
        projection: What the model makes of each head's output.
        heads: Which head each lead is.
        n_heads: Heads of a window.
    """
    wide = torch.float64 if v.dtype == torch.float64 else torch.float32
    matrices, v = projection.to(wide)[heads], v.to(wide)
    step = max(1, _PART_FLOATS // (len(v) * projection.shape[-1]))
    parts = []
    for start in range(0, v.shape[1], step):
        added = v[:, start : start + step] @ matrices
        by_key = rearrange(added, "(w h) k d -> w k d h", h=n_heads)
        _, triangle = torch.linalg.qr(by_key, mode="r")
        parts.append(rearrange(triangle, "w k c h -> (w h) k c"))
    return torch.cat(parts, dim=1)
