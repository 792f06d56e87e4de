"""How well a map tells one region from the rest, as numbers.

A map has one value per patch. A region is given twice: ``inside``, whether the middle of a patch
lies in it, and ``cover``, the share of a patch that does. Ties count half wherever an order is
asked for, so that a flat map is no better than chance.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Values = Float[Tensor, "row col"]

# Weights of a row or column of the smoothing, one, two and one parts.
_BINOMIAL = (0.25, 0.5, 0.25)


def pointing(values: Values, inside: Bool[Tensor, "row col"]) -> float:
    """Whether the patch with the largest value lies inside: 1 or 0, a share where several tie.

    Zhang et al. 2018, "Top-Down Neural Attention by Excitation Backprop", section 4.1, with the
    middle of the patch and without their tolerance of 15 pixels.
    """
    largest = values == values.max()
    return float(inside[largest].double().mean())


def energy(values: Values, cover: Float[Tensor, "row col"]) -> float:
    """Share of what is positive that lies inside; 0 where nothing is positive.

    Wang et al. 2020, "Score-CAM", section 4.3. Squaring a map raises it and an offset lowers it,
    though neither changes what the map says: never read it alone.
    """
    positive = values.double().clamp_min(0)
    total = positive.sum()
    return float((positive * cover).sum() / total) if total > 0 else 0.0


def area_under_roc(values: Values, inside: Bool[Tensor, "row col"]) -> float:
    """How often a patch inside has a larger value than one outside; 0.5 is chance.

    The statistic of Mann and Whitney 1947 over the number of pairs.
    """
    ranks = middle_ranks(values.flatten())
    chosen = inside.flatten()
    n_inside = int(chosen.sum())
    n_outside = chosen.numel() - n_inside
    least = n_inside * (n_inside + 1) / 2
    return float((ranks[chosen].sum() - least) / (n_inside * n_outside))


def average_precision(values: Values, inside: Bool[Tensor, "row col"]) -> float:
    """Precision averaged over recall, patches taken from the largest value down.

    Patches with one value are taken together, as scikit-learn does.
    """
    flat, chosen = values.flatten(), inside.flatten().double()
    _, group = torch.unique(-flat, sorted=True, return_inverse=True)
    n_groups = int(group.max()) + 1
    taken = torch.bincount(group, minlength=n_groups).cumsum(0)
    hits = torch.zeros(n_groups, dtype=torch.float64).index_add_(0, group, chosen)
    precision = hits.cumsum(0) / taken
    return float((precision * hits).sum() / hits.sum())


def middle_ranks(values: Float[Tensor, " value"]) -> Float[Tensor, " value"]:
    """Ranks from 1, the smallest first; equal values share the middle of theirs."""
    _, group, counts = torch.unique(values, sorted=True, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: Tensor = (last - (counts - 1) / 2)[group]
    return ranks


def smoothed(values: Values) -> Values:
    """A map after a 3×3 binomial filter on its signed values, the border held.

    Neighbouring patches share what they show; on small objects this lifts every method alike, so
    tables show maps with and without it.
    """
    padded = torch.nn.functional.pad(values[None, None].double(), (1, 1, 1, 1), mode="replicate")
    line = torch.tensor(_BINOMIAL, dtype=torch.float64)
    filtered = torch.nn.functional.conv2d(padded, torch.outer(line, line)[None, None])
    return filtered[0, 0].to(values.dtype)


def salience_faithfulness(
    salience: Float[Tensor, " group"], drop: Float[Tensor, " group"]
) -> float:
    """SaCo: whether groups of patches that say more also matter more, from -1 to 1.

    Wu et al. 2024, "On the Faithfulness of Vision Transformer Explanations", algorithm 1.

    Args:
        salience: Sum of the map over each group, groups in falling order.
        drop: How much the score falls when that group alone is covered.
    """
    gap = salience[:, None] - salience[None, :]
    agrees = drop[:, None] >= drop[None, :]
    upper = torch.ones_like(gap, dtype=torch.bool).triu(1)
    weights = torch.where(agrees, gap, -gap)[upper].double()
    total = weights.abs().sum()
    return float(weights.sum() / total) if total > 0 else 0.0


def correlation(first: Float[Tensor, " draw"], second: Float[Tensor, " draw"]) -> float:
    """Pearson's correlation; 0 where either does not vary."""
    one, two = (each.double() - each.double().mean() for each in (first, second))
    length = one.norm() * two.norm()
    return float((one @ two) / length) if length > 0 else 0.0


def interval(
    values: Float[Tensor, " sample"], groups: Int[Tensor, " sample"]
) -> tuple[float, float, float]:
    """Mean and its 95 % interval; see ``bootstrap``."""
    columns = torch.stack((values.double(), torch.ones(len(values), dtype=torch.float64)), 1)
    return bootstrap(columns, groups, lambda sums: sums[..., 0] / sums[..., 1])


def bootstrap(
    columns: Float[Tensor, "sample column"],
    groups: Int[Tensor, " sample"],
    statistic: Callable[[Tensor], Tensor],
    draws: int = 2_000,
) -> tuple[float, float, float]:
    """A statistic of sums and its 95 % interval, by bootstrap (Efron and Tibshirani 1993).

    Questions about one picture are not independent, so whole pictures are drawn and not questions.

    Args:
        columns: What is summed up.
        groups: The picture of each sample, any numbers.
        statistic: From sums ``[..., column]`` to ``[...]``.
        draws: How often pictures are drawn anew; the draws are the same every time.

    Returns:
        The statistic of all samples, and the 2.5th and 97.5th percentile of those drawn.
    """
    _, group = torch.unique(groups, return_inverse=True)
    n_groups = int(group.max()) + 1
    sums = torch.zeros(n_groups, columns.shape[1], dtype=torch.float64)
    sums.index_add_(0, group, columns.double())
    drawn = torch.randint(n_groups, (draws, n_groups), generator=torch.Generator().manual_seed(0))
    # a hundred draws at a time: all of them together would take memory with the square of pictures
    found = torch.cat([statistic(sums[some].sum(1)) for some in torch.split(drawn, 100)])
    low, high = torch.quantile(found, found.new_tensor([0.025, 0.975])).tolist()
    return float(statistic(sums.sum(0))), low, high
