from types import SimpleNamespace

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
    assert model.notes == (models.RANDOM_NOTE,)


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


def test_a_file_of_ones_own_fills_the_embedded_model(tmp_path):
    theirs = load_model("vizattn/dinov2-small", weights="random").module
    torch.save({"model": theirs.state_dict()}, tmp_path / "own.pth")
    model = load_model("vizattn/dinov2-small", weights=tmp_path / "own.pth")
    assert torch.equal(model.module.blocks[5].attn.qkv.weight, theirs.blocks[5].attn.qkv.weight)
    assert model.checkpoint.matched == model.checkpoint.total
    assert model.notes == (model.checkpoint.sentence,)


def test_wrapping_leaves_the_module_alone_and_finds_its_size(tiny_vit):
    model = wrap_model(tiny_vit)
    assert model.module is tiny_vit
    assert model.transform == Preprocess(64, 48)


def test_a_size_in_a_modules_configuration_is_believed():
    module = torch.nn.Linear(3, 3)
    module.config = SimpleNamespace(image_size=[96, 64])
    assert wrap_model(module).transform == Preprocess(96, 64)


def test_a_module_that_names_no_size_asks_for_a_transform():
    model = wrap_model(torch.nn.Linear(3, 3))
    with pytest.raises(ModelError, match="Give wrap_model a transform, such as Preprocess"):
        model.transform(Image.new("RGB", (8, 8)))


def test_missing_assets_say_where_they_were_looked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("VIZATTN_ASSETS", str(tmp_path))
    with pytest.raises(ModelError, match=r"are not in .*set VIZATTN_ASSETS"):
        load_model("vizattn/dinov2-small")
