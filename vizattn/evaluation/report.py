"""Everything that was found about one model, to be written down."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from vizattn import __version__
from vizattn.errors import EvaluationError
from vizattn.evaluation.data import Extent, Trial
from vizattn.evaluation.judges import Found
from vizattn.evaluation.run import Judged, Plan, judge
from vizattn.evaluation.samples import Sample
from vizattn.evaluation.sanity import likeness
from vizattn.evaluation.scores import interval
from vizattn.evaluation.tables import markdown, plot_curves, sanity_table
from vizattn.methods import Method
from vizattn.models import VisionModel

# Judge -> what it does, for the head of its table.
_TITLES = {
    "location": "Does the map point at what was asked about?",
    "covering": "Does the answer change when the map says it should?",
    "perturbation": "Accuracy while pixels turn black",
    "segmentation": "Does the map cut the thing out?",
}


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        model: The model's name.
        trial: What it was judged on.
        extent: How much of it.
        judged: All numbers.
        verdicts: Judge -> method -> number -> mean and 95 % interval.
        likeness: Method -> rank correlation with the map of randomised weights, and its interval.
    """

    model: str
    trial: Trial
    extent: Extent
    judged: Judged
    verdicts: dict[str, dict[str, dict[str, Found]]]
    likeness: dict[str, Found]

    def write(self, folder: Path) -> list[Path]:
        """Write the tables, the numbers and the curves; the paths written."""
        text, numbers = folder / "judge.md", folder / "judge.json"
        text.write_text(self.as_markdown(), encoding="utf-8")
        numbers.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
        return [text, numbers, *self._write_curves(folder)]

    def as_markdown(self) -> str:
        """One table for each judge."""
        parts = [
            f"{self.model}: {self.trial.about}. Means with 95 % intervals, by bootstrap over whole "
            f"pictures; ↑ more is better, ↓ less is. Baselines, which know no model, are in "
            f"italics; ~ marks maps after a 3×3 binomial filter.\n"
        ]
        for each, _ in self.trial.judges:
            found = self.verdicts.get(each.name)
            if found:
                counts = {name: len(lines) for name, lines in self.judged.lines[each.name].items()}
                parts.append(f"### {_TITLES[each.name]}\n\n{markdown(each, found, counts)}")
        if self.likeness:
            parts.append(
                f"### Does the map depend on the weights?\n\n{sanity_table(self.likeness)}"
            )
        refused = [f"* {name}: {why}" for name, why in self.judged.refused.items()]
        if refused:
            parts.append("### Without maps\n\n" + "\n".join(refused) + "\n")
        return "\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "vizattn": __version__,
            "torch": torch.__version__,
            "model": self.model,
            "about": self.trial.about,
            "extent": asdict(self.extent),
            "verdicts": self.verdicts,
            "likeness": self.likeness,
            "refused": self.judged.refused,
        }

    def _write_curves(self, folder: Path) -> list[Path]:
        import matplotlib.pyplot as plt

        written = []
        for name, title in (
            ("deletion", "The most important pixels are covered first"),
            ("insertion", "The most important pixels are uncovered first"),
        ):
            curves = self.judged.curves(name)
            if not curves:
                continue
            figure = plot_curves(curves, title, "answer (probability or cosine)")
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=150)
            plt.close(figure)
        return written


def report_of(
    model: VisionModel,
    trial: Trial,
    recipes: Mapping[str, Method],
    folder: Path,
    *,
    few: int,
    sane: int,
    smooth: bool,
    extent: Extent,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Judge a model and gather what was found.

    Args:
        model: Who is judged.
        trial: On what.
        recipes: Methods by name.
        folder: Where numbers are kept, so that a second call goes on.
        few: Questions for methods that take many passes.
        sane: Questions for the check with randomised weights.
        smooth: Whether maps are judged smoothed as well.
        extent: How much is judged; it belongs to what is kept.
        progress: Called with how many pictures are done.
    """
    about = {"model": model.name, "trial": trial.about, **asdict(extent)}
    plan = Plan(recipes, trial.judges, few, smooth, about)
    first: list[Sample] = []

    def questions() -> Iterator[Sample]:
        for sample in trial.samples:
            if len(first) < sane:
                first.append(sample)
            yield sample
            if progress is not None:
                progress(sample.group + 1)

    judged = judge(model, questions(), plan, folder)
    if not judged.lines:
        raise EvaluationError(
            f"nothing could be asked about {model.name} here ({trial.about}). Does it find what is "
            f"in these pictures, and is a judge given any questions?"
        )
    quick = {name: recipe for name, recipe in recipes.items() if not recipe.is_slow}
    alike = likeness(model, islice(first, sane), quick)
    verdicts = judged.verdicts([each for each, _ in trial.judges])
    return Report(
        model.name, trial, extent, judged, verdicts,
        {name: interval(torch.tensor(values), torch.arange(len(values)))
         for name, values in alike.items()},
    )  # fmt: skip
