"""LibraGrad: tokens times a balanced gradient, summed over all layers.

    map_p = Σ over layers l:  x_l[p] · ∂ỹ/∂x_l[p]        x_l: the tokens that enter layer l

∂ỹ is the gradient with attention weights and the deviations of LayerNorm held fixed, GELU taken as
a line through zero, and a product of two branches shared half and half: the paper's "Libra"
operations, which are the rules of CP-LRP (``cp`` in ``propagation``). AttnLRP's differ in attention
alone: there queries and keys get a quarter each and values a half. What is new here is the sum over
layers. In each layer, all tokens and all biases above it sum to the target.

Source: Mehri, Baghshah & Pilehvar 2025, "LibraGrad: Balancing Gradient Flow for Universally Better
Vision Transformer Attributions", CVPR, sections 2.1 (FullGrad+) and 3.5. The maps of the biases,
which FullGrad+ adds, are left out. ``start_layer`` leaves the first layers out, as in Mehri et al.
2024, "SkipPLUS".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.downward import start_layer
from vizattn.methods.query import Asker, placed
from vizattn.places import Tokens
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class LibraGrad(Method):
    """Relevance of the tokens that enter each layer, summed over layers."""

    name: ClassVar[str] = "libragrad"
    title: ClassVar[str] = "LibraGrad"
    about: ClassVar[str] = (
        "How much of the target the tokens carry in each layer, passed down with attention weights "
        "and normalisation held fixed, and summed over all layers; patches can speak for the "
        "target or against it. The rules are those of CP-LRP, the sum over layers is not: later "
        "layers, whose tokens have gathered from around them, have a say. Biases keep their share."
    )
    paper: ClassVar[str] = (
        "Mehri, Baghshah & Pilehvar 2025, LibraGrad: Balancing Gradient Flow, CVPR, §2.1 and §3.5; "
        "FullGrad+ without the maps of biases"
    )
    formula: ClassVar[str] = (
        "map_p = Σ_l x_l[p] · ∂ỹ/∂x_l[p]\n"
        "x_l[p]: the token of patch p that enters layer l; ∂ỹ: the gradient of the target with "
        "attention weights and LayerNorm's deviation held fixed and GELU(z) = z · Φ(z), Φ held "
        "fixed"
    )
    class_agnostic: ClassVar[bool] = False
    is_signed: ClassVar[bool] = True
    is_share: ClassVar[bool] = False
    has_query: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("cp:layers",)

    start_layer: int = start_layer()

    def asked(self, record: AttentionRecord) -> Attention:
        """The last layer that can be laid over the picture; the target alone decides."""
        _ = record.grid  # says why there is none
        return record.drawable[-1]

    def shown(self, record: AttentionRecord) -> Tokens:
        """The tokens that all layers share."""
        layer = record.drawable[0]
        tokens = placed(layer, layer.queries)
        return Tokens(tokens.grid, tokens.frame)

    def __call__(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],  # noqa: ARG002
    ) -> Float[Tensor, " token"]:
        """Relevance of every token, summed over layers from ``start_layer`` on."""
        return self._layers(record).sum(0)

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The sum up to each layer; the last one is the map."""
        if at is not None:
            raise self.no_query()
        tokens = self.shown(record)
        return [
            LayerMaps(self.start_layer + index, tokens, relevance.unsqueeze(0))
            for index, relevance in enumerate(self._layers(record).cumsum(0))
        ]

    def describe(self, record: AttentionRecord, query: str) -> str:  # noqa: ARG002
        """``LibraGrad over 12 layers for class 3: what raises it, …``."""
        count = len(self._layers(record))
        over = f"{count} layer{'s' * (count > 1)}"
        says = "what raises it, and below zero what lowers it"
        return f"LibraGrad over {over} for {record.target}: {says}"

    def _layers(self, record: AttentionRecord) -> Float[Tensor, "layer token"]:
        (need,) = self.needs
        if need not in record.extras:
            raise MethodError(
                f"{self.name} needs the relevance of the tokens that enter each layer, and this "
                f"record has none. Capture it with capture_gradients(model, image, target, "
                f"needs=[{need!r}])."
            )
        layers = record.extras[need]
        if self.start_layer >= len(layers):
            raise MethodError(
                f"got start_layer {self.start_layer} of a model with {len(layers)} layers; "
                f"at least one layer has to stay."
            )
        return layers[self.start_layer :]
