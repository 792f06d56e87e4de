"""Judges: each gives a map a few numbers, for one question.

A judge says which questions it can answer, and what its numbers are called. Numbers that are only
summed up over all questions (``parts``) are told apart by what ``verdicts`` makes of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vizattn.evaluation.covering import (
    RISE_BLUR,
    deletion,
    even_shares,
    fidelity,
    insertion,
    patch_flipping,
    replacing,
    salience_order,
)
from vizattn.evaluation.questions import Question
from vizattn.evaluation.scores import (
    area_under_roc,
    average_precision,
    bootstrap,
    energy,
    interval,
    pointing,
)
from vizattn.heatmap import Heatmap

Found = tuple[float, float, float]
Line = dict[str, Any]

# Steps of Chefer's perturbation: a tenth of the pixels each, to nine tenths.
_TENTHS = 10


class Judge(ABC):
    """What gives a map numbers.

    Attributes:
        name: What results are filed under.
        better: Name of each number, and whether ``more`` or ``less`` of it is better.
        of_smoothed: Whether smoothed maps are judged as well, where they are asked for.
    """

    name: ClassVar[str]
    better: ClassVar[dict[str, str]]
    of_smoothed: ClassVar[bool] = False

    @abstractmethod
    def can(self, question: Question) -> bool:
        """Whether what it needs of a question is known."""

    @abstractmethod
    def judge(self, question: Question, heat: Heatmap) -> Line:
        """Numbers of one map."""

    def verdicts(self, lines: Sequence[Line], groups: Tensor) -> dict[str, Found]:
        """Each number over all questions, and its 95 % interval."""
        return {
            name: interval(torch.tensor([float(line[name]) for line in lines]), groups)
            for name in self.better
        }


class Location(Judge):
    """Whether a map points at the thing asked about, whose box is known."""

    name: ClassVar[str] = "location"
    better: ClassVar[dict[str, str]] = {
        "pointing": "more", "roc": "more", "precision": "more", "energy": "more",
    }  # fmt: skip
    of_smoothed: ClassVar[bool] = True

    def can(self, question: Question) -> bool:
        """Where there is a box."""
        return question.sample.box is not None

    def judge(self, question: Question, heat: Heatmap) -> Line:
        """Pointing, area under ROC, average precision and energy in the box."""
        box = question.sample.box
        assert box is not None
        rows, cols = heat.values.shape
        inside = box.inside(heat.frame, rows, cols)
        return {
            "pointing": pointing(heat.values, inside),
            "roc": area_under_roc(heat.values, inside),
            "precision": average_precision(heat.values, inside),
            "energy": energy(heat.values, box.cover(heat.frame, rows, cols)),
        }


class Covering(Judge):
    """How the answer changes when a part of the picture is covered."""

    name: ClassVar[str] = "covering"
    better: ClassVar[dict[str, str]] = {
        "deletion": "less", "insertion": "more", "flipping": "more", "drop": "more",
        "fidelity": "more", "saco": "more",
    }  # fmt: skip

    def __init__(self, steps: int | None = None, spread: int = RISE_BLUR) -> None:
        self.steps, self.spread = steps, spread

    def can(self, question: Question) -> bool:  # noqa: ARG002  # every model answers something
        """Everywhere."""
        return True

    def judge(self, question: Question, heat: Heatmap) -> Line:
        """Deletion, insertion, least minus most relevant first, AOPC, fidelity and SaCo."""
        answer, pixels, order = question.answer, question.pixels, question.order(heat)
        shares = even_shares(self.steps or question.size[0])
        down = deletion(answer, pixels, order, shares)
        up = insertion(answer, pixels, order, shares, self.spread)
        between, drop = patch_flipping(answer, pixels, order)
        each = heat.values.float().flatten(), question.patches(heat)
        return {
            "deletion": down.area,
            "insertion": up.area,
            "flipping": between,
            "drop": drop,
            "fidelity": fidelity(answer, pixels, *each),
            "saco": salience_order(answer, pixels, *each),
            "deletion curve": [round(value, 4) for value in down.answers],
            "insertion curve": [round(value, 4) for value in up.answers],
        }


class Perturbation(Judge):
    """Accuracy while pixels turn black, the most important first, or the least (Chefer 2021).

    Areas of top-1 accuracy in percent, over shares 0 to 0.9 as the paper's own code has it, and
    over 0 to 1 with no accuracy at 1, as later papers have it.
    """

    name: ClassVar[str] = "perturbation"
    better: ClassVar[dict[str, str]] = {
        "positive": "less", "negative": "more", "positive to 1": "less", "negative to 1": "more",
    }  # fmt: skip

    def can(self, question: Question) -> bool:
        """Where the true class is known and the model has classes."""
        return question.sample.label is not None and question.answer.goal.is_logit

    def judge(self, question: Question, heat: Heatmap) -> Line:
        """The four areas of one picture."""
        order = question.order(heat)
        line = {}
        for name, way in (("positive", order), ("negative", order.flip(0))):
            right = self._right(question, way)
            line[name] = _area(right) * 100
            line[f"{name} to 1"] = line[name] + 100 * right[-1] / _TENTHS / 2
        return line

    def _right(self, question: Question, order: Tensor) -> list[float]:
        """Whether the top class is the true one, with 0 to 9 tenths of the pixels black."""
        label = question.sample.label
        assert label is not None
        black = question.black.expand_as(question.pixels)

        def ask(pictures: Tensor) -> Tensor:
            top = question.answer.vectors(pictures).argmax(1)
            return top.eq(label).float()

        curve = replacing(question.pixels, black, order, ask, even_shares(_TENTHS))
        return list(curve.answers[:_TENTHS])


def _area(values: Sequence[float]) -> float:
    """By trapezoids, points a tenth apart."""
    return (sum(values) - (values[0] + values[-1]) / 2) / _TENTHS


class Segmentation(Judge):
    """Whether a map cuts the thing out, pixel by pixel (ImageNet-Segmentation, Guillaumin 2014).

    Protocol of Chefer, Gur & Wolf 2021: what is above the map's mean is the thing. Accuracy and
    the mean of both intersections over unions are counted over the whole set, precision is averaged
    over pictures.
    """

    name: ClassVar[str] = "segmentation"
    better: ClassVar[dict[str, str]] = {"accuracy": "more", "union": "more", "precision": "more"}

    _PARTS = ("right", "pixels", "thing both", "thing either", "ground both", "ground either")

    def can(self, question: Question) -> bool:
        """Where there is a mask."""
        return question.sample.mask is not None

    def judge(self, question: Question, heat: Heatmap) -> Line:
        """Counts of pixels of the original picture."""
        mask = question.sample.mask
        assert mask is not None
        height, width = mask.shape
        placed = heat.frame.place(heat.values.float(), width, height, smooth=True)
        placed = placed.nan_to_num(float(heat.values.min()))
        found = placed > placed.mean()
        counts = (
            found == mask, mask | ~mask, found & mask, found | mask, ~found & ~mask, ~found | ~mask,
        )  # fmt: skip
        line = {name: int(part.sum()) for name, part in zip(self._PARTS, counts, strict=True)}
        return line | {"precision": average_precision(placed, mask)}

    def verdicts(self, lines: Sequence[Line], groups: Tensor) -> dict[str, Found]:
        """Ratios of sums for the first two."""
        counts = [[float(line[name]) for name in self._PARTS] for line in lines]
        columns = torch.tensor(counts, dtype=torch.float64)  # single ones end at 16 million pixels
        return {
            "accuracy": bootstrap(columns, groups, lambda sums: sums[..., 0] / sums[..., 1]),
            "union": bootstrap(columns, groups, _mean_union),
            "precision": interval(torch.tensor([line["precision"] for line in lines]), groups),
        }


def _mean_union(sums: Tensor) -> Tensor:
    thing, ground = sums[..., 2] / sums[..., 3], sums[..., 4] / sums[..., 5]
    return (thing + ground) / 2
