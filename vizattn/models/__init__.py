"""Bring a model: by name, from a file, or your own. The only room that knows model libraries.

One library, one file: ``from_timm``, ``from_hf``, ``from_torchvision``, ``from_open_clip``, and
``embedded`` for the models that ship here. ``load`` chooses among them, ``checkpoint`` and
``fitting`` read weights of one's own, ``hub`` knows whether there is a network.
"""

from __future__ import annotations

from vizattn.models.catalogue import MODELS
from vizattn.models.embedded import assets
from vizattn.models.fitting import CheckpointReport
from vizattn.models.load import load_model
from vizattn.models.vision import RANDOM_NOTE, Request, Transform, VisionModel
from vizattn.models.wrap import wrap_model

__all__ = [
    "MODELS",
    "RANDOM_NOTE",
    "CheckpointReport",
    "Request",
    "Transform",
    "VisionModel",
    "assets",
    "load_model",
    "wrap_model",
]
