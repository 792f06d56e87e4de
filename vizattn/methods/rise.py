"""RISE: what the model says of the picture with parts of it covered at random.

    map_p = mean over pixels of patch p:  1/(½ N) Σ_i f(x ⊙ M_i) M_i

M_i are soft random masks that show half of the picture on average, N of them; f is the probability
of the class, or for a model without classes the cosine between embeddings. Covered parts take the
model's mean colour, as in the authors' code.

Source: Petsiuk, Das & Saenko 2018, "RISE: Randomized Input Sampling for Explanation of Black-box
Models", BMVC, equation 6. The authors take 4,000 to 8,000 masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.masks import KEPT, random_masks
from vizattn.methods.by_pixels import OnFinestGrid, summed
from vizattn.methods.settings import setting
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class RISE(OnFinestGrid):
    """The mean answer over random masks, by what they leave to be seen."""

    name: ClassVar[str] = "rise"
    title: ClassVar[str] = "RISE"
    about: ClassVar[str] = (
        "Parts of the picture are covered at random, many times over, and the map says how sure of "
        "the class the model is on average while a patch is to be seen. It looks at answers alone "
        "and at nothing inside the model, so it can check what other maps claim. It is coarse and "
        "slow: each mask is a pass of the model, and hundreds of them can take minutes. What "
        "counts are differences, for all values are positive."
    )
    paper: ClassVar[str] = (
        "Petsiuk, Das & Saenko 2018, RISE: Randomized Input Sampling for Explanation of Black-box "
        "Models, BMVC, eq. 6"
    )
    is_slow: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "map_p = mean over pixels of p: 1/(½ N) Σ_i f(x ⊙ M_i) M_i\n"
        "x: the picture; M_i: the i-th of N random masks, which show half of it; f: the class's "
        "probability, or the cosine to the embedding of a model without classes"
    )
    is_signed: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("masks:500:7",)

    masks: int = setting(
        500,
        label="Masks",
        help="How many random masks, each a pass of the model; more make a calmer map.",
        kind="integer",
        minimum=1,
        maximum=8000,
        step=100,
    )
    cells: int = setting(
        7,
        label="Cells",
        help="Cells of a mask along each side; the paper takes 7.",
        kind="integer",
        minimum=1,
        maximum=64,
        step=1,
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        """What the model says of so many masks of so many cells."""
        return (f"masks:{self.masks}:{self.cells}",)

    def __call__(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],  # noqa: ARG002
    ) -> Float[Tensor, " token"]:
        """The mean answer while each patch is to be seen; tokens without a place have none."""
        (need,) = self.wanted
        if need not in record.extras:
            raise MethodError(
                f"{self.name} needs what the model says of {self.masks} masks of {self.cells} "
                f"cells, and this record does not have it. Capture it with "
                f"capture_gradients(model, image, target, needs=[{need!r}])."
            )
        answers, start = record.extras[need].float(), 0
        seen = torch.zeros(record.input_size)
        for masks in random_masks(self.masks, self.cells, *record.input_size):
            seen += torch.einsum("m,mhw->hw", answers[start : start + len(masks)], masks)
            start += len(masks)
        tokens, by_pixel = self.shown(record), seen / (KEPT * self.masks)
        n_pixels = summed(record, tokens, torch.ones_like(seen)).clamp_min(1)
        return summed(record, tokens, by_pixel) / n_pixels

    def describe(self, record: AttentionRecord, query: str) -> str:  # noqa: ARG002
        """``RISE with 500 masks for class 3: how sure of it the model is while …``."""
        says = "how sure of it the model is while each patch is to be seen"
        return f"RISE with {self.masks} mask{'s' * (self.masks > 1)} for {record.target}: {says}"
