"""CP-LRP: relevance is passed down so that little of it is lost or made up.

    map_p = Σ over pixels x of patch p and their colours:  x · ∂ỹ/∂x

∂ỹ is the gradient with attention weights and the deviations of LayerNorm held fixed, and GELU taken
as a line through zero (``propagation``). Without biases and learnt tokens the map would then sum to
the target exactly; with them, they keep what falls to them.

Source: Ali et al. 2022, "XAI for Transformers: Better Explanations through Conservative
Propagation", ICML, section 3. The rules of LibraGrad's input × gradient (Mehri et al. 2025) are the
same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vizattn.methods.by_pixels import ByPixels, where


@dataclass(frozen=True)
class CPLRP(ByPixels):
    """Relevance of pixels with attention weights held fixed."""

    name: ClassVar[str] = "cp-lrp"
    title: ClassVar[str] = "Relevance propagation (CP-LRP)"
    about: ClassVar[str] = (
        "How much of the target each patch brought about, passed down through values, MLPs and "
        "residual connections with attention weights held fixed; patches can speak for the target "
        "or against it. It does not say why the attention went where it did. Written from the "
        "paper, without the γ rule; biases and learnt tokens keep their share."
    )
    paper: ClassVar[str] = (
        "Ali et al. 2022, XAI for Transformers: Better Explanations through Conservative "
        "Propagation, ICML, §3"
    )
    formula: ClassVar[str] = (
        "map_p = Σ x · ∂ỹ/∂x\n"
        "x: the pixels of patch p in each colour; ∂ỹ: the gradient of the target with attention "
        "weights and LayerNorm's deviation held fixed and GELU(z) = z · Φ(z), Φ held fixed"
    )
    needs: ClassVar[tuple[str, ...]] = ("cp",)
    says: ClassVar[str] = "Relevance propagation"

    of: str = where()
