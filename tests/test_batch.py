"""Several pictures in one pass: what one look at each would have given."""

import pytest
import timm
import torch
from attention_oracle import randomised
from samples import dot_image
from torch import nn

from vizattn import shares
from vizattn.batch import capture_batch
from vizattn.capture import capture
from vizattn.errors import CaptureError, ImageError
from vizattn.models import load_model, wrap_model
from vizattn.preprocess import Preprocess
from vizattn.vit import ViT


def pictures(count, height=64, width=64):
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(4))


def is_batched(model):
    """Whether the last batch of a model went through in one pass."""
    return None not in shares._LAYOUTS[model].values()


def assert_like_singles(model, pixels, *, values=True):
    """Queries, keys, values, biases and maps of every picture are those of looking at it alone."""
    records = capture_batch(model, pixels, values=values)
    assert len(records) == len(pixels)
    for record, picture in zip(records, pixels, strict=True):
        alone = capture(model, picture, values=values)
        assert [layer.name for layer in record] == [layer.name for layer in alone]
        if alone.output is not None:
            torch.testing.assert_close(record.output, alone.output, rtol=1e-5, atol=1e-5)
        for ours, theirs in zip(record, alone, strict=True):
            assert (type(ours), ours.kind) == (type(theirs), theirs.kind)
            for name in ours.tensors:
                torch.testing.assert_close(
                    getattr(ours, name), getattr(theirs, name), rtol=1e-5, atol=1e-5
                )
            if ours.is_drawable:
                last = [0, ours.n_queries - 1]
                torch.testing.assert_close(ours.rows(last), theirs.rows(last), rtol=0, atol=1e-5)
    return records


class Torchs(nn.Module):
    """PyTorch's own encoder, whose layers are one operation each where no gradient is asked."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True)
        self.patches = nn.Conv2d(3, 32, 16, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, images):
        return self.encoder(self.patches(images).flatten(2).mT)


def seed():
    return ViT(image_size=64, patch_size=16, num_classes=5, dim=24, depth=2, heads=2, dim_head=12,
               mlp_dim=32)  # fmt: skip


def of_timm(name, **arguments):
    return lambda: timm.create_model(name, num_classes=5, **arguments)


def of_transformers(name, **settings):
    def make():
        import transformers

        kind = getattr(transformers, name)
        common = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                  "intermediate_size": 48, "image_size": 64, "patch_size": 16}  # fmt: skip
        return kind._from_config(kind.config_class(**common | settings))

    return make


TINY_SWIN = {"img_size": 56, "window_size": 7, "embed_dim": 24, "depths": (2, 2),
             "num_heads": (2, 4)}  # fmt: skip
MODELS = {
    "seed, softmax not fused": (seed, 64),
    "vit": (of_timm("vit_tiny_patch16_224", img_size=64, depth=2, embed_dim=32, num_heads=2), 64),
    "swin, windows shifted": (of_timm("swin_tiny_patch4_window7_224", **TINY_SWIN), 56),
    "maxvit, windows and grids": (of_timm("maxvit_pico_rw_256", img_size=64), 64),
    "cait, heads mixed": (of_timm("cait_xxs24_224", img_size=64, depth=2), 64),
    "beit, one bias for all": (of_timm("beit_base_patch16_224", img_size=64, depth=2,
                               embed_dim=32, num_heads=2, init_values=None), 64),
    "transformers": (of_transformers("ViTModel"), 64),
    "sam, a bias of each picture": (
        of_transformers("SamVisionModel", window_size=3, global_attn_indexes=[1], mlp_ratio=2.0,
                        output_channels=16), 64),
    "torch, a layer in one operation": (Torchs, 64),
}  # fmt: skip


@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_gives_what_looking_at_each_alone_gives(name, values):
    make, side = MODELS[name]
    model = randomised(make().eval())
    for count in (3, 2):
        assert_like_singles(model, pictures(count, side, side), values=values)
    assert is_batched(model)


def test_the_embedded_model_takes_batches_and_pictures_that_are_not_square():
    model = load_model("vizattn/dinov2-small")
    assert_like_singles(model, pictures(3, 56, 84))
    assert is_batched(model.module)


def test_one_pass_serves_a_whole_batch(tiny_timm):
    capture_batch(tiny_timm, pictures(2))
    passes = []
    with_hook = tiny_timm.register_forward_hook(lambda *_: passes.append(1))
    assert len(capture_batch(tiny_timm, pictures(5))) == 5
    with_hook.remove()
    assert len(passes) == 1


class Mixing(nn.Module):
    """Every picture attends with the mean of its batch added: alone it is another one."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def forward(self, images):
        return self.vit(images + images.mean(0, keepdim=True))


class OneAtATime(nn.Module):
    """Refuses more than one picture in its own words."""

    def __init__(self, vit):
        super().__init__()
        self.vit = vit

    def forward(self, images):
        if len(images) > 1:
            raise ValueError("one picture, please")
        return self.vit(images)


class WindowsOutermost(nn.Module):
    """Two windows, the upper and the lower half; pictures follow each other within a window."""

    def forward(self, images):
        light = nn.functional.avg_pool2d(images, 16).flatten(2).mT  # [batch, 16, 3]
        halves = torch.cat(light.chunk(2, 1))  # [window × batch, 8, 3]
        tokens = halves.unsqueeze(1) * 3
        mixed = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return torch.cat(mixed.squeeze(1).chunk(2), 1)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("kind", [Mixing, OneAtATime, WindowsOutermost])
def test_what_cannot_be_told_apart_is_looked_at_one_by_one(kind, alike, tiny_timm):
    model = (kind() if kind is WindowsOutermost else kind(tiny_timm)).eval()
    pixels = torch.zeros(3, 3, 64, 64) if alike else pictures(3)  # alike, no slip would show
    assert_like_singles(model, pixels)
    assert_like_singles(model, pictures(2))
    assert not is_batched(model)


class Routed(nn.Module):
    """Tokens that a picture moves: their places are not those of the next picture."""

    def forward(self, images):
        light = nn.functional.avg_pool2d(images, 16).flatten(2).mT
        order = light[..., 0].argsort(1).unsqueeze(-1).expand_as(light)
        tokens = light.gather(1, order).unsqueeze(1)
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens).mean((1, 2))


def test_places_that_change_from_picture_to_picture_are_found_for_each():
    assert_like_singles(Routed().eval(), pictures(3))


def test_pictures_come_in_any_kind_and_lie_where_each_was_cropped(tiny_timm):
    model = wrap_model(tiny_timm, Preprocess(64, 64))
    images = [dot_image(128, 64, 60, 30), dot_image(64, 96, 20, 20)]
    for record, image in zip(capture_batch(model, images), images, strict=True):
        alone = capture(model, image)
        assert record.frame == alone.frame
        assert record[0].keys.frame == alone[0].keys.frame
        torch.testing.assert_close(record[-1].q, alone[-1].q, rtol=1e-5, atol=1e-5)


def test_no_pictures_are_no_records(tiny_timm):
    assert capture_batch(tiny_timm, []) == []


def test_pictures_of_two_sizes_are_refused_in_words(tiny_timm):
    with pytest.raises(CaptureError, match=r"64×64, 64×96 pixels.*Make a batch of each size"):
        capture_batch(tiny_timm, [torch.zeros(3, 64, 96), torch.zeros(3, 64, 64)])
    with pytest.raises(CaptureError, match="One picture is for capture"):
        capture_batch(tiny_timm, torch.zeros(3, 64, 64))
    with pytest.raises(ImageError, match="there is no file"):
        capture_batch(tiny_timm, ["gone.jpg"])
    with pytest.raises(CaptureError, match="in training mode"):
        capture_batch(tiny_timm.train(), pictures(2))
