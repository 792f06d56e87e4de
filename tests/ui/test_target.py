"""The control for what is explained, as a visitor's browser meets it."""

from __future__ import annotations

import json
import re

import pytest

pytestmark = pytest.mark.ui

LABELS = ("tabby", "dog", "rocket", "cup", "face", "horse", "lamp", "boat")


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]').replace("\u202f", " ")


def choose_method(page, title):
    page.click("#vizattn-method input")
    page.click(f'#vizattn-method [role="option"] >> text="{title}"')


def wait_until_run(page, act):
    page.evaluate(
        "document.dispatchEvent(new CustomEvent('vizattn:status', {detail: {kind: 'idle'}}))"
    )
    act()
    page.wait_for_selector('.va-status:is([data-kind="done"], [data-kind="error"])')
    assert page.get_attribute(".va-status", "data-kind") == "done", page.inner_text(".va-status")
    page.wait_for_function(
        "document.querySelector('.va-status').dataset.shows === __vizattn.shown()"
    )


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A tiny classifier as a folder, whose name can be typed in."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("classifier")
    config = ViTConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        image_size=32, patch_size=8, id2label=dict(enumerate(LABELS)),
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    about = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


def test_classes_are_found_by_name_chosen_by_keys_and_shown_side_by_side(
    open_app, new_page, classifier
):
    page = open_app()
    assert not page.is_visible(".va-target")  # raw attention asks nobody
    assert "This map is the same for every class." in text(page, "hint")
    choose_method(page, "Attention × gradient (GAE)")
    page.fill("#vizattn-model input", f"hf/{classifier}")
    page.keyboard.press("Enter")
    page.click('.va-target [data-part="open"]')
    page.wait_for_selector('.va-target [role="option"]')
    options = page.locator('.va-target [role="option"]').all_inner_texts()
    assert options[0] == "Top class"
    assert len(options) == 1 + 5 + len(LABELS)
    shares = [float(re.search(r"([\d.]+)\s%", option)[1]) for option in options[1:6]]
    assert shares == sorted(shares, reverse=True)
    page.keyboard.type("bo")
    page.keyboard.press("Enter")
    page.fill('.va-target [data-part="search"]', "do")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.dataset.part") == "open"
    assert page.inner_text('.va-target [data-part="open"]') == "boat, dog"
    wait_until_run(page, lambda: page.click("#vizattn-run"))
    said = page.locator('.va-viewer [data-pane="sentence"]').all_inner_texts()
    assert len(said) == 2
    assert "for class 'boat' with logit" in said[0]
    assert "for class 'dog' with logit" in said[1]
    page.click(".va-picker .thumbs button >> nth=1")  # another picture: its names are known still
    assert page.inner_text('.va-target [data-part="open"]') == "boat, dog"
    page.wait_for_url("**target=**view=compare**")
    fresh = new_page()
    fresh.goto(page.url)
    fresh.wait_for_function(
        "[...document.querySelectorAll('[data-pane=sentence]')].map(each => each.innerText)"
        f".join() === {json.dumps(','.join(said))}"
    )
    assert fresh.inner_text('.va-target [data-part="open"]') == "boat, dog"


def test_without_classes_a_click_in_the_picture_chooses_the_patch_and_runs(open_app):
    page = open_app()
    choose_method(page, "LeGrad")
    page.click('.va-target [data-part="open"]')
    page.click('.va-target input[value="patch"]')
    assert not page.is_visible('.va-target input[value="text"]')  # DINOv2 has no tower for text
    box = page.locator('[data-part="photo"]').bounding_box()

    def click():
        page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])

    wait_until_run(page, click)
    assert text(page, "sentence").startswith("LeGrad — what speaks for the patch at row 13, col")
    assert page.is_visible('[data-part="aimMark"]')
    page.click('.va-header [data-value="ko"]')
    assert text(page, "sentence").startswith("LeGrad — 13행 19열 패치 (코사인 0.")


@pytest.mark.parametrize(("spread", "says"), [(0.04, True), (0.06, False)])
def test_a_map_that_is_nearly_flat_says_so(show, make_payload, spread, says):
    page = show(make_payload([[[[1.0, 1.0 + spread]]]], prefix_mass=[[[0.0]]]))
    assert ("Nearly flat: what the colours show is noise." in text(page, "detail")) is says
