"""Open a picture the way a person sees it: upright, in RGB, with limits checked before work."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vizattn.errors import ImageError

# Checked on the header, before a single pixel is decoded: a file of 74 bytes can announce 81
# million pixels. Fifty million is a full-frame camera.
MAX_PIXELS = 50_000_000

# What shows through transparent pixels. White, as in a browser on a page.
BACKGROUND = (255, 255, 255)

ImageSource = str | Path | bytes | io.IOBase | Image.Image | np.ndarray


def open_image(source: ImageSource, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """An upright RGB picture from a path, bytes, an open file, a Pillow image or an array.

    The orientation that a camera noted is applied, transparency is laid over white, deeper
    greyscale is scaled to 8 bits, and of an animation the first frame is taken.

    Args:
        source: Where the picture comes from; an array is ``[row, col]`` or ``[row, col, RGB(A)]``
            in uint8, or in floats from 0 to 1.
        max_pixels: Larger pictures are refused before they are decoded.

    Raises:
        ImageError: The picture is missing, damaged, too large, or of a kind Pillow cannot read.
    """
    if isinstance(source, np.ndarray):
        source = _from_array(source)
    name = _name(source)
    try:
        if isinstance(source, Image.Image):
            return _upright(source, name, max_pixels)
        with warnings.catch_warnings():  # our own limit is the stricter one
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = Image.open(_readable(source))
        with opened:
            return _upright(opened, name, max_pixels)
    except FileNotFoundError:
        raise ImageError(f"there is no file {name}. Is the path right?") from None
    except IsADirectoryError:
        raise ImageError(f"{name} is a folder, not a picture.") from None
    except UnidentifiedImageError:
        raise ImageError(
            f"{name} is not a picture that can be read here. "
            f"JPEG, PNG, WebP, GIF, TIFF and BMP work; is the file whole?"
        ) from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name} has too many pixels; at most {max_pixels:,} are read.") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{name} is damaged or cut short: {error}.") from error


def _upright(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    _check_size(image, name, max_pixels)
    return to_rgb(ImageOps.exif_transpose(image))


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB: alpha over white, 16-bit and float greyscale scaled to 8 bits."""
    if image.mode == "RGB":
        return image
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_eight_bits(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        return _over_background(image.convert("RGBA"))
    return image.convert("RGB")


def _over_background(image: Image.Image) -> Image.Image:
    under = Image.new("RGBA", image.size, (*BACKGROUND, 255))
    return Image.alpha_composite(under, image).convert("RGB")


def _to_eight_bits(image: Image.Image) -> Image.Image:
    """16-bit files use 0 to 65535, however dark they are; other ranges are stretched to fit."""
    values = np.asarray(image, dtype=np.float64)
    if image.mode.startswith("I;16") or (
        image.mode == "I" and values.min(initial=0) >= 0 and values.max(initial=0) <= 65535
    ):
        low, high = 0.0, 65535.0
    else:
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    unit = np.clip((np.nan_to_num(values, nan=low) - low) / max(high - low, 1e-12), 0, 1)
    return Image.fromarray(np.round(unit * 255).astype(np.uint8))


def _from_array(values: np.ndarray) -> Image.Image:
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (3, 4)):
        raise ImageError(
            f"got an array of shape {values.shape}; a picture is [row, col], [row, col, 3] or "
            f"[row, col, 4]. Are the colours in front, as torch keeps them?"
        )
    if values.dtype.kind == "f":
        if values.size and not (values.min() >= 0 and values.max() <= 1):
            raise ImageError(
                f"got floats from {values.min():g} to {values.max():g}; "
                f"a picture in floats runs from 0 to 1."
            )
        values = np.round(values * 255).astype(np.uint8)
    if values.dtype != np.uint8:
        raise ImageError(f"got an array of {values.dtype}; a picture is uint8 or float.")
    return Image.fromarray(np.ascontiguousarray(values))


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise ImageError(
            f"{name} has {width}×{height} = {width * height:,} pixels; at most {max_pixels:,} are "
            f"read. Make it smaller first."
        )
    if width * height == 0:
        raise ImageError(f"{name} has no pixels: it is {width}×{height}.")


def _readable(source: str | Path | bytes | io.IOBase) -> Any:
    if isinstance(source, bytes):
        return io.BytesIO(source)
    return Path(source) if isinstance(source, str) else source


def _name(source: object) -> str:
    if isinstance(source, str | Path):
        return repr(Path(source).name)
    return "the picture"
