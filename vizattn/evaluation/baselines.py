"""Maps that know nothing of the model: what a method has to be better than.

A score means little by itself. A picture's subject is often in its middle, so a Gaussian there does
well without looking; and some judges are kind to noise.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

# Standard deviation of the Gaussian as a share of each side.
_SPREAD = 0.25


def random_map(rows: int, cols: int, seed: int) -> Float[Tensor, "row col"]:
    """Noise between 0 and 1, of every patch by itself; the same for the same seed."""
    return torch.rand(rows, cols, generator=torch.Generator().manual_seed(seed))


def centred_gaussian(rows: int, cols: int) -> Float[Tensor, "row col"]:
    """A Gaussian in the middle, a quarter of each side wide (one standard deviation)."""
    down, along = (_bell(count) for count in (rows, cols))
    return torch.outer(down, along)


def _bell(count: int) -> Tensor:
    place = (torch.arange(count) + 0.5) / count - 0.5
    return torch.exp(-0.5 * (place / _SPREAD) ** 2)


BASELINES = ("random", "centred-gaussian")


def baseline(name: str, rows: int, cols: int, seed: int) -> Float[Tensor, "row col"]:
    """One of ``BASELINES``."""
    return random_map(rows, cols, seed) if name == BASELINES[0] else centred_gaussian(rows, cols)
