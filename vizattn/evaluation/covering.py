"""Judges that cover a part of the picture and look how the answer changes.

    deletion    the most important pixels are covered first: a good map makes the answer fall early
    insertion   they are uncovered first on a blurred picture: a good map makes it rise early

Sources: Petsiuk, Das & Saenko 2018, "RISE", section 3.4 (deletion, insertion); Chefer, Gur & Wolf
2021, "Transformer Interpretability Beyond Attention Visualization", section 4.1 (positive and
negative perturbation); Achtibat et al. 2024, "AttnLRP", section 4.1 (least minus most relevant
first); Bhatt et al. 2020, "Evaluating and Aggregating Feature-based Model Explanations" (fidelity);
Wu et al. 2024, "On the Faithfulness of Vision Transformer Explanations" (SaCo).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.evaluation.answers import Answer, Ask, Made, Told, in_batches
from vizattn.evaluation.scores import correlation, salience_faithfulness

# Standard deviation of RISE's blur in pixels; its kernel is twice as wide and one more.
RISE_BLUR = 5

Shares = Sequence[float]

_GROUPS = 10
_DRAWS = 128
_COVERED = 0.15


@dataclass(frozen=True)
class Curve:
    """An answer against the share of the picture that was covered or uncovered, 0 to 1."""

    shares: tuple[float, ...]
    answers: tuple[float, ...]

    @property
    def area(self) -> float:
        """Area under the curve by trapezoids, over the whole range of its shares."""
        x, y = (torch.tensor(each, dtype=torch.float64) for each in (self.shares, self.answers))
        return float(torch.trapezoid(y, x))


def blurred(
    pixels: Float[Tensor, "3 height width"], spread: int = RISE_BLUR
) -> Float[Tensor, "3 height width"]:
    """The picture without what it shows, its colours kept; ``spread`` in pixels."""
    from torchvision.transforms.functional import gaussian_blur

    soft: Tensor = gaussian_blur(pixels, [2 * spread + 1] * 2, [float(spread)] * 2)
    return soft


def deletion(answer: Answer, pixels: Tensor, order: Tensor, shares: Shares) -> Curve:
    """The answer while the most important pixels become the mean colour, 0 as models take it.

    Args:
        answer: What is asked.
        pixels: The model's input, ``[3, height, width]``.
        order: Pixels by their numbers, the most important first.
        shares: Shares of the pixels that are covered, from 0 to 1; ``even_shares`` gives them.
    """
    return replacing(pixels, torch.zeros_like(pixels), order, answer.share, shares)


def insertion(
    answer: Answer, pixels: Tensor, order: Tensor, shares: Shares, spread: int = RISE_BLUR
) -> Curve:
    """The answer while the most important pixels are uncovered on a blurred picture."""
    return replacing(blurred(pixels, spread), pixels, order, answer.share, shares)


def even_shares(steps: int) -> Shares:
    """Equal steps from 0 to 1."""
    return tuple(step / steps for step in range(steps + 1))


def replacing(
    first: Tensor, second: Tensor, order: Tensor, ask: Ask, shares: Shares, told: Told | None = None
) -> Curve:
    """What ``ask`` says while one picture becomes another, pixel by pixel in an order."""
    counts = (torch.tensor(shares, dtype=torch.float64) * order.numel()).round().long()
    made = _replaced(first, second, order, counts)
    answers = in_batches(made, len(shares), _size(first), ask, told)
    return Curve(tuple(shares), tuple(answers.tolist()))


def _replaced(first: Tensor, second: Tensor, order: Tensor, counts: Tensor) -> Made:
    """Makes pictures whose first ``counts`` pixels in an order come from the second picture."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(order.numel())
    rank = rank.reshape(_size(first))

    def make(part: slice) -> Tensor:
        taken = rank < counts[part, None, None]
        return torch.where(taken.unsqueeze(1), second, first)

    return make


def patch_flipping(
    answer: Answer, pixels: Tensor, order: Tensor, steps: int = 20
) -> tuple[float, float]:
    """How much further the logit falls with the most relevant pixels first, and how far it falls.

    Returns:
        The mean over all steps of (least relevant first − most relevant first), AttnLRP's A^F, and
        of (clean − most relevant first), the AOPC of Samek et al. 2017. Both are in logits.
    """
    counts = (torch.linspace(0, 1, steps + 1)[1:] * order.numel()).round().long()
    nothing = torch.zeros_like(pixels)
    most, least = (
        in_batches(_replaced(pixels, nothing, each, counts), steps, _size(pixels), answer.raw)
        for each in (order, order.flip(0))
    )
    clean = answer.raw(pixels.unsqueeze(0))
    return float((least - most).mean()), float((clean - most).mean())


def fidelity(answer: Answer, pixels: Tensor, importance: Tensor, patches: Tensor) -> float:
    """Correlation of what a map says a set of patches is worth with what covering it costs.

    128 sets of 15 % of the patches, drawn anew for each picture and the same every time.

    Args:
        answer: What is asked, in logits.
        pixels: The model's input.
        importance: Relevance of each patch, ``[patch]``.
        patches: The patch of each pixel, ``[height, width]``.
    """
    count = importance.numel()
    random = torch.Generator().manual_seed(0)
    order = torch.rand(_DRAWS, count, generator=random).argsort(1)
    covered = order < max(1, round(_COVERED * count))
    drop = _drops(pixels, covered, patches, answer.raw)
    return correlation(covered.double() @ importance.double(), drop)


def salience_order(answer: Answer, pixels: Tensor, importance: Tensor, patches: Tensor) -> float:
    """SaCo: patches in ten groups by importance, and each group covered alone."""
    order = importance.argsort(descending=True, stable=True)
    covered = torch.zeros(_GROUPS, importance.numel(), dtype=torch.bool)
    for group, members in enumerate(order.tensor_split(_GROUPS)):
        covered[group, members] = True
    drop = _drops(pixels, covered, patches, answer.share)
    return salience_faithfulness(covered.double() @ importance.double(), drop)


def _drops(pixels: Tensor, covered: Tensor, patches: Tensor, ask: Ask) -> Tensor:
    """How far the answer falls when some patches become the mean colour; ``[set]``."""

    def make(part: slice) -> Tensor:
        return pixels.masked_fill(covered[part][:, patches].unsqueeze(1), 0)

    clean = ask(pixels.unsqueeze(0))
    answers = in_batches(make, len(covered), _size(pixels), ask)
    return clean - answers


def _size(pixels: Tensor) -> tuple[int, int]:
    return pixels.shape[-2], pixels.shape[-1]
