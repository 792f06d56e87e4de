"""Attention Grad-CAM: the heads of one layer, each as far as the target gains from it.

    α_h = mean over patches j of ∂y/∂A_h[q, j]
    map = (mean over heads of α_h A_h[q, ·])⁺

Source: the baseline "GradCAM" of Chefer, Gur & Wolf 2021, "Transformer Interpretability Beyond
Attention Visualization", CVPR, section 4, after Selvaraju et al. 2017, "Grad-CAM", equations 1
and 2, with attention maps in place of feature maps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.one_layer import OneLayer, layer_setting
from vizattn.methods.query import placed
from vizattn.methods.tiles import gradient_and_values, why_no_weights
from vizattn.record import AttentionRecord
from vizattn.windows import put


@dataclass(frozen=True)
class AttentionGradCAM(OneLayer):
    """Attention of one layer with heads weighed by their mean gradient."""

    name: ClassVar[str] = "attention-gradcam"
    title: ClassVar[str] = "Attention Grad-CAM"
    about: ClassVar[str] = (
        "Attention of one layer, each head weighed by how much the target gains from its attention "
        "to patches on average. Quick, and coarse: one number for a whole head, and nothing of the "
        "layers before. It is empty where all heads together speak against the target."
    )
    paper: ClassVar[str] = (
        "Chefer, Gur & Wolf 2021, Transformer Interpretability Beyond Attention Visualization, "
        "CVPR, §4; after Selvaraju et al. 2017, Grad-CAM, eqs. 1 and 2"
    )
    formula: ClassVar[str] = (
        "map = (mean over heads of α_h A_h[q, ·])⁺,  α_h = mean over patches j of ∂y/∂A_h[q, j]\n"
        "A_h[q, ·]: what the query q attends to in head h; y: the target; ⁺: negative entries are 0"
    )
    class_agnostic: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("attention",)

    layer: int | None = layer_setting()

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Layer 12, attention Grad-CAM for class 3: what the class token attends to``."""
        layer = f"Layer {self.index(record) + 1}"
        return f"{layer}, attention Grad-CAM for {record.target}: what {query} attends to"

    def of_layer(self, layer: Attention, query: Float[Tensor, " query"]) -> Float[Tensor, " key"]:
        """Heads averaged, each times its mean gradient in the rows that the query weighs."""
        why = why_no_weights(layer)
        if layer.n_windows > 1:
            why = "it attends in windows, where the query has no one row over all patches"
        if why:
            raise MethodError(
                f"{self.name} is not defined in {layer.name}: {why}. GAE and raw attention may be."
            )
        keys = placed(layer, layer.keys)
        gradient = _row(layer, query)
        strength = gradient[:, keys.grid.prefix :].mean(-1, keepdim=True)
        return (strength * layer.attend(query)).mean(0).clamp_min(0)


def _row(layer: Attention, query: Float[Tensor, " query"]) -> Float[Tensor, "head key"]:
    """Derivative of the target by the row that a query reads, mixed as it mixes its rows."""
    g, v = gradient_and_values(layer)
    asking = placed(layer, layer.queries).numbers()[0]
    share = query[asking.clamp_min(0)] * (asking >= 0)
    row = (share.to(g.dtype) @ g).unsqueeze(1) @ v.to(g.dtype).mT  # [head, 1, key]
    total = torch.zeros(layer.n_heads, layer.n_keys, dtype=row.dtype)
    put(total, placed(layer, layer.keys).numbers(), row)
    return total.to(query.dtype)
