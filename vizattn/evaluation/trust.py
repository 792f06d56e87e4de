"""How far one map can be trusted: covering and uncovering the picture in its order, beside chance.

If the map is right about what the model goes by, covering its strongest pixels first makes the
answer fall sooner than covering pixels at random, and uncovering them first makes it rise sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vizattn.evaluation.answers import Answer
from vizattn.evaluation.baselines import random_map
from vizattn.evaluation.covering import Curve, blurred, replacing
from vizattn.evaluation.questions import Question
from vizattn.evaluation.samples import Sample
from vizattn.explain import Explanation
from vizattn.heatmap import Heatmap

# Shares of the pixels, closer together where curves are steep: squares of even steps.
_STEPS = 12
_SHARES = tuple((step / _STEPS) ** 2 for step in range(_STEPS + 1))

# Of a large picture every pass takes long, so there are fewer.
_FEW_STEPS = 8
_LARGE = 384 * 384

# Areas that differ by less say nothing: what is left of chance after one picture.
_MARGIN = 0.03


@dataclass(frozen=True)
class Trust:
    """Curves of one map and of a random one, the answer from 0 to 1 against the share of pixels.

    Attributes:
        target: What was asked about, for a sentence.
        answer: What the answer is: ``probability`` or ``cosine``.
        deletion: While the strongest pixels are covered.
        insertion: While they are uncovered on a blurred picture.
        random_deletion: The same in a random order of patches; ``random_insertion`` likewise.
    """

    target: str
    answer: str
    deletion: Curve
    insertion: Curve
    random_deletion: Curve
    random_insertion: Curve

    @property
    def verdict(self) -> str:
        """``better``, ``chance`` or ``worse``: both gains over random added up."""
        falls = self.random_deletion.area - self.deletion.area
        rises = self.insertion.area - self.random_insertion.area
        gain = falls + rises
        if abs(gain) < _MARGIN:
            return "chance"
        return "better" if gain > 0 else "worse"


def trust(
    explanation: Explanation, heat: Heatmap, told: Callable[[int, int], None] | None = None
) -> Trust:
    """Judge one map of an explanation.

    Args:
        explanation: What is explained, with its model and picture.
        heat: The map; that on show may be another one than the explanation's own.
        told: Called with how many passes are done, of how many; what it raises stops the work.

    Raises:
        TargetError: The model gives nothing that could be watched.
    """
    sample = Sample(explanation.name, 0, explanation.image, explanation.target)
    question = Question(explanation.model, sample, explanation.record.grid)
    pixels, answer = question.pixels, question.answer
    shares = _SHARES
    if pixels.shape[-2:].numel() > _LARGE:
        shares = tuple((step / _FEW_STEPS) ** 2 for step in range(_FEW_STEPS + 1))
    noise = Heatmap(
        random_map(heat.grid.rows, heat.grid.cols, 0), heat.grid, heat.frame, heat.prefix_mass
    )
    orders = [question.order(each) for each in (heat, noise)]
    ways = [(pixels, torch.zeros_like(pixels)), (blurred(pixels), pixels)]
    curves = _curves(answer, ways, orders, shares, told)
    words = "probability" if answer.goal.is_logit else "cosine"
    return Trust(answer.goal.words, words, curves[0], curves[2], curves[1], curves[3])


def _curves(
    answer: Answer,
    ways: list[tuple[Tensor, Tensor]],
    orders: list[Tensor],
    shares: tuple[float, ...],
    told: Callable[[int, int], None] | None,
) -> list[Curve]:
    """Each way in each order; its ends are the same in every order, and are asked about once."""
    inner = shares[1:-1]
    total = (len(inner) * len(orders) + 2) * len(ways)
    curves, done = [], 0

    def tell(passes: int, _of: int) -> None:
        if told is not None:
            told(done + passes, total)

    for first, second in ways:
        ends = answer.share(torch.stack([first, second])).tolist()
        done += 2
        for order in orders:
            middle = replacing(first, second, order, answer.share, inner, tell).answers
            done += len(inner)
            curves.append(Curve(shares, (ends[0], *middle, ends[1])))
    return curves
