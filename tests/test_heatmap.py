import torch

from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.heatmap import Heatmap


def heat(*values, prefix=1):
    grid = TokenGrid(1, len(values) - prefix, prefix)
    return Heatmap.from_relevance(torch.tensor(values), grid, Frame(0, 0, 10, 10))


def test_true_values_stay_and_the_prefix_is_kept_beside_them():
    h = heat(0.9, 0.02, 0.08)
    torch.testing.assert_close(h.values, torch.tensor([[0.02, 0.08]]))
    torch.testing.assert_close(h.prefix_mass, torch.tensor([0.9]))


def test_range_and_strongest_patch():
    h = heat(0.5, 0.1, 0.3, 0.1)
    assert h.range == (torch.tensor(0.1).item(), torch.tensor(0.3).item())
    assert h.strongest == (0, 1)


def test_the_hundredth_percentile_is_the_maximum_and_the_fiftieth_the_median():
    h = heat(0.0, 1.0, 2.0, 9.0)
    assert h.quantile(100) == 9
    assert h.quantile(50) == 2


def test_nearly_flat_means_a_spread_below_a_twentieth_of_the_mean():
    assert heat(0.0, 1.0, 1.0).is_nearly_flat
    assert heat(0.0, 0.98, 1.02).is_nearly_flat  # from least to most 0.04, mean 1
    assert not heat(0.0, 0.97, 1.03).is_nearly_flat  # 0.06
    assert heat(0.0, -0.98, -1.02).is_nearly_flat  # sizes count
    assert not heat(0.0, -1.0, 1.0).is_nearly_flat  # whose mean is 0
    assert heat(0.0, 0.0, 0.0).is_nearly_flat
