"""Mean and spread of numbers that come a few at a time, in memory that does not grow.

Source: Chan, Golub & LeVeque 1979, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances", eqs. 2.1: two groups of numbers are merged from their counts, means and sums of squared
differences from the mean. With a group of one it is Welford's update (1962).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Moments:
    """What is kept of many arrays of one shape, cell by cell.

    Attributes:
        count: In how many of them a cell had a number.
        mean: Their mean; 0 where there was none.
        squares: Sum of squared differences from the mean.
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Those of arrays along the first axis, ``[number, *shape]``; NaN is no number.

        >>> Moments.of(np.array([[1.0, np.nan], [3.0, np.nan]])).mean
        array([2., 0.])
        """
        there = ~np.isnan(values)
        count = there.sum(0)
        mean = np.where(there, values, 0).sum(0) / np.maximum(count, 1)
        away = np.where(there, values - mean, 0)
        return cls(count, mean, (away**2).sum(0))

    def __add__(self, other: Moments) -> Moments:
        """Those of the numbers of both."""
        count = self.count + other.count
        away = other.mean - self.mean
        share = other.count / np.maximum(count, 1)
        squares = self.squares + other.squares + away**2 * self.count * share
        return Moments(count, self.mean + away * share, squares)

    @property
    def deviation(self) -> np.ndarray:
        """Sample standard deviation, with n - 1; NaN for fewer than two numbers."""
        spread = np.sqrt(self.squares / np.maximum(self.count - 1, 1))
        return np.where(self.count > 1, spread, np.nan)

    def plain(self) -> dict[str, Any]:
        """As JSON values, to the last bit."""
        return {
            "count": self.count.tolist(),
            "mean": self.mean.tolist(),
            "squares": self.squares.tolist(),
        }

    @classmethod
    def read(cls, plain: Mapping[str, Sequence[Any]]) -> Moments:
        """What ``plain`` wrote."""
        return cls(*(np.array(plain[name]) for name in ("count", "mean", "squares")))
