"""From a model and several pictures to a record of each, in one forward pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vizattn.calls import NO_VALUES, VALUES
from vizattn.capture import pixels_of, record_of
from vizattn.errors import CaptureError
from vizattn.frame import Frame
from vizattn.images import ImageSource
from vizattn.models import VisionModel, wrap_model
from vizattn.record import AttentionRecord
from vizattn.shares import observe_each


def capture_batch(
    model: VisionModel | nn.Module,
    pictures: Tensor | Sequence[ImageSource | Tensor],
    *,
    values: bool = True,
) -> list[AttentionRecord]:
    """Run a model once on several pictures and keep the attention of every layer, each by itself.

    A record is that of ``capture`` on its picture alone, to what rounding in another order makes of
    the last digits. Where a model mixes the pictures of a batch, or lays them out in a way that
    cannot be told apart again, they are looked at one by one. The records of a batch share memory,
    which is freed with the last of them.

    Args:
        model: From ``load_model`` or ``wrap_model``, or a module, which is wrapped as it is.
        pictures: Pixels ``[batch, 3, height, width]`` that are already preprocessed, or pictures
            of any kind that ``capture`` takes and that become pixels of one size.
        values: Whether to keep the values too, as for ``capture``.

    Raises:
        CaptureError: The pictures have different sizes as the model takes them, the model is in
            training mode, or attention was missed.
        ImageError: A picture cannot be opened.
    """
    model = model if isinstance(model, VisionModel) else wrap_model(model)
    if isinstance(pictures, Tensor) and pictures.dim() != 4:
        raise CaptureError(
            f"got pixels of shape {tuple(pictures.shape)}; several pictures are "
            f"[batch, 3, height, width]. One picture is for capture."
        )
    prepared = [pixels_of(model, picture) for picture in pictures]
    if not prepared:
        return []
    sizes = sorted({tuple(pixels.shape[-2:]) for pixels, _ in prepared})
    if len(sizes) > 1:
        found = ", ".join(f"{height}×{width}" for height, width in sizes)
        raise CaptureError(
            f"got pictures that this model takes as {found} pixels; the pictures of one batch are "
            f"all of one size. Make a batch of each size."
        )
    pixels = torch.stack([pixels for pixels, _ in prepared])
    return capture_prepared(model, pixels, [frame for _, frame in prepared], values=values)


def capture_prepared(
    model: VisionModel, pixels: Tensor, frames: Sequence[Frame], *, values: bool
) -> list[AttentionRecord]:
    """The same for pixels ``[batch, 3, height, width]`` and the part of its picture each shows."""
    size = pixels.shape[-2], pixels.shape[-1]
    keep = VALUES if values else NO_VALUES
    seen = observe_each(model.module, pixels, model.readout, keep=keep)
    return [record_of(each, model, frame, size) for each, frame in zip(seen, frames, strict=True)]
