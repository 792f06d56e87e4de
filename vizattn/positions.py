"""Where on the picture each number of a tensor comes from.

Beside a tensor goes a *shadow* of the same shape: for every number the vertical and horizontal
position that it stands for, in pixels of the model's input, and whether it was seen there at all.
A shadow is moved, merged and averaged as its tensor is; ``tracer`` says by which operation.

Two kinds of token are no part of the picture. What was learnt and not seen, such as a class token
or a register, stands *nowhere*: its position is NaN. What only fills up a window stands where the
picture would have gone on, but was not *seen*.

What comes from the picture by an operation that no rule fits is *lost*: it stands so far off that
whatever is made of it is seen to be lost too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

# Where lost tokens stand; and what no position on a picture, nor any mean of positions, reaches.
_LOST_AT, _LOST_BEYOND = -1e9, -1e5


@dataclass(frozen=True)
class Shadow:
    """Positions for every number of a tensor.

    Attributes:
        y: Down from the upper edge of the input, in pixels; NaN stands nowhere.
        x: From its left edge, likewise.
        seen: Share of the number that is picture or learnt token, and not filling: 0 to 1.
    """

    y: Float[Tensor, "*shape"]
    x: Float[Tensor, "*shape"]
    seen: Float[Tensor, "*shape"]

    @property
    def shape(self) -> torch.Size:
        """Shape of the tensor that casts this shadow."""
        return self.y.shape

    def map(self, move: Callable[[Tensor], Tensor]) -> Shadow:
        """The shadow after an operation that only moves numbers about."""
        return Shadow(move(self.y), move(self.x), move(self.seen))

    def expand(self, shape: torch.Size) -> Shadow:
        """The same positions for a tensor that repeats this one."""
        return self.map(lambda part: part.expand(shape))

    def centre(self, *axes: int) -> Shadow:
        """The middle of all positions along some axes, each kept with length 1."""
        return Shadow(_middle(self.y, axes), _middle(self.x, axes), _middle(self.seen, axes))

    @property
    def is_lost(self) -> bool:
        """Whether it is not known of all of it where it stands."""
        return bool(are_lost(_thin(self.y)).any())

    def or_else(self, other: Shadow) -> Shadow:
        """These positions, and the other's where these stand nowhere."""
        if not torch.isnan(_thin(self.y)).any():
            return self
        missing = torch.isnan(self.y)
        return Shadow(
            torch.where(missing, other.y, self.y),
            torch.where(missing, other.x, self.x),
            torch.where(missing, other.seen, self.seen),
        )

    def is_even(self, axis: int) -> bool:
        """Whether positions go on in equal steps along an axis, as those of neighbours do."""
        for part in (self.y, self.x):
            thin = _thin(part)
            if thin.shape[axis] < 3:
                continue
            steps = thin.double().diff(dim=axis)
            largest = steps.nan_to_num().abs().amax().clamp_min(1e-3)
            if bool((steps.diff(dim=axis).abs() > 1e-2 * largest).any()):
                return False
        return True

    def varies(self, axis: int) -> bool:
        """Whether positions differ along an axis by more than rounding; nowhere is no position."""
        for part in (self.y, self.x):
            thin = _thin(part)
            if thin.shape[axis] > 1:
                highest = thin.nan_to_num(-torch.inf).amax(axis)
                if bool((highest - thin.nan_to_num(torch.inf).amin(axis) > 1e-3).any()):
                    return True
        return False


def nowhere(tensor: Tensor) -> Shadow:
    """The shadow of what was learnt: positions nowhere, yet no filling."""
    nan = torch.full((), torch.nan, device=tensor.device).expand(tensor.shape)
    return Shadow(nan, nan, torch.ones((), device=tensor.device).expand(tensor.shape))


def lost(tensor: Tensor) -> Shadow:
    """The shadow of what comes from the picture, but nobody knows from where."""
    off = torch.full((), _LOST_AT, device=tensor.device).expand(tensor.shape)
    return Shadow(off, off, torch.ones((), device=tensor.device).expand(tensor.shape))


def are_lost(y: Tensor) -> Tensor:
    """Which vertical positions are those of lost tokens."""
    return y < _LOST_BEYOND


def of_picture(pixels: Float[Tensor, "*batch height width"]) -> Shadow:
    """The shadow of a model's input: each pixel stands at its own centre, in every frame."""
    height, width = pixels.shape[-2:]
    y = torch.arange(height, device=pixels.device) + 0.5
    x = torch.arange(width, device=pixels.device) + 0.5
    seen = torch.ones((), device=pixels.device).expand(pixels.shape)
    return Shadow(y.unsqueeze(1).expand(pixels.shape), x.expand(pixels.shape), seen)


def _middle(values: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Mean over axes, of those that stand somewhere; an axis that only repeats costs nothing."""
    varied = tuple(axis for axis in axes if values.stride(axis) != 0)
    for axis in set(axes) - set(varied):
        values = values.narrow(axis, 0, 1)
    return values.nanmean(varied, keepdim=True) if varied else values


def _thin(values: Tensor) -> Tensor:
    """The same numbers without the axes that only repeat them."""
    for axis in range(values.dim()):
        if values.stride(axis) == 0:
            values = values.narrow(axis, 0, 1)
    return values
