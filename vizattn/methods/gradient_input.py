"""Gradient × input: how far the target would move if the picture were turned up a little.

    map_p = Σ over pixels x of patch p and their colours:  x · ∂y/∂x

Source: Shrikumar et al. 2016, "Not Just a Black Box: Learning Important Features Through
Propagating Activation Differences", section 3. Pixels are as the model sees them, after its mean
was taken off, so 0 is a colour and not black.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vizattn.methods.by_pixels import ByPixels, where


@dataclass(frozen=True)
class GradientInput(ByPixels):
    """Pixels times the plain gradient, summed over each patch."""

    name: ClassVar[str] = "gradient-input"
    title: ClassVar[str] = "Gradient × input"
    about: ClassVar[str] = (
        "Each pixel times how much the target changes with it, summed over the patch; patches can "
        "speak for the target or against it. It looks at the model as a whole and not at its "
        "attention alone, but a plain gradient is noisy in deep models: normalisation and softmax "
        "let large parts of it cancel. The simplest baseline, and the weakest."
    )
    paper: ClassVar[str] = "Shrikumar et al. 2016, Not Just a Black Box, §3"
    formula: ClassVar[str] = (
        "map_p = Σ x · ∂y/∂x\n"
        "x: the pixels of patch p in each colour, as the model sees them; y: the target"
    )
    needs: ClassVar[tuple[str, ...]] = ("plain",)
    says: ClassVar[str] = "Gradient × input"

    of: str = where()
