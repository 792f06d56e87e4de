"""One attention call: what it keeps, and the rows, columns and pull-backs it gives on request.

Two forms have one face. ``LayerAttention`` keeps q and k, so its memory grows with tokens and not
with their square. ``DenseAttention`` keeps the weights, where a model multiplied its values with
something that q and k cannot give back, or did not fuse its softmax.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn import attention
from vizattn.errors import OutOfRange
from vizattn.frame import Frame
from vizattn.grid import TokenGrid


@dataclass(frozen=True)
class Place:
    """Where the tokens of a call lie: on which grid, and where that grid is on the picture."""

    grid: TokenGrid
    frame: Frame


@dataclass(frozen=True)
class Attention:
    """One attention call; ``LayerAttention`` and ``DenseAttention`` are its two forms.

    Attributes:
        name: The module that called it, as ``named_modules`` names it, such as ``blocks.11.attn``.
        kind: What attends to what; ``self`` when every token attends to every token.
        place: Where its tokens lie on the picture.
    """

    name: str
    kind: str
    place: Place

    tensors: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def n_heads(self) -> int:
        """Heads of this call."""

    @property
    @abstractmethod
    def n_tokens(self) -> int:
        """Query tokens of this call."""

    @abstractmethod
    def rows(self, queries: int | Sequence[int] | Tensor) -> Float[Tensor, "head picked key"]:
        """What a few query tokens look at; each row sums to 1, or is 0 where all is masked."""

    @abstractmethod
    def columns(self, keys: int | Sequence[int] | Tensor) -> Float[Tensor, "head query picked"]:
        """How much every query token looks at a few key tokens. Columns do not sum to 1."""

    @abstractmethod
    def tiles(
        self, length: int | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "head tile key"]]]:
        """All rows, a few query tokens at a time, with the slice of queries they belong to."""

    @abstractmethod
    def pull_back(self, relevance: Float[Tensor, "*many query"]) -> Float[Tensor, "*many key"]:
        """``r A`` with the heads averaged: relevance after the layer, carried to before it."""

    @property
    def bytes(self) -> int:
        """Memory of the tensors kept here."""
        kept = (getattr(self, name) for name in self.tensors)
        return sum(tensor.nbytes for tensor in kept if tensor is not None)


@dataclass(frozen=True)
class LayerAttention(Attention):
    """One attention call kept as its queries and keys.

    Attributes:
        q: Queries as the kernel got them.
        k: Keys, likewise.
        v: Values, likewise.
        scale: Multiplies the scores.
        bias: Added to the scores, ``-inf`` where a query may not look.
        lse: Log-sum-exp of each row, where the kernel gave it.
    """

    q: Float[Tensor, "head query dim"]
    k: Float[Tensor, "head key dim"]
    v: Float[Tensor, "head key value"]
    scale: float
    bias: Float[Tensor, "#head #query key"] | None = None
    lse: Float[Tensor, "head query"] | None = None

    tensors: ClassVar[tuple[str, ...]] = ("q", "k", "v", "bias", "lse")

    @property
    def n_heads(self) -> int:
        """Heads of this call."""
        return self.q.shape[0]

    @property
    def n_tokens(self) -> int:
        """Query tokens of this call."""
        return self.q.shape[1]

    def rows(self, queries: int | Sequence[int] | Tensor) -> Float[Tensor, "head picked key"]:
        """What a few query tokens look at; each row sums to 1, or is 0 where all is masked."""
        picked = _picked(queries, self.q.shape[1])
        return attention.attention_rows(self.q, self.k, picked, self.scale, self.bias, self.lse)

    def columns(self, keys: int | Sequence[int] | Tensor) -> Float[Tensor, "head query picked"]:
        """How much every query token looks at a few key tokens. Columns do not sum to 1."""
        picked = _picked(keys, self.k.shape[1])
        return attention.attention_columns(self.q, self.k, picked, self.scale, self.bias, self.lse)

    def tiles(
        self, length: int | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "head tile key"]]]:
        """All rows, a few query tokens at a time, with the slice of queries they belong to."""
        return attention.attention_tiles(self.q, self.k, self.scale, self.bias, self.lse, length)

    def pull_back(self, relevance: Float[Tensor, "*many query"]) -> Float[Tensor, "*many key"]:
        """``r A`` with the heads averaged: relevance after the layer, carried to before it."""
        return attention.pull_back(relevance, self.q, self.k, self.scale, self.bias, self.lse)


@dataclass(frozen=True)
class DenseAttention(Attention):
    """One attention call kept as the weights that multiplied the values.

    Attributes:
        weights: The softmax itself; a query with every key masked is blank (zeros).
        v: Values as the model multiplied them.
    """

    weights: Float[Tensor, "head query key"]
    v: Float[Tensor, "head key value"]

    tensors: ClassVar[tuple[str, ...]] = ("weights", "v")

    @property
    def n_heads(self) -> int:
        """Heads of this call."""
        return self.weights.shape[0]

    @property
    def n_tokens(self) -> int:
        """Query tokens of this call."""
        return self.weights.shape[1]

    def rows(self, queries: int | Sequence[int] | Tensor) -> Float[Tensor, "head picked key"]:
        """What a few query tokens look at; each row sums to 1, or is 0 where all is masked."""
        return self.weights[:, _picked(queries, self.weights.shape[1])]

    def columns(self, keys: int | Sequence[int] | Tensor) -> Float[Tensor, "head query picked"]:
        """How much every query token looks at a few key tokens. Columns do not sum to 1."""
        return self.weights[..., _picked(keys, self.weights.shape[2])]

    def tiles(
        self, length: int | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "head tile key"]]]:
        """All rows, a few query tokens at a time, with the slice of queries they belong to."""
        length = length or attention.tile_length(self.n_heads, self.weights.shape[2])
        for start in range(0, self.n_tokens, length):
            part = slice(start, min(start + length, self.n_tokens))
            yield part, self.weights[:, part]

    def pull_back(self, relevance: Float[Tensor, "*many query"]) -> Float[Tensor, "*many key"]:
        """``r A`` with the heads averaged: relevance after the layer, carried to before it."""
        return attention.pull_back_tiles(relevance, self.tiles(), self.weights.shape[2])


def _picked(which: int | Sequence[int] | Tensor, count: int) -> Int[Tensor, " picked"]:
    picked = torch.as_tensor([which] if isinstance(which, int) else which, dtype=torch.long)
    for index in (int(picked.min()), int(picked.max())) if picked.numel() else ():
        if not -count <= index < count:
            raise OutOfRange("token", index, count)
    return picked % count


def default_scale(q: Tensor) -> float:
    """The scale of a kernel that was given none: one over the root of the head's dimension."""
    return 1 / math.sqrt(q.shape[-1])
