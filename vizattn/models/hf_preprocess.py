"""The image processors of transformers, read as settings.

A processor's class in transformers fills in what a repository's file leaves out; that is all it is
used for here. Classes that exist twice are read in Pillow's form, the one that most models were
trained with; the other differs by about one step of 255. Most classes share one rule, a few have
one of their own, and the others are refused with their name rather than read wrongly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from PIL import Image

from vizattn.errors import ModelError
from vizattn.preprocess import Preprocess

# Classes that have code of their own for something else, such as maps of labels.
_LIKE_THE_OTHERS = {"Beit", "Segformer", "MobileViT", "DPT", "Sam2", "Sam3"}


def preprocess_of(
    transformers: Any, settings: dict[str, Any], model_type: str, size: int | None = None
) -> Preprocess:
    """What a repository says about pictures.

    Args:
        transformers: The library.
        settings: The repository's own; may be empty, then the model's type decides.
        model_type: As in its ``config.json``.
        size: Side of the input in pixels, where it is not the model's own.

    Raises:
        ModelError: The processor's rule is not known here.
    """
    family = _family(settings, model_type)
    by_pillow = getattr(transformers, f"{family}ImageProcessorPil", None)
    kind = by_pillow or getattr(transformers, f"{family}ImageProcessor", None)
    if kind is None:
        raise _not_understood(family, "transformers has no such class")
    processor = kind.from_dict(settings)
    found = _rule(family, kind)(processor)
    if by_pillow is None and found.resampled == "picture":
        found = replace(found, resampled="bytes")
    return found if size is None else _at_size(found, size)


def _family(settings: dict[str, Any], model_type: str) -> str:
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    named = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if named is None:
        kinds = IMAGE_PROCESSOR_MAPPING_NAMES.get(model_type) or {}
        named = next((name for name in kinds.values() if name), None)
    if named is None:
        raise ModelError(
            f"the repository does not say how pictures are prepared, and transformers does not "
            f"know it for {model_type!r}. Load the model yourself and give wrap_model a transform."
        )
    for ending in ("Fast", "Pil", "ImageProcessor", "FeatureExtractor"):
        named = named.removesuffix(ending)
    return str(named)


def _rule(family: str, kind: Any) -> Callable[[Any], Preprocess]:
    if family in _OWN_RULES:
        return _OWN_RULES[family]
    changed = [
        name
        for name in ("resize", "center_crop", "pad", "rescale", "normalize", "_preprocess")
        if all(getattr(kind, name) is not getattr(backend, name) for backend in _backends())
    ]
    if changed and family not in _LIKE_THE_OTHERS:
        raise _not_understood(family, f"it has its own {' and '.join(changed)}")
    return _plain


def _backends() -> tuple[Any, Any]:
    """The two classes whose steps all processors share, unless they say otherwise."""
    from transformers.image_processing_backends import PilBackend, TorchvisionBackend

    return PilBackend, TorchvisionBackend


def _not_understood(family: str, why: str) -> ModelError:
    return ModelError(
        f"pictures are prepared by {family}ImageProcessor, whose rule is not known here ({why}). "
        f"Load the model yourself and give wrap_model a transform."
    )


def _plain(processor: Any) -> Preprocess:
    """The rule that most share: resize, cut the centre out, normalise."""
    size, crop = _sides(processor, "size"), _sides(processor, "crop_size")
    if not getattr(processor, "do_resize", True) or not size:
        raise _not_understood(type(processor).__name__.removesuffix("ImageProcessorPil"), "no size")
    if getattr(processor, "keep_aspect_ratio", False):
        raise _not_understood("DPT", "it keeps the shape and not the size")
    if getattr(processor, "do_pad", False) and "longest_edge" not in size:
        raise _not_understood(type(processor).__name__, "it pads")
    common = _common(processor)
    if not getattr(processor, "do_center_crop", False):
        crop = {}
    if "shortest_edge" not in size:
        height, width = size["height"], size["width"]
        cut = (crop.get("height", height), crop.get("width", width))
        return Preprocess(*cut, mode="squash", resized=(height, width), **common)
    short = size["shortest_edge"]
    if not crop:
        return _shorter(processor, 1)
    cut = (crop["height"], crop["width"])
    return Preprocess(*cut, mode="crop", resized=(short, short), **common)


def _shorter(processor: Any, multiple: int) -> Preprocess:
    """DETR's rule: the shorter side decides, within a limit for the longer one."""
    size = _sides(processor, "size")
    short, longest = size["shortest_edge"], size.get("longest_edge")
    common = _common(processor)
    return Preprocess(short, short, mode="shorter", longest=longest, multiple=multiple, **common)


def _convnext(processor: Any) -> Preprocess:
    side = _sides(processor, "size")["shortest_edge"]
    common = _common(processor)
    if side >= 384:
        return Preprocess(side, side, mode="squash", **common)
    before = int(side / processor.crop_pct)
    return Preprocess(side, side, mode="crop", resized=(before, before), **common)


def _levit(processor: Any) -> Preprocess:
    found = _plain(processor)
    if found.mode != "crop" or found.resized is None:
        return found
    before = int(256 / 224 * found.resized[0])
    return replace(found, resized=(before, before))


def _sam(processor: Any) -> Preprocess:
    """The picture in the upper left corner; padding comes after normalising, so it is the mean."""
    longest = _sides(processor, "size")["longest_edge"]
    pad = _sides(processor, "pad_size")
    common = _common(processor)
    return Preprocess(
        pad["height"],
        pad["width"],
        mode="pad",
        resized=(longest, longest),
        corner=True,
        fill=common["mean"],
        **common,
    )


def _dinov3(processor: Any) -> Preprocess:
    return replace(_plain(processor), resampled="values")


_OWN_RULES: dict[str, Callable[[Any], Preprocess]] = {
    "ConvNext": _convnext,
    "Levit": _levit,
    "Sam": _sam,
    "DINOv3ViT": _dinov3,
    "Detr": lambda processor: _shorter(processor, 1),
    "ConditionalDetr": lambda processor: _shorter(processor, 1),
    "DeformableDetr": lambda processor: _shorter(processor, 1),
    "Yolos": lambda processor: _shorter(processor, 16),
}


def _sides(processor: Any, name: str) -> dict[str, int]:
    """``height`` and ``width``, or ``shortest_edge``, or ``longest_edge``: those that are given."""
    value = getattr(processor, name, None)
    if value is None:
        return {}
    return {key: int(side) for key, side in dict(value).items() if side}


def _common(processor: Any) -> dict[str, Any]:
    """Mean and deviation for values from 0 to 1, the filter, and how halves are rounded."""
    factor = processor.rescale_factor * 255 if processor.do_rescale else 255.0
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if processor.do_normalize:
        mean, std = tuple(processor.image_mean), tuple(processor.image_std)
    filters = Image.Resampling(int(processor.resample))
    return {
        "mean": tuple(value / factor for value in mean),
        "std": tuple(value / factor for value in std),
        "interpolation": filters.name.lower(),
        "halves": "down",
        "is_bgr": bool(getattr(processor, "do_flip_channel_order", False)),
    }


def _at_size(found: Preprocess, size: int) -> Preprocess:
    """The same rule for another side; what is cut off stays the same share."""
    if found.resized is None:
        return replace(found, height=size, width=size)
    height, width = found.resized
    before = (round(height * size / found.height), round(width * size / found.width))
    return replace(found, height=size, width=size, resized=before)
