"""Raw attention: one layer's weights as the softmax made them.

Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.methods.base import LayerMaps
from vizattn.methods.one_layer import ByHead, fusion_setting, head_setting, layer_setting
from vizattn.methods.query import Asker, Query, placed
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class RawAttention(ByHead):
    """What the query looks at in one layer: ``r A``, of one head or of all heads together."""

    name: ClassVar[str] = "raw"
    title: ClassVar[str] = "Raw attention"
    about: ClassVar[str] = (
        "The attention weights of one layer as the softmax made them: how the query shares out its "
        "attention over all tokens. It shows where information can flow in this layer. It does not "
        "show what came in through earlier layers, nor why a class was chosen."
    )
    formula: ClassVar[str] = (
        "A = softmax(q kᵀ / √d + b);  map = r A\n"
        "q, k: queries and keys of one head; d: their dimension; b: the layer's bias, if any; "
        "r: the tokens that ask"
    )
    paper: ClassVar[str] = "Vaswani et al. 2017, Attention Is All You Need, eq. 1"
    per_head: ClassVar[bool] = True

    layer: int | None = layer_setting()
    head: int | None = head_setting()
    fusion: str = fusion_setting()

    def __call__(
        self, record: AttentionRecord, query: Float[Tensor, " query"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query in this layer."""
        return self.together(self.asked(record).attend(query))

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """Every head of every layer that can be laid over the picture, each by itself.

        From a pixel, layers in which no patch asks, such as class attention, are left out.
        """
        maps = []
        for index, layer in enumerate(record):
            if not layer.is_drawable:
                continue
            try:
                query = Query.of(record, layer, at)
            except MethodError:
                continue
            heads = layer.attend(query.weights)
            maps.append(LayerMaps(index, placed(layer, layer.keys), heads))
        return maps

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Layer 12, head 3: what the class token attends to``."""
        index = self.index(record)
        heads = self.heads_in_words(record[index].n_heads)
        mixed = "" if record[index].is_exact else " (mixed after the softmax)"
        return f"Layer {index + 1}, {heads}{mixed}: what {query} attends to"
