"""Gradient rollout: rollout through attention weighted by its gradient.

    W_l = mean over heads of (A_l ⊙ ∂y/∂A_l)⁺
    Â_l = I + W_l, each row divided by its sum
    map = query Â_L ⋯ Â_1

As GAE, but rows are made to sum to 1, so that relevance is conserved and a layer with large
gradients does not drown the others.

Source: the baseline of Chefer, Gur & Wolf 2021, "Transformer Interpretability Beyond Attention
Visualization", CVPR, section 3, with the rollout of Abnar & Zuidema 2020; popularised by Jacob
Gildenblat's vit-explain, which takes the gradient of the scores and pairs it with another layer.
Here both belong to the same layer, and the gradient is that of the weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.layers import Attention
from vizattn.methods.downward import Downward, start_layer
from vizattn.methods.gae import gained
from vizattn.methods.tiles import carry, rows_to_one, why_no_weights
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class GradientRollout(Downward):
    """Roll out attention of which only what the target gains from is left."""

    name: ClassVar[str] = "gradient-rollout"
    title: ClassVar[str] = "Gradient rollout"
    about: ClassVar[str] = (
        "Attention rollout in which every weight counts as much as the target gains from it, with "
        "the rows made to sum to 1 again. Relevance is conserved, so values are shares; most stays "
        "on the asking token where gradients are small."
    )
    paper: ClassVar[str] = (
        "Abnar & Zuidema 2020, Quantifying Attention Flow; weighted by gradients as in "
        "Chefer, Gur & Wolf 2021, CVPR, §3"
    )
    formula: ClassVar[str] = (
        "r ← r Â_l,  Â_l = rows of (I + mean over heads of (A_l ⊙ ∂y/∂A_l)⁺), each over its sum\n"
        "A_l: attention of layer l; y: the target; ⊙: entry by entry; ⁺: negative entries are 0"
    )
    class_agnostic: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("attention",)

    start_layer: int = start_layer()

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Gradient rollout through 12 layers for class 3: what the class token draws on``."""
        through = f"{self._through_layers(record)} for {record.target}"
        return f"Gradient rollout {through}: what {query} draws on"

    def _why_not(self, layer: Attention) -> str:
        return why_no_weights(layer)

    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """``r ← r (I + W)``, rows normalised; a probe passes all it has on."""
        if layer.kind not in ("pool", "cross"):
            return carry(layer, relevance, gained, with_identity=True)
        total, _ = carry(layer, relevance, lambda tile: rows_to_one(gained(tile)))
        return total, relevance
