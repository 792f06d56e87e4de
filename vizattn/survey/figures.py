"""Two figures of a survey: how far heads look by depth, and how widely.

Source of the first: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", figure 7 (right) and
appendix D.7: one dot for each head, mean attention distance in pixels over the depth of the
network. Here a bar through each dot shows how much pictures differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vizattn.drawing import FAINT, INK, MARGIN, QUIET, add_axes, write
from vizattn.survey.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches, as in the other figures, and of margins for labels; pixels per inch of PNG files.
_WIDTH, _LEFT, _HEAD, _FOOT, _DPI = 9.6, 0.62, 0.62, 0.92, 200

# Blue and vermilion of Okabe & Ito, which people who do not see red or green tell apart.
_DOT, _LINE = "#0072B2", "#D55E00"

# Share of a layer's width that its heads are spread over.
_SPREAD = 0.66

# More cells than these have no room for their numbers.
_MOST_NUMBERS = 300


def save_figures(summary: Summary, folder: Path) -> list[Path]:
    """Draw both figures as PNG and SVG.

    Returns:
        The files written.
    """
    paths = []
    for name, figure in (("distance", plot_distance(summary)), ("entropy", plot_entropy(summary))):
        for ending in ("png", "svg"):
            path = folder / f"{name}.{ending}"
            figure.savefig(path, dpi=_DPI)
            paths.append(path)
    return paths


def plot_distance(summary: Summary) -> Figure:
    """Mean attention distance of every head by depth, with the spread over pictures.

    Args:
        summary: A survey.

    Returns:
        A matplotlib figure, 9.6 inches wide.
    """
    name, unit = _distance_of(summary)
    mean, deviation = _mean(summary, name), summary.moments[name].deviation
    figure, axis = _framed(summary, 4.9, "How far each head looks, by depth")
    heads = _draw_heads(axis, mean, deviation)
    even = [_even(layer) for layer in summary.layers]
    lines = _draw_lines(axis, _over_heads(mean), even)
    axis.set_ylim(bottom=0)
    if heads is None:
        axis.set_yticks([])
    axis.grid(axis="y", color=FAINT, linewidth=0.6)
    axis.set_ylabel(f"mean attention distance, {unit}")
    _legend(figure, heads, lines)
    if np.isnan(_over_heads(mean)).any():
        words = "a layer without dots has no distance; survey.json says why"
        write(figure, _WIDTH - MARGIN, MARGIN + 0.2, words, size=8, colour=QUIET, right=True)
    return figure


def plot_entropy(summary: Summary) -> Figure:
    """Mean entropy of the rows of every head, as a heat map of layers and heads.

    Args:
        summary: A survey.

    Returns:
        A matplotlib figure, 9.6 inches wide.
    """
    from matplotlib.colors import Normalize

    mean = _mean(summary, "mean_entropy")
    n_layers, n_heads = mean.shape
    top, words = _most_bits(summary, mean)
    tall = _HEAD + _FOOT + min(7.0, max(1.6, 0.36 * n_heads))
    figure, axis = _framed(summary, tall, "How widely each head looks: entropy of attention")
    scale = Normalize(0, top)
    extent = (0.5, n_layers + 0.5, n_heads + 0.5, 0.5)
    axis.set_facecolor(FAINT)
    image = axis.imshow(mean.T, norm=scale, cmap="viridis", aspect="auto", extent=extent)
    axis.set_yticks(_ticks(n_heads))
    axis.set_ylabel("head")
    axis.tick_params(length=0)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)
    _separate(axis, n_layers, n_heads)
    if mean.size <= _MOST_NUMBERS:
        _write_numbers(axis, mean, image)
    _bar(figure, image, words)
    if np.isnan(mean).any():
        words = "grey: no such head, or not defined; survey.json says why"
        write(figure, _WIDTH - MARGIN, MARGIN, words, size=8, colour=QUIET, right=True)
    return figure


def _framed(summary: Summary, tall: float, title: str) -> tuple[Figure, Axes]:
    """A figure with its title, what it is of, and axes over the depth of the network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, tall))
    write(figure, MARGIN, tall - MARGIN - 0.17, title, size=11, weight="bold")
    write(figure, MARGIN, tall - MARGIN - 0.37, _words(summary), size=8.5, colour=QUIET)
    axis = add_axes(figure, _LEFT, _FOOT, _WIDTH - _LEFT - MARGIN, tall - _HEAD - _FOOT)
    axis.set_axis_on()
    for side, spine in axis.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(QUIET)
    axis.tick_params(labelsize=8, colors=QUIET)
    axis.xaxis.label.set(color=INK, fontsize=9)
    axis.yaxis.label.set(color=INK, fontsize=9)
    axis.set_xlim(0.5, len(summary.layers) + 0.5)
    axis.set_xticks(_ticks(len(summary.layers)))
    axis.set_xlabel("layer")
    axis.set_axisbelow(True)
    return figure, axis


def _words(summary: Summary) -> str:
    """``DINOv2 ViT-S/14, 64 pictures at 168×224 pixels``."""
    sizes = list(summary.input_sizes)
    at = sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes, such as {sizes[0]}"
    plural = "s" * (summary.n_pictures != 1)
    return f"{summary.model}, {summary.n_pictures:,} picture{plural} at {at} pixels"


def _distance_of(summary: Summary) -> tuple[str, str]:
    """In pixels of the input, which compare layers; in patches where they have none."""
    if summary.moments["input_distance"].count.any():
        return "input_distance", "pixels of the model's input"
    return "distance", "patches"


def _draw_heads(axis: Axes, mean: np.ndarray, deviation: np.ndarray) -> Any:
    """A dot for each head, heads of a layer side by side in their order, bars for pictures.

    Returns:
        Dots and bars of one layer, for the legend.
    """
    n_layers, n_heads = mean.shape
    small = n_layers * n_heads > _MOST_NUMBERS
    drawn = None
    for layer in range(n_layers):
        if layer % 2:  # stripes say which dots are of one layer
            axis.axvspan(layer + 0.5, layer + 1.5, color=FAINT, alpha=0.32, linewidth=0, zorder=0)
        heads = np.flatnonzero(~np.isnan(mean[layer]))
        if not len(heads):
            continue
        x = layer + 1 + (heads - (len(heads) - 1) / 2) * _SPREAD / max(len(heads), 4)
        y, above = mean[layer, heads], np.nan_to_num(deviation[layer, heads])
        drawn = axis.errorbar(
            x, y, [np.minimum(y, above), above],  # no distance is below 0
            fmt="o", color=_DOT, ecolor=(_DOT, 0.45), markersize=3.4 if small else 5.4,
            markeredgecolor="white", markeredgewidth=0.4, elinewidth=0.8 if small else 1.2,
            zorder=3,
        )  # fmt: skip
    return drawn


def _draw_lines(axis: Axes, mean: np.ndarray, even: Sequence[float]) -> dict[str, Any]:
    """The mean of the heads, and what says nothing of the picture; by what they are called."""
    depth = np.arange(1, len(mean) + 1)
    marker = "_" if len(mean) == 1 else None  # a line of one point is not seen
    lines = {}
    if not np.isnan(mean).all():
        (line,) = axis.plot(depth, mean, color=_LINE, linewidth=1.6, marker=marker, zorder=2)
        lines["mean of the heads"] = line
    if not np.isnan(even).all():
        dashes = (0, (5, 3))
        (line,) = axis.plot(
            depth, even, color=QUIET, linewidth=1.1, linestyle=dashes, marker=marker, zorder=1
        )
        lines["attention spread evenly over all patches"] = line
    return lines


def _legend(figure: Figure, heads: Any, lines: Mapping[str, Any]) -> None:
    """What the marks mean, along the lower edge."""
    from matplotlib.legend_handler import HandlerErrorbar

    words = "one head, ± 1 standard deviation over pictures; heads in their order"
    marks = ({} if heads is None else {words: heads}) | dict(lines)
    if not marks:
        return
    place = (_LEFT / _WIDTH, MARGIN / figure.get_figheight())
    figure.legend(
        list(marks.values()), list(marks), loc="lower left", bbox_to_anchor=place,
        ncols=len(marks), fontsize=8, frameon=False, borderaxespad=0, borderpad=0,
        labelcolor=INK, columnspacing=1.8,
        handler_map={type(heads): HandlerErrorbar(yerr_size=0.8)},
    )  # fmt: skip


def _even(layer: Mapping[str, Any]) -> float:
    """Mean distance in pixels when every patch looks at all patches alike.

    NaN for windows, and where grids or patches differ from picture to picture.
    """
    if layer["kinds"] != ["self"] or len(layer["grids"]) != 1 or len(layer["patches"]) != 1:
        return math.nan
    (rows, cols), (patch,) = layer["grids"][0], layer["patches"]
    y, x = np.arange(1 - rows, rows), np.arange(1 - cols, cols)
    pairs = np.outer(rows - np.abs(y), cols - np.abs(x))  # how many pairs of patches lie so
    lengths = np.hypot(y[:, None], x)
    return float((pairs * lengths).sum() / (rows * cols) ** 2 * patch)


def _most_bits(summary: Summary, mean: np.ndarray) -> tuple[float, str]:
    """Entropy of a row that is even over all it can see, the end of an honest scale."""
    seen = {count for layer in summary.layers for count in layer["n_seen"]}
    most = max(seen, default=1)
    known = mean[~np.isnan(mean)]
    top = max(math.log2(max(most, 2)), float(known.max()) if len(known) else 0.0)
    tokens = f"all {most} tokens" if len(seen) == 1 else f"{most} tokens, the most that a row sees"
    return top, f"bits; 0: all on one token, {top:.1f}: alike on {tokens}"


def _separate(axis: Axes, n_layers: int, n_heads: int) -> None:
    """White lines between the cells."""
    axis.set_xticks(np.arange(1, n_layers) + 0.5, minor=True)
    axis.set_yticks(np.arange(1, n_heads) + 0.5, minor=True)
    axis.set_axisbelow(False)
    axis.grid(which="minor", color="white", linewidth=0.8)
    axis.tick_params(which="minor", length=0)


def _write_numbers(axis: Axes, mean: np.ndarray, image: Any) -> None:
    for layer, head in np.argwhere(~np.isnan(mean)).tolist():
        value = float(mean[layer, head])
        words = axis.text(layer + 1, head + 1, f"{value:.1f}", ha="center", va="center", fontsize=8)
        words.set_color(_readable_on(image.to_rgba(value)[:3]))


def _readable_on(colour: Sequence[float]) -> str:
    """Black or white, whichever differs more by WCAG 2.1's contrast ratio."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
    light = float(np.dot(linear, (0.2126, 0.7152, 0.0722)))
    return "black" if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else "white"


def _bar(figure: Figure, image: Any, words: str) -> None:
    """What the colours mean, along the lower edge."""
    axis = add_axes(figure, _LEFT, MARGIN + 0.19, 3.6, 0.13)
    axis.set_axis_on()
    bar = figure.colorbar(image, cax=axis, orientation="horizontal")
    bar.outline.set_visible(False)
    axis.tick_params(labelsize=8, length=2, pad=2, colors=QUIET)
    write(figure, _LEFT + 3.8, MARGIN + 0.19, words, size=9)


def _ticks(count: int) -> list[int]:
    """Every one, or every few, from 1."""
    step = max(1, math.ceil(count / 24))
    return list(range(1, count + 1, step))


def _mean(summary: Summary, name: str) -> np.ndarray:
    """``[layer, head]``; NaN where there is none."""
    moments = summary.moments[name]
    return np.where(moments.count > 0, moments.mean, np.nan)


def _over_heads(mean: np.ndarray) -> np.ndarray:
    """``[layer]``; NaN where no head has a number."""
    there = ~np.isnan(mean)
    total = np.where(there, mean, 0).sum(1)
    return np.where(there.any(1), total / np.maximum(there.sum(1), 1), np.nan)
