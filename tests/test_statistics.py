"""Numbers of heads, against slow loops in float64, by hand, and by laws."""

import json
import math

import pytest
import torch
from samples import dense, randomised

from vizattn import attention
from vizattn.errors import FrameError, MethodError
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.layers import DenseAttention
from vizattn.places import Tokens
from vizattn.record import AttentionRecord
from vizattn.statistics import NUMBERS, head_statistics, layer_statistics


def looking(weights, grid, frame=None, queries=None):
    """A record of one layer with these weights, ``[head, query, key]``."""
    weights = torch.as_tensor(weights)
    frame = frame or Frame(0, 0, grid.cols, grid.rows)
    sides = (queries or Tokens(grid, frame), Tokens(grid, frame))
    layer = DenseAttention("blocks.0.attn", "self", *sides, "", True, weights)
    return AttentionRecord((layer,), frame, (grid.rows, grid.cols))


def whole_matrix(layer):
    """All weights between tokens of the grids, ``[head, query, key]``, window by window."""
    if layer.queries.index is None:
        return dense(layer)
    matrix = torch.zeros(layer.n_heads, layer.n_queries, layer.n_keys, dtype=torch.float64)
    for window, (asking, seen) in enumerate(
        zip(layer.queries.index, layer.keys.index, strict=True)
    ):
        lead = slice(window * layer.n_heads, (window + 1) * layer.n_heads)
        matrix[:, asking.unsqueeze(1), seen] = layer.weights[lead].double()
    return matrix


def slowly(layer, matrix):
    """Entropy, distances and sink of every head by loops over pairs of tokens."""
    queries, keys = layer.queries, layer.keys
    columns, first = keys.grid.cols, keys.grid.prefix
    high, wide = keys.frame.height / keys.grid.rows, keys.frame.width / columns
    found = []
    for head in matrix.tolist():
        bits = [-sum(a * math.log2(a) for a in row if a > 0) for row in head]
        near, far = [], []
        for i, row in enumerate(head[queries.grid.prefix :]):
            total = sum(row[first:])
            steps = [
                (i // columns - j // columns, i % columns - j % columns)
                for j in range(keys.grid.n_patches)
            ]
            shares = [a / total for a in row[first:]]
            near.append(sum(a * math.hypot(y, x) for a, (y, x) in zip(shares, steps, strict=True)))
            far.append(
                sum(
                    a * math.hypot(y * high, x * wide)
                    for a, (y, x) in zip(shares, steps, strict=True)
                )
            )
        drawn = [sum(row[j] for row in head) / len(head) for j in range(keys.grid.n_tokens)]
        sink = max(drawn)
        found.append(
            (mean(bits), mean(near), mean(far), sink, drawn.index(sink), sum(drawn[:first]))
        )
    return torch.tensor(found, dtype=torch.float64).T


def mean(numbers):
    return sum(numbers) / len(numbers)


def agrees_with_loops(record):
    for layer in record:
        found = layer_statistics(record, layer)
        expected = slowly(layer, whole_matrix(layer))
        for name, numbers in zip(NUMBERS[1:], expected, strict=False):
            ours = getattr(found, name).double()
            torch.testing.assert_close(ours, numbers, rtol=1e-5, atol=1e-6, msg=name)
        prefix = sum(found.mean_prefix.values(), torch.zeros(layer.n_heads))
        torch.testing.assert_close(prefix.double(), expected[5], rtol=1e-5, atol=1e-6)


def test_every_number_is_what_slow_loops_in_float64_give(record):
    agrees_with_loops(record)


@pytest.fixture
def swin():
    import timm

    return randomised(timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=(56, 112), window_size=7, depths=(2, 2),
        num_heads=(2, 4), embed_dim=16, num_classes=0,
    ))  # fmt: skip


def test_shifted_windows_lie_where_they_lie_on_the_picture(swin):
    from vizattn.capture import capture

    record = capture(swin, torch.randn(3, 56, 112))
    assert [layer.kind for layer in record][:2] == ["window", "window"]
    agrees_with_loops(record)


def test_the_query_is_asked_by_itself(record):
    found = head_statistics(record)
    aimed = head_statistics(record, at=(20, 40))  # 16 px patches: row 2, column 1, token 1 + 9
    for number, layer in enumerate(record):
        for row, ours in ((0, found), (10, aimed)):
            weights = dense(layer)[:, row]
            bits = -(weights * weights.log2()).sum(-1)
            torch.testing.assert_close(ours.query_entropy[number], bits, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(
                ours.query_prefix["class"][number], weights[:, 0], rtol=1e-5, atol=1e-6
            )
    for name in NUMBERS[1:]:
        assert torch.equal(getattr(found, name), getattr(aimed, name)), name


def test_a_head_that_looks_everywhere_alike_has_log2_of_n_bits():
    grid = TokenGrid(3, 5, prefix=1)
    found = head_statistics(looking(torch.full((2, 16, 16), 1 / 16), grid))
    assert found.mean_entropy.tolist() == [pytest.approx([4, 4])]
    assert found.query_entropy.tolist() == [pytest.approx([4, 4])]
    assert found.sink_share.tolist() == [pytest.approx([1 / 16, 1 / 16])]
    assert found.mean_prefix["class"].tolist() == [pytest.approx([1 / 16, 1 / 16])]


def test_a_head_that_looks_at_itself_has_no_bits_and_no_distance():
    grid = TokenGrid(2, 3, prefix=2)
    found = head_statistics(looking(torch.eye(8).unsqueeze(0), grid))
    for name in ("mean_entropy", "query_entropy", "distance", "pixel_distance"):
        assert getattr(found, name).tolist() == [[0.0]], name
    assert found.sink_share.item() == pytest.approx(1 / 8)


def test_a_sink_is_found_and_named():
    grid = TokenGrid(2, 2, prefix=1, roles=("register",))
    weights = torch.zeros(1, 5, 5)
    weights[:, :, 3] = 0.75
    weights[:, :, 0] = 0.25
    found = head_statistics(looking(weights, grid))
    assert (found.sink_share.item(), found.sink_token.item()) == (0.75, 3)
    assert found.mean_prefix["register"].item() == 0.25
    assert found.mean_entropy.item() == pytest.approx(0.75 * math.log2(4 / 3) + 0.25 * 2)


def test_distance_is_measured_without_prefix_tokens_in_patches_and_in_pixels():
    # Two patches side by side on a picture of 60 × 10 pixels: 30 pixels from middle to middle.
    grid, frame = TokenGrid(1, 2, prefix=1), Frame(0, 0, 60, 10)
    rows = [[1, 0, 0], [0.5, 0.25, 0.25], [0.2, 0.8, 0]]
    found = head_statistics(looking([rows], grid, frame))
    # first patch: half of what it gives to patches lies 1 away; second patch: all of it
    assert found.distance.item() == pytest.approx((0.5 + 1) / 2)
    assert found.pixel_distance.item() == pytest.approx(30 * (0.5 + 1) / 2)


def test_a_squashed_picture_has_patches_that_are_wider_than_high():
    frame = Frame(0, 0, 80, 20)
    weights = torch.eye(4)[[3, 3, 3, 3]].unsqueeze(0)  # all look at the lower right patch
    found = head_statistics(looking(weights, TokenGrid(2, 2), frame))
    assert found.distance.item() == pytest.approx((math.sqrt(2) + 1 + 1 + 0) / 4)
    assert found.pixel_distance.item() == pytest.approx((math.hypot(40, 10) + 10 + 40) / 4)


def test_merged_keys_are_measured_from_where_the_queries_lie():
    # 1 × 4 query patches, keys merged to 1 × 2; all look at the left key, whose middle is at 2.
    frame = Frame(0, 0, 8, 2)
    queries = Tokens(TokenGrid(1, 4), frame)
    weights = torch.tensor([[[1.0, 0.0]] * 4])
    found = head_statistics(looking(weights, TokenGrid(1, 2), frame, queries))
    # middles at 1, 3, 5, 7 pixels; a key's patch is 4 pixels wide
    assert found.pixel_distance.item() == pytest.approx((1 + 1 + 3 + 5) / 4)
    assert found.distance.item() == pytest.approx((1 + 1 + 3 + 5) / 4 / 4)


def test_blank_rows_are_left_out_and_rows_with_filling_are_made_whole():
    rows = torch.tensor([[[0.25, 0.25, 0], [0, 0, 0], [0, 0, 1.0]]])
    found = head_statistics(looking(rows, TokenGrid(1, 3)))
    assert found.mean_entropy.item() == pytest.approx((1 + 0) / 2)
    assert found.distance.item() == pytest.approx((0.5 + 0) / 2)
    assert found.sink_share.item() == pytest.approx(0.5)
    assert found.sink_token.item() == 2


def test_a_query_that_lost_something_to_filling_is_made_whole_and_a_blank_one_has_no_numbers():
    grid = TokenGrid(1, 2, prefix=1)
    filled = head_statistics(looking([[[0.1, 0.3, 0], [0, 1, 0], [0, 0, 1]]], grid))
    assert filled.query_prefix["class"].item() == pytest.approx(0.25)
    blank = layer_statistics(record := looking([[[0.0] * 3] * 3], grid), record[0]).plain()
    assert blank["query_entropy"] == blank["mean_entropy"] == blank["sink_token"] == [None]


def test_the_length_of_a_tile_changes_nothing(record, monkeypatch):
    whole = head_statistics(record)
    monkeypatch.setattr(attention, "TILE_FLOATS", 100)  # two rows at a time
    tiled = head_statistics(record)
    for name in NUMBERS:
        torch.testing.assert_close(getattr(tiled, name), getattr(whole, name))


def test_layers_with_fewer_heads_or_no_place_leave_gaps(swin):
    from vizattn.capture import capture

    record = capture(swin, torch.randn(3, 56, 112))
    blind = DenseAttention(
        "odd", "unknown", None, None, "its keys do not stand on a grid", True,
        torch.eye(3).unsqueeze(0),
    )  # fmt: skip
    record = AttentionRecord((*record.layers, blind), record.frame, record.input_size)
    found = head_statistics(record)
    assert found.n_heads == (2, 2, 4, 4, 1)
    assert found.mean_entropy.shape == (5, 4)
    there = torch.tensor([[1, 1, 0, 0]] * 2 + [[1, 1, 1, 1]] * 2 + [[0] * 4], dtype=torch.bool)
    assert torch.equal(~found.mean_entropy.isnan(), there)
    assert torch.equal(found.sink_token >= 0, there)
    with pytest.raises(MethodError, match="odd cannot be laid over the picture"):
        layer_statistics(record, blind)


def test_class_attention_has_a_query_but_no_distance():
    import timm

    from vizattn.capture import capture

    cait = timm.create_model(
        "cait_xxs24_224", img_size=64, embed_dim=32, depth=1, num_heads=2, num_classes=0
    )
    record = capture(randomised(cait), torch.randn(3, 64, 64))
    last = record[-1]
    assert last.kind == "class"
    found = layer_statistics(record, last)
    torch.testing.assert_close(found.mean_entropy, found.query_entropy)  # one token asks
    assert found.distance.isnan().all()
    assert layer_statistics(record, last, at=(5, 5)).query_entropy.isnan().all()
    assert found.plain()["distance"] == [None, None]


def test_numbers_of_a_layer_are_plain_json(record):
    plain = layer_statistics(record, record[0]).plain()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert set(plain) == {*NUMBERS, "query_prefix", "mean_prefix"}
    assert list(plain["query_prefix"]) == ["class"]


def test_a_pixel_that_the_model_did_not_see_is_refused(record):
    with pytest.raises(FrameError, match="did not see x=99"):
        head_statistics(record, at=(99, 0))
