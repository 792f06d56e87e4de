"""Windows on the picture and rollout through them, against the whole matrices built by hand."""

import pytest
import timm
import torch
from samples import randomised

from vizattn.capture import capture
from vizattn.errors import MethodError
from vizattn.methods import RawAttention, Rollout


@pytest.fixture(scope="module")
def swin():
    """Two stages of two blocks, windows of 4×4 on 8×12 and 4×6 patches: shifted and padded."""
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=(32, 48), window_size=4, depths=(2, 2),
        embed_dim=16, num_heads=(2, 4), num_classes=3,
    )  # fmt: skip
    return randomised(model)


@pytest.fixture(scope="module")
def record(swin):
    return capture(swin, torch.randn(3, 32, 48, generator=torch.Generator().manual_seed(5)))


def windows_by_hand(rows, cols, shift, size=4):
    """Token numbers of each window, -1 for filling: roll, then fill up, then cut, as timm does."""
    numbers = torch.arange(rows * cols).view(rows, cols).roll((-shift[0], -shift[1]), (0, 1))
    filled = torch.full((-rows % size + rows, -cols % size + cols), -1)
    filled[:rows, :cols] = numbers
    return [
        filled[top : top + size, left : left + size].flatten()
        for top in range(0, filled.shape[0], size)
        for left in range(0, filled.shape[1], size)
    ]


def dense(layer, rows, cols, shift, *, conserve):
    """The whole matrix ``[head, query, key]`` of a windowed layer in float64."""
    whole = torch.zeros(layer.n_heads, rows * cols, rows * cols, dtype=torch.float64)
    for number, tokens in enumerate(windows_by_hand(rows, cols, shift)):
        seen = tokens >= 0
        lead = slice(number * layer.n_heads, (number + 1) * layer.n_heads)
        weights = layer.weights[lead][:, seen][:, :, seen].double()
        if conserve:
            mean = weights.mean(0, keepdim=True)
            weights = (mean / mean.sum(-1, keepdim=True)).expand_as(weights)
        inside = tokens[seen]
        whole[:, inside.unsqueeze(1), inside.unsqueeze(0)] = weights
    return whole


# Rows, columns and shift of each layer; one window high is not shifted upwards.
STAGES = [(8, 12, (0, 0)), (8, 12, (2, 2)), (4, 6, (0, 0)), (4, 6, (0, 2))]


def test_a_window_lies_where_it_lies_on_the_picture(record):
    assert [layer.kind for layer in record] == ["window"] * 4
    for layer, (rows, cols, shift) in zip(record, STAGES, strict=True):
        found = {tuple(window.tolist()) for window in layer.keys.index}
        assert found == {tuple(window.tolist()) for window in windows_by_hand(rows, cols, shift)}
        assert (layer.keys.frame.width, layer.keys.frame.height) == (48, 32)


def test_rows_and_columns_are_those_of_the_whole_matrix(record):
    for layer, stage in zip(record, STAGES, strict=True):
        whole = dense(layer, *stage, conserve=False)
        picked = [0, 7, layer.n_queries - 1]
        torch.testing.assert_close(layer.rows(picked).double(), whole[:, picked])
        torch.testing.assert_close(layer.columns(picked).double(), whole[..., picked])
        tiles = torch.cat([rows for _, rows in layer.tiles(7)], dim=1)
        torch.testing.assert_close(tiles.double(), whole)


def test_a_weighting_looks_at_what_its_rows_weighted_look_at(record):
    for layer, stage in zip(record, STAGES, strict=True):
        whole = dense(layer, *stage, conserve=False)
        one, many = torch.zeros(2, layer.n_queries, dtype=torch.float64)
        one[7], many[3:] = 1.0, torch.rand(layer.n_queries - 3, dtype=torch.float64)
        for query in (one, many, 0 * one):
            expected = query @ whole
            attended = layer.attend(query.float()).double()
            torch.testing.assert_close(attended, expected, rtol=1e-5, atol=1e-6)


def test_outside_of_its_window_a_patch_looks_at_nothing(record):
    first = record[0].rows(0)[:, 0].view(2, 8, 12)
    assert (first[:, 4:] == 0).all()
    assert (first[:, :, 4:] == 0).all()
    torch.testing.assert_close(first.sum((1, 2)), torch.ones(2))


def merged_by_hand(rows, cols):
    """Patch merging as a matrix: each coarse patch is the mean of its four parts."""
    merge = torch.zeros(rows * cols // 4, rows * cols, dtype=torch.float64)
    for row in range(rows):
        for col in range(cols):
            merge[row // 2 * (cols // 2) + col // 2, row * cols + col] = 0.25
    return merge


@pytest.mark.parametrize("residual", [0.0, 0.5, 0.9])
def test_rollout_through_windows_and_merging_is_the_product_of_the_whole_matrices(record, residual):
    product = torch.eye(96, dtype=torch.float64)
    for number, (layer, stage) in enumerate(zip(record, STAGES, strict=True)):
        if number == 2:
            product = merged_by_hand(8, 12) @ product
        mean = dense(layer, *stage, conserve=True).mean(0)
        product = ((1 - residual) * mean + residual * torch.eye(len(mean))) @ product
    expected = torch.full((24,), 1 / 24, dtype=torch.float64) @ product
    heat = Rollout(residual=residual).heatmap(record)
    assert (heat.grid.rows, heat.grid.cols) == (8, 12)
    torch.testing.assert_close(heat.values.double().flatten(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(heat.values.sum(), torch.tensor(1.0))
    tiles = [rows for _, rows in Rollout(residual=residual).of_all_queries(record, 7)]
    assert [len(rows) for rows in tiles] == [7, 7, 7, 3]
    torch.testing.assert_close(torch.cat(tiles).double(), product, rtol=0, atol=1e-6)


def test_a_patch_of_the_last_stage_draws_on_its_own_corner_when_nothing_is_mixed(record):
    heat = Rollout(residual=1.0).heatmap(record, at=(47, 1))  # the upper right patch of 4 × 6
    expected = torch.zeros(8, 12)
    expected[:2, 10:] = 0.25
    torch.testing.assert_close(heat.values, expected)


def test_discarding_is_refused_where_a_matrix_is_mostly_no_weights(record):
    with pytest.raises(MethodError, match="it attends in windows"):
        Rollout(discard=0.5).heatmap(record)


def test_raw_attention_of_a_pixel_asks_each_layer_on_its_own_grid(record):
    maps = RawAttention().by_layer(record, at=(20.0, 10.0))
    assert [each.layer for each in maps] == [0, 1, 2, 3]
    for each, layer, (rows, cols, _) in zip(maps, record, STAGES, strict=True):
        token = int(10 / 32 * rows) * cols + int(20 / 48 * cols)
        torch.testing.assert_close(each.relevance, layer.rows(token)[:, 0])


def test_windows_saved_and_loaded_lie_where_they_lay(record, tmp_path):
    from vizattn.record import AttentionRecord

    loaded = AttentionRecord.load(record.save(tmp_path / "swin"))
    for ours, theirs in zip(loaded, record, strict=True):
        torch.testing.assert_close(ours.rows([3, 9]), theirs.rows([3, 9]))


@pytest.mark.parametrize("name", ["cait_xxs24_224", "xcit_nano_12_p16_224", "crossvit_tiny_240"])
def test_rollout_says_why_it_is_not_defined(name):
    model = timm.create_model(name, depth=1) if "crossvit" not in name else timm.create_model(name)
    size = timm.data.resolve_model_data_config(model)["input_size"]
    with pytest.raises(MethodError, match="rollout is not defined"):
        Rollout().heatmap(capture(model.eval(), torch.randn(*size)))


def test_relevance_of_the_class_token_comes_through_class_attention():
    """CaiT's class token joins after the patch layers: rollout of the class layers alone."""
    model = randomised(timm.create_model("cait_xxs24_224", img_size=64, depth=1, num_classes=0))
    record = capture(model, torch.randn(3, 64, 64))
    kinds = [layer.kind for layer in record]
    assert kinds == ["self", "class", "class"]
    heat = Rollout(start_layer=1).heatmap(record)
    first, second = (layer.rows(0).mean(0)[0].double() for layer in record[1:])
    # the class token keeps half, gives half to the second layer's row; its share of that row and
    # its own half are asked once more in the first
    after = 0.5 * second
    after[0] += 0.5
    expected = after[0] * (0.5 * first + 0.5 * torch.eye(17)[0].double())
    expected[1:] += after[1:]
    torch.testing.assert_close(heat.values.double().flatten(), expected[1:], rtol=0, atol=1e-6)
    torch.testing.assert_close(heat.prefix_mass[0].double(), expected[0], rtol=0, atol=1e-6)


def test_a_pooling_head_asks_with_its_own_row():
    model = timm.create_model("vit_base_patch16_siglip_224", img_size=64, depth=2, embed_dim=24,
                              num_heads=2)  # fmt: skip
    record = capture(randomised(model), torch.randn(3, 64, 64))
    head = record[-1]
    assert (head.kind, head.name) == ("pool", "attn_pool")
    own = head.rows(0).mean(0)[0]
    raw = RawAttention(layer=1).heatmap(record)
    expected = own @ record[1].rows(range(16)).mean(0)
    torch.testing.assert_close(raw.values.flatten(), expected)
    assert "what the pooling head attends to" in raw.sentence
    rolled = Rollout().heatmap(record)
    product = own
    for layer in (record[1], record[0]):
        product = 0.5 * product @ layer.rows(range(16)).mean(0) + 0.5 * product
    torch.testing.assert_close(rolled.values.flatten(), product, rtol=0, atol=1e-6)


def test_positions_are_carried_along_only_once_for_each_size(swin, monkeypatch):
    from vizattn import observation

    traces = []
    trace = observation._trace
    monkeypatch.setattr(observation, "_trace", lambda *a: (traces.append(1), trace(*a))[1])
    for size in ((32, 48), (32, 48), (32, 48)):
        capture(swin, torch.randn(3, *size))
    assert len(traces) <= 1
