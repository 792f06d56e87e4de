"""The page: a bar that asks, and a viewer that shows.

Python runs only when somebody presses Run. Everything that merely changes the view happens in the
browser (``vizattn/ui/canvas``). The page holds no maths and no method by name: methods, their
titles and their settings come from the registry.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import Image

from vizattn.methods import METHODS, Setting, settings
from vizattn.models import MODELS
from vizattn.ui import canvas
from vizattn.ui.first import first_payload, look_ahead
from vizattn.ui.program import strings, styles
from vizattn.ui.run import (
    examples,
    explain_for_programs,
    file_data,
    open_target,
    press_run,
    restore,
)
from vizattn.ui.theme import theme

# One model runs at a time, whoever asks: the machine is shared.
QUEUE: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
DAY = 24 * 60 * 60

# What the browser sends: the picked picture in the place of the page's own picture input, where
# Gradio checks it, and only the chosen method's settings. The wait begins before any answer.
_ON_RUN = """(picture, model, method, form, target, picker) => {
  document.dispatchEvent(new CustomEvent("vizattn:status", {detail: {kind: "waiting"}}));
  const choice = target.takes?.includes(method) ? target.choice : null;
  return [picker.file, model, method, form.values?.[method] ?? {}, choice, null];
}"""
_ON_OPEN = "(picture, model, target, picker) => [picker.file, model, target.shown, null]"
_ON_LOST = """() => {
  const detail = {kind: "error", word: "lost"};
  document.dispatchEvent(new CustomEvent("vizattn:status", {detail}));
}"""
_ON_PICTURE = """picture => {
  document.dispatchEvent(new CustomEvent("vizattn:picture", {detail: picture}));
}"""
_ON_METHOD = """method => {
  document.dispatchEvent(new CustomEvent("vizattn:method", {detail: method}));
}"""
_ON_MODEL = """model => {
  document.dispatchEvent(new CustomEvent("vizattn:model", {detail: model}));
}"""


def build() -> gr.Blocks:
    """Build the page; nothing is loaded or run yet."""
    page: gr.Blocks
    with gr.Blocks(
        title="vizattn", analytics_enabled=False, fill_width=True, delete_cache=(DAY // 24, DAY)
    ) as page:
        header = canvas.header(elem_id="vizattn-header")
        with gr.Row(elem_id="vizattn-bar"):
            asked, picker = _ask()
            target = canvas.target(_explainable(), elem_id="vizattn-target")
            run = gr.Button("Run", variant="primary", elem_id="vizattn-run", min_width=88)
            status = canvas.status_line(elem_id="vizattn-status")
        view = canvas.viewer(_first(), elem_id="vizattn-viewer")
        ran = run.click(
            press_run,
            inputs=[*asked, target, picker],
            outputs=[view, status],
            js=_ON_RUN,
            # Unread: a damaged picture gets a sentence from us, not an error from the page.
            preprocess=False,
            show_progress="hidden",
            api_visibility="private",
            **QUEUE,
        )
        ran.failure(None, js=_ON_LOST)
        picture, model, method, _ = asked
        target.open(
            open_target,
            inputs=[picture, model, target, picker],
            outputs=target,
            js=_ON_OPEN,
            preprocess=False,
            show_progress="hidden",
            api_visibility="private",
            **QUEUE,
        )
        linked = view.restore(
            restore,
            outputs=[view, status, model, method],
            show_progress="hidden",
            api_visibility="private",
            **QUEUE,
        )
        linked.failure(None, js=_ON_LOST)
        header.language(
            named_methods,
            outputs=method,
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
        _offer_api(asked)
    return page


def _first() -> dict[str, Any] | None:
    """An example that was looked at beforehand, its files as the browser gets them."""
    payload = first_payload()
    if payload is not None:
        files = payload["files"].items()
        payload["files"] = {part: file_data(Path(path)) for part, path in files}
    return payload


def launch(port: int | None = None, *, open_browser: bool = False, block: bool = True) -> None:
    """Build the page and serve it: from this machine alone, or as a hosted Space expects.

    Args:
        port: Where to listen; the next free one from 7860 when left out.
        open_browser: Whether to open the page in the default browser.
        block: Whether to return only when the server stops.
    """
    page = build()
    page.queue(max_size=32)
    page.launch(
        server_name=None if os.environ.get("SPACE_ID") else "127.0.0.1",
        server_port=port,
        inbrowser=open_browser,
        favicon_path=canvas.icon(),
        prevent_thread_lock=True,
        **page_settings(),
    )
    # once the page answers: the first visitor finds the model loaded and the example awake
    Thread(target=look_ahead, name="look ahead", daemon=True).start()
    if block:
        page.block_thread()


def page_settings() -> dict[str, Any]:
    """Arguments of ``Blocks.launch`` that the page relies on."""
    return {
        "theme": theme(),
        "head": f"<style>{styles()}</style>",
        "footer_links": ["api"],
        "max_file_size": "15mb",
        "run_history": False,  # it would keep visitors' pictures in their browser
        "ssr_mode": False,
        "pwa": False,
    }


def _explainable() -> dict[str, Any]:
    """What the control needs to know: which methods take a target, and pictures to compare with."""
    takes = [name for name, method in METHODS.items() if not method.class_agnostic]
    model, method = next(iter(MODELS)), next(iter(METHODS))
    return {
        "takes": takes, "method": method, "model": model, "choice": {"kind": "own"}, "shown": None,
        "examples": _pictures(),
    }  # fmt: skip


def _pictures() -> list[dict[str, Any]]:
    """The example pictures, each with a small copy."""
    return [
        {"name": path.name, "file": file_data(path), "thumb": file_data(_thumb(path))}
        for path in examples()
    ]


def method_settings() -> dict[str, Any]:
    """Every method's settings for the form: descriptions, the method in force, and its values."""
    asked = {
        name: [setting for setting in settings(method) if setting.on_page]
        for name, method in METHODS.items()
    }
    return {
        "methods": {
            name: [_described(setting) for setting in known] for name, known in asked.items()
        },
        "method": next(iter(METHODS)),
        "values": {
            name: {setting.name: _as_asked(setting) for setting in known}
            for name, known in asked.items()
        },
    }


def named_methods(event: gr.EventData) -> Any:
    """The methods in the language that the page speaks now; which one is chosen stays as it is."""
    asked = event._data if isinstance(event._data, dict) else {}
    words = strings().get(str(asked.get("language")), strings()["en"])["phrases"]
    return gr.Dropdown(choices=_method_choices(words))


def _method_choices(words: dict[str, str]) -> list[tuple[str, str]]:
    return [(words.get(method.title, method.title), name) for name, method in METHODS.items()]


def _described(setting: Setting) -> dict[str, Any]:
    names = ("name", "label", "help", "kind", "minimum", "maximum", "step")
    described = {name: getattr(setting, name) for name in names}
    described["choices"] = list(setting.choices)
    return described


def _as_asked(setting: Setting) -> Any:
    """The default as people count: indices from 1."""
    if setting.kind == "index" and setting.default is not None and setting.default >= 0:
        return setting.default + 1
    return setting.default


def _ask() -> tuple[list[gr.Component], gr.HTML]:
    """The inputs of a run (picture, model, method, settings) and the picker of pictures."""
    shown = _pictures()
    first = shown[0] if shown else {"name": "", "file": None}
    picker = canvas.picker(
        {"examples": shown, "chosen": first["name"], "file": first["file"]},
        elem_id="vizattn-picker",
    )
    with gr.Column(elem_id="vizattn-own", min_width=0):
        picture = gr.Image(
            type="filepath",
            sources=["upload", "webcam", "clipboard"],
            image_mode=None,
            label="Picture",
            show_label=False,
            height=240,
            buttons=[],
            elem_id="vizattn-picture",
        )
    model = gr.Dropdown(
        [(label, name) for name, label in MODELS.items()],
        value=next(iter(MODELS)),
        label="Model",
        allow_custom_value=True,
        min_width=0,
        elem_id="vizattn-model",
    )
    method = gr.Dropdown(
        _method_choices({}),
        label="Method",
        min_width=0,
        elem_id="vizattn-method",
    )
    form = canvas.settings_form(method_settings(), elem_id="vizattn-settings")
    picker.send(None, picker, picture, js="picker => picker.file", show_progress="hidden")
    picture.change(None, picture, js=_ON_PICTURE)
    method.change(None, method, js=_ON_METHOD)
    model.change(None, model, js=_ON_MODEL)
    return [picture, model, method, form], picker


def _thumb(path: Path) -> Path:
    """A small copy: the first page has to travel quickly."""
    folder = Path(get_upload_folder()) / "vizattn" / "thumbs"
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(path) as picture:
        picture.thumbnail((320, 88))  # twice the height at which it is shown
        picture.save(folder / path.name, quality=85)
    return folder / path.name


def _offer_api(asked: list[gr.Component]) -> None:
    """The same run for programs, as ``/explain`` of ``gradio_client``."""
    answer, target = gr.JSON(visible=False), gr.JSON(visible=False, label="target")
    gr.Button(visible=False).click(
        explain_for_programs,
        inputs=[*asked, target],
        outputs=answer,
        api_name="explain",
        preprocess=False,
        **QUEUE,
    )
