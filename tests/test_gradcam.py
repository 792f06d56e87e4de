"""Grad-CAM against hooks on the normalisation whose tokens it should have found."""

import copy

import pytest
import timm
import torch
from gradient_oracle import relative_error
from samples import randomised
from test_gradient_methods import BOUND, TARGET, other_library

from vizattn.errors import CaptureError
from vizattn.gradients import capture_gradients
from vizattn.methods import GradCAM

SMALL = {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 5}
FAMILIES = {
    "vit_tiny_patch16_224": (SMALL, lambda m: m.blocks[-1].norm1),
    "deit_tiny_distilled_patch16_224": (SMALL, lambda m: m.blocks[-1].norm1),
    "vit_base_patch16_siglip_224": (SMALL, lambda m: m.norm),
    "eva02_tiny_patch14_224": (SMALL | {"img_size": 56}, lambda m: m.blocks[-1].norm1),
    "cait_xxs24_224": (SMALL, lambda m: m.blocks_token_only[-1].norm1),
    "swin_tiny_patch4_window7_224": (
        {"img_size": 56, "depths": (2,), "window_size": 4, "num_classes": 5},
        lambda m: m.layers[-1].blocks[-1].norm1,
    ),
}
LIBRARIES = {
    "torchvision": lambda m: m.encoder.layers[-1].ln_1,
    "vit": lambda m: m.vit.layers[-1].layernorm_before,
    "clip": lambda m: m.vision_model.encoder.layers[-1].layer_norm1,
}


def written_out(model, pixels, norm, target):
    """ReLU(Σ α F) of the patches, with F from a hook on a module and α by autograd."""
    model, seen = copy.deepcopy(model).double(), []
    hook = norm(model).register_forward_hook(lambda _m, _a, out: seen.append(out))
    output = model(pixels.double().unsqueeze(0).requires_grad_())
    hook.remove()
    logits = getattr(output, "logits", getattr(output, "image_embeds", output))[0]
    (gradient,) = torch.autograd.grad(logits[target], seen)
    return seen[0].flatten(1, -2)[0].detach(), gradient.flatten(1, -2)[0]


def check(model, pixels, norm):
    record = capture_gradients(model.double(), pixels, TARGET, needs=["features"])
    features, gradient = written_out(model, pixels, norm, TARGET)
    prefix = record[-1].keys.grid.prefix
    expected = torch.zeros(len(features) - prefix, dtype=torch.float64)
    for k in range(features.shape[1]):
        expected += gradient[prefix:, k].mean() * features[prefix:, k]
    found = GradCAM().heatmap(record)
    assert relative_error(found.values.flatten(), expected.clamp(min=0)) < BOUND
    assert found.range[0] == 0 < found.range[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_paper_on_what_the_last_attention_reads(name):
    given, norm = FAMILIES[name]
    model = randomised(timm.create_model(name, **given))
    side = given["img_size"]
    check(model, torch.randn(3, side, side, generator=torch.Generator().manual_seed(4)), norm)


@pytest.mark.parametrize("name", LIBRARIES)
def test_other_libraries_are_read_alike(name, pixels):
    check(other_library(name), pixels, LIBRARIES[name])


def test_the_seed_reads_its_own_normalisation(tiny_vit, pixels):
    check(tiny_vit, pixels[:, :, :48], lambda m: m.transformer.layers[-1][0].norm)


class Twice(torch.nn.Module):
    def forward(self, x):
        return 2 * x


class OtherKeys(torch.nn.Module):
    """Attention whose keys and values are made of other tokens than its queries."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.twice = inner, Twice()

    def forward(self, x, **_given):
        weights = self.inner.qkv.weight.chunk(3)
        parts = zip((x, self.twice(x), self.twice(x)), weights, strict=True)
        q, k, v = ((x @ w.mT).unflatten(-1, (2, -1)).transpose(1, 2) for x, w in parts)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return self.inner.proj(mixed.transpose(1, 2).flatten(2))


def test_queries_and_keys_of_different_tokens_are_refused(tiny_timm, pixels):
    tiny_timm.blocks[-1].attn = OtherKeys(tiny_timm.blocks[-1].attn)
    with pytest.raises(CaptureError, match=r"not found what tokens .*attn makes its keys and val"):
        capture_gradients(tiny_timm, pixels, needs=["features"])


def test_behind_the_last_block_no_patch_has_a_gradient(tiny_timm, pixels):
    """Why the tokens are taken before the last attention."""
    _, gradient = written_out(tiny_timm, pixels, lambda model: model.blocks[-1], TARGET)
    assert (gradient[0] != 0).any()
    assert (gradient[1:] == 0).all()
