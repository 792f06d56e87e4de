"""Which weights are too small to keep: the threshold below which a share of them lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

# Non-negative floats sort like their bit patterns, so the upper half of the pattern is a bin.
_BINS = 2**16 // 2


def kth_smallest(stream: Callable[[], Iterable[Tensor]], rank: int) -> float:
    """The value at ``rank`` (from 0) among all non-negative values of a stream, exactly.

    N² weights of a layer need not stand in memory at once for this: the first pass counts how
    many fall into each bin of the upper sixteen bits of a float32, the second keeps only the bin
    that holds the rank.

    Args:
        stream: Gives the same tiles each time it is called.
        rank: From 0; the number of values that come before it in order.

    Raises:
        IndexError: There are not more than ``rank`` values.
    """
    counts = torch.zeros(_BINS, dtype=torch.int64)
    for tile in stream():
        counts += torch.bincount(_bits(tile) >> 16, minlength=_BINS)
    ends = counts.cumsum(0)
    if not 0 <= rank < int(ends[-1]):
        raise IndexError(f"rank {rank} of {int(ends[-1])} values")
    index = int(torch.searchsorted(ends, rank, right=True))
    inside = torch.cat([bits[bits >> 16 == index] for bits in map(_bits, stream())])
    before = int(ends[index - 1]) if index else 0
    return float(inside.sort().values[rank - before].view(torch.float32))


def _bits(tile: Tensor) -> Tensor:
    # + 0.0 turns -0.0, whose pattern is negative, into 0.0
    return (tile.detach().cpu().float() + 0.0).flatten().view(torch.int32)
