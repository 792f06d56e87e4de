"""Generic attention explainability (GAE): attention times its gradient, through all layers.

    W_l = mean over heads of (A_l ⊙ ∂y/∂A_l)⁺        what raises the target y
    R   = (I + W_L) ⋯ (I + W_1)                      no row is normalised
    map = query R

Source: Chefer, Gur & Wolf 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal
and Encoder-Decoder Transformers", ICCV, equations 5 and 6 (self-attention).

The map is not free of the target's scale: a logit ten times as large gives another picture.
Windows and merged patches have no published definition; they are passed as rollout passes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.layers import Attention
from vizattn.methods.downward import Downward, start_layer
from vizattn.methods.tiles import Tile, carry, why_no_weights
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class GAE(Downward):
    """Carry a query back through attention weighted by what the target gains from it."""

    name: ClassVar[str] = "gae"
    title: ClassVar[str] = "Attention × gradient (GAE)"
    about: ClassVar[str] = (
        "Attention of all layers, each weight multiplied with how much the target gains from it; "
        "losses are left out. It shows which patches spoke for the target, for the class that was "
        "asked about. It says nothing of what spoke against it, and MLPs are passed straight "
        "through."
    )
    paper: ClassVar[str] = (
        "Chefer, Gur & Wolf 2021, Generic Attention-model Explainability, ICCV, eqs. 5 and 6"
    )
    formula: ClassVar[str] = (
        "R = (I + W_L) ⋯ (I + W_1),  W_l = mean over heads of (A_l ⊙ ∂y/∂A_l)⁺\n"
        "A_l: attention of layer l; y: the target; ⊙: entry by entry; ⁺: negative entries are 0"
    )
    class_agnostic: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("attention",)

    start_layer: int = start_layer()

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``GAE through 12 layers for class 3: what the class token draws on``."""
        return f"GAE {self._through_layers(record)} for {record.target}: what {query} draws on"

    def _why_not(self, layer: Attention) -> str:
        return why_no_weights(layer)

    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """``r ← r + r W``."""
        return carry(layer, relevance, gained)


def gained(tile: Tile) -> Float[Tensor, "window query key"]:
    """``(A ⊙ ∂y/∂A)⁺``, cut off in each head and then averaged."""
    return tile.over_heads(tile.gradient.clamp_min_(0).mul_(tile.weights))
