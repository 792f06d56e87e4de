"""Relevance of patch embeddings and of the tokens between layers, against rules written out."""

import inspect

import gradient_oracle as oracle
import pytest
import timm
import torch
from gradient_oracle import relative_error
from PIL import Image
from samples import randomised
from test_gradient_methods import BOUND, TARGET, without_constants

from vizattn.cli.explain import explain as explain_command
from vizattn.errors import CaptureError, MethodError
from vizattn.gradients import capture_gradients
from vizattn.methods import CPLRP, METHODS, AttnLRP, GradientInput, LibraGrad, settings
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.record import AttentionRecord

RULES = {"plain": GradientInput, "cp": CPLRP, "attn": AttnLRP}


@pytest.mark.parametrize("rule", RULES)
def test_relevance_of_patch_embeddings_is_that_of_a_pass_with_the_rules_in_it(
    rule, tiny_vit, pixels, tmp_path
):
    small, method = pixels[:, :, :48], RULES[rule](of="tokens")
    assert method.wanted == (f"{rule}:tokens",)
    record = capture_gradients(tiny_vit.double(), small, TARGET, needs=method.wanted)
    _, expected, _, _ = oracle.propagated(tiny_vit, small, TARGET, rule)
    heat = method.heatmap(record)
    assert relative_error(heat.values.flatten(), expected) < BOUND
    assert " of patch embeddings for class 3 with logit" in heat.sentence
    assert heat.made["settings"] == {"of": "tokens"}
    loaded = AttentionRecord.load(record.save(tmp_path / "record"))
    assert torch.equal(method.heatmap(loaded).values, heat.values)


def test_libragrad_is_the_sum_over_layers_of_tokens_times_their_balanced_gradient(tiny_vit, pixels):
    small = pixels[:, :, :48]
    record = capture_gradients(tiny_vit.double(), small, TARGET, needs=LibraGrad().wanted)
    _, _, layers, _ = oracle.propagated(tiny_vit, small, TARGET, "cp")
    query = record.grid.cls
    assert relative_error(LibraGrad()(record, query), layers.sum(0)) < BOUND
    assert relative_error(LibraGrad(start_layer=1)(record, query), layers[1]) < BOUND
    for maps, expected in zip(LibraGrad().by_layer(record), layers.cumsum(0), strict=True):
        assert relative_error(maps.relevance[0], expected) < BOUND
    assert LibraGrad().heatmap(record).sentence.startswith("LibraGrad over 2 layers for class 3")
    with pytest.raises(MethodError, match="start_layer 2 of a model with 2 layers"):
        LibraGrad(start_layer=2).heatmap(record)


def test_without_biases_tokens_of_every_layer_sum_to_the_target(pixels):
    model = without_constants().double()
    record = capture_gradients(
        model, pixels, TARGET, needs=["cp:layers", "cp:tokens", "attn:layers"]
    )
    logit = record.output[TARGET].float()
    torch.testing.assert_close(record.extras["cp:layers"].sum(1), logit.expand(3))
    torch.testing.assert_close(record.extras["cp:tokens"].sum(), logit)
    assert (record.extras["attn:layers"].sum(1) - logit).abs().max() > 0.1 * logit.abs()


def test_embeddings_are_found_behind_a_position_that_is_resampled(tiny_timm, pixels):
    model = tiny_timm.double()
    record = capture_gradients(model, pixels, TARGET, needs=["plain:tokens"])
    embedded = []
    hook = model.patch_embed.register_forward_hook(lambda _m, _a, out: embedded.append(out))
    logit = model(pixels.double().unsqueeze(0).requires_grad_())[0, TARGET]
    hook.remove()
    gradient = torch.autograd.grad(logit, embedded)[0]
    expected = (embedded[0] * gradient).flatten(1, -2).sum(-1)[0].detach()
    assert relative_error(record.extras["plain:tokens"], expected) < BOUND


def test_merged_patches_have_their_embeddings_on_the_finest_grid_and_no_sum_over_layers():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1), num_classes=5
    )
    model, pixels = randomised(model), torch.randn(3, 56, 56)
    record = capture_gradients(model, pixels, needs=["cp:tokens"])
    assert CPLRP(of="tokens").heatmap(record).values.shape == (14, 14)
    with pytest.raises(CaptureError, match="not all blocks of SwinTransformer take the same"):
        capture_gradients(model, pixels, needs=["cp:layers"])


class Mirrored(torch.nn.Module):
    """Pixels go two ways before anything makes patches of them."""

    def __init__(self, model, stem):
        super().__init__()
        self.model, self.stem, self.default_cfg = model, stem, model.default_cfg

    def forward(self, x):
        x = self.stem(x)
        return self.model(x + x.flip(-1))


def test_embeddings_that_are_not_there_or_no_vector_per_patch_are_refused(tiny_timm, pixels):
    lost = Mirrored(tiny_timm, torch.relu).eval()
    with pytest.raises(CaptureError, match="no patch embedding was found in Mirrored: its pixels"):
        capture_gradients(lost, pixels, needs=["cp:tokens"])
    large = Mirrored(tiny_timm, torch.nn.Conv2d(3, 3, 1)).eval()
    with pytest.raises(CaptureError, match=r"numbers of shape \(1, 3, 64, 64\), .* pixels works"):
        capture_gradients(large, pixels, needs=["cp:tokens"])


def test_a_record_of_pixels_is_no_record_of_embeddings(tiny_timm, pixels):
    record = capture_gradients(tiny_timm, pixels, needs=["cp"])
    with pytest.raises(MethodError, match=r"by the tokens, .* needs=\['cp:tokens'\]"):
        CPLRP(of="tokens").heatmap(record)


def test_no_setting_has_the_name_of_an_option_that_the_command_line_has_already():
    taken = set(inspect.signature(explain_command).parameters) - {"layer", "head"}
    assert "at" in taken
    for method in METHODS.values():
        assert not taken & {setting.name for setting in settings(method)}, method.name


@pytest.mark.parametrize("method", METHODS.values())
def test_what_a_method_needs_is_what_its_settings_want_when_nobody_says_anything(method):
    assert method().wanted == method.needs


def test_the_page_counts_what_a_method_keeps_beside_attention(tiny_timm, tmp_path):
    from vizattn.explain import explain
    from vizattn.ui.kept import Kept

    model = wrap_model(tiny_timm, Preprocess(64, 64))
    look = explain(Image.new("RGB", (64, 64)), model=model, method="beyond-intuition")
    beside = sum(tensor.nbytes for tensor in look.record.extras.values())
    assert beside > 2 * 20 * 17 * 32 * 4  # values and derivatives of twenty steps
    kept = sum(layer.bytes for layer in look.record)
    assert Kept(look, {}, tmp_path).bytes == kept + beside
