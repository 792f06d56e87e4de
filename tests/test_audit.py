import json

import pytest
import timm
import torch
from samples import randomised
from torch import nn

from vizattn.audit import attends, audit, noise
from vizattn.models import load_model, wrap_model
from vizattn.preprocess import Preprocess


def report_of(module, size=64):
    return audit(
        wrap_model(module.eval(), Preprocess(size, size), name="mine"), torch.randn(3, size, size)
    )


def test_a_plain_transformer_passes_with_figures_for_every_call(tiny_timm):
    report = report_of(tiny_timm)
    assert report.passed
    assert report.verdict == "3 of 3 attention calls, exact, output bit-identical"
    for call in report.calls:
        assert (call.kind, call.heads, call.queries, call.keys) == ("self", 2, 17, 17)
        assert call.grid == (4, 4)
        assert 0 < call.row_error < 1e-5
        assert 0 < call.value_error < 1e-5  # recomputed, so not 0 by construction


def test_mixed_heads_are_named_and_the_mixture_is_what_made_the_output():
    cait = timm.create_model("cait_xxs24_224", img_size=64, depth=1, num_classes=0)
    report = report_of(randomised(cait))
    assert report.verdict == (
        "3 of 3 attention calls, 2 exact, 1 mixed after the softmax, output bit-identical"
    )
    assert report.calls[0].value_error < 1e-6
    assert report.calls[0].row_error < 1e-6  # the softmax's own rows still sum to 1


class Sly(nn.Module):
    """Attends where nobody looks for it: the weights are summed by hand."""

    def forward(self, images):
        tokens = nn.functional.avg_pool2d(images, 16).flatten(2).transpose(1, 2)
        weights = (tokens @ tokens.transpose(1, 2)).softmax(-1)
        return (weights.unsqueeze(-1) * tokens.unsqueeze(1)).sum(2)


def test_attention_that_is_missed_fails_and_is_named():
    report = report_of(Sly())
    assert not report.passed
    assert report.missed == (
        ("", "its class takes a softmax, and no attention call was seen in it"),
    )
    assert report.verdict.startswith("0 of 1 attention calls")


def test_an_output_that_changes_between_passes_is_not_called_identical():
    class Restless(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, images):
            return self.inner(images) + torch.rand(1)

    inner = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1)
    report = report_of(Restless(inner))
    assert not report.identical
    assert not report.passed
    assert report.verdict.endswith("OUTPUT CHANGED")


def test_softmax_in_a_comment_or_a_string_is_no_attention():
    class Talks(nn.Module):
        """Not a softmax."""

        def forward(self, x):
            return x  # softmax

    class Does(nn.Module):
        def forward(self, x):
            return x.softmax(-1)

    assert not attends(Talks())
    assert attends(Does())
    assert attends(nn.MultiheadAttention(4, 2))
    assert not attends(nn.Softmax())


def test_a_report_is_plain_json(tiny_timm):
    report = report_of(tiny_timm).as_dict()
    assert json.loads(json.dumps(report))["passed"] is True


@pytest.mark.parametrize("name", ["vizattn/dinov2-small"])
def test_the_embedded_model_passes(name):
    model = load_model(name)
    pixels, _ = model.transform(noise(64))
    report = audit(model, pixels[:, :140, :140])
    assert report.passed, report
    assert report.verdict == "12 of 12 attention calls, exact, output bit-identical"
