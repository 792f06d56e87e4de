"""From a picture to the pixels a model takes, and the part of the picture they came from.

Five ways lead a picture of any shape into a model. The first two show all of it and nothing else:

* ``fit``: keep the shape, make the longer side ``size``, round both sides to whole patches.
  The shape changes by less than half a patch.
* ``shorter``: keep the shape, make the shorter side ``size``, the longer one at most ``longest``.
* ``crop``: make the shorter side a little larger than ``size``, cut the centre out.
* ``squash``: make it ``size`` whatever its shape; or a little larger, and cut the centre out.
* ``pad``: keep the shape, make the longer side ``size``, fill the rest.

Libraries agree on these five and differ in how they round; ``halves`` and ``resampled`` say how.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vizattn.errors import ImageError
from vizattn.frame import Frame

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Mode = Literal["fit", "shorter", "crop", "squash", "pad"]
Resampled = Literal["picture", "bytes", "values"]
Triple = tuple[float, float, float]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop or pad, and normalise as a model was trained to expect.

    Attributes:
        height: Height of the input in pixels; in ``fit`` mode the longer side takes the larger.
        width: Width of the input in pixels.
        mean: Subtracted from each channel of a picture that runs from 0 to 1.
        std: Divides each channel afterwards.
        interpolation: How pixels are resized.
        mode: ``fit``, ``shorter``, ``crop``, ``squash`` or ``pad``, as the module describes.
        crop_pct: Share of the resized picture that the crop keeps; 1 keeps all of it.
        multiple: In the modes ``fit`` and ``shorter``, both sides are multiples of this.
        resized: Height and width before the crop, where they are not ``size / crop_pct``.
        longest: In ``shorter`` mode, the most that the longer side may become.
        fill: Colour around the picture, from 0 to 1, where the model sees more than the picture.
        corner: In ``pad`` mode, the picture lies in the upper left corner and not in the middle.
        halves: Where an odd number of pixels is cut off: ``even`` starts the window at the even
            one of the two candidates, as torchvision does; ``down`` at the smaller, as
            transformers does.
        resampled: What is resized: the ``picture`` by Pillow, or its ``bytes`` or its ``values``
            from 0 to 1 by torch. They differ by about one step of 255.
        is_bgr: Channels are given blue first.
    """

    height: int
    width: int
    mean: Triple = IMAGENET_MEAN
    std: Triple = IMAGENET_STD
    interpolation: Interpolation = "bicubic"
    mode: Mode = "crop"
    crop_pct: float = 1.0
    multiple: int = 1
    resized: tuple[int, int] | None = None
    longest: int | None = None
    fill: Triple = (0.0, 0.0, 0.0)
    corner: bool = False
    halves: Literal["even", "down"] = "even"
    resampled: Resampled = "picture"
    is_bgr: bool = False

    def __call__(self, image: Image.Image) -> tuple[Float[Tensor, "3 height width"], Frame]:
        """Pixels for the model, and the rectangle of the picture that they show.

        Raises:
            ImageError: The picture is not RGB, or so long and thin that a side would vanish.
        """
        if image.mode != "RGB":
            raise ImageError(f"got a picture in mode {image.mode!r}; open_image() makes it RGB.")
        width, height = self._resized(*image.size)
        if not (width and height):
            raise ImageError(
                f"got a picture of {image.width}×{image.height} pixels; at the size that the model "
                f"takes, its shorter side would vanish."
            )
        values = self._resample(image, width, height)
        if self.mode in ("fit", "shorter"):
            return self._normalise(values), Frame(0, 0, *image.size)
        left, top = self._start(width, self.width), self._start(height, self.height)
        seen = _window(values, (left, top, self.width, self.height), self.fill)
        x, y = image.width / width, image.height / height  # original pixels per resized pixel
        frame = Frame(left * x, top * y, self.width * x, self.height * y)
        return self._normalise(seen), frame

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.mode == "fit":
            longest = max(self.width, self.height) / max(width, height)
            return self._whole_patches(width * longest), self._whole_patches(height * longest)
        if self.mode == "shorter":
            return self._shorter(width, height)
        target_h, target_w = self._before_crop()
        if self.mode == "squash":
            return target_w, target_h
        if self.mode == "pad":
            return self._inside(width, height, target_w, target_h)
        return self._cover(width, height, target_w, target_h)

    def _whole_patches(self, side: float) -> int:
        return max(1, round(side / self.multiple)) * self.multiple

    def _before_crop(self) -> tuple[int, int]:
        """Height and width that the resized picture covers, has or stays within."""
        if self.resized is not None:
            return self.resized
        return math.floor(self.height / self.crop_pct), math.floor(self.width / self.crop_pct)

    def _shorter(self, width: int, height: int) -> tuple[int, int]:
        """By DETR's rule: the shorter side decides, unless the longer one would be too long."""
        short, long = min(width, height), max(width, height)
        side = float(min(self.height, self.width))
        if self.longest is not None and long / short * side > self.longest:
            exact = self.longest * short / long
            new_short, new_long = round(exact), int(exact * long / short)
        else:
            new_short, new_long = int(side), int(side * long / short)
        new_short, new_long = (
            side // self.multiple * self.multiple for side in (new_short, new_long)
        )
        return (new_short, new_long) if width <= height else (new_long, new_short)

    def _inside(self, width: int, height: int, target_w: int, target_h: int) -> tuple[int, int]:
        """The largest size of this shape within the target, by SAM's rule or by timm's."""
        ratio = max(width / target_w, height / target_h)
        if self.corner:
            return int(width / ratio + 0.5), int(height / ratio + 0.5)
        return round(width / ratio), round(height / ratio)

    def _cover(self, width: int, height: int, target_w: int, target_h: int) -> tuple[int, int]:
        """The smallest size of this shape that covers the crop, by timm's and torchvision's rule.

        For a square input both resize the shorter side to ``floor(size / crop_pct)`` and cut the
        longer one to a whole number downwards; for others timm scales by the tighter side.
        """
        if target_w == target_h:
            if width <= height:
                return target_w, int(target_w * height / width)
            return int(target_h * width / height), target_h
        ratio = min(width / target_w, height / target_h)
        return round(width / ratio), round(height / ratio)

    def _start(self, resized: int, size: int) -> int:
        """Where the window starts; negative when it is larger than the picture."""
        if self.mode == "pad" and self.corner:
            return 0
        if self.halves == "down":
            return (resized - size) // 2
        return -((size - resized) // 2) if size > resized else round((resized - size) / 2)

    def _resample(self, image: Image.Image, width: int, height: int) -> Tensor:
        """The picture at another size, values from 0 to 1, ``[3, height, width]``."""
        if self.resampled == "picture":
            image = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
        channels = np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))
        if self.resampled == "picture":
            return torch.from_numpy(channels.astype(np.float32) / 255)
        values = torch.from_numpy(channels)
        if self.resampled == "values":
            return _by_torch(values * (1 / 255), width, height, self.interpolation)
        return _by_torch(values, width, height, self.interpolation).float() / 255

    def _normalise(self, values: Tensor) -> Tensor:
        if self.is_bgr:
            values = values.flip(0)
        return (values - _per_channel(self.mean)) / _per_channel(self.std)


def _per_channel(triple: Triple) -> Tensor:
    return torch.tensor(triple, dtype=torch.float32).view(3, 1, 1)


def _by_torch(values: Tensor, width: int, height: int, interpolation: str) -> Tensor:
    return torch.nn.functional.interpolate(
        values.unsqueeze(0), (height, width), mode=interpolation, antialias=True
    ).squeeze(0)


def _window(values: Tensor, window: tuple[int, int, int, int], fill: Triple) -> Tensor:
    """The part of a picture inside a window, which may reach beyond it."""
    left, top, width, height = window
    x, y = max(left, 0), max(top, 0)
    part = values[:, y : max(0, top + height), x : max(0, left + width)]
    if part.shape[1:] == (height, width):
        return part.contiguous()
    seen = _per_channel(fill).repeat(1, height, width)
    seen[:, y - top : y - top + part.shape[1], x - left : x - left + part.shape[2]] = part
    return seen
