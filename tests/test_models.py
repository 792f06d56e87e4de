import pytest
import torch
from PIL import Image

from vizattn import models
from vizattn.errors import ModelError, UnknownName
from vizattn.images import open_image
from vizattn.models import load_model, wrap_model
from vizattn.preprocess import Preprocess


@pytest.fixture(scope="module")
def dinov2():
    return load_model("vizattn/dinov2-small")


@pytest.fixture(scope="module")
def chelsea():
    return open_image(models.assets() / "examples" / "chelsea.jpg")


def test_the_embedded_model_sees_chelsea_whole_in_37_by_25_patches(dinov2, chelsea):
    pixels, frame = dinov2.transform(chelsea)
    assert pixels.shape == (3, 350, 518)
    assert (frame.width, frame.height) == chelsea.size


def test_the_embedded_model_tells_a_cat_from_a_rocket(dinov2, chelsea):
    """Features of a picture are nearer to its own mirror image than to another picture."""
    rocket = open_image(models.assets() / "examples" / "rocket.jpg")

    def features(image):
        pixels, _ = Preprocess(224, 224, mode="squash")(image)
        with torch.no_grad():
            return dinov2.module(pixels.unsqueeze(0))[0]

    cat, mirrored = features(chelsea), features(chelsea.transpose(0))
    other = features(rocket)
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(cat, mirrored, dim=0) > 0.9
    assert cosine(cat, other, dim=0) < 0.5


def test_another_size_of_the_embedded_model_is_the_longer_side(chelsea):
    model = load_model("vizattn/dinov2-small", weights="random", size=224)
    pixels, _ = model.transform(chelsea)
    assert pixels.shape == (3, 154, 224)
    assert model.notes == (models._RANDOM_NOTE,)


def test_random_weights_are_noted_and_timms_own_preprocessing_is_used():
    model = load_model("timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights="random")
    assert model.notes
    assert model.transform == Preprocess(
        224, 224, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic", "crop", 0.9
    )
    assert len(model.labels) == 1000
    assert model.labels[281].startswith("tabby")
    assert not model.module.training


def test_a_size_of_ones_own_is_taken_by_models_that_take_any():
    model = load_model("timm/vit_tiny_patch16_224", weights="random", size=96)
    assert (model.transform.height, model.transform.width) == (96, 96)
    with torch.no_grad():
        assert model.module(torch.zeros(1, 3, 96, 96)).shape == (1, 1000)


def test_weights_that_cannot_be_fetched_say_what_to_do_instead(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def refuse(*_arguments, **_more):
        raise OSError("no network")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", refuse)
    with pytest.raises(ModelError, match="use the embedded model 'vizattn/dinov2-small'"):
        load_model("timm/vit_tiny_patch16_224")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vizattn/dinov2-smal", "Did you mean 'vizattn/dinov2-small'"),
        ("dinov2-small", "no model named 'dinov2-small'"),
        ("pytorch/resnet", "no model named 'pytorch/resnet'"),
        ("timm/", "no model named 'timm/'"),
    ],
)
def test_an_unknown_name_is_met_with_near_ones(name, said):
    with pytest.raises(UnknownName, match=said):
        load_model(name)


def test_an_unknown_timm_name_is_met_with_a_near_one():
    with pytest.raises(ModelError, match="Did you mean 'timm/vit_tiny_patch16_224'"):
        load_model("timm/vit_tiny_patch16_225")


def test_wrapping_leaves_the_module_alone_and_finds_its_size(tiny_vit):
    model = wrap_model(tiny_vit)
    assert model.module is tiny_vit
    assert model.transform == Preprocess(64, 48)


def test_a_module_that_names_no_size_asks_for_a_transform():
    model = wrap_model(torch.nn.Linear(3, 3))
    with pytest.raises(ModelError, match="Give wrap_model a transform, such as Preprocess"):
        model.transform(Image.new("RGB", (8, 8)))


def test_missing_assets_say_where_they_were_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("VIZATTN_ASSETS", str(tmp_path))
    with pytest.raises(ModelError, match=r"are not in .*set VIZATTN_ASSETS"):
        load_model("vizattn/dinov2-small")
