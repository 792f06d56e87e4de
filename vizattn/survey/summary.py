"""From the footers of all parts to mean and spread over a data set, as one JSON file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from vizattn import __version__
from vizattn.errors import SurveyError
from vizattn.files import written_whole
from vizattn.many.prepare import Failed
from vizattn.models import VisionModel
from vizattn.survey.moments import Moments
from vizattn.survey.notes import together
from vizattn.survey.numbers import NUMBERS
from vizattn.survey.parts import LIKENESS, Part, read_parts

NAME = "survey.json"

_ABOUT = dict(NUMBERS) | {
    LIKENESS: "cosine of the rows of each two heads of a layer, [layer][head][head]"
}

_VERSIONS = ("torch", "timm", "numpy", "pyarrow")


@dataclass(frozen=True)
class Summary:
    """A survey of many pictures.

    Attributes:
        model: What the model is called, for people.
        n_pictures: How many pictures it is of.
        input_sizes: Height and width of the model's input, and for how many pictures.
        layers: What there is to know of each layer, first layer first.
        moments: Of every number, ``[layer, head]``, and of likeness, ``[layer, head, head]``.
        asked: What was asked of each picture.
    """

    model: str
    n_pictures: int
    input_sizes: Mapping[str, int]
    layers: tuple[dict[str, Any], ...]
    moments: Mapping[str, Moments]
    asked: Mapping[str, Any]

    def plain(self, failed: Sequence[Failed] = ()) -> dict[str, Any]:
        """As JSON values; ``None`` where there is no number."""
        return {
            "model": self.model,
            "pictures": self.n_pictures,
            "input_sizes": dict(sorted(self.input_sizes.items())),
            "asked": dict(self.asked),
            "versions": {"vizattn": __version__} | {name: version(name) for name in _VERSIONS},
            "failed": {each.source.name: each.sentence for each in failed},
            "layers": [self._layer(index) for index in range(len(self.layers))],
            "numbers": {name: self._number(name) for name in self.moments},
        }

    def _layer(self, index: int) -> dict[str, Any]:
        return {"layer": index + 1, **self.layers[index]}

    def _number(self, name: str) -> dict[str, Any]:
        moments = self.moments[name]
        mean = np.where(moments.count > 0, moments.mean, np.nan)
        heads = [layer["n_heads"] for layer in self.layers]
        arrays = {"mean": mean, "deviation": moments.deviation, "count": moments.count}
        return {"about": _ABOUT.get(name, f"the same on {name.rpartition('_')[2]} tokens")} | {
            key: [_nested(row, n) for row, n in zip(array, heads, strict=True)]
            for key, array in arrays.items()
        }


def summarise(folder: Path, model: VisionModel, failed: Sequence[Failed] = ()) -> Summary | None:
    """Merge all parts of a folder and write ``survey.json``; ``None`` where there are none.

    Args:
        folder: Where the parts are.
        model: Whose survey it is.
        failed: Pictures that are missing, for the file.

    Raises:
        SurveyError: A picture is in two parts, or parts are of different layers.
    """
    found: Summary | None = None
    pictures: set[str] = set()
    for part in read_parts(folder):
        _check_once(part, pictures)
        found = _with(found, part, model.label or model.name)
    if found is not None:
        with written_whole(folder / NAME) as unfinished:
            unfinished.write_text(_text(found.plain(failed)), encoding="utf-8")
    return found


def _with(so_far: Summary | None, part: Part, model: str) -> Summary:
    if so_far is None:
        n_pictures = len(part.pictures)
        sizes = Counter(part.input_sizes)
        return Summary(model, n_pictures, sizes, part.layers, part.moments, part.asked)
    names = [[layer["name"] for layer in each.layers] for each in (so_far, part)]
    if names[0] != names[1] or so_far.moments.keys() != part.moments.keys():
        raise SurveyError(f"{part.path} has other layers than the parts before it. Move it away.")
    return Summary(
        model,
        so_far.n_pictures + len(part.pictures),
        Counter(so_far.input_sizes) + Counter(part.input_sizes),
        together([so_far.layers, part.layers]),
        {name: each + part.moments[name] for name, each in so_far.moments.items()},
        part.asked,
    )


def _check_once(part: Part, pictures: set[str]) -> None:
    names = {name for name, *_ in part.pictures}
    twice = sorted(names & pictures)
    if twice:
        raise SurveyError(
            f"{twice[0]} is in {part.path} and in another part, too. Were two surveys written to "
            f"this folder at once? Move one of the parts away, and the same command goes on."
        )
    pictures |= names


def _nested(values: np.ndarray, length: int) -> list[Any]:
    """Lists of the first so many along every axis, ``None`` for NaN; nine digits of each number."""
    if values.ndim > 1:
        return [_nested(row, length) for row in values[:length]]
    if values.dtype.kind == "i":
        return list(values[:length].tolist())
    return [None if np.isnan(x) else float(f"{x:.9g}") for x in values[:length].tolist()]


def _text(plain: Mapping[str, Any]) -> str:
    """JSON with a line for each layer and each kind of number, for people and for ``diff``."""
    lines = []
    for name, value in plain.items():
        nested = isinstance(value, dict) and any(isinstance(each, dict) for each in value.values())
        text = _object(value) if nested else _json(value)
        if isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(_json, value)) + "\n]"
        lines.append(f"{_json(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _object(value: Mapping[str, Mapping[str, Any]]) -> str:
    each = (f"  {_json(name)}: {_json(inner)}" for name, inner in value.items())
    return "{\n" + ",\n".join(each) + "\n}"


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
