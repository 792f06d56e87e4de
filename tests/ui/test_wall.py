"""The wall of all layers and heads, with maps small enough to know every number by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.ui

# Two layers, two heads; entropies with what stays on the class token: layer 1 has 2.0 and 0 bits.
EVEN = [[0.25, 0.25], [0.25, 0.25]]
ONE = [[0.0, 1.0], [0.0, 0.0]]
HALF = [[0.5, 0.0], [0.0, 0.0]]  # 0.5 stays: 1 bit
TWO = [[0.5, 0.0], [0.5, 0.0]]  # 1 bit


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]').replace("\u202f", " ")


def open_wall(page):
    page.click('[role="tab"][data-value="wall"]')
    page.wait_for_selector(".tiles button")


def numbers(page):
    return page.locator(".tiles .number").all_inner_texts()


def pixels(page, at):
    return page.evaluate(
        """at => { const canvas = document.querySelectorAll('.tiles canvas')[at];
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return Array.from(data); }""",
        at,
    )


def test_all_heads_hang_on_one_scale_which_is_stated(show, make_payload):
    page = show(make_payload([[EVEN, ONE], [HALF, TWO]]))
    open_wall(page)
    assert page.locator(".tiles button").count() == 4
    assert text(page, "wallTitle") == "4 maps, one scale: 0 to 100 %"
    assert pixels(page, 0)[:3] == pixels(page, 0)[4:7]  # a quarter, twice
    assert pixels(page, 0)[:3] != pixels(page, 2)[:3]  # a quarter and a half
    page.click('[data-choice="range"] [data-value="map"]')
    assert pixels(page, 0)[:3] == pixels(page, 2)[:3]  # each the most of its own map


def test_the_scale_note_counts_the_values_of_all_maps(show, make_payload):
    maps = np.arange(1, 401).reshape(2, 2, 10, 10) / 1e5
    page = show(make_payload(maps))
    open_wall(page)
    page.select_option('[data-part="percentile"]', "99")
    assert text(page, "scaleNote") == (
        "Top colour 0.40 %; 4 of 400 patches lie above. One scale for all 4 maps."
    )


def test_tiles_are_labelled_and_sorted_by_their_numbers(show, make_payload):
    page = show(make_payload([[EVEN, ONE], [HALF, TWO]]))
    open_wall(page)
    assert numbers(page) == ["2.0", "0.0", "1.0", "1.0"]
    page.click('[data-choice="wallOrder"] [data-value="all"]')
    assert numbers(page) == ["L1 H1\n2.0", "L2 H1\n1.0", "L2 H2\n1.0", "L1 H2\n0.0"]
    page.click('[data-choice="wallLabel"] [data-value="prefix"]')
    assert numbers(page)[0] == "L2 H1\n50"


def test_distance_and_sink_share_come_with_the_layers(show, make_payload):
    payload = make_payload([[EVEN, ONE], [HALF, TWO]])
    for layer in payload["layers"]:
        layer["statistics"] = {"distance": [1.5, 0.25], "sink_share": [0.3, 0.9]}
    page = show(payload)
    open_wall(page)
    page.click('[data-choice="wallLabel"] [data-value="distance"]')
    assert numbers(page) == ["1.5", "0.3", "1.5", "0.3"]
    page.click('[data-choice="wallLabel"] [data-value="sink"]')
    page.click('[data-choice="wallOrder"] [data-value="layer"]')
    assert numbers(page) == ["2 · 90", "1 · 30", "2 · 90", "1 · 30"]


def test_a_click_opens_the_head_as_a_picture(show, make_payload):
    page = show(make_payload([[EVEN, ONE], [HALF, TWO]]))
    open_wall(page)
    page.locator(".tiles button >> nth=1").hover()
    assert text(page, "wallSentence").startswith("Layer 1, head 2 — ")
    page.locator(".tiles button >> nth=1").click()
    assert page.is_visible('[data-part="stage"]')
    assert text(page, "sentence").startswith("Layer 1, head 2 — ")


def test_arrow_keys_go_from_tile_to_tile_and_enter_opens(show, make_payload):
    page = show(make_payload([[EVEN, ONE], [HALF, TWO]]))
    page.focus('[data-part="stage"]')
    page.keyboard.press("2")
    page.focus('.tiles button[tabindex="0"]')
    for key in ("ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    lit = page.get_attribute(".tiles button:focus", "aria-label")
    assert lit.startswith("Layer 1, head 2. Entropy 0.0.")
    page.keyboard.press("Enter")
    assert text(page, "sentence").startswith("Layer 1, head 2 — ")


def test_on_a_phone_layers_run_down_and_nothing_scrolls_sideways(show, make_payload):
    page = show(
        make_payload([[EVEN, ONE]] * 12), viewport={"width": 390, "height": 844}, has_touch=True
    )
    open_wall(page)
    boxes = [page.locator(f".tiles button >> nth={at}").bounding_box() for at in (0, 1, 2)]
    assert boxes[0]["y"] == boxes[1]["y"] < boxes[2]["y"]
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_pinned_patch_is_asked_in_every_layer(show, show_record, record):
    page = show(show_record(record))
    page.focus('[data-part="stage"]')
    page.keyboard.press("Enter")
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")
    before = page.evaluate("__vizattn.resolved().patches[0]")
    open_wall(page)
    page.wait_for_function("!document.querySelector('.tiles canvas.blank')")
    true = record[0].rows(record[0].queries.grid.prefix + before)[0, 0, 1:]
    strongest = page.get_attribute(".tiles button >> nth=0", "aria-label").replace("\u202f", " ")
    value = float(strongest.split("Strongest patch ")[1].split(" ")[0])
    assert value == pytest.approx(100 * true.max().item(), rel=0.06)
