"""How the weights of several heads become one."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

FUSIONS = ("mean", "max", "min")


def fuse(weights: Float[Tensor, "head *rest"], how: str) -> Float[Tensor, "*rest"]:
    """Mean, maximum or minimum over heads, entry by entry.

    Rows of a mean sum to 1 as the heads' do. Those of a maximum sum to more and those of a
    minimum to less, so whoever multiplies such matrices normalises them first.
    """
    if how == "mean":
        return weights.mean(0)
    return weights.amax(0) if how == "max" else weights.amin(0)
