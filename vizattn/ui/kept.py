"""What was looked at lately, by id: the record behind a view answers when somebody points at it.

Ids are the only key; they cannot be guessed. The store is bounded in number and in memory, and what
leaves it takes its files along: the browser then says that the view has expired.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from vizattn.explain import Explanation
from vizattn.viewer import View

# One model runs at a time, whoever asks: a run, a first visit or a pane of features.
MODEL = Lock()

MOST_VIEWS = 24
MOST_BYTES = 2**30


@dataclass
class Kept:
    """A view, its payload as the browser got it, and what was written for it since.

    Attributes:
        explanation: What is shown.
        payload: What the browser got.
        folder: Where its files lie.
        rows: Descriptions of the rows files written so far, by layer.
        statistics: Numbers of the heads counted so far, by layer.
        features: Colours and lengths of the output tokens, once asked for.
        lock: Held while something is written.
    """

    explanation: Explanation
    payload: dict[str, Any]
    folder: Path
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    statistics: dict[int, dict[str, Any]] = field(default_factory=dict)
    features: dict[str, Any] | None = None
    lock: Lock = field(default_factory=Lock)

    @property
    def view(self) -> View:
        """The same as the viewer shows it."""
        return View.of(self.explanation)

    @property
    def bytes(self) -> int:
        """Memory of the record."""
        record = self.view.record
        extras = sum(tensor.nbytes for tensor in record.extras.values())
        return extras + sum(layer.bytes for layer in record)


class Shelf:
    """The views of all visitors, the one used longest ago leaving first."""

    def __init__(self, most_views: int = MOST_VIEWS, most_bytes: int = MOST_BYTES) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._most_views, self._most_bytes = most_views, most_bytes
        self._lock = Lock()

    def put(self, kept: Kept) -> None:
        """Keep a view under the id in its payload; others leave when there is no room."""
        with self._lock:
            self._kept[kept.payload["id"]] = kept
            leaving = []
            while len(self._kept) > 1 and not self._fits():
                leaving.append(self._kept.popitem(last=False)[1])
        for old in leaving:
            shutil.rmtree(old.folder, ignore_errors=True)

    def get(self, key: Any, otherwise: Callable[[str], Kept | None] | None = None) -> Kept | None:
        """The view with this id, or what ``otherwise`` makes of the id, or nothing."""
        with self._lock:
            found = self._kept.get(key) if isinstance(key, str) else None
            if found is not None:
                self._kept.move_to_end(key)
        if found is None and otherwise is not None and isinstance(key, str):
            return otherwise(key)
        return found

    def _fits(self) -> bool:
        size = sum(kept.bytes for kept in self._kept.values())
        return len(self._kept) <= self._most_views and size <= self._most_bytes


SHELF = Shelf()
"""The views of this server."""
