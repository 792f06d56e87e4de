"""Integrated gradients: the gradient averaged on the way from a picture without content.

    map_p = Σ over pixels x of patch p and their colours:  (x - x') · ∫ ∂y/∂x (x' + α (x - x')) dα

The integral runs from 0 to 1 and is summed in the middles of equal steps. Relevance of all pixels
is y(x) - y(x'), up to the error of these steps (completeness).

Source: Sundararajan, Taly & Yan 2017, "Axiomatic Attribution for Deep Networks", ICML, sections 3
and 5. A picture out of focus as the beginning is Fong & Vedaldi's (2017), "Interpretable
Explanations of Black Boxes by Meaningful Perturbation".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.methods.by_pixels import OnFinestGrid, summed
from vizattn.methods.settings import setting
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class IntegratedGradients(OnFinestGrid):
    """Pixels' difference to a baseline times the mean gradient on the way from there."""

    name: ClassVar[str] = "integrated-gradients"
    title: ClassVar[str] = "Integrated gradients"
    about: ClassVar[str] = (
        "How much of the target each patch brings in while the picture grows out of one without "
        "content; patches can speak for the target or against it, and all together make up the "
        "whole difference. The answer depends on that beginning: from black, dark things count for "
        "nothing. It takes one forward and backward pass for each step."
    )
    paper: ClassVar[str] = (
        "Sundararajan, Taly & Yan 2017, Axiomatic Attribution for Deep Networks, ICML, §3"
    )
    is_slow: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "map_p = Σ (x − x′) · mean over steps of ∂y/∂x at x′ + α (x − x′),  α from 0 to 1\n"
        "x: the pixels of patch p in each colour; x′: those of the baseline; y: the target"
    )
    needs: ClassVar[tuple[str, ...]] = ("integrated:black:20",)

    steps: int = setting(
        20,
        label="Steps",
        help="How many pictures on the way; more of them sum to the whole more exactly.",
        kind="integer",
        minimum=1,
        maximum=200,
        step=1,
    )
    baseline: str = setting(
        "black",
        label="Baseline",
        help="Where the way begins: black, the model's mean colour, or the picture out of focus.",
        kind="choice",
        choices=("black", "mean", "blur"),
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        """The mean gradient from this baseline in so many steps."""
        return (f"integrated:{self.baseline}:{self.steps}",)

    def __call__(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],  # noqa: ARG002
    ) -> Float[Tensor, " token"]:
        """Relevance of every patch for the target; tokens without a place have none."""
        need = self._need(record)
        assert record.pixels is not None
        moved = record.pixels.float() - record.extras[f"{need}:start"].float()
        return summed(record, self.shown(record), (moved * record.extras[need].float()).sum(0))

    def describe(self, record: AttentionRecord, query: str) -> str:  # noqa: ARG002
        """``Integrated gradients from black in 20 steps for class 3: …``."""
        start, end = record.extras[f"{self._need(record)}:ends"].tolist()
        start_of = {"mean": "the mean colour", "blur": "out of focus"}.get(self.baseline, "black")
        way = f"from {start_of} in {self.steps} step{'s' * (self.steps > 1)}"
        return (
            f"Integrated gradients {way} for {record.target}: what raises it from {start:.3g} to "
            f"{end:.3g}, and below zero what lowers it"
        )

    def _need(self, record: AttentionRecord) -> str:
        (need,) = self.wanted
        if need not in record.extras or record.pixels is None:
            raise MethodError(
                f"{self.name} needs the gradient on the way from {self.baseline} in {self.steps} "
                f"steps, and this record does not have it. Capture it with "
                f"capture_gradients(model, image, target, needs=[{need!r}])."
            )
        return need
