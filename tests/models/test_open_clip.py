import pytest
import torch
from pictures import SHAPES, error_of_frame, noise
from samples import close

from vizattn.errors import ModelError, UnknownName
from vizattn.models import RANDOM_NOTE, load_model
from vizattn.models.from_open_clip import preprocess_of

open_clip = pytest.importorskip("open_clip")

TINY_TEXT = {"context_length": 8, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1}
TOWERS = {
    "tiny-own": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "tiny-timm": {
        "timm_model_name": "test_vit", "timm_pool": "token", "timm_proj": "linear",
        "image_size": 160,
    },
}  # fmt: skip


@pytest.fixture(params=TOWERS)
def tiny(request, monkeypatch):
    """The name of a tiny model that open_clip is made to know."""
    config = {"embed_dim": 16, "vision_cfg": TOWERS[request.param], "text_cfg": TINY_TEXT}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, request.param, config)
    return request.param


CONFIGURATIONS = [
    {},
    {"interpolation": "bilinear", "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    {"resize_mode": "squash", "size": 256},
    {"resize_mode": "longest", "fill_color": 100},
    {"size": (192, 256)},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_pixels_are_those_of_open_clips_own_transform(config, shape):
    theirs = open_clip.transform.PreprocessCfg(**config)
    transform = open_clip.transform.image_transform_v2(theirs, is_train=False)
    pixels, _ = preprocess_of(vars(theirs))(noise(*shape))
    torch.testing.assert_close(pixels, transform(noise(*shape)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(640, 400), (400, 640)])
@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_a_bright_dot_is_found_at_its_pixel(config, size):
    theirs = open_clip.transform.PreprocessCfg(**config)
    assert error_of_frame(preprocess_of(vars(theirs)), size) < 2


def test_only_the_vision_tower_is_kept_and_gives_what_encode_image_gives(tiny, tmp_path):
    whole = open_clip.create_model(tiny).eval()
    torch.save(whole.state_dict(), tmp_path / "clip.pt")
    model = load_model(f"open_clip/{tiny}", weights=tmp_path / "clip.pt")
    side = model.transform.height
    pixels = torch.randn(1, 3, side, side)
    with torch.no_grad():
        close(model.module(pixels), whole.encode_image(pixels))
    assert model.checkpoint.missing == ()
    assert any("transformer.resblocks" in key for key in model.checkpoint.unexpected)
    assert not hasattr(model.module, "token_embedding")


def test_random_weights_need_no_network_and_are_noted(tiny):
    model = load_model(f"open_clip/{tiny}", weights="random")
    assert model.notes == (RANDOM_NOTE,)
    assert not model.module.training


def test_a_tag_brings_its_preprocessing_even_when_random(tiny, monkeypatch):
    tag = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5), "resize_mode": "squash", "size": 999}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, tiny, {"own": {"hf_hub": "a/b", **tag}})
    model = load_model(f"open_clip/{tiny}/own", weights="random")
    assert (model.transform.mean, model.transform.mode) == ((0.1, 0.2, 0.3), "squash")
    assert model.transform.height == TOWERS[tiny]["image_size"]


def test_a_tag_brings_its_gelu_even_when_random():
    model = load_model("open_clip/ViT-B-32/openai", weights="random")
    assert type(model.module.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    plain = load_model("open_clip/ViT-B-32/laion2b_s34b_b79k", weights="random")
    assert type(plain.module.transformer.resblocks[0].mlp.gelu).__name__ == "GELU"


def test_another_size_is_taken():
    model = load_model("open_clip/ViT-B-32", weights="random", size=96)
    assert model.transform.height == 96
    assert model.module(torch.zeros(1, 3, 96, 96)).shape == (1, 512)


def test_unknown_names_and_tags_are_met_with_near_ones():
    with pytest.raises(UnknownName, match="Did you mean 'open_clip/ViT-B-32'"):
        load_model("open_clip/vit-b-32x")
    with pytest.raises(ModelError, match=r"has no weights 'nope'\. It has: .*openai"):
        load_model("open_clip/ViT-B-32/nope")


def test_a_model_without_pretrained_weights_says_so(tiny):
    with pytest.raises(ModelError, match=f"open_clip has no pretrained weights for '{tiny}'"):
        load_model(f"open_clip/{tiny}")
