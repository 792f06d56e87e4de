"""The one HTML file, opened from disk with the network off."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

OPEN = ".va-viewer[data-state=open]"


@pytest.fixture
def open_file(new_page):
    """Open a file from disk with the network off; collects what it asks for."""

    def open_it(path, **options):
        page = new_page(**options)
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.context.set_offline(True)
        page.goto(path.as_uri())
        page.wait_for_selector(OPEN)
        page.asked = asked
        return page

    return open_it


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]').replace("\u202f", " ")


@pytest.mark.ui
def test_from_disk_without_a_network_a_patch_can_be_asked(open_file, record, tmp_path):
    path = record.to_html(tmp_path / "view", Image.new("RGB", (64, 64), "teal"), name="teal.png")
    assert path == tmp_path / "view.html"
    page = open_file(path)
    photo = page.locator('[data-part="photo"]').bounding_box()
    page.mouse.move(photo["x"] + photo["width"] * 0.6, photo["y"] + photo["height"] * 0.4)
    page.wait_for_selector('[data-part="askedMark"]')  # its policy forbids to wait for a function
    found = page.evaluate("Array.from(__vizattn.map().values)")
    layer = record[-1]
    true = layer.rows(layer.queries.grid.patch_index(1, 2)).mean(0)[0, 1:]
    assert np.abs(np.array(found) - true.numpy()).sum() < 2e-3
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert text(page, "remarks").startswith("This file holds all 6 maps, and queries and keys of")


@pytest.mark.ui
def test_only_the_chosen_layers_can_be_asked_and_the_file_says_so(open_file, record, tmp_path):
    page = open_file(record.to_html(tmp_path / "view.html", layers=[0]))
    assert page.is_disabled('[data-part="askPatch"]')
    page.focus('[data-part="stage"]')
    page.keyboard.press("Home")
    assert page.is_enabled('[data-part="askPatch"]')
    assert "queries and keys of layers 1 (" in text(page, "remarks")


@pytest.mark.ui
def test_language_and_theme_change_without_a_page_around_it(open_file, record, tmp_path):
    page = open_file(record.to_html(tmp_path / "view"), color_scheme="light")
    page.click('.va-header [data-value="ko"]')
    assert text(page, "sentence").startswith("레이어 3, 모든 헤드의 평균")
    page.click('.va-header [data-part="theme"]')
    ground = "getComputedStyle(document.querySelector('.va-viewer')).backgroundColor"
    assert page.evaluate(ground) == "rgb(16, 18, 20)"


@pytest.mark.ui
def test_a_name_that_ends_scripts_stays_a_name(open_file, record, tmp_path):
    evil = "</script><img src=x onerror=window.hacked=1>${7*7}"
    page = open_file(record.to_html(tmp_path / "view", name=evil, label=evil))
    assert text(page, "summary").startswith(f"{evil} · {evil}")
    assert page.evaluate("window.hacked") is None
    assert page.title().startswith(evil)


@pytest.mark.ui
def test_a_notebook_shows_an_explanation_in_a_frame(new_page, tiny_timm, tmp_path):
    from vizattn import wrap_model
    from vizattn.explain import explain

    image = Image.new("RGB", (64, 64), "teal")
    page = new_page()
    page.set_content(explain(image, model=wrap_model(tiny_timm))._repr_html_())
    frame = page.frame_locator("iframe")
    frame.locator(OPEN).wait_for()
    assert "Layer 3" in frame.locator('[data-part="sentence"]').inner_text()


def test_a_layer_that_is_not_there_is_refused(record, tmp_path):
    from vizattn.errors import OutOfRange

    with pytest.raises(OutOfRange, match="there is no layer 10"):
        record.to_html(tmp_path / "view", layers=[9])


@pytest.mark.slow
def test_the_embedded_model_at_full_size_stays_under_eight_megabytes(tmp_path, photos):
    from vizattn.explain import explain

    path = explain(photos[1]).to_html(tmp_path / "view")
    assert 5_000_000 < path.stat().st_size < 8_000_000
