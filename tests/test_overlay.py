import numpy as np
import pytest
import torch
from PIL import Image

from vizattn.errors import MethodError, UnknownName
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.heatmap import Heatmap
from vizattn.overlay import COLOUR_MAPS, colour_indices, colour_table, overlay


def heat(values, frame=None):
    values = torch.as_tensor(values)
    rows, cols = values.shape
    grid = TokenGrid(rows, cols)
    return Heatmap(values, grid, frame or Frame(0, 0, 10 * cols, 10 * rows), torch.zeros(0))


def black(width, height):
    return Image.new("RGB", (width, height))


@pytest.mark.parametrize("name", COLOUR_MAPS)
def test_colours_grow_lighter_from_first_to_last(name):
    light = colour_table(name).astype(float) @ [0.2126, 0.7152, 0.0722]
    assert colour_table(name).shape == (256, 3)
    assert (np.diff(light) > -1.5).all()  # rounding to 8 bits aside, never darker
    assert light[-1] - light[0] > 100


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_coldest_takes_the_first_colour_and_the_hottest_the_last(dtype):
    values = torch.tensor([[0.0, 0.5, 1.0]], dtype=dtype)
    assert colour_indices(values, top=1.0).tolist() == [[0, 128, 255]]


def test_eight_bit_numbers_do_not_wrap():
    values = torch.tensor([[0, 128, 255]], dtype=torch.uint8).float()
    assert colour_indices(values, top=255.0).tolist() == [[0, 128, 255]]


def test_values_above_the_top_take_the_last_colour_and_below_zero_the_first():
    values = torch.tensor([-3.0, 2.0, float("nan")])
    assert colour_indices(values, top=1.0).tolist() == [0, 255, 0]


def test_a_constant_zero_map_takes_the_first_colour_without_dividing_by_zero():
    assert colour_indices(torch.zeros(2, 2), top=0.0).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("name", COLOUR_MAPS)
def test_the_hottest_patch_of_an_opaque_overlay_has_the_last_colour(name):
    drawn = overlay(black(30, 10), heat([[0.0, 0.2, 0.9]]), colours=name, opacity=1.0, top=0.9)
    assert (drawn[:, 20:] == colour_table(name)[255]).all()


def test_what_speaks_for_and_against_lies_on_both_sides_of_white():
    drawn = overlay(black(50, 10), heat([[-1.0, -0.5, 0.0, 0.5, 1.0]]), opacity=1.0, top=1.0)
    first, low, zero, high, last = (drawn[5, x].astype(int) for x in range(5, 50, 10))
    assert (zero <= 3).all()  # nothing there: as clear as the picture, which is black
    assert tuple(first) == tuple(colour_table("signed")[0])
    assert tuple(last) == tuple(colour_table("signed")[255])
    assert first[2] > 2 * first[0]  # blue against
    assert last[0] > 2 * last[2]  # red for
    assert low[2] > low[0]
    assert high[0] > high[2]
    table = colour_table("signed").astype(int)
    assert (table[127] > 240).all()


def test_the_scale_of_signed_values_reaches_as_far_down_as_up():
    values = torch.zeros(20, 20)
    values[0, :10] = -4.0  # 2.5 % of the patches: more than what is above the percentile
    values[1, 0] = 1.0
    drawn = overlay(black(200, 200), heat(values), opacity=1.0)
    assert tuple(drawn[5, 5]) == tuple(colour_table("signed")[0])
    red = drawn[15, 5].astype(float)
    assert 0 < red[0] < 0.5 * 255  # a quarter of the way to the last colour, and as faint


def test_what_is_not_attended_to_shows_the_picture():
    picture = Image.new("RGB", (20, 10), (200, 100, 50))
    drawn = overlay(picture, heat([[0.0, 1.0]]), top=1.0, grey=False)
    assert (drawn[:, :10] == (200, 100, 50)).all()
    assert (drawn[:, 10:] != (200, 100, 50)).any()


def test_the_part_that_was_cropped_away_is_visibly_outside():
    picture = Image.new("RGB", (40, 10), (100, 100, 100))
    drawn = overlay(picture, heat([[0.0, 0.0]], Frame(10, 0, 20, 10)), top=1.0)
    assert (drawn[:, 10:30] == 100).all()
    assert (drawn[:, :10] > 180).all()
    assert (drawn[:, 30:] > 180).all()


def test_one_sink_patch_does_not_black_out_the_rest():
    values = torch.full((20, 20), 0.5)
    values[0, 0] = 50.0
    drawn = overlay(black(200, 200), heat(values), opacity=1.0)
    assert (drawn[100, 100] == colour_table("viridis")[255]).all()


@pytest.mark.parametrize("opacity", [-0.1, 1.1])
def test_an_opacity_out_of_range_is_refused(opacity):
    with pytest.raises(MethodError, match="opacity runs from 0 to 1"):
        overlay(black(10, 10), heat([[1.0]]), opacity=opacity)


def test_a_rainbow_is_not_offered():
    with pytest.raises(UnknownName, match="no colour map named 'jet'"):
        overlay(black(10, 10), heat([[1.0]]), colours="jet")
