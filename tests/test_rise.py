"""RISE against masks that are asked one by one, and laws of its masks."""

import math

import pytest
import torch
from gradient_oracle import relative_error
from test_gradient_methods import BOUND, TARGET, other_library

from vizattn.errors import MethodError
from vizattn.gradients import capture_gradients
from vizattn.masks import random_masks
from vizattn.methods import RISE
from vizattn.record import AttentionRecord


def masks_one_by_one(count, cells, height, width):
    """The paper's masks, each number between the middles of its four cells written out."""
    generator, found = torch.Generator().manual_seed(0), []
    high, wide = math.ceil(height / cells), math.ceil(width / cells)
    for _ in range(count):
        grid = torch.rand(1, 1, cells, cells, generator=generator)[0, 0] < 0.5
        down = int(torch.randint(high, (), generator=generator))
        along = int(torch.randint(wide, (), generator=generator))
        large = (cells + 1) * high, (cells + 1) * wide
        sides = [
            hats(torch.arange(start, start + size), cells / total, cells)
            for start, size, total in ((down, height, large[0]), (along, width, large[1]))
        ]
        found.append(sides[0] @ grid.double() @ sides[1].mT)
    return found


def hats(pixels, scale, cells):
    """How much each cell says at each pixel: 1 at its middle, falling to 0 at its neighbours'."""
    at = ((pixels + 0.5) * scale - 0.5).clamp(0, cells - 1).double()
    return (1 - (at[:, None] - torch.arange(cells)).abs()).clamp(min=0)


@pytest.mark.parametrize("together", [2, 64])
def test_masks_are_those_of_the_paper_however_many_are_made_at_a_time(together):
    found = torch.cat(list(random_masks(5, 3, 32, 20, together)))
    for ours, theirs in zip(found, masks_one_by_one(5, 3, 32, 20), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-6)


def test_masks_show_half_of_the_picture_on_average():
    masks = torch.cat(list(random_masks(400, 7, 28, 28)))
    assert float(masks.mean()) == pytest.approx(0.5, abs=0.02)
    assert float((masks.mean(0) - 0.5).abs().max()) < 0.1
    assert (float(masks.min()), float(masks.max())) == (0.0, 1.0)


def test_it_is_the_paper_mask_by_mask(tiny_vit, pixels, tmp_path):
    small, model, method = pixels[:, :, :48], tiny_vit.double(), RISE(masks=90, cells=3)
    assert method.wanted == ("masks:90:3",)
    record = capture_gradients(model, small, TARGET, needs=method.wanted)
    total = torch.zeros(64, 48, dtype=torch.float64)
    with torch.no_grad():
        for mask in masks_one_by_one(90, 3, 64, 48):
            sure = model((small.double() * mask).unsqueeze(0)).softmax(-1)[0, TARGET]
            total += sure * mask / (90 * 0.5)
    expected = total.unflatten(0, (4, 16)).unflatten(2, (3, 16)).mean((1, 3))
    heat = method.heatmap(record)
    assert relative_error(heat.values, expected) < BOUND
    assert heat.sentence.startswith("RISE with 90 masks for class 3 with logit")
    loaded = AttentionRecord.load(record.save(tmp_path / "record"))
    assert torch.equal(method.heatmap(loaded).values, heat.values)


def test_a_model_without_classes_is_asked_how_near_its_embedding_stays(pixels):
    model = other_library("clip").double()
    record = capture_gradients(model, pixels, needs=["masks:6:2"])
    with torch.no_grad():
        own = model(pixels.double().unsqueeze(0)).image_embeds[0]
        near = [
            torch.cosine_similarity(model((pixels * m).unsqueeze(0)).image_embeds[0], own, dim=0)
            for m in masks_one_by_one(6, 2, 64, 64)
        ]
    torch.testing.assert_close(record.extras["masks:6:2"].double(), torch.stack(near))


class Corner(torch.nn.Module):
    """Sure of its class as far as the upper left corner is bright, beside idle attention."""

    def __init__(self, model):
        super().__init__()
        self.model, self.default_cfg = model, model.default_cfg

    def forward(self, x):
        bright = x[:, 0, :16, :16].mean((1, 2))
        return 1e-9 * self.model(x)[:, :2] + torch.stack([8 * bright, 0 * bright], 1)


def test_the_patch_that_decides_is_the_strongest(tiny_timm):
    method = RISE(cells=4)
    record = capture_gradients(
        Corner(tiny_timm).eval(), torch.ones(3, 64, 64), 0, needs=method.wanted
    )
    heat = method.heatmap(record)
    assert heat.strongest == (0, 0)
    assert heat.values[0, 0] > heat.values.flatten()[1:].max() + 0.02


def test_answers_to_other_masks_are_refused(tiny_timm, pixels):
    record = capture_gradients(tiny_timm, pixels, needs=["masks:4:2"])
    with pytest.raises(MethodError, match=r"500 masks of 7 cells, .* needs=\['masks:500:7'\]"):
        RISE().heatmap(record)
