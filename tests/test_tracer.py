"""Positions carried through operations: expected places are worked out by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vizattn.tracer import PositionTracer


def traced(build, height=8, width=12):
    """Positions of what ``build`` makes of a picture: y, x and seen, as plain tensors."""
    pixels = torch.randn(1, 3, height, width)
    tracer = PositionTracer(pixels)
    with torch.no_grad(), tracer:
        result = build(pixels)
    shadow = tracer.shadow(result)
    if shadow is None:
        return None
    assert shadow.shape == result.shape
    if shadow.is_lost:
        return "lost"
    return shadow.y, shadow.x, shadow.seen


def patches(pixels, size=4):
    """Tokens ``[1, rows × cols, 5]`` by a patch embedding of 4×4 pixels."""
    return nn.Conv2d(3, 5, size, size)(pixels).flatten(2).transpose(1, 2)


MIDDLES_Y = torch.tensor([2.0, 2, 2, 6, 6, 6])  # 8 × 12 pixels in patches of 4: 2 rows of 3
MIDDLES_X = torch.tensor([2.0, 6, 10, 2, 6, 10])


def assert_at(cast, y, x, token=(0, slice(None), 0)):
    torch.testing.assert_close(cast[0][token], torch.as_tensor(y), equal_nan=True)
    torch.testing.assert_close(cast[1][token], torch.as_tensor(x), equal_nan=True)


def test_a_patch_embedding_puts_tokens_in_the_middle_of_their_patches():
    assert_at(traced(patches), MIDDLES_Y, MIDDLES_X)


def test_a_rearrangement_and_a_linear_layer_do_the_same():
    from einops.layers.torch import Rearrange

    embed = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4),
        nn.LayerNorm(48),
        nn.Linear(48, 5),
    )
    assert_at(traced(embed), MIDDLES_Y, MIDDLES_X)


def test_learnt_tokens_stand_nowhere_wherever_they_are_put():
    learnt = nn.Parameter(torch.zeros(1, 2, 5))
    nan = torch.tensor([torch.nan])
    front = traced(lambda p: torch.cat([learnt[:, :1], patches(p), learnt[:, 1:]], 1))
    assert_at(front, torch.cat([nan, MIDDLES_Y, nan]), torch.cat([nan, MIDDLES_X, nan]))
    assert (front[2] == 1).all()  # learnt is not filling


def test_position_embeddings_norms_and_activations_move_nothing():
    position = nn.Parameter(torch.randn(1, 6, 5))
    norm = nn.LayerNorm(5)
    assert_at(traced(lambda p: F.gelu(norm(patches(p) + position)) * 2), MIDDLES_Y, MIDDLES_X)


def test_rolling_and_cutting_windows_moves_positions_alike():
    def windows(pixels):
        grid = patches(pixels, 2).view(1, 4, 6, 5).roll((-1, -2), (1, 2))
        return grid.view(1, 2, 2, 3, 2, 5).permute(0, 1, 3, 2, 4, 5).reshape(6, 4, 5)

    y, x, _ = traced(windows)
    rows, cols = torch.arange(4), torch.arange(6)
    expected_y = (2 * rows + 1.0).roll(-1)
    expected_x = (2 * cols + 1.0).roll(-2)
    for number in range(6):
        r, c = 2 * (number // 3), 2 * (number % 3)
        torch.testing.assert_close(y[number, :, 0], expected_y[[r, r, r + 1, r + 1]])
        torch.testing.assert_close(x[number, :, 0], expected_x[[c, c + 1, c, c + 1]])


def test_filling_continues_the_picture_and_is_marked_unseen():
    cast = traced(lambda p: F.pad(patches(p).view(1, 2, 3, 5), (0, 0, 1, 1, 0, 2)))
    y, x, seen = (part[0, ..., 0] for part in cast)
    torch.testing.assert_close(y[:, 1], torch.tensor([2.0, 6, 10, 14]))
    torch.testing.assert_close(x[0], torch.tensor([-2.0, 2, 6, 10, 14]))
    assert seen.sum() == 6
    assert (seen[:2, 1:4] == 1).all()


def test_filling_is_taken_away_again():
    cast = traced(lambda p: F.pad(F.pad(patches(p).view(1, 2, 3, 5), (0, 0, 0, 1)), (0, 0, 0, -1)))
    assert_at(cast, MIDDLES_Y.view(2, 3), MIDDLES_X.view(2, 3), (0, slice(None), slice(None), 0))


def test_merged_patches_stand_in_the_middle_of_their_parts():
    merge = nn.Linear(20, 7)

    def merged(pixels):
        grid = patches(pixels, 2).view(1, 4, 6, 5)
        parts = [grid[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return merge(torch.cat(parts, -1)).flatten(1, 2)

    assert_at(traced(merged), MIDDLES_Y, MIDDLES_X)


@pytest.mark.parametrize("kind", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.Conv2d(3, 3, 2, 2)])
def test_pooling_stands_in_the_middle(kind):
    y, x, _ = traced(lambda p: kind(p).flatten(2))
    expected = torch.arange(1.0, 8, 2).repeat_interleave(6), torch.arange(1.0, 12, 2).repeat(4)
    assert_at((y, x), *expected, (0, 0, slice(None)))


def test_a_padded_convolution_with_stride_keeps_an_even_lattice_to_the_border():
    y, x, _ = traced(lambda p: nn.Conv2d(3, 2, 3, 2, 1)(p))
    torch.testing.assert_close(y[0, 0, :, 0], torch.tensor([0.5, 2.5, 4.5, 6.5]))
    torch.testing.assert_close(x[0, 0, 0], torch.arange(0.5, 12, 2))


def test_attention_returns_its_result_where_the_query_stood():
    def attend(pixels):
        tokens = patches(pixels)
        return F.scaled_dot_product_attention(tokens[:, :2], tokens, tokens)

    assert_at(traced(attend), MIDDLES_Y[:2], MIDDLES_X[:2])


def test_the_same_without_a_fused_kernel():
    def attend(pixels):
        tokens = patches(pixels)
        return (tokens[:, :2] @ tokens.mT).softmax(-1) @ tokens

    assert_at(traced(attend), MIDDLES_Y[:2], MIDDLES_X[:2])


def test_values_on_the_left_of_the_weights_do_too():
    def attend(pixels):
        tokens = patches(pixels)
        return tokens.mT @ (tokens[:, :2] @ tokens.mT).softmax(-1).mT

    assert_at(traced(attend), MIDDLES_Y[:2], MIDDLES_X[:2], (0, 0, slice(None)))


def test_a_summary_of_the_whole_picture_stands_nowhere():
    cast = traced(lambda p: torch.cat([patches(p).mean(1, keepdim=True), patches(p)], 1))
    nan = torch.tensor([torch.nan])
    assert_at(cast, torch.cat([nan, MIDDLES_Y]), torch.cat([nan, MIDDLES_X]))


def test_what_does_not_come_from_the_picture_has_no_positions():
    words = nn.Parameter(torch.randn(1, 4, 5))
    assert traced(lambda _: words * 2) is None


def test_tokens_that_were_drawn_are_found_and_the_draw_is_noted():
    order = torch.tensor([4, 0, 3])
    pixels = torch.randn(1, 3, 8, 12)
    tracer = PositionTracer(pixels)
    with torch.no_grad(), tracer:
        kept = patches(pixels)[:, order]
    shadow = tracer.shadow(kept)
    torch.testing.assert_close(shadow.y[0, :, 0], MIDDLES_Y[order])
    assert tracer.depends_on_picture


@pytest.mark.parametrize("mix", [torch.fft.fft, lambda x: x.sort(1).values, lambda x: x.cumsum(1)])
def test_what_mixes_all_tokens_in_one_step_loses_their_positions(mix):
    assert traced(lambda p: mix(patches(p))) == "lost"


def test_an_operation_without_a_rule_loses_positions_and_raises_nothing():
    assert traced(lambda p: torch.cdist(patches(p), patches(p))) == "lost"
