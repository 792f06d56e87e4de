"""From a model and a picture to a record of its attention, in one forward pass.

The model runs as it is, fused kernels and all, and its output is bit-identical to a plain forward
pass: a recorder watches the operations below it (see ``recorder``). What comes back is complete or
an error, never a part of it and never a substitute.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vizattn.errors import CaptureError
from vizattn.frame import Frame
from vizattn.images import ImageSource, open_image
from vizattn.layers import Attention, DenseAttention, LayerAttention, Place, default_scale
from vizattn.models import VisionModel, wrap_model
from vizattn.record import AttentionRecord
from vizattn.recorder import AttentionCall, Recorder


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
        CaptureError: The model is in training mode, or attention was missed or changed under way.
        ImageError: The picture cannot be opened.
        GridError: The model does not say where its tokens lie.
    """
    model = model if isinstance(model, VisionModel) else wrap_model(model)
    _refuse_training(model.module)
    pixels, frame = _pixels(model, image)
    grid = model.layout_for(pixels.shape[-2], pixels.shape[-1])
    output, recorder = _forward(model.module, pixels, inputs)
    layers = _layers(recorder, Place(grid, frame), model.module)
    return AttentionRecord(
        layers,
        grid,
        frame,
        (pixels.shape[-2], pixels.shape[-1]),
        model.name,
        output[0].detach() if isinstance(output, Tensor) else None,
        model.notes,
    )


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


def _forward(module: nn.Module, pixels: Tensor, inputs: dict[str, Any]) -> tuple[object, Recorder]:
    first = next(module.parameters(), pixels)
    batch = pixels.unsqueeze(0).to(device=first.device, dtype=first.dtype)
    recorder = Recorder(module)
    with torch.no_grad(), _below_autograd(), recorder:
        output = module(batch, **inputs)
    return output, recorder


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


def _layers(recorder: Recorder, place: Place, module: nn.Module) -> tuple[Attention, ...]:
    if recorder.unrecorded:
        missed = "; ".join(f"{operation}: {why}" for operation, why in recorder.unrecorded)
        raise CaptureError(f"attention was seen that could not be kept: {missed}")
    if not recorder.calls:
        raise CaptureError(
            f"{type(module).__name__} made no softmax attention call in this forward pass. "
            f"{_attention_classes(module)}"
        )
    return tuple(_layer(call, place) for call in recorder.calls)


def _layer(call: AttentionCall, place: Place) -> Attention:
    """One call of the one picture in the batch, checked against the grid."""
    layer = _dense(call, place) if call.q is None else _linear(call, place)
    if layer.n_tokens != place.grid.n_tokens:
        raise CaptureError(
            f"{call.module} ({call.module_type}) attends among {layer.n_tokens} tokens, but the "
            f"picture has {place.grid.n_tokens}: windowed, pooled and cross attention have no "
            f"place on the picture here."
        )
    return layer


def _linear(call: AttentionCall, place: Place) -> LayerAttention:
    assert call.q is not None
    assert call.k is not None
    assert call.v is not None
    if call.q.dim() != 4 or call.q.shape[0] != 1 or call.causal:
        raise CaptureError(
            f"{call.module} ({call.module_type}) called attention with queries of shape "
            f"{tuple(call.q.shape)}{' and a causal mask' if call.causal else ''}; "
            f"[1, head, token, dim] was expected of a vision transformer."
        )
    bias = None if call.bias is None else _additive(call.bias, call.q)
    lse = None if call.lse is None else call.lse[0]
    scale = default_scale(call.q) if call.scale is None else call.scale
    return LayerAttention(
        call.module, "self", place, call.q[0], call.k[0], call.v[0], scale, bias, lse
    )


def _additive(bias: Tensor, q: Tensor) -> Tensor:
    """A kernel's mask as numbers to add, for one picture: ``[head or 1, query or 1, key]``."""
    if bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill(~bias, -torch.inf)
    while bias.dim() < 4:
        bias = bias.unsqueeze(0)
    return bias[0]


def _dense(call: AttentionCall, place: Place) -> DenseAttention:
    assert call.softmax is not None
    assert call.v is not None
    if not call.is_exact:
        raise CaptureError(
            f"{call.module} ({call.module_type}) changes its softmax before it multiplies the "
            f"values (talking heads, a gate or dropout), so the softmax is not the map it used."
        )
    if call.softmax.dim() != 4 or call.softmax.shape[0] != 1:
        raise CaptureError(
            f"{call.module} ({call.module_type}) took a softmax of shape "
            f"{tuple(call.softmax.shape)}; [1, head, query, key] was expected."
        )
    assert call.blank is not None
    weights = call.softmax[0]
    if call.blank.any():
        weights = weights.masked_fill(call.blank[0], 0.0)
    return DenseAttention(
        call.module, "self", place, weights, call.v.reshape(*weights.shape[:2], -1)
    )


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
