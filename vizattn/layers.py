"""One attention call: what it keeps, and the rows, columns and pull-backs it gives on request.

Two forms have one face. ``LayerAttention`` keeps q and k, so its memory grows with tokens and not
with their square. ``DenseAttention`` keeps the weights, where a model multiplied its values with
something that q and k cannot give back, or did not fuse its softmax.

The first axis of what is kept holds windows (one, if a call is not cut) and, within each, heads.
Tokens are asked for by their number in the grid of the queries; answers come in the numbers of the
grid of the keys, and outside of its window there is nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vizattn import attention
from vizattn.errors import RecordError
from vizattn.places import Tokens
from vizattn.windows import numbers_of, put, take, tokens_in, windows_per_token, windows_with

# From so many vectors on, one product for the mean of the heads is worth the mean.
_MANY = 256


@dataclass(frozen=True)
class Attention:
    """One attention call; ``LayerAttention`` and ``DenseAttention`` are its two forms.

    Attributes:
        name: The module that called it, as ``named_modules`` names it, such as ``blocks.11.attn``.
        kind: What attends to what: ``self`` (every token to every token), ``window``, ``pooled``
            (queries or keys on a coarser grid), ``class`` (the class token alone asks), ``pool``
            (a learnt probe asks), ``cross``, ``channel``, ``local`` or ``unknown``.
        queries: Where its queries lie on the picture, ``None`` when they have no place there.
        keys: Where its keys lie, likewise.
        reason: Why nothing can be laid over the picture; empty when it can.
        is_exact: Whether the softmax itself multiplied the values (and not a mixture of heads or
            a gated softmax).
        v: Values, where they were kept.
        g: Derivative of a target by each head's output (that by the weights is ``g vᵀ``), if known.
        gives: What each key adds to a token through each head, in coordinates that keep lengths
            and angles, if known.
    """

    name: str
    kind: str
    queries: Tokens | None
    keys: Tokens | None
    reason: str
    is_exact: bool
    v: Float[Tensor, "lead key value"] | None = field(default=None, kw_only=True)
    g: Float[Tensor, "lead query value"] | None = field(default=None, kw_only=True)
    gives: Float[Tensor, "lead key coordinate"] | None = field(default=None, kw_only=True)

    tensors: ClassVar[tuple[str, ...]]

    @property
    def is_drawable(self) -> bool:
        """Whether its rows can be laid over the picture."""
        return self.queries is not None and self.keys is not None

    @property
    def n_windows(self) -> int:
        """Windows that attend each by itself; 1 when all tokens attend to all."""
        return 1 if self.queries is None or self.queries.index is None else len(self.queries.index)

    @property
    def n_heads(self) -> int:
        """Heads of this call."""
        return self.core_shape[0] // self.n_windows

    @property
    def n_queries(self) -> int:
        """Tokens that can be asked: those of the grid of the queries."""
        return self.core_shape[1] if self.queries is None else self.queries.grid.n_tokens

    @property
    def n_keys(self) -> int:
        """Tokens that a row runs over: those of the grid of the keys."""
        return self.core_shape[2] if self.keys is None else self.keys.grid.n_tokens

    @property
    def values(self) -> Float[Tensor, "lead key value"]:
        """``v``, or a ``RecordError`` where it was not kept."""
        if self.v is None:
            raise RecordError(f"{self.name} was captured without values. Capture it with them.")
        return self.v

    @property
    def bytes(self) -> int:
        """Memory of the tensors kept here."""
        kept = (getattr(self, name) for name in self.tensors)
        return sum(each.nbytes for each in kept if each is not None)

    def rows(self, queries: int | Sequence[int] | Tensor) -> Float[Tensor, "head picked key"]:
        """What a few query tokens look at.

        Each row sums to 1. It is 0 throughout where all keys are masked and where the token asks
        nothing in this call, and it lacks what went to the filling of a window.

        Args:
            queries: Numbers of tokens in the grid of the queries.
        """
        picked = numbers_of(queries, self.n_queries)
        if self._is_plain:
            return self._rows(slice(None), picked)
        asking, asked = self._windows
        distinct, order = torch.unique(picked, return_inverse=True)
        rows = torch.zeros(self.n_heads, len(distinct), self.n_keys)
        places = windows_per_token(asking, self.n_queries)[distinct].unsqueeze(-1)
        for window, positions, which in windows_with(distinct, asking, self.n_queries):
            found = self._rows(self._lead(window), positions) / places[which]
            seen, tokens = tokens_in(asked[window])
            rows[:, which[:, None], tokens] += found[..., seen]
        return rows[:, order]

    def columns(self, keys: int | Sequence[int] | Tensor) -> Float[Tensor, "head query picked"]:
        """How much every query token looks at a few key tokens. Columns do not sum to 1."""
        picked = numbers_of(keys, self.n_keys)
        if self._is_plain:
            return self._columns(slice(None), picked)
        asking, asked = self._windows
        distinct, order = torch.unique(picked, return_inverse=True)
        columns = torch.zeros(self.n_heads, self.n_queries, len(distinct))
        for window, positions, which in windows_with(distinct, asked, self.n_keys):
            found = self._columns(self._lead(window), positions)
            seen, tokens = tokens_in(asking[window])
            columns[:, tokens[:, None], which] += found[:, seen]
        return columns[..., order]

    def attend(self, query: Float[Tensor, " query"]) -> Float[Tensor, "head key"]:
        """``r A`` of every head by itself, of the rows alone that the weighting ``query`` has."""
        if self._is_plain:
            asking = query.nonzero().flatten()
            return self._carry(slice(None), asking, query[asking].expand(1, 1, -1))[:, 0]
        asking, asked = self._windows
        share = query / windows_per_token(asking, self.n_queries).clamp_min(1)
        weights = take(share.unsqueeze(0), asking)[0]
        windows = weights.any(1).nonzero().flatten()
        lead = (windows[:, None] * self.n_heads + torch.arange(self.n_heads)).flatten()
        weights = weights[windows].repeat_interleave(self.n_heads, 0).unsqueeze(1)
        given = self._carry(lead, torch.arange(asking.shape[1]), weights)
        total = torch.zeros(self.n_heads, self.n_keys)
        put(total, asked[windows], rearrange(given, "(w h) 1 k -> h w k", h=self.n_heads))
        return total

    def tiles(
        self, length: int | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "head tile key"]]]:
        """All rows, a few query tokens at a time, with the slice of queries they belong to."""
        length = length or attention.tile_length(self.n_heads, self.n_keys)
        for start in range(0, self.n_queries, length):
            part = slice(start, min(start + length, self.n_queries))
            yield part, self.rows(range(part.start, part.stop))

    def core_tiles(self) -> Iterator[tuple[slice, Float[Tensor, "lead tile key"]]]:
        """All rows as the tensors hold them, window by window and head by head."""
        lead, n_queries, n_keys = self.core_shape
        length = attention.tile_length(lead, n_keys)
        for start in range(0, n_queries, length):
            part = slice(start, min(start + length, n_queries))
            yield part, self._rows(slice(None), torch.arange(part.start, part.stop))

    def pull_back(self, relevance: Float[Tensor, "*many query"]) -> Float[Tensor, "*many key"]:
        """``r A`` with the heads averaged: relevance after the layer, carried to before it.

        What went to the filling of a window is given to the window's other keys in proportion, so
        relevance is conserved. Relevance of tokens that ask nothing in this call is lost.
        """
        flat = relevance.reshape(-1, self.n_queries)
        if self._is_plain:
            carried = self._carry_few(flat) if len(flat) < _MANY else self._carry_many(flat)
            return carried.reshape(*relevance.shape[:-1], self.n_keys)
        asking, asked = self._windows
        total = torch.zeros(len(flat), self.n_keys, dtype=flat.dtype)
        step = attention.tile_length(self.n_heads * self.core_shape[1], self.core_shape[2])
        for start in range(0, self.n_windows, step):
            windows = slice(start, min(start + step, self.n_windows))
            weights = self._normalised(windows).to(flat.dtype)
            given = torch.einsum("mwq,wqk->mwk", take(flat, asking[windows]), weights)
            put(total, asked[windows], given)
        return total.reshape(*relevance.shape[:-1], self.n_keys)

    def _carry_few(self, relevance: Float[Tensor, "many query"]) -> Float[Tensor, "many key"]:
        return self._carry(slice(None), torch.arange(self.n_queries), relevance[None]).mean(0)

    def _carry_many(self, relevance: Float[Tensor, "many query"]) -> Float[Tensor, "many key"]:
        """The same, the heads of each tile of weights averaged before their product."""
        carried = relevance.new_zeros(len(relevance), self.n_keys)
        for part, weights in self.core_tiles():
            carried += relevance[:, part] @ weights.mean(0).to(relevance.dtype)
        return carried

    @property
    def _is_plain(self) -> bool:
        """Whether tokens of the grids are the tensors' own, in their order."""
        placed = [side for side in (self.queries, self.keys) if side is not None]
        return all(side.index is None for side in placed)

    @property
    def _windows(self) -> tuple[Int[Tensor, "window query"], Int[Tensor, "window key"]]:
        """Which tokens ask and which are asked in each window, as numbers in their grids."""
        assert self.queries is not None
        assert self.keys is not None
        return self.queries.numbers(), self.keys.numbers()

    def _normalised(self, windows: slice) -> Float[Tensor, "window query key"]:
        """Weights of some windows, heads averaged, filling left out, rows summing to 1 again."""
        lead = slice(windows.start * self.n_heads, windows.stop * self.n_heads)
        weights = self._rows(lead, torch.arange(self.core_shape[1]))
        weights = rearrange(weights, "(w h) q k -> w h q k", h=self.n_heads).mean(1)
        seen = (self._windows[1][windows] >= 0).unsqueeze(1)
        kept = weights * seen
        return kept / kept.sum(-1, keepdim=True).clamp_min(torch.finfo(kept.dtype).tiny)

    def _lead(self, window: int) -> slice:
        return slice(window * self.n_heads, (window + 1) * self.n_heads)

    @property
    @abstractmethod
    def core_shape(self) -> tuple[int, int, int]:
        """Windows times heads, query tokens of a window, key tokens of a window."""

    @abstractmethod
    def _rows(self, lead: slice, picked: Tensor) -> Float[Tensor, "lead picked key"]:
        """Rows by their position in the tensors kept."""

    @abstractmethod
    def _columns(self, lead: slice, picked: Tensor) -> Float[Tensor, "lead query picked"]:
        """Columns by their position in the tensors kept."""

    @abstractmethod
    def _carry(
        self,
        lead: slice | Int[Tensor, " lead"],
        picked: Int[Tensor, " picked"],
        relevance: Float[Tensor, "#lead many picked"],
    ) -> Float[Tensor, "lead many key"]:
        """``r A`` of some leads, with relevance of some positions and none of the others."""


@dataclass(frozen=True)
class LayerAttention(Attention):
    """One attention call kept as its queries and keys.

    Attributes:
        q: Queries as the kernel got them.
        k: Keys, likewise.
        scale: Multiplies the scores.
        bias: Added to the scores, ``-inf`` where a query may not look.
        lse: Log-sum-exp of each row, where the kernel gave it.
    """

    q: Float[Tensor, "lead query dim"]
    k: Float[Tensor, "lead key dim"]
    scale: float
    bias: Float[Tensor, "#lead #query key"] | None = None
    lse: Float[Tensor, "lead query"] | None = None

    tensors: ClassVar[tuple[str, ...]] = ("q", "k", "v", "bias", "lse", "g", "gives")

    @property
    def core_shape(self) -> tuple[int, int, int]:
        """As the tensors have it."""
        return self.q.shape[0], self.q.shape[1], self.k.shape[1]

    def _rows(self, lead: slice, picked: Tensor) -> Tensor:
        q, k, bias, lse = self._part(lead)
        return attention.attention_rows(q, k, picked, self.scale, bias, lse)

    def _columns(self, lead: slice, picked: Tensor) -> Tensor:
        q, k, bias, lse = self._part(lead)
        return attention.attention_columns(q, k, picked, self.scale, bias, lse)

    def _carry(self, lead: slice | Tensor, picked: Tensor, relevance: Tensor) -> Tensor:
        q, k, bias, lse = self._part(lead)
        if len(picked) < q.shape[1]:
            q, lse = q[:, picked], None if lse is None else lse[:, picked]
            bias = bias if bias is None or bias.shape[1] == 1 else bias[:, picked]
        return attention.pull_back_by_head(relevance, q, k, self.scale, bias, lse)

    def _part(self, lead: slice | Tensor) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        bias = self.bias if self.bias is None or len(self.bias) == 1 else self.bias[lead]
        return self.q[lead], self.k[lead], bias, None if self.lse is None else self.lse[lead]


@dataclass(frozen=True)
class DenseAttention(Attention):
    """One attention call kept as its weights.

    Attributes:
        weights: What multiplied the values when its rows sum to 1, else the softmax; a query with
            every key masked is blank (zeros).
        mixed: What multiplied the values where that is neither the softmax nor sums to 1, such as
            a learnt mixture of heads.
        softmax: The softmax that ``weights`` were made from, where they are not it, such as the
            content's before a gate adds the positions' to it.
    """

    weights: Float[Tensor, "lead query key"]
    mixed: Float[Tensor, "lead query key"] | None = None
    softmax: Float[Tensor, "lead query key"] | None = None

    tensors: ClassVar[tuple[str, ...]] = ("weights", "v", "mixed", "softmax", "g", "gives")

    @property
    def core_shape(self) -> tuple[int, int, int]:
        """As the tensors have it."""
        return self.weights.shape[0], self.weights.shape[1], self.weights.shape[2]

    def _rows(self, lead: slice, picked: Tensor) -> Tensor:
        return self.weights[lead][:, picked].float()

    def _columns(self, lead: slice, picked: Tensor) -> Tensor:
        return self.weights[lead][..., picked].float()

    def _carry(self, lead: slice | Tensor, picked: Tensor, relevance: Tensor) -> Tensor:
        weights = self.weights[lead]
        if len(picked) < weights.shape[1]:
            weights = weights[:, picked]
        return relevance.expand(len(weights), -1, -1) @ weights.to(relevance.dtype)
