"""Attention shift: what a reading would gain if the token that is read looked elsewhere.

    s_l  = target read after layer l from the tokens that the model reads at the end
    r_h  = ∂s_l/∂A_l,h[q, ·]                 of the query q that is read, in head h
    e_l  = Σ_h (r_h − A_l,h[q, ·] · r_h)     what moving attention to j gains, at the cost of all
    map  = Σ_l e_l / σ_l^balance             σ_l: spread of e_l over the patches

A row of attention sums to 1, so more of it for one token is less for the others: what counts is r
against its mean under the attention that there is, and that is 0 for a token no better than what is
read now. Signs are kept through heads and layers, so that what speaks against a patch in one layer
can outweigh what speaks for it in another. Only the row of the query is needed, ``g_q vᵀ``, so no
matrix of weights is made; of a model that averages its patches, all of their rows are summed.

This is a method of this project. It stands on LeGrad (Bousselham et al. 2024), whose readings after
each layer it takes over; what is new is the row of the query instead of the mean of all rows, the
mean under attention as zero, signs kept to the end, and the balance of layers. ``docs/methods.md``
measures each of these by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.attention import tile_length
from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.by_readings import ByReadings
from vizattn.methods.downward import start_layer
from vizattn.methods.query import placed
from vizattn.methods.settings import setting
from vizattn.methods.tiles import gradient_and_values
from vizattn.windows import put


@dataclass(frozen=True)
class AttentionShift(ByReadings):
    """Sum over layers of what attention moved to each token would gain."""

    name: ClassVar[str] = "attention-shift"
    title: ClassVar[str] = "Attention shift"
    about: ClassVar[str] = (
        "The model is read out after each of its layers, and the map says what the target would "
        "gain if the token that is read looked at a patch instead of where it looks now. Zero is "
        "no better than now; below zero is worse. Early layers have a say although the model was "
        "never trained to be read out there."
    )
    paper: ClassVar[str] = "This project, on the readings of LeGrad (Bousselham et al. 2024)"
    formula: ClassVar[str] = (
        "map = Σ_l e_l / σ_l^balance,  e_l = Σ_h (r_h − A_h · r_h),  r_h = ∂s_l/∂A_h\n"
        "A_h: attention of the read token in head h of layer l; s_l: the target read out after "
        "layer l; σ_l: spread of e_l over the patches"
    )
    is_signed: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("readouts:own",)
    says: ClassVar[str] = "Attention shift"

    start_layer: int = start_layer()
    balance: float = setting(
        0.5,
        label="Balance of layers",
        help="0 adds layers up as they are, 1 gives each the same spread.",
        kind="number",
        minimum=0,
        maximum=1,
        step=0.05,
    )

    def _of_layer(self, layer: Attention) -> Float[Tensor, " key"]:
        """The gain of attention that moves to each token, balanced."""
        if layer.n_windows > 1:
            raise MethodError(
                f"{self.name} is not defined in {layer.name}: what is read looks at a window there "
                f"and not at the whole picture. GAE passes through windows."
            )
        gain = self._gain(layer)
        patches = gain[placed(layer, layer.keys).grid.prefix :]
        return gain / patches.std(correction=0).clamp_min(1e-30) ** self.balance

    def _gain(self, layer: Attention) -> Float[Tensor, " key"]:
        """``Σ_h (r_h − A_h · r_h)``; rows of tokens that are not read have no derivative."""
        g, v = (each.float() for each in gradient_and_values(layer))
        raised = torch.einsum("hqd,hkd->hk", g.sum(1, keepdim=True), v)
        gain = (raised - _now(layer, g, v).unsqueeze(1)).sum(0)
        total = torch.zeros(1, layer.n_keys)
        put(total, placed(layer, layer.keys).numbers(), gain.reshape(1, 1, -1))
        return total[0]


def _now(
    layer: Attention, g: Float[Tensor, "head query value"], v: Float[Tensor, "head key value"]
) -> Float[Tensor, " head"]:
    """``A · r``: what the tokens that are read gain from where they look now."""
    asking = placed(layer, layer.queries).numbers()[0]
    asked = placed(layer, layer.keys).numbers()[0]
    now = torch.zeros(len(g))
    read = (g.any(-1).any(0) & (asking >= 0)).nonzero().flatten()
    for some in torch.split(read, tile_length(*v.shape[:2])):
        weights = layer.rows(asking[some])[:, :, asked.clamp_min(0)] * (asked >= 0)
        now += (weights * (g[:, some] @ v.mT)).sum((1, 2))
    return now
