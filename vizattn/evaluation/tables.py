"""What judges found, as a Markdown table, as JSON and as curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vizattn.evaluation.judges import Found, Judge
from vizattn.evaluation.run import is_baseline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdicts = Mapping[str, Mapping[str, Found]]
"""Method -> number -> mean and 95 % interval."""

_ARROWS = {"more": "↑", "less": "↓"}


def markdown(judge: Judge, verdicts: Verdicts, counts: Mapping[str, int]) -> str:
    """A table of one judge, the best by its first number on top, baselines in italics.

    Args:
        judge: Whose numbers they are.
        verdicts: From ``Judged.verdicts``.
        counts: How many questions each method was judged on.
    """
    first, way = next(iter(judge.better.items()))
    ordered = sorted(verdicts, key=lambda name: verdicts[name][first][0], reverse=way == "more")
    heads = [f"{name} {_ARROWS[way]}" for name, way in judge.better.items()]
    lines = [
        "| method | n | " + " | ".join(heads) + " |",
        "|---|---:|" + "---:|" * len(heads),
    ]
    for method in ordered:
        cells = [_cell(verdicts[method][name]) for name in judge.better]
        shown = f"*{method}*" if is_baseline(method) else method
        lines.append(f"| {shown} | {counts[method]:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(found: Found) -> str:
    mean, low, high = found
    digits = 1 if abs(mean) >= 10 else 3
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def plot_curves(
    curves: Mapping[str, list[float]], title: str, answer: str, most: int = 6
) -> Figure:
    """Mean answers against the share of pixels, the baselines in grey.

    Args:
        curves: Method -> answers at equal steps from 0 to 1.
        title: What is done to the picture.
        answer: What the vertical axis shows.
        most: How many methods are drawn beside the baselines, the ones with the best areas.
    """
    import matplotlib.pyplot as plt

    best = sorted((name for name in curves if not is_baseline(name)),
                  key=lambda name: sum(curves[name]), reverse="uncovered" in title)  # fmt: skip
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for name in (*best[:most], *(name for name in curves if is_baseline(name))):
        values = curves[name]
        shares = [100 * index / (len(values) - 1) for index in range(len(values))]
        (line,) = axes.plot(shares, values, label=name)
        if is_baseline(name):
            line.set(color="0.55", linestyle="--" if "random" in name else ":")
    axes.set(title=title, xlabel="pixels, % of the picture", ylabel=answer, xlim=(0, 100))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def sanity_table(likeness: Mapping[str, Found]) -> str:
    """Rank correlations with the maps of randomised weights, the least alike on top."""
    ordered = sorted(likeness, key=lambda name: abs(likeness[name][0]))
    lines = ["| method | rank correlation with randomised weights |", "|---|---:|"]
    for name in ordered:
        shown = f"*{name}*" if is_baseline(name) else name
        lines.append(f"| {shown} | {_cell(likeness[name])} |")
    return "\n".join(lines) + "\n"
