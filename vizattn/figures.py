"""Figures for papers and notebooks, drawn with matplotlib and without its global state."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from PIL import Image

from vizattn.heatmap import Heatmap
from vizattn.layers import Attention
from vizattn.methods.query import placed
from vizattn.methods.raw import attended
from vizattn.overlay import TOP_PERCENTILE, overlay
from vizattn.places import Tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_heads(
    layer: Attention,
    image: Image.Image,
    *,
    at: tuple[float, float] | None = None,
    colours: str = "viridis",
    columns: int = 3,
) -> Figure:
    """What the query looks at in every head of one layer, on one shared scale with a colour bar.

    Args:
        layer: One layer of a record of this picture, such as ``record[-1]``.
        image: The original picture.
        at: Ask from the patch under this pixel of the picture; else the model's own query.
        colours: One of ``COLOUR_MAPS``.
        columns: Heads side by side.

    Returns:
        A matplotlib figure; save it with ``.savefig``.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    queries, keys = placed(layer, layer.queries), placed(layer, layer.keys)
    query = queries.grid.query if at is None else _patch(queries, at)
    heads = attended(layer, query)
    heats = [Heatmap.from_relevance(head, keys.grid, keys.frame) for head in heads]
    top = float(
        torch.quantile(torch.stack([h.values for h in heats]).double(), TOP_PERCENTILE / 100)
    )
    rows = math.ceil(len(heats) / columns)
    width = 3.2 * columns
    height = width / columns * image.height / image.width * rows + 0.3 * rows + 0.3
    figure = Figure(figsize=(width + 0.9, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for number, axis in enumerate(axes, start=1):
        axis.set_axis_off()
        if number <= len(heats):
            axis.imshow(overlay(image, heats[number - 1], colours=colours, top=top))
            axis.set_title(f"head {number}", fontsize=10)
    scale = ScalarMappable(Normalize(0, 100 * top), colours)
    label = f"attention per patch, % (top colour: {TOP_PERCENTILE:g}th percentile)"
    figure.colorbar(scale, ax=list(axes), label=label, extend="max", fraction=0.03, pad=0.02)
    return figure


def _patch(tokens: Tokens, at: tuple[float, float]) -> torch.Tensor:
    return tokens.grid.patch(*tokens.frame.patch_at(*at, tokens.grid.rows, tokens.grid.cols))
