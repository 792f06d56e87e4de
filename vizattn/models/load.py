"""From a name to a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vizattn.errors import ModelError, UnknownName
from vizattn.models.catalogue import MODELS
from vizattn.models.embedded import load_embedded
from vizattn.models.from_hf import load_hf
from vizattn.models.from_open_clip import load_open_clip
from vizattn.models.from_timm import load_timm
from vizattn.models.from_torchvision import load_torchvision
from vizattn.models.vision import Request, VisionModel

_SOURCES: dict[str, Callable[[Request], VisionModel]] = {
    "vizattn": load_embedded,
    "timm": load_timm,
    "hf": load_hf,
    "torchvision": load_torchvision,
    "open_clip": load_open_clip,
}


def load_model(
    name: str, *, weights: str | Path = "pretrained", size: int | None = None
) -> VisionModel:
    """Load a model by name, with the preprocessing that it was trained with.

    Args:
        name: ``vizattn/NAME`` (ships here), ``timm/NAME[.TAG]``, ``hf/OWNER/NAME`` (or a folder),
            ``torchvision/NAME[.TAG]`` or ``open_clip/NAME[/TAG]``.
        weights: ``pretrained``; or ``random``, which leaves them as they were initialised and is
            noted in everything made from them; or the path of a file: safetensors, or a torch
            file that holds tensors only.
        size: Side of the input in pixels, for models that take more than one size.

    Raises:
        UnknownName: There is no such source or model; near names are offered.
        ModelError: The weights cannot be had here, or a file of weights does not fit.
    """
    source, _, rest = name.partition("/")
    if source not in _SOURCES or not rest:
        raise UnknownName("model", name, [*MODELS, *(f"{source}/NAME" for source in _SOURCES)])
    return _SOURCES[source](Request(source, rest, _weights(weights), size))


def _weights(weights: str | Path) -> str | Path:
    if weights in ("pretrained", "random"):
        return weights
    path = Path(weights).expanduser()
    if not path.exists():
        raise ModelError(
            f"got weights={str(weights)!r}, which is neither 'pretrained' nor 'random' nor a file "
            f"that exists."
        )
    return path
