"""Raw attention: one layer's weights as the softmax made them.

Source: Vaswani et al. 2017, "Attention Is All You Need", eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import OutOfRange
from vizattn.layers import Attention
from vizattn.methods.base import Method
from vizattn.methods.fusion import FUSIONS, fuse
from vizattn.methods.settings import setting
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class RawAttention(Method):
    """What the query looks at in one layer: ``r A``, of one head or of all heads together."""

    name: ClassVar[str] = "raw"
    title: ClassVar[str] = "Raw attention"
    about: ClassVar[str] = (
        "The attention weights of one layer as the softmax made them: how the query shares out its "
        "attention over all tokens. It shows where information can flow in this layer. It does not "
        "show what came in through earlier layers, nor why a class was chosen."
    )
    paper: ClassVar[str] = "Vaswani et al. 2017, Attention Is All You Need, eq. 1"
    per_head: ClassVar[bool] = True

    layer: int = setting(
        -1, label="Layer", help="Which layer; the last one by default.", kind="index", on_page=False
    )
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
        self, record: AttentionRecord, query: Float[Tensor, " token"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query in this layer."""
        heads = attended(record[self.layer], query)
        if self.head is None:
            return fuse(heads, self.fusion)
        if not -len(heads) <= self.head < len(heads):
            raise OutOfRange("head", self.head, len(heads))
        return heads[self.head]

    def by_layer(
        self, record: AttentionRecord, query: Float[Tensor, " token"]
    ) -> Float[Tensor, "layer map token"]:
        """Every head of every layer, each by itself."""
        return torch.stack([attended(layer, query) for layer in record])

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Layer 12, head 3: what the class token attends to``."""
        layer = range(len(record))[self.layer] + 1
        n_heads = record[self.layer].n_heads
        head = (
            f"{self.fusion} of {n_heads} heads"
            if self.head is None
            else f"head {range(n_heads)[self.head] + 1}"
        )
        return f"Layer {layer}, {head}: what {query} attends to"


def attended(layer: Attention, query: Float[Tensor, " token"]) -> Float[Tensor, "head token"]:
    """``r A`` of every head by itself; only rows that the query weighs are computed."""
    asked = query.nonzero().flatten()
    if len(asked) == 1:
        return layer.rows(asked)[:, 0] * query[asked]
    total: Tensor | None = None
    for part, weights in layer.tiles():
        share = rearrange(query[part].to(weights.dtype), "query -> 1 1 query") @ weights
        total = share if total is None else total + share
    assert total is not None
    return total[:, 0]
