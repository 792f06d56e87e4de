"""Wrap a module of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image
from torch import Tensor, nn

from vizattn.errors import ModelError
from vizattn.frame import Frame
from vizattn.models.from_timm import preprocess_of
from vizattn.models.vision import TextTower, Transform, VisionModel
from vizattn.preprocess import Preprocess


def wrap_model(
    module: nn.Module,
    transform: Transform | None = None,
    *,
    labels: Sequence[str] = (),
    readout: str = "",
    name: str | None = None,
    text: TextTower | None = None,
    is_multi_label: bool = False,
) -> VisionModel:
    """Wrap a module of your own, trained or not; the module itself is not changed.

    Args:
        module: Anything that takes a batch of pixels ``[1, 3, height, width]``.
        transform: From an RGB picture to pixels and frame. When left out, timm models bring
            their own, and others get ImageNet's at the module's ``image_size``.
        labels: Names of the classes.
        readout: ``class`` or ``mean``: which tokens the module reads out, where it does not say.
        name: How to name it; the class's name when left out.
        text: From a text to its embedding ``[number]``, where the module was trained with text.
        is_multi_label: Whether several of the classes may be there at once.
    """
    name = name or type(module).__name__
    transform = transform or _default_transform(module)
    return VisionModel(
        module, transform, tuple(labels), name, name, readout=readout, text=text,
        is_multi_label=is_multi_label,
    )  # fmt: skip


def _default_transform(module: nn.Module) -> Transform:
    """Timm's own for timm models, ImageNet's at the size that a module names, or a refusal."""
    if hasattr(module, "default_cfg") or hasattr(module, "pretrained_cfg"):
        return preprocess_of(module)
    size = getattr(module, "image_size", None)
    if size is None:
        size = getattr(getattr(module, "config", None), "image_size", None)
    if isinstance(size, int):
        size = (size, size)
    if isinstance(size, (tuple, list)) and len(size) == 2:
        return Preprocess(int(size[0]), int(size[1]))

    def refuse(_image: Image.Image) -> tuple[Tensor, Frame]:
        raise ModelError(
            f"{type(module).__name__} does not say which picture size it takes. Give wrap_model a "
            f"transform, such as Preprocess(224, 224), or give capture pixels instead of a picture."
        )

    return refuse
