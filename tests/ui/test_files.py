"""The page's files, read without a browser."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "vizattn" / "ui" / "canvas"
LOOKED_UP = re.compile(r"""(?:\bword\(|data-word=|data-label=)\s*"(\w+)"(?! \+)""")


@pytest.fixture(scope="module")
def strings():
    from vizattn.ui import program

    return program.strings()


def read(pattern):
    return {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob(pattern)}


def test_both_languages_have_the_same_keys(strings):
    assert set(strings["en"]) == set(strings["ko"])


def test_a_translation_fills_the_same_places(strings):
    places = re.compile(r"\{(\w+)\}")
    for key, sentence in strings["en"].items():
        if key == "phrases":
            continue
        assert set(places.findall(strings["ko"][key])) == set(places.findall(sentence)), key


def test_the_words_of_every_method_are_translated(strings):
    from vizattn.methods import METHODS, settings

    words = set()
    for method in METHODS.values():
        words |= {method.title, method.about}
        for setting in settings(method):
            if setting.on_page:
                words |= {setting.label, setting.help, *setting.choices}
                subjects = (method(**{setting.name: each}).subject for each in setting.choices)
                words |= {subject for subject in subjects if subject}
    assert len(words) > 10
    assert words - set(strings["ko"]["phrases"]) == set()


def test_every_word_that_a_file_asks_for_is_in_the_table(strings):
    asked = {
        key for text in (read("*.js") | read("*.html")).values() for key in LOOKED_UP.findall(text)
    }
    assert len(asked) > 40
    assert asked - set(strings["en"]) == set()


def test_no_word_is_left_in_the_table_that_no_file_asks_for(strings):
    everything = "\n".join((read("*.js") | read("*.html")).values())
    everything += "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*.py"))
    known = {"phrases"} | {f"help{number}" for number in range(1, 6)}
    # put together from a word and an ending: who is looked at, and the sentence turned round
    known |= {key + end for key in strings["en"] for end in ("Seen", "From")}
    assert [key for key in strings["en"] if f'"{key}"' not in everything and key not in known] == []


@pytest.mark.parametrize("name", ["header", "picker", "settings", "status", "target"])
def test_a_component_of_the_bar_brings_every_word_it_asks_for_and_leaves_the_viewers(name, strings):
    from vizattn.ui import program

    first = program.program(("words.js", f"{name}.js")).partition("const STRINGS = ")[2]
    brought = json.loads(first.partition(";\n")[0])
    text = (FOLDER / f"{name}.js").read_text() + (FOLDER / f"{name}.html").read_text()
    for language, words in brought.items():
        assert set(LOOKED_UP.findall(text)) <= set(words)
        assert {key: words[key] for key in words if key != "phrases"}.items() <= strings[
            language
        ].items()
        assert "massPatch" not in words
    asks = "phrase(" in text
    assert ("Residual share" in brought["ko"]["phrases"]) is asks
    assert not any(phrase.startswith("Attention rollout in") for phrase in brought["ko"]["phrases"])


def test_templates_mention_nothing_that_gradio_would_evaluate():
    for name, template in read("*.html").items():
        assert not re.search(r"\$\{|\{\{|@children", template), name


def test_no_script_builds_markup_from_text():
    for name, script in read("*.js").items():
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script
        ), name


def test_every_script_belongs_to_a_component():
    from vizattn.ui import program

    bar = {"header.js", "picker.js", "settings.js", "status.js", "target.js"}
    assert set(read("*.js")) == set(program.VIEWER_SCRIPTS) | bar


def test_the_page_names_no_method():
    from vizattn.methods import METHODS

    written = "\n".join((read("*.js") | read("*.html") | read("*.css")).values())
    written += "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.parent.glob("*.py"))
    for name in METHODS:
        assert not re.search(rf"""["'`]{name}["'`]""", written), name


def test_every_method_setting_of_the_page_has_a_control_and_its_default():
    from vizattn.methods import METHODS, settings
    from vizattn.ui.page import method_settings

    form = method_settings()
    assert list(form["methods"]) == list(METHODS)
    for name, method in METHODS.items():
        shown = [setting.name for setting in settings(method) if setting.on_page]
        assert [setting["name"] for setting in form["methods"][name]] == shown
        assert list(form["values"][name]) == shown


def test_colours_are_those_of_the_library():
    from vizattn.overlay import COLOUR_MAPS
    from vizattn.ui import program

    tables = program.colour_tables()
    assert tuple(tables) == (*COLOUR_MAPS, "signed")
    assert base64.b64decode(tables["signed"])[128 * 3] > 240  # white at zero
    grey = base64.b64decode(tables["gray"])
    assert list(grey) == [step for step in range(256) for _ in "RGB"]


def tokens(block):
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", block))


def luminance(colour):
    """Relative luminance as WCAG 2.2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("selector", [r"\.va", r"\.dark \.va, \.va\[data-theme=dark\]"])
def test_text_and_edges_have_enough_contrast(selector):
    css = read("canvas.css")["canvas.css"]
    colours = tokens(re.search(rf"^{selector} \{{(.*?)^\}}", css, re.S | re.M)[1])
    for ground in ("ground", "surface", "hover"):
        for text in ("ink", "ink2", "accent", "danger"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    assert contrast(colours["accent"], colours["tint"]) >= 4.5
    assert contrast(colours["accent-ink"], colours["accent"]) >= 4.5
    assert contrast(colours["edge"], colours["ground"]) >= 3


def test_contrast_of_black_on_white_is_21():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
