"""What the commands share: where they print, options that several have, the model by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

if TYPE_CHECKING:
    from vizattn.models import VisionModel

Weights = Annotated[
    str,
    typer.Option(
        metavar="pretrained|random|FILE",
        help="Random weights show how things work, without asking a hub; or a file of weights.",
    ),
]
Size = Annotated[int | None, typer.Option(help="Side of the input, in pixels.")]

out = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def model_of(name: str, weights: str, size: int | None) -> str | VisionModel:
    """The name alone, where it says everything: explain keeps models by their names."""
    if weights == "pretrained" and size is None:
        return name
    from vizattn.models import load_model

    return load_model(name, weights=weights, size=size)
