"""Scores of maps, against scikit-learn, by hand and by laws."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from vizattn.evaluation.regions import Box
from vizattn.evaluation.scores import (
    area_under_roc,
    average_precision,
    bootstrap,
    correlation,
    energy,
    interval,
    middle_ranks,
    pointing,
    salience_faithfulness,
    smoothed,
)
from vizattn.frame import Frame

# Few different values, so that ties are common.
maps = st.lists(st.integers(-4, 4), min_size=12, max_size=12).map(
    lambda values: torch.tensor(values, dtype=torch.float32).reshape(3, 4)
)
regions = (
    st.lists(st.booleans(), min_size=12, max_size=12)
    .filter(lambda inside: 0 < sum(inside) < 12)
    .map(lambda inside: torch.tensor(inside).reshape(3, 4))
)


@settings(max_examples=60, deadline=None)
@given(maps, regions)
def test_roc_and_precision_are_those_of_scikit_learn(values, inside):
    flat = inside.flatten().numpy(), values.flatten().numpy()
    assert area_under_roc(values, inside) == pytest.approx(roc_auc_score(*flat))
    assert average_precision(values, inside) == pytest.approx(average_precision_score(*flat))


@settings(max_examples=30, deadline=None)
@given(maps, regions)
def test_what_keeps_the_order_keeps_every_score_but_energy(values, inside):
    other = 3 * values**3 + 7
    for score in (pointing, area_under_roc, average_precision):
        assert score(other, inside) == pytest.approx(score(values, inside))


@settings(max_examples=30, deadline=None)
@given(maps, regions)
def test_a_map_and_its_opposite_share_the_pairs(values, inside):
    assert area_under_roc(values, inside) + area_under_roc(-values, inside) == pytest.approx(1)


def test_a_flat_map_is_chance():
    inside = torch.tensor([[True, False], [False, False]])
    assert area_under_roc(torch.ones(2, 2), inside) == 0.5
    assert pointing(torch.ones(2, 2), inside) == 0.25
    assert average_precision(torch.ones(2, 2), inside) == 0.25


def test_energy_by_hand():
    values = torch.tensor([[3.0, 1.0], [-5.0, 4.0]])
    cover = torch.tensor([[1.0, 0.0], [1.0, 0.25]])
    assert energy(values, cover) == pytest.approx((3 + 1) / 8)
    assert energy(-values.abs(), cover) == 0.0


def test_equal_values_share_the_middle_of_their_ranks():
    assert middle_ranks(torch.tensor([5.0, 1.0, 5.0, 9.0])).tolist() == [2.5, 1.0, 2.5, 4.0]


def test_smoothing_a_point_gives_the_binomial_kernel_and_keeps_a_flat_map():
    point = torch.zeros(5, 5)
    point[2, 2] = 16.0
    expected = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]])
    assert torch.equal(smoothed(point)[1:4, 1:4], expected)
    assert torch.allclose(smoothed(torch.full((3, 4), -2.0)), torch.full((3, 4), -2.0))


def test_saliency_that_orders_the_drops_is_faithful_and_its_opposite_is_not():
    salience = torch.tensor([5.0, 3.0, 1.0])
    assert salience_faithfulness(salience, torch.tensor([0.9, 0.5, 0.1])) == 1.0
    assert salience_faithfulness(salience, torch.tensor([0.1, 0.5, 0.9])) == -1.0
    # by hand: pairs (0,1) 2 agrees, (0,2) 4 does not, (1,2) 2 does not
    mixed = salience_faithfulness(salience, torch.tensor([0.4, 0.3, 0.5]))
    assert mixed == pytest.approx((2 - 4 - 2) / 8)


def test_correlation_is_that_of_numpy_and_zero_where_nothing_varies():
    one, two = torch.rand(20), torch.rand(20)
    assert correlation(one, two) == pytest.approx(np.corrcoef(one, two)[0, 1])
    assert correlation(one, torch.ones(20)) == 0.0


def test_an_interval_covers_the_mean_as_often_as_it_says():
    random = torch.Generator().manual_seed(3)
    hits = 0
    for _ in range(100):
        values = torch.randn(60, generator=random)
        mean, low, high = interval(values, torch.arange(60))
        assert mean == pytest.approx(float(values.mean()), abs=1e-6)
        hits += low <= 0 <= high
    assert 88 <= hits <= 100  # 95 expected; fewer than 88 comes once in three hundred times


def test_questions_about_one_picture_count_as_one():
    values = torch.tensor([0.0, 1.0] * 10)
    alone = interval(values, torch.arange(20))
    together = interval(values.repeat_interleave(50), torch.arange(20).repeat_interleave(50))
    assert together == pytest.approx(alone, abs=1e-9)
    ratio = bootstrap(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.arange(2),
                      lambda sums: sums[..., 0] / sums[..., 1])  # fmt: skip
    assert ratio[0] == pytest.approx(4 / 6)


def test_a_box_covers_patches_by_area_and_holds_their_middles():
    frame = Frame(0, 0, 40, 20)
    box = Box(5, 0, 20, 10)
    assert box.cover(frame, 2, 4).tolist() == [[0.5, 1, 0, 0], [0, 0, 0, 0]]
    assert box.inside(frame, 2, 4).tolist() == [[True, True, False, False], [False] * 4]
    shifted = Box(105, 50, 120, 60)
    assert torch.equal(shifted.cover(Frame(100, 50, 40, 20), 2, 4), box.cover(frame, 2, 4))
