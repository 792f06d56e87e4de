"""A run: from what the browser sends to what the viewer shows, or to why not."""

from __future__ import annotations

import filecmp
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import gradio as gr
from gradio.utils import get_upload_folder

from vizattn.errors import ImageError, MethodError, VizattnError
from vizattn.explain import Explanation, explain
from vizattn.models import assets
from vizattn.ui.aim import answers_of, linkable, offer, targets_of, uploaded
from vizattn.ui.ask import keep
from vizattn.ui.kept import MODEL, SHELF
from vizattn.viewer import write_view

Tell = Callable[[float, str], None]
"""Called with a share from 0 to 1 and what is being done."""

EXAMPLES = (
    "chelsea.jpg", "astronaut.jpg", "coffee.jpg", "rocket.jpg", "digits-2678.png",
    "digits-3469.png",
)  # fmt: skip

_log = logging.getLogger(__name__)


def press_run(
    picture: dict[str, Any] | None,
    model: str | None,
    method: str | None,
    chosen: dict[str, Any] | None,
    choice: dict[str, Any] | None,
    _picker: None,
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """One press of Run: say that it runs, then show the view or say why there is none."""
    yield from _run(lambda tell: _look(picture, model, method, chosen or {}, choice, tell))


def open_target(
    picture: dict[str, Any] | None, model: str | None, shown: str | None, _picker: None
) -> dict[str, Any]:
    """What may be asked of a model about a picture, or why it cannot be said."""
    try:
        return {"known": offer(picture, model, shown)}
    except VizattnError as error:
        return {"known": {"error": str(error)}}
    except Exception as error:  # a fault of ours: the visitor keeps the page, we keep the traceback
        _log.exception("what may be asked could not be found out")
        return {"known": {"error": _fault(error)}}


def restore(event: gr.EventData) -> Iterator[tuple[Any, dict[str, Any], Any, Any]]:
    """Show what a link names: a view that is still kept, or an example looked at again.

    The event carries what was in the link, so nothing of it is trusted: ``id``, or ``picture`` (the
    name of an example) with ``model``, ``method``, ``settings`` and ``target``.
    """
    asked = event._data if isinstance(event._data, dict) else {}
    words = {name: asked[name] for name in ("model", "method") if isinstance(asked.get(name), str)}
    fields = words.get("model", gr.skip()), words.get("method", gr.skip())
    for step in _run(lambda tell: _linked(asked, words, tell)):
        yield *step, *fields


def _linked(asked: dict[str, Any], words: dict[str, str], tell: Tell) -> dict[str, Any]:
    kept = SHELF.get(asked.get("id"))
    if kept is not None:
        return kept.payload
    path = next((path for path in examples() if path.name == asked.get("picture")), None)
    if path is None:
        raise ImageError(
            "the picture of this link is no longer on the server. Upload it again and press Run; "
            "links to the examples keep working."
        )
    settings = asked.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    choice = linkable(asked.get("target"))
    names = words.get("model"), words.get("method")
    return _look_at(path, path.name, *names, settings, choice, tell)


def _run(
    work: Callable[[Tell], dict[str, Any]],
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """What to show, and what to say of it, from the first step to the last."""
    run = {"run": uuid4().hex}
    start = time.perf_counter()
    view: Any = gr.skip()
    said: dict[str, Any]
    try:
        for step in _with_steps(work):
            if isinstance(step, str):
                yield gr.skip(), {"kind": "running", "text": step, **run}
            else:
                view = step
        said = {"kind": "done", "seconds": time.perf_counter() - start, "shows": view["id"]}
    except VizattnError as error:
        said = {"kind": "error", "text": str(error)}
    except Exception as error:  # a fault of ours: the visitor keeps the page, we keep the traceback
        _log.exception("a run failed")
        said = {"kind": "error", "text": _fault(error)}
    yield view, said | run


def explain_for_programs(
    image: dict[str, Any] | None,
    model: str | None,
    method: str | None,
    settings: Any,
    target: Any = None,
) -> dict[str, Any]:
    """Look at one picture with one model and one method; returns what the viewer would show.

    Args:
        image: File data of the picture.
        model: A name that ``load_model`` takes.
        method: A name in ``METHODS``.
        settings: Settings of that method by name; those left out keep their defaults.
        target: What a method with gradients explains: ``{"kind": "classes", "classes": [281]}``,
            ``{"kind": "patch", "x": 412, "y": 230}`` or ``{"kind": "text", "text": "a cat"}``.
    """
    try:
        return _look(image, model, method, _given(settings, method or ""), target)
    except VizattnError as error:
        raise gr.Error(str(error), print_exception=False) from error


def _given(form: Any, method: str) -> dict[str, Any]:
    """Settings by name; a program that leaves them out sends the whole form's defaults."""
    if form is not None and not isinstance(form, dict):
        raise MethodError(f"settings are names with values; got {form!r}.")
    if form and isinstance(form.get("values"), dict):
        return dict(form["values"].get(method, {}))
    return form or {}


def _with_steps(
    work: Callable[[Tell], dict[str, Any]],
) -> Iterator[str | dict[str, Any]]:
    """What ``work`` says it is doing, as it says it, and in the end what it returns.

    It works in a thread of its own, so that a step is on the page while it lasts.
    """
    said: SimpleQueue[str | None] = SimpleQueue()

    def tell(share: float, words: str) -> None:
        if share < 1:  # the files of the view are still to be written
            said.put(words)

    with ThreadPoolExecutor(max_workers=1) as pool:
        working = pool.submit(work, tell)
        working.add_done_callback(lambda _: said.put(None))
        while (words := said.get()) is not None:
            yield words
    yield working.result()


def _fault(error: Exception) -> str:
    return (
        f"Something went wrong inside vizattn ({type(error).__name__}). "
        f"The server's log has the details; the view is unchanged."
    )


def _look(
    picture: dict[str, Any] | None,
    model: str | None,
    method: str | None,
    chosen: dict[str, Any],
    choice: Any = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Explain and write the view's files where Gradio may serve them."""
    if not picture or not picture.get("path"):
        raise ImageError("there is no picture yet. Choose an example or upload one.")
    path = uploaded(picture)
    name = picture.get("orig_name") or path.name
    return _look_at(path, name, model, method, chosen, choice, tell)


def _look_at(
    path: Path,
    name: str,
    model: str | None,
    method: str | None,
    chosen: dict[str, Any],
    choice: Any = None,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """One view for every target; the others lie beside the first."""
    views = []
    for target in targets_of(choice):
        with MODEL:
            explanation = explain(
                path, model=model or "", method=method or "", settings=chosen, target=target,
                name=name, progress=tell,
            )  # fmt: skip
        asked = {"model": model, "method": method, "settings": chosen, "target": linkable(choice)}
        lost = choice is not None and choice.get("kind") == "picture"  # a link cannot bring it
        views.append(_shown(explanation, asked | {"picture": None if lost else example_name(path)}))
    whole = views[0] | {"beside": views[1:]}
    kept = SHELF.get(whole["id"])
    if kept is not None:
        kept.payload = whole  # a link to the first brings the others along
    return whole


def examples() -> list[Path]:
    """The example pictures of the project; the one that fills the page best comes first."""
    folder = assets() / "examples"
    return [folder / name for name in EXAMPLES if (folder / name).is_file()]


def example_name(path: Path) -> str | None:
    """The name of the example that this file is a copy of: a link to it works for everybody."""
    same = (each.name for each in examples() if filecmp.cmp(each, path, shallow=False))
    return next(same, None)


def _shown(explanation: Explanation, asked: dict[str, Any]) -> dict[str, Any]:
    """Write the files of a view where Gradio may serve them, and keep it for questions."""
    folder = Path(get_upload_folder()) / "vizattn" / uuid4().hex
    answers = answers_of(explanation.record, explanation.model, asked["target"])
    payload = write_view(explanation, folder) | {"asked": asked, "answers": answers}
    payload["files"] = {part: file_data(Path(file)) for part, file in payload["files"].items()}
    keep(explanation, payload, folder)
    return payload


def file_data(path: Path) -> dict[str, Any]:
    """File data that Gradio moves into its cache and gives a URL."""
    return gr.FileData(path=str(path), orig_name=path.name).model_dump()
