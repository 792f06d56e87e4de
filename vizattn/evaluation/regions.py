"""Where on a picture the thing is that a map should point at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vizattn.frame import Frame


@dataclass(frozen=True)
class Box:
    """A rectangle of a picture, its edges in pixels."""

    left: float
    top: float
    right: float
    bottom: float

    def cover(self, frame: Frame, rows: int, cols: int) -> Float[Tensor, "row col"]:
        """The share of each patch of a grid over ``frame`` that lies in the box."""
        down = _overlap(self.top, self.bottom, frame.top, frame.height, rows)
        along = _overlap(self.left, self.right, frame.left, frame.width, cols)
        return torch.outer(down, along)

    def inside(self, frame: Frame, rows: int, cols: int) -> Bool[Tensor, "row col"]:
        """Whether the middle of each patch lies in the box."""
        down = _middles(self.top, self.bottom, frame.top, frame.height, rows)
        along = _middles(self.left, self.right, frame.left, frame.width, cols)
        return down[:, None] & along[None, :]


def _overlap(low: float, high: float, start: float, extent: float, count: int) -> Tensor:
    edges = start + torch.arange(count + 1, dtype=torch.float64) * extent / count
    shared = edges[1:].clamp(max=high) - edges[:-1].clamp(min=low)
    return shared.clamp_min(0) / (extent / count)


def _middles(low: float, high: float, start: float, extent: float, count: int) -> Tensor:
    middle = start + (torch.arange(count, dtype=torch.float64) + 0.5) * extent / count
    return (middle >= low) & (middle < high)
