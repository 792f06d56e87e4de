"""The viewer and the small components around it: plain ``gr.HTML`` made from files beside it.

The templates are constant and mention no property: Gradio evaluates what it fills into a template,
so names, labels and errors only ever reach the page through ``textContent``.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr

from vizattn.ui.ask import ask, count, rows
from vizattn.ui.program import HEADER_SCRIPTS, VIEWER_SCRIPTS, program, read
from vizattn.ui.save import save
from vizattn.ui.tokens import features
from vizattn.ui.trust import trust


def viewer(value: dict[str, Any] | None = None, **options: Any) -> gr.HTML:
    """Make the viewer: everything that shows an explanation and changes its view.

    Args:
        value: a payload as ``vizattn.viewer.write_view`` returns it, its files as Gradio file data.
        options: further arguments of ``gr.HTML``, such as ``elem_id``.
    """
    options["server_functions"] = [rows, ask, count, save, features, trust]
    return _component("canvas.html", VIEWER_SCRIPTS, value, colours=True, **options)


def header(**options: Any) -> gr.HTML:
    """Make the header: name, help, language and theme."""
    return _component("header.html", HEADER_SCRIPTS, None, **options)


def picker(value: dict[str, Any], **options: Any) -> gr.HTML:
    """Make the row of example pictures and the button for one's own.

    Args:
        value: ``{"examples": [{"name", "file", "thumb"}], "chosen": name, "file"}``; a choice in
            the browser writes ``chosen`` and ``file`` and fires ``pick``.
        options: further arguments of ``gr.HTML``.
    """
    return _component("picker.html", ("words.js", "picker.js"), value, **options)


def settings_form(value: dict[str, Any], **options: Any) -> gr.HTML:
    """Make the controls for the settings of the chosen method.

    Args:
        value: ``{"methods", "method", "values"}``: settings by method, the method in force, and
            values by method and setting; the browser writes the last two.
        options: further arguments of ``gr.HTML``.
    """
    return _component("settings.html", ("words.js", "settings.js"), value, **options)


def target(value: dict[str, Any], **options: Any) -> gr.HTML:
    """Make the control for what a method explains: classes, or what an embedding is compared with.

    Args:
        value: ``{"takes", "method", "model", "choice", "shown", "examples"}``: methods that take a
            target, what is chosen now, and example pictures as the picker has them; the browser
            writes ``choice`` and, where a view is on show, its id. ``open`` asks for ``known``.
        options: further arguments of ``gr.HTML``.
    """
    return _component("target.html", ("words.js", "target.js"), value, **options)


def status_line(**options: Any) -> gr.HTML:
    """Make the line that says what a run is doing, or why it failed.

    Its value is ``{"kind": "running" | "done" | "error", "run": id, "seconds" or "text"}``.
    """
    return _component("status.html", ("words.js", "status.js"), None, **options)


def icon() -> Path:
    """The page's icon for browser tabs."""
    return Path(str(files("vizattn.ui") / "canvas" / "favicon.svg"))


def _component(
    template: str,
    scripts: tuple[str, ...],
    value: dict[str, Any] | None,
    *,
    colours: bool = False,
    **options: Any,
) -> gr.HTML:
    # A subclass would be tidier, but Gradio writes a .pyi file beside the module of every subclass.
    return gr.HTML(
        value,
        html_template=read(template),
        js_on_load=program(scripts, colours=colours),
        apply_default_css=False,
        container=False,
        padding=False,
        **options,
    )
