import gc
import weakref

import gradient_oracle as oracle
import pytest
import timm
import torch
from gradient_oracle import relative_error
from samples import randomised
from torch import nn

from vizattn.errors import CaptureError, TargetError
from vizattn.gradients import NEEDS, added_by_key, capture_gradients
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.record import AttentionRecord
from vizattn.targets import class_index, goal_of
from vizattn.vit import ViT

FAMILIES = {
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "deit_tiny_distilled_patch16_224": {"img_size": 64, "depth": 2},
    "beit_base_patch16_224": {"img_size": 64, "depth": 2},  # a trainable bias on the scores
    "swin_tiny_patch4_window7_224": {"img_size": 56, "depths": (1, 2, 1, 1)},
    "cait_xxs24_224": {"img_size": 64, "depth": 1},
    "mvitv2_tiny": {"img_size": 64},
    "pvt_v2_b0": {},
    "vit_base_patch16_siglip_224": {"img_size": 64, "depth": 2},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
}


def family(name):
    return randomised(timm.create_model(name, num_classes=5, **FAMILIES[name]))


def picture_of(name):
    side = FAMILIES[name].get("img_size", 64)
    return torch.randn(3, side, side, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_a_gradient_for_every_call_and_the_output_of_a_plain_pass(name):
    model, pixels = family(name), picture_of(name)
    with torch.no_grad():
        plain = model(pixels.unsqueeze(0))[0]
    record = capture_gradients(model, pixels, 1)
    assert torch.equal(record.output, plain)
    for layer in record:
        lead, n_queries, _ = layer.core_shape
        assert layer.g.shape == (lead, n_queries, layer.v.shape[-1])
        assert (layer.g != 0).any()
        assert not any(
            getattr(layer, part).requires_grad
            for part in layer.tensors
            if getattr(layer, part) is not None
        )


class Written(torch.overrides.TorchFunctionMode):
    """Attention written out in place of the fused one; its weights are kept with their graph."""

    SOFTMAX = (torch.Tensor.softmax, torch.softmax, nn.functional.softmax)

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is nn.functional.scaled_dot_product_attention:
            return self.attend(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in self.SOFTMAX:
            self.seen.append(result)
        return result

    def attend(self, q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        weights = torch.exp(scores if attn_mask is None else scores + attn_mask)
        weights = weights / weights.sum(-1, keepdim=True)
        self.seen.append(weights)
        return weights @ v


@pytest.mark.parametrize("name", FAMILIES)
def test_g_times_the_values_is_the_derivative_by_weights_that_are_written_out(name):
    model, pixels = family(name).double(), picture_of(name).double()
    record = capture_gradients(model, pixels, 1)
    with Written() as written:
        logit = model(pixels.unsqueeze(0))[0, 1]
    assert len(written.seen) == len(record)
    derivatives = torch.autograd.grad(logit, written.seen)
    compared = 0
    for layer, weights, expected in zip(record, written.seen, derivatives, strict=True):
        if not layer.is_exact:
            continue  # heads were mixed afterwards: g belongs to the mixture
        weights, expected = (x.detach().reshape(-1, *x.shape[-2:]) for x in (weights, expected))
        ours = torch.cat([tile for _, tile in layer.core_tiles()], dim=1).double()
        lead = torch.cdist(ours.flatten(1), weights.flatten(1)).argmin(1)  # windows may be sorted
        assert len(lead.unique()) == len(lead)
        assert relative_error(layer.g @ layer.v.mT, expected[lead]) < 1e-7
        compared += 1
    assert compared >= 2


def torchvision_vit():
    from torchvision.models import VisionTransformer

    model = VisionTransformer(64, 16, 2, 2, 24, 48, num_classes=5)
    return model, [layer.self_attention.out_proj for layer in model.encoder.layers]


def hf_vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        image_size=64, patch_size=16, num_labels=5,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    dense = [part for name, part in model.named_modules() if name.endswith("o_proj")]
    dense = dense or [m for n, m in model.named_modules() if n.endswith("attention.output.dense")]
    return model, dense


def vit_pytorch_vit():
    from vit_pytorch import ViT as Theirs

    model = Theirs(
        image_size=64, patch_size=16, num_classes=5, dim=24, depth=2, heads=2, dim_head=12,
        mlp_dim=48,
    )  # fmt: skip
    return model, [attention.to_out[0] for attention, _ in model.transformer.layers]


@pytest.mark.parametrize("make", [torchvision_vit, hf_vit, vit_pytorch_vit])
def test_turning_up_an_output_layer_moves_the_logit_as_g_says(make, pixels):
    """By differences, where nobody writes the attention out: d logit / d factor = Σ g · (A v)."""
    model, projections = make()
    model, pixels = randomised(model).double(), pixels.double()
    record = capture_gradients(model, pixels, 1)
    assert len(record) == len(projections) == 2
    for layer, projection in zip(record, projections, strict=True):
        put_out = layer.rows(range(layer.n_queries)).double() @ layer.v
        expected = float((layer.g * put_out).sum())
        plain, logits = projection.weight.detach().clone(), []
        for step in (1e-5, -1e-5):
            projection.weight.data.copy_(plain * (1 + step))
            with torch.no_grad():
                output = model(pixels.unsqueeze(0))
            logits.append(float(getattr(output, "logits", output)[0, 1]))
        projection.weight.data.copy_(plain)
        found = (logits[0] - logits[1]) / 2e-5
        assert abs(expected) > 1e-3
        assert abs(found - expected) < 1e-6 * max(1, abs(expected))


def test_in_float32_the_difference_to_float64_is_that_of_the_network(tiny_timm, pixels):
    record = capture_gradients(tiny_timm, pixels, 2)
    dense = oracle.dense_pass(tiny_timm, pixels, 2, oracle.third_part, oracle.output_layer)
    for layer, expected in zip(record, dense.gradients, strict=True):
        assert relative_error(layer.g @ layer.v.mT, expected) < 1e-5


def test_the_callers_model_is_as_it_was_and_nothing_is_left_in_grad(tiny_timm, pixels):
    tiny_timm.blocks[0].attn.qkv.weight.requires_grad_(False)
    tiny_timm.head.bias.grad = torch.ones(5)

    def state():
        return [
            (name, p.requires_grad, None if p.grad is None else p.grad.sum().item(), p.data_ptr())
            for name, p in tiny_timm.named_parameters()
        ], [
            (len(m._forward_hooks), len(m._backward_hooks), m.training) for m in tiny_timm.modules()
        ]

    before, asked = state(), pixels.clone().requires_grad_()
    capture_gradients(tiny_timm, asked, needs=NEEDS)
    assert state() == before
    assert asked.grad is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_gets_the_same(mode, tiny_timm, pixels):
    expected = capture_gradients(tiny_timm, pixels, 1)
    with mode():
        found = capture_gradients(tiny_timm, pixels.clone(), 1)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.g, theirs.g)
    assert torch.is_grad_enabled()


def test_two_captures_are_equal_and_the_second_needs_no_plain_pass(tiny_timm, pixels):
    calls = []
    handle = tiny_timm.register_forward_hook(lambda *_: calls.append(1))
    first = capture_gradients(tiny_timm, pixels, 1)
    counted = len(calls)
    second = capture_gradients(tiny_timm, pixels, 1)
    handle.remove()
    assert len(calls) == counted + 1
    assert all(torch.equal(a.g, b.g) for a, b in zip(first, second, strict=True))


def test_nothing_holds_the_graph_afterwards(tiny_timm, pixels):
    seen = []
    handle = tiny_timm.register_forward_hook(
        lambda _m, _a, out: seen.append(weakref.ref(out)) if out.grad_fn is not None else None
    )
    record = capture_gradients(tiny_timm, pixels, 1, needs=NEEDS)
    handle.remove()
    gc.collect()
    assert seen
    assert all(each() is None for each in seen)
    assert len(record) == 3


def test_a_model_that_goes_another_way_than_last_time_is_looked_at_again(tiny_timm, pixels):
    fused = capture_gradients(tiny_timm, pixels, 1)
    for block in tiny_timm.blocks:
        block.attn.fused_attn = False
    written = capture_gradients(tiny_timm, pixels, 1)
    assert len(fused) == len(written) == 3
    for ours, theirs in zip(fused, written, strict=True):
        torch.testing.assert_close(ours.g, theirs.g, rtol=1e-4, atol=1e-5)


def test_a_model_made_in_inference_mode_is_refused_in_words(pixels):
    with torch.inference_mode():
        model = ViT(
            image_size=64, patch_size=16, num_classes=5, dim=24, depth=1, heads=2, mlp_dim=32
        )
    with pytest.raises(CaptureError, match=r"was made in torch\.inference_mode"):
        capture_gradients(model.eval(), pixels)


class Wrapped(nn.Module):
    def __init__(self, model, how):
        super().__init__()
        self.model, self.how = model, how

    def forward(self, x):
        return self.how(self.model, x)


def without_gradients(model, x):
    with torch.no_grad():
        return model(x)


def frozen_backbone(model, x):
    with torch.no_grad():
        x = model.forward_features(x)
    return model.forward_head(x + 0 * x.detach().requires_grad_())


def cut_after_first_block(model, x):
    x = model.pos_drop(model._pos_embed(model.patch_embed(x)))
    x = model.blocks[0](x).detach().requires_grad_()
    for block in model.blocks[1:]:
        x = block(x)
    return model.forward_head(model.norm(x))


def reentrant(model, x):
    x = model._pos_embed(model.patch_embed(x))
    for block in model.blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
    return model.forward_head(model.norm(x))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # torch's own
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (without_gradients, "has no gradient: the model switches gradients off"),
        (frozen_backbone, "3 of 3 attention calls have no gradient .* detached the graph"),
        (cut_after_first_block, r"1 of 3 attention calls .*model\.blocks\.0\.attn.* detached"),
        (reentrant, "3 of 3 attention calls .* by reentrant activation checkpointing"),
    ],
)
def test_what_detaches_the_graph_is_said(how, said, tiny_timm, pixels):
    with pytest.raises(CaptureError, match=said):
        capture_gradients(wrap_model(Wrapped(tiny_timm, how).eval()), pixels, 1)


def test_a_record_is_saved_and_loaded_with_all_that_was_asked(tiny_timm, pixels, tmp_path):
    record = capture_gradients(tiny_timm, pixels, 1, needs=NEEDS)
    loaded = AttentionRecord.load(record.save(tmp_path / "record"))
    assert loaded.target == record.target == f"class 1 with logit {float(record.output[1]):.3g}"
    assert torch.equal(loaded.pixels, pixels)
    assert set(loaded.input_gradients) == {"plain", "cp", "attn"}
    for rule, gradient in record.input_gradients.items():
        assert torch.equal(loaded.input_gradients[rule], gradient)
    for ours, theirs in zip(loaded, record, strict=True):
        assert torch.equal(ours.g, theirs.g)
        assert torch.equal(ours.gives, theirs.gives)


def test_needs_that_do_not_exist_are_refused(tiny_timm, pixels):
    with pytest.raises(CaptureError, match="got needs hessian; there are attention, added"):
        capture_gradients(tiny_timm, pixels, needs=["hessian"])


def test_coordinates_keep_every_length():
    v, projection = torch.randn(6, 7, 4).double(), torch.randn(3, 4, 20).double()
    heads = torch.tensor([0, 1, 2, 0, 1, 2])
    gives = added_by_key(v, projection, heads, 3)
    assert gives.shape == (6, 7, 3)
    mixture = torch.randn(3).double()
    for window in range(2):
        part = slice(3 * window, 3 * window + 3)
        added = torch.einsum("h,hkv,hvd->kd", mixture, v[part], projection)
        found = torch.einsum("h,hkc->kc", mixture, gives[part])
        torch.testing.assert_close(found.norm(dim=-1), added.norm(dim=-1))


LABELS = ("tabby, tabby cat", "Egyptian cat", "golden retriever", "7", "rocket")


@pytest.mark.parametrize(
    ("target", "index"),
    [(2, 2), (-1, 4), ("1", 1), ("tabby cat", 0), ("EGYPTIAN cat", 1), ("7", 3), ("rocket", 4)],
)
def test_a_class_is_found_by_index_and_by_any_of_its_names(target, index):
    assert class_index(target, LABELS, 5) == index


@pytest.mark.parametrize(
    ("target", "labels", "said"),
    [
        (5, LABELS, "no class 5: the model has 5, from 0 to 4"),
        ("tabi", LABELS, r"no class is named 'tabi' among 5\. Did you mean 'tabby'"),
        ("tabby", (), "names of this model's 5 classes are not known"),
    ],
)
def test_a_class_that_is_not_there_is_refused_with_near_names(target, labels, said):
    with pytest.raises(TargetError, match=said):
        class_index(target, labels, 5)


def test_a_model_with_names_is_asked_by_name_and_says_it(tiny_timm, pixels):
    model = wrap_model(tiny_timm, Preprocess(64, 64), labels=LABELS)
    record = capture_gradients(model, pixels, "tabby cat")
    assert record.target.startswith("class 'tabby' with logit ")
    by_index = capture_gradients(model, pixels, 0)
    assert all(torch.equal(a.g, b.g) for a, b in zip(record, by_index, strict=True))


def test_a_model_without_classes_is_asked_for_its_embedding(pixels):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=0)
    model = randomised(model)
    record = capture_gradients(model, pixels)
    assert record.target == "the embedding along its own direction"
    x = pixels.unsqueeze(0).clone().requires_grad_()
    length = model(x).norm()  # has the same gradient as the part along the fixed direction
    expected = torch.autograd.grad(length, x)[0][0]
    plain = capture_gradients(model, pixels, needs=["plain"]).input_gradients["plain"]
    torch.testing.assert_close(plain, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(TargetError, match="has no classes"):
        capture_gradients(model, pixels, "cat")


def test_an_embedding_is_compared_with_that_of_another_picture(pixels):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, num_classes=0)
    model = randomised(model)
    with torch.no_grad():
        other = model(pixels.flip(-1).unsqueeze(0))[0]
    record = capture_gradients(model, pixels, other)
    assert record.target.startswith("the given embedding, cosine ")
    own = capture_gradients(model, pixels)
    assert not torch.allclose(record[0].g, own[0].g)
    with pytest.raises(TargetError, match="got an embedding of 3 numbers"):
        capture_gradients(model, pixels, other[:3])


def test_tokens_are_pooled_as_the_grid_reads_them_out(pixels):
    model = ViT(image_size=64, patch_size=16, num_classes=0, dim=24, depth=2, heads=2, mlp_dim=32)
    record = capture_gradients(randomised(model), pixels)
    assert record.target == "the embedding along its own direction"
    assert (record[-1].g[:, 0] != 0).any()
    assert not (record[-1].g[:, 1:] != 0).any()  # the class token alone was read


def test_what_is_no_vector_is_refused():
    with pytest.raises(TargetError, match=r"shape \(2, 3\); what can be asked about"):
        goal_of(torch.zeros(2, 3), nn.Identity())
    with pytest.raises(TargetError, match="returned str, in which no logits"):
        goal_of("nothing", nn.Identity())
