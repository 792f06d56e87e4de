"""What the viewer asks while somebody looks: rows of a layer, and maps from a patch.

These calls carry an id and small numbers, nothing else. They are not queued, so each is short; what
cannot be answered is answered with a word that the viewer has a sentence for.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vizattn.errors import VizattnError
from vizattn.explain import Explanation
from vizattn.rows import rows_size, write_rows
from vizattn.statistics import layer_statistics
from vizattn.ui.first import revive
from vizattn.ui.kept import SHELF, Kept
from vizattn.viewer import View, pack_maps

Answer = dict[str, Any]

EXPIRED: Answer = {"word": "expired"}

_log = logging.getLogger(__name__)


def answered(act: Callable[[Kept, Answer], Answer]) -> Callable[[Any], Answer]:
    """A call by id: an unknown id has expired, and errors become sentences.

    Gradio's own answer to an exception reaches the browser as nothing at all.
    """

    def call(asked: Any) -> Answer:
        try:
            kept = SHELF.get(asked.get("id"), revive) if isinstance(asked, dict) else None
            return EXPIRED if kept is None else act(kept, asked)
        except VizattnError as error:
            return {"text": str(error)}
        except Exception:  # a fault of ours: the visitor keeps the page, we keep the traceback
            _log.exception("a question could not be answered")
            return {"word": "fault"}

    call.__name__, call.__doc__ = act.__name__, act.__doc__  # not wraps(): Gradio reads arguments
    return call


@answered
def rows(kept: Kept, asked: Answer) -> Answer:
    """Where the rows file of a layer lies; it is written when it is first asked for.

    ``asked``: ``id`` and ``layer``, its number in the model from 0.
    """
    number = layer_of(kept, asked)
    layer = kept.view.record[number]
    if rows_size(layer) is None:
        return {"word": "tooLarge"}
    with kept.lock:
        if number not in kept.rows:
            path = kept.folder / f"rows_{number}.bin"
            kept.rows[number] = write_rows(layer, path) | {"path": str(path)}
    return {"rows": kept.rows[number]}


@answered
def count(kept: Kept, asked: Answer) -> Answer:
    """Numbers of every head of a layer over all its rows; the wall labels its tiles with them.

    ``asked``: ``id`` and ``layer``, its number in the model from 0.
    """
    number = layer_of(kept, asked)
    with kept.lock:
        if number not in kept.statistics:
            record = kept.view.record
            kept.statistics[number] = layer_statistics(record, record[number]).plain()
    return {"statistics": kept.statistics[number]}


@answered
def ask(kept: Kept, asked: Answer) -> Answer:
    """The maps of all layers from the patch under a pixel.

    ``asked``: ``id``, ``x`` and ``y`` in pixels of the original picture; what lies outside of what
    the model saw is moved to its edge.
    """
    layers, maps = pack_maps(kept.view, inside(kept.view, asked))
    return {"layers": layers, "maps": base64.b64encode(maps).decode()}


def layer_of(kept: Kept, asked: Answer) -> int:
    """The layer asked for, or the nearest that is shown."""
    layers: list[int] = [layer["layer"] for layer in kept.payload["layers"]]
    return min(layers, key=lambda layer: abs(layer - _whole(asked.get("layer"))))


def inside(view: View, asked: Answer) -> tuple[float, float]:
    """The pixel asked for, or the nearest that the model saw."""
    frame = view.record.frame
    inset = 1e-3  # of a pixel: the edge itself belongs to no patch
    x = min(max(_number(asked.get("x")), frame.left + inset), frame.left + frame.width - inset)
    y = min(max(_number(asked.get("y")), frame.top + inset), frame.top + frame.height - inset)
    return x, y


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value == value else 0.0


def _whole(value: Any) -> int:
    return int(max(-1e6, min(1e6, _number(value))))


def keep(explanation: Explanation, payload: Answer, folder: Path) -> None:
    """Keep what is shown, so that it can be asked."""
    SHELF.put(Kept(explanation, payload, folder))
