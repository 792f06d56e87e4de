"""Draw a heat-map over its picture, as an array. The only place where numbers become colours.

Colour follows the value from 0 to a stated top; opacity follows it too, so that what is not
attended to shows the picture and not a dark veil. Colour maps are perceptually uniform. Values on
both sides of zero get a map that is white at zero, blue below and red above, as far down as up.
"""

from __future__ import annotations

from functools import cache, lru_cache

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
    colour_table(colours)  # says so when there is no such map, whether or not it is used here
    mixed = blends(SIGNED if signed else colours, opacity)
    top = top_of(heat.values) if top is None else top
    placed = heat.frame.place(heat.values, *image.size, smooth=smooth)
    index = colour_indices(placed, top, -top if signed else 0.0).numpy().astype(np.uint16) << 8
    drawn: np.ndarray
    if grey:
        light = np.asarray(image.convert("L"))
        drawn = np.take(mixed.reshape(-1, 3), index | light, axis=0)
        picture = np.broadcast_to(light[..., None], drawn.shape)
    else:
        picture = np.asarray(image)
        by_channel = mixed.reshape(-1, 3).T
        drawn = np.stack([by_channel[c][index | picture[..., c]] for c in range(3)], axis=-1)
    unseen = torch.isnan(placed).numpy()
    if unseen.any():
        drawn[unseen] = _DIMMED[picture[unseen]]
    return drawn


@lru_cache(maxsize=16)
def blends(colours: str, opacity: float) -> UInt8[np.ndarray, "256 256 3"]:
    """What every colour of a map makes of every light of a picture: ``[colour, light, RGB]``.

    There are but so many pairs, so that a picture of millions of pixels takes no arithmetic.
    """
    steps = np.arange(256, dtype=np.float32)
    size = np.abs(steps - 127.5) * 2 if colours == SIGNED else steps
    alpha = (opacity * size / 255)[:, None, None]
    light = np.arange(256, dtype=np.float32)[None, :, None]
    mixed = light * (1 - alpha) + colour_table(colours)[:, None, :] * alpha
    drawn: np.ndarray = np.round(mixed).astype(np.uint8)
    return drawn


# Faded towards white: visibly outside, still recognisable.
_DIMMED = np.round(np.arange(256, dtype=np.float32) * 0.35 + 255 * 0.65).astype(np.uint8)
