"""Load a model by name, or wrap your own. The only room that knows timm.

A loaded model is an untouched ``torch.nn.Module`` beside what is needed to show it a picture:
the preprocessing it was trained with and where its tokens lie.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from torch import Tensor, nn

from vizattn.errors import ModelError, UnknownName
from vizattn.frame import Frame
from vizattn.preprocess import Preprocess

Transform = Callable[[Image.Image], tuple[Tensor, Frame]]

# What the page offers, first is the default; any other name can be typed in.
MODELS: dict[str, str] = {
    "vizattn/dinov2-small": "DINOv2 ViT-S/14",
    "timm/vit_small_patch14_reg4_dinov2.lvd142m": "DINOv2 ViT-S/14 with registers",
    "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k": "ViT-B/16, ImageNet",
    "timm/deit_small_patch16_224.fb_in1k": "DeiT-S/16, ImageNet",
}


@dataclass(frozen=True)
class VisionModel:
    """A model and how to show it a picture.

    Attributes:
        module: The untouched torch module, in evaluation mode when it was loaded here.
        transform: From an RGB picture to pixels ``[3, height, width]`` and the frame they show.
        labels: Names of the classes, empty when the model has none.
        name: How to name it on screen and in files.
        label: The same for people.
        notes: What a reader of its maps has to know.
        readout: ``class`` or ``mean``: which tokens it reads out; asked of the module when empty.
    """

    module: nn.Module
    transform: Transform
    labels: tuple[str, ...] = ()
    name: str = "model"
    label: str = ""
    notes: tuple[str, ...] = field(default=())
    readout: str = ""


def load_model(
    name: str, *, weights: Literal["pretrained", "random"] = "pretrained", size: int | None = None
) -> VisionModel:
    """Load a model by name: ``vizattn/dinov2-small`` (ships here), or ``timm/NAME[.TAG]``.

    Args:
        name: Where it comes from, a slash, and its name there.
        weights: ``random`` leaves the weights as they were initialised, which shows only how
            things work and is noted in everything made from them.
        size: Longer side of the input in pixels, for models that take more than one size.

    Raises:
        UnknownName: There is no such source or model; near names are offered.
        ModelError: The weights cannot be had here.
    """
    source, _, rest = name.partition("/")
    if source not in _SOURCES or not rest:
        raise UnknownName("model", name, [*MODELS, *(f"{source}/NAME" for source in _SOURCES)])
    return _SOURCES[source](rest, weights == "pretrained", size)


def wrap_model(
    module: nn.Module,
    transform: Transform | None = None,
    *,
    labels: Sequence[str] = (),
    readout: str = "",
    name: str | None = None,
) -> VisionModel:
    """Wrap a module of your own, trained or not; the module itself is not changed.

    Args:
        module: Anything that takes a batch of pixels ``[1, 3, height, width]``.
        transform: From an RGB picture to pixels and frame. When left out, timm models bring
            their own, and others get ImageNet's at the module's ``image_size``.
        labels: Names of the classes.
        readout: ``class`` or ``mean``: which tokens the module reads out, where it does not say.
        name: How to name it; the class's name when left out.
    """
    name = name or type(module).__name__
    transform = transform or _default_transform(module)
    return VisionModel(module, transform, tuple(labels), name, name, readout=readout)


def assets() -> Path:
    """The folder of embedded weights and examples: beside the package, or inside it.

    Raises:
        ModelError: It is in neither place, and ``VIZATTN_ASSETS`` does not name it.
    """
    package = Path(__file__).parent
    named = os.environ.get("VIZATTN_ASSETS")
    places = [Path(named)] if named else [package.parent / "assets", package / "assets"]
    for place in places:
        if (place / "models").is_dir():
            return place
    raise ModelError(
        f"the embedded weights are not in {' or '.join(map(str, places))}. Run from a checkout of "
        f"the project, or set VIZATTN_ASSETS to its assets folder."
    )


def _load_embedded(name: str, pretrained: bool, size: int | None) -> VisionModel:
    folder = assets() / "models" / name
    if not (folder / "config.json").is_file():
        known = [f"vizattn/{path.parent.name}" for path in folder.parent.glob("*/config.json")]
        raise UnknownName("model", f"vizattn/{name}", known)
    config = json.loads((folder / "config.json").read_text())
    module = _create(config["architecture"], False, **config["model_args"], num_classes=0)
    if pretrained:
        _load_shards(module, folder)
    wanted = dict(config["input"])
    side = size or wanted.pop("size")
    wanted.pop("size", None)
    wanted.update(mean=tuple(wanted["mean"]), std=tuple(wanted["std"]))
    transform = Preprocess(side, side, **wanted)
    notes = () if pretrained else (_RANDOM_NOTE,)
    return VisionModel(module, transform, (), f"vizattn/{name}", config["label"], notes)


def _load_shards(module: nn.Module, folder: Path) -> None:
    from safetensors.torch import load_file

    state: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        state.update(load_file(shard))
    module.load_state_dict({key: tensor.float() for key, tensor in state.items()}, strict=True)


def _load_timm(name: str, pretrained: bool, size: int | None) -> VisionModel:
    import timm

    if not timm.is_model(name):
        known = [f"timm/{model}" for model in timm.list_models()]
        near = UnknownName("model", f"timm/{name.partition('.')[0]}", known)
        raise ModelError(f"{str(near).partition(' Known: ')[0]} timm has {len(known)} models.")
    size_args = _size_arguments(name, size)
    module = _create(name, pretrained, **size_args)
    label = name.partition(".")[0]
    notes = () if pretrained else (_RANDOM_NOTE,)
    return VisionModel(
        module,
        _timm_transform(module, size),
        _timm_labels(module),
        f"timm/{name}",
        label,
        notes,
    )


def _size_arguments(name: str, size: int | None) -> dict[str, Any]:
    if size is None:
        return {}
    import timm

    embed = getattr(timm.create_model(name, pretrained=False), "patch_embed", None)
    return {"dynamic_img_size": True} if hasattr(embed, "dynamic_feat_size") else {"img_size": size}


def _create(architecture: str, pretrained: bool, **arguments: Any) -> nn.Module:
    import timm

    try:
        module: nn.Module = timm.create_model(architecture, pretrained=pretrained, **arguments)
    except Exception as error:
        if not pretrained:
            raise ModelError(f"timm cannot build {architecture!r}: {error}") from error
        raise ModelError(
            f"the weights of {architecture!r} could not be fetched from the hub or its cache "
            f"({type(error).__name__}). Without a network, use the embedded model "
            f"'vizattn/dinov2-small', or weights='random' to see how things work."
        ) from error
    return module.eval()


def _timm_transform(module: nn.Module, size: int | None) -> Preprocess:
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(module)
    height, width = (size, size) if size else config["input_size"][1:]
    return Preprocess(
        height,
        width,
        tuple(config["mean"]),
        tuple(config["std"]),
        config["interpolation"],
        "squash" if config["crop_mode"] == "squash" else "crop",
        config["crop_pct"],
    )


def _timm_labels(module: nn.Module) -> tuple[str, ...]:
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(module)
    if not subset:
        return ()
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))


def _default_transform(module: nn.Module) -> Transform:
    """Timm's own for timm models, ImageNet's at the size that a module names, or a refusal."""
    if hasattr(module, "default_cfg") or hasattr(module, "pretrained_cfg"):
        return _timm_transform(module, None)
    size = getattr(module, "image_size", None)
    if isinstance(size, int):
        size = (size, size)
    if isinstance(size, tuple) and len(size) == 2:
        return Preprocess(*size)

    def refuse(_image: Image.Image) -> tuple[Tensor, Frame]:
        raise ModelError(
            f"{type(module).__name__} does not say which picture size it takes. Give wrap_model a "
            f"transform, such as Preprocess(224, 224), or give capture pixels instead of a picture."
        )

    return refuse


_RANDOM_NOTE = "random weights: the maps show how things work, not what a trained model sees"

_SOURCES: dict[str, Callable[[str, bool, int | None], VisionModel]] = {
    "vizattn": _load_embedded,
    "timm": _load_timm,
}
