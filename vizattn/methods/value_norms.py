"""Attention weighted by what it carries: the length of what each token adds to another.

    map_j = ‖ Σ_h A_h[i, j] f_h(x_j) ‖          f_h(x_j) = v_h[j] W_O,h

A large weight on a token whose values are short moves little. The norm is taken after the sum over
heads, because heads can cancel each other; the output bias belongs to no token and is left out.

Source: Kobayashi et al. 2020, "Attention is Not Only a Weight: Analyzing Transformers with Vector
Norms", EMNLP, equations 3 to 5. A learnt scale behind the output layer (LayerScale) is counted in.
As rollout: the rows are made to sum to 1 and mixed with the residual connection as in Abnar &
Zuidema 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention, DenseAttention
from vizattn.methods.downward import Downward, start_layer
from vizattn.methods.one_layer import OneLayer, layer_setting
from vizattn.methods.settings import setting
from vizattn.methods.tiles import Tile, carry, rows_to_one
from vizattn.record import AttentionRecord

_PAPER = "Kobayashi et al. 2020, Attention is Not Only a Weight, EMNLP, eqs. 3 to 5"


@dataclass(frozen=True)
class ValueNorms(OneLayer):
    """How far each token moves the query in one layer, all heads together."""

    name: ClassVar[str] = "value-norms"
    title: ClassVar[str] = "Attention × value norms"
    about: ClassVar[str] = (
        "How much each patch really adds to the query in one layer: attention times values times "
        "the output layer, as a length. Patches that get attention but have little to say, as some "
        "background patches do, fade. It does not show what came in through earlier layers, nor "
        "why a class was chosen."
    )
    paper: ClassVar[str] = _PAPER
    formula: ClassVar[str] = (
        "map_j = ‖ Σ_h A_h[i, j] v_h[j] W_O,h ‖\n"
        "A_h: attention of head h; v_h[j]: value of token j; W_O,h: the head's part of the output "
        "layer; i: the query"
    )
    is_share: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("added",)

    layer: int | None = layer_setting()

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Layer 12, attention × value norms: what moves the class token``."""
        return f"Layer {self.index(record) + 1}, attention × value norms: what moves {query}"

    def of_layer(self, layer: Attention, query: Float[Tensor, " query"]) -> Float[Tensor, " key"]:
        """Lengths, mixed as the query weighs its tokens."""
        _refuse(layer, self.name)
        return carry(layer, query.unsqueeze(0), lengths)[0][0]


@dataclass(frozen=True)
class ValueNormRollout(Downward):
    """Roll out attention that is weighted by what it carries."""

    name: ClassVar[str] = "value-norm-rollout"
    title: ClassVar[str] = "Rollout × value norms"
    about: ClassVar[str] = (
        "Attention rollout in which a weight counts as much as what it carries is long. Tokens "
        "that get attention but say little no longer draw relevance. As rollout, it is the same "
        "whatever class is asked about."
    )
    paper: ClassVar[str] = f"{_PAPER}; as rollout of Abnar & Zuidema 2020"
    formula: ClassVar[str] = (
        "r ← (1 - s) r N_l + s r,  N_l = rows of ‖ Σ_h A_h[i, j] v_h[j] W_O,h ‖, each divided by "
        "its sum\nA_h: attention of head h in layer l; v_h[j] W_O,h: what token j adds through it; "
        "s: residual share"
    )
    needs: ClassVar[tuple[str, ...]] = ("added",)

    residual: float = setting(
        0.5,
        label="Residual share",
        help="Share of each token that passes a layer unchanged.",
        kind="number",
        minimum=0.0,
        maximum=1.0,
        step=0.05,
    )
    start_layer: int = start_layer()

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Rollout × value norms through 12 layers: what the class token draws on``."""
        return f"Rollout × value norms {self._through_layers(record)}: what {query} draws on"

    def _why_not(self, layer: Attention) -> str:
        return _why_not(layer)

    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """``r ← (1 - residual) r N + residual r``."""
        given, kept = carry(layer, relevance, lambda tile: rows_to_one(lengths(tile)))
        share = 0.0 if layer.kind in ("pool", "cross") else self.residual
        return (1 - share) * given, share * kept


def lengths(tile: Tile) -> Float[Tensor, "window query key"]:
    """``‖ Σ_h A_h f_h ‖`` for each query and key."""
    assert tile.layer.gives is not None
    weights = rearrange(tile.weights, "(w h) q k -> w k q h", h=tile.layer.n_heads)
    gives = rearrange(tile.layer.gives, "(w h) k c -> w k h c", h=tile.layer.n_heads)
    norms: Tensor = torch.linalg.vector_norm(weights @ gives.to(weights.dtype), dim=-1)
    return norms.mT


def _why_not(layer: Attention) -> str:
    if isinstance(layer, DenseAttention) and not layer.is_exact:
        return "its heads are mixed or gated after the softmax"
    if layer.gives is None:
        return (
            "the record does not know what its keys add to the tokens; it is captured with "
            "capture_gradients(model, image, needs=['added'])"
        )
    return ""


def _refuse(layer: Attention, name: str) -> None:
    why = _why_not(layer)
    if why:
        raise MethodError(f"{name} is not defined in {layer.name}: {why}. Raw attention is.")
