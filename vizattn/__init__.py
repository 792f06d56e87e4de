"""vizattn: see where every layer and head of a vision transformer looks.

    import vizattn as va

    model = va.load_model("vizattn/dinov2-small")
    image = va.open_image("cat.jpg")
    record = va.capture(model, image)                  # one forward pass, output bit-identical
    heat = va.Rollout(residual=0.5).heatmap(record)    # settings now, data later
    picture = va.overlay(image, heat)

Names are loaded when they are first used, so importing the package costs next to nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vizattn.batch import capture_batch as capture_batch
    from vizattn.capture import capture as capture
    from vizattn.errors import VizattnError as VizattnError
    from vizattn.explain import Explanation as Explanation
    from vizattn.explain import explain as explain
    from vizattn.export import save_explanation as save_explanation
    from vizattn.features import capture_features as capture_features
    from vizattn.figures import plot_heads as plot_heads
    from vizattn.frame import Frame as Frame
    from vizattn.gradients import capture_gradients as capture_gradients
    from vizattn.grid import TokenGrid as TokenGrid
    from vizattn.heatmap import Heatmap as Heatmap
    from vizattn.images import open_image as open_image
    from vizattn.methods import METHODS as METHODS
    from vizattn.methods import RawAttention as RawAttention
    from vizattn.methods import Rollout as Rollout
    from vizattn.models import VisionModel as VisionModel
    from vizattn.models import load_model as load_model
    from vizattn.models import wrap_model as wrap_model
    from vizattn.overlay import overlay as overlay
    from vizattn.preprocess import Preprocess as Preprocess
    from vizattn.record import AttentionRecord as AttentionRecord
    from vizattn.statistics import head_statistics as head_statistics
    from vizattn.vit import ViT as ViT

# Public name -> the room it lives in.
_ROOMS = {
    "METHODS": "methods",
    "AttentionRecord": "record",
    "Explanation": "explain",
    "Frame": "frame",
    "Heatmap": "heatmap",
    "Preprocess": "preprocess",
    "RawAttention": "methods",
    "Rollout": "methods",
    "TokenGrid": "grid",
    "ViT": "vit",
    "VisionModel": "models",
    "VizattnError": "errors",
    "capture": "capture",
    "capture_batch": "batch",
    "capture_gradients": "gradients",
    "explain": "explain",
    "load_model": "models",
    "open_image": "images",
    "overlay": "overlay",
    "plot_heads": "figures",
    "save_explanation": "export",
    "head_statistics": "statistics",
    "capture_features": "features",
    "wrap_model": "models",
}

__all__ = sorted([*_ROOMS, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'vizattn' has no attribute {name!r}")
    value = getattr(import_module(f"vizattn.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """Keeps ``vizattn.capture`` the function that people call.

    Importing the room of the same name would put the module in its place; rooms themselves are
    imported from (``from vizattn.capture import capture``), which does not look here.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _ROOMS.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return __all__
