"""Classification models of torchvision: ``torchvision/NAME`` or ``torchvision/NAME.TAG``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from vizattn.errors import ModelError
from vizattn.models.checkpoint import State
from vizattn.models.fitting import load_checkpoint
from vizattn.models.hub import torch_hub
from vizattn.models.names import unknown, unknown_tag
from vizattn.models.vision import Request, VisionModel, accept_size
from vizattn.preprocess import Preprocess


def load_torchvision(request: Request) -> VisionModel:
    """Load a model of torchvision; its weights come from PyTorch's server."""
    name, weights = _weights_of(request)
    transform = preprocess_of(weights, request.size)

    def build(n_classes: int | None) -> nn.Module:
        return _build(name, n_classes, transform.height)

    report = None
    if request.path is not None:
        module, report = load_checkpoint(request.path, build, _classifiers, _convert)
    else:
        module = build(None)
        if request.is_pretrained:
            _fill(module, _fetch(request, weights), request)
    accept_size(module, request, transform.height, transform.width)
    labels = tuple(weights.meta["categories"])
    if report is not None and report.n_classes != len(labels):
        labels = ()
    notes = request.notes(report)
    return VisionModel(module, transform, labels, request.full_name, name, notes, "", report)


def preprocess_of(weights: Any, size: int | None = None) -> Preprocess:
    """What torchvision's weights say about pictures.

    Raises:
        ModelError: They are for something else than classifying pictures.
    """
    theirs = weights.transforms()
    if not hasattr(theirs, "crop_size") or not hasattr(theirs, "resize_size"):
        raise ModelError(f"{weights} are not for classifying single pictures.")
    (crop,), (resized,) = theirs.crop_size, theirs.resize_size
    side = size or crop
    before = resized if side == crop else round(side * resized / crop)
    return Preprocess(
        side,
        side,
        tuple(theirs.mean),
        tuple(theirs.std),
        theirs.interpolation.value,
        resized=(before, before),
    )


def _weights_of(request: Request) -> tuple[str, Any]:
    """The model's name, and the weights that were named or are the default."""
    from torchvision import models

    name, _, tag = request.name.partition(".")
    known = models.list_models(module=models)
    if name not in known:
        raise unknown("torchvision", name, known)
    weights = models.get_model_weights(name)
    tags = [member.name for member in weights]
    if tag and tag not in tags:
        raise unknown_tag(f"torchvision/{name}", tag, tags)
    return name, weights[tag] if tag else weights.DEFAULT


def _build(name: str, n_classes: int | None, side: int) -> nn.Module:
    from torchvision import models

    arguments: dict[str, Any] = {} if n_classes is None else {"num_classes": n_classes}
    if name.startswith("vit_"):
        arguments["image_size"] = side
    elif name.startswith("maxvit"):
        arguments["input_size"] = (side, side)
    try:
        module: nn.Module = models.get_model(name, weights=None, **arguments)
    except Exception as error:  # torchvision refuses with whatever its torch calls raise
        raise ModelError(f"torchvision cannot build {name!r} at {side} pixels: {error}") from error
    return module.eval()


def _fetch(request: Request, weights: Any) -> State:
    file = Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]
    with torch_hub(request.full_name, weights.url, is_cached=file.is_file()):
        state: State = weights.get_state_dict(progress=True, check_hash=True, weights_only=True)
    return state


def _fill(module: nn.Module, state: State, request: Request) -> None:
    try:
        module.load_state_dict(_convert(state, module))
    except RuntimeError as error:
        raise ModelError(f"{request.full_name} cannot be loaded at this size: {error}") from error


def _convert(state: State, module: nn.Module) -> State:
    """Position embeddings of a ViT brought to the module's size by torchvision's own rule."""
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    if not isinstance(module, VisionTransformer):
        return state
    moved: State = dict(interpolate_embeddings(module.image_size, module.patch_size, dict(state)))
    return moved


def _classifiers(module: nn.Module) -> tuple[str, ...]:
    """The last linear layer by name is the classifier in every model of torchvision."""
    linear = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)]
    return tuple(linear[-1:])
