"""The first visit: an example is on show before any model has run.

Its maps were made beforehand (``scripts/build_first_view.py``). When somebody points at a patch,
the example is looked at once, and from then on it is a view like any other.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

from gradio.utils import get_upload_folder

from vizattn.explain import explain
from vizattn.methods import METHODS
from vizattn.models import MODELS, assets
from vizattn.ui.kept import MODEL, SHELF, Kept

FOLDER = "precomputed"
ID = "first"
FIRST: dict[str, Any] = {"model": next(iter(MODELS)), "method": next(iter(METHODS))}

_lock = Lock()
_log = logging.getLogger(__name__)


def first_payload() -> dict[str, Any] | None:
    """What was made beforehand, with the paths of its files; ``None`` where it is not installed."""
    folder = assets() / FOLDER
    try:
        payload: dict[str, Any] = json.loads((folder / "view.json").read_text(encoding="utf-8"))
    except OSError:
        return None
    paths = {part: (folder / name).resolve() for part, name in payload["files"].items()}
    payload["files"] = {part: str(path) for part, path in paths.items()}
    return payload if all(path.is_file() for path in paths.values()) else None


def look_ahead() -> None:
    """Load the model and look at the first example before anybody asks."""
    try:
        revive(ID)
    except Exception:  # nobody waits for it; whoever presses Run gets the reason
        _log.exception("the first example could not be looked at ahead")


def revive(key: str) -> Kept | None:
    """Look at the first example, because somebody asks it; nothing for any other id."""
    payload = first_payload() if key == ID else None
    if payload is None:
        return None
    with _lock:  # many may ask at once: it is looked at once
        if SHELF.get(ID) is None:
            with MODEL:
                explanation = explain(Path(payload["files"]["picture"]), **FIRST)
            folder = Path(get_upload_folder()) / "vizattn" / uuid4().hex
            folder.mkdir(parents=True)
            SHELF.put(Kept(explanation, payload, folder))
    return SHELF.get(ID)
