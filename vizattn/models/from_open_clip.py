"""Vision towers of open_clip: ``open_clip/NAME`` or ``open_clip/NAME/TAG``."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vizattn.errors import ModelError
from vizattn.models.checkpoint import State
from vizattn.models.fitting import load_checkpoint
from vizattn.models.from_timm import convert_timm
from vizattn.models.hub import hugging_face, need
from vizattn.models.names import unknown, unknown_tag
from vizattn.models.vision import Request, TextTower, VisionModel, accept_size
from vizattn.preprocess import Mode, Preprocess

_MODES: dict[str, Mode] = {"shortest": "crop", "longest": "pad", "squash": "squash"}


def load_open_clip(request: Request) -> VisionModel:
    """Load the vision tower of an open_clip model, and beside it the tower for text."""
    open_clip = need("open_clip", "open_clip")
    name, tag = _name_and_tag(open_clip, request)
    fetching = (
        hugging_face(request.full_name) if _needs_hub(open_clip, request, name) else nullcontext()
    )
    with fetching:
        whole = _create(open_clip, request, name, tag)
    tower: nn.Module = whole.visual
    report = None
    if request.path is not None:
        tower, report = load_checkpoint(request.path, lambda _: tower, lambda _: (), _convert)
    transform = preprocess_of(_about_pictures(open_clip, whole, name, tag), request.size)
    accept_size(tower, request, transform.height, transform.width)
    notes = request.notes(report)
    # a file of weights has filled the vision tower alone
    text = _text_tower(open_clip, whole, name, request) if report is None else None
    return VisionModel(
        tower, transform, (), request.full_name, name, notes, checkpoint=report, text=text
    )


def _text_tower(open_clip: Any, whole: Any, name: str, request: Request) -> TextTower:
    @cache
    def tokenizer() -> Any:
        with hugging_face(request.full_name):  # some are transformers' own
            return open_clip.get_tokenizer(name)

    def embed(text: str) -> Tensor:
        tokens = tokenizer()([text]).to(next(whole.parameters()).device)
        with torch.no_grad():
            found: Tensor = whole.encode_text(tokens)[0]
        return found

    return embed


def preprocess_of(config: dict[str, Any], size: int | None = None) -> Preprocess:
    """What open_clip's configuration says about pictures."""
    sides = size or config["size"]
    height, width = (sides, sides) if isinstance(sides, int) else sides
    grey = config["fill_color"] / 255
    return Preprocess(
        height,
        width,
        _triple(config["mean"]),
        _triple(config["std"]),
        "bilinear" if config["interpolation"] == "bilinear" else "bicubic",
        _MODES[config["resize_mode"]],
        fill=(grey, grey, grey),
    )


def _triple(value: Any) -> Any:
    return tuple(value) if isinstance(value, (list, tuple)) else (value,) * 3


def _name_and_tag(open_clip: Any, request: Request) -> tuple[str, str]:
    name, _, tag = request.name.partition("/")
    known = open_clip.list_models()
    if name not in known:
        raise unknown("open_clip", name, known)
    tags = open_clip.list_pretrained_tags_by_model(name)
    if tag and tag not in tags:
        raise unknown_tag(f"open_clip/{name}", tag, tags)
    if request.is_pretrained and not tags:
        raise ModelError(
            f"open_clip has no pretrained weights for {name!r}. Give weights=PATH for a file of "
            f"your own, or weights='random' to see how things work."
        )
    return name, tag or (tags[0] if tags else "")


def _needs_hub(open_clip: Any, request: Request, name: str) -> bool:
    """Text towers of transformers read their configuration from the hub even when random."""
    return request.is_pretrained or "hf_model_name" in open_clip.get_model_config(name)["text_cfg"]


def _create(open_clip: Any, request: Request, name: str, tag: str) -> Any:
    about = open_clip.get_pretrained_cfg(name, tag) if tag else {}
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # what it has to say is raised, or said in the notes
    try:
        whole = open_clip.create_model(
            name,
            pretrained=tag if request.is_pretrained else None,
            load_weights=request.is_pretrained,
            pretrained_text=False,
            # Weights were trained with one of two GELUs; left alone, open_clip only warns.
            force_quick_gelu=bool(about.get("quick_gelu")),
            force_image_size=request.size,
            weights_only=True,
        )
    finally:
        logging.disable(before)
    return whole.eval()


def _about_pictures(open_clip: Any, whole: Any, name: str, tag: str) -> dict[str, Any]:
    """The preprocessing of the tag, at the size of the tower, whether or not it was fetched."""
    config: dict[str, Any] = dict(open_clip.get_model_preprocess_cfg(whole))
    about = open_clip.get_pretrained_cfg(name, tag) if tag else {}
    return config | {key: about[key] for key in config if key in about and key != "size"}


def _convert(state: State, tower: nn.Module) -> State:
    """Timm's translation, for towers that are timm's."""
    trunk = getattr(tower, "trunk", None)
    if trunk is None:
        return state
    return {f"trunk.{key}": tensor for key, tensor in convert_timm(state, trunk).items()}
