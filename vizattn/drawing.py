"""The pieces that figures and films are drawn with: a map, its colour bar, words, all by inches.

Every figure and every film has one colour scale, and a bar that says what its colours mean.
matplotlib is used without its global state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import shorten
from typing import TYPE_CHECKING

import torch
from PIL import Image

from vizattn.frame import Frame
from vizattn.heatmap import Heatmap
from vizattn.methods.query import Asker, percent
from vizattn.overlay import SIGNED, TOP_PERCENTILE, matplotlib_name, overlay, top_of
from vizattn.places import Tokens

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches around everything.
MARGIN = 0.14

INK, QUIET, FAINT = "#1b1d22", "#666a73", "#d9dbe0"

# Height of the colour bar in inches.
_BAR = 0.13

# Letters that fit into one line; a model may be called anything.
_LONGEST = 95


@dataclass(frozen=True)
class Look:
    """How maps are coloured, the same for every map of a figure.

    Attributes:
        unit: What the bar measures, such as ``attention per patch, %``.
        scale: Multiplies the values for the bar, such as 100 for percent.
        colours: One of ``COLOUR_MAPS``, for maps without negative values.
        opacity: Opacity of the top colour, in [0, 1].
        smooth: Interpolate between patch centres instead of showing patches as they are.
        top: The value of the last colour; the 99.5th percentile of all maps when ``None``.
        signed: Whether colours run from ``-top`` over white at zero; where one of the maps has
            negative values when ``None``.
    """

    unit: str = "attention per patch, %"
    scale: float = 100.0
    colours: str = "viridis"
    opacity: float = 0.85
    smooth: bool = False
    top: float | None = None
    signed: bool | None = None

    def over(self, maps: Sequence[Heatmap]) -> Look:
        """The same with one scale for these maps, every one of which counts alike."""
        top = shared_top(maps) if self.top is None else self.top
        signed = any(heat.is_signed for heat in maps) if self.signed is None else self.signed
        return replace(self, top=top, signed=signed)

    @property
    def colour_map(self) -> str:
        """The colour map in use."""
        return SIGNED if self.signed else self.colours


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

    @property
    def caption(self) -> str:
        """The label, and a word of warning where a stretched scale would show noise."""
        return f"{self.label}, nearly flat" if self.heat.is_nearly_flat else self.label


def shared_top(maps: Sequence[Heatmap]) -> float:
    """The distance from zero that 99.5 % of the patches of all maps do not exceed."""
    return top_of(torch.cat([heat.values.double().flatten() for heat in maps]))


def asked_patch(queries: Tokens, at: Asker | None) -> Frame | None:
    """The patch under a pixel, as a rectangle of the original picture."""
    if at is None or isinstance(at, str):
        return None
    size = queries.grid.rows, queries.grid.cols
    return queries.frame.patch_box(*queries.frame.patch_at(*at, *size), *size)


def draw_panel(
    axis: Axes, panel: Panel, image: Image.Image, small: Image.Image, look: Look
) -> None:
    """One map over its picture.

    Args:
        axis: Where to.
        panel: The map; it lies on the original picture.
        image: The original picture.
        small: The same at the size at which it is drawn.
        look: How the map is coloured.
    """
    from matplotlib.patches import Rectangle

    across, down = small.width / image.width, small.height / image.height
    heat = replace(panel.heat, frame=_scaled(panel.heat.frame, across, down))
    drawn = overlay(
        small, heat, colours=look.colours, opacity=look.opacity, top=look.top, smooth=look.smooth,
        signed=look.signed,
    )  # fmt: skip
    axis.imshow(drawn, extent=(0, small.width, small.height, 0), aspect="auto")
    if panel.asked is not None:
        box = _scaled(panel.asked, across, down)
        for colour, thick in (("black", 2.6), ("white", 1.2)):  # seen on any colour
            edges = Rectangle((box.left, box.top), box.width, box.height, fill=False)
            edges.set(edgecolor=colour, linewidth=thick)
            axis.add_patch(edges)


def draw_bar(figure: Figure, look: Look, margin: float = MARGIN) -> None:
    """What the colours mean, along the lower edge."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    assert look.top is not None
    wide = figure.get_figwidth() - 2 * margin
    axis = add_axes(figure, margin, margin + 0.19, wide * 0.46, _BAR)
    axis.set_axis_on()
    end = look.scale * (look.top or 1)
    start, beyond = (-end, "both") if look.signed else (0, "max")
    scale = ScalarMappable(Normalize(start, end), matplotlib_name(look.colour_map))
    bar = figure.colorbar(scale, cax=axis, orientation="horizontal", extend=beyond, extendfrac=0.03)
    bar.outline.set_visible(False)
    ticks = MaxNLocator(5).tick_values(start, end)
    bar.set_ticks([tick for tick in ticks if start <= tick <= end])
    axis.tick_params(labelsize=8, length=2, pad=2, colors=QUIET)
    axis.get_xticklabels()[0].set_horizontalalignment("left")  # flush with the maps above
    left = margin + wide * 0.5
    words = look.unit, f"one scale, last colour from percentile {TOP_PERCENTILE:g} upwards"
    write(figure, left, margin + 0.20, words[0], size=9)
    write(figure, left, margin + 0.03, words[1], size=8, colour=QUIET)


def add_axes(figure: Figure, left: float, lower: float, wide: float, high: float) -> Axes:
    """Axes by inches from the lower left corner."""
    width, height = figure.get_size_inches()
    axis = figure.add_axes((left / width, lower / height, wide / width, high / height))
    axis.set_axis_off()
    return axis


def write(
    figure: Figure,
    x: float,
    y: float,
    words: str,
    *,
    size: float,
    colour: str = INK,
    weight: str = "normal",
    right: bool = False,
) -> None:
    """Text by inches from the lower left corner; names may hold ``$`` and mean no formula."""
    width, height = figure.get_size_inches()
    words = shorten(words, _LONGEST, placeholder=" …")
    text = figure.text(x / width, y / height, words, fontsize=size, color=colour)
    text.set(fontweight=weight, horizontalalignment="right" if right else "left")
    text.set_parse_math(False)


def off_map(heat: Heatmap) -> str:
    """What the map cannot show: the share on tokens without a place."""
    roles, shares = heat.grid.roles, heat.prefix_mass.tolist()
    sums = {role: sum(s for r, s in zip(roles, shares, strict=True) if r == role) for role in roles}
    return ", ".join(f"{percent(share)} on {role}" for role, share in sums.items())


def resized(image: Image.Image, side: int) -> Image.Image:
    """The picture with its longer side so long."""
    share = side / max(image.size)
    size = max(1, round(image.width * share)), max(1, round(image.height * share))
    return image if size == image.size else image.resize(size, Image.Resampling.LANCZOS)


def _scaled(frame: Frame, across: float, down: float) -> Frame:
    return Frame(frame.left * across, frame.top * down, frame.width * across, frame.height * down)
