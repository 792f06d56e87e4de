"""The viewer's program: its files put together into one script, without any framework.

The scripts are concatenated in a stated order into one function; a file adds a part without
rewriting another. The page gives this function to Gradio, and a saved HTML file calls it itself.
"""

from __future__ import annotations

import base64
import json
from functools import cache
from importlib.resources import files
from typing import Any

from vizattn.heatmap import NEARLY_FLAT
from vizattn.methods import METHODS, Method
from vizattn.overlay import COLOUR_MAPS, SIGNED, colour_table

VIEWER_SCRIPTS = (
    "words.js",
    "state.js",
    "data.js",
    "rows.js",
    "ask.js",
    "paint.js",
    "picture.js",
    "colourbar.js",
    "strip.js",
    "timeline.js",
    "reading.js",
    "inspector.js",
    "asking.js",
    "layout.js",
    "wall.js",
    "features.js",
    "compare.js",
    "pointer.js",
    "keys.js",
    "help.js",
    "save.js",
    "link.js",
    "export.js",
    "trust.js",
    "main.js",
)
"""The viewer's files, in the order in which they are concatenated; ``main.js`` starts the rest."""

HEADER_SCRIPTS = ("words.js", "header.js")

# The small components of the bar: one says what another asks it to, so they share their words.
_BAR = ("header", "picker", "settings", "target", "status")

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


@cache
def styles() -> str:
    """The style sheet for the viewer, the components around it and Gradio's own parts."""
    return "\n".join(read(name) for name in _STYLES)


@cache
def program(scripts: tuple[str, ...], *, colours: bool = False) -> str:
    """One script from several files: their words (and colours) first, then each file in order.

    Args:
        scripts: file names in ``vizattn/ui/canvas``.
        colours: whether the script paints and therefore needs the colour maps and what is flat.
    """
    asks = any("phrase(" in read(name) for name in scripts[1:])  # after words.js, which has it
    spoken = strings() if colours else _words_of_the_bar(with_phrases=asks)
    constants = [f"const STRINGS = {json.dumps(spoken, ensure_ascii=False)};"]
    if colours:
        constants.append(f"const COLOURS = {json.dumps(colour_tables())};")
        constants.append(f"const NEARLY_FLAT = {NEARLY_FLAT};")
    return _PROGRAM % "\n".join(constants + [read(name) for name in scripts])


def _words_of_the_bar(*, with_phrases: bool) -> dict[str, dict[str, Any]]:
    """The strings that components other than the viewer use: the first page travels quickly."""
    text = "".join(read(f"{name}.{kind}") for name in _BAR for kind in ("js", "html"))
    long = {words for method in METHODS.values() for words in (method.about, *_letters(method))}
    return {
        language: {key: said for key, said in table.items() if f'"{key}"' in text}
        | {"phrases": {k: v for k, v in table["phrases"].items() if with_phrases and k not in long}}
        for language, table in strings().items()
    }


def _letters(method: type[Method]) -> list[str]:
    """What the letters of a method's formula mean; the viewer alone says it."""
    return method.formula.split("\n")[1:]


@cache
def strings() -> dict[str, dict[str, Any]]:
    """Every string of the page by language and key; ``phrases`` translates the registry's words."""
    table: dict[str, dict[str, Any]] = json.loads(read("strings.json"))
    return table


@cache
def colour_tables() -> dict[str, str]:
    """The library's colour maps and ``signed``, white at zero, as base64 of 256 RGB triplets."""
    tables = {name: colour_table(name) for name in (*COLOUR_MAPS, SIGNED)}
    return {name: base64.b64encode(table.tobytes()).decode() for name, table in tables.items()}


@cache
def read(name: str) -> str:
    """A file of ``vizattn/ui/canvas`` as text."""
    return (files("vizattn.ui") / "canvas" / name).read_text(encoding="utf-8")
