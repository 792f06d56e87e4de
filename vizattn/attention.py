"""Attention, from queries and keys to the rows that somebody asks for.

    A = softmax(q kᵀ · scale + bias)        A[i, j] = how much token i takes from token j

``A`` has one row per query token and each row sums to 1. With N tokens it has N² entries per
head, which is what makes attention maps expensive to keep; q and k have only N · dim. So nothing
here ever builds the whole of ``A``: rows, columns and products with a vector are computed in
tiles of a few query tokens, straight from q and k.

The fused kernels return, for every query, the logarithm of its softmax denominator (log-sum-exp,
``lse``). With it a row is ``exp(scores - lse)``: no second look for the maximum, no second sum.

Axis names, the same in every module: ``head``, ``query``, ``key``, ``dim``.

Source of the formula: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import threshold

# Floats in one tile of weights. 2²¹ floats are 8 MiB: small enough to stay near the cores,
# large enough that a matrix product is worth starting.
TILE_FLOATS = 2**21

# Weights below e to this power are as good as none. Where an exponential falls below what a float
# holds, the processor's maths library takes 50 to 90 times as long, and a single such layer would
# cost more than all others together.
_FAINTEST = -80.0

# From here on it pays to copy q and k for the sake of their product.
_MANY_ROWS = 512


def tile_length(n_heads: int, n_keys: int) -> int:
    """How many query tokens make one tile of about ``TILE_FLOATS`` weights (at least one)."""
    return max(1, TILE_FLOATS // max(1, n_heads * n_keys))


def attention_scores(
    q: Float[Tensor, "head query dim"],
    k: Float[Tensor, "head key dim"],
    scale: float | None = None,
    bias: Float[Tensor, "#head #query key"] | None = None,
) -> Float[Tensor, "head query key"]:
    """What the softmax is applied to, ``q kᵀ · scale + bias``, in float32 or better.

    Args:
        q: Queries as the kernel got them, after any rotary embedding or normalisation.
        k: Keys, likewise.
        scale: Multiplies the products; ``dim ** -0.5`` when ``None``.
        bias: Added to the scores; ``-inf`` where a query may not look.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = (_wide(q) * scale) @ _wide(k).mT  # scaling q costs dim, not key, multiplications
    return scores if bias is None else scores + bias


def attention_rows(
    q: Float[Tensor, "head query dim"],
    k: Float[Tensor, "head key dim"],
    queries: Int[Tensor, " picked"],
    scale: float | None = None,
    bias: Float[Tensor, "#head #query key"] | None = None,
    lse: Float[Tensor, "head query"] | None = None,
) -> Float[Tensor, "head picked key"]:
    """Attention weights of a few query tokens, softmaxed over the keys.

    A query whose every key is masked has nothing to look at: its row is all zeros (blank), and
    not the uniform row or the NaN that the arithmetic of a masked softmax would give.

    Args:
        q: Queries, after any rotary embedding or normalisation.
        k: Keys, likewise.
        queries: Which query tokens to compute, as indices into ``q``.
        scale: Multiplies the scores; ``dim ** -0.5`` when ``None``.
        bias: Added to the scores, broadcast over heads and queries.
        lse: Log-sum-exp of each row, where the kernel gave it; saves the second reduction.

    >>> q = k = torch.eye(3).unsqueeze(0)               # 1 head, 3 tokens, dim 3
    >>> attention_rows(q, k, torch.tensor([0]), scale=1.0).round(decimals=3)
    tensor([[[0.5760, 0.2120, 0.2120]]])
    """
    scores = attention_scores(q[:, queries], k, scale, _bias_rows(bias, queries))
    normaliser = scores.logsumexp(-1) if lse is None else lse[:, queries]
    return _exp(scores, normaliser)


def attention_columns(
    q: Float[Tensor, "head query dim"],
    k: Float[Tensor, "head key dim"],
    keys: Int[Tensor, " picked"],
    scale: float | None = None,
    bias: Float[Tensor, "#head #query key"] | None = None,
    lse: Float[Tensor, "head query"] | None = None,
) -> Float[Tensor, "head query picked"]:
    """How much every query token takes from a few key tokens: columns of A.

    The entries of a column come from different rows, so a column does not sum to 1.

    >>> q = k = torch.eye(3).unsqueeze(0)
    >>> attention_columns(q, k, torch.tensor([0]), scale=1.0).squeeze().round(decimals=3)
    tensor([0.5760, 0.2120, 0.2120])
    """
    lse = log_sum_exp(q, k, scale, bias) if lse is None else lse
    picked_bias = None if bias is None else bias[..., keys]
    return _exp(attention_scores(q, k[:, keys], scale, picked_bias), lse)


def log_sum_exp(
    q: Float[Tensor, "head query dim"],
    k: Float[Tensor, "head key dim"],
    scale: float | None = None,
    bias: Float[Tensor, "#head #query key"] | None = None,
) -> Float[Tensor, "head query"]:
    """Logarithm of each row's softmax denominator; ``-inf`` where every key is masked."""
    length = tile_length(q.shape[0], k.shape[1])
    parts = (slice(start, start + length) for start in range(0, q.shape[1], length))
    return torch.cat(
        [
            attention_scores(q[:, part], k, scale, _bias_rows(bias, part)).logsumexp(-1)
            for part in parts
        ],
        dim=-1,
    )


def pull_back(
    relevance: Float[Tensor, "*many query"],
    q: Float[Tensor, "head query dim"],
    k: Float[Tensor, "head key dim"],
    scale: float | None = None,
    bias: Float[Tensor, "#head #query key"] | None = None,
    lse: Float[Tensor, "head query"] | None = None,
    length: int | None = None,
) -> Float[Tensor, "*many key"]:
    """Carry relevance from the tokens after attention to those before it: ``r A``, heads averaged.

    Rows of A sum to 1, so relevance is conserved: what goes in comes out. Many vectors at once
    cost little more than one, because the tiles of A are the expensive part and are shared.

    Args:
        relevance: One or many weightings over the query tokens.
        q: Queries, after any rotary embedding or normalisation.
        k: Keys, likewise.
        scale: Multiplies the scores; ``dim ** -0.5`` when ``None``.
        bias: Added to the scores, broadcast over heads and queries.
        lse: Log-sum-exp of each row, where the kernel gave it.
        length: Query tokens in one tile; chosen by size when ``None``.
    """
    flat = relevance.reshape(1, -1, relevance.shape[-1])
    heads = pull_back_by_head(flat, q, k, scale, bias, lse, length)
    return heads.mean(0).reshape(*relevance.shape[:-1], k.shape[1])


def pull_back_by_head(
    relevance: Float[Tensor, "#head many query"],
    q: Float[Tensor, "head query dim"],
    k: Float[Tensor, "head key dim"],
    scale: float | None = None,
    bias: Float[Tensor, "#head #query key"] | None = None,
    lse: Float[Tensor, "head query"] | None = None,
    length: int | None = None,
) -> Float[Tensor, "head many key"]:
    """``r A`` of every head by itself, for relevance that heads share or have each their own.

    Tiles of weights are made in place in one buffer, one head at a time where a head fills it:
    with the kernel's log-sum-exp a tile is one product and one exponential, and costs less than
    the layer's own fused attention. (The fused kernel with queries and keys in each other's roles
    gives the same from its log-sum-exp, in 1.5 times the time.)

    Args:
        relevance: Weightings over the query tokens.
        q: Queries, after any rotary embedding or normalisation.
        k: Keys, likewise.
        scale: Multiplies the scores; ``dim ** -0.5`` when ``None``.
        bias: Added to the scores, broadcast over heads and queries.
        lse: Log-sum-exp of each row, where the kernel gave it.
        length: Query tokens in one tile; chosen by size when ``None``.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k = _wide(q) * scale, _wide(k)
    start = None if lse is None else _negative(lse).to(q.dtype).unsqueeze(-1)
    if start is not None and q.shape[1] >= _MANY_ROWS:
        # rides along as one more dimension: a copy of q and k, but no second pass over the tiles
        q, start = torch.cat([q, start], dim=-1), None
        k = torch.cat([k, torch.ones_like(k[..., :1])], dim=-1)
    relevance = relevance.to(q.dtype)
    carried = q.new_zeros(len(q), relevance.shape[1], k.shape[1])
    blocks = list(_blocks(len(q), q.shape[1], k.shape[1], length))
    buffer = q.new_empty(max(map(_size, blocks), default=0) * k.shape[1])
    for heads, part in blocks:
        row = None if start is None else start[heads, part]
        tile = _product_into(buffer, q[heads, part], k[heads], row)
        if bias is not None:
            bias_of = bias if len(bias) == 1 else bias[heads]
            tile += bias_of if bias.shape[1] == 1 else bias_of[:, part]
        asked = relevance[heads if len(relevance) > 1 else slice(None), :, part]
        if lse is None:
            asked = asked / _exp_rows(tile, is_masked=bias is not None).mT
        else:
            _exp_into(tile, is_masked=bias is not None)
        carried[heads].baddbmm_(asked.expand(len(tile), -1, -1), tile)
    return carried


def _blocks(
    n_heads: int, n_queries: int, n_keys: int, length: int | None
) -> Iterator[tuple[slice, slice]]:
    """Heads and queries of each tile: several heads only where one does not fill it."""
    length = min(n_queries, length or tile_length(1, n_keys))
    together = min(n_heads, max(1, TILE_FLOATS // max(1, length * n_keys)))
    for head in range(0, n_heads, together):
        for start in range(0, n_queries, max(1, length)):
            heads = slice(head, min(head + together, n_heads))
            yield heads, slice(start, min(start + length, n_queries))


def _size(block: tuple[slice, slice]) -> int:
    heads, part = block
    return int(heads.stop - heads.start) * int(part.stop - part.start)


def _product_into(
    buffer: Tensor, q: Tensor, k: Tensor, start: Tensor | None
) -> Float[Tensor, "head tile key"]:
    """``q kᵀ`` plus one number for each row, in the memory of the buffer."""
    tile = buffer[: len(q) * q.shape[1] * k.shape[1]].view(len(q), q.shape[1], k.shape[1])
    if len(q) > 1:
        torch.bmm(q, k.mT, out=tile) if start is None else torch.baddbmm(start, q, k.mT, out=tile)
    elif start is None:  # the product of two matrices shares its rows among the cores
        torch.mm(q[0], k[0].mT, out=tile[0])
    else:
        torch.addmm(start[0], q[0], k[0].mT, out=tile[0])
    return tile


def _negative(lse: Tensor) -> Tensor:
    """-lse; -inf for a row with nothing to look at, so that its exponentials are 0."""
    return torch.where(lse == -math.inf, lse, -lse)


def _exp_into(tile: Tensor, *, is_masked: bool) -> Tensor:
    """Exponentials in place of numbers that are 0 at most, or little more; exact zeros by a mask.

    >>> _exp_into(torch.tensor([0.0, -300.0, -math.inf]), is_masked=True)
    tensor([1., 0., 0.])
    """
    tile.clamp_(min=_FAINTEST).exp_()
    return threshold(tile, 2 * math.exp(_FAINTEST), 0.0, inplace=True) if is_masked else tile


def _exp_rows(tile: Tensor, *, is_masked: bool) -> Float[Tensor, "head tile 1"]:
    """Exponentials in place, safe from overflow; returns each row's sum, 1 for a blank row."""
    top = tile.amax(-1, keepdim=True)
    _exp_into(tile.sub_(top.masked_fill_(top == -math.inf, 0.0)), is_masked=is_masked)
    total = tile.sum(-1, keepdim=True)
    return total.masked_fill_(total == 0, 1.0)


def _wide(x: Tensor) -> Tensor:
    """Float64 stays; everything narrower is computed in float32."""
    return x if x.dtype == torch.float64 else x.float()


def _exp(scores: Tensor, lse: Tensor) -> Tensor:
    return _exp_into(scores + _negative(lse).to(scores.dtype).unsqueeze(-1), is_masked=True)


def _bias_rows(bias: Tensor | None, part: slice | Tensor) -> Tensor | None:
    if bias is None or bias.shape[1] == 1:
        return bias
    return bias[:, part]
