"""One forward pass, watched: the attention calls it made and where each of them lies.

A recorder notes the calls (``recorder``). The first time that a model meets an input of some size,
a tracer runs along and finds out where every token lies (``tracer``, ``places``); after that it is
known.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vizattn.calls import AttentionCall, for_all_heads
from vizattn.errors import CaptureError
from vizattn.layouts import readout_of, roles_of
from vizattn.places import CallPlace, Inputs, Positions, place_call
from vizattn.recorder import Recorder
from vizattn.tracer import PositionTracer


@dataclass(frozen=True)
class Observation:
    """Everything that was seen in one forward pass.

    Attributes:
        calls: Attention calls as the recorder saw them.
        places: Where each of them lies.
        unrecorded: ``(module, reason)`` of attention that could not be kept.
        output: What the model returned.
    """

    calls: list[AttentionCall]
    places: list[CallPlace]
    unrecorded: list[tuple[str, str]]
    output: Any


# Places by model and by the shape of its input; they are the same for every picture.
_PLACES: WeakKeyDictionary[nn.Module, dict[Any, tuple[Any, list[CallPlace]]]] = WeakKeyDictionary()


def observe(
    module: nn.Module,
    pixels: Tensor,
    inputs: dict[str, Any] | None = None,
    readout: str = "",
    *,
    keep_outputs: bool = False,
) -> Observation:
    """Run a module once on the pixels of one picture, ``[3, height, width]``, and look.

    Raises:
        CaptureError: The module is in training mode.
    """
    module = _original(module)
    _refuse_training(module)
    first = next(module.parameters(), pixels)
    batch = pixels.unsqueeze(0).to(device=first.device, dtype=first.dtype)
    key = (tuple(batch.shape), tuple(sorted(inputs or {})), readout)
    known = _PLACES.setdefault(module, {}).get(key)
    if known is not None:
        recorder = Recorder(module, keep_outputs=keep_outputs)
        with torch.no_grad(), _below_autograd(), recorder:
            output = module(batch, **(inputs or {}))
        if known[0] == _signature(recorder.calls):
            return Observation(recorder.calls, known[1], recorder.unrecorded, output)
    return _trace(module, batch, inputs or {}, readout, key, keep_outputs)


def _trace(
    module: nn.Module,
    batch: Tensor,
    inputs: dict[str, Any],
    readout: str,
    key: Any,
    keep_outputs: bool,
) -> Observation:
    """The same with positions carried along; they are remembered when no picture can move them."""
    tracer = PositionTracer(batch)
    positions: list[tuple[Positions | None, Positions | None]] = []
    scattered: list[bool] = []

    def look(call: AttentionCall) -> None:
        positions.append(_positions(tracer, call))
        scattered.append(_is_scattered(tracer, call))

    recorder = Recorder(module, on_call=look, keep_outputs=keep_outputs)
    with torch.no_grad(), tracer, recorder:
        output = module(batch, **inputs)
    height, width = batch.shape[-2:]
    roles = partial(roles_of, module)
    about = Inputs(height, width, roles, readout or readout_of(module))
    places = [place_call(query, keys, about) for query, keys in positions]
    places = [
        _as_other(place, call, spread)
        for place, call, spread in zip(places, recorder.calls, scattered, strict=True)
    ]
    if not tracer.depends_on_picture:
        _PLACES[module][key] = (_signature(recorder.calls), places)
    return Observation(recorder.calls, places, recorder.unrecorded, output)


def _signature(calls: list[AttentionCall]) -> list[Any]:
    """What two passes have in common when their tokens lie in the same places.

    Not the operation: a softmax has another name where autograd is out of the way.
    """
    return [(call.module, call.q is None, _query_shape(call)) for call in calls]


def _query_shape(call: AttentionCall) -> torch.Size:
    asking = call.q if call.q is not None else call.weights
    assert asking is not None
    return asking.shape


def _positions(
    tracer: PositionTracer, call: AttentionCall
) -> tuple[Positions | None, Positions | None]:
    """Positions of the queries and keys of a call, while the pass is still at it."""
    assert call.v is not None
    keys = _token_positions(tracer, for_all_heads(call.v if call.k is None else call.k, call))
    if call.q is not None:
        return _token_positions(tracer, call.q), keys
    assert call.weights is not None
    shadow = tracer.shadow(call.weights)
    if shadow is None or shadow.varies(-1):  # rows without positions: what asks was learnt
        return None, keys
    return _token_positions(tracer, call.weights), keys


def _token_positions(tracer: PositionTracer, tensor: Tensor) -> Positions | None:
    shadow = tracer.shadow(tensor)
    if shadow is None:
        return None
    middle = shadow.centre(-1)
    parts = (part[..., 0].reshape(-1, part.shape[-2]) for part in (middle.y, middle.x, middle.seen))
    return Positions(*(part.clone() for part in parts))


def _is_scattered(tracer: PositionTracer, call: AttentionCall) -> bool:
    """Whether the only key is made of numbers from many places, as of a whole channel."""
    key = call.v if call.k is None else call.k
    assert key is not None
    shadow = tracer.shadow(key) if key.shape[-2] == 1 else None
    return shadow is not None and shadow.varies(-1)


def _as_other(place: CallPlace, call: AttentionCall, is_scattered: bool) -> CallPlace:
    """Attention with no map of tokens has a kind of its own."""
    if place.kind in ("outside", "channel"):
        return place
    if is_scattered:
        reason = "it attends among channels or pictures, not among places"
        return replace(place, kind="channel", queries=None, keys=None, reason=reason)
    if call.from_scores:
        return place
    reason = "its weights are not made of queries and keys"
    return replace(place, kind="local", queries=None, keys=None, reason=reason)


def _original(module: nn.Module) -> nn.Module:
    """The module inside a wrapper that splits batches over devices or holds compiled code."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _below_autograd() -> AbstractContextManager[object]:
    """Run without autograd's layer, which under no_grad has nothing to do.

    A ``linear`` then comes by whole and not as transpose, views and product: 261 operations
    instead of 420 for a ViT-S, half the recorder's cost. ``inference_mode`` does the same, but a
    model that keeps something for its next forward pass would keep a tensor that cannot be
    trained with.
    """
    guard = getattr(torch._C, "_AutoDispatchBelowAutograd", nullcontext)
    context: AbstractContextManager[object] = guard()
    return context


def _refuse_training(module: nn.Module) -> None:
    if module.training:
        raise CaptureError(
            f"{type(module).__name__} is in training mode, where dropout changes attention at "
            f"random. Call .eval() on it first; capture does not change your model."
        )
