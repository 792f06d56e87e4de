"""From a picture to the pixels a model takes, and the part of the picture they came from.

Three ways lead a picture of any shape into a model:

* ``fit``: keep the shape, make the longer side ``size``, round both sides to whole patches.
  Nothing is cropped; the shape changes by less than half a patch.
* ``crop``: make the shorter side a little larger than ``size``, cut the centre out.
* ``squash``: make it ``size`` whatever its shape.
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

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Mode = Literal["fit", "crop", "squash"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """Resize, crop and normalise as a model was trained to expect.

    Attributes:
        height: Height of the input in pixels; in ``fit`` mode the longer side takes the larger.
        width: Width of the input in pixels.
        mean: Subtracted from each channel of a picture that runs from 0 to 1.
        std: Divides each channel afterwards.
        interpolation: How pixels are resized.
        mode: ``fit``, ``crop`` or ``squash``, described at the top of the module.
        crop_pct: Share of the resized picture that the crop keeps; 1 keeps all of it.
        multiple: In ``fit`` mode, both sides are multiples of this: the patch size.
    """

    height: int
    width: int
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: Interpolation = "bicubic"
    mode: Mode = "crop"
    crop_pct: float = 1.0
    multiple: int = 1

    def __call__(self, image: Image.Image) -> tuple[Float[Tensor, "3 height width"], Frame]:
        """Pixels for the model, and the rectangle of the picture that they show.

        Raises:
            ImageError: The picture is not RGB, or so long and thin that a side would vanish.
        """
        if image.mode != "RGB":
            raise ImageError(f"got a picture in mode {image.mode!r}; open_image() makes it RGB.")
        width, height = self._resized(*image.size)
        resized = image.resize((width, height), Image.Resampling[self.interpolation.upper()])
        if self.mode == "fit":
            return self._normalise(resized), Frame(0, 0, *image.size)
        left, top = _centre(width, self.width), _centre(height, self.height)
        cropped = resized.crop((left, top, left + self.width, top + self.height))
        x, y = image.width / width, image.height / height  # original pixels per resized pixel
        return self._normalise(cropped), Frame(left * x, top * y, self.width * x, self.height * y)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.mode == "fit":
            longest = max(self.width, self.height) / max(width, height)
            return self._whole_patches(width * longest), self._whole_patches(height * longest)
        if self.mode == "squash":
            return math.floor(self.width / self.crop_pct), math.floor(self.height / self.crop_pct)
        return self._cover(width, height)

    def _whole_patches(self, side: float) -> int:
        return max(1, round(side / self.multiple)) * self.multiple

    def _cover(self, width: int, height: int) -> tuple[int, int]:
        """The smallest size of this shape that covers the crop, by timm's and torchvision's rule.

        For a square input both resize the shorter side to ``floor(size / crop_pct)`` and cut the
        longer one to a whole number downwards; for others timm scales by the tighter side.
        """
        target_w = math.floor(self.width / self.crop_pct)
        target_h = math.floor(self.height / self.crop_pct)
        if target_w == target_h:
            if width <= height:
                return target_w, int(target_w * height / width)
            return int(target_h * width / height), target_h
        ratio = min(width / target_w, height / target_h)
        return round(width / ratio), round(height / ratio)

    def _normalise(self, image: Image.Image) -> Tensor:
        values = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255
        mean = torch.tensor(self.mean).view(3, 1, 1)
        return (torch.from_numpy(np.ascontiguousarray(values)) - mean) / torch.tensor(
            self.std
        ).view(3, 1, 1)


def _centre(resized: int, size: int) -> int:
    """Where a centred window starts; negative when the window is larger (the rest is black)."""
    return round((resized - size) / 2)
