"""Asking in the browser: every row and column that it computes, against the library's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.ui


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]').replace("\u202f", " ")


def shown(page):
    """The map on show: all tokens, prefix first, as the browser computed them."""
    return np.array(
        page.evaluate(
            "(() => { const {prefix, values} = __vizattn.map(); return [...prefix, ...values]; })()"
        )
    )


def go(page, layer, head=1):
    page.evaluate(f"Object.assign(__vizattn.state, {{layer: {layer}, head: {head}}})")


def middle(page, tokens, row, col):
    """Page coordinates of the middle of a patch of some grid, counted from 0."""
    photo = page.locator('[data-part="photo"]').bounding_box()
    picture = page.evaluate("[photo => [photo.naturalWidth, photo.naturalHeight]][0]"
                            "(document.querySelector('[data-part=photo]'))")  # fmt: skip
    frame, grid = tokens.frame, tokens.grid
    x = frame.left + (col + 0.5) * frame.width / grid.cols
    y = frame.top + (row + 0.5) * frame.height / grid.rows
    return photo["x"] + x / picture[0] * photo["width"], photo["y"] + y / picture[1] * photo[
        "height"
    ]


def ask(page, tokens, row, col):
    """Point at a patch and wait until its row is on show."""
    page.mouse.move(2, 2)
    page.mouse.move(*middle(page, tokens, row, col))
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")


def turn(page, direction):
    page.click(f'[data-part="direction"] [data-value="{direction}"]')


def distance(found, true):
    """Total variation between two maps of shares."""
    return 0.5 * np.abs(found - true.double().numpy()).sum()


def test_pointing_at_a_patch_shows_its_row_of_every_layer_and_head(show, show_record, record):
    page = show(show_record(record))
    for number, layer in enumerate(record):
        for head in range(layer.n_heads):
            go(page, number + 1, head + 1)
            ask(page, layer.queries, 1, 2)
            true = layer.rows(layer.queries.grid.patch_index(1, 2))[head, 0]
            assert distance(shown(page), true) < 1e-3


def test_turned_round_the_column_of_the_patch_is_shown(show, show_record, record):
    page = show(show_record(record))
    turn(page, "from")
    go(page, 2, 2)
    ask(page, record[1].queries, 3, 0)
    true = record[1].columns(record[1].keys.grid.patch_index(3, 0))[1, :, 0]
    np.testing.assert_allclose(shown(page), true, rtol=5e-3, atol=1e-5)
    assert text(page, "sentence") == (
        "Layer 2, head 2 — which patches attend to the patch at row 4, column 1."
    )
    assert text(page, "massTitle") == "Attention received"


def test_the_mean_of_all_heads_is_the_mean_of_their_rows(show, show_record, record):
    page = show(show_record(record))
    ask(page, record[-1].queries, 0, 3)
    true = record[-1].rows(record[-1].queries.grid.patch_index(0, 3)).mean(0)[0]
    assert page.evaluate("__vizattn.state.head") == "mean"
    assert distance(shown(page), true) < 1e-3


def test_a_row_sums_to_one(show, show_record, record):
    page = show(show_record(record))
    ask(page, record[-1].queries, 2, 2)
    assert shown(page).sum() == pytest.approx(1, abs=1e-4)


def make_record(name, size=64, **options):
    """A record of a small model whose attention is far from uniform."""
    import timm

    from vizattn.capture import capture

    model = timm.create_model(name, num_classes=5, **options).eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 1.5 / parameter.shape[-1] ** 0.5, generator=generator)
    return capture(model, torch.randn(3, size, size, generator=generator))


def as_queries_and_keys(layer):
    """A layer in the same places with queries, keys and a bias with masked entries."""
    from vizattn.layers import LayerAttention

    generator = torch.Generator().manual_seed(4)
    lead, tokens = layer.weights.shape[:2]
    q, k = torch.randn(2, lead, tokens, 6, generator=generator).unbind()
    bias = torch.randn(lead, tokens, tokens, generator=generator)
    bias[:, :, 0] = -torch.inf
    about = (layer.name, layer.kind, layer.queries, layer.keys, "", True)
    return LayerAttention(*about, q, k, scale=0.7, bias=bias)


@pytest.mark.parametrize("form", ["weights", "queries and keys"])
def test_in_a_window_the_row_lies_where_the_window_lies(show, show_record, form):
    record = make_record(
        "swin_tiny_patch4_window7_224", img_size=64, window_size=4, embed_dim=16, depths=(2, 2),
        num_heads=(1, 2), patch_size=4,
    )  # fmt: skip
    if form == "queries and keys":
        record = replace(record, layers=tuple(map(as_queries_and_keys, record)))
    page = show(show_record(record))
    assert any(layer.n_windows > 1 for layer in record)
    for number, layer in enumerate(record):
        go(page, number + 1, layer.n_heads)
        ask(page, layer.queries, 5, 6)
        token = layer.queries.grid.patch_index(5, 6)
        assert distance(shown(page), layer.rows(token)[-1, 0]) < 2e-3
    turn(page, "from")
    ask(page, record[1].queries, 5, 6)
    go(page, 2, 1)
    ask(page, record[1].queries, 2, 6)
    token = record[1].keys.grid.patch_index(2, 6)
    np.testing.assert_allclose(shown(page), record[1].columns(token)[0, :, 0], rtol=1e-2, atol=1e-4)


def test_where_queries_and_keys_have_grids_of_their_own_both_are_kept_apart(show, show_record):
    record = make_record("pvt_v2_b0", depths=(1, 1, 1, 1))
    number, layer = next(
        (i, layer) for i, layer in enumerate(record) if layer.queries.grid != layer.keys.grid
    )
    page = show(show_record(record))
    go(page, number + 1)
    ask(page, layer.queries, 2, 1)
    true = layer.rows(layer.queries.grid.patch_index(2, 1))[0, 0]
    assert distance(shown(page), true) < 2e-3
    box = page.locator('[data-part="askedMark"]').bounding_box()
    photo = page.locator('[data-part="photo"]').bounding_box()
    assert box["width"] == pytest.approx(photo["width"] / layer.queries.grid.cols, abs=1)


def test_a_layer_that_keeps_its_weights_gives_their_rows(show, show_record, record):
    from vizattn.layers import DenseAttention

    dense = [
        DenseAttention(layer.name, layer.kind, layer.queries, layer.keys, "", False,
                       layer.rows(range(layer.n_queries)))
        for layer in record
    ]  # fmt: skip
    page = show(show_record(replace(record, layers=tuple(dense))))
    ask(page, record[-1].queries, 1, 1)
    go(page, len(record), 2)
    ask(page, record[-1].queries, 1, 2)
    true = record[-1].rows(record[-1].queries.grid.patch_index(1, 2))[1, 0]
    assert distance(shown(page), true) < 1e-3
    assert "mixes its heads" in text(page, "hint")


def test_the_class_token_the_mean_and_the_direction_are_buttons(show, show_record, record):
    page = show(show_record(record))
    layer = record[-1]
    go(page, len(record), 1)
    page.click('[data-part="asks"] button >> text="Mean of patches"')
    page.wait_for_function("__vizattn.resolved().kind === 'mean'")
    rows = layer.rows(range(1, layer.n_queries))[0]
    assert distance(shown(page), rows.mean(0)) < 1e-3
    turn(page, "from")
    columns = layer.columns(range(1, layer.n_keys))[0].mean(1)
    np.testing.assert_allclose(shown(page), columns, rtol=5e-3, atol=1e-5)
    page.click('[data-part="asks"] button >> text="Class token"')
    np.testing.assert_allclose(shown(page), layer.columns(0)[0, :, 0], rtol=5e-3, atol=1e-5)
    assert text(page, "sentence").endswith("which patches attend to the class token.")


def test_free_the_pointer_asks_and_pinned_it_reads(show, show_record, record):
    page = show(show_record(record))
    place = record[-1].queries
    ask(page, place, 1, 1)
    assert not page.is_visible('[data-part="tip"]')
    page.mouse.click(*middle(page, place, 1, 1))
    page.mouse.move(*middle(page, place, 2, 3))
    page.wait_for_selector('[data-part="tip"]')
    assert text(page, "sentence").endswith("what the patch at row 2, column 2 attends to.")
    assert text(page, "tip").startswith("3, 4 · ")
    page.keyboard.press("ArrowLeft")  # the question survives a change of the layer
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")
    assert text(page, "sentence").startswith("Layer 2, mean of all heads — what the patch at row 2")
    page.keyboard.press("Escape")
    page.mouse.move(2, 2)
    page.wait_for_function("__vizattn.resolved().kind === 'own'")


def test_a_second_pinned_patch_asks_along_half_and_half(show, show_record, record):
    page = show(show_record(record))
    layer = record[-1]
    page.mouse.click(*middle(page, layer.queries, 0, 0))
    page.keyboard.down("Shift")
    page.mouse.click(*middle(page, layer.queries, 3, 3))
    page.keyboard.up("Shift")
    page.wait_for_function("__vizattn.resolved().patches?.length === 2")
    asked = [layer.queries.grid.patch_index(*patch) for patch in [(0, 0), (3, 3)]]
    assert distance(shown(page), layer.rows(asked).mean((0, 1))) < 1e-3
    assert text(page, "askPatch") == "Patch 1, 1 + 4, 4"
    page.click('[data-part="askSecond"]')
    page.wait_for_function("__vizattn.resolved().patches.length === 1")


def test_keys_alone_pin_move_and_release_a_patch_and_turn_the_direction(show, show_record, record):
    page = show(show_record(record))
    page.focus('[data-part="stage"]')
    page.keyboard.press("Enter")
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")
    for key in ["Shift+ArrowUp"] * 4 + ["Shift+ArrowLeft"] * 4 + ["Shift+ArrowRight", "d"]:
        page.keyboard.press(key)
    assert text(page, "askPatch") == "Patch 1, 2"
    assert "which patches attend to the patch at row 1, column 2" in text(page, "sentence")
    page.keyboard.press("Escape")
    assert text(page, "sentence").endswith("which patches attend to the class token.")


def test_a_tap_pins_and_a_second_tap_on_the_same_patch_releases(show, show_record, record):
    page = show(show_record(record), has_touch=True, viewport={"width": 390, "height": 844})
    where = middle(page, record[-1].queries, 2, 0)
    page.touchscreen.tap(*where)
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")
    assert text(page, "askPatch") == "Patch 3, 1"
    page.touchscreen.tap(*where)
    page.wait_for_function("__vizattn.state.pins.length === 0")


def test_a_layer_in_which_no_patch_asks_says_so_and_shows_its_own_query(show, show_record):
    record = make_record("cait_xxs24_224", img_size=64, depth=2, embed_dim=32, num_heads=2)
    number = next(i for i, layer in enumerate(record) if layer.kind == "class")
    page = show(show_record(record))
    go(page, number + 1, 1)
    page.mouse.move(*middle(page, record[number].keys, 1, 1))
    page.wait_for_selector('[data-part="tip"]')
    assert page.is_disabled('[data-part="askPatch"]')
    assert text(page, "sentence").endswith("what the class token attends to.")
