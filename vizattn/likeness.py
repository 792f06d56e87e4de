"""Embeddings to compare with: those of a text, of another picture, of a patch of the same one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from vizattn.blocks import block_of
from vizattn.calls import AttentionCall
from vizattn.capture import on_picture, pixels_of
from vizattn.errors import CaptureError, TargetError
from vizattn.frame import Frame
from vizattn.images import ImageSource
from vizattn.models import VisionModel
from vizattn.observation import observe, original
from vizattn.outputs import logits_of
from vizattn.places import CallPlace
from vizattn.readouts import block_tokens
from vizattn.tails import tail_of
from vizattn.targets import (
    PATCH,
    PICTURE,
    TEXT,
    Compared,
    Target,
    asked_by_name,
    embedding_of,
    has_classes,
    pixel_of,
)
from vizattn.tracked import Tracked


def settled(target: Target | None, model: VisionModel) -> Target | None:
    """The target with the embedding of a text or of another picture in the place of its name.

    Whatever else it is stays as it is: a patch has to wait for its picture.

    Raises:
        TargetError: The model gives no such embedding.
        ImageError: The other picture cannot be opened.
    """
    kind, asked = asked_by_name(target)
    if kind == TEXT:
        return text_embedding(model, asked)
    return picture_embedding(model, asked) if kind == PICTURE else target


def text_embedding(model: VisionModel, text: str) -> Compared:
    """What the model's text tower makes of a text.

    Raises:
        TargetError: There is no text, or no text tower.
    """
    if not text:
        raise TargetError("there is no text to compare with; text:a cat would have one.")
    if model.text is None:
        raise TargetError(
            f"{model.name} has no text tower here, so a text cannot be compared with what it makes "
            f"of a picture. Models of CLIP and SigLIP named open_clip/... or hf/... have one, with "
            f"the library's own weights."
        )
    return Compared(model.text(text), f"the text {text!r}", f"{TEXT}:{text}")


def picture_embedding(model: VisionModel, image: ImageSource, name: str = "") -> Compared:
    """What the model makes of another picture, by one forward pass.

    Args:
        model: The model.
        image: Anything ``open_image`` takes.
        name: How to name it; its file name when left out.

    Raises:
        TargetError: The model has classes.
        ImageError: The picture cannot be opened.
    """
    pixels, _ = pixels_of(model, image)
    seen = observe(model.module, pixels, {}, model.readout)
    grids = [place.keys.grid for place in seen.places if place.keys is not None]
    grid = grids[-1] if grids else None
    name = name or (Path(image).name if isinstance(image, str | Path) else "a picture")
    vector = embedding_of(seen.output, model.module, model.labels, grid)
    asked = str(image) if isinstance(image, str | Path) else name
    return Compared(vector, f"the picture {name!r}", f"{PICTURE}:{asked}")


def patch_embedding(
    tracked: Tracked,
    kept: Sequence[tuple[AttentionCall, CallPlace]],
    model: VisionModel,
    frame: Frame,
    asked: str,
) -> Compared:
    """What the model makes of one patch of the picture that it is looking at.

    The patch's token after the last layer is read out alone, as if the model had no other: through
    its last normalisation, its pooling head if it has one, and its projection.

    Args:
        tracked: The forward pass, with what blocks put out.
        kept: Its calls and where they lie.
        model: The model.
        frame: Which part of the original picture it saw.
        asked: ``X,Y``, a pixel of the original picture.

    Raises:
        TargetError: The model has classes, or what a patch becomes in it is not known.
        FrameError: The model did not see this pixel.
    """
    x, y = pixel_of(asked)
    if logits_of(tracked.seen.output, model.module, model.labels) is not None:
        raise has_classes(original(model.module), f"the patch at {asked}")
    tail = tail_of(tracked.twin)
    tokens, place = _last_tokens(tracked, kept)
    here = on_picture(place, frame, (tracked.leaf.shape[-2], tracked.leaf.shape[-1])).queries
    assert here is not None
    row, col = here.frame.patch_at(x, y, here.grid.rows, here.grid.cols)
    index = here.grid.patch_index(row, col)
    with torch.no_grad():
        vector = tail(tokens[:, index : index + 1].detach())
    words = f"the patch at row {row + 1}, column {col + 1}"
    return Compared(vector, words, f"{PATCH}:{asked}")


def _last_tokens(
    tracked: Tracked, kept: Sequence[tuple[AttentionCall, CallPlace]]
) -> tuple[Tensor, CallPlace]:
    """Tokens after the last block that has one for each patch, and where they lie.

    Raises:
        CaptureError: There is none.
    """
    for call, place in reversed(kept):
        where = place.queries
        with suppress(CaptureError):
            tokens = block_tokens(tracked, block_of(tracked.twin, call.module))
            if where and where.index is None and tokens.shape[1] == where.grid.n_tokens:
                return tokens, place
    raise CaptureError(
        f"no block of {type(tracked.twin).__name__} puts out one token for each patch, so there is "
        f"no patch to compare with. Another picture can be compared with: picture:FILE."
    )
