"""AttnLRP: relevance propagation that also goes through the attention weights.

    map_p = Σ over pixels x of patch p and their colours:  x · ∂ŷ/∂x

∂ŷ is the gradient with the deviations of LayerNorm held fixed, GELU taken as a line through zero,
and each of the two products of attention shared half and half between its factors
(``propagation``). The softmax keeps its own derivative, so relevance is not conserved exactly.

Source: Achtibat et al. 2024, "AttnLRP: Attention-Aware Layer-Wise Relevance Propagation for
Transformers", ICML, section 3. Written from the paper. The authors' own implementation (LXT) states
that the method is patented and free for personal and scientific use alone; whoever wants to use it
otherwise should ask them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vizattn.methods.by_pixels import ByPixels, where


@dataclass(frozen=True)
class AttnLRP(ByPixels):
    """Relevance of pixels, attention weights included."""

    name: ClassVar[str] = "attn-lrp"
    title: ClassVar[str] = "Relevance propagation (AttnLRP)"
    about: ClassVar[str] = (
        "As CP-LRP, but relevance also goes through the attention weights: queries and keys get a "
        "quarter each and values a half. It says in part why the attention went where it did. "
        "Written from the paper, without the γ rule. The authors state that the method is patented "
        "and free for personal and scientific use alone."
    )
    paper: ClassVar[str] = (
        "Achtibat et al. 2024, AttnLRP: Attention-Aware Layer-Wise Relevance Propagation, ICML, §3"
    )
    formula: ClassVar[str] = (
        "map_p = Σ x · ∂ŷ/∂x\n"
        "x: the pixels of patch p in each colour; ∂ŷ: the gradient of the target with LayerNorm's "
        "deviation held fixed, GELU(z) = z · Φ(z) with Φ held fixed, and both products of "
        "attention shared half and half"
    )
    needs: ClassVar[tuple[str, ...]] = ("attn",)
    says: ClassVar[str] = "Relevance propagation through attention"

    of: str = where()
