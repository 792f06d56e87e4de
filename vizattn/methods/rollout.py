"""Attention rollout: follow attention from the output back through every layer to the picture.

    Â_l = (1 - r) A_l + r I          attention of layer l, and the residual connection around it
    R   = Â_L ⋯ Â_2 Â_1              later layers stand on the left
    map = query R                    one row, or any mixture of rows

Reading the row first gives the same numbers with vectors alone: ``((query Â_L) Â_{L-1}) ⋯ Â_1``.
No matrix is ever multiplied with a matrix, and none is stored.

Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3. The discard
ratio is Jacob Gildenblat's addition; here the weakest weights go before the residual is added, the
class token's column is kept, and rows are made to sum to 1 again.

Windows and merged patches have no published definition. Here a window's attention acts on its own
tokens, a merged patch hands its relevance to its parts in equal shares, and convolutions between
layers are passed straight through; relevance is conserved throughout (see ``stream``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.grid import TokenGrid
from vizattn.layers import Attention, DenseAttention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.discard import kth_smallest
from vizattn.methods.fusion import FUSIONS, fuse
from vizattn.methods.query import Pixel, Query, placed
from vizattn.methods.settings import setting
from vizattn.methods.stream import Stream, empty_stream, finer
from vizattn.places import Tokens
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class Rollout(Method):
    """Multiply a query back through the attention of every layer, residual connections included."""

    name: ClassVar[str] = "rollout"
    title: ClassVar[str] = "Attention rollout"
    about: ClassVar[str] = (
        "Attention of all layers multiplied through, with the residual connections in between: "
        "which patches the query can have drawn on in the end. It treats every head alike, leaves "
        "values and MLPs out, and is the same whatever class is asked about."
    )
    formula: ClassVar[str] = (
        "r ← (1 − s) r A + s r,  from the last layer to the first;  map = r\n"
        "A: attention of a layer, its heads together; s: residual share; r: at first the tokens "
        "that ask"
    )
    paper: ClassVar[str] = "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers, §3"

    residual: float = setting(
        0.5,
        label="Residual share",
        help="Share of each token that passes a layer unchanged; the paper takes one half.",
        kind="number",
        minimum=0.0,
        maximum=1.0,
        step=0.05,
    )
    fusion: str = setting(
        "mean",
        label="Heads",
        help="How the heads of a layer become one matrix; rows are normalised after max and min.",
        kind="choice",
        choices=FUSIONS,
    )
    discard: float = setting(
        0.0,
        label="Discard",
        help="Share of the weakest weights of each layer set to zero; 0 keeps all, as the paper.",
        kind="number",
        minimum=0.0,
        maximum=0.99,
        step=0.01,
    )
    start_layer: int = setting(
        0,
        label="Skip layers",
        help="How many of the first layers to leave out.",
        kind="integer",
        minimum=0,
        step=1,
    )

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
        layers = self._layers(record)
        stream = self._top(record).with_query(query, _queries(layers[-1]))
        for layer in reversed(layers):
            stream = self._through(layer, stream)
        return stream.relevance[0]

    def by_layer(self, record: AttentionRecord, at: Pixel | None = None) -> list[LayerMaps]:
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

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Rollout through 12 layers: what the class token draws on``."""
        count = len(self._layers(record))
        return f"Rollout through {count} layer{'s' * (count > 1)}: what {query} draws on"

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
        elif self.discard and layer.n_windows > 1:
            why = "it attends in windows, where the weakest of all N × N weights are no weights"
        else:
            return
        raise MethodError(
            f"rollout is not defined through {layer.name}: {why}. "
            f"Raw attention of the layers that can be drawn is."
        )

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
        """``r ← (1 - residual) r A + residual r`` for the tokens that ask in this layer."""
        queries, keys = _queries(layer), _keys(layer)
        stream = stream.onto(queries)
        asking = stream.of(queries)
        given, left = self._pull_back(layer, asking), stream.without(queries)
        if layer.kind in ("pool", "cross"):  # probes are not part of what they read
            return left.plus(given, keys)
        passed = asking - left.of(queries)
        left = left.plus(self.residual * passed, queries)
        return left.plus((1 - self.residual) * given, keys)

    def _pull_back(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> Float[Tensor, "many key"]:
        if self.fusion == "mean" and self.discard == 0:
            return layer.pull_back(relevance)
        kept = _keys(layer).grid.roles.index("class") if _keys(layer).grid.has_cls else None
        threshold = self._threshold(layer)
        attended = torch.zeros(len(relevance), layer.n_keys)
        for part, weights in self._fused(layer):
            keep = weights >= threshold
            if kept is not None:
                keep[:, kept] = True
            thinned = weights * keep
            rows = thinned / thinned.sum(-1, keepdim=True).clamp_min(torch.finfo().tiny)
            attended += relevance[:, part] @ rows
        return attended

    def _threshold(self, layer: Attention) -> float:
        """The weight at the discard ratio's place among all weights of a layer."""
        if self.discard == 0:
            return 0.0
        n_dropped = int(self.discard * layer.n_queries * layer.n_keys)
        return kth_smallest(lambda: (weights for _, weights in self._fused(layer)), n_dropped)

    def _fused(self, layer: Attention) -> Iterator[tuple[slice, Float[Tensor, "tile key"]]]:
        for part, weights in layer.tiles():
            yield part, fuse(weights, self.fusion)


def _queries(layer: Attention) -> Tokens:
    return placed(layer, layer.queries)


def _keys(layer: Attention) -> Tokens:
    return placed(layer, layer.keys)
