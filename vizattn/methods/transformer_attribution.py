"""Transformer Attribution: relevance of attention times its gradient, through all layers.

    W_l = mean over heads of (∂y/∂A_l ⊙ R_l)⁺        R_l: the relevance of the weights A_l
    map = query (I + W_L) ⋯ (I + W_1)                no row is normalised

As GAE, with relevance in place of the weights themselves. Relevance starts as 1 at the target and
is shared out on its way down in proportion to what raised each result (``positive``); what reaches
the weights is half of A ⊙ (s vᵀ), with s the relevance of what the heads put out, divided by it.

Source: Chefer, Gur & Wolf 2021, "Transformer Interpretability Beyond Attention Visualization",
CVPR, section 3, equations 2 and 6 to 14. The paper prints the product from the first layer to the
last; the authors' code has later layers on the left, as here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention, DenseAttention, LayerAttention
from vizattn.methods.downward import Downward, start_layer
from vizattn.methods.tiles import Tile, carry, gradient_and_values, why_no_weights
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class TransformerAttribution(Downward):
    """Carry a query back through attention that is relevant to the target and raises it."""

    name: ClassVar[str] = "transformer-attribution"
    title: ClassVar[str] = "Transformer Attribution"
    about: ClassVar[str] = (
        "Relevance is passed down from the target to the attention of every layer, through MLPs, "
        "normalisation and residual connections, and there multiplied with how much the target "
        "gains from it; the layers are then multiplied through. It is more selective than GAE, "
        "which takes the weights as they are, and slower. What speaks against the target is left "
        "out."
    )
    paper: ClassVar[str] = (
        "Chefer, Gur & Wolf 2021, Transformer Interpretability Beyond Attention Visualization, "
        "CVPR, eqs. 2 and 6 to 14"
    )
    formula: ClassVar[str] = (
        "R = (I + W_L) ⋯ (I + W_1),  W_l = mean over heads of (∂y/∂A_l ⊙ R_l)⁺\n"
        "A_l: attention of layer l; R_l: its relevance, passed down from the target; y: the "
        "target; ⊙: entry by entry; ⁺: negative entries are 0"
    )
    class_agnostic: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("attention", "relevance")

    start_layer: int = start_layer()

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Transformer Attribution through 12 layers for class 3: what … draws on``."""
        through = f"{self._through_layers(record)} for {record.target}"
        return f"Transformer Attribution {through}: what {query} draws on"

    def _layers(self, record: AttentionRecord) -> tuple[Attention, ...]:
        """The layers, with relevance beside their gradients."""
        layers = super()._layers(record)
        if "relevance:0" not in record.extras:
            raise MethodError(
                f"{self.name} needs the relevance of every layer's attention, and this record has "
                f"none. Capture it with capture_gradients(model, image, target, "
                f"needs={list(self.needs)!r})."
            )
        return tuple(
            _with(layer, record.extras[f"relevance:{self.start_layer + index}"])
            for index, layer in enumerate(layers)
        )

    def _why_not(self, layer: Attention) -> str:
        return why_no_weights(layer)

    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """``r ← r + r W``."""
        return carry(layer, relevance, _relevant)


def _with(layer: Attention, share: Float[Tensor, "lead query value"]) -> Attention:
    """A layer whose gradient and values stand twice as wide: the relevance, and values again."""
    assert isinstance(layer, LayerAttention | DenseAttention)
    g, v = gradient_and_values(layer)
    return replace(layer, g=torch.cat([g, share.to(g)], dim=-1), v=torch.cat([v, v], dim=-1))


def _relevant(tile: Tile) -> Float[Tensor, "window query key"]:
    """``(∂y/∂A ⊙ A ⊙ (s vᵀ) / 2)⁺``, cut off in each head and then averaged."""
    g, v = gradient_and_values(tile.layer)
    (gradient, share), (values, _) = (each.chunk(2, -1) for each in (g[:, tile.part], v))
    turned = values.to(tile.weights.dtype).mT
    raised = gradient.to(turned.dtype) @ turned
    relevance = tile.weights * (share.to(turned.dtype) @ turned) / 2
    return tile.over_heads((raised * relevance).clamp_min_(0))
