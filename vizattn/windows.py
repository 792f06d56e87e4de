"""Between the tokens of a grid and those of the windows that it is cut into.

A window's tokens stand at positions; an index names the token of the grid at each, -1 where a
window is only filled up. A token may stand in several windows, or in none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.errors import OutOfRange


def windows_with(
    tokens: Int[Tensor, " some"], index: Int[Tensor, "window position"], n_tokens: int
) -> Iterator[tuple[int, Int[Tensor, " found"], Int[Tensor, " found"]]]:
    """Each window in which some of these distinct tokens stand.

    Yields:
        The number of the window, positions in it, and which of ``tokens`` stands at each.
    """
    which = torch.full((n_tokens,), -1)
    which[tokens] = torch.arange(len(tokens))
    found = torch.where(index >= 0, which[index.clamp_min(0)], -1)
    for window in (found >= 0).any(1).nonzero().flatten().tolist():
        positions = (found[window] >= 0).nonzero().flatten()
        yield window, positions, found[window, positions]


def windows_per_token(
    index: Int[Tensor, "window position"], n_tokens: int
) -> Int[Tensor, " token"]:
    """In how many windows each token of the grid stands."""
    return torch.bincount(index[index >= 0], minlength=n_tokens)


def tokens_in(
    window: Int[Tensor, " position"],
) -> tuple[Int[Tensor, " found"], Int[Tensor, " found"]]:
    """Positions of a window that are more than filling, and the tokens that stand there."""
    positions = (window >= 0).nonzero().flatten()
    return positions, window[positions]


def take(
    values: Float[Tensor, "many token"], index: Int[Tensor, "window position"]
) -> Float[Tensor, "many window position"]:
    """Values of the tokens of each window; filling takes 0."""
    return values[:, index.clamp_min(0)] * (index >= 0)


def put(
    total: Float[Tensor, "many token"],
    index: Int[Tensor, "window position"],
    given: Float[Tensor, "many window position"],
) -> None:
    """Add what each window gives to the tokens that stand in it; filling gets nothing."""
    seen = index >= 0
    total.index_add_(1, index[seen], given[:, seen])


def numbers_of(which: int | Sequence[int] | Tensor, count: int) -> Int[Tensor, " picked"]:
    """One or some numbers of tokens as numbers from 0, negative ones counted from the end.

    Raises:
        OutOfRange: There are not so many.
    """
    picked = torch.as_tensor([which] if isinstance(which, int) else which, dtype=torch.long)
    for index in (int(picked.min()), int(picked.max())) if picked.numel() else ():
        if not -count <= index < count:
            raise OutOfRange("token", index, count)
    return picked % count
