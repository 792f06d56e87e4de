import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vizattn.attention import (
    attention_columns,
    attention_rows,
    log_sum_exp,
    pull_back,
    pull_back_by_head,
)


def dense(q, k, scale=None, bias=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = q.double() @ k.double().mT * scale
    return (scores if bias is None else scores + bias).softmax(-1)


def test_equal_scores_share_attention_equally():
    rows = attention_rows(torch.zeros(1, 4, 2), torch.randn(1, 5, 2), torch.tensor([0, 3]))
    torch.testing.assert_close(rows, torch.full((1, 2, 5), 0.2))


def test_the_one_key_that_fits_takes_all():
    q = torch.tensor([[[1.0, 0.0]]])
    k = torch.tensor([[[0.0, 1.0], [1000.0, 0.0], [0.0, -1.0]]])
    rows = attention_rows(q, k, torch.tensor([0]))
    torch.testing.assert_close(rows, torch.tensor([[[0.0, 1.0, 0.0]]]))


def test_two_keys_whose_scores_differ_by_ln_3_share_one_to_three():
    q = torch.tensor([[[1.0]]])
    k = torch.tensor([[[0.0], [math.log(3)]]])
    rows = attention_rows(q, k, torch.tensor([0]), scale=1.0)
    torch.testing.assert_close(rows, torch.tensor([[[0.25, 0.75]]]))


@pytest.mark.parametrize("scale", [None, 0.1, 2.0])
@pytest.mark.parametrize("bias_shape", [None, (1, 1, 17), (1, 17, 17), (3, 17, 17)])
@pytest.mark.parametrize("give_lse", [False, True])
def test_rows_and_columns_are_those_of_the_dense_matrix(qk, scale, bias_shape, give_lse):
    q, k = qk
    bias = None if bias_shape is None else torch.randn(bias_shape, dtype=torch.float64)
    lse = log_sum_exp(q, k, scale, bias) if give_lse else None
    whole = dense(q, k, scale, bias)
    picked = torch.tensor([0, 5, 16, 5])
    rows = attention_rows(q, k, picked, scale, bias, lse)
    columns = attention_columns(q, k, picked, scale, bias, lse)
    torch.testing.assert_close(rows, whole[:, picked], rtol=0, atol=1e-12)
    torch.testing.assert_close(columns, whole[..., picked], rtol=0, atol=1e-12)


@pytest.mark.parametrize("length", [1, 5, 17, None])
@pytest.mark.parametrize("bias_shape", [None, (1, 1, 17), (1, 17, 17), (3, 17, 17)])
@pytest.mark.parametrize("give_lse", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_each_head_is_pulled_back_by_its_own_matrix(qk, length, bias_shape, give_lse, own):
    q, k = qk
    bias = None if bias_shape is None else torch.randn(bias_shape, dtype=torch.float64) * 3
    lse = log_sum_exp(q, k, 0.7, bias) if give_lse else None
    relevance = torch.randn(3 if own else 1, 5, 17, dtype=torch.float64)
    carried = pull_back_by_head(relevance, q, k, 0.7, bias, lse, length)
    torch.testing.assert_close(carried, relevance @ dense(q, k, 0.7, bias), rtol=0, atol=1e-12)


@pytest.mark.parametrize("give_lse", [False, True])
def test_many_rows_are_pulled_back_like_few(qk, give_lse, monkeypatch):
    monkeypatch.setattr("vizattn.attention._MANY_ROWS", 17)
    test_each_head_is_pulled_back_by_its_own_matrix(qk, 5, (3, 17, 17), give_lse, own=True)


def test_faint_weights_are_neither_lost_nor_wrong():
    """Scores 0, -70 and -300: weights 1, e^-70 and, as good as none, at most e^-80."""
    q, k = torch.ones(1, 1, 1), torch.tensor([[[0.0], [-70.0], [-300.0]]])
    found = attention_rows(q, k, torch.tensor([0]), scale=1.0)[0, 0]
    assert found[1].item() == pytest.approx(math.exp(-70), rel=1e-4)
    assert 0 <= found[2].item() <= math.exp(-80)
    pulled = pull_back(torch.ones(1), q, k, scale=1.0)
    assert pulled[1].item() == pytest.approx(math.exp(-70), rel=1e-4)
    assert 0 <= pulled[2].item() <= 1.001 * math.exp(-80)


def test_heads_that_share_a_tile_are_those_that_have_one_each(qk, monkeypatch):
    q, k = qk
    relevance = torch.rand(1, 2, 17, dtype=torch.float64)
    for floats in (17, 17 * 17, 2 * 17 * 17, 10**6):  # a row, a head, two heads, all at once
        monkeypatch.setattr("vizattn.attention.TILE_FLOATS", floats)
        torch.testing.assert_close(pull_back_by_head(relevance, q, k), relevance @ dense(q, k))


def test_scores_that_overflow_an_exponential_are_pulled_back_all_the_same():
    q = torch.full((1, 2, 1), 40.0)
    k = torch.tensor([[[40.0], [0.0], [-40.0]]])  # scores of 1600, 0 and -1600
    pulled = pull_back(torch.tensor([0.25, 0.75]), q, k, scale=1.0)
    torch.testing.assert_close(pulled, torch.tensor([1.0, 0.0, 0.0]))


def test_nothing_asked_is_nothing_carried(qk):
    q, k = qk
    carried = pull_back_by_head(torch.ones(1, 1, 0, dtype=torch.float64), q[:, :0], k)
    assert torch.equal(carried, torch.zeros(3, 1, 17, dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 5, 16, 17, 1000, None])
def test_chunking_never_changes_what_is_pulled_back(qk, length):
    q, k = qk
    relevance = torch.rand(17, dtype=torch.float64)
    whole = relevance @ dense(q, k).mean(0)
    torch.testing.assert_close(pull_back(relevance, q, k, length=length), whole)


def test_many_vectors_at_once_are_pulled_back_like_each_alone(qk):
    q, k = qk
    relevance = torch.rand(2, 4, 17, dtype=torch.float64)
    together = pull_back(relevance, q, k)
    for i in range(2):
        for j in range(4):
            torch.testing.assert_close(together[i, j], pull_back(relevance[i, j], q, k))


def test_float32_is_within_a_millionth_of_float64(qk):
    q, k = (x.float() for x in qk)
    relevance = torch.rand(17)
    whole = relevance.double() @ dense(q, k).mean(0)
    error = (pull_back(relevance, q, k, lse=log_sum_exp(q, k)) - whole).abs().max()
    assert error <= 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(qk, dtype):
    q, k = (x.to(dtype) for x in qk)
    rows = attention_rows(q, k, torch.arange(17))
    assert rows.dtype == torch.float32
    torch.testing.assert_close(rows.double(), dense(q, k), rtol=0, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    heads=st.integers(1, 4),
    queries=st.integers(1, 9),
    keys=st.integers(1, 9),
    size=st.floats(0.01, 30),
    seed=st.integers(0, 2**31),
)
def test_relevance_is_conserved(heads, queries, keys, size, seed):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(heads, queries, 4, generator=generator) * size
    k = torch.randn(heads, keys, 4, generator=generator) * size
    relevance = torch.rand(queries, generator=generator)
    pulled = pull_back(relevance, q, k)
    torch.testing.assert_close(pulled.sum(), relevance.sum())
    assert (pulled >= 0).all()


def test_keys_behind_a_mask_get_nothing_and_the_rest_shares_all(qk):
    q, k = qk
    bias = torch.zeros(1, 1, 17, dtype=torch.float64)
    bias[..., 4:] = -math.inf
    rows = attention_rows(q, k, torch.arange(17), bias=bias)
    assert (rows[..., 4:] == 0).all()
    torch.testing.assert_close(rows[..., :4], dense(q, k[:, :4]))


@pytest.mark.parametrize("give_lse", [False, True])
def test_a_query_with_every_key_masked_is_blank_and_not_uniform(qk, give_lse):
    q, k = qk
    bias = torch.zeros(1, 17, 17, dtype=torch.float64)
    bias[:, 3] = -math.inf
    lse = log_sum_exp(q, k, bias=bias) if give_lse else None
    rows = attention_rows(q, k, torch.arange(17), bias=bias, lse=lse)
    assert (rows[:, 3] == 0).all()
    torch.testing.assert_close(rows[:, :3], dense(q, k)[:, :3])
    pulled = pull_back(torch.ones(17, dtype=torch.float64), q, k, bias=bias, lse=lse)
    torch.testing.assert_close(pulled.sum().item(), 16.0)
