"""Which part of the original picture the model saw.

Preprocessing resizes, crops or pads. A map of patches belongs on the rectangle that went into the
model, not on the whole picture: ``Frame`` keeps that rectangle in pixels of the original, with the
origin at the upper left corner of the upper left pixel, x to the right and y down. It may reach
outside the picture where the model was shown padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import FrameError


@dataclass(frozen=True)
class Frame:
    """A rectangle of the original picture, in its pixels; edges may be fractions of a pixel."""

    left: float
    top: float
    width: float
    height: float

    def __post_init__(self) -> None:
        if self.width <= 0 or self.height <= 0:
            raise FrameError(
                f"got a frame of {self.width}×{self.height} pixels; a frame has a positive size."
            )

    def patch_at(self, x: float, y: float, rows: int, cols: int) -> tuple[int, int]:
        """Row and column of the patch under pixel position ``x``, ``y`` of the original.

        Raises:
            FrameError: The model did not see this position.
        """
        col = (x - self.left) / self.width * cols
        row = (y - self.top) / self.height * rows
        if not (0 <= row < rows and 0 <= col < cols):
            raise FrameError(
                f"the model did not see x={x:g}, y={y:g}: it saw x from {self.left:g} to "
                f"{self.left + self.width:g} and y from {self.top:g} to {self.top + self.height:g} "
                f"of the picture."
            )
        return int(row), int(col)

    def patch_box(self, row: int, col: int, rows: int, cols: int) -> Frame:
        """The rectangle that one patch covers on the original picture."""
        width, height = self.width / cols, self.height / rows
        return Frame(self.left + col * width, self.top + row * height, width, height)

    def place(
        self, values: Float[Tensor, "row col"], width: int, height: int, *, smooth: bool = False
    ) -> Float[Tensor, "y x"]:
        """Lay a map of patches over a picture of ``width × height`` pixels of the original.

        Each pixel takes the patch that its centre falls into; with ``smooth``, values between
        patch centres are interpolated linearly and held at the border, so a map is never shifted
        and never overshoots. Pixels that the model did not see are NaN.
        """
        rows, cols = values.shape
        y = self._position(height, self.top, self.height, rows)
        x = self._position(width, self.left, self.width, cols)
        placed = _interpolate(values, y, x) if smooth else values[_cell(y, rows)][:, _cell(x, cols)]
        outside = ((y < 0) | (y >= rows)).unsqueeze(1) | ((x < 0) | (x >= cols)).unsqueeze(0)
        return placed.masked_fill(outside, torch.nan)

    @staticmethod
    def _position(n_pixels: int, start: float, extent: float, n_patches: int) -> Tensor:
        """Pixel centres along one axis, measured in patches from the start of the frame."""
        centres = torch.arange(n_pixels, dtype=torch.float64) + 0.5
        return (centres - start) / extent * n_patches


def _cell(position: Tensor, count: int) -> Tensor:
    return position.floor().long().clamp(0, count - 1)


def _interpolate(values: Tensor, y: Tensor, x: Tensor) -> Tensor:
    top, bottom, down = _between(y, values.shape[0])
    left, right, along = _between(x, values.shape[1])
    wide = values.double()
    rows = wide[top] * (1 - down).unsqueeze(1) + wide[bottom] * down.unsqueeze(1)
    return (rows[:, left] * (1 - along) + rows[:, right] * along).to(values.dtype)


def _between(position: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The two patch centres around each position, and the share of the second one."""
    centre = (position - 0.5).clamp(0, count - 1)
    before = centre.floor().long()
    return before, (before + 1).clamp(max=count - 1), centre - before
