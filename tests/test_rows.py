"""The rows file of a layer, read back with numpy alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from samples import dense


@pytest.fixture
def read(tmp_path):
    """The arrays that ``write_rows`` wrote, by name, and what it said of them."""
    from vizattn.rows import write_rows

    def read_it(layer):
        said = write_rows(layer, tmp_path / "rows.bin")
        content = (tmp_path / "rows.bin").read_bytes()
        arrays = {}
        for name, (offset, kind, shape) in said["parts"].items():
            count = int(np.prod(shape))
            arrays[name] = np.frombuffer(content, "<" + kind, count, offset).reshape(shape)
        assert sum(array.nbytes for array in arrays.values()) == len(content)
        return said, arrays

    return read_it


def test_rows_made_from_the_file_are_those_of_the_layer_and_sum_to_one(record, read):
    layer = record[-1]
    said, arrays = read(layer)
    q, k = arrays["q"].astype(np.float64), arrays["k"].astype(np.float64)
    rows = np.exp(q @ k.transpose(0, 2, 1) * said["scale"] - arrays["lse"][..., None])
    assert rows.sum(-1) == pytest.approx(1, abs=1e-5)
    assert 0.5 * np.abs(rows - dense(layer).numpy()).sum(-1).max() < 2e-3


def test_the_mean_row_is_the_mean_over_the_patches_alone(record, read):
    layer = record[0]
    _, arrays = read(layer)
    expected = dense(layer)[:, layer.queries.grid.prefix :].mean(1)
    np.testing.assert_allclose(arrays["mean"], expected, rtol=5e-3, atol=1e-5)


def test_four_byte_numbers_lie_at_offsets_of_four(record, read):
    said, _ = read(record[0])
    for offset, kind, _ in said["parts"].values():
        assert offset % int(kind[1]) == 0


def test_a_query_that_sees_nothing_has_a_row_of_zeros(record, read):
    layer = record[0]
    bias = torch.zeros(1, layer.n_queries, layer.n_keys)
    bias[:, 3] = -torch.inf
    _, arrays = read(replace(layer, bias=bias, lse=None))
    assert np.exp(-np.inf - arrays["lse"][:, 3]).tolist() == [0, 0]
    assert np.isneginf(arrays["bias"][0, 3].astype(float)).all()


def test_what_float16_cannot_hold_becomes_its_largest_number_and_infinity_stays(record, read):
    layer = record[0]
    bias = torch.full((1, 1, layer.n_keys), 1e9)
    bias[..., 0] = -torch.inf
    _, arrays = read(replace(layer, bias=bias, lse=None))
    assert arrays["bias"].ravel()[:2].tolist() == [-np.inf, 65504]
    assert np.isfinite(arrays["lse"]).all()


def test_a_layer_that_is_too_large_is_not_offered(record, monkeypatch):
    from vizattn.rows import rows_size

    layer = record[0]
    assert rows_size(layer) == 2 * (layer.q.numel() + layer.k.numel())
    monkeypatch.setattr("vizattn.rows.LARGEST_FILE", 100)
    assert rows_size(layer) is None
