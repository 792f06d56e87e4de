"""What a loaded model is, and what is asked of those who load one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

from vizattn.errors import ModelError
from vizattn.frame import Frame
from vizattn.models.fitting import CheckpointReport

Transform = Callable[[Image.Image], tuple[Tensor, Frame]]

# From a text to its embedding, in the space of the picture's.
TextTower = Callable[[str], Tensor]

RANDOM_NOTE = "random weights: the maps show how things work, not what a trained model sees"


@dataclass(frozen=True)
class VisionModel:
    """A model and how to show it a picture.

    Attributes:
        module: The torch module, untouched, in evaluation mode when it was loaded here.
        transform: From an RGB picture to pixels ``[3, height, width]`` and the frame they show.
        labels: Names of the classes, empty when the model has none.
        name: How to name it on screen and in files.
        label: The same for people.
        notes: What a reader of its maps has to know.
        readout: ``class`` or ``mean``: which tokens it reads out; asked of the module when empty.
        checkpoint: How a file of weights fitted, when they came from one.
        text: The other tower of a model that was trained with text.
        is_multi_label: Whether each class is a question of its own: several may be there at once.
    """

    module: nn.Module
    transform: Transform
    labels: tuple[str, ...] = ()
    name: str = "model"
    label: str = ""
    notes: tuple[str, ...] = field(default=())
    readout: str = ""
    checkpoint: CheckpointReport | None = None
    text: TextTower | None = None
    is_multi_label: bool = False


@dataclass(frozen=True)
class Request:
    """A model that somebody asked for.

    Attributes:
        source: The library, such as ``timm``.
        name: The model's name there.
        weights: ``pretrained``, ``random``, or the file that holds them.
        size: Side of the input in pixels, where it is not the model's own.
    """

    source: str
    name: str
    weights: str | Path = "pretrained"
    size: int | None = None

    @property
    def full_name(self) -> str:
        """The name as it was typed."""
        return f"{self.source}/{self.name}"

    @property
    def is_pretrained(self) -> bool:
        """Whether the library's own weights are wanted."""
        return self.weights == "pretrained"

    @property
    def path(self) -> Path | None:
        """The file of weights, if one was given."""
        return self.weights if isinstance(self.weights, Path) else None

    def notes(self, report: CheckpointReport | None = None) -> tuple[str, ...]:
        """What a reader has to know about the weights."""
        if report is not None:
            return (report.sentence,)
        return () if self.is_pretrained else (RANDOM_NOTE,)


def accept_size(module: nn.Module, request: Request, height: int, width: int) -> None:
    """Try a size that somebody asked for, once, so that a refusal comes early and in words.

    Raises:
        ModelError: The module does not take pictures of this size.
    """
    if request.size is None:
        return
    pixels = torch.zeros(1, 3, height, width)
    try:
        with torch.no_grad():
            module(pixels)
    except Exception as error:  # each library has its own way to say that a size is wrong
        raise ModelError(
            f"{request.full_name} does not take pictures of {height}×{width} pixels: {error}. "
            f"Leave size out for its own, or try a multiple of its patch size."
        ) from error
