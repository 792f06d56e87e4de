"""Raw attention: one layer's weights as the softmax made them.

Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError, OutOfRange
from vizattn.methods.base import LayerMaps
from vizattn.methods.fusion import FUSIONS, fuse
from vizattn.methods.one_layer import InLayer, layer_setting
from vizattn.methods.query import Asker, Query, placed
from vizattn.methods.settings import setting
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class RawAttention(InLayer):
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
    head: int | None = setting(
        None, label="Head", help="Which head; all of them by default.", kind="index", on_page=False
    )
    fusion: str = setting(
        "mean",
        label="Heads",
        help="How several heads become one map.",
        kind="choice",
        choices=FUSIONS,
        on_page=False,
    )

    def __call__(
        self, record: AttentionRecord, query: Float[Tensor, " query"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query in this layer."""
        heads = self.asked(record).attend(query)
        if self.head is None:
            return fuse(heads, self.fusion)
        if not -len(heads) <= self.head < len(heads):
            raise OutOfRange("head", self.head, len(heads))
        return heads[self.head]

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
        n_heads = record[index].n_heads
        head = (
            f"{self.fusion} of {n_heads} head{'s' * (n_heads > 1)}"
            if self.head is None
            else f"head {range(n_heads)[self.head] + 1}"
        )
        mixed = "" if record[index].is_exact else " (mixed after the softmax)"
        return f"Layer {index + 1}, {head}{mixed}: what {query} attends to"
