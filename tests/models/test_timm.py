import pytest
import timm
import torch
from hub_cache import publish
from pictures import SHAPES, error_of_frame, noise
from safetensors.torch import save_file
from samples import close
from timm.data import create_transform, resolve_model_data_config

from vizattn.errors import ModelError, UnknownName
from vizattn.models import MODELS, RANDOM_NOTE, load_model
from vizattn.models.from_timm import preprocess_of
from vizattn.preprocess import Preprocess

TINY = {"embed_dim": 32, "depth": 2, "num_heads": 2}
PIXELS = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(3))


class Configured(torch.nn.Module):
    """All that timm needs to know to make a transform: a configuration."""

    def __init__(self, **config):
        super().__init__()
        plain = {"input_size": (3, 224, 224), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}
        self.pretrained_cfg = {**plain, "interpolation": "bicubic", "crop_pct": 0.9, **config}


CONFIGURATIONS = [
    {},
    {"crop_pct": 1.0, "interpolation": "bilinear"},
    {"crop_mode": "squash", "crop_pct": 0.95},
    {"crop_mode": "border", "crop_pct": 1.0},
    {"crop_mode": "border", "crop_pct": 0.8},
    {"input_size": (3, 192, 256), "crop_pct": 0.875},
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_pixels_are_those_of_timms_own_transform(config, shape):
    module = Configured(**config)
    theirs = create_transform(**resolve_model_data_config(module))
    pixels, _ = preprocess_of(module)(noise(*shape))
    torch.testing.assert_close(pixels, theirs(noise(*shape)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(640, 400), (400, 640)])
@pytest.mark.parametrize("config", CONFIGURATIONS)
def test_a_bright_dot_is_found_at_its_pixel(config, size):
    assert error_of_frame(preprocess_of(Configured(**config)), size) < 2


def test_random_weights_are_noted_and_timms_own_preprocessing_is_used():
    model = load_model("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights="random")
    assert model.notes == (RANDOM_NOTE,)
    assert model.transform == Preprocess(
        224, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic", "crop", 0.9
    )
    assert len(model.labels) == 1000
    assert model.labels[281].startswith("tabby")
    assert not model.module.training


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("vit_tiny_patch16_224", 96),  # dynamic_img_size
        ("swin_tiny_patch4_window7_224", 64),  # img_size
        ("pvt_v2_b0", 96),  # takes any size as it is
    ],
)
def test_a_size_of_ones_own_is_taken_by_models_that_take_any(name, side):
    model = load_model(f"timm/{name}", weights="random", size=side)
    assert (model.transform.height, model.transform.width) == (side, side)
    with torch.no_grad():
        assert model.module(torch.zeros(1, 3, side, side)).shape == (1, 1000)


def test_a_size_that_does_not_suit_the_patches_is_refused_in_words():
    with pytest.raises(ModelError, match="does not take pictures of 100×100 pixels"):
        load_model("timm/vit_tiny_patch16_224", weights="random", size=100)


def test_an_unknown_name_is_met_with_near_ones():
    with pytest.raises(UnknownName, match="Did you mean 'timm/vit_tiny_patch16_224'") as caught:
        load_model("timm/vit_tiny_patch16_225")
    assert len(str(caught.value)) < 400  # and not with all 1371


def test_an_unknown_tag_is_met_with_the_known_ones():
    with pytest.raises(ModelError, match=r"has no weights 'nope'\. It has: .*augreg_in21k_ft_in1k"):
        load_model("timm/vit_tiny_patch16_224.nope", weights="random")


def test_a_model_without_pretrained_weights_says_so():
    name = next(n for n in timm.list_models("vit_*") if not timm.is_model_pretrained(n))
    with pytest.raises(ModelError, match=f"no pretrained weights for '{name}'"):
        load_model(f"timm/{name}")


def test_every_model_that_the_page_offers_exists_with_its_tag():
    known = set(timm.list_pretrained())
    offered = [name.removeprefix("timm/") for name in MODELS if name.startswith("timm/")]
    assert set(offered) <= known
    assert len(offered) == len(MODELS) - 2  # and two ship here
    assert next(iter(MODELS)) == "vizattn/dinov2-small"


def test_a_file_with_other_classes_gives_a_head_of_that_many(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=7).eval()
    save_file(theirs.state_dict(), tmp_path / "own.safetensors")
    model = load_model("timm/vit_tiny_patch16_224", weights=tmp_path / "own.safetensors")
    with torch.no_grad():
        close(model.module(PIXELS), theirs(PIXELS))
    assert (model.checkpoint.n_classes, model.labels) == (7, ())
    assert "7 classes" in model.notes[0]


def test_a_file_without_a_head_gives_a_model_without_one(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=0).eval()
    torch.save({"teacher": {f"backbone.{k}": v for k, v in theirs.state_dict().items()}},
               tmp_path / "dino.pth")  # fmt: skip
    model = load_model("timm/vit_tiny_patch16_224", weights=str(tmp_path / "dino.pth"))
    with torch.no_grad():
        close(model.module(PIXELS), theirs(PIXELS))
    assert (model.checkpoint.missing, model.checkpoint.entry) == ((), "teacher")
    assert model.labels == ()


def test_weights_in_the_cache_are_loaded_without_a_network(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    theirs = timm.create_model("vit_tiny_patch16_224").eval()
    (tmp_path / "repository").mkdir()
    save_file(theirs.state_dict(), tmp_path / "repository" / "model.safetensors")
    config = timm.get_pretrained_cfg("vit_tiny_patch16_224")
    publish(tmp_path / "cache", config.hf_hub_id, tmp_path / "repository")
    model = load_model("timm/vit_tiny_patch16_224")
    with torch.no_grad():
        close(model.module(PIXELS), theirs(PIXELS))
    assert model.notes == ()


def test_weights_that_are_nowhere_are_refused_before_the_model_is_built(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("it was built"))
    with pytest.raises(ModelError, match="could not be fetched"):
        load_model("timm/vit_giant_patch14_dinov2.lvd142m")


def test_position_embeddings_of_another_size_are_moved_by_timms_own_rule(tmp_path):
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=160).eval()
    torch.save(theirs.state_dict(), tmp_path / "small.pth")
    model = load_model("timm/vit_tiny_patch16_224", weights=tmp_path / "small.pth")
    assert model.checkpoint.matched == model.checkpoint.total
    assert torch.equal(model.module.blocks[3].attn.qkv.weight, theirs.blocks[3].attn.qkv.weight)


def test_a_distilled_model_has_two_heads_of_the_files_size(tmp_path):
    name = "deit_tiny_distilled_patch16_224"
    theirs = timm.create_model(name, num_classes=4)
    torch.save(theirs.state_dict(), tmp_path / "own.pth")
    model = load_model(f"timm/{name}", weights=tmp_path / "own.pth")
    assert model.module.head.out_features == model.module.head_dist.out_features == 4
