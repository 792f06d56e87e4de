"""From positions to grids, kinds and windows; lattices are written down by hand."""

import pytest
import torch

from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.places import Inputs, Positions, find_lattice, place_call

NAN = float("nan")


def inputs(height=32, width=48, readout="class"):
    roles = {0: (), 1: ("class",), 2: ("class", "register")}
    return Inputs(height, width, lambda n: roles.get(n, ("extra",) * n), readout)


def lattice(rows, cols, step, lead=1, prefix=0):
    """Positions of a grid of patches of ``step`` pixels, prefix tokens first."""
    y = (torch.arange(rows) + 0.5).repeat_interleave(cols) * step
    x = (torch.arange(cols) + 0.5).repeat(rows) * step
    nowhere = torch.full((prefix,), NAN)
    parts = torch.cat([nowhere, y]), torch.cat([nowhere, x]), torch.ones(prefix + rows * cols)
    return Positions(*(part.expand(lead, -1) for part in parts))


def test_a_plain_transformer_is_one_window_of_tokens_in_order():
    tokens = lattice(4, 6, 8, lead=3, prefix=1)
    place = place_call(tokens, tokens, inputs())
    assert place.kind == "self"
    assert place.windows.tolist() == [[0, 1, 2]]
    assert place.keys.grid == TokenGrid(4, 6, 1, ("class",), "class")
    assert place.keys.frame == Frame(0, 0, 48, 32)
    assert place.queries.index is None


def test_windows_are_found_whatever_axis_they_were_on():
    # two windows side by side, three heads; heads outer and windows inner, as Hiera has them
    left, right = lattice(2, 2, 8), lattice(2, 2, 8)
    right = Positions(right.y, right.x + 16, right.seen)
    rows = [left, right] * 3
    both = Positions(*(torch.cat([getattr(r, k) for r in rows]) for k in ("y", "x", "seen")))
    place = place_call(both, both, inputs(16, 32))
    assert place.kind == "window"
    assert place.windows.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert place.keys.grid == TokenGrid(2, 4, readout="mean")
    assert place.keys.index.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_filling_has_no_number_and_does_not_stretch_the_grid():
    tokens = lattice(2, 3, 8)
    seen = torch.tensor([[1.0, 1, 0, 1, 1, 0]])
    tokens = Positions(tokens.y, tokens.x, seen)
    place = place_call(tokens, tokens, inputs())
    assert (place.keys.grid.rows, place.keys.grid.cols) == (2, 2)
    assert place.keys.index.tolist() == [[0, 1, -1, 2, 3, -1]]


def test_pooled_keys_keep_a_grid_of_their_own():
    place = place_call(lattice(4, 4, 8), lattice(2, 2, 16), inputs(32, 32))
    assert place.kind == "pooled"
    assert (place.queries.grid.rows, place.keys.grid.rows) == (4, 2)
    assert place.queries.frame == place.keys.frame == Frame(0, 0, 32, 32)


def test_a_strided_grid_covers_what_its_tokens_stand_for():
    tokens = lattice(4, 4, 8)
    picked = torch.tensor([0, 2, 8, 10])
    asked = Positions(tokens.y[:, picked], tokens.x[:, picked], tokens.seen[:, picked])
    place = place_call(asked, tokens, inputs(32, 32))
    assert place.kind == "pooled"
    assert place.queries.frame == Frame(-4, -4, 32, 32)  # the middle of each cell is its token


def test_a_class_token_that_asks_alone_is_numbered_as_among_the_keys():
    asking = Positions(*(torch.tensor([[v]]) for v in (NAN, NAN, 1.0)))
    place = place_call(asking, lattice(2, 3, 8, prefix=1), inputs())
    assert place.kind == "class"
    assert place.queries.grid == place.keys.grid
    assert place.queries.index.tolist() == [[0]]


def test_a_probe_among_keys_without_class_token_is_a_pooling_head():
    asking = Positions(*(torch.tensor([[v]]) for v in (NAN, NAN, 1.0)))
    place = place_call(asking, lattice(2, 3, 8), inputs())
    assert place.kind == "pool"
    assert place.queries.grid.roles == ("probe",)


def test_a_query_shared_by_all_windows_stands_in_each():
    keys = Positions(*(torch.cat([getattr(lattice(2, 2, 8), k)] * 2) for k in ("y", "x", "seen")))
    keys = Positions(keys.y, keys.x + torch.tensor([[0.0], [16.0]]), keys.seen)
    shared = Positions(*(getattr(lattice(2, 2, 16), k).expand(2, -1) for k in ("y", "x", "seen")))
    place = place_call(shared, keys, inputs(16, 32))
    assert place.kind == "window"
    assert place.queries.index.tolist() == place.keys.index.tolist()


CHANNELS = Positions(*[torch.full((1, 3), v) for v in (9.0, 9.0, 1.0)], is_scattered=True)
SCATTERED = Positions(
    torch.tensor([[1.0, 2, 4, 9]]), torch.tensor([[1.0, 7, 8, 2]]), torch.ones(1, 4)
)


@pytest.mark.parametrize(
    ("query", "key", "kind", "reason"),
    [
        (None, None, "outside", "none of it is from the picture"),
        (lattice(1, 1, 8), CHANNELS, "channel", "it attends among channels, not among places"),
        (lattice(2, 2, 8), SCATTERED, "unknown", "its keys do not stand on a grid"),
    ],
)
def test_what_has_no_place_says_why(query, key, kind, reason):
    place = place_call(query, key, inputs())
    assert (place.kind, place.reason) == (kind, reason)
    assert place.keys is None


def test_frames_of_a_video_share_places_and_are_not_laid_over_each_other():
    once = lattice(2, 2, 8)
    twice = Positions(*(torch.cat([getattr(once, k)] * 2, 1) for k in ("y", "x", "seen")))
    place = place_call(twice, twice, inputs())
    assert place.kind == "unknown"
    assert "several of its tokens stand in one place" in place.reason


def test_a_lattice_with_gaps_is_still_one_but_scattered_tokens_are_not():
    tokens = lattice(4, 4, 8)
    half = torch.tensor([0, 1, 3, 4, 6, 7, 9, 10, 12, 15])
    some = Positions(tokens.y[:, half], tokens.x[:, half], tokens.seen[:, half])
    assert find_lattice(some, 32, 32).rows == 4
    diagonal = torch.arange(0, 16, 5)
    few = Positions(tokens.y[:, diagonal], tokens.x[:, diagonal], tokens.seen[:, diagonal])
    assert find_lattice(few, 32, 32) is not None  # 4 of 16
    wide = Positions(torch.rand(1, 40) * 100, torch.rand(1, 40) * 100, torch.ones(1, 40))
    assert find_lattice(wide, 100, 100) is None


def test_a_single_row_takes_its_height_from_its_width():
    assert find_lattice(lattice(1, 4, 8), 8, 32).frame == Frame(0, 0, 32, 8)
