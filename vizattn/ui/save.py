"""Files of a view: the page asks, the library writes, as it does for everybody else."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import Any

from vizattn.explain import Explanation
from vizattn.export import FORMATS, save_explanation
from vizattn.html import html_of
from vizattn.methods import Asker, settings
from vizattn.overlay import COLOUR_MAPS
from vizattn.ui.ask import Answer, answered, inside, layer_of
from vizattn.ui.kept import Kept
from vizattn.viewer import View

# A film takes seconds of all cores: one file is made at a time, whoever asks.
_one_at_a_time = Lock()


@answered
def save(kept: Kept, asked: Answer) -> Answer:
    """Write the view on show in one format and say where the file lies.

    ``asked``: ``id``, ``format``, ``layer`` (in the model, from 0), ``head`` (from 0, or nothing),
    ``x`` and ``y`` of a pinned patch or ``ask`` (one of ``ASKERS``), ``colours``, ``opacity`` in
    [0, 1] and ``smooth``.
    """
    with _one_at_a_time:
        shown = as_shown(kept, asked)
        if asked.get("format") == "html":
            path = kept.folder / "view.html"
            path.write_text(html_of(View.of(shown), _asked_layers(kept, asked)), encoding="utf-8")
        else:
            names = [str(asked.get("format"))]
            (path,) = save_explanation(shown, kept.folder, formats=names, **_look(asked))
    return {"path": str(path), "name": path.name}


ASKERS = ("class", "register", "mean")
"""Tokens that the page lets one ask beside patches."""

FORMAT_NAMES = (*FORMATS, "html")
"""Formats that the page offers."""


def as_shown(kept: Kept, asked: Answer) -> Explanation:
    """The explanation with the layer, the head and the patch that are on show."""
    explanation = kept.explanation
    at: Asker | None = explanation.at
    if asked.get("x") is not None:
        at = inside(kept.view, asked)
    elif asked.get("ask") in ASKERS:
        at = str(asked["ask"])
    method = replace(explanation.method, **_indices(kept, asked))
    heatmap = method.heatmap(explanation.record, at=at)
    return replace(explanation, method=method, at=at, heatmap=heatmap)


def _indices(kept: Kept, asked: Answer) -> dict[str, int | None]:
    """The method's own fields for what the viewer has chosen, where it has such fields."""
    head, layer = asked.get("head"), layer_of(kept, asked)
    heads = kept.explanation.record[layer].n_heads
    chosen = {
        "layer": layer,
        "head": head if isinstance(head, int) and 0 <= head < heads else None,
    }
    known = {each.name for each in settings(type(kept.explanation.method)) if each.kind == "index"}
    return {name: value for name, value in chosen.items() if name in known}


def _asked_layers(kept: Kept, asked: Answer) -> list[int] | None:
    """In a file of its own the layer on show can be asked, whatever else fits."""
    return [layer_of(kept, asked)] if asked.get("only") else None


def _look(asked: Answer) -> dict[str, Any]:
    colours, opacity = asked.get("colours"), asked.get("opacity")
    return {
        "colours": colours if colours in COLOUR_MAPS else COLOUR_MAPS[0],
        "opacity": min(1.0, max(0.0, float(opacity))) if isinstance(opacity, int | float) else 0.85,
        "smooth": asked.get("smooth") is True,
    }
