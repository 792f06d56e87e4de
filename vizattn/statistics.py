"""What a head does, in a few numbers: how widely it looks, how far, and where it parks attention.

They are those of its tokens, averaged over all that ask: mean entropy, mean attention distance
(Dosovitskiy et al. 2021, appendix D.7), and the sink, the token that draws most.
"""

from __future__ import annotations

import math
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
from vizattn.token_statistics import Watch, entropy_of, token_statistics

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
    found = token_statistics(layer, placed(layer, layer.queries), keys, watch)
    row = _query_row(record, layer, at)
    share, token = found.received.max(-1)
    return LayerStatistics(
        entropy_of(row),
        found.entropy.nanmean(-1),
        found.distance.nanmean(-1),
        found.pixel_distance.nanmean(-1),
        share,
        torch.where(share.isnan(), -1, token),
        _by_role(row, keys),
        _by_role(found.received, keys),
        found.received,
    )


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
