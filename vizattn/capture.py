"""From a model and a picture to a record of its attention, in one forward pass.

The model runs as it is, fused kernels and all, and its output is bit-identical to a plain forward
pass: a recorder watches the operations below it (see ``recorder``). The first time that a model
meets an input of some size, a tracer runs along and finds out where every token lies (``tracer``).
What comes back is complete or an error, never a part of it and never a substitute.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vizattn.errors import CaptureError
from vizattn.frame import Frame
from vizattn.images import ImageSource, open_image
from vizattn.layers import Attention, DenseAttention, LayerAttention, default_scale
from vizattn.layouts import readout_of, roles_of
from vizattn.models import VisionModel, wrap_model
from vizattn.places import CallPlace, Inputs, Positions, Tokens, place_call
from vizattn.record import AttentionRecord
from vizattn.recorder import AttentionCall, Recorder
from vizattn.tracer import PositionTracer

# Rows whose sum is this near to 1 are what a softmax could have given.
_ROW_SUM = 1e-3


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


def capture(
    model: VisionModel | nn.Module, image: ImageSource | Tensor, **inputs: Any
) -> AttentionRecord:
    """Run a model once on a picture and keep the attention of every layer.

    Args:
        model: From ``load_model`` or ``wrap_model``, or a module, which is wrapped as it is.
        image: Anything ``open_image`` takes, or pixels ``[3, height, width]`` that are already
            preprocessed, which then are the whole picture.
        inputs: Further keyword arguments of the model's own forward pass, such as a mask.

    Returns:
        Queries and keys of every attention call, first layer first; memory grows with the number
        of tokens, not with its square.

    Raises:
        CaptureError: The model is in training mode, or attention was missed.
        ImageError: The picture cannot be opened.
    """
    model = model if isinstance(model, VisionModel) else wrap_model(model)
    pixels, frame = _pixels(model, image)
    seen = observe(model.module, pixels, inputs, model.readout)
    return AttentionRecord(
        _layers(seen, model, frame, (pixels.shape[-2], pixels.shape[-1])),
        frame,
        (pixels.shape[-2], pixels.shape[-1]),
        model.name,
        seen.output[0].detach() if isinstance(seen.output, Tensor) else None,
        model.notes,
    )


def observe(
    module: nn.Module,
    pixels: Tensor,
    inputs: dict[str, Any] | None = None,
    readout: str = "",
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
        recorder = Recorder(module)
        with torch.no_grad(), _below_autograd(), recorder:
            output = module(batch, **(inputs or {}))
        if known[0] == _signature(recorder.calls):
            return Observation(recorder.calls, known[1], recorder.unrecorded, output)
    return _trace(module, batch, inputs or {}, readout, key)


def _trace(
    module: nn.Module, batch: Tensor, inputs: dict[str, Any], readout: str, key: Any
) -> Observation:
    """The same with positions carried along; they are remembered when no picture can move them."""
    tracer = PositionTracer(batch)
    positions: list[tuple[Positions | None, Positions | None]] = []
    recorder = Recorder(module, on_call=lambda call: positions.append(_positions(tracer, call)))
    with torch.no_grad(), tracer, recorder:
        output = module(batch, **inputs)
    about = Inputs(*batch.shape[-2:], partial(roles_of, module), readout or readout_of(module))
    places = [place_call(query, keys, about) for query, keys in positions]
    places = [_as_local(place, call) for place, call in zip(places, recorder.calls, strict=True)]
    if not tracer.depends_on_picture:
        _PLACES[module][key] = (_signature(recorder.calls), places)
    return Observation(recorder.calls, places, recorder.unrecorded, output)


def _signature(calls: list[AttentionCall]) -> list[Any]:
    """What two passes have in common when their tokens lie in the same places."""
    return [(call.module, call.operation, _query_shape(call)) for call in calls]


def _query_shape(call: AttentionCall) -> torch.Size:
    asking = call.q if call.q is not None else call.weights
    assert asking is not None
    return asking.shape


def _positions(
    tracer: PositionTracer, call: AttentionCall
) -> tuple[Positions | None, Positions | None]:
    """Positions of the queries and keys of a call, while the pass is still at it."""
    assert call.v is not None
    keys = _token_positions(tracer, _all_heads(call.v if call.k is None else call.k, call))
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


def _all_heads(tensor: Tensor, call: AttentionCall) -> Tensor:
    """Keys or values once for every head of the queries, where heads share them."""
    if call.q is None or tensor.dim() < 4 or tensor.shape[-3] == call.q.shape[-3]:
        return tensor
    return tensor.repeat_interleave(call.q.shape[-3] // tensor.shape[-3], -3)


def _as_local(place: CallPlace, call: AttentionCall) -> CallPlace:
    """Weights that were not made of queries and keys have their own kind and no map of tokens."""
    if call.from_scores or place.kind in ("outside", "channel"):
        return place
    reason = "its weights are not made of queries and keys"
    return replace(place, kind="local", queries=None, keys=None, reason=reason)


def _layers(
    seen: Observation, model: VisionModel, frame: Frame, size: tuple[int, int]
) -> tuple[Attention, ...]:
    if seen.unrecorded:
        missed = "; ".join(f"{module or 'the model'}: {why}" for module, why in seen.unrecorded)
        raise CaptureError(f"attention was seen that could not be kept: {missed}")
    layers = tuple(
        layer_of(call, _on_picture(place, frame, size))
        for call, place in zip(seen.calls, seen.places, strict=True)
        if place.kind != "outside"
    )
    if not layers:
        raise CaptureError(
            f"{type(model.module).__name__} made no softmax attention call among parts of the "
            f"picture in this forward pass. {_attention_classes(model.module)}"
        )
    return layers


def _on_picture(place: CallPlace, frame: Frame, size: tuple[int, int]) -> CallPlace:
    """Grids in pixels of the original picture instead of the model's input."""
    y, x = frame.height / size[0], frame.width / size[1]

    def move(tokens: Tokens | None) -> Tokens | None:
        if tokens is None:
            return None
        at = tokens.frame
        moved = Frame(frame.left + at.left * x, frame.top + at.top * y, at.width * x, at.height * y)
        return replace(tokens, frame=moved)

    return replace(place, queries=move(place.queries), keys=move(place.keys))


def layer_of(call: AttentionCall, place: CallPlace) -> Attention:
    """One call of the one picture in the batch, as a layer of a record."""
    order = place.windows.flatten()
    form = _dense if call.q is None else _linear
    return form(call, place, None if torch.equal(order, torch.arange(len(order))) else order)


def _linear(call: AttentionCall, place: CallPlace, order: Tensor | None) -> LayerAttention:
    q = call.q
    assert q is not None
    assert call.k is not None
    assert call.v is not None
    lead = q.shape[:-2]

    def flat(tensor: Tensor) -> Tensor:
        tensor = tensor.reshape(-1, *tensor.shape[-2:])
        return tensor if order is None else tensor[order]

    lse = None if call.lse is None else call.lse.reshape(-1, q.shape[-2])
    return LayerAttention(
        call.module,
        place.kind,
        place.queries,
        place.keys,
        place.reason,
        True,
        flat(q),
        flat(_all_heads(call.k, call)),
        flat(_all_heads(call.v, call)),
        default_scale(q) if call.scale is None else call.scale,
        _bias(call, lead, order),
        lse if lse is None or order is None else lse[order],
    )


def _bias(call: AttentionCall, lead: torch.Size, order: Tensor | None) -> Tensor | None:
    """A kernel's mask as numbers to add: ``[windows × heads or 1, query or 1, key]``."""
    assert call.q is not None
    assert call.k is not None
    bias = call.bias
    if call.causal:
        shape = (call.q.shape[-2], call.k.shape[-2])
        bias = torch.ones(shape, dtype=torch.bool, device=call.q.device).tril()
    if bias is None:
        return None
    if bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=call.q.dtype).masked_fill(~bias, -torch.inf)
    while bias.dim() < len(lead) + 2:
        bias = bias.unsqueeze(0)
    if bias.shape[:-2].numel() == 1:
        return bias.reshape(1, *bias.shape[-2:])
    bias = bias.expand(*lead, *bias.shape[-2:]).reshape(-1, *bias.shape[-2:])
    return bias if order is None else bias[order]


def _dense(call: AttentionCall, place: CallPlace, order: Tensor | None) -> DenseAttention:
    used, values, softmax = call.weights, call.v, call.softmax
    assert used is not None
    assert values is not None
    assert softmax is not None

    def flat(tensor: Tensor) -> Tensor:
        tensor = tensor.reshape(-1, *tensor.shape[-2:])
        return tensor if order is None else tensor[order]

    weights, mixed, is_exact = flat(used), None, call.is_exact
    if is_exact and call.blank is not None and call.blank.any():
        weights = weights.masked_fill(flat(call.blank), 0.0)
    if not is_exact and ((weights.sum(-1) - 1).abs() > _ROW_SUM).any():
        mixed = weights
        if softmax.numel() == used.numel():
            weights = flat(softmax)
    about = (call.module, place.kind, place.queries, place.keys, place.reason, is_exact)
    return DenseAttention(*about, weights, flat(values), mixed)


def _pixels(model: VisionModel, image: ImageSource | Tensor) -> tuple[Tensor, Frame]:
    if not isinstance(image, Tensor):
        return model.transform(open_image(image))
    pixels = image.squeeze(0) if image.dim() == 4 else image
    if pixels.dim() != 3 or pixels.shape[0] != 3:
        raise CaptureError(
            f"got pixels of shape {tuple(image.shape)}; one picture is [3, height, width]. "
            f"Several pictures are captured one by one."
        )
    return pixels, Frame(0, 0, pixels.shape[2], pixels.shape[1])


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


def _attention_classes(module: nn.Module) -> str:
    """What to tell somebody whose model showed no attention."""
    names = {type(part).__name__ for part in module.modules()}
    found = sorted(name for name in names if "attention" in name.lower() or "attn" in name.lower())
    if not found:
        return "It has no module whose class is named after attention; is it a transformer?"
    return (
        f"It has {', '.join(found)}: were they called, and do they take a softmax over keys? "
        f"Linear, sigmoid and channel attention have no map of tokens."
    )
