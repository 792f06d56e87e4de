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

from vizattn.layers import Attention
from vizattn.methods.by_readings import ByReadings
from vizattn.methods.downward import start_layer
from vizattn.methods.query import placed
from vizattn.methods.tiles import gradient_tiles
from vizattn.windows import put


@dataclass(frozen=True)
class LeGrad(ByReadings):
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
    needs: ClassVar[tuple[str, ...]] = ("readouts",)
    says: ClassVar[str] = "LeGrad"

    start_layer: int = start_layer()

    def _of_layer(self, layer: Attention) -> Float[Tensor, " key"]:
        """Positive derivatives by all weights, averaged over heads and queries."""
        numbers = placed(layer, layer.keys).numbers()
        _, n_queries, n_keys = layer.core_shape
        given = torch.zeros(layer.n_windows, n_keys)
        for _, tile in gradient_tiles(layer):
            by_head = tile.clamp_min_(0).sum(1)
            given += rearrange(by_head, "(w h) k -> w h k", h=layer.n_heads).mean(1)
        total = torch.zeros(1, layer.n_keys)
        put(total, numbers, given.unsqueeze(0))
        return total[0] / (n_queries * layer.n_windows)
