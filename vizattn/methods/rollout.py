"""Attention rollout: follow attention from the output back through every layer to the picture.

    Â_l = (1 - r) A_l + r I          attention of layer l, and the residual connection around it
    R   = Â_L ⋯ Â_2 Â_1              later layers stand on the left
    map = query R                    one row, or any mixture of rows

Reading the row first gives the same numbers with vectors alone: ``((query Â_L) Â_{L-1}) ⋯ Â_1``.
No matrix is ever multiplied with a matrix, and none is stored.

Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3. The discard
ratio is Jacob Gildenblat's addition; here the weakest weights go before the residual is added, the
class token's column is kept, and rows are made to sum to 1 again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.base import Method
from vizattn.methods.discard import kth_smallest
from vizattn.methods.fusion import FUSIONS, fuse
from vizattn.methods.settings import setting
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

    def __call__(
        self, record: AttentionRecord, query: Float[Tensor, " token"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query, through all layers down to ``start_layer``."""
        relevance = query
        for layer in reversed(self._layers(record)):
            relevance = self._through(layer, relevance, record)
        return relevance

    def by_layer(
        self, record: AttentionRecord, query: Float[Tensor, " token"]
    ) -> Float[Tensor, "layer map token"]:
        """For every layer, the rollout that starts after it; before ``start_layer``, the query.

        Going down, each layer adds one more vector to those that are already on their way, and all
        of them share the tiles of its attention: one pass for all layers, not one for each.
        """
        n_skipped = len(record) - len(self._layers(record))
        under_way = query.new_empty(0, len(query))
        for layer in reversed(self._layers(record)):
            under_way = torch.cat([query.unsqueeze(0), under_way])
            under_way = self._through(layer, under_way, record)
        skipped = query.expand(n_skipped, -1)
        return torch.cat([skipped, under_way]).unsqueeze(1)

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
        return record.layers[self.start_layer :]

    def _through(
        self, layer: Attention, relevance: Float[Tensor, "*many token"], record: AttentionRecord
    ) -> Float[Tensor, "*many token"]:
        if self.fusion == "mean" and self.discard == 0:
            attended = layer.pull_back(relevance)
        else:
            attended = self._pull_back_fused(layer, relevance, record)
        return (1 - self.residual) * attended + self.residual * relevance

    def _pull_back_fused(
        self, layer: Attention, relevance: Float[Tensor, "*many token"], record: AttentionRecord
    ) -> Float[Tensor, "*many token"]:
        """``r A`` where A is not the mean over heads: fused, thinned out, normalised by rows."""
        kept = record.grid.cls_index if record.grid.has_cls else None
        threshold = self._threshold(layer)
        attended = torch.zeros_like(relevance)
        for part, weights in self._fused(layer):
            keep = weights >= threshold
            if kept is not None:
                keep[:, kept] = True
            thinned = weights * keep
            rows = thinned / thinned.sum(-1, keepdim=True).clamp_min(torch.finfo().tiny)
            attended += relevance[..., part] @ rows
        return attended

    def _threshold(self, layer: Attention) -> float:
        """The weight at the discard ratio's place among all N² of a layer."""
        if self.discard == 0:
            return 0.0
        n_dropped = int(self.discard * layer.n_tokens**2)
        return kth_smallest(lambda: (weights for _, weights in self._fused(layer)), n_dropped)

    def _fused(self, layer: Attention) -> Iterator[tuple[slice, Float[Tensor, "tile token"]]]:
        for part, weights in layer.tiles():
            yield part, fuse(weights, self.fusion)
