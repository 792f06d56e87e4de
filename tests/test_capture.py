import threading

import pytest
import timm
import torch
from samples import dense, dot_image, randomised
from torch import nn

from vizattn.capture import capture
from vizattn.errors import CaptureError, RecordError
from vizattn.grid import TokenGrid
from vizattn.layers import DenseAttention, LayerAttention
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.vit import ViT


def unfused(model):
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    return model


def hooked_maps(model, pixels):
    """timm's own unfused maps, by the hooks that people use."""
    maps = []
    handles = [
        block.attn.attn_drop.register_forward_hook(lambda _m, args, _o: maps.append(args[0][0]))
        for block in unfused(model).blocks
    ]
    with torch.no_grad():
        model(pixels.unsqueeze(0))
    for handle in handles:
        handle.remove()
    return maps


def test_the_output_is_bit_identical_to_a_plain_forward_pass(tiny_timm, tiny_vit, pixels):
    with torch.no_grad():
        assert torch.equal(capture(tiny_timm, pixels).output, tiny_timm(pixels.unsqueeze(0))[0])
        small = pixels[:, :, :48]
        assert torch.equal(capture(tiny_vit, small).output, tiny_vit(small.unsqueeze(0))[0])


def test_maps_are_those_that_timm_computes_without_fused_kernels(tiny_timm, pixels):
    record = capture(tiny_timm, pixels)
    assert all(isinstance(layer, LayerAttention) for layer in record)
    maps = hooked_maps(tiny_timm, pixels)
    assert len(record) == len(maps) == 3
    for layer, expected in zip(record, maps, strict=True):
        assert expected.amax(-1).median() > 0.3  # far from uniform, or this would prove little
        torch.testing.assert_close(layer.rows(range(17)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("few", [0, 1000])
def test_rows_with_and_without_the_kernels_log_sum_exp_are_the_dense_softmax(
    tiny_timm, pixels, few, monkeypatch
):
    for room in ("recorder", "gate"):
        monkeypatch.setattr(f"vizattn.{room}.MANY_QUERIES", few)
    for record in (capture(tiny_timm, pixels), capture(tiny_timm, pixels)):  # traced, then gated
        for layer in record:
            assert (layer.lse is None) == (few > 17)
            found = layer.rows(range(17)).double()
            torch.testing.assert_close(found, dense(layer), rtol=0, atol=1e-6)


def test_a_later_pass_keeps_what_the_first_kept_to_the_bit(tiny_timm, pixels):
    first, later = capture(tiny_timm, pixels), capture(tiny_timm, pixels)
    for one, other in zip(first, later, strict=True):
        assert torch.equal(one.q, other.q)
        assert torch.equal(one.rows(range(17)), other.rows(range(17)))


def test_a_model_that_changes_its_way_of_attending_is_seen_whole_again(tiny_timm, pixels):
    capture(tiny_timm, pixels)
    assert isinstance(capture(tiny_timm, pixels)[1], LayerAttention)
    tiny_timm.blocks[1].attn.fused_attn = False
    assert [type(layer) for layer in capture(tiny_timm, pixels)] == [
        LayerAttention, DenseAttention, LayerAttention,
    ]  # fmt: skip


def test_weights_times_values_are_what_the_kernel_returned(record, tiny_timm, pixels):
    outputs = []
    hook = tiny_timm.blocks[0].attn.proj.register_forward_pre_hook(
        lambda _m, args: outputs.append(args[0])
    )
    with torch.no_grad():
        tiny_timm(pixels.unsqueeze(0))
    hook.remove()
    layer = record[0]
    mixed = (layer.rows(range(17)) @ layer.v).transpose(0, 1).flatten(1)
    torch.testing.assert_close(mixed, outputs[0][0], rtol=0, atol=1e-5)


def test_a_forward_hook_on_the_seeds_softmax_sees_the_same_numbers(tiny_vit, pixels):
    seen = []
    hooks = [
        module.register_forward_hook(lambda _m, _i, output: seen.append(output[0]))
        for module in tiny_vit.modules()
        if isinstance(module, nn.Softmax)
    ]
    small = pixels[:, :, :48]
    record = capture(tiny_vit, small)
    for hook in hooks:
        hook.remove()
    assert all(isinstance(layer, DenseAttention) for layer in record)
    for layer, expected in zip(record, seen, strict=True):
        torch.testing.assert_close(layer.rows(range(13)), expected, rtol=0, atol=1e-6)


def test_layers_come_first_to_last_with_the_names_of_their_modules(record, tiny_vit, pixels):
    assert [layer.name for layer in record] == [f"blocks.{i}.attn" for i in range(3)]
    names = [layer.name for layer in capture(tiny_vit, pixels[:, :, :48])]
    attention = [n for n, m in tiny_vit.named_modules() if type(m).__name__ == "Attention"]
    assert names == attention


@pytest.mark.parametrize(
    ("name", "arguments", "grid"),
    [
        ("vit_tiny_patch16_224", {}, TokenGrid(4, 4, 1)),
        ("deit_tiny_distilled_patch16_224", {}, TokenGrid(4, 4, 2, ("class", "distillation"))),
        ("vit_small_patch16_224", {"reg_tokens": 4}, TokenGrid(4, 4, 5)),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}, TokenGrid(4, 4)),
    ],
)
def test_prefix_tokens_are_named_for_what_they_are(name, arguments, grid, pixels):
    model = timm.create_model(name, img_size=64, depth=1, num_classes=0, **arguments).eval()
    assert capture(model, pixels).grid == grid


def test_a_model_that_averages_its_patches_asks_with_their_mean(pixels):
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1, global_pool="avg")
    record = capture(model.eval(), pixels)
    assert record.grid.readout == "mean"
    torch.testing.assert_close(record.grid.query, TokenGrid(4, 4, 1).mean)


@pytest.mark.parametrize("size", [(64, 96), (96, 48), (64, 64)])
def test_pictures_of_any_shape_keep_their_rows_and_columns(tiny_timm, size):
    record = capture(tiny_timm, torch.randn(3, *size))
    assert (record.grid.rows, record.grid.cols) == (size[0] // 16, size[1] // 16)


@pytest.mark.parametrize(("width", "height"), [(160, 90), (90, 160), (128, 128)])
def test_a_bright_dot_is_hot_at_its_own_pixel_after_resize_and_crop(width, height):
    x, y = int(0.55 * width), int(0.45 * height)
    model = wrap_model(bright_seeker(), Preprocess(64, 64, crop_pct=0.875))
    record = capture(model, dot_image(width, height, x, y, radius=4))
    heat = record.grid.to_map(record[0].rows(0)[0, 0])
    placed = record.frame.place(heat, width, height)
    assert placed[y, x] == placed.nan_to_num(0).max()
    assert placed[y, x] > 0.5
    assert record.frame.patch_at(x, y, 8, 8) == divmod(int(heat.argmax()), 8)


def bright_seeker():
    """A one-layer attention without parameters: every 8-pixel patch looks for the brightest."""

    class Seeker(nn.Module):
        def forward(self, images):
            light = nn.functional.avg_pool2d(images.mean(1, keepdim=True), 8).flatten(2)
            q = torch.ones_like(light).unsqueeze(-1) * 8
            k = v = light.unsqueeze(-1)
            return nn.functional.scaled_dot_product_attention(q, k, v).mean((1, 2, 3))

    return Seeker().eval()


def test_nothing_of_the_model_is_changed_also_after_an_exception(tiny_timm, pixels):
    def state():
        return [
            (name, module.training, len(module._forward_hooks), len(module._forward_pre_hooks),
             type(module).forward, "forward" in vars(module), vars(module).get("fused_attn"))
            for name, module in tiny_timm.named_modules()
        ]  # fmt: skip

    before, weights = state(), {k: v.clone() for k, v in tiny_timm.state_dict().items()}
    capture(tiny_timm, pixels)
    with pytest.raises(Exception, match="Input"):
        capture(tiny_timm, torch.randn(3, 60, 61))
    assert state() == before
    assert all(torch.equal(weights[k], v) for k, v in tiny_timm.state_dict().items())
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert len(capture(tiny_timm, pixels)) == 3


def test_the_same_picture_twice_gives_the_same_record(tiny_timm, pixels):
    first, second = capture(tiny_timm, pixels), capture(tiny_timm, pixels)
    assert len(first) == len(second)
    assert all(torch.equal(a.q, b.q) for a, b in zip(first, second, strict=True))


def test_two_threads_on_one_model_never_mix(tiny_timm):
    pictures = [torch.randn(3, 64, 64) for _ in range(2)]
    alone = [capture(tiny_timm, p) for p in pictures]
    together = [[], []]

    def look(which):
        for _ in range(8):
            together[which].append(capture(tiny_timm, pictures[which]))

    threads = [threading.Thread(target=look, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which, expected in enumerate(alone):
        assert len(together[which]) == 8
        for record in together[which]:
            assert [layer.name for layer in record] == [layer.name for layer in expected]
            for ours, theirs in zip(record, expected, strict=True):
                torch.testing.assert_close(ours.q, theirs.q)


def test_a_masked_query_of_the_seed_is_blank_in_the_record(tiny_vit, pixels):
    mask = torch.ones(1, 4, 3, dtype=torch.bool)
    mask[0, 0, 1] = False
    layer = capture(tiny_vit, pixels[:, :, :48], mask=mask)[0]
    hidden = 1 + 1
    assert (layer.rows(hidden) == 0).all()
    assert (layer.columns(hidden) == 0).all()
    others = [i for i in range(13) if i != hidden]
    torch.testing.assert_close(layer.rows(others).sum(-1), torch.ones(2, 12))


def test_memory_is_the_queries_keys_and_values_and_little_more(record):
    for layer in record:
        qkv = layer.q.nbytes + layer.k.nbytes + layer.v.nbytes
        assert layer.bytes <= 1.05 * qkv


@pytest.mark.parametrize("many", [0, 1000])
def test_without_values_rows_are_the_same_and_nothing_that_was_shared_stays(
    tiny_timm, pixels, many, monkeypatch
):
    whole = capture(tiny_timm, pixels)
    for room in ("recorder", "gate", "calls"):
        monkeypatch.setattr(f"vizattn.{room}.MANY_QUERIES", many)
    lean = capture(tiny_timm, pixels, values=False)
    for kept, all_of_it in zip(lean, whole, strict=True):
        torch.testing.assert_close(kept.rows(range(17)), all_of_it.rows(range(17)))
        # timm makes q, k and v in one product, so views of it keep all three
        held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
                for each in (kept.q, kept.k)}  # fmt: skip
        assert sum(held.values()) == (2 if many == 0 else 3) * kept.q.nbytes
        with pytest.raises(RecordError, match="without values"):
            _ = kept.values
        assert torch.equal(all_of_it.values, all_of_it.v)


def test_a_model_in_training_mode_is_refused(tiny_timm, pixels):
    with pytest.raises(CaptureError, match=r"in training mode.*Call \.eval\(\)"):
        capture(tiny_timm.train(), pixels)


def test_a_network_without_attention_says_so(pixels):
    net = nn.Sequential(nn.Conv2d(3, 4, 16, 16), nn.Flatten(), nn.Softmax(-1)).eval()
    model = wrap_model(net, Preprocess(64, 64))
    with pytest.raises(CaptureError, match=r"no softmax attention call.*is it a transformer"):
        capture(model, pixels)


@pytest.mark.parametrize("shape", [(2, 3, 64, 64), (64, 64), (1, 64, 64)])
def test_pixels_of_another_shape_are_refused(tiny_timm, shape):
    with pytest.raises(CaptureError, match=r"one picture is \[3, height, width\]"):
        capture(tiny_timm, torch.zeros(shape))


def test_an_additive_bias_is_part_of_the_rows(pixels):
    beit = timm.create_model("beit_base_patch16_224", img_size=64, depth=1, embed_dim=32,
                             num_heads=2, num_classes=0)  # fmt: skip
    beit = randomised(beit)
    beit.blocks[0].attn.relative_position_bias_table.data.normal_()
    record = capture(beit, pixels)
    assert record[0].bias is not None
    torch.testing.assert_close(record[0].rows(range(17)), hooked_maps(beit, pixels)[0])


def test_the_seed_with_one_wide_head_is_captured(pixels):
    vit = ViT(image_size=64, patch_size=16, num_classes=2, dim=16, depth=1, heads=1, mlp_dim=8,
              dim_head=16, pool="mean")  # fmt: skip
    record = capture(vit.eval(), pixels)
    assert (record[0].n_heads, record.grid.readout) == (1, "mean")
