"""Every method that needs gradients or contributions, against its paper written out."""

import copy
from dataclasses import replace

import gradient_oracle as oracle
import pytest
import timm
import torch
from gradient_oracle import relative_error
from samples import randomised

from vizattn.errors import CaptureError, MethodError
from vizattn.gradients import capture_gradients
from vizattn.methods import (
    CPLRP,
    GAE,
    METHODS,
    AttentionGradCAM,
    AttentionShift,
    AttnLRP,
    GradientInput,
    GradientRollout,
    LeGrad,
    Query,
    ValueNormRollout,
    ValueNorms,
)
from vizattn.record import AttentionRecord
from vizattn.vit import ViT

TARGET = 3
BOUND = 1e-5  # of the largest patch


@pytest.fixture(params=["tiny_timm", "tiny_vit"])
def model(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def seen(model, pixels):
    """A record with everything, and the same model written out.

    The model runs in float64, so that a difference is the method's and not the network's rounding;
    ``test_gradients`` compares in float32.
    """
    model = model.double()
    pixels = pixels if hasattr(model, "blocks") else pixels[:, :, :48]
    record = capture_gradients(model, pixels, TARGET, needs=["attention", "added"])
    dense = oracle.dense_pass(model, pixels, TARGET, oracle.third_part, oracle.output_layer)
    assert all(weights.amax(-1).median() > 0.3 for weights in dense.weights)
    return record, dense


def queries(grid):
    return grid.cls, grid.mean, grid.patch(1, 2)


def patches(values):
    return values[..., 1:]


def test_the_gradient_of_the_weights_is_g_times_the_values(seen):
    record, dense = seen
    for layer, expected in zip(record, dense.gradients, strict=True):
        assert relative_error(layer.g @ layer.v.mT, expected) < BOUND


def test_gae_is_the_product_of_the_paper(seen):
    record, dense = seen
    for query in queries(record.grid):
        expected = oracle.gae(dense, query)
        found = GAE()(record, query)
        # the 1 of the identity would hide errors of all others, and float32 rounds beside it
        others = query < 1
        assert relative_error((found - query)[others], (expected - query)[others]) < BOUND
        torch.testing.assert_close(found[~others].double(), expected[~others], rtol=0, atol=1e-6)


def test_gradient_rollout_is_the_product_of_the_paper_and_conserves(seen):
    record, dense = seen
    for query in queries(record.grid):
        found, expected = GradientRollout()(record, query), oracle.gradient_rollout(dense, query)
        assert relative_error(patches(found), patches(expected)) < BOUND
        torch.testing.assert_close(found.sum(), query.sum())


def test_value_norms_are_lengths_of_vectors_written_out(seen):
    record, dense = seen
    for layer in range(len(record)):
        expected = oracle.value_norms(dense, layer)
        for query in queries(record.grid):
            found = ValueNorms(layer=layer)(record, query)
            assert relative_error(found, query.double() @ expected) < BOUND


@pytest.mark.parametrize("residual", [0.0, 0.5])
def test_value_norm_rollout_is_the_product_of_normalised_lengths(seen, residual):
    record, dense = seen
    for query in queries(record.grid):
        found = ValueNormRollout(residual=residual)(record, query)
        assert relative_error(found, oracle.value_norm_rollout(dense, query, residual)) < BOUND
        torch.testing.assert_close(found.sum(), query.sum())


def test_a_learnt_scale_behind_the_output_layer_is_counted_in(pixels):
    model = timm.create_model(
        "vit_small_patch14_dinov2", img_size=56, patch_size=14, depth=2, embed_dim=32, num_heads=2,
        num_classes=5,
    )  # fmt: skip
    model = randomised(model)
    for block in model.blocks:
        torch.nn.init.uniform_(block.ls1.gamma, 0.1, 2.0)
    pixels = pixels[:, :56, :56]
    record = capture_gradients(model, pixels, needs=["added"])
    dense = oracle.dense_pass(model, pixels, 0, oracle.third_part, oracle.output_layer)
    scales = [block.ls1.gamma.detach().double() for block in model.blocks]
    query = record.grid.cls
    expected = oracle.value_norm_rollout(dense, query, 0.5, scales)
    assert relative_error(ValueNormRollout()(record, query), expected) < BOUND
    unscaled = oracle.value_norm_rollout(dense, query, 0.5)
    assert relative_error(ValueNormRollout()(record, query), unscaled) > 1e-3


@pytest.mark.parametrize("method", [GAE(), GradientRollout(), ValueNormRollout()])
def test_maps_of_each_layer_are_what_a_model_cut_off_there_would_give(seen, method):
    record, dense = seen
    by_layer = method.by_layer(record)
    assert [maps.layer for maps in by_layer] == list(range(len(record)))
    whole = method(record, record.grid.cls)
    torch.testing.assert_close(by_layer[-1].relevance[0], whole)
    assert not torch.allclose(by_layer[0].relevance[0], whole)
    if isinstance(method, GAE):
        dense.weights, dense.gradients = dense.weights[:1], dense.gradients[:1]
        expected = oracle.gae(dense, record.grid.cls)
        assert relative_error(by_layer[0].relevance[0][1:], expected[1:]) < BOUND


def test_another_class_gives_another_map_and_none_gives_the_top_class(tiny_timm, pixels):
    maps = [GAE().heatmap(capture_gradients(tiny_timm, pixels, t)).values for t in (0, 1, None)]
    with torch.no_grad():
        top = int(tiny_timm(pixels.unsqueeze(0)).argmax())
    assert not torch.allclose(maps[0], maps[1], rtol=0.1)
    torch.testing.assert_close(
        maps[2], GAE().heatmap(capture_gradients(tiny_timm, pixels, top)).values
    )


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.needs])
def test_a_record_without_what_a_method_needs_is_refused_with_what_to_do(name, record):
    with pytest.raises(MethodError, match="capture_gradients"):
        METHODS[name]().heatmap(record)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if "attention" in m.needs])
def test_mixed_heads_are_refused_with_the_reason(name, pixels):
    model = timm.create_model("cait_xxs24_224", img_size=64, depth=1, num_classes=5)
    record = capture_gradients(randomised(model), pixels)
    with pytest.raises(MethodError, match=r"mixe[sd].* after the softmax"):
        METHODS[name](**({"layer": 0} if "layer" in METHODS[name].__annotations__ else {})).heatmap(
            record
        )


def test_heads_that_do_not_meet_in_one_linear_layer_have_no_value_norms(pixels):
    model = randomised(timm.create_model("mvitv2_tiny", img_size=64, num_classes=5))
    with pytest.raises(CaptureError, match="does not pass its heads to one linear layer"):
        capture_gradients(model, pixels, needs=["added"])


WINDOWED = ["swin_tiny_patch4_window7_224", "maxvit_nano_rw_256", "pvt_v2_b0"]


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_and_merged_patches_are_passed_and_relevance_is_conserved(name):
    size = 256 if name.startswith("maxvit") else 64
    given = {"img_size": 64} if name.startswith("swin") else {}
    model = randomised(timm.create_model(name, num_classes=5, **given))
    pixels = torch.randn(3, size, size)
    record = capture_gradients(model, pixels, needs=["attention", "added"])
    query = record.drawable[-1].queries.grid.query
    for method in (GradientRollout(), ValueNormRollout()):
        rolled = method(record, query)
        assert (rolled >= 0).all()
        torch.testing.assert_close(rolled.sum(), torch.tensor(1.0))
    relevance = GAE()(record, query)
    assert relevance.isfinite().all()
    assert relevance.sum() > 1  # what was asked stays, and gains are added


def test_windows_give_what_their_matrices_scattered_over_the_grid_give():
    model = randomised(
        timm.create_model("swin_tiny_patch4_window7_224", img_size=56, depths=(2,), num_classes=5)
    )
    record = capture_gradients(model, torch.randn(3, 56, 56))
    n_tokens = record.grid.n_tokens
    product = torch.eye(n_tokens, dtype=torch.float64)
    for layer in record:
        index, heads = layer.queries.numbers(), layer.n_heads
        gains = (layer.weights.double() * (layer.g.double() @ layer.v.double().mT)).clamp(min=0)
        matrix = torch.zeros(n_tokens, n_tokens, dtype=torch.float64)
        for window in range(layer.n_windows):
            mean = gains[window * heads : (window + 1) * heads].mean(0)
            tokens = index[window]
            matrix[tokens[:, None], tokens] += mean
        product = product + matrix @ product
    query = record.grid.query
    expected = query.double() @ product
    assert relative_error(GAE()(record, query) - query, expected - query) < BOUND


@pytest.mark.parametrize("layer", [0, -1])
def test_attention_gradcam_weighs_heads_by_their_mean_gradient(seen, layer):
    record, dense = seen
    for query in queries(record.grid):
        expected = oracle.attention_gradcam(dense, layer, query, record.grid.prefix)
        if expected.max() > 0:
            found = AttentionGradCAM(layer=layer)(record, query)
            assert relative_error(found, expected) < BOUND


def by_patch(values, side=16):
    """Sums over square patches, [row, col]."""
    rows = values.sum(0).unflatten(0, (-1, side)).unflatten(2, (-1, side))
    return rows.sum((1, 3))


RULES = {"cp": CPLRP(), "attn": AttnLRP()}


@pytest.mark.parametrize("rule", RULES)
def test_relevance_is_that_of_a_forward_pass_with_the_rules_written_into_it(rule, tiny_vit, pixels):
    small = pixels[:, :, :48]
    record = capture_gradients(tiny_vit.double(), small, TARGET, needs=[rule])
    expected, _ = oracle.propagate(tiny_vit, small, TARGET, rule)
    assert relative_error(record.pixels * record.input_gradients[rule], expected) < 1e-9
    found = RULES[rule].heatmap(record).values
    assert found.min() < 0 < found.max()
    assert relative_error(found, by_patch(expected)) < BOUND


@pytest.mark.parametrize("rule", RULES)
def test_fused_attention_passes_relevance_on_as_the_written_out_one_does(rule, tiny_timm, pixels):
    model, found = tiny_timm.double(), []
    for fused in (True, False):
        for block in model.blocks:
            block.attn.fused_attn = fused
        record = capture_gradients(model, pixels, TARGET, needs=[rule])
        found.append(record.input_gradients[rule])
    assert relative_error(found[0], found[1]) < 1e-9


def test_gradient_times_input_is_summed_over_patches(tiny_timm, pixels):
    record = capture_gradients(tiny_timm, pixels, TARGET, needs=["plain"])
    x = pixels.double().unsqueeze(0).requires_grad_()
    gradient = torch.autograd.grad(tiny_timm.double()(x)[0, TARGET], x)[0]
    found = GradientInput().heatmap(record).values
    assert relative_error(found, by_patch((x * gradient)[0].detach())) < BOUND


def without_constants():
    """A model in which the picture alone carries relevance: no bias, position or class token."""
    model = ViT(
        image_size=64, patch_size=16, num_classes=5, dim=24, depth=3, heads=2, dim_head=12,
        mlp_dim=32, pool="mean",
    )  # fmt: skip
    model = oracle.without_biases(randomised(model))
    torch.nn.init.zeros_(model.pos_embedding)
    return model


def test_relevance_of_all_pixels_is_the_target_where_nothing_else_carries_any(pixels):
    model = without_constants().double()
    record = capture_gradients(model, pixels, TARGET, needs=["cp", "plain"])
    logit = float(record.output[TARGET])
    total = float((record.pixels * record.input_gradients["cp"]).sum())
    assert abs(total - logit) < 1e-10 * abs(logit)
    plain = float((record.pixels * record.input_gradients["plain"]).sum())
    assert abs(plain - logit) > 0.1 * abs(logit)  # the law is not true of everything


UNFUSED = {
    "swin_tiny_patch4_window7_224": {"img_size": 56, "depths": (1, 2, 1, 1)},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
    "cait_xxs24_224": {"img_size": 64, "depth": 2},
    "maxvit_nano_rw_256": {},
}


@pytest.mark.parametrize("name", UNFUSED)
def test_relevance_of_pixels_and_constants_is_the_target_in_other_families(name):
    model = oracle.without_biases(
        randomised(timm.create_model(name, num_classes=5, **UNFUSED[name]))
    )
    for part, parameter in model.named_parameters():
        if part.endswith(("pos_embed", "cls_token")):
            torch.nn.init.zeros_(parameter)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.zero_()
    size = UNFUSED[name].get("img_size", 256)
    record = capture_gradients(model.double(), torch.randn(3, size, size), TARGET, needs=["cp"])
    logit = float(record.output[TARGET])
    total = float((record.pixels * record.input_gradients["cp"]).sum())
    assert abs(total - logit) < 1e-9 * abs(logit)


# RISE's masks are drawn by chance and do not move with the patches.
MOVING = [n for n, m in METHODS.items() if m.needs and n != "rise"]


@pytest.mark.parametrize("name", MOVING)
def test_a_model_without_positions_gives_moved_patches_moved_relevance(name, pixels):
    model, method = without_constants().double(), METHODS[name]()
    moved = pixels.unflatten(2, (4, 16)).flip(2).flatten(2)  # columns of patches, last one first
    maps = [
        method.heatmap(capture_gradients(model, each, TARGET, needs=method.needs)).values
        for each in (pixels, moved)
    ]
    above = maps[0] - maps[0].min()  # of an average of all patches, each patch keeps its own share
    assert not torch.allclose(above, above.flip(1), rtol=0.1)
    torch.testing.assert_close(maps[1], maps[0].flip(1))


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if not m.has_query])
def test_where_the_target_alone_decides_a_pixel_is_refused(name, tiny_timm, pixels):
    method = METHODS[name]()
    record = capture_gradients(tiny_timm, pixels, needs=method.needs)
    with pytest.raises(MethodError, match="whoever asks; leave the pixel out"):
        method.heatmap(record, at=(5, 5))


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.needs])
def test_what_is_shown_names_the_target_and_the_numbers_of_the_map(name, tiny_timm, pixels):
    method = METHODS[name]()
    heat = method.heatmap(capture_gradients(tiny_timm, pixels, 2, needs=method.needs))
    assert ("class 2 with logit" in heat.sentence) is not method.class_agnostic
    assert (heat.made.get("target", "") != "") is not method.class_agnostic
    if not method.is_share:
        row, _ = heat.strongest
        said = f"at most {float(heat.values.max()):.3g}, on the patch at row {row + 1}"
        assert said in heat.sentence
        assert ("and at least -" in heat.sentence) == bool(heat.values.min() < 0)
    assert (method.formula.count("\n"), method.formula.endswith(".")) == (1, False)


READ = {
    "tiny_timm": (lambda m: m.blocks, lambda m, x: m.head(m.norm(x))),
    "tiny_vit": (lambda m: m.transformer.layers, lambda m, x: m.mlp_head(m.transformer.norm(x))),
}


@pytest.mark.parametrize("name", READ)
def test_legrad_is_the_sum_of_what_each_layer_would_change_in_its_own_reading(
    name, request, pixels, tmp_path
):
    model = request.getfixturevalue(name).double()
    pixels = pixels if name == "tiny_timm" else pixels[:, :, :48]
    expected = oracle.legrad(model, pixels, TARGET, *READ[name])
    record = capture_gradients(model, pixels, TARGET, needs=["readouts"])
    assert relative_error(LeGrad()(record, record.grid.cls), expected.sum(0)) < BOUND
    assert (
        relative_error(LeGrad(start_layer=1)(record, record.grid.cls), expected[1:].sum(0)) < BOUND
    )
    for maps, layer in zip(LeGrad().by_layer(record), expected.cumsum(0), strict=True):
        assert relative_error(maps.relevance[0], layer) < BOUND
    loaded = AttentionRecord.load(record.save(tmp_path / "record"))
    assert torch.equal(LeGrad().heatmap(loaded).values, LeGrad().heatmap(record).values)
    with pytest.raises(MethodError, match="start_layer 9 of a model with"):
        LeGrad(start_layer=9).heatmap(record)


def test_a_pooling_head_reads_every_layer_with_attention_of_its_own(pixels):
    model = timm.create_model("vit_base_patch16_siglip_224", img_size=64, depth=2, num_classes=5)
    model = randomised(model).double()
    record = capture_gradients(model, pixels, TARGET, needs=["readouts", "attention"])
    assert [layer.kind for layer in record.readouts["readouts"]] == ["pool", "pool"]
    # after the last layer, the reading is the model's own
    torch.testing.assert_close(record.readouts["readouts"][-1].g, record[-1].g)
    tokens = []
    hook = model.blocks[0].register_forward_hook(lambda _m, _a, out: tokens.append(out))
    with torch.no_grad():
        model(pixels.double().unsqueeze(0))
    hook.remove()
    attention = model.attn_pool
    x = model.norm(tokens[0])
    q = attention.q(attention.latent).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    k, v = attention.kv(x).unflatten(-1, (2, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
    q, k = attention.q_norm(q), attention.k_norm(k)
    weights = (q @ k.mT * attention.scale).softmax(-1).detach().requires_grad_()
    pooled = attention.proj((weights @ v).transpose(1, 2).flatten(2))
    pooled = (pooled + attention.mlp(attention.norm(pooled)))[:, 0]
    logit = model.head(model.fc_norm(pooled))[0, TARGET]
    gradient = torch.autograd.grad(logit, weights)[0][0, :, 0]
    found = LeGrad().by_layer(record)[0].relevance[0]
    prefix = record.readouts["readouts"][0].keys.grid.prefix
    assert relative_error(found[prefix:], gradient.clamp(min=0).mean(0)) < BOUND


@pytest.mark.parametrize("pool", ["class", "mean"])
@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_attention_shift_is_what_moving_attention_would_gain(pool, balance, tiny_timm, pixels):
    model = tiny_timm.double()
    if pool == "mean":
        model.global_pool = "avg"
    n_prefix = 1
    query = torch.zeros(17, dtype=torch.float64)
    query[:n_prefix] = float(pool == "class")
    query[n_prefix:] = float(pool == "mean") / 16
    expected = oracle.attention_shift(model, pixels, TARGET, *READ["tiny_timm"], query, balance)
    record = capture_gradients(model, pixels, TARGET, needs=["readouts:own"])
    found = AttentionShift(balance=balance)
    for maps, layer in zip(found.by_layer(record), expected.cumsum(0), strict=True):
        assert relative_error(maps.relevance[0], layer) < BOUND
    assert relative_error(found(record, query), expected.sum(0)) < BOUND
    assert (found.heatmap(record).values < 0).any()


def test_attention_shift_is_zero_on_average_under_the_attention_there_is(tiny_timm, pixels):
    record = capture_gradients(tiny_timm, pixels, TARGET, needs=["readouts:own"])
    one_head = copy.deepcopy(record.readouts["readouts:own"][-1])
    for head in range(one_head.n_heads):
        part = slice(head, head + 1)
        alone = replace(one_head, q=one_head.q[part], k=one_head.k[part], v=one_head.v[part],
                        g=one_head.g[part], lse=None)  # fmt: skip
        gain = AttentionShift(balance=0.0)._of_layer(alone)
        row = alone.rows(0)[0, 0]
        assert abs(float(row @ gain)) < 1e-6 * float(gain.abs().max())


@pytest.mark.parametrize("make", ["torchvision", "vit", "vit_model", "clip", "siglip"])
def test_other_libraries_are_read_out_after_each_layer(make, pixels):
    model = other_library(make)
    record = capture_gradients(model, pixels, needs=["readouts"])
    heat = LeGrad().heatmap(record)
    assert len(record.readouts["readouts"]) == 2
    assert heat.values.max() > 0


def other_library(make):
    if make == "torchvision":
        from torchvision.models import VisionTransformer

        return randomised(VisionTransformer(64, 16, 2, 2, 24, 48, num_classes=5))
    import transformers as hf

    sizes = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 48, "image_size": 64, "patch_size": 16,
    }  # fmt: skip
    made = {
        "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**sizes, num_labels=5)),
        "vit_model": lambda: hf.ViTModel(hf.ViTConfig(**sizes)),
        "clip": lambda: hf.CLIPVisionModelWithProjection(
            hf.CLIPVisionConfig(**sizes, projection_dim=16)
        ),
        "siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**sizes)),
    }
    return randomised(made[make]())


def test_what_cannot_be_read_out_after_each_layer_is_refused():
    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1), num_classes=5
    )
    with pytest.raises(CaptureError, match="not known how to read SwinTransformer out"):
        capture_gradients(randomised(swin), torch.randn(3, 56, 56), needs=["readouts"])


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.needs])
def test_half_precision_gives_nearly_the_same_map(name, tiny_timm, pixels):
    method, needs = METHODS[name](), METHODS[name].needs
    exact = method.heatmap(capture_gradients(tiny_timm, pixels, TARGET, needs=needs)).values
    record = capture_gradients(tiny_timm.bfloat16(), pixels, TARGET, needs=needs)
    found = method.heatmap(record).values
    assert found.dtype == torch.float32
    both = torch.stack([found.flatten(), exact.flatten()]).double()
    assert float(torch.corrcoef(both)[0, 1]) > 0.9


def test_the_last_map_to_look_through_is_the_map_of_the_method(tiny_timm, pixels):
    for name, made in METHODS.items():
        method = made()
        record = capture_gradients(tiny_timm, pixels, TARGET, needs=method.wanted)
        query = Query.of(record, method.asked(record)).weights
        last = method.by_layer(record)[-1].relevance.mean(0)
        torch.testing.assert_close(
            last, method(record, query), msg=lambda m, name=name: f"{name}: {m}"
        )
        # a picture goes the way that tells how far it is, and there is one map all the same
        laid = method.shown(record).grid.to_map(method(record, query))
        torch.testing.assert_close(method.heatmap(record).values, laid, msg=name)
