"""From a model and a picture to a record of its attention, in one forward pass.

The model runs as it is, fused kernels and all, and its output is bit-identical to a plain forward
pass, because it is only watched (``observation``). What comes back is complete or an error, never
a part of it and never a substitute.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vizattn.calls import NO_VALUES, VALUES, AttentionCall, for_all_heads
from vizattn.errors import CaptureError
from vizattn.frame import Frame
from vizattn.images import ImageSource, open_image
from vizattn.layers import Attention, DenseAttention, LayerAttention
from vizattn.models import VisionModel, wrap_model
from vizattn.observation import Observation, observe
from vizattn.places import CallPlace, Tokens
from vizattn.progress import Tell
from vizattn.record import AttentionRecord

# Rows whose sum is this near to 1 are what a softmax could have given.
_ROW_SUM = 1e-3


def capture(
    model: VisionModel | nn.Module,
    image: ImageSource | Tensor,
    *,
    values: bool = True,
    progress: Tell | None = None,
    **inputs: Any,
) -> AttentionRecord:
    """Run a model once on a picture and keep the attention of every layer.

    Args:
        model: From ``load_model`` or ``wrap_model``, or a module, which is wrapped as it is.
        image: Anything ``open_image`` takes, or pixels ``[3, height, width]`` that are already
            preprocessed, which then are the whole picture.
        values: Whether to keep the values too. What a row or a rollout needs is there without
            them, in a third less memory.
        progress: Called at each attention call with the share of the pass that is done, 0 to 1.
        inputs: Further keyword arguments of the model's own forward pass, such as a mask.

    Returns:
        Queries and keys of every attention call, first layer first; memory grows with the number
        of tokens, not with its square.

    Raises:
        CaptureError: The model is in training mode, or attention was missed.
        ImageError: The picture cannot be opened.
    """
    model = model if isinstance(model, VisionModel) else wrap_model(model)
    pixels, frame = pixels_of(model, image)
    keep = VALUES if values else NO_VALUES
    seen = observe(model.module, pixels, inputs, model.readout, keep=keep, progress=progress)
    return record_of(seen, model, frame, (pixels.shape[-2], pixels.shape[-1]))


def record_of(
    seen: Observation, model: VisionModel, frame: Frame, size: tuple[int, int]
) -> AttentionRecord:
    """What was seen of one picture, as a record.

    Raises:
        CaptureError: Attention was missed, or there was none.
    """
    output = seen.output[0].detach() if isinstance(seen.output, Tensor) else None
    layers = layers_of(seen, model, frame, size)
    return AttentionRecord(layers, frame, size, model.name, output, model.notes)


def layers_of(
    seen: Observation, model: VisionModel, frame: Frame, size: tuple[int, int]
) -> tuple[Attention, ...]:
    """The calls among parts of the picture, as layers of a record.

    Raises:
        CaptureError: Attention was missed, or there was none.
    """
    if seen.unrecorded:
        missed = "; ".join(f"{module or 'the model'}: {why}" for module, why in seen.unrecorded)
        raise CaptureError(f"attention was seen that could not be kept: {missed}")
    layers = tuple(
        layer_of(call, on_picture(place, frame, size))
        for call, place in zip(seen.calls, seen.places, strict=True)
        if place.kind != "outside"
    )
    if not layers:
        raise CaptureError(
            f"{type(model.module).__name__} made no softmax attention call among parts of the "
            f"picture in this forward pass. {_attention_classes(model.module)}"
        )
    return layers


def on_picture(place: CallPlace, frame: Frame, size: tuple[int, int]) -> CallPlace:
    """Grids in pixels of the original picture instead of the model's input."""
    y, x = frame.height / size[0], frame.width / size[1]

    def move(tokens: Tokens | None) -> Tokens | None:
        if tokens is None:
            return None
        at = tokens.frame
        moved = Frame(frame.left + at.left * x, frame.top + at.top * y, at.width * x, at.height * y)
        return replace(tokens, frame=moved)

    return replace(place, queries=move(place.queries), keys=move(place.keys))


def layer_of(call: AttentionCall, place: CallPlace) -> LayerAttention | DenseAttention:
    """One call of the one picture in the batch, as a layer of a record."""
    order = place.windows.flatten()
    moved = None if torch.equal(order, torch.arange(len(order))) else order
    return _dense(call, place, moved) if call.q is None else _linear(call, place, moved)


def _linear(call: AttentionCall, place: CallPlace, order: Tensor | None) -> LayerAttention:
    q = call.q
    assert q is not None
    assert call.k is not None
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
        flat(for_all_heads(call.k, call)),
        q.shape[-1] ** -0.5 if call.scale is None else call.scale,
        _bias(call, lead, order),
        lse if lse is None or order is None else lse[order],
        v=None if call.v is None else flat(for_all_heads(call.v, call)),
        g=None if call.gradient is None else flat(call.gradient),
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

    weights, mixed, before, is_exact = flat(used), None, None, call.is_exact
    if is_exact and call.blank is not None and call.blank.any():
        weights = weights.masked_fill(flat(call.blank), 0.0)
    if not is_exact and softmax.numel() == used.numel():
        before = flat(softmax)
    if not is_exact and ((weights.sum(-1) - 1).abs() > _ROW_SUM).any():
        mixed = weights
        if before is not None:
            weights, before = before, None
    about = (call.module, place.kind, place.queries, place.keys, place.reason, is_exact)
    g = None if call.gradient is None else flat(call.gradient)
    return DenseAttention(*about, weights, mixed, before, v=flat(values), g=g)


def pixels_of(model: VisionModel, image: ImageSource | Tensor) -> tuple[Tensor, Frame]:
    """What the model is shown, ``[3, height, width]``, and which part of the picture that is.

    Raises:
        CaptureError: The pixels are not those of one picture.
    """
    if not isinstance(image, Tensor):
        return model.transform(open_image(image))
    pixels = image.squeeze(0) if image.dim() == 4 else image
    if pixels.dim() != 3 or pixels.shape[0] != 3:
        raise CaptureError(
            f"got pixels of shape {tuple(image.shape)}; one picture is [3, height, width]. "
            f"Several pictures are for capture_batch."
        )
    return pixels, Frame(0, 0, pixels.shape[2], pixels.shape[1])


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
