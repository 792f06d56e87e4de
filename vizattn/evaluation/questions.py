"""A sample as a model takes it: what all judges look at."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vizattn.evaluation.answers import Answer
from vizattn.evaluation.samples import Sample
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.heatmap import Heatmap
from vizattn.models import VisionModel


@dataclass(frozen=True)
class Question:
    """One sample, asked of one model; what judges share is worked out once, when it is needed.

    Attributes:
        model: Who is asked.
        sample: What about.
        grid: Of the tokens that the model puts out.
    """

    model: VisionModel
    sample: Sample
    grid: TokenGrid

    @cached_property
    def _taken(self) -> tuple[Tensor, Frame]:
        return self.model.transform(self.sample.picture)

    @property
    def pixels(self) -> Float[Tensor, "3 height width"]:
        """The model's input."""
        return self._taken[0]

    @property
    def seen(self) -> Frame:
        """The part of the picture that the input shows."""
        return self._taken[1]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input, in pixels."""
        return self.pixels.shape[-2], self.pixels.shape[-1]

    @cached_property
    def answer(self) -> Answer:
        """What the target stands for in this picture."""
        return Answer.of(self.model, self.pixels, self.sample.target, self.grid)

    @cached_property
    def black(self) -> Float[Tensor, "3 1 1"]:
        """A black pixel as the model takes it."""
        pixels, _ = self.model.transform(Image.new("RGB", self.sample.picture.size))
        return pixels.mean((1, 2))[:, None, None]

    def placed(self, heat: Heatmap) -> Float[Tensor, "height width"]:
        """A map on the pixels of the input, linear between middles of patches; -inf beside it."""
        height, width = self.size
        x, y = width / self.seen.width, height / self.seen.height
        frame, seen = heat.frame, self.seen
        left, top = (frame.left - seen.left) * x, (frame.top - seen.top) * y
        here = Frame(left, top, frame.width * x, frame.height * y)
        placed = here.place(heat.values.float(), width, height, smooth=True)
        return placed.nan_to_num(-torch.inf)

    def order(self, heat: Heatmap) -> Int[Tensor, " pixel"]:
        """Pixels of the input, the most important first; equal ones as the picture is read."""
        return self.placed(heat).flatten().argsort(descending=True, stable=True)

    def patches(self, heat: Heatmap) -> Int[Tensor, "height width"]:
        """The number of the patch that each pixel of the input lies in."""
        height, width = self.size
        rows, cols = heat.values.shape
        row = torch.arange(height) * rows // height
        col = torch.arange(width) * cols // width
        return row[:, None] * cols + col[None, :]
