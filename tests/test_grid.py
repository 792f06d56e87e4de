import re

import pytest
import torch

from vizattn.errors import GridError
from vizattn.grid import TokenGrid


def test_patches_follow_the_prefix_row_by_row():
    grid = TokenGrid(2, 3, prefix=1)
    assert [grid.patch_index(row, col) for row in range(2) for col in range(3)] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    assert (grid.n_patches, grid.n_tokens) == (6, 7)


def test_a_map_is_laid_out_as_the_picture_lies():
    values = torch.tensor([9.0, 1, 2, 3, 4, 5, 6])
    expected = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    torch.testing.assert_close(TokenGrid(2, 3, 1).to_map(values), expected)
    torch.testing.assert_close(
        TokenGrid(2, 3, 1).to_map(values.expand(4, 7)), expected.expand(4, 2, 3)
    )


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_every_query_sums_to_one(prefix):
    grid = TokenGrid(3, 4, prefix)
    queries = [grid.mean, grid.patch(2, 1), grid.query]
    for query in [*queries, grid.cls] if prefix else queries:
        torch.testing.assert_close(query.sum(), torch.tensor(1.0))


def test_a_patch_query_lands_on_its_own_cell():
    grid = TokenGrid(3, 4, prefix=5)
    cell = grid.to_map(grid.patch(2, 1))
    assert cell[2, 1] == 1
    assert cell.sum() == 1


def test_the_mean_leaves_prefix_tokens_out():
    grid = TokenGrid(2, 2, prefix=3)
    torch.testing.assert_close(grid.mean, torch.tensor([0, 0, 0, 0.25, 0.25, 0.25, 0.25]))


def test_a_class_token_that_is_not_the_first_is_found():
    grid = TokenGrid(1, 1, 2, roles=("register", "class"))
    torch.testing.assert_close(grid.cls, torch.tensor([0.0, 1.0, 0.0]))


def test_the_default_query_is_the_class_token_where_there_is_one():
    assert TokenGrid(2, 2, 1).readout == "class"
    assert TokenGrid(2, 2, 0).readout == "mean"
    torch.testing.assert_close(TokenGrid(2, 2, 0).query, torch.full((4,), 0.25))


def message(text):
    return f"^{re.escape(text)}$"


def test_a_wrong_number_of_values_is_refused_with_the_likely_cause():
    with pytest.raises(
        GridError,
        match=message(
            "got 261 values for a grid of 257 tokens (1 prefix + 16×16 patches). "
            "Does the model have 5 prefix tokens?"
        ),
    ):
        TokenGrid(16, 16, prefix=1).to_map(torch.zeros(261))


def test_too_few_values_are_refused_too():
    with pytest.raises(GridError, match="There are not even 256 values, one for each patch"):
        TokenGrid(16, 16, prefix=1).to_map(torch.zeros(49))


def test_a_model_without_class_token_says_how_to_ask_instead():
    with pytest.raises(GridError, match=r"no class token \(prefix tokens: none\)"):
        _ = TokenGrid(2, 2).cls


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (2, 0), (0, 3)])
def test_a_patch_outside_the_grid_is_refused(place):
    with pytest.raises(GridError, match="rows run from 0 to 1 and columns from 0 to 2"):
        TokenGrid(2, 3).patch(*place)


@pytest.mark.parametrize(
    "arguments",
    [(0, 3), (3, 0), (3, 3, -1), (3, 3, 2, ("class",)), (3, 3, 0, (), "class"), (3, 3, 1, (), "x")],
)
def test_a_grid_that_cannot_be_is_refused(arguments):
    with pytest.raises(GridError, match=r"^got "):
        TokenGrid(*arguments)
