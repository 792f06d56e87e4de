import math

import pytest
import torch
from samples import randomised

from vizattn.capture import capture
from vizattn.errors import MethodError, OutOfRange
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.layers import DenseAttention
from vizattn.methods import HeadStatisticMaps
from vizattn.places import Tokens
from vizattn.record import AttentionRecord


@pytest.fixture
def three():
    """One layer of two heads on three patches in a row behind a class token."""
    tokens = Tokens(TokenGrid(1, 3, 1), Frame(0, 0, 30, 10))
    weights = torch.tensor([
        [[1.0, 0, 0, 0], [0, 1, 0, 0], [0.5, 0.25, 0, 0.25], [0, 0.5, 0, 0.5]],
        [[0.25] * 4, [0, 0, 0, 1], [0, 0, 0, 1], [0.25, 0.25, 0.25, 0.25]],
    ])  # fmt: skip
    layer = DenseAttention("blocks.0.attn", "self", tokens, tokens, "", True, weights)
    return AttentionRecord((layer,), tokens.frame, (10, 30))


@pytest.mark.parametrize(
    ("statistic", "first", "second"),
    [
        # columns: what comes in on average
        ("received", [1.75 / 4, 0, 0.75 / 4], [0.5 / 4, 0.5 / 4, 2.5 / 4]),
        # all on one: no bits; half and two quarters: one and a half; two halves: one
        ("entropy", [0, 1.5, 1], [0, 0, 2]),
        # the class token has no place, so 1/4 left and 1/4 right is one patch on average
        ("distance", [0, 1, 1], [2, 1, 1]),
    ],
)
def test_the_numbers_of_three_patches_are_those_worked_out_by_hand(three, statistic, first, second):
    (maps,) = HeadStatisticMaps(statistic=statistic).by_layer(three)
    found = maps.tokens.grid.to_map(maps.relevance)[:, 0]
    torch.testing.assert_close(found, torch.tensor([first, second], dtype=torch.float32))
    for head, expected in ((0, first), (-1, second)):
        heat = HeadStatisticMaps(statistic=statistic, head=head).heatmap(three)
        torch.testing.assert_close(heat.values[0], torch.tensor(expected, dtype=torch.float32))
    largest = HeadStatisticMaps(statistic=statistic, fusion="max").heatmap(three).values[0]
    expected = [max(pair) for pair in zip(first, second, strict=True)]
    torch.testing.assert_close(largest, torch.tensor(expected, dtype=torch.float32))


def test_what_all_receive_is_what_all_give_and_the_class_token_has_its_part(three):
    (maps,) = HeadStatisticMaps().by_layer(three)
    torch.testing.assert_close(maps.relevance.sum(-1), torch.ones(2))
    torch.testing.assert_close(maps.relevance[:, 0], torch.tensor([1.5 / 4, 0.5 / 4]))


def test_in_windows_every_patch_looks_as_slow_loops_say():
    import timm

    swin = randomised(timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=(56, 112), window_size=7, depths=(2,),
        num_heads=(2,), embed_dim=16, num_classes=0,
    ))  # fmt: skip
    record = capture(swin, torch.randn(3, 56, 112))
    layer = record[1]  # shifted windows
    columns = layer.queries.grid.cols
    maps = {name: HeadStatisticMaps(statistic=name, layer=1) for name in ("entropy", "distance")}
    found = {name: each.by_layer(record)[1].relevance for name, each in maps.items()}
    for patch in (0, 5, columns + 3, 150):
        row = layer.rows(patch)[1, 0].double().tolist()
        assert math.isclose(sum(row), 1, rel_tol=1e-5)
        bits = -sum(a * math.log2(a) for a in row if a > 0)
        far = sum(
            a * math.hypot(patch // columns - key // columns, patch % columns - key % columns)
            for key, a in enumerate(row)
        )
        assert math.isclose(found["entropy"][1, patch], bits, rel_tol=1e-4)
        assert math.isclose(found["distance"][1, patch], far, rel_tol=1e-4)


def test_layers_in_which_the_class_token_alone_asks_have_no_entropy_of_patches():
    import timm

    cait = timm.create_model(
        "cait_xxs24_224", img_size=64, embed_dim=32, depth=1, num_heads=2, num_classes=0
    )
    record = capture(randomised(cait), torch.randn(3, 64, 64))
    received = [maps.layer for maps in HeadStatisticMaps().by_layer(record)]
    spread = [maps.layer for maps in HeadStatisticMaps(statistic="entropy").by_layer(record)]
    asking = [number for number in received if record[number].kind == "self"]
    assert spread == asking != received
    last = received[-1]
    with pytest.raises(MethodError, match=r"not every patch asks .* Look at what they receive"):
        HeadStatisticMaps(statistic="entropy", layer=last).heatmap(record)


def test_it_says_what_it_shows_and_refuses_what_it_cannot(record):
    heat = HeadStatisticMaps(statistic="distance", layer=0, head=1).heatmap(record)
    assert heat.sentence.startswith(
        "Layer 1, head 2: how far each patch looks, in patches; at most"
    )
    with pytest.raises(MethodError, match="leave the pixel out"):
        HeadStatisticMaps().heatmap(record, at=(5, 5))
    with pytest.raises(OutOfRange):
        HeadStatisticMaps(head=9).heatmap(record)


def test_it_describes_and_explains_nothing_so_it_is_not_judged():
    from vizattn.evaluation.maps import recipes_of
    from vizattn.methods import METHODS

    assert set(METHODS) - set(recipes_of(["all"])) == {"head-statistics"}
