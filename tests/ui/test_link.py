"""Links: the view comes back in a fresh browser, and nothing in a link is trusted."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

pytestmark = pytest.mark.ui

OPEN = ".va-viewer[data-state=open]"


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]').replace("\u202f", " ")


def state(page):
    return page.evaluate(
        "(() => { const {pointed, last, adding, playing, panes, ...rest} = __vizattn.state;"
        " return rest; })()"
    )


def rounded(found):
    pins = [[round(pin["x"]), round(pin["y"])] for pin in found["pins"]]
    return found | {"pins": pins}


def change_everything(page):
    page.focus('[data-part="stage"]')
    for key in ["ArrowLeft", "ArrowLeft", "ArrowDown", "Enter", "Shift+ArrowRight", "s"]:
        page.keyboard.press(key)
    for name, value in [("colours", "magma"), ("range", "layer"), ("unit", "times")]:
        page.click(f'[data-choice="{name}"] [data-value="{value}"]')
    page.click('[data-part="direction"] [data-value="from"]')
    page.select_option('[data-part="percentile"]', "99")
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")


def address(page):
    """The address once it has caught up with the view."""
    page.wait_for_function("location.search === '?' + __vizattn.link()")
    return page.url


def test_a_link_to_an_example_restores_the_exact_view_in_a_fresh_browser(open_app, new_page):
    page = open_app()
    page.click(".va-picker .thumbs button >> nth=3")
    page.click("#vizattn-run")
    page.wait_for_function("document.querySelector('.summary').innerText.startsWith('rocket')")
    change_everything(page)
    link = address(page)
    assert parse_qs(urlsplit(link).query)["picture"] == ["rocket.jpg"]
    fresh = new_page()
    fresh.goto(link)
    fresh.wait_for_selector(OPEN)
    fresh.wait_for_function("__vizattn.resolved().kind === 'patch'")
    assert rounded(state(fresh)) == rounded(state(page))
    assert text(fresh, "sentence") == text(page, "sentence")
    assert fresh.get_attribute('.va-picker [data-value="rocket.jpg"]', "aria-checked") == "true"


def test_a_link_carries_method_and_settings(open_app, new_page, app):
    page = open_app()
    page.goto(
        f"{app}?picture=chelsea.jpg&model=vizattn/dinov2-small&method=rollout"
        "&settings=%7B%22residual%22%3A0.9%7D&layer=4&base=off"
    )
    page.wait_for_selector(OPEN)
    assert text(page, "sentence").startswith("Attention rollout, layer 4 — ")
    assert page.input_value(".va-settings input >> nth=0") == "0.9"
    assert page.input_value("#vizattn-method input") == "Attention rollout"
    assert state(page)["base"] == "off"


def test_the_link_is_copied(open_app, app):
    page = open_app(permissions=["clipboard-read", "clipboard-write"])
    page.click("#vizattn-run")
    page.wait_for_selector(OPEN)
    page.click('[data-part="copy"]')
    page.wait_for_selector('[data-part="toast"].shown')
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(f"{app}?picture=chelsea.jpg&model=")


def test_an_id_that_is_gone_is_a_sentence(open_app, app):
    page = open_app()
    page.goto(f"{app}?id=nothing&layer=3")
    page.wait_for_selector('.va-status[data-kind="error"]')
    assert "no longer on the server" in page.inner_text(".va-status")


def test_nonsense_in_a_link_is_left_out(show, make_payload):
    page = show(
        make_payload([[[[0.5, 0.5]]]]),
        hash="layer=99&head=-1&view=<b>&percentile=7&opacity=NaN&pins=a,b%201&colours=__proto__",
    )
    assert text(page, "sentence").startswith("Layer 1, head 1")
    found = state(page)
    assert (found["view"], found["percentile"], found["opacity"]) == ("picture", 99.5, 85)
    assert (found["colours"], found["pins"]) == ("viridis", [])


@pytest.mark.parametrize("name", ["../examples/chelsea.jpg", "/etc/passwd", "<img onerror=1>"])
def test_only_examples_can_be_named(open_app, app, name):
    page = open_app()
    page.goto(f"{app}?picture={name}&model=vizattn/dinov2-small&method=raw")
    page.wait_for_selector('.va-status[data-kind="error"]')
    assert not page.is_visible(".va-viewer .body")
