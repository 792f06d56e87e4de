"""Figures for papers and notebooks: several maps of one picture on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

from vizattn.drawing import (
    MARGIN,
    QUIET,
    Look,
    Panel,
    add_axes,
    asked_patch,
    draw_bar,
    draw_panel,
    off_map,
    resized,
    write,
)
from vizattn.heatmap import Heatmap
from vizattn.layers import Attention
from vizattn.methods.query import Asker, Query, placed
from vizattn.record import AttentionRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Longer side of one map in pixels; print at 3 inches has 200 of them per inch.
PANEL_SIDE = 640

# Inches: of a figure, between maps, of a line of words, and what the bar at the foot needs.
_WIDTH, _GAP, _LINE, _FOOT = 9.6, 0.1, 0.24, 0.42


def plot_heads(
    layer: Attention,
    image: Image.Image,
    *,
    at: Asker | None = None,
    colours: str = "viridis",
    columns: int | None = None,
) -> Figure:
    """What the query looks at in every head of one layer, on one shared scale with a colour bar.

    Args:
        layer: One layer of a record of this picture, such as ``record[-1]``.
        image: The original picture.
        at: Ask from the patch under this pixel of the picture; else the model's own query.
        colours: One of ``COLOUR_MAPS``.
        columns: Heads side by side; as many as make a figure of a handy shape when ``None``.

    Returns:
        A matplotlib figure; save it with ``.savefig``.
    """
    keys = placed(layer, layer.keys)
    alone = AttentionRecord((layer,), keys.frame, (image.height, image.width))
    query = Query.of(alone, layer, at)
    box = asked_patch(placed(layer, layer.queries), at)
    panels = [
        Panel(Heatmap.from_relevance(head, keys.grid, keys.frame), f"head {number}", box)
        for number, head in enumerate(layer.attend(query.weights), start=1)
    ]
    title = f"What {query.words} attends to in {layer.name}"
    return plot_maps(panels, image, title=title, look=Look(colours=colours), columns=columns)


def plot_maps(
    panels: Sequence[Panel],
    image: Image.Image,
    *,
    title: str = "",
    look: Look | None = None,
    columns: int | None = None,
) -> Figure:
    """Several maps of one picture side by side, on one scale with a colour bar.

    Args:
        panels: The maps and their labels; the share on prefix tokens is written beside each.
        image: The original picture.
        title: What all of them show.
        look: How they are coloured.
        columns: Maps side by side; as many as make a figure of a handy shape when ``None``.

    Returns:
        A matplotlib figure, 9.6 inches wide.
    """
    from matplotlib.figure import Figure

    look = (look or Look()).over([panel.heat for panel in panels])
    columns = columns or _columns(len(panels), image.width / image.height)
    rows = math.ceil(len(panels) / columns)
    wide = (_WIDTH - 2 * MARGIN - (columns - 1) * _GAP) / columns
    high = wide * image.height / image.width
    tall = 2 * MARGIN + 1.5 * _LINE + rows * (high + _LINE + _GAP) + _FOOT
    figure = Figure(figsize=(_WIDTH, tall))
    write(figure, MARGIN, tall - MARGIN - 0.17, title, size=11, weight="bold")
    small = resized(image, min(PANEL_SIDE, max(image.size)))
    for number, panel in enumerate(panels):
        left = MARGIN + number % columns * (wide + _GAP)
        upper = tall - MARGIN - 1.5 * _LINE - number // columns * (high + _LINE + _GAP)
        write(figure, left, upper - 0.16, panel.caption, size=9)
        write(
            figure,
            left + wide,
            upper - 0.16,
            off_map(panel.heat),
            size=8,
            colour=QUIET,
            right=True,
        )
        axis = add_axes(figure, left, upper - _LINE - high, wide, high)
        draw_panel(axis, panel, image, small, look)
    draw_bar(figure, look)
    return figure


def _columns(count: int, shape: float) -> int:
    """As many columns as bring the figure nearest to a page on its side, with few holes."""

    def away(columns: int) -> float:
        rows = math.ceil(count / columns)
        holes = (rows * columns - count) / columns
        return abs(math.log(columns * shape / rows / 1.7)) + 2 * holes

    return min(range(1, count + 1), key=away)
