"""The models that ship with the project."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from vizattn.errors import ModelError, UnknownName
from vizattn.models.checkpoint import read_entries
from vizattn.models.fitting import load_checkpoint
from vizattn.models.from_timm import build_timm, convert_timm
from vizattn.models.vision import Request, VisionModel
from vizattn.preprocess import Preprocess
from vizattn.vit import ViT

# What the configuration calls the transformer of ``vit``; other names are timm's.
SEED = "vizattn.ViT"


def assets() -> Path:
    """The folder of embedded weights and examples: beside the package, or inside it.

    Raises:
        ModelError: It is in neither place, and ``VIZATTN_ASSETS`` does not name it.
    """
    package = Path(__file__).parent.parent
    named = os.environ.get("VIZATTN_ASSETS")
    places = [Path(named)] if named else [package.parent / "assets", package / "assets"]
    for place in places:
        if (place / "models").is_dir():
            return place
    raise ModelError(
        f"the embedded weights are not in {' or '.join(map(str, places))}. Run from a checkout of "
        f"the project, or set VIZATTN_ASSETS to its assets folder."
    )


def load_embedded(request: Request) -> VisionModel:
    """Load a model whose weights are in the project's assets."""
    folder = assets() / "models" / request.name
    if not (folder / "config.json").is_file():
        known = [f"vizattn/{path.parent.name}" for path in folder.parent.glob("*/config.json")]
        raise UnknownName("model", request.full_name, known)
    config = json.loads((folder / "config.json").read_text())

    def build(_n_classes: int | None) -> nn.Module:
        if config["architecture"] == SEED:
            return ViT(**config["model_args"]).eval()
        return build_timm(config["architecture"], **config["model_args"], num_classes=0)

    report = None
    if request.path is not None:
        module, report = load_checkpoint(request.path, build, lambda _: (), convert_timm)
    else:
        module = build(None)
        if request.is_pretrained:
            _load_shards(module, folder)
    transform = _preprocess(dict(config["input"]), request.size)
    notes = request.notes(report)
    return VisionModel(
        module, transform, tuple(config.get("classes", ())), request.full_name, config["label"],
        notes, "", report, is_multi_label=config.get("is_multi_label", False),
    )  # fmt: skip


def _load_shards(module: nn.Module, folder: Path) -> None:
    state = read_entries(folder)[""]
    module.load_state_dict({key: tensor.float() for key, tensor in state.items()}, strict=True)


def _preprocess(wanted: dict[str, Any], size: int | None) -> Preprocess:
    side = size or wanted["size"]
    del wanted["size"]
    wanted.update(mean=tuple(wanted["mean"]), std=tuple(wanted["std"]))
    return Preprocess(side, side, **wanted)
