"""An audit of every view with axe-core: nothing serious may be found."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ui

VIEWS = ("picture", "wall", "compare")


@pytest.fixture
def serious(browser):
    """Serious and critical findings on a page, as short sentences."""
    axe_playwright = pytest.importorskip("axe_playwright_python.sync_playwright")

    def find(page):
        found = axe_playwright.Axe().run(page).response["violations"]
        return [
            f"{each['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    return find


def open_view(page, view):
    page.click(f'[role="tab"][data-value="{view}"]')
    page.wait_for_selector(f'.va-viewer[data-view="{view}"]')


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_view_has_a_serious_finding(open_app, serious, view, scheme):
    page = open_app(color_scheme=scheme)
    open_view(page, view)
    assert serious(page) == []


@pytest.mark.parametrize("part", ["help", "export"])
def test_help_and_menu_have_no_serious_finding(open_app, serious, part):
    page = open_app()
    page.click(f'[data-part="{part}"]:is(button)')
    assert serious(page) == []


def test_on_a_phone_in_korean_there_is_no_serious_finding(open_app, serious):
    page = open_app(viewport={"width": 390, "height": 844}, has_touch=True, locale="ko-KR")
    assert serious(page) == []


def test_an_image_without_a_text_would_be_found(new_page, serious):
    page = new_page()
    page.set_content("<!doctype html><html lang=en><title>t</title><main><img src=x></main></html>")
    assert [finding.split(":")[0] for finding in serious(page)] == ["image-alt"]
