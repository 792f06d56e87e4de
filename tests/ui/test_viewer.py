"""The viewer alone, with maps small enough to work every expected value out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import colormaps
from PIL import Image

pytestmark = pytest.mark.ui

# Two layers, two heads, 2 × 3 patches; the class token keeps what is missing to 1.
FIRST = [[0.30, 0.10, 0.00], [0.10, 0.10, 0.20]]  # 0.20 stays
SECOND = [[0.05, 0.05, 0.10], [0.10, 0.05, 0.05]]  # 0.60 stays
EVEN = [[0.15, 0.15, 0.15], [0.15, 0.15, 0.15]]  # 0.10 stays
LAST = [[0.00, 0.40, 0.20], [0.00, 0.00, 0.00]]  # 0.40 stays
MAPS = [[FIRST, SECOND], [EVEN, LAST]]
# Mean of EVEN and LAST: 0.075, 0.275, 0.175, then 0.075 three times; 0.25 stays.


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]').replace("\u202f", " ")


def overlay(page):
    """The overlay's pixels as ``[row, col, RGBA]``."""
    found = page.evaluate(
        """() => { const canvas = document.querySelector('[data-part=overlay]');
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return [canvas.height, canvas.width, Array.from(data)]; }"""
    )
    return np.array(found[2], dtype=np.uint8).reshape(found[0], found[1], 4)


def choose(page, name, value):
    page.click(f'[data-choice="{name}"] [data-value="{value}"]')


def press(page, *keys):
    page.focus('[data-part="stage"]')
    for key in keys:
        page.keyboard.press(key)


def at_patch(page, row, col, rows=2, cols=3):
    """Page coordinates of the middle of a patch, counted from 0."""
    box = page.locator('[data-part="overlay"]').bounding_box()
    return box["x"] + box["width"] * (col + 0.5) / cols, box["y"] + box["height"] * (
        row + 0.5
    ) / rows


def rgb(name, step):
    return [round(255 * channel) for channel in colormaps[name](step)[:3]]


@pytest.mark.parametrize("name", ["viridis", "cividis", "magma", "inferno", "gray"])
def test_the_hottest_patch_gets_the_last_colour_and_the_coldest_the_first(show, make_payload, name):
    page = show(make_payload(MAPS))
    press(page, "ArrowDown", "ArrowDown")  # head 2 of the last layer
    choose(page, "base", "off")
    choose(page, "colours", name)
    painted = overlay(page)[..., :3].tolist()
    assert painted[0][1] == rgb(name, 255)
    assert painted[1][0] == rgb(name, 0)


def test_a_half_as_strong_patch_gets_the_middle_colour(show, make_payload):
    page = show(make_payload(MAPS))
    press(page, "ArrowDown", "ArrowDown")
    choose(page, "base", "off")
    assert overlay(page)[0, 2, :3].tolist() == rgb("viridis", 128)


def test_over_the_photo_a_patch_is_as_opaque_as_its_value_is_high(show, make_payload):
    page = show(make_payload(MAPS))
    press(page, "ArrowDown", "ArrowDown")
    alpha = overlay(page)[..., 3]
    assert alpha[0].tolist() == pytest.approx([0, 0.85 * 255, 0.85 * 128], abs=1)


def test_the_first_view_is_the_last_layer_and_the_mean_of_its_heads(show, make_payload):
    page = show(make_payload(MAPS))
    assert text(page, "sentence") == (
        "Layer 2, mean of all heads — what the class token attends to."
    )
    assert text(page, "detail") == (
        "Strongest patch 28 % (1.9× uniform). 25 % stays on the class token."
    )


def test_values_follow_layer_and_head(show, make_payload):
    page = show(make_payload(MAPS))
    press(page, "ArrowLeft", "ArrowDown")
    assert text(page, "sentence") == "Layer 1, head 1 — what the class token attends to."
    assert text(page, "detail").startswith("Strongest patch 30 % (2.1× uniform). 20 % stays")
    second = page.locator('[data-part="strongest"] li >> nth=1').inner_text()
    assert second.split() == ["2", "2,", "3", "20", "%"]


def test_the_layer_range_measures_every_head_with_one_scale(show, make_payload):
    page = show(make_payload(MAPS))
    press(page, "ArrowDown", "ArrowLeft", "ArrowDown")  # layer 1, head 2: at most 0.10
    choose(page, "range", "layer")
    choose(page, "base", "off")
    assert text(page, "scaleNote") == (
        "Top colour 30 %; 0 of 6 patches lie above. One scale for the 2 heads of layer 1."
    )
    assert overlay(page)[0, 2, :3].tolist() == rgb("viridis", 85)  # a third of 0.30


def test_the_model_range_measures_all_maps_with_one_scale(show, make_payload):
    page = show(make_payload(MAPS))
    choose(page, "range", "model")
    assert text(page, "scaleNote") == (
        "Top colour 40 %; 0 of 6 patches lie above. One scale for all 4 maps."
    )


def test_a_fixed_scale_stays_when_the_map_changes(show, make_payload):
    page = show(make_payload(MAPS))
    press(page, "ArrowDown", "ArrowDown")  # head 2 of the last layer: at most 0.40
    choose(page, "range", "fixed")
    press(page, "ArrowLeft")
    assert text(page, "scaleNote") == (
        "Top colour 40 %; 0 of 6 patches lie above. Fixed: this top stays whatever is on show."
    )
    choose(page, "base", "off")
    assert overlay(page)[0, 2, :3].tolist() == rgb("viridis", 64)  # a quarter of 0.40


def test_the_scale_of_many_maps_is_the_nearest_rank_percentile_of_all_their_values(
    show, make_payload
):
    maps = np.random.default_rng(3).dirichlet(np.full(41, 0.2), size=(5, 4))[..., 1:]
    page = show(make_payload(maps.reshape(5, 4, 5, 8)))
    choose(page, "range", "model")
    for percentile in (100, 99.9, 99.5, 99, 98):
        page.select_option('[data-part="percentile"]', str(percentile))
        shown = page.inner_text(".colourbar .tick.high").strip("≥%\u202f")
        expected = 100 * np.percentile(maps, percentile, method="inverted_cdf")
        assert float(shown) == float(f"{expected:.2g}")


def test_a_percentile_clips_and_says_how_many_patches_lie_above(show, make_payload):
    values = np.arange(1, 101).reshape(1, 1, 10, 10) / 10000  # 0.01 % to 1 %
    page = show(make_payload(values))
    page.select_option('[data-part="percentile"]', "98")
    assert text(page, "scaleNote").startswith("Top colour 0.98 %; 2 of 100 patches lie above.")
    page.select_option('[data-part="percentile"]', "100")
    assert text(page, "scaleNote").startswith("Top colour 1.0 %, the maximum: nothing is clipped.")


def test_times_uniform_multiplies_by_the_number_of_tokens_and_leaves_the_image(show, make_payload):
    page = show(make_payload(MAPS))
    before = overlay(page)
    choose(page, "unit", "times")
    assert page.inner_text(".colourbar .tick.high") == "1.9×"  # 0.275 · 7 tokens
    assert (overlay(page) == before).all()


def test_the_pointer_reads_the_patch_under_it(show, make_payload):
    page = show(make_payload(MAPS))
    page.mouse.move(*at_patch(page, 0, 2))
    assert text(page, "tip") == "1, 3 · 18 %"
    needle = page.eval_on_selector('[data-part="needle"]', "node => node.style.top")
    assert float(needle.rstrip("%")) == pytest.approx(100 - 100 * 0.175 / 0.275, abs=0.1)
    page.mouse.move(2, 2)
    page.wait_for_selector('[data-part="tip"]', state="hidden")


def test_without_queries_and_keys_a_click_reads_and_nothing_is_pinned(show, make_payload):
    page = show(make_payload(MAPS))
    page.mouse.click(*at_patch(page, 0, 1))
    assert text(page, "tip") == "1, 2 · 28 %"
    assert "the pointer reads values." in text(page, "hint")
    assert page.evaluate("__vizattn.state.pins") == []
    assert page.is_disabled('[data-part="askPatch"]')
    assert not page.is_visible('[data-part="direction"]')


def test_in_the_head_strip_left_and_right_stay_with_the_layers(show, make_payload):
    page = show(make_payload(MAPS))
    page.focus('.strip [role="radio"][aria-checked="true"]')
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowDown")
    assert text(page, "sentence").startswith("Layer 1, head 2")


def test_what_a_reader_has_to_know_of_the_model_is_said(show, make_payload):
    payload = make_payload(MAPS)
    payload["model"]["notes"] = ["The weights are random."]
    assert text(show(payload), "remarks") == "The weights are random."


def test_without_queries_and_keys_a_tap_reads_a_patch(show, make_payload):
    page = show(make_payload(MAPS), has_touch=True, viewport={"width": 390, "height": 844})
    page.touchscreen.tap(*at_patch(page, 0, 2))
    assert text(page, "tip") == "1, 3 · 18 %"


def test_a_cropped_picture_is_read_only_where_the_model_saw_it(show, make_payload):
    payload = make_payload(MAPS, size=(80, 40), frame=(10, 0, 60, 40))
    page = show(payload)
    photo = page.locator('[data-part="photo"]').bounding_box()
    page.mouse.move(photo["x"] + photo["width"] * 5 / 80, photo["y"] + photo["height"] / 2)
    assert not page.is_visible('[data-part="tip"]')
    page.mouse.move(photo["x"] + photo["width"] * 11 / 80, photo["y"] + photo["height"] * 0.1)
    assert text(page, "tip").startswith("1, 1 ·")
    page.mouse.move(photo["x"] + photo["width"] * 69 / 80, photo["y"] + photo["height"] * 0.9)
    assert text(page, "tip").startswith("2, 3 ·")
    assert text(page, "note").endswith("cropped")
    assert page.locator('[data-part="outside"]').bounding_box()["width"] == pytest.approx(
        photo["width"] * 60 / 80, abs=1
    )


def test_undrawn_tokens_are_counted_by_kind(show, make_payload):
    mass = [[[0.10, 0.04, 0.06]]]
    page = show(
        make_payload([[[[0.5, 0.3]]]], prefix=("class", "register", "register"), prefix_mass=mass)
    )
    rows = page.locator('[data-part="massPairs"] > div').all_inner_texts()
    assert [row.replace("\u202f", " ").split("\n") for row in rows] == [
        ["Class token, not drawn", "10 %"],
        ["2 registers, not drawn", "10 %"],
        ["Patches", "80.0 %"],
        ["Spread", "3 of 5 tokens, 1.8 bits"],  # 0.5, 0.3, 0.1, 0.06, 0.04: 1.784 bits, 2^ = 3.4
    ]
    assert text(page, "detail").endswith(
        "10 % stays on the class token. 10 % goes to the registers."
    )


def test_a_model_without_a_class_token_asks_for_the_average_patch(show, make_payload):
    page = show(
        make_payload([[[[0.75, 0.25]]]], prefix=(), prefix_mass=[[[]]], query={"kind": "mean"})
    )
    assert text(page, "sentence") == "Layer 1, head 1 — what the average patch attends to."
    assert page.locator('[data-part="massPairs"] > div').count() == 2


def test_the_asked_patch_is_named_from_one(show, make_payload):
    page = show(make_payload(MAPS, query={"kind": "patch", "row": 0, "col": 2}))
    assert text(page, "sentence").endswith("what the patch at row 1, column 3 attends to.")


def test_relevance_that_is_no_share_is_shown_without_per_cent(show, make_payload):
    page = show(make_payload([[[[3.0, 1.0, 0.0]]]], prefix_mass=[[[0.0]]]))
    assert text(page, "detail") == "Strongest patch 3.0."
    assert not page.is_visible('[data-part="massBlock"]')
    assert not page.is_visible('[data-part="unitLine"]')


def test_a_method_without_heads_shows_its_one_map_for_each_layer(show, make_payload):
    page = show(make_payload([[FIRST], [LAST]], per_head=False, title="Some method"))
    assert text(page, "sentence") == "Some method, layer 2 — what the class token draws on."
    assert not page.is_visible(".heads")
    page.locator('[data-part="film"] canvas >> nth=0').click()
    assert text(page, "sentence").startswith("Some method, layer 1")


def test_a_map_of_zeros_is_shown_as_zeros(show, make_payload):
    page = show(make_payload([[np.zeros((2, 3))]], prefix_mass=[[[1.0]]]))
    assert text(page, "detail").startswith("Strongest patch 0 %")
    assert page.inner_text(".colourbar .tick.high") == "0\u202f%"


def test_smooth_never_exceeds_the_values_between_which_it_interpolates(show, make_payload):
    page = show(make_payload(MAPS))
    choose(page, "base", "off")
    choose(page, "cells", "smooth")
    painted = overlay(page)
    assert painted.shape == (12, 18, 4)
    assert painted[0, 0, :3].tolist() == rgb("viridis", round(255 * 0.075 / 0.275))
    assert "only interpolates" in text(page, "hint")


def test_names_are_text_and_never_markup(show, make_payload):
    evil = "<img src=x onerror=window.hacked=1>${7*7}{{value}}"
    page = show(make_payload(MAPS, name=evil, label=evil, title=evil))
    assert text(page, "summary") == f"{evil} · {evil} · {evil}"
    assert page.evaluate("window.hacked") is None


def test_play_goes_through_the_layers_and_stops_at_the_last(show, make_payload):
    page = show(make_payload(MAPS), reduced_motion="no-preference")
    press(page, " ")
    assert page.evaluate("[__vizattn.state.layer, __vizattn.state.playing]") == [1, True]
    page.wait_for_function("__vizattn.state.layer === 2")
    assert page.evaluate("__vizattn.state.playing") is False


def test_a_new_explanation_keeps_layer_and_head(show, make_payload):
    page = show(make_payload(MAPS))
    press(page, "ArrowLeft", "ArrowDown", "ArrowDown")
    page.evaluate("value => update(value)", make_payload(MAPS, id="second", name="other.png"))
    page.wait_for_function("document.querySelector('.summary').innerText.includes('other.png')")
    assert text(page, "sentence").startswith("Layer 1, head 2")


def test_a_damaged_explanation_is_a_sentence_and_the_view_stays(show, make_payload):
    page = show(make_payload(MAPS))
    before = overlay(page)
    broken = make_payload(MAPS, id="broken")
    broken["files"]["maps"]["url"] = "data:application/octet-stream;base64,AAAA"
    page.evaluate("value => update(value)", broken)
    page.wait_for_selector('[data-part="failure"]')
    assert text(page, "failure").startswith("The viewer cannot show this:")
    assert (overlay(page) == before).all()
    press(page, "ArrowLeft")
    assert text(page, "sentence").startswith("Layer 1")


def test_every_word_is_korean_in_korean(show, make_payload):
    page = show(make_payload(MAPS), locale="ko-KR")
    assert text(page, "sentence") == "레이어 2, 모든 헤드의 평균 — 클래스 토큰이 보는 곳."
    words = page.locator(".va-viewer [data-word]").all_text_contents()
    assert [word for word in words if not any("가" <= letter <= "힣" for letter in word)] == []
    assert page.get_attribute(".va-viewer", "lang") == "ko"


def test_the_picture_has_a_name_and_its_numbers_are_spoken_once_things_settle(show, make_payload):
    page = show(make_payload(MAPS))
    assert page.get_attribute('[data-part="overlay"]', "role") == "img"
    press(page, "ArrowLeft", "ArrowRight", "ArrowLeft")
    assert not page.text_content('[data-part="live"]').startswith("Layer 1")
    page.wait_for_function(
        "document.querySelector('[data-part=live]').textContent.startsWith('Layer 1')"
    )
    label = page.get_attribute('[data-part="overlay"]', "aria-label")
    assert label.startswith("Attention map. Layer 1, mean of all heads")


def test_help_says_what_the_method_is_and_where_it_comes_from(show, make_payload):
    page = show(make_payload(MAPS, title="Some method"))
    press(page, "?")
    said = [line for line in text(page, "methodHelp").splitlines() if line]
    assert said == ["Some method", "m = r A", "r: who asks", "What it is.", "Somebody 2020"]


def test_where_the_target_alone_decides_nobody_is_asked_and_the_target_is_named(show, make_payload):
    payload = make_payload(MAPS, title="Some method", per_head=False)
    payload["method"] |= {"has_query": False, "target": "class 'cat'"}
    page = show(payload)
    expected = "Some method — what speaks for class 'cat', and below zero against it."
    assert text(page, "sentence") == expected
    assert not page.is_visible('[data-part="asks"]')
    page.hover('[data-part="picture"]')
    assert text(page, "sentence") == expected


def test_without_a_page_around_it_the_viewer_follows_the_systems_theme(show, make_payload):
    ground = "getComputedStyle(document.querySelector('.va-viewer')).backgroundColor"
    light = show(make_payload(MAPS), color_scheme="light")
    dark = show(make_payload(MAPS), color_scheme="dark")
    assert light.evaluate(ground) == "rgb(251, 251, 250)"
    assert dark.evaluate(ground) == "rgb(16, 18, 20)"


@pytest.mark.parametrize("size", [(60, 40), (30, 90), (200, 40)])
def test_nothing_scrolls_sideways_and_the_picture_keeps_its_ratio(show, make_payload, size):
    page = show(make_payload(MAPS, size=size))
    for width in (320, 390, 764, 900, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_function(
            "document.querySelector('.va-viewer').offsetWidth === innerWidth"
            " && document.documentElement.scrollWidth <= innerWidth"
        )
        box = page.locator('[data-part="photo"]').bounding_box()
        assert box["width"] / box["height"] == pytest.approx(size[0] / size[1], rel=0.02)


def test_fingers_have_targets_of_44_pixels(show, make_payload):
    page = show(make_payload(MAPS), has_touch=True, viewport={"width": 390, "height": 844})
    small = page.evaluate(
        """() => [...document.querySelectorAll('.va-viewer :is(button, select)')]
        .filter(node => node.offsetParent && node.getBoundingClientRect().height < 42)
        .map(node => node.outerHTML.slice(0, 80))"""
    )
    assert small == []


def test_the_saved_picture_shows_the_view(show, make_payload, tmp_path):
    page = show(make_payload(MAPS, size=(600, 400), name="two dots/é.png"))
    press(page, "ArrowDown", "ArrowDown")
    choose(page, "base", "off")
    with page.expect_download() as waiting:
        page.click('[data-part="export"]')
        page.keyboard.press("Enter")  # the first of the menu
    assert waiting.value.suggested_filename == "vizattn_two_dots_é_L2_H2.png"
    waiting.value.save_as(tmp_path / "saved.png")
    saved = np.asarray(Image.open(tmp_path / "saved.png").convert("RGB"))
    assert saved.shape[1] == 600
    assert saved.shape[0] > 400
    assert saved[20, 210].tolist() == rgb("viridis", 255)  # a corner of patch 1, 2
    assert saved[380, 10].tolist() == rgb("viridis", 0)


def test_changing_the_layer_of_a_real_sized_model_is_drawn_at_once(show, make_payload):
    rng = np.random.default_rng(0)
    maps = rng.dirichlet(np.full(926, 0.1), size=(12, 6))[..., 1:].reshape(12, 6, 25, 37)
    page = show(make_payload(maps))
    page.wait_for_timeout(500)  # the other layers are decoded meanwhile
    press(page, "Home")
    page.evaluate("__vizattn.draws.length = 0")
    press(page, *["ArrowRight"] * 11, *["ArrowDown"] * 6)
    draws = page.evaluate("__vizattn.draws")
    assert len(draws) == 17  # one for each key, before the next
    assert min(draws) < 5  # milliseconds, however busy the machine is; about 1 when it is idle
