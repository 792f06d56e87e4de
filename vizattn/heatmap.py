"""A heat-map: true numbers on the grid of patches, and how they were made. It never draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.frame import Frame
from vizattn.grid import TokenGrid

# A map whose spread, largest less smallest value, is below this share of the mean size of its
# values shows noise when it is stretched.
NEARLY_FLAT = 0.05


@dataclass(frozen=True)
class Heatmap:
    """One value per patch, as it came out of a method, and what is needed to read it honestly.

    Attributes:
        values: The numbers, ``[row, col]``, in the method's own unit; nothing was rescaled.
        grid: Which tokens the numbers belong to.
        frame: Which part of the original picture the grid covers.
        prefix_mass: What went to each prefix token, which has no place on the picture.
        made: Model, method, settings and query, as plain JSON values.
        sentence: What is shown, for people.
    """

    values: Float[Tensor, "row col"]
    grid: TokenGrid
    frame: Frame
    prefix_mass: Float[Tensor, " prefix"]
    made: dict[str, Any] = field(default_factory=dict)
    sentence: str = ""

    @classmethod
    def from_relevance(
        cls,
        relevance: Float[Tensor, " token"],
        grid: TokenGrid,
        frame: Frame,
        made: dict[str, Any] | None = None,
        sentence: str = "",
    ) -> Heatmap:
        """Lay a value per token out on the grid, keeping what the prefix tokens got beside it."""
        values, prefix = grid.to_map(relevance), grid.prefix_of(relevance)
        return cls(values, grid, frame, prefix, made or {}, sentence)

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest value on the grid."""
        return float(self.values.min()), float(self.values.max())

    @property
    def is_signed(self) -> bool:
        """Whether some patches speak against: the values lie on both sides of zero."""
        return bool((self.values < 0).any())

    @property
    def strongest(self) -> tuple[int, int]:
        """Row and column, from 0, of the patch with the largest value."""
        index = int(self.values.argmax())
        return index // self.grid.cols, index % self.grid.cols

    @property
    def is_nearly_flat(self) -> bool:
        """Whether largest and smallest value differ by less than 5 % of the mean size of all.

        What a stretched scale shows is noise then.
        """
        values = self.values.double()
        return bool(values.max() - values.min() <= NEARLY_FLAT * values.abs().mean())

    def quantile(self, percent: float) -> float:
        """The value that ``percent`` of the patches do not exceed (0 to 100; 100 = the maximum)."""
        return float(torch.quantile(self.values.double().flatten(), percent / 100))
