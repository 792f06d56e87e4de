"""Comparing: one question and one pointer in all panes, and sums worked out by hand."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ui

# Two heads of one layer; the class token keeps nothing.
FIRST = [[0.5, 0.5], [0.0, 0.0]]
SECOND = [[0.25, 0.25], [0.25, 0.25]]


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]').replace("\u202f", " ")


def pane(page, at, piece):
    node = page.locator(f'.pane >> nth={at} >> [data-pane="{piece}"]')
    return node.inner_text().replace("\u202f", " ")


def open_compare(page):
    page.click('[role="tab"][data-value="compare"]')
    page.wait_for_selector(".pane")


def choose(page, at, piece, value):
    page.select_option(f'.pane >> nth={at} >> [data-pane="{piece}"]', str(value))


def hover(page, at, x, y):
    box = page.locator(f'.pane >> nth={at} >> [data-pane="picture"]').bounding_box()
    page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * y)


def test_the_pointer_in_one_pane_reads_in_all(show, make_payload):
    page = show(make_payload([[FIRST, SECOND]]))
    open_compare(page)
    choose(page, 0, "head", 1)
    choose(page, 1, "head", 2)
    hover(page, 1, 0.25, 0.25)
    assert pane(page, 0, "tip") == "1, 1 · 50 %"
    assert pane(page, 1, "tip") == "1, 1 · 25 %"


def test_the_overlap_is_the_smaller_of_two_maps_added_up(show, make_payload):
    page = show(make_payload([[FIRST, SECOND]]))
    open_compare(page)
    choose(page, 0, "head", 1)
    choose(page, 1, "head", 2)
    assert text(page, "overlap") == "50 % of the patch attention is shared."


def test_the_difference_is_signed_and_centred_on_zero(show, make_payload):
    page = show(make_payload([[FIRST, SECOND]]))
    open_compare(page)
    choose(page, 0, "head", 1)
    choose(page, 1, "head", 2)
    page.check('[data-part="difference"]')
    assert pane(page, 1, "sentence") == "B minus A: red is more, blue is less."
    hover(page, 0, 0.25, 0.25)
    assert pane(page, 1, "tip") == "1, 1 · −25 %"
    hover(page, 0, 0.25, 0.75)
    assert pane(page, 1, "tip") == "2, 1 · 25 %"
    ticks = page.locator(".pane >> nth=1 >> .tick:not([hidden])").all_inner_texts()
    assert [tick.replace("\u202f", " ") for tick in ticks] == ["−25 %", "0", "25 %"]


def test_one_scale_for_all_is_the_largest_top(show, make_payload):
    page = show(make_payload([[FIRST, SECOND]]))
    open_compare(page)
    choose(page, 0, "head", 1)
    choose(page, 1, "head", 2)
    high = page.locator(".pane >> nth=1 >> .tick.high")
    assert high.inner_text() == "25\u202f%"
    page.check('[data-part="same"]')
    assert high.inner_text() == "50\u202f%"


def test_pictures_of_one_visit_are_compared_at_the_same_place(show, make_payload):
    page = show(make_payload([[FIRST, SECOND]], name="small.png", size=(60, 40)))
    other = make_payload([[SECOND, FIRST]], id="second", name="large.png", size=(600, 400))
    page.evaluate("value => update(value)", other)
    page.wait_for_function("document.querySelector('.summary').innerText.includes('large.png')")
    open_compare(page)
    assert page.locator('.pane >> nth=1 >> [data-pane="from"] >> option:checked').inner_text() == (
        "small.png"
    )
    choose(page, 0, "head", 1)
    choose(page, 1, "head", 1)
    hover(page, 0, 0.75, 0.25)
    assert pane(page, 0, "tip") == "1, 2 · 25 %"
    assert pane(page, 1, "tip") == "1, 2 · 50 %"


def test_one_pinned_patch_asks_in_four_panes(show, show_record, record):
    page = show(show_record(record))
    open_compare(page)
    page.click('[data-part="paneCount"] [data-value="4"]')
    hover(page, 2, 0.4, 0.4)
    page.wait_for_function(
        "[...document.querySelectorAll('[data-pane=sentence]')]"
        ".every(node => node.innerText.includes('patch at row 2, column 2'))"
    )
    assert page.locator(".pane").count() == 4
    assert page.locator('.pane [data-pane="asked"]:not([hidden])').count() == 4


def test_maps_on_different_grids_are_not_subtracted(show, make_payload):
    page = show(make_payload([[FIRST, SECOND], [[[0.5, 0.25, 0.25]], [[0.5, 0.25, 0.25]]]]))
    open_compare(page)
    choose(page, 1, "layer", 1)
    page.check('[data-part="difference"]')
    assert text(page, "overlap").startswith("These maps lie on different grids")
    assert "minus" not in pane(page, 1, "sentence")
