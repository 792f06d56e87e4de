"""Beyond Intuition against its paper written out with whole matrices in float64."""

import copy

import gradient_oracle as oracle
import pytest
import timm
import torch
from gradient_oracle import relative_error
from samples import randomised
from test_gradient_methods import BOUND, TARGET, without_constants

from vizattn.errors import MethodError
from vizattn.gradients import capture_gradients
from vizattn.methods import BeyondIntuition
from vizattn.record import AttentionRecord

STEPS = 5


def by_tokens(dense, entering, layer):
    """Ā[i, j] = mean over heads of A · ‖v[j] W_O‖ / ‖z[j]‖."""
    joined = torch.einsum("hkv,hvd->kd", dense.values[layer], dense.projections[layer])
    share = joined.norm(dim=-1) / entering[layer].norm(dim=-1)
    return dense.weights[layer].mean(0) * share


def by_heads(dense, _entering, layer):
    """Ā = Σ θ A, θ ∝ mean |Aᵀ ∂y/∂A|."""
    sizes = [
        (a.mT @ g).abs().mean()
        for a, g in zip(dense.weights[layer], dense.gradients[layer], strict=True)
    ]
    shares = torch.stack(sizes) / sum(sizes)
    return sum(share * a for share, a in zip(shares, dense.weights[layer], strict=True))


def written_out(model, pixels, matrix, blocks, start):
    """P ⊙ F, [query, key]."""
    run = lambda x: oracle.dense_pass(  # noqa: E731
        model, x, TARGET, oracle.third_part, oracle.output_layer
    )
    entering, double = [], copy.deepcopy(model).double()
    hooks = [
        each.register_forward_hook(lambda _m, args, _out: entering.append(args[0][0].detach()))
        for each in blocks(double)
    ]
    double(pixels.double().unsqueeze(0))
    for hook in hooks:
        hook.remove()
    dense = run(pixels)
    product = torch.eye(dense.weights[0].shape[-1], dtype=torch.float64)
    for layer in range(start, len(dense.weights)):
        product = product + matrix(dense, entering, layer) @ product
    path = sum(run(pixels * k / STEPS).gradients[-1] for k in range(1, STEPS + 1)) / STEPS
    return product * path.clamp(min=0).mean(0)


BLOCKS = {"tiny_timm": lambda m: m.blocks, "tiny_vit": lambda m: m.transformer.layers}
WAYS = {"tokens": by_tokens, "heads": by_heads}


@pytest.mark.parametrize("by", WAYS)
@pytest.mark.parametrize("name", BLOCKS)
def test_it_is_the_product_of_the_paper(name, by, request, pixels, tmp_path):
    model = request.getfixturevalue(name).double()
    pixels = pixels if name == "tiny_timm" else pixels[:, :, :48]
    method = BeyondIntuition(by=by, steps=STEPS)
    record = capture_gradients(model, pixels, TARGET, needs=method.wanted)
    expected = written_out(model, pixels, WAYS[by], BLOCKS[name], start=0)
    found = method(record, record.grid.cls)
    assert relative_error(found[1:], expected[0, 1:]) < BOUND
    later = BeyondIntuition(by=by, steps=STEPS, start_layer=1)
    expected = written_out(model, pixels, WAYS[by], BLOCKS[name], start=1)
    assert relative_error(later(record, record.grid.cls)[1:], expected[0, 1:]) < BOUND
    loaded = AttentionRecord.load(record.save(tmp_path / "record"))
    assert torch.equal(method(loaded, record.grid.cls), found)
    assert f"by {by} through {len(record)} layers for class 3" in method.heatmap(record).sentence


@pytest.mark.parametrize("by", WAYS)
def test_where_patches_are_averaged_their_rows_are_multiplied_first_and_then_averaged(
    by, pixels, monkeypatch
):
    from vizattn.methods import beyond_intuition

    monkeypatch.setattr(beyond_intuition, "_TOGETHER", 7)  # 16 patches ask in three parts
    model, method = without_constants().double(), BeyondIntuition(by=by, steps=STEPS)
    record = capture_gradients(model, pixels, TARGET, needs=method.wanted)
    expected = written_out(model, pixels, WAYS[by], lambda m: m.transformer.layers, start=0)
    found = method.heatmap(record).values.flatten()
    mean = record.grid.query.double()
    assert relative_error(found, (mean @ expected)[record.grid.prefix :]) < BOUND


def test_twelve_layers_begin_with_the_fourth_and_few_with_the_first():
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, depth=12, embed_dim=16, num_heads=2, num_classes=5
    )
    method, pixels = BeyondIntuition(steps=1), torch.randn(3, 32, 32)
    record = capture_gradients(randomised(model), pixels, needs=method.wanted)
    assert "through 9 layers" in method.heatmap(record).sentence
    authors = BeyondIntuition(steps=1, start_layer=3).heatmap(record)
    assert torch.equal(method.heatmap(record).values, authors.values)
    with pytest.raises(MethodError, match="start_layer 12 of a model with 12 layers"):
        BeyondIntuition(steps=1, start_layer=12).heatmap(record)


def test_a_pooling_head_is_no_token_but_its_heads_can_be_weighed(pixels):
    model = timm.create_model(
        "vit_base_patch16_siglip_224",
        img_size=64,
        depth=1,
        embed_dim=32,
        num_heads=2,
        num_classes=5,
    )
    needs = {*BeyondIntuition(steps=2).wanted, "attention"} - {"added"}
    record = capture_gradients(randomised(model), pixels, needs=needs)
    assert BeyondIntuition(by="heads", steps=2).heatmap(record).values.max() > 0
    with pytest.raises(MethodError, match="weighed by heads it is defined"):
        BeyondIntuition(steps=2).heatmap(record)


def test_merged_patches_and_mixed_heads_have_none(pixels):
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, depths=(1, 1), num_classes=5
    )
    method = BeyondIntuition(by="heads", steps=1)
    record = capture_gradients(randomised(model), torch.randn(3, 56, 56), needs=method.wanted)
    with pytest.raises(MethodError, match="its last layer does not attend to the tokens of the f"):
        method.heatmap(record)
    model = timm.create_model("cait_xxs24_224", img_size=64, depth=1, num_classes=5)
    record = capture_gradients(randomised(model), pixels, needs=method.wanted)
    with pytest.raises(MethodError, match="it mixes heads after the softmax"):
        method.heatmap(record)
