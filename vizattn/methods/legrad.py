"""LeGrad: how sensitive a reading of each layer is to the attention of that layer.

    s_l = target read from the mean of all tokens after layer l, by the model's last
          normalisation and head; by its own pooling where it pools by attention
    E_l = mean over heads h and queries i of (∂s_l/∂A_l,h[i, ·])⁺
    map = Σ_l E_l

Attention itself is never multiplied in: where a little more of it would help counts, not where
there is much. Of a pooling head, the derivative is by the head's own attention to the tokens.

Source: Bousselham et al. 2024, "LeGrad: An Explainability Method for Vision Transformers via
Feature Formation Sensitivity", equations 4 to 9. The authors' correction of SigLIP's maps by an
empty text is left out: there is no text here. Values are not stretched to 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.downward import start_layer
from vizattn.methods.query import Asker, placed
from vizattn.methods.tiles import gradient_tiles, why_no_weights
from vizattn.places import Tokens
from vizattn.record import AttentionRecord
from vizattn.windows import put


@dataclass(frozen=True)
class LeGrad(Method):
    """Sum over layers of what attention would do for a reading after each of them."""

    name: ClassVar[str] = "legrad"
    title: ClassVar[str] = "LeGrad"
    about: ClassVar[str] = (
        "The model is read out after each of its layers, and the map says to which patches more "
        "attention would help that reading. It needs one short backward pass for each layer and is "
        "strongest on models that were trained with text, such as CLIP and SigLIP. Early layers "
        "have a say although the model was never trained to be read out there."
    )
    paper: ClassVar[str] = (
        "Bousselham et al. 2024, LeGrad: Explainability via Feature Formation Sensitivity, "
        "eqs. 4 to 9"
    )
    formula: ClassVar[str] = (
        "map = Σ_l E_l,  E_l = mean over heads and queries of (∂s_l/∂A_l)⁺\n"
        "A_l: attention of layer l; s_l: the target read out after layer l; ⁺: negative entries "
        "are 0"
    )
    class_agnostic: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    has_query: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("readouts",)

    start_layer: int = start_layer()

    def asked(self, record: AttentionRecord) -> Attention:
        """The last reading; the target alone decides."""
        return self._readings(record)[-1]

    def shown(self, record: AttentionRecord) -> Tokens:
        """The tokens of the last reading, which all readings share."""
        layer = self.asked(record)
        return placed(layer, layer.keys)

    def __call__(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],  # noqa: ARG002
    ) -> Float[Tensor, " token"]:
        """The sum over layers from ``start_layer`` on."""
        return torch.stack([self._sensitivity(layer) for layer in self._readings(record)]).sum(0)

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """What each layer contributes to the sum."""
        if at is not None:
            raise self.no_query()
        tokens = self.shown(record)
        return [
            LayerMaps(self.start_layer + index, tokens, self._sensitivity(layer).unsqueeze(0))
            for index, layer in enumerate(self._readings(record))
        ]

    def describe(self, record: AttentionRecord, query: str) -> str:  # noqa: ARG002
        """``LeGrad over 12 layers for class 3: where more attention would raise it``."""
        count = len(self._readings(record))
        over = f"{count} layer{'s' * (count > 1)}"
        return f"LeGrad over {over} for {record.target}: where more attention would raise it"

    def _readings(self, record: AttentionRecord) -> tuple[Attention, ...]:
        if not record.readouts:
            raise MethodError(
                f"{self.name} needs the model read out after each layer, and this record has no "
                f"such readings. Capture it with capture_gradients(model, image, target, "
                f"needs=['readouts'])."
            )
        if self.start_layer >= len(record.readouts):
            raise MethodError(
                f"got start_layer {self.start_layer} of a model with {len(record.readouts)} "
                f"layers; at least one layer has to stay."
            )
        readings = record.readouts[self.start_layer :]
        grids = {placed(layer, layer.keys).grid for layer in readings}
        if len(grids) > 1:
            raise MethodError(
                f"{self.name} adds up the maps of layers, and those of {record.model} have "
                f"different grids. GAE passes from one to the other."
            )
        return readings

    def _sensitivity(self, layer: Attention) -> Float[Tensor, " key"]:
        """Positive derivatives by all weights, averaged over heads and queries."""
        why = why_no_weights(layer)
        if why:
            raise MethodError(f"{self.name} is not defined in {layer.name}: {why}.")
        numbers = placed(layer, layer.keys).numbers()
        _, n_queries, n_keys = layer.core_shape
        given = torch.zeros(layer.n_windows, n_keys)
        for _, tile in gradient_tiles(layer):
            by_head = tile.clamp_min_(0).sum(1)
            given += rearrange(by_head, "(w h) k -> w h k", h=layer.n_heads).mean(1)
        total = torch.zeros(1, layer.n_keys)
        put(total, numbers, given.unsqueeze(0))
        return total[0] / (n_queries * layer.n_windows)
