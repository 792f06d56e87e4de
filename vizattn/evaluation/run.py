"""Judge the maps of many methods on many questions; it goes on where it was stopped.

Every number of every map is a line of JSON in the output folder, written when it is known. A
question whose lines are all there is not asked again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vizattn.evaluation.baselines import BASELINES
from vizattn.evaluation.judges import Found, Judge, Line
from vizattn.evaluation.maps import SMOOTH, maps_of
from vizattn.evaluation.questions import Question
from vizattn.evaluation.samples import Sample
from vizattn.methods import Method
from vizattn.models import VisionModel

NAME = "judged.jsonl"


@dataclass(frozen=True)
class Plan:
    """What is judged.

    Attributes:
        recipes: Methods by name.
        judges: Each with how many of the first questions it gets; ``None`` for all.
        few: Questions for methods that need many passes.
        smooth: Whether maps are judged smoothed as well.
        about: What decides the numbers beside the methods, as plain values.
    """

    recipes: Mapping[str, Method]
    judges: Sequence[tuple[Judge, int | None]]
    few: int = 24
    smooth: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A word that changes when anything does that decides the numbers."""
        said = {"recipes": {name: repr(each) for name, each in self.recipes.items()},
                "smooth": self.smooth, **self.about}  # fmt: skip
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[
            :16
        ]


@dataclass(frozen=True)
class Judged:
    """All numbers of a run.

    Attributes:
        lines: Judge -> method -> one line per question, in their order.
        refused: Method -> why it has no map.
    """

    lines: dict[str, dict[str, list[Line]]]
    refused: dict[str, str]

    def verdicts(self, judges: Iterable[Judge]) -> dict[str, dict[str, dict[str, Found]]]:
        """Judge -> method -> number -> mean and 95 % interval."""
        return {
            judge.name: {
                method: judge.verdicts(lines, torch.tensor([line["group"] for line in lines]))
                for method, lines in self.lines[judge.name].items()
            }
            for judge in judges
            if judge.name in self.lines
        }

    def curves(self, name: str) -> dict[str, list[float]]:
        """Method -> mean of its curves of this name over all questions."""
        found = {}
        for method, lines in self.lines.get("covering", {}).items():
            stacked = torch.tensor([line[f"{name} curve"] for line in lines])
            found[method] = stacked.mean(0).tolist()
        return found


def judge(
    model: VisionModel,
    samples: Iterable[Sample],
    plan: Plan,
    folder: Path,
) -> Judged:
    """Judge maps of all methods of a plan, or go on with it.

    Args:
        model: Who is asked.
        samples: What about; the same ones each time.
        plan: What is judged.
        folder: Where lines are kept; made when it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    known = _known(path, plan.key)
    judged = Judged({}, {})
    with path.open("a", encoding="utf-8") as file:
        for number, sample in enumerate(samples):
            line = known.get(sample.name)
            if line is None:
                line = {"plan": plan.key, "sample": sample.name}
                line |= _judge_one(model, sample, plan, number)
                file.write(json.dumps(line) + "\n")
                file.flush()
            _add(judged, sample, line)
    return judged


def _judge_one(model: VisionModel, sample: Sample, plan: Plan, number: int) -> dict[str, Any]:
    recipes = {
        name: recipe
        for name, recipe in plan.recipes.items()
        if number < plan.few or not recipe.is_slow
    }
    maps = maps_of(model, sample, recipes, smooth=plan.smooth)
    question = Question(model, sample, maps.grid)
    lines: dict[str, dict[str, Line]] = {}
    for each, count in plan.judges:
        if (count is None or number < count) and each.can(question):
            lines[each.name] = {
                name: each.judge(question, heat)
                for name, heat in maps.heats.items()
                if each.of_smoothed or not name.endswith(SMOOTH)
            }
    return {"lines": lines, "refused": dict(maps.refused)}


def _add(judged: Judged, sample: Sample, line: dict[str, Any]) -> None:
    judged.refused.update(line["refused"])
    for name, by_method in line["lines"].items():
        kept = judged.lines.setdefault(name, {})
        for method, numbers in by_method.items():
            kept.setdefault(method, []).append(numbers | {"group": sample.group})


def _known(path: Path, key: str) -> dict[str, dict[str, Any]]:
    """Lines of this plan that are whole; the last one may have been cut short."""
    found: dict[str, dict[str, Any]] = {}
    if not path.is_file():
        return found
    text = path.read_text(encoding="utf-8", errors="replace")
    if text and not text.endswith("\n"):
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
    for each in text.splitlines():
        try:
            line = json.loads(each)
        except json.JSONDecodeError:
            continue
        if line.get("plan") == key:
            found[line["sample"]] = line
    return found


def is_baseline(name: str) -> bool:
    """Whether a map of this name knows nothing of the model."""
    return name.removesuffix(SMOOTH) in BASELINES
