"""What is to be explained, as the browser says it: classes, or what an embedding is compared with.

A choice is ``{"kind": "own"}``, ``{"kind": "classes", "classes": [281, 282]}``, ``{"kind":
"patch", "x": 412, "y": 230}``, ``{"kind": "text", "text": "a cat"}`` or ``{"kind": "picture",
"file": file data}``. It comes from a browser or out of a link, so nothing of it is trusted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradio.utils import get_upload_folder

from vizattn.capture import capture
from vizattn.errors import ImageError, TargetError
from vizattn.explain import model_named
from vizattn.images import open_image
from vizattn.models import VisionModel
from vizattn.predictions import predictions_of
from vizattn.record import AttentionRecord
from vizattn.targets import PATCH, PICTURE, TEXT, Target, class_name
from vizattn.ui.kept import MODEL, SHELF

# As many maps as fit side by side, and letters of a text: towers read fewer words than that.
MOST_CLASSES, LONGEST_TEXT = 4, 300


def targets_of(choice: Any) -> list[Target | None]:
    """The targets of a choice, one map each; ``[None]`` for the model's own.

    Raises:
        TargetError: It is no choice.
        ImageError: The other picture was not uploaded here.
    """
    if choice is None or not isinstance(choice, dict):
        choice = {"kind": "own"} if choice is None else {}
    read = _KINDS.get(str(choice.get("kind")))
    if read is None:
        raise TargetError(f"a choice of what to explain has a kind, one of {', '.join(_KINDS)}.")
    return read(choice)


def _classes(choice: dict[str, Any]) -> list[Target | None]:
    asked = choice.get("classes")
    whole = isinstance(asked, list) and all(type(each) is int for each in asked)
    if not whole or not asked:
        raise TargetError(f"classes are asked for by their numbers; got {asked!r}.")
    return list(dict.fromkeys(asked))[:MOST_CLASSES]


def _patch(choice: dict[str, Any]) -> list[Target | None]:
    x, y = choice.get("x"), choice.get("y")
    if not isinstance(x, int | float) or not isinstance(y, int | float):
        raise TargetError("no patch has been chosen yet. Click one in the picture.")
    return [f"{PATCH}:{x:.6g},{y:.6g}"]


def _text(choice: dict[str, Any]) -> list[Target | None]:
    text = str(choice.get("text") or "").strip()[:LONGEST_TEXT]
    if not text:
        raise TargetError("there is no text yet. Write what to look for, such as: a cat.")
    return [f"{TEXT}:{text}"]


def _picture(choice: dict[str, Any]) -> list[Target | None]:
    file = choice.get("file")
    if not isinstance(file, dict) or not file.get("path"):
        raise ImageError("there is no other picture yet. Choose an example or upload one.")
    return [f"{PICTURE}:{uploaded(file)}"]


_KINDS: dict[str, Callable[[dict[str, Any]], list[Target | None]]] = {
    "own": lambda _choice: [None],
    "classes": _classes,
    "patch": _patch,
    "text": _text,
    "picture": _picture,
}


def uploaded(file: dict[str, Any]) -> Path:
    """Where the picture of some file data lies.

    Raises:
        ImageError: Elsewhere than among what was uploaded here.
    """
    path = Path(str(file["path"])).resolve()
    if not path.is_relative_to(Path(get_upload_folder()).resolve()):
        raise ImageError("this picture was not uploaded to this page. Upload it and run again.")
    return path


def linkable(choice: Any) -> dict[str, Any] | None:
    """The choice as a link may carry it: another picture is on this server alone."""
    if not isinstance(choice, dict) or choice.get("kind") in (None, "own", "picture"):
        return None
    return {key: choice[key] for key in ("kind", "classes", "x", "y", "text") if key in choice}


def answers_of(record: AttentionRecord, model: VisionModel, choice: Any = None) -> dict[str, Any]:
    """What a model answers: how many classes, the first ones, and whether it takes a text.

    The names of chosen classes go along, because a link knows their numbers alone.
    """
    top = predictions_of(record, model)
    count = 0 if not top or record.output is None else len(record.output)
    chosen = (choice or {}).get("classes", ()) if count else ()
    return {
        "classes": count,
        "chosen": [[each, class_name(each, model.labels, count)] for each in chosen],
        "top": [[each.index, each.name, each.probability] for each in top],
        "text": model.text is not None,
    }


def offer(picture: dict[str, Any] | None, model: str | None, shown: str | None) -> dict[str, Any]:
    """All that one may ask a model about a picture, the names of its classes included.

    Args:
        picture: File data of the picture.
        model: A name that ``load_model`` takes.
        shown: The id of a view of the same picture and model, where there is one; saves a pass.
    """
    kept = SHELF.get(shown)
    if kept is not None and kept.payload.get("asked", {}).get("model") == model:
        vision, record = kept.explanation.model, kept.explanation.record
    else:
        if not picture or not picture.get("path"):
            raise ImageError("there is no picture yet. Choose an example or upload one.")
        image = open_image(uploaded(picture))
        with MODEL:
            vision = model_named(model or "")
            record = capture(vision, image)
    answers = answers_of(record, vision)
    named = len(vision.labels) == answers["classes"]
    return answers | {"labels": list(vision.labels) if named else []}
