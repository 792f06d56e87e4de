"""Draw a heat-map over its picture, as an array. The only place where numbers become colours.

Colour follows the value from 0 to a stated top; opacity follows it too, so that what is not
attended to shows the picture and not a dark veil. Colour maps are perceptually uniform. Values on
both sides of zero get a map that is white at zero, blue below and red above, as far down as up.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from vizattn.errors import MethodError, UnknownName
from vizattn.heatmap import Heatmap

# In the order in which they are offered. No rainbow: its bands are not in the data.
COLOUR_MAPS = ("viridis", "cividis", "magma", "inferno", "gray")

# For values on both sides of zero, whichever map is chosen for shares.
SIGNED = "signed"

# A sink patch can hold twenty times the rest; the top colour starts at this percentile, which is
# always stated beside the map, so that one patch does not black out all others.
TOP_PERCENTILE = 99.5


@cache
def colour_table(name: str) -> UInt8[np.ndarray, "256 3"]:
    """256 RGB colours from the lowest value to the highest.

    Raises:
        UnknownName: No such map is offered.
    """
    if name not in (*COLOUR_MAPS, SIGNED):
        raise UnknownName("colour map", name, COLOUR_MAPS)
    from matplotlib import colormaps

    return np.round(colormaps[matplotlib_name(name)](np.linspace(0, 1, 256))[:, :3] * 255).astype(
        np.uint8
    )


def matplotlib_name(name: str) -> str:
    """What matplotlib calls a colour map."""
    return "RdBu_r" if name == SIGNED else name


def top_of(values: Float[Tensor, "*shape"]) -> float:
    """The value of the last colour: the 99.5th percentile of how far values are from zero."""
    return float(torch.quantile(values.double().abs().flatten(), TOP_PERCENTILE / 100))


def colour_indices(
    values: Float[Tensor, "*shape"], top: float, bottom: float = 0.0
) -> UInt8[Tensor, "*shape"]:
    """Which of the 256 colours each value takes: ``bottom`` the first, ``top`` and above the last.

    A constant map where top equals bottom takes the first colour: there is nothing to show, and
    nothing is divided by zero. NaN takes the first as well.
    """
    span = top - bottom
    if span <= 0:
        return torch.zeros(values.shape, dtype=torch.uint8)
    unit = ((values.double() - bottom) / span).nan_to_num(0).clamp(0, 1)
    return (unit * 255 + 0.5).floor().to(torch.uint8)


def overlay(
    image: Image.Image,
    heat: Heatmap,
    *,
    colours: str = "viridis",
    opacity: float = 0.85,
    top: float | None = None,
    smooth: bool = False,
    grey: bool = True,
    signed: bool | None = None,
) -> UInt8[np.ndarray, "height width 3"]:
    """The original picture with the map laid over the part that the model saw.

    Args:
        image: The original picture, RGB.
        heat: A map with its frame on this picture.
        colours: One of ``COLOUR_MAPS``, for a map without negative values.
        opacity: Opacity of the top colour, in [0, 1]; lower values are fainter in proportion.
        top: The value that takes the last colour; the map's 99.5th percentile when ``None``.
        smooth: Interpolate between patch centres instead of showing patches as they are.
        grey: Show the picture in grey, so that every colour comes from the data.
        signed: Colour from ``-top`` over white at zero to ``top``; where the map has negative
            values when ``None``.

    Returns:
        RGB of the original's size. What was cropped away before the model is dimmed.

    Raises:
        MethodError: The opacity is out of range.
        UnknownName: No such colour map is offered.
    """
    if not 0 <= opacity <= 1:
        raise MethodError(f"opacity runs from 0 to 1; got {opacity}.")
    signed = heat.is_signed if signed is None else signed
    table = colour_table(colours)
    table = colour_table(SIGNED) if signed else table
    top = top_of(heat.values) if top is None else top
    placed = heat.frame.place(heat.values, *image.size, smooth=smooth)
    index = colour_indices(placed, top, -top if signed else 0.0).numpy()
    picture = np.asarray(image.convert("L").convert("RGB") if grey else image, dtype=np.float32)
    size = np.abs(index - 127.5) * 2 if signed else index
    alpha = (opacity * size.astype(np.float32) / 255)[..., None]
    mixed = picture * (1 - alpha) + table[index] * alpha
    unseen = torch.isnan(placed).numpy()
    mixed[unseen] = _dim(picture[unseen])
    drawn: np.ndarray = np.round(mixed).astype(np.uint8)
    return drawn


def _dim(picture: np.ndarray) -> np.ndarray:
    """Fade towards white: visibly outside, still recognisable."""
    return picture * 0.35 + 255 * 0.65
