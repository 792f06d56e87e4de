"""What a head does, in a few numbers: how widely it looks, how far, and where it parks attention.

Entropy says over how many tokens a row is spread: 0 bits on one token, log₂ N bits on N alike.
Mean attention distance says how far from a patch lies what it looks at. Sink share says how much
of everybody's attention one token draws.

Rows are computed in tiles and forgotten; all N × N weights of all heads are never there at once.
Every row counts alike. A row that lost something to the filling of a window is scaled to sum to 1
again; tokens that ask nothing in a layer, or whose every key is masked, are left out.

Source of the distance: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", section 4.5 and
appendix D.7: the average over patches i of ``Σ_j A_ij |p_i - p_j|``. Prefix tokens have no
position, so they are left out on both sides and what remains of each row is scaled to sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.query import Asker, Query, placed
from vizattn.places import Tokens
from vizattn.record import AttentionRecord

# Called with some rows of a layer as they are made, and the queries they belong to.
Watch = Callable[[slice, Float[Tensor, "head tile key"]], None]

# Numbers of a head that are one tensor each, in the order in which people read them.
NUMBERS = (
    "query_entropy",
    "mean_entropy",
    "distance",
    "pixel_distance",
    "sink_share",
    "sink_token",
)


@dataclass(frozen=True)
class LayerStatistics:
    """Numbers of one layer, one for each head. NaN where a number is not defined.

    Attributes:
        query_entropy: Entropy of what the query looks at, in bits.
        mean_entropy: Entropy of a row in bits, averaged over all tokens that ask.
        distance: Mean attention distance, in patches of the grid of the keys.
        pixel_distance: The same in pixels of the original picture.
        sink_share: Largest share that one token draws of the attention of all tokens that ask.
        sink_token: Number of that token in the grid of the keys, prefix tokens first.
        query_prefix: By role: share of the query's attention on prefix tokens of that role.
        mean_prefix: The same, averaged over all tokens that ask.
        received: Share of the attention of all tokens that ask that each token of the keys draws.
    """

    query_entropy: Float[Tensor, " head"]
    mean_entropy: Float[Tensor, " head"]
    distance: Float[Tensor, " head"]
    pixel_distance: Float[Tensor, " head"]
    sink_share: Float[Tensor, " head"]
    sink_token: Int[Tensor, " head"]
    query_prefix: dict[str, Float[Tensor, " head"]]
    mean_prefix: dict[str, Float[Tensor, " head"]]
    received: Float[Tensor, "head key"]

    def plain(self) -> dict[str, Any]:
        """The same as JSON values; what is not defined is ``None``."""
        numbers: dict[str, Any] = {name: _plain(getattr(self, name)) for name in NUMBERS}
        for name in ("query_prefix", "mean_prefix"):
            numbers[name] = {role: _plain(share) for role, share in getattr(self, name).items()}
        return numbers


@dataclass(frozen=True)
class HeadStatistics:
    """Numbers of all heads of all layers, ``[layer, head]``.

    NaN (-1 for a token) stands where a layer has fewer heads than another, cannot be laid over the
    picture, or has no such number. The attributes are those of ``LayerStatistics``, and:

    Attributes:
        layers: Names of the layers.
        n_heads: Heads of each layer.
    """

    layers: tuple[str, ...]
    n_heads: tuple[int, ...]
    query_entropy: Float[Tensor, "layer head"]
    mean_entropy: Float[Tensor, "layer head"]
    distance: Float[Tensor, "layer head"]
    pixel_distance: Float[Tensor, "layer head"]
    sink_share: Float[Tensor, "layer head"]
    sink_token: Int[Tensor, "layer head"]
    query_prefix: dict[str, Float[Tensor, "layer head"]]
    mean_prefix: dict[str, Float[Tensor, "layer head"]]


def head_statistics(record: AttentionRecord, *, at: Asker | None = None) -> HeadStatistics:
    """The numbers of every head of a record.

    Args:
        record: What was captured.
        at: Ask from the patch under this pixel of the picture; else the model's own query. Only
            the numbers of the query depend on it.

    Raises:
        FrameError: The model did not see this pixel.
    """
    found = [
        layer_statistics(record, layer, at=at) if layer.is_drawable else None for layer in record
    ]
    width = max(layer.n_heads for layer in record)
    tables: dict[str, Any] = {
        name: _table([None if each is None else getattr(each, name) for each in found], width)
        for name in NUMBERS
    }
    for side in ("query_prefix", "mean_prefix"):
        shares = [{} if each is None else getattr(each, side) for each in found]
        roles = dict.fromkeys(role for share in shares for role in share)
        tables[side] = {role: _table([each.get(role) for each in shares], width) for role in roles}
    names = tuple(layer.name for layer in record)
    return HeadStatistics(names, tuple(layer.n_heads for layer in record), **tables)


def layer_statistics(
    record: AttentionRecord,
    layer: Attention,
    *,
    at: Asker | None = None,
    watch: Watch | None = None,
) -> LayerStatistics:
    """The numbers of every head of one layer of a record.

    Args:
        record: What the layer belongs to: a pooling head decides what its tokens are asked.
        layer: A layer that can be laid over the picture.
        at: Ask from the patch under this pixel; else the model's own query.
        watch: Called with every tile of rows, so that other numbers come from the same pass.

    Raises:
        MethodError: The layer cannot be laid over the picture.
        FrameError: It has no patch under this pixel.
    """
    keys = placed(layer, layer.keys)
    entropy, distance, received = _over_rows(layer, placed(layer, layer.queries), keys, watch)
    row = _query_row(record, layer, at)
    share, token = received.max(-1)
    return LayerStatistics(
        _entropy(row),
        entropy,
        distance[:, 0],
        distance[:, 1],
        share,
        torch.where(share.isnan(), -1, token),
        _by_role(row, keys),
        _by_role(received, keys),
        received,
    )


def _over_rows(
    layer: Attention, queries: Tokens, keys: Tokens, watch: Watch | None
) -> tuple[Float[Tensor, " head"], Float[Tensor, "head unit"], Float[Tensor, "head key"]]:
    """Mean entropy, mean distances and mean share of every key, over the rows of a layer."""
    entropy = torch.zeros(layer.n_heads, dtype=torch.float64)
    distance = torch.zeros(layer.n_heads, 2, dtype=torch.float64)
    received = torch.zeros(layer.n_heads, layer.n_keys, dtype=torch.float64)
    n_rows, n_patches = torch.zeros(2, layer.n_heads, 1, dtype=torch.float64)
    for part, rows in layer.tiles():
        if watch is not None:
            watch(part, rows)
        weight = _inverse(rows.sum(-1))
        entropy += (_entropy(rows) * (weight > 0)).sum(-1)
        received += torch.einsum("ht,htk->hk", weight, rows)
        n_rows += (weight > 0).sum(-1, keepdim=True)
        first = max(part.start, queries.grid.prefix)  # the first patch among these queries
        patches = rows[:, first - part.start :, keys.grid.prefix :]
        asking = torch.arange(first, max(first, part.stop)) - queries.grid.prefix
        weight = _inverse(patches.sum(-1))
        for unit, lengths in enumerate(_distances(queries, keys, asking)):
            reach = torch.einsum("htk,tk->ht", patches, lengths)
            distance[:, unit] += (reach * weight).sum(-1)
        n_patches += (weight > 0).sum(-1, keepdim=True)
    return entropy / n_rows[:, 0], distance / n_patches, received / n_rows


def _inverse(total: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """One over each total, and 0 for rows that are blank."""
    return torch.where(total > 0, 1 / total, 0)


def _entropy(rows: Float[Tensor, "*many key"]) -> Float[Tensor, "*many"]:
    """Bits of each row when it is scaled to sum to 1; NaN for a blank row is left to the caller."""
    total = rows.sum(-1)
    # a third of the time of torch.special.entr, which takes the logarithms one by one
    spread: Tensor = -torch.linalg.vecdot(rows.clamp_min(1e-30).log_(), rows)
    return (spread * _inverse(total) + total.clamp_min(1e-30).log()) / math.log(2)


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


def _query_row(
    record: AttentionRecord, layer: Attention, at: Asker | None
) -> Float[Tensor, "head key"]:
    """What the query looks at; NaN where no patch asks, such as in class attention."""
    try:
        query = Query.of(record, layer, at)
    except MethodError:
        return torch.full((layer.n_heads, layer.n_keys), torch.nan)
    row = layer.attend(query.weights).double()
    return row / row.sum(-1, keepdim=True)


def _by_role(rows: Float[Tensor, "head key"], keys: Tokens) -> dict[str, Tensor]:
    roles = keys.grid.roles
    return {
        role: rows[:, [number for number, each in enumerate(roles) if each == role]].sum(-1)
        for role in dict.fromkeys(roles)
    }


def _table(columns: list[Tensor | None], width: int) -> Tensor:
    """One row for each layer, filled up with what says that there is no such number."""
    dtype = next((each.dtype for each in columns if each is not None), torch.float64)
    table = torch.full((len(columns), width), -1 if dtype == torch.long else torch.nan, dtype=dtype)
    for row, numbers in zip(table, columns, strict=True):
        if numbers is not None:
            row[: len(numbers)] = numbers
    return table


def _plain(numbers: Tensor) -> list[float | int | None]:
    """JSON values; seven digits of each number, which is what a float32 holds."""
    if numbers.dtype == torch.long:
        return [None if token < 0 else token for token in numbers.tolist()]
    return [None if math.isnan(x) else float(f"{x:.7g}") for x in numbers.tolist()]
