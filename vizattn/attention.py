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

# Floats in one tile of weights. 2²¹ floats are 8 MiB: small enough to stay near the cores,
# large enough that a matrix product is worth starting.
TILE_FLOATS = 2**21


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


def attention_tiles(
    q: Float[Tensor, "head query dim"],
    k: Float[Tensor, "head key dim"],
    scale: float | None = None,
    bias: Float[Tensor, "#head #query key"] | None = None,
    lse: Float[Tensor, "head query"] | None = None,
    length: int | None = None,
) -> Iterator[tuple[slice, Float[Tensor, "head tile key"]]]:
    """All rows of A, a few query tokens at a time: ``(which queries, their rows)``."""
    length = length or tile_length(q.shape[0], k.shape[1])
    for start in range(0, q.shape[1], length):
        part = slice(start, min(start + length, q.shape[1]))
        scores = attention_scores(q[:, part], k, scale, _bias_rows(bias, part))
        yield part, _exp(scores, scores.logsumexp(-1) if lse is None else lse[:, part])


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
    return pull_back_tiles(relevance, attention_tiles(q, k, scale, bias, lse, length), k.shape[1])


def pull_back_tiles(
    relevance: Float[Tensor, "*many query"],
    tiles: Iterator[tuple[slice, Float[Tensor, "head tile key"]]],
    n_keys: int,
) -> Float[Tensor, "*many key"]:
    """``r A`` with the heads averaged, for any source of tiles of A."""
    flat = _wide(relevance).reshape(-1, relevance.shape[-1])
    total = torch.zeros(flat.shape[0], n_keys, dtype=flat.dtype, device=flat.device)
    for part, weights in tiles:
        n_heads = weights.shape[0]
        # one product for all heads: (many, head · tile) @ (head · tile, key)
        share = (flat[:, part] / n_heads).repeat(1, n_heads)
        total += share @ weights.flatten(0, 1).to(share.dtype)
    return total.reshape(*relevance.shape[:-1], n_keys)


def _wide(x: Tensor) -> Tensor:
    """Float64 stays; everything narrower is computed in float32."""
    return x if x.dtype == torch.float64 else x.float()


def _exp(scores: Tensor, lse: Tensor) -> Tensor:
    blank = lse == -math.inf
    if blank.any():  # exp(-inf - -inf) is NaN: nothing to look at is a blank row
        lse = lse.masked_fill(blank, 0.0)
    return (scores - lse.to(scores.dtype).unsqueeze(-1)).exp_()


def _bias_rows(bias: Tensor | None, part: slice | Tensor) -> Tensor | None:
    if bias is None or bias.shape[1] == 1:
        return bias
    return bias[:, part]
