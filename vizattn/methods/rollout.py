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

from vizattn.layers import Attention
from vizattn.methods.discard import kth_smallest
from vizattn.methods.downward import Downward, start_layer
from vizattn.methods.fusion import FUSIONS, fuse
from vizattn.methods.query import placed
from vizattn.methods.settings import setting
from vizattn.progress import silent
from vizattn.record import AttentionRecord

# Floats of one tile of all queries' rollout.
_TILE_FLOATS = 2**22


@dataclass(frozen=True)
class Rollout(Downward):
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
    start_layer: int = start_layer()

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Rollout through 12 layers: what the class token draws on``."""
        return f"Rollout {self._through_layers(record)}: what {query} draws on"

    def of_all_queries(
        self, record: AttentionRecord, length: int | None = None
    ) -> Iterator[tuple[slice, Float[Tensor, "tile token"]]]:
        """The rollout of every query token of the last layer, a few rows of ``R`` at a time.

        ``R`` of N tokens is N × N numbers; what is held here is a few times one tile. All rows of a
        tile share one look at the weights of each layer, so larger tiles take less time.

        Args:
            record: What was captured.
            length: Rows of one tile; by default as many as make 16 MiB, of which some
                twelve are held at the peak.

        Yields:
            Which query tokens, and the relevance of all tokens for each: what ``self(record,
            query)`` gives. A row sums to 1 where its token asks in the last layer, else it is 0.
        """
        n_queries, n_tokens = self.asked(record).n_queries, self.shown(record).grid.n_tokens
        length = length or max(1, _TILE_FLOATS // max(n_queries, n_tokens))
        for start in range(0, n_queries, length):
            part = slice(start, min(start + length, n_queries))
            rows = torch.zeros(part.stop - part.start, n_queries)
            rows.diagonal(part.start).fill_(1.0)
            yield part, self._down(record, rows, silent).relevance

    def _why_not(self, layer: Attention) -> str:
        if self.discard and layer.n_windows > 1:
            return "it attends in windows, where the weakest of all N × N weights are no weights"
        return ""

    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """``r ← (1 - residual) r A + residual r``; a probe has no residual connection."""
        given = self._pull_back(layer, relevance)
        share = 0.0 if layer.kind in ("pool", "cross") else self.residual
        return (1 - share) * given, share * relevance

    def _pull_back(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> Float[Tensor, "many key"]:
        if self.fusion == "mean" and self.discard == 0:
            return layer.pull_back(relevance)
        keys = placed(layer, layer.keys)
        kept = keys.grid.roles.index("class") if keys.grid.has_cls else None
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
