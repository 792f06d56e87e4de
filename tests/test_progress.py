"""How far a long look is, and how long it still takes, on a clock that the tests turn."""

import re

import pytest
import torch
from samples import dot_image

from vizattn import progress
from vizattn.capture import capture
from vizattn.explain import explain
from vizattn.methods import Rollout
from vizattn.models import wrap_model
from vizattn.observation import Known, _told
from vizattn.preprocess import Preprocess
from vizattn.progress import Pace, shares_at_middles, within


class Clock:
    """Stands still but when it is turned."""

    def __init__(self):
        self.now = 100.0

    def turn(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", lambda: clock.now)
    return clock


def told_of(model, clock, picture):
    told = []
    explain(
        picture, model=model, method="rollout",
        progress=lambda share, words: told.append((clock.now, share, words)),
    )  # fmt: skip
    return told


def seconds_of(words):
    number, unit = re.search(r": about (\d+) (s|min) left$", words).groups()
    return int(number) * (60 if unit == "min" else 1)


def test_a_pass_tells_at_every_attention_call_what_is_done(tiny_timm, pixels):
    first, second = [], []
    capture(tiny_timm, pixels, progress=first.append)
    capture(tiny_timm, pixels, progress=second.append)
    assert second == pytest.approx([1 / 6, 3 / 6, 5 / 6])  # three equal layers, each half way
    # where the model is not known yet, by the place of a module among all: not far from that
    assert first == pytest.approx(second, abs=0.1)


def test_a_layer_takes_as_long_as_it_has_weights():
    signature = [("a", False, torch.Size([1, 2, 16, 8])), ("b", False, torch.Size([1, 2, 4, 8]))]
    told = []
    tell = _told(told.append, torch.nn.Identity(), Known(signature, [], by_gate=True))
    for _ in signature:
        tell(None)
    assert told == pytest.approx([256 / 544, 528 / 544])  # 2 heads of 16 × 16, then of 4 × 4


def test_a_method_that_goes_down_tells_after_every_layer(record):
    told = []
    Rollout().heatmap(record, progress=told.append)
    assert told == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_costs_are_shared_out_and_pieces_follow_each_other():
    assert shares_at_middles([3.0, 1.0]) == [0.375, 0.875]
    told = []
    for number in range(2):
        within(told.append, number, 2)(0.5)
    assert told == [0.25, 0.75]


def test_the_time_left_is_right_to_a_factor_of_two_on_any_pass(tiny_timm, clock, monkeypatch):
    """Blocks of 40 s each and layers of the rollout of 10 s: known or not, it is said how long."""
    for block in tiny_timm.blocks:
        block.register_forward_pre_hook(lambda *_: clock.turn(20))
        block.register_forward_hook(lambda *_: clock.turn(20))
    carried = Rollout._carry
    monkeypatch.setattr(Rollout, "_carry", lambda *a: (clock.turn(10), carried(*a))[1])
    model = wrap_model(tiny_timm, Preprocess(64, 64))
    for _ in range(2):
        start = clock.now
        told = told_of(model, clock, dot_image(64, 64, 9, 9))
        shares = [share for _, share, _ in told]
        assert shares == sorted(shares)
        assert (shares[0], shares[-1]) == (0.0, 1.0)
        for step, times, end in (("Looking at the picture", 3, 120), ("Attention rollout", 2, 150)):
            said = [(at, words) for at, _, words in told if words.startswith(f"{step}: ")]
            assert len(said) == times
            for at, words in said:
                left = start + end - at
                assert left / 2 <= seconds_of(words) <= 2 * left


def test_nothing_is_said_of_what_is_over_soon_nor_of_a_share_that_falls(clock):
    told = []
    pace = Pace(lambda *step: told.append(step), "Looking", 0.2, 0.6)
    clock.turn(0.5)
    pace(0.5)
    assert told == [(0.2, "Looking")]  # one second in all
    clock.turn(9.5)
    pace(0.75)
    pace(0.25)
    pace(1.0)
    assert told[1:] == [(pytest.approx(0.5), "Looking: about 3 s left")]


def test_who_is_told_can_stop_the_pass(tiny_timm, pixels):
    class Enough(Exception):
        pass

    def stop(_share):
        raise Enough

    for _ in range(2):  # the pass that finds out where tokens lie, and a known one
        with pytest.raises(Enough):
            capture(tiny_timm, pixels, progress=stop)
    expected = tiny_timm(pixels[None]).detach()
    assert torch.equal(capture(tiny_timm, pixels).output, expected[0])
    with pytest.raises(Enough):
        capture(tiny_timm, pixels, progress=stop)
