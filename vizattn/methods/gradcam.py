"""Grad-CAM on the tokens that the last attention reads.

    α_k   = mean over patches p of ∂y/∂F[p, k]
    map_p = (Σ_k α_k F[p, k])⁺

F are the tokens that the last attention call makes its keys and values of: what the first
normalisation of the last block put out. What the last block itself puts out would not do: where a
class token is read out, the target depends on no patch there.

Source: Selvaraju et al. 2017, "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based
Localization", ICCV, equations 1 and 2, with tokens in place of a convolution's cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.query import Asker, placed
from vizattn.places import Tokens
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class GradCAM(Method):
    """Tokens before the last attention, each number weighed by its mean gradient."""

    name: ClassVar[str] = "gradcam"
    title: ClassVar[str] = "Grad-CAM"
    about: ClassVar[str] = (
        "The tokens that the last attention reads, each of their numbers weighed by how much the "
        "target gains from it on average over all patches. It shows where features lie that the "
        "class is made of, in one quick pass; what speaks against it is cut off. Tokens of deep "
        "layers also tell of their surroundings, so a patch need not hold what its token speaks of."
    )
    paper: ClassVar[str] = "Selvaraju et al. 2017, Grad-CAM, ICCV, eqs. 1 and 2"
    formula: ClassVar[str] = (
        "map_p = (Σ_k α_k F[p, k])⁺,  α_k = mean over patches p of ∂y/∂F[p, k]\n"
        "F[p, k]: number k of patch p's token, as the last attention reads it; y: the target; "
        "⁺: negative entries are 0"
    )
    class_agnostic: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    has_query: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("features",)

    def asked(self, record: AttentionRecord) -> Attention:
        """The last layer; the target alone decides."""
        return record[-1]

    def shown(self, record: AttentionRecord) -> Tokens:
        """What the last layer reads."""
        layer = self.asked(record)
        tokens = placed(layer, layer.keys)
        return Tokens(tokens.grid, tokens.frame)

    def __call__(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],  # noqa: ARG002
    ) -> Float[Tensor, " token"]:
        """Relevance of every token; those without a place have no part in the means."""
        if "features" not in record.extras:
            raise MethodError(
                f"{self.name} needs the tokens before the last attention, and this record has "
                f"none. Capture it with capture_gradients(model, image, target, "
                f"needs=['features'])."
            )
        features, gradient = record.extras["features"].float()
        prefix = self.shown(record).grid.prefix
        weighed: Tensor = features @ gradient[prefix:].mean(0)
        return weighed.clamp_min(0)

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The one map that there is, as of the last layer."""
        if at is not None:
            raise self.no_query()
        relevance = self(record, torch.zeros(0))
        return [LayerMaps(len(record) - 1, self.shown(record), relevance.unsqueeze(0))]

    def describe(self, record: AttentionRecord, query: str) -> str:  # noqa: ARG002
        """``Grad-CAM before layer 12 for class 3: where what raises it lies``."""
        return f"Grad-CAM before layer {len(record)} for {record.target}: where what raises it lies"
