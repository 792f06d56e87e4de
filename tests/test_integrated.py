"""Integrated gradients against a step by step sum, and its law: all of the difference is told."""

import copy

import pytest
import torch
from gradient_oracle import relative_error
from PIL import Image
from samples import randomised
from test_gradient_methods import BOUND, TARGET, by_patch, other_library

from vizattn import passes
from vizattn.errors import CaptureError, MethodError
from vizattn.gradients import capture_gradients
from vizattn.methods import IntegratedGradients
from vizattn.models import wrap_model
from vizattn.passes import baseline, parts
from vizattn.preprocess import Preprocess
from vizattn.record import AttentionRecord

BLACK = torch.tensor([-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225]).view(3, 1, 1)


def written_out(model, pixels, start, steps, read):
    """(x - x') times the mean of gradients, one picture at a time in float64."""
    model, x, start = copy.deepcopy(model).double(), pixels.double(), start.double()
    total = torch.zeros_like(x)
    for step in range(steps):
        along = (start + (step + 0.5) / steps * (x - start)).requires_grad_()
        total += torch.autograd.grad(read(model(along.unsqueeze(0))), along)[0]
    return (x - start) * total / steps


@pytest.mark.parametrize("steps", [3, 100])  # fewer and more than one pass takes
def test_it_is_the_sum_of_the_paper_from_black(steps, tiny_vit, pixels, tmp_path):
    small, model = pixels[:, :, :48], wrap_model(tiny_vit.double(), Preprocess(64, 48))
    method = IntegratedGradients(steps=steps)
    assert method.wanted == (f"integrated:black:{steps}",)
    record = capture_gradients(model, small, TARGET, needs=method.wanted)
    expected = written_out(tiny_vit, small, BLACK.expand(3, 64, 48), steps, lambda y: y[0, TARGET])
    heat = method.heatmap(record)
    assert relative_error(heat.values, by_patch(expected)) < BOUND
    assert f"from black in {steps} steps for class {TARGET}" in heat.sentence
    loaded = AttentionRecord.load(record.save(tmp_path / "record"))
    assert torch.equal(method.heatmap(loaded).values, heat.values)


@pytest.mark.parametrize("make", ["clip", "vit_model"])
def test_an_embedding_is_asked_along_the_direction_it_had_in_the_end(make, pixels):
    model, method = other_library(make).double(), IntegratedGradients(steps=4, baseline="mean")

    def read(output):
        embedding = getattr(output, "image_embeds", getattr(output, "pooler_output", None))
        return embedding[0] @ direction

    with torch.no_grad():
        output = model(pixels.double().unsqueeze(0))
        direction = getattr(output, "image_embeds", getattr(output, "pooler_output", None))[0]
        direction = direction / direction.norm()
    record = capture_gradients(model, pixels, needs=method.wanted)
    expected = written_out(model, pixels, torch.zeros(3, 64, 64), 4, read)
    assert relative_error(method.heatmap(record).values, by_patch(expected)) < BOUND


@pytest.mark.parametrize("start", ["black", "mean", "blur"])
def test_all_pixels_together_are_the_whole_difference(start, tiny_timm, pixels):
    model, off = wrap_model(tiny_timm.double(), Preprocess(64, 64)), []
    for steps in (12, 192):
        method = IntegratedGradients(steps=steps, baseline=start)
        record = capture_gradients(model, pixels / 10, TARGET, needs=method.wanted)
        first, last = record.extras[f"{method.wanted[0]}:ends"]
        torch.testing.assert_close(last, record.output[TARGET].float())
        total = method.heatmap(record).values.sum()
        off.append(abs(float(total - (last - first)) / float(last - first)))
    assert off[1] < 5e-2
    assert off[1] < off[0] / 4  # the midpoint rule: sixteen times the steps, far less of an error


class Sum(torch.nn.Module):
    """A class whose logit is a sum of pixels, beside attention that has a small say."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return 1e-9 * self.model(x) + x.sum((1, 2, 3)).unsqueeze(1)


def test_where_the_target_is_a_sum_one_step_gives_each_patch_its_own_pixels(tiny_timm, pixels):
    method = IntegratedGradients(steps=1, baseline="mean")
    record = capture_gradients(Sum(tiny_timm).eval(), pixels, 0, needs=method.wanted)
    torch.testing.assert_close(method.heatmap(record).values, by_patch(pixels))


def test_baselines_are_black_as_the_model_sees_it_its_mean_and_the_picture_out_of_focus():
    pixels = torch.zeros(3, 64, 32)
    pixels[:, 20, 10] = 1
    transform = Preprocess(224, 224, mode="pad", fill=(1, 1, 1))
    black = baseline("black", pixels, transform)  # and not the white around it
    torch.testing.assert_close(black, BLACK.expand(3, 64, 32))
    assert not baseline("mean", pixels, transform).any()
    blurred = baseline("blur", pixels, transform)
    assert int(blurred[0].argmax()) == 20 * 32 + 10
    ratio = float(blurred[0, 20, 12] / blurred[0, 20, 10])
    assert ratio == pytest.approx(float(torch.tensor(-0.5).exp()), rel=1e-2)  # one deviation off
    torch.testing.assert_close(
        baseline("blur", torch.ones(3, 9, 9), transform), torch.ones(3, 9, 9)
    )
    assert torch.cat(parts(5, 1)).tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    assert [len(part) for part in parts(5, passes._PIXELS // 2)] == [2, 2, 1]


def test_what_cannot_be_known_or_was_not_asked_for_is_refused(tiny_timm, pixels):
    with pytest.raises(CaptureError, match=r"there are .*integrated:black:20"):
        capture_gradients(tiny_timm, pixels, needs=["integrated:white:20"])
    bare = Sum(tiny_timm).eval()  # no transform, no size
    with pytest.raises(CaptureError, match="not known how this model sees black"):
        capture_gradients(bare, pixels, needs=["integrated:black:20"])
    record = capture_gradients(tiny_timm, pixels, needs=["integrated:mean:2"])
    with pytest.raises(MethodError, match=r"from black in 20 steps, .*needs=\['integrated:black"):
        IntegratedGradients().heatmap(record)


def test_a_picture_is_taken_from_black_as_pixels_are(tiny_timm):
    model = wrap_model(randomised(tiny_timm), Preprocess(64, 64))
    record = capture_gradients(model, Image.new("RGB", (64, 64)), 0, needs=["integrated:black:2"])
    assert not IntegratedGradients(steps=2).heatmap(record).values.any()  # nothing came in
