"""A view as the Python lines that make it again."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from vizattn.explain import Explanation
from vizattn.methods import Asker
from vizattn.models import MODELS
from vizattn.preprocess import Preprocess
from vizattn.targets import name_of

# Where names come from that ``load_model`` takes.
_LOADABLE = {name.partition("/")[0] for name in MODELS}


def python_lines(explanation: Explanation, **look: Any) -> str:
    """Python that makes the same map and picture, given the same file of the picture.

    Values are written as literals, so that no name of a file or model can be more than text. The
    lines stop where the model takes the picture in at another size than it did here. A model that
    was wrapped is called ``module`` in them, because only its owner can build it.

    Args:
        explanation: What to make again.
        look: Keywords of ``overlay``, such as ``colours``.
    """
    versions = ", ".join(f"{name} {number}" for name, number in explanation.versions.items())
    settings = _keywords(_changed(explanation))
    at = "" if explanation.at is None else f", at={_plain(explanation.at)!r}"
    keywords = "".join(f", {name}={value!r}" for name, value in look.items())
    size = tuple(explanation.record.input_size)
    return "\n".join(
        [
            f"# Made with {versions}.",
            "import vizattn as va",
            "",
            *_model_lines(explanation),
            f"image = va.open_image({explanation.name!r})",
            _capture_line(explanation),
            f"assert record.input_size == {size!r}, record.input_size",
            f"method = va.METHODS[{explanation.method.name!r}]({settings})",
            f"heat = method.heatmap(record{at})",
            f"picture = va.overlay(image, heat{keywords})",
            "print(heat.sentence)",
            "",
        ]
    )


def _capture_line(explanation: Explanation) -> str:
    needs, target = explanation.method.wanted, explanation.target
    if not needs:
        return "record = va.capture(model, image)"
    words, name = "", name_of(target)
    if target is not None:  # an embedding is its owner's, as a wrapped module is
        words = ", embedding" if name is None else f", {name!r}"
    return f"record = va.capture_gradients(model, image{words}, needs={needs!r})"


def _model_lines(explanation: Explanation) -> list[str]:
    model = explanation.model
    if model.name.partition("/")[0] in _LOADABLE:
        random = any(note.startswith("random weights") for note in model.notes)
        if not random:
            return [f"model = va.load_model({model.name!r})"]
        return [
            "# Weights are drawn anew each time, so the numbers differ.",
            f"model = va.load_model({model.name!r}, weights='random')",
        ]
    transform, says = "transform", " and `transform` what shows it a picture"
    if isinstance(model.transform, Preprocess):
        transform, says = f"va.{model.transform!r}", ""
    kind = type(model.module).__name__
    readout = f", readout={model.readout!r}" if model.readout else ""
    return [
        f"# `module` is your own {kind}{says}.",
        f"model = va.wrap_model(module, {transform}, name={model.name!r}{readout})",
    ]


def _changed(explanation: Explanation) -> dict[str, Any]:
    """Settings that are not what they are when nobody says anything."""
    method = explanation.method
    defaults = {field.name: field.default for field in fields(method)}
    return {
        name: value for name, value in asdict(method).items() if value != defaults.get(name, value)
    }


def _keywords(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _plain(at: Asker) -> Asker:
    """Numbers of numpy print their type; those of Python do not."""
    if isinstance(at, str):
        return at
    x, y = (float(part) for part in at)
    return (int(x) if x == int(x) else x, int(y) if y == int(y) else y)
