"""What all methods have in common that go down through the layers with vectors alone.

A query starts after the last layer. Each layer turns what arrives into what its keys get and what
the asking tokens keep, and the next layer goes on from there (``stream``): no matrix is ever
multiplied with a matrix.
"""

from __future__ import annotations

from abc import abstractmethod
from itertools import accumulate
from math import prod
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.grid import TokenGrid
from vizattn.layers import Attention, DenseAttention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.query import Asker, Query, placed
from vizattn.methods.settings import setting
from vizattn.methods.stream import Stream, empty_stream, finer
from vizattn.places import Tokens
from vizattn.progress import Tell, silent
from vizattn.record import AttentionRecord


def start_layer() -> Any:
    """The setting that they share."""
    return setting(
        0,
        label="Skip layers",
        help="How many of the first layers to leave out.",
        kind="integer",
        minimum=0,
        step=1,
    )


class Downward(Method):
    """A method that carries a query down through all layers, or down to ``start_layer``.

    Attributes:
        instead: What to use where it is not defined, a sentence.
    """

    instead: ClassVar[str] = "Raw attention of the layers that can be drawn is."
    start_layer: int

    @abstractmethod
    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """What the keys of a layer get of relevance that arrives, and what its queries keep."""

    def _why_not(self, layer: Attention) -> str:  # noqa: ARG002  # others look at the layer
        """Why the method is not defined through a layer that can be drawn; a clause, or empty."""
        return ""

    def asked(self, record: AttentionRecord) -> Attention:
        """The last layer."""
        return self._layers(record)[-1]

    def shown(self, record: AttentionRecord) -> Tokens:
        """The finest grid that relevance comes down to."""
        tokens = self._top(record).tokens
        for layer in reversed(self._layers(record)):
            tokens = finer(tokens, finer(_queries(layer), _keys(layer)))
        roles = self._roles(record)
        grid = TokenGrid(tokens.grid.rows, tokens.grid.cols, len(roles), roles)
        return Tokens(grid, tokens.frame)

    def __call__(
        self, record: AttentionRecord, query: Float[Tensor, " query"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query, through all layers down to ``start_layer``."""
        return self.with_progress(record, query, silent)

    def with_progress(
        self, record: AttentionRecord, query: Float[Tensor, " query"], progress: Tell
    ) -> Float[Tensor, " token"]:
        """The same, telling after each layer how far it is; a layer takes as long as it is large.

        A method that goes down in its own way has its own of this, and not of ``__call__``.
        """
        return self._down(record, query, progress).relevance[0]

    def _down(
        self, record: AttentionRecord, queries: Float[Tensor, "*many query"], progress: Tell
    ) -> Stream:
        """One or many queries of the last layer, through all layers."""
        layers = self._layers(record)
        stream = self._top(record).with_query(queries, _queries(layers[-1]))
        costs = [float(prod(layer.core_shape)) for layer in reversed(layers)]
        for layer, done in zip(reversed(layers), accumulate(costs), strict=True):
            stream = self._through(layer, stream)
            progress(done / sum(costs))
        return stream

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """For every layer, the rollout that starts after it.

        Going down, each layer adds one more query to those that are already on their way, and all
        of them share the tiles of its attention: one pass for all layers, not one for each.
        """
        stream = self._top(record)
        for layer in reversed(self._layers(record)):
            stream = stream.onto(_queries(layer))
            query = Query.of(record, layer, at).weights
            stream = self._through(layer, stream.with_query(query, _queries(layer)))
        maps = stream.relevance.unsqueeze(1)
        tokens = self.shown(record)
        return [LayerMaps(self.start_layer + i, tokens, each) for i, each in enumerate(maps)]

    def _through_layers(self, record: AttentionRecord) -> str:
        """``through 12 layers``."""
        count = len(self._layers(record))
        return f"through {count} layer{'s' * (count > 1)}"

    def _layers(self, record: AttentionRecord) -> tuple[Attention, ...]:
        if self.start_layer >= len(record):
            raise MethodError(
                f"got start_layer {self.start_layer} of a model with {len(record)} layers; "
                f"at least one layer has to stay."
            )
        layers = record.layers[self.start_layer :]
        for layer in layers:
            self._check(layer)
        return layers

    def _check(self, layer: Attention) -> None:
        """Refuse what rollout is not defined for, with the reason and what is."""
        if not layer.is_drawable:
            why = layer.reason
        elif isinstance(layer, DenseAttention) and layer.mixed is not None:
            why = "it mixes heads after the softmax, and the rows of the mixture do not sum to 1"
        else:
            why = self._why_not(layer)
        if not why:
            return
        raise MethodError(f"{self.name} is not defined through {layer.name}: {why}. {self.instead}")

    def _roles(self, record: AttentionRecord) -> tuple[str, ...]:
        """All tokens without a place that some layer has, in the order of the layer with most."""
        sides: list[tuple[str, ...]] = []
        sides += [_keys(layer).grid.roles for layer in self._layers(record)]
        sides += [_queries(layer).grid.roles for layer in self._layers(record)]
        roles = [*max(sides, key=lambda side: len(side))]
        for side in sides:
            for role in side:
                roles += [role] * (side.count(role) - roles.count(role))
        return tuple(roles)

    def _top(self, record: AttentionRecord) -> Stream:
        return empty_stream(self._roles(record), _queries(self._layers(record)[-1]))

    def _through(self, layer: Attention, stream: Stream) -> Stream:
        """One layer down, for the tokens that ask in it; the others keep what they have."""
        queries, keys = _queries(layer), _keys(layer)
        stream = stream.onto(queries)
        asking = stream.of(queries)
        left = stream.without(queries)
        given, kept = self._carry(layer, asking)
        if layer.kind in ("pool", "cross"):  # probes are not part of what they read
            return left.plus(given, keys)
        asks = queries.numbers()
        seen = torch.zeros(queries.grid.n_tokens).index_fill(0, asks[asks >= 0], 1.0)
        return left.plus(kept * seen, queries).plus(given, keys)


def _queries(layer: Attention) -> Tokens:
    return placed(layer, layer.queries)


def _keys(layer: Attention) -> Tokens:
    return placed(layer, layer.keys)
