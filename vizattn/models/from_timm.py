"""Models of timm: ``timm/NAME``, ``timm/NAME.TAG``, or ``timm/hf-hub:OWNER/NAME``."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from vizattn.errors import ModelError
from vizattn.models.checkpoint import State
from vizattn.models.fitting import load_checkpoint
from vizattn.models.hub import hugging_face, is_in_cache
from vizattn.models.names import unknown, unknown_tag
from vizattn.models.vision import Request, VisionModel, accept_size
from vizattn.preprocess import Preprocess

# Ways to ask timm for another input size; families know one of them, or take any size as they are.
_SIZES = ("dynamic_img_size", "img_size")
_ELSEWHERE = ("hf-hub:", "hf_hub:", "local-dir:")


def load_timm(request: Request) -> VisionModel:
    """Load a model of timm; its weights come through the Hugging Face hub."""
    if not request.name.startswith(_ELSEWHERE):
        _check_name(request)
    report = None
    if request.path is not None:
        module, report = load_checkpoint(
            request.path,
            lambda n_classes: _build(request, n_classes=n_classes),
            classifiers,
            convert_timm,
            can_be_headless=True,
        )
    elif request.is_pretrained:
        with hugging_face(request.full_name) as is_reachable:
            if not is_reachable:
                _refuse_uncached(request.name)
            module = _build(request, pretrained=True)
    else:
        module = _build(request)
    transform = preprocess_of(module, request.size)
    accept_size(module, request, transform.height, transform.width)
    labels = labels_of(module)
    label = request.name.partition(".")[0]
    notes = request.notes(report)
    return VisionModel(
        module, transform, labels, request.full_name, label, notes, checkpoint=report
    )


def _check_name(request: Request) -> None:
    import timm

    base, _, tag = request.name.partition(".")
    if not timm.is_model(base):
        raise unknown("timm", base, timm.list_models())
    known = [name.partition(".")[2] for name in timm.list_pretrained(f"{base}.*")]
    if tag and tag not in known:
        raise unknown_tag(f"timm/{base}", tag, known)
    if request.is_pretrained and not timm.is_model_pretrained(base):
        raise ModelError(
            f"timm has no pretrained weights for {base!r}. Give weights=PATH for a file of your "
            f"own, or weights='random' to see how things work."
        )


def _refuse_uncached(name: str) -> None:
    """Before a model of a billion parameters is built, only to find that its weights are away."""
    import timm

    config = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if config is not None and config.hf_hub_id and not is_in_cache(config.hf_hub_id):
        raise FileNotFoundError(config.hf_hub_id)


def _build(request: Request, n_classes: int | None = None, pretrained: bool = False) -> nn.Module:
    """The module, at the size asked for if its family can be told one."""
    arguments: dict[str, Any] = {} if n_classes is None else {"num_classes": n_classes}
    if request.size is None:
        return build_timm(request.name, pretrained, **arguments)
    for way in _SIZES:
        sized = {way: True if way.startswith("dynamic") else request.size}
        try:
            return build_timm(request.name, pretrained, **arguments, **sized)
        except ModelError as error:
            if not isinstance(error.__cause__, TypeError):
                raise
    return build_timm(request.name, pretrained, **arguments)


def build_timm(architecture: str, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """A module of timm in evaluation mode.

    Raises:
        ModelError: Without weights, timm refuses to build it; errors of fetching are timm's own.
    """
    import timm

    try:
        module: nn.Module = timm.create_model(architecture, pretrained=pretrained, **arguments)
    except Exception as error:  # of timm's own kinds, or of a class that lacks an argument
        if pretrained and not isinstance(error, TypeError):
            raise
        raise ModelError(f"timm cannot build {architecture!r}: {error}") from error
    return module.eval()


def preprocess_of(module: nn.Module, size: int | None = None) -> Preprocess:
    """What a timm model's own configuration says about pictures."""
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(module)
    height, width = (size, size) if size else config["input_size"][1:]
    mean, std = tuple(config["mean"]), tuple(config["std"])
    about = {"mean": mean, "std": std, "interpolation": config["interpolation"]}
    if config["crop_mode"] == "border":
        fill = tuple(round(255 * value) / 255 for value in mean)
        about |= {"mode": "pad", "fill": fill}
    elif config["crop_mode"] == "squash":
        about |= {"mode": "squash"}
    return Preprocess(height, width, crop_pct=config["crop_pct"], **about)


def labels_of(module: nn.Module) -> tuple[str, ...]:
    """Names of the classes where timm knows them."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(module)
    if not subset or not getattr(module, "num_classes", 0):
        return ()
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))


def classifiers(module: nn.Module) -> tuple[str, ...]:
    """Names of a timm model's classifiers; distilled models have two."""
    config: Any = getattr(module, "pretrained_cfg", None) or {}
    named = config.get("classifier") or ()
    return (named,) if isinstance(named, str) else tuple(named)


def convert_timm(state: State, module: nn.Module) -> State:
    """Timm's own translation of the formats that a family was published in."""
    family = sys.modules[type(module).__module__]
    convert = getattr(family, "checkpoint_filter_fn", None)
    converted: State = state if convert is None else convert(state, module)
    return converted
