"""Figures for papers, notebooks and films, drawn with matplotlib and without its global state.

Every figure has one colour scale for all of its maps, and a bar that says what the colours mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from vizattn.frame import Frame
from vizattn.heatmap import Heatmap
from vizattn.layers import Attention
from vizattn.methods.query import Pixel, Query, percent, placed
from vizattn.methods.raw import attended
from vizattn.overlay import TOP_PERCENTILE, overlay
from vizattn.places import Tokens
from vizattn.record import AttentionRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Longer side of one map in a figure, in pixels; print at 3 inches has 200 of them per inch.
PANEL_SIDE = 640

# Longer side of the picture in a film, in pixels: small enough to be sent around. Smaller pictures
# are enlarged, and narrow ones stand in the middle, because words need the room.
FILM_SIDE = 640

# Inches.
_WIDTH, _MARGIN, _GAP, _LINE, _BAR = 9.6, 0.14, 0.1, 0.24, 0.13
_INK, _QUIET, _FAINT = "#1b1d22", "#666a73", "#d9dbe0"


@dataclass(frozen=True)
class Look:
    """How maps are coloured, the same for every map of a figure.

    Attributes:
        unit: What the bar measures, such as ``attention per patch, %``.
        scale: Multiplies the values for the bar, such as 100 for percent.
        colours: One of ``COLOUR_MAPS``.
        opacity: Opacity of the top colour, in [0, 1].
        smooth: Interpolate between patch centres instead of showing patches as they are.
        top: The value of the last colour; the 99.5th percentile of all maps when ``None``.
    """

    unit: str = "attention per patch, %"
    scale: float = 100.0
    colours: str = "viridis"
    opacity: float = 0.85
    smooth: bool = False
    top: float | None = None

    def over(self, maps: Sequence[Heatmap]) -> Look:
        """The same with a top for these maps, every one of which counts alike."""
        return self if self.top is not None else replace(self, top=shared_top(maps))


@dataclass(frozen=True)
class Panel:
    """One map of a figure.

    Attributes:
        heat: The map.
        label: What it is, a few words.
        asked: The patch that was asked, a rectangle of the original picture.
    """

    heat: Heatmap
    label: str
    asked: Frame | None = None


def shared_top(maps: Sequence[Heatmap]) -> float:
    """The value that 99.5 % of the patches of all maps do not exceed."""
    values = torch.cat([heat.values.double().flatten() for heat in maps])
    return float(np.quantile(values.numpy(), TOP_PERCENTILE / 100))


def plot_heads(
    layer: Attention,
    image: Image.Image,
    *,
    at: Pixel | None = None,
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
        for number, head in enumerate(attended(layer, query.weights), start=1)
    ]
    title = f"What {query.words} attends to in {layer.name}"
    return plot_maps(panels, image, title=title, look=Look(colours=colours), columns=columns)


def asked_patch(queries: Tokens, at: Pixel | None) -> Frame | None:
    """The patch under a pixel, as a rectangle of the original picture."""
    if at is None:
        return None
    size = queries.grid.rows, queries.grid.cols
    return queries.frame.patch_box(*queries.frame.patch_at(*at, *size), *size)


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
    wide = (_WIDTH - 2 * _MARGIN - (columns - 1) * _GAP) / columns
    high = wide * image.height / image.width
    tall = 2 * _MARGIN + 1.5 * _LINE + rows * (high + _LINE + _GAP) + _bar_height()
    figure = Figure(figsize=(_WIDTH, tall))
    _write(figure, _MARGIN, tall - _MARGIN - 0.17, title, size=11, weight="bold")
    small = _resized(image, min(PANEL_SIDE, max(image.size)))
    for number, panel in enumerate(panels):
        left = _MARGIN + number % columns * (wide + _GAP)
        upper = tall - _MARGIN - 1.5 * _LINE - number // columns * (high + _LINE + _GAP)
        _write(figure, left, upper - 0.16, panel.label, size=9)
        _write(
            figure,
            left + wide,
            upper - 0.16,
            _off_map(panel.heat),
            size=8,
            colour=_QUIET,
            right=True,
        )
        axis = _axis(figure, left, upper - _LINE - high, wide, high)
        _draw(axis, panel, image, small, look)
    _bar(figure, look)
    return figure


def film_frame(
    panel: Panel, image: Image.Image, *, title: str, step: int, n_steps: int, look: Look
) -> UInt8[np.ndarray, "height width 3"]:
    """One frame of a film through the layers: RGB, with even sides as video wants them.

    Args:
        panel: The map of this step; its label says which.
        image: The original picture.
        title: What the whole film shows.
        step: Number of this step, from 0.
        n_steps: How many there are.
        look: How the maps are coloured; its ``top`` is that of all frames.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    small = _resized(image, FILM_SIDE)
    dpi, edge = 100.0, 16
    width, height = FILM_SIDE + 2 * edge, _even(small.height + 2 * edge + 124)
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    inch = edge / dpi
    _write(figure, inch, height / dpi - inch - 0.15, title, size=9, colour=_QUIET)
    _write(figure, inch, height / dpi - inch - 0.40, panel.label, size=12, weight="bold")
    right = width / dpi - inch
    _write(
        figure,
        right,
        height / dpi - inch - 0.40,
        _off_map(panel.heat),
        size=9,
        colour=_QUIET,
        right=True,
    )
    left = (width - small.width) / 2 / dpi
    lower = (height - edge - 52 - small.height) / dpi
    axis = _axis(figure, left, lower, small.width / dpi, small.height / dpi)
    _draw(axis, panel, image, small, look)
    _progress(figure, (inch, lower - 0.1), right - inch, step, n_steps)
    _bar(figure, look, inch)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]  # matplotlib is typed in part
    pixels: np.ndarray = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return pixels[..., :3].copy()


def _draw(axis: Axes, panel: Panel, image: Image.Image, small: Image.Image, look: Look) -> None:
    from matplotlib.patches import Rectangle

    across, down = small.width / image.width, small.height / image.height
    heat = replace(panel.heat, frame=_scaled(panel.heat.frame, across, down))
    drawn = overlay(
        small, heat, colours=look.colours, opacity=look.opacity, top=look.top, smooth=look.smooth
    )
    axis.imshow(drawn, extent=(0, small.width, small.height, 0), aspect="auto")
    if panel.asked is not None:
        box = _scaled(panel.asked, across, down)
        for colour, thick in (("black", 2.6), ("white", 1.2)):  # seen on any colour
            edges = Rectangle((box.left, box.top), box.width, box.height, fill=False)
            edges.set(edgecolor=colour, linewidth=thick)
            axis.add_patch(edges)


def _bar(figure: Figure, look: Look, margin: float = _MARGIN) -> None:
    """What the colours mean, along the lower edge."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    assert look.top is not None
    wide = figure.get_figwidth() - 2 * margin
    axis = _axis(figure, margin, margin + 0.19, wide * 0.46, _BAR)
    axis.set_axis_on()
    end = look.scale * (look.top or 1)
    scale = ScalarMappable(Normalize(0, end), look.colours)
    bar = figure.colorbar(scale, cax=axis, orientation="horizontal", extend="max", extendfrac=0.03)
    bar.outline.set_visible(False)
    bar.set_ticks([tick for tick in MaxNLocator(5).tick_values(0, end) if 0 <= tick <= end])
    axis.tick_params(labelsize=8, length=2, pad=2, colors=_QUIET)
    axis.get_xticklabels()[0].set_horizontalalignment("left")  # flush with the maps above
    left = margin + wide * 0.5
    words = look.unit, f"one scale, last colour from percentile {TOP_PERCENTILE:g} upwards"
    _write(figure, left, margin + 0.20, words[0], size=9)
    _write(figure, left, margin + 0.03, words[1], size=8, colour=_QUIET)


def _progress(
    figure: Figure, corner: tuple[float, float], wide: float, step: int, n_steps: int
) -> None:
    """A short line for every step, those until now in ink."""
    axis = _axis(figure, *corner, wide, 0.035)
    axis.set(xlim=(0, n_steps), ylim=(0, 1))
    gap = min(0.25, 0.04 * n_steps / wide)
    for number in range(n_steps):
        colour = _INK if number <= step else _FAINT
        left = number * (n_steps - 1 + gap) / max(1, n_steps - 1) if n_steps > 1 else 0
        axis.broken_barh([(left, 1 - gap)], (0, 1), facecolors=colour)


def _axis(figure: Figure, left: float, lower: float, wide: float, high: float) -> Axes:
    """Axes by inches from the lower left corner."""
    width, height = figure.get_size_inches()
    axis = figure.add_axes((left / width, lower / height, wide / width, high / height))
    axis.set_axis_off()
    return axis


def _write(
    figure: Figure,
    x: float,
    y: float,
    words: str,
    *,
    size: float,
    colour: str = _INK,
    weight: str = "normal",
    right: bool = False,
) -> None:
    """Text by inches from the lower left corner; names may hold ``$`` and mean no formula."""
    width, height = figure.get_size_inches()
    text = figure.text(x / width, y / height, words, fontsize=size, color=colour)
    text.set(fontweight=weight, horizontalalignment="right" if right else "left")
    text.set_parse_math(False)


def _off_map(heat: Heatmap) -> str:
    """What the map cannot show: the share on tokens without a place."""
    roles, shares = heat.grid.roles, heat.prefix_mass.tolist()
    sums = {role: sum(s for r, s in zip(roles, shares, strict=True) if r == role) for role in roles}
    return ", ".join(f"{percent(share)} on {role}" for role, share in sums.items())


def _columns(count: int, shape: float) -> int:
    """As many columns as bring the figure nearest to a page on its side."""

    def away(columns: int) -> float:
        return abs(math.log(columns * shape / math.ceil(count / columns) / 1.7))

    full = [columns for columns in range(1, count + 1) if count % columns == 0 or count > 8]
    return min(full, key=away)


def _bar_height() -> float:
    return 0.42


def _resized(image: Image.Image, side: int) -> Image.Image:
    """The picture with its longer side so long."""
    share = side / max(image.size)
    size = max(1, round(image.width * share)), max(1, round(image.height * share))
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def _scaled(frame: Frame, across: float, down: float) -> Frame:
    return Frame(frame.left * across, frame.top * down, frame.width * across, frame.height * down)


def _even(pixels: int) -> int:
    return pixels + pixels % 2
