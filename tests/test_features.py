"""Tokens as colours and lengths: planted tokens are found, and the model stays as it was."""

import pytest
import torch
from samples import dot_image, randomised
from torch import nn

from vizattn.errors import CaptureError, MethodError, OutOfRange
from vizattn.features import Features, capture_features
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess

GRID = TokenGrid(4, 6, prefix=1)


def features(tokens, grid=GRID):
    return Features(tokens, grid, Frame(0, 0, 60, 40))


def wrapped(module, size=64):
    return wrap_model(module, Preprocess(size, size))


PICTURE = dot_image(80, 64, 30, 30)


def test_the_norm_map_finds_a_planted_long_token():
    tokens = nn.functional.normalize(torch.randn(25, 8), dim=-1)
    tokens[GRID.patch_index(2, 5)] *= 40
    tokens[0] *= 7
    norms = features(tokens).norms()
    assert norms.strongest == (2, 5)
    assert norms.range == pytest.approx((1, 40))
    assert norms.prefix_mass.tolist() == pytest.approx([7])
    assert (
        norms.sentence
        == "Length of the tokens after the model: median 1 and at most 40 on a patch."
    )


def test_two_planted_kinds_of_patches_get_two_colours():
    kinds = torch.zeros(4, 6, dtype=torch.bool)
    kinds[1:3, 2:5] = True
    centres = torch.randn(2, 16) * 3
    tokens = torch.cat([torch.zeros(1, 16), centres[kinds.flatten().long()]])
    found = features(tokens + 0.05 * torch.randn(25, 16)).colours()
    red = found.rgb[..., 0]
    inside, outside = red[kinds], red[~kinds]
    assert min(abs(inside.mean() - 0), abs(inside.mean() - 1)) < 0.1
    assert abs(inside.mean() - outside.mean()) > 0.8
    assert max(inside.max() - inside.min(), outside.max() - outside.min()) < 0.3
    assert found.shares[0] > 0.95


def test_components_are_those_of_a_singular_value_decomposition():
    tokens = torch.randn(25, 8, dtype=torch.float64) @ torch.randn(8, 8, dtype=torch.float64)
    found = features(tokens.float()).colours(0, 100)
    centred = tokens[1:].float().double()
    centred = centred - centred.mean(0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    assert found.shares == pytest.approx((sizes[:3] ** 2 / (sizes**2).sum()).tolist())
    for number in range(3):
        axis = axes[number] * axes[number][axes[number].abs().argmax()].sign()
        scores = centred @ axis
        unit = (scores - scores.min()) / (scores.max() - scores.min())
        torch.testing.assert_close(
            found.rgb[..., number].flatten().double(), unit, atol=1e-6, rtol=0
        )


def test_signs_are_settled_so_turning_all_tokens_around_turns_all_colours():
    tokens = torch.randn(25, 8)
    there, back = (features(sign * tokens).colours(0, 100).rgb for sign in (1, -1))
    torch.testing.assert_close(there, 1 - back)
    torch.testing.assert_close(there, features(tokens + 5).colours(0, 100).rgb)  # centred


def test_each_component_fills_its_colour_between_the_stated_percentiles():
    found = features(torch.randn(25, 8)).colours(10, 90)
    assert found.percentiles == (10, 90)
    channels = found.rgb.reshape(24, 3)
    assert (channels == 0).sum(0).tolist() == (channels == 1).sum(0).tolist() == [3, 3, 3]
    assert "each from percentile 10 to percentile 90 of its values" in found.sentence
    assert features(torch.randn(25, 8)).colours().percentiles == (1, 99)


def test_tokens_that_do_not_vary_have_no_colour_and_nothing_is_divided_by_zero():
    flat = features(torch.ones(25, 8)).colours()
    assert torch.equal(flat.rgb, torch.full((4, 6, 3), 0.5))
    assert flat.shares == (0, 0, 0)
    line = torch.arange(25.0).unsqueeze(1) * torch.rand(8)  # the other components are rounding
    found = features(line).colours()
    assert found.rgb[-1, -1, 0] == 1
    assert torch.equal(found.rgb[..., 1:], torch.full((4, 6, 2), 0.5))


@pytest.mark.parametrize(
    ("tokens", "arguments", "said"),
    [
        (torch.ones(25, 2), (), "got 24 patches of 2 dimensions"),
        (torch.ones(25, 8), (90, 10), "the lower one first; got 90 and 10"),
    ],
)
def test_what_cannot_be_coloured_is_refused(tokens, arguments, said):
    with pytest.raises(MethodError, match=said):
        features(tokens).colours(*arguments)


def test_the_last_tokens_of_timm_are_those_of_forward_features(tiny_timm):
    model = wrapped(tiny_timm)
    found = capture_features(model, PICTURE)
    with torch.no_grad():
        expected = tiny_timm.forward_features(model.transform(PICTURE)[0].unsqueeze(0))[0]
    assert torch.equal(found.tokens, expected)
    assert (found.module, found.grid.prefix, found.frame) == ("norm", 1, Frame(8, 0, 64, 64))


def test_the_tokens_of_a_layer_are_those_after_its_whole_block(tiny_timm):
    model = wrapped(tiny_timm)
    found = capture_features(model, PICTURE, layer=1)
    with torch.no_grad():
        pixels = model.transform(PICTURE)[0].unsqueeze(0)
        (expected,) = tiny_timm.forward_intermediates(
            pixels, indices=[1], norm=False, return_prefix_tokens=True, output_fmt="NLC",
            intermediates_only=True,
        )  # fmt: skip
    assert found.module == "blocks.1"
    assert torch.equal(found.tokens[1:], expected[0][0])
    with pytest.raises(OutOfRange, match="there is no layer 4"):
        capture_features(model, PICTURE, layer=3)


def test_a_record_at_hand_saves_a_pass(tiny_timm):
    from vizattn.capture import capture

    model = wrapped(tiny_timm)
    record = capture(model, PICTURE)
    passes = []
    tiny_timm.patch_embed.register_forward_hook(lambda *_: passes.append(1))
    found = capture_features(model, PICTURE, record=record)
    assert len(passes) == 1
    assert torch.equal(found.tokens, capture_features(model, PICTURE).tokens)


def test_swin_puts_out_a_map_of_patches():
    import timm

    swin = randomised(timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=(56, 112), window_size=7, depths=(1, 1),
        num_heads=(2, 4), embed_dim=16, num_classes=0,
    ))  # fmt: skip
    model = wrap_model(swin, Preprocess(56, 112))
    found = capture_features(model, PICTURE)
    with torch.no_grad():
        expected = swin.forward_features(model.transform(PICTURE)[0].unsqueeze(0))
    assert (found.grid.rows, found.grid.cols) == (7, 14)
    assert torch.equal(found.grid.to_map(found.tokens.T).permute(1, 2, 0), expected[0])
    early = capture_features(model, PICTURE, layer=0)
    assert (early.grid.rows, early.grid.cols, early.module) == (14, 28, "layers.0.blocks.0")


def test_a_map_with_channels_in_front_is_read_row_by_row():
    import timm

    swin = randomised(timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=(56, 112), window_size=7, depths=(1, 1),
        num_heads=(2, 4), embed_dim=16, num_classes=0,
    ))  # fmt: skip
    model = wrap_model(swin, Preprocess(56, 112))
    expected = capture_features(model, PICTURE).tokens
    swin.norm = nn.Sequential(swin.norm, Turned())
    swin.forward_head = lambda map_of_patches: map_of_patches
    assert torch.equal(capture_features(model, PICTURE).tokens, expected)


class Turned(nn.Module):
    def forward(self, patches):
        return patches.permute(0, 3, 1, 2)


def test_torchvision_and_the_seed_are_known(tiny_vit):
    from torchvision.models import VisionTransformer

    model = VisionTransformer(64, 16, 2, 2, 16, 32).eval()
    found = capture_features(wrapped(model), PICTURE)
    with torch.no_grad():
        read = model.heads(found.tokens[:1])
        torch.testing.assert_close(read, model(wrapped(model).transform(PICTURE)[0].unsqueeze(0)))
    assert capture_features(wrapped(model), PICTURE, layer=0).module.endswith("encoder_layer_0")

    seed = wrap_model(tiny_vit, Preprocess(64, 48))
    last = capture_features(seed, PICTURE, layer=-1)
    with torch.no_grad():
        normed = tiny_vit.transformer.norm(last.tokens)
    torch.testing.assert_close(capture_features(seed, PICTURE).tokens, normed)


def test_a_block_that_is_no_module_of_its_own_is_refused():
    from vit_pytorch import ViT

    model = ViT(
        image_size=64, patch_size=16, num_classes=5, dim=24, depth=2, heads=2, dim_head=12,
        mlp_dim=32,
    ).eval()  # fmt: skip
    assert capture_features(wrapped(model), PICTURE).module == "transformer"
    with pytest.raises(CaptureError, match="the block around it is not a module of its own"):
        capture_features(wrapped(model), PICTURE, layer=0)


def test_the_block_is_the_module_that_adds_the_residual():
    from vizattn.blocks import block_of

    def listed(pair):
        look = nn.ModuleDict({"attend": nn.Softmax(-1)})
        return nn.ModuleDict({"layers": nn.ModuleList([pair([look, nn.Linear(1, 1)])])})

    class Pair(nn.ModuleList):
        def forward(self, tokens):
            return self[1](self[0](tokens) + tokens)

    assert block_of(listed(Pair), "layers.0.0.attend") == "layers.0"
    with pytest.raises(CaptureError, match=r"tokens after layers\.0\.0\.attend cannot"):
        block_of(listed(nn.ModuleList), "layers.0.0.attend")


def test_transformers_are_read_by_their_last_hidden_state():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32,
    )  # fmt: skip
    for kind in (transformers.ViTModel, transformers.ViTForImageClassification):
        model = kind(config).eval()
        found = capture_features(wrapped(model), PICTURE)
        base = getattr(model, "vit", model)
        with torch.no_grad():
            pixels = wrapped(model).transform(PICTURE)[0].unsqueeze(0)
            assert torch.equal(found.tokens, base(pixels).last_hidden_state[0])
        assert capture_features(wrapped(model), PICTURE, layer=1).tokens.shape == (17, 16)


def hooks(module):
    return sum(len(part._forward_hooks) for part in module.modules())


def test_nothing_is_left_on_the_model_whatever_happens(tiny_timm):
    from vizattn.capture import capture

    model = wrapped(tiny_timm)
    record = capture(model, PICTURE)
    before = {name: tensor.clone() for name, tensor in tiny_timm.state_dict().items()}
    capture_features(model, PICTURE)
    assert hooks(tiny_timm) == 0

    def broken(*_):
        assert hooks(tiny_timm) == 1
        raise RuntimeError("no more")

    tiny_timm.forward_head = broken
    with pytest.raises(RuntimeError, match="no more"):
        capture_features(model, PICTURE, record=record)
    assert hooks(tiny_timm) == 0
    assert all(torch.equal(before[name], now) for name, now in tiny_timm.state_dict().items())


def test_what_later_layers_write_into_does_not_reach_the_tokens(tiny_timm):
    model = wrapped(tiny_timm)
    expected = capture_features(model, PICTURE).tokens

    def scribbling(tokens):
        return tokens.zero_()[:, 0]

    tiny_timm.forward_head = scribbling
    assert torch.equal(capture_features(model, PICTURE).tokens, expected)


def test_a_model_of_no_known_family_is_refused_with_the_way_out(tiny_timm):
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny_timm

        def forward(self, pixels):
            return self.inner(pixels)

    model = wrapped(Mine().eval())
    with pytest.raises(CaptureError, match="which part of Mine puts its last tokens out"):
        capture_features(model, PICTURE)
    assert capture_features(model, PICTURE, layer=-1).module == "inner.blocks.2"


def test_tokens_that_do_not_lie_on_the_grid_are_refused(tiny_timm):
    tiny_timm.norm = nn.Sequential(tiny_timm.norm, nn.AdaptiveAvgPool2d((5, 32)))
    with pytest.raises(CaptureError) as refused:
        capture_features(wrapped(tiny_timm), PICTURE)
    assert str(refused.value) == (
        "norm did not put out one token for each of the 1 prefix tokens and 4×4 patches: "
        "a tensor of shape (1, 5, 32)."
    )
