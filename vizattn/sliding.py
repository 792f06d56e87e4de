"""Positions under windows that slide over neighbours: convolutions, poolings, resampling."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from vizattn.positions import Shadow


def slide(
    shadow: Shadow, shape: torch.Size, spatial: int, kernel: Any, stride: Any, padding: Any,
    dilation: Any,
) -> Shadow:  # fmt: skip
    """Positions of the middle of a sliding window, axis by axis."""
    for number in range(spatial):
        axis = len(shadow.shape) - spatial + number
        size, step, pad, gap = (_nth(v, number) for v in (kernel, stride, padding, dilation))
        start = gap * (size - 1) / 2 - pad
        if (size, step, pad) != (1, 1, 0):
            if size > 1 and not shadow.is_even(axis):
                raise ValueError("the window does not slide over neighbours")
            middle = start + step * torch.arange(shape[axis], dtype=torch.float64)
            shadow = shadow.map(partial(read, axis=axis, at=middle))
    return shadow.expand(shape)


def spread(
    shadow: Shadow, shape: torch.Size, spatial: int, kernel: Any, stride: Any, padding: Any,
    dilation: Any,
) -> Shadow:  # fmt: skip
    """The same for a transposed convolution: the middle of the cells that reach each new one."""
    for number in range(spatial):
        axis = len(shadow.shape) - spatial + number
        size, step, pad, gap = (_nth(v, number) for v in (kernel, stride, padding, dilation))
        if not shadow.is_even(axis):
            raise ValueError("the window does not slide over neighbours")
        new = torch.arange(shape[axis], dtype=torch.float64)
        middle = (new + pad - gap * (size - 1) / 2) / step
        shadow = shadow.map(partial(read, axis=axis, at=middle))
    return shadow.expand(shape)


def read(values: Tensor, axis: int, at: Tensor) -> Tensor:
    """Values between whole indices along an axis, continued beyond both ends."""
    count = values.shape[axis]
    if count == 1:
        return values.expand(with_length(values.shape, axis, len(at)))
    before = at.floor().long().clamp(0, count - 2)
    shape = [1] * values.dim()
    shape[axis] = -1
    share = (at - before).to(values.dtype).view(shape)
    low, high = values.index_select(axis, before), values.index_select(axis, before + 1)
    # a whole index reads one neighbour alone, so that NaN next to it does not leak in
    return torch.where(share == 0, low, torch.where(share == 1, high, low + (high - low) * share))


def _nth(values: Any, number: int) -> int:
    if isinstance(values, int):
        return values
    return int(values[number] if number < len(values) else values[-1])


def with_length(shape: torch.Size, axis: int, length: int) -> list[int]:
    """A shape with another length along one axis."""
    sizes = list(shape)
    sizes[axis] = length
    return sizes
