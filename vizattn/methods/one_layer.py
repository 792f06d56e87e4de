"""What methods have in common that look at one layer, and those that make one map of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError, OutOfRange
from vizattn.layers import Attention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.fusion import FUSIONS, fuse
from vizattn.methods.query import Asker, Query, placed
from vizattn.methods.settings import setting
from vizattn.places import Tokens
from vizattn.record import AttentionRecord


def layer_setting() -> Any:
    """The setting that they share."""
    return setting(
        None,
        label="Layer",
        help="Which layer; the last that can be laid over the picture by default.",
        kind="index",
        on_page=False,
    )


def head_setting() -> Any:
    """The setting of those whose heads have their own maps."""
    return setting(
        None, label="Head", help="Which head; all of them by default.", kind="index", on_page=False
    )


def fusion_setting() -> Any:
    """How they join heads."""
    return setting(
        "mean",
        label="Heads",
        help="How several heads become one map.",
        kind="choice",
        choices=FUSIONS,
        on_page=False,
    )


class InLayer(Method):
    """A method that looks at one layer."""

    layer: int | None

    def asked(self, record: AttentionRecord) -> Attention:
        """The layer itself."""
        return record[self.index(record)]

    def shown(self, record: AttentionRecord) -> Tokens:
        """The keys of the layer."""
        layer = self.asked(record)
        return placed(layer, layer.keys)

    def index(self, record: AttentionRecord) -> int:
        """The number of the layer in the record, from 0."""
        if self.layer is None:
            drawable = [i for i, layer in enumerate(record) if layer.is_drawable]
            if not drawable:
                _ = record.grid  # says why
            return drawable[-1]
        if not -len(record) <= self.layer < len(record):
            raise OutOfRange("layer", self.layer, len(record))
        return self.layer % len(record)


class ByHead(InLayer):
    """A method in one layer whose heads have their own maps."""

    head: int | None
    fusion: str

    def together(self, heads: Float[Tensor, "head token"]) -> Float[Tensor, " token"]:
        """The map of the chosen head, or of all together.

        Raises:
            OutOfRange: There is no such head.
        """
        if self.head is None:
            return fuse(heads, self.fusion)
        if not -len(heads) <= self.head < len(heads):
            raise OutOfRange("head", self.head, len(heads))
        return heads[self.head]

    def heads_in_words(self, n_heads: int) -> str:
        """``head 3``, or ``mean of 6 heads``."""
        if self.head is None:
            return f"{self.fusion} of {n_heads} head{'s' * (n_heads > 1)}"
        return f"head {range(n_heads)[self.head] + 1}"


class OneLayer(InLayer):
    """A method that makes one map from one layer."""

    @abstractmethod
    def of_layer(self, layer: Attention, query: Float[Tensor, " query"]) -> Float[Tensor, " key"]:
        """Relevance of a layer's keys for a weighting of its query tokens."""

    def __call__(
        self, record: AttentionRecord, query: Float[Tensor, " query"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query in this layer."""
        layer = self.asked(record)
        placed(layer, layer.keys)
        return self.of_layer(layer, query)

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The map of every layer that can be laid over the picture and in which somebody asks.

        Layers that the method is not defined in are left out, unless there is none at all.
        """
        maps, refusal = [], None
        for index, layer in enumerate(record):
            if not layer.is_drawable:
                continue
            try:
                values = self.of_layer(layer, Query.of(record, layer, at).weights)
            except MethodError as error:
                refusal = error
                continue
            maps.append(LayerMaps(index, placed(layer, layer.keys), values.unsqueeze(0)))
        if not maps and refusal is not None:
            raise refusal
        return maps
