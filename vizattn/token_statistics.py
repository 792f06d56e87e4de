"""What every token does in a head: how widely it looks, how far, and how much attention it draws.

Entropy says over how many tokens a row is spread: 0 bits on one token, log₂ N bits on N alike.
Attention distance says how far from a patch lies what it looks at. What a token receives is its
share of the attention of all tokens that ask.

Rows are computed in tiles and forgotten; all N × N weights of all heads are never there at once.
Every row counts alike. A row that lost something to the filling of a window is scaled to sum to 1
again; tokens that ask nothing in a layer, or whose every key is masked, have no numbers.

Source of the distance: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 4.5 and
appendix D.7: of a patch i ``Σ_j A_ij |p_i - p_j|``. Prefix tokens have no position, so they are
left out on both sides and what remains of each row is scaled to sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.layers import Attention
from vizattn.places import Tokens

# Called with some rows of a layer as they are made, and the queries they belong to.
Watch = Callable[[slice, Float[Tensor, "head tile key"]], None]


@dataclass(frozen=True)
class TokenStatistics:
    """Numbers of every token of one layer, head by head. NaN where a number is not defined.

    Attributes:
        entropy: Entropy of each row, in bits.
        distance: How far each patch looks, in patches of the grid of the keys.
        pixel_distance: The same in pixels of the original picture.
        received: Share of the attention of all tokens that ask that each token of the keys draws.
    """

    entropy: Float[Tensor, "head query"]
    distance: Float[Tensor, "head query"]
    pixel_distance: Float[Tensor, "head query"]
    received: Float[Tensor, "head key"]


def token_statistics(
    layer: Attention, queries: Tokens, keys: Tokens, watch: Watch | None = None
) -> TokenStatistics:
    """The numbers of every token of a layer.

    Args:
        layer: The layer.
        queries: Where its queries lie on the picture.
        keys: Where its keys lie.
        watch: Called with every tile of rows, so that other numbers come from the same pass.
    """
    wide = torch.float64
    entropy = torch.full((layer.n_heads, layer.n_queries), torch.nan, dtype=wide)
    distance = torch.full((2, layer.n_heads, layer.n_queries), torch.nan, dtype=wide)
    received = torch.zeros(layer.n_heads, layer.n_keys, dtype=wide)
    for part, rows in layer.tiles():
        if watch is not None:
            watch(part, rows)
        weight = _inverse(rows.sum(-1))
        entropy[:, part] = torch.where(weight > 0, entropy_of(rows), torch.nan)
        received += torch.einsum("ht,htk->hk", weight, rows)
        first = max(part.start, queries.grid.prefix)  # the first patch among these queries
        patches = rows[:, first - part.start :, keys.grid.prefix :]
        asking = torch.arange(first, max(first, part.stop)) - queries.grid.prefix
        total = patches.sum(-1)
        for unit, lengths in zip(distance, _distances(queries, keys, asking), strict=True):
            reach = torch.einsum("htk,tk->ht", patches, lengths)
            unit[:, first : part.stop] = torch.where(total > 0, reach / total, torch.nan)
    n_rows = (~entropy.isnan()).sum(-1, keepdim=True)
    return TokenStatistics(entropy, distance[0], distance[1], received / n_rows)


def entropy_of(rows: Float[Tensor, "*many key"]) -> Float[Tensor, "*many"]:
    """Bits of each row when it is scaled to sum to 1; of a blank row nothing that says anything."""
    total = rows.sum(-1)
    # a third of the time of torch.special.entr, which takes the logarithms one by one
    spread: Tensor = -torch.linalg.vecdot(rows.clamp_min(1e-30).log_(), rows)
    return (spread * _inverse(total) + total.clamp_min(1e-30).log()) / math.log(2)


def _inverse(total: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """One over each total, and 0 for rows that are blank."""
    return torch.where(total > 0, 1 / total, 0)


def _distances(
    queries: Tokens, keys: Tokens, asking: Int[Tensor, " tile"]
) -> tuple[Float[Tensor, "tile key"], Float[Tensor, "tile key"]]:
    """From some query patches to every key patch: in patches of the keys' grid, and in pixels."""
    y, x = (
        ours[asking].unsqueeze(1) - theirs
        for ours, theirs in zip(_middles(queries), _middles(keys), strict=True)
    )
    high, wide = keys.frame.height / keys.grid.rows, keys.frame.width / keys.grid.cols
    return torch.hypot(y / high, x / wide), torch.hypot(y, x)


def _middles(tokens: Tokens) -> tuple[Float[Tensor, " patch"], Float[Tensor, " patch"]]:
    """How far down and right the middle of every patch lies, in pixels of the original picture."""
    grid, frame = tokens.grid, tokens.frame
    y = frame.top + (torch.arange(grid.rows) + 0.5) * frame.height / grid.rows
    x = frame.left + (torch.arange(grid.cols) + 0.5) * frame.width / grid.cols
    return y.repeat_interleave(grid.cols), x.repeat(grid.rows)
