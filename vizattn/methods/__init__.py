"""Methods: from a record and a query to a relevance per token. One paper, one file."""

from __future__ import annotations

from vizattn.errors import UnknownName
from vizattn.methods.attention_gradcam import AttentionGradCAM
from vizattn.methods.attention_shift import AttentionShift
from vizattn.methods.attn_lrp import AttnLRP
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.beyond_intuition import BeyondIntuition
from vizattn.methods.flow import AttentionFlow
from vizattn.methods.gae import GAE
from vizattn.methods.gradcam import GradCAM
from vizattn.methods.gradient_input import GradientInput
from vizattn.methods.gradient_rollout import GradientRollout
from vizattn.methods.head_statistics import HeadStatisticMaps
from vizattn.methods.integrated import IntegratedGradients
from vizattn.methods.legrad import LeGrad
from vizattn.methods.libragrad import LibraGrad
from vizattn.methods.lrp import CPLRP
from vizattn.methods.query import Asker, Pixel, Query, percent
from vizattn.methods.raw import RawAttention
from vizattn.methods.rise import RISE
from vizattn.methods.rollout import Rollout
from vizattn.methods.settings import Setting, parse_settings, settings
from vizattn.methods.transformer_attribution import TransformerAttribution
from vizattn.methods.value_norms import ValueNormRollout, ValueNorms

# Name -> recipe, in the order in which they are offered.
METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        RawAttention,
        Rollout,
        AttentionFlow,
        HeadStatisticMaps,
        ValueNorms,
        ValueNormRollout,
        GAE,
        GradientRollout,
        TransformerAttribution,
        BeyondIntuition,
        LeGrad,
        AttentionShift,
        AttentionGradCAM,
        GradCAM,
        CPLRP,
        AttnLRP,
        LibraGrad,
        IntegratedGradients,
        RISE,
        GradientInput,
    )
}


def find_method(name: str) -> type[Method]:
    """The method of this name.

    Raises:
        UnknownName: There is none; the nearest name is offered.
    """
    if name not in METHODS:
        raise UnknownName("method", name, METHODS)
    return METHODS[name]


__all__ = [
    "CPLRP",
    "GAE",
    "METHODS",
    "RISE",
    "Asker",
    "AttentionFlow",
    "AttentionGradCAM",
    "AttentionShift",
    "AttnLRP",
    "BeyondIntuition",
    "GradCAM",
    "GradientInput",
    "GradientRollout",
    "HeadStatisticMaps",
    "IntegratedGradients",
    "LayerMaps",
    "LeGrad",
    "LibraGrad",
    "Method",
    "Pixel",
    "Query",
    "RawAttention",
    "Rollout",
    "Setting",
    "TransformerAttribution",
    "ValueNormRollout",
    "ValueNorms",
    "find_method",
    "parse_settings",
    "percent",
    "settings",
]
