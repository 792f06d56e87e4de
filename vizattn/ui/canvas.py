"""The viewer and the small components around it: plain ``gr.HTML`` made from files beside it.

The templates are constant and mention no property: Gradio evaluates what it fills into a template,
so names, labels and errors only ever reach the page through ``textContent``. The scripts are
concatenated in a stated order into one function; a file adds a part without rewriting another.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import gradio as gr

from vizattn.overlay import COLOUR_MAPS, colour_table

VIEWER_SCRIPTS = (
    "words.js",
    "state.js",
    "data.js",
    "paint.js",
    "picture.js",
    "colourbar.js",
    "strip.js",
    "timeline.js",
    "reading.js",
    "inspector.js",
    "pointer.js",
    "keys.js",
    "help.js",
    "save.js",
    "layout.js",
    "main.js",
)
"""The viewer's files, in the order in which they are concatenated; ``main.js`` starts the rest."""

_STYLES = ("canvas.css", "page.css")

_PROGRAM = """"use strict";
try {
  (() => {
%s
  })();
} catch (error) {
  const sentence = document.createElement("p");
  sentence.setAttribute("role", "alert");
  sentence.textContent = `This part of the page could not start: ${error.message}`;
  element.prepend(sentence);
  console.error(error);
}
"""


def viewer(value: dict[str, Any] | None = None, **options: Any) -> gr.HTML:
    """Make the viewer: everything that shows an explanation and changes its view.

    Args:
        value: a payload as ``vizattn.viewer.write_view`` returns it, its files as Gradio file data.
        options: further arguments of ``gr.HTML``, such as ``elem_id``.
    """
    return _component("canvas.html", VIEWER_SCRIPTS, value, colours=True, **options)


def header(**options: Any) -> gr.HTML:
    """Make the header: name, help, language and theme."""
    return _component("header.html", ("words.js", "header.js"), None, **options)


def picker(value: dict[str, Any], **options: Any) -> gr.HTML:
    """Make the row of example pictures and the button for one's own.

    Args:
        value: ``{"examples": [{"name", "file"}], "chosen": name, "file": file data}``; a choice in
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


def status_line(**options: Any) -> gr.HTML:
    """Make the line that says what a run is doing, or why it failed.

    Its value is ``{"kind": "running" | "done" | "error", "run": id, "seconds" or "text"}``.
    """
    return _component("status.html", ("words.js", "status.js"), None, **options)


def icon() -> Path:
    """The page's icon for browser tabs."""
    return Path(str(files("vizattn.ui") / "canvas" / "favicon.svg"))


@cache
def styles() -> str:
    """The style sheet for the viewer, the components around it and Gradio's own parts."""
    return "\n".join(_read(name) for name in _STYLES)


@cache
def program(scripts: tuple[str, ...], *, colours: bool = False) -> str:
    """One script from several files: their words (and colours) first, then each file in order.

    Args:
        scripts: file names in ``vizattn/ui/canvas``.
        colours: whether the script paints and therefore needs the colour maps.
    """
    constants = [f"const STRINGS = {json.dumps(strings(), ensure_ascii=False)};"]
    if colours:
        constants.append(f"const COLOURS = {json.dumps(colour_tables())};")
    return _PROGRAM % "\n".join(constants + [_read(name) for name in scripts])


@cache
def strings() -> dict[str, dict[str, Any]]:
    """Every string of the page by language and key; ``phrases`` translates the registry's words."""
    table: dict[str, dict[str, Any]] = json.loads(_read("strings.json"))
    return table


@cache
def colour_tables() -> dict[str, str]:
    """The library's colour maps, each as base64 of 256 RGB triplets."""
    tables = {name: colour_table(name).tobytes() for name in COLOUR_MAPS}
    return {name: base64.b64encode(table).decode() for name, table in tables.items()}


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
        html_template=_read(template),
        js_on_load=program(scripts, colours=colours),
        apply_default_css=False,
        container=False,
        padding=False,
        **options,
    )


@cache
def _read(name: str) -> str:
    return (files("vizattn.ui") / "canvas" / name).read_text(encoding="utf-8")
