"""Positions carried through operations, each against a place worked out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from vizattn.positions import of_picture
from vizattn.tracer import PositionTracer


def traced(run, height=8, width=8, channels=3):
    """The shadow of what ``run`` makes of a picture."""
    pixels = torch.randn(1, channels, height, width)
    tracer = PositionTracer(pixels)
    with torch.no_grad(), tracer:
        made = run(pixels)
    return tracer.shadow(made)


def columns(shadow):
    return shadow.x[0, 0, 0].tolist()


def test_pixels_stand_at_their_centres():
    assert columns(of_picture(torch.zeros(1, 3, 2, 4))) == [0.5, 1.5, 2.5, 3.5]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Conv2d(3, 4, 2, 2), [1, 3, 5, 7]),  # pixels 0 and 1 meet at 1
        (nn.Conv2d(3, 4, 3, 2, 1), [0.5, 2.5, 4.5, 6.5]),  # around pixels 0, 2, 4, 6
        (nn.Conv2d(3, 4, 3, 2, 2, dilation=2), [0.5, 2.5, 4.5, 6.5]),
        (nn.MaxPool2d(4), [2, 6]),
        (nn.ConvTranspose2d(3, 4, 2, 2), [0.25 + i / 2 for i in range(16)]),
        (nn.ConvTranspose2d(3, 4, 4, 2, 1), [0.25 + i / 2 for i in range(16)]),
        (nn.Upsample(scale_factor=2), [0.25 + i / 2 for i in range(16)]),
    ],
    ids=repr,
)  # fmt: skip
def test_a_window_stands_in_its_middle(layer, expected):
    assert columns(traced(layer)) == expected


def test_a_residual_stream_stays_where_it_is_when_its_branch_is_shifted():
    shifted = nn.Sequential(nn.ZeroPad2d((1, 0, 1, 0)), nn.Conv2d(3, 3, 2))
    assert columns(traced(shifted)) == [0, 1, 2, 3, 4, 5, 6, 7]
    for block in (lambda x: shifted(x) + x, lambda x: x + shifted(x)):
        assert columns(traced(lambda x, block=block: block(block(x)))) == [
            i + 0.5 for i in range(8)
        ]


def test_what_is_written_over_takes_the_place_of_what_is_written():
    assert columns(traced(lambda x: x.clone().copy_(x.flip(-1)))) == [7.5 - i for i in range(8)]


def test_what_is_written_into_a_part_is_there_in_the_whole():
    def written(x):
        whole = x.new_zeros(1, 3, 8, 12)
        whole[..., 2:10] = x
        return whole

    shadow = traced(written)
    assert columns(shadow)[2:10] == [i + 0.5 for i in range(8)]
    assert shadow.x[..., :2].isnan().all()
    assert shadow.x[..., 10:].isnan().all()


def test_unfolding_goes_on_with_the_picture_into_the_filling_around_it():
    shadow = traced(lambda x: F.unfold(x, 3, padding=1, stride=4))
    first = shadow.x[0, :3, 0], shadow.seen[0, :3, 0]  # the first window, upper row: filling
    assert first[0].tolist() == [-0.5, 0.5, 1.5]
    assert first[1].tolist() == [0, 0, 0]
    assert shadow.seen[0, 3:6, 0].tolist() == [0, 1, 1]


def test_positions_vary_beside_a_token_that_stands_nowhere():
    shadow = traced(lambda x: torch.cat([torch.zeros(1, 3, 8, 1), x], -1))
    assert shadow.varies(-1)
    assert not shadow.varies(1)


def test_pooling_over_the_ends_of_rows_loses_positions():
    def pooled(x):
        return F.avg_pool1d(x.flatten(2), 6)  # six of a row of eight, then over its end

    assert traced(pooled).is_lost
    assert not traced(lambda x: F.avg_pool1d(x[:, :, 0], 2)).is_lost


@pytest.mark.parametrize(
    "scramble",
    [
        lambda x: x.sort(-1).values,
        lambda x: x.topk(3).values,
        lambda x: torch.fft.rfft2(x).abs(),
        lambda x: torch.linalg.det(x @ x.mT),  # no rule is for it
    ],
    ids=["sort", "topk", "rfft2", "det"],
)
def test_an_order_that_numbers_decide_is_lost(scramble):
    shadow = traced(scramble)
    assert shadow is not None
    assert shadow.is_lost
