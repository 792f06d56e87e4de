import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vizattn.errors import FrameError
from vizattn.frame import Frame


def test_pixels_of_each_quarter_belong_to_its_patch():
    frame = Frame(100, 0, 200, 100)
    assert frame.patch_at(100, 0, 2, 2) == (0, 0)
    assert frame.patch_at(199.9, 49.9, 2, 2) == (0, 0)
    assert frame.patch_at(200, 0, 2, 2) == (0, 1)
    assert frame.patch_at(299, 99, 2, 2) == (1, 1)


@pytest.mark.parametrize("position", [(99, 50), (300, 50), (200, -1), (200, 100)])
def test_a_pixel_the_model_did_not_see_is_refused(position):
    with pytest.raises(
        FrameError, match="it saw x from 100 to 300 and y from 0 to 100 of the picture"
    ):
        Frame(100, 0, 200, 100).patch_at(*position, 2, 2)


@given(
    rows=st.integers(1, 40), cols=st.integers(1, 40), left=st.floats(-50, 50),
    top=st.floats(-50, 50), width=st.floats(1, 900), height=st.floats(1, 900), data=st.data(),
)  # fmt: skip
def test_the_middle_of_a_patch_is_found_in_that_patch(rows, cols, left, top, width, height, data):
    frame = Frame(left, top, width, height)
    row, col = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    box = frame.patch_box(row, col, rows, cols)
    middle = (box.left + box.width / 2, box.top + box.height / 2)
    assert frame.patch_at(*middle, rows, cols) == (row, col)


def test_a_map_is_placed_exactly_on_its_rectangle():
    placed = Frame(2, 0, 4, 2).place(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), width=8, height=3)
    nan = math.nan
    expected = torch.tensor(
        [
            [nan, nan, 1, 1, 2, 2, nan, nan],
            [nan, nan, 3, 3, 4, 4, nan, nan],
            [nan] * 8,
        ]
    )
    torch.testing.assert_close(placed, expected, equal_nan=True)


def test_a_frame_that_reaches_into_padding_is_cut_at_the_picture():
    placed = Frame(-2, 0, 8, 1).place(torch.arange(8.0).unsqueeze(0), width=4, height=1)
    torch.testing.assert_close(placed, torch.tensor([[2.0, 3, 4, 5]]))


def test_smoothing_keeps_patch_centres_and_never_overshoots():
    values = torch.tensor([[0.0, 1.0, 0.0]])
    placed = Frame(0, 0, 9, 3).place(values, width=9, height=3, smooth=True)
    torch.testing.assert_close(placed[1, [1, 4, 7]], torch.tensor([0.0, 1.0, 0.0]))
    assert placed.min() >= 0
    assert placed.max() <= 1
    torch.testing.assert_close(placed, placed.flip(1))  # a symmetric map stays symmetric


def test_smoothing_is_bilinear_without_aligned_corners():
    values = torch.rand(3, 5)
    placed = Frame(0, 0, 40, 24).place(values, width=40, height=24, smooth=True)
    expected = torch.nn.functional.interpolate(
        values[None, None], (24, 40), mode="bilinear", align_corners=False
    )[0, 0]
    torch.testing.assert_close(placed, expected)


def test_an_empty_frame_is_refused():
    with pytest.raises(FrameError, match="has a positive size"):
        Frame(0, 0, 0, 5)
