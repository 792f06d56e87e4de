import pytest
import torch
import torchvision
from pictures import SHAPES, error_of_frame, noise

from vizattn.errors import ModelError, UnknownName
from vizattn.models import RANDOM_NOTE, load_model
from vizattn.models.from_torchvision import preprocess_of
from vizattn.preprocess import Preprocess

WEIGHTS = ["ViT_B_16_Weights.IMAGENET1K_V1", "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1",
           "Swin_T_Weights.IMAGENET1K_V1", "Swin_V2_T_Weights.IMAGENET1K_V1",
           "MaxVit_T_Weights.IMAGENET1K_V1"]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", WEIGHTS)
def test_pixels_are_those_of_the_weights_own_transform(name, shape):
    weights = torchvision.models.get_weight(name)
    pixels, _ = preprocess_of(weights)(noise(*shape))
    expected = weights.transforms()(noise(*shape))
    torch.testing.assert_close(pixels, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(640, 400), (400, 640)])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_bright_dot_is_found_at_its_pixel(name, size):
    assert error_of_frame(preprocess_of(torchvision.models.get_weight(name)), size) < 2


def test_swin_is_built_with_its_classes_and_its_preprocessing():
    model = load_model("torchvision/swin_t", weights="random")
    assert model.labels[281] == "tabby"
    assert model.notes == (RANDOM_NOTE,)
    assert model.transform == Preprocess(224, 224, resized=(232, 232))


def test_a_tag_chooses_its_own_size():
    model = load_model("torchvision/vit_b_16.IMAGENET1K_SWAG_E2E_V1", weights="random")
    assert model.transform.height == model.module.image_size == 384


def test_weights_in_the_cache_are_loaded_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    theirs = torchvision.models.swin_t().eval()
    weights = torchvision.models.Swin_T_Weights.IMAGENET1K_V1
    (tmp_path / "checkpoints").mkdir()
    torch.save(theirs.state_dict(), tmp_path / "checkpoints" / weights.url.rpartition("/")[2])
    model = load_model("torchvision/swin_t")
    assert torch.equal(model.module.head.weight, theirs.head.weight)
    assert model.notes == ()


def test_position_embeddings_are_moved_to_another_size(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    theirs = torchvision.models.vit_b_32().eval()
    weights = torchvision.models.ViT_B_32_Weights.IMAGENET1K_V1
    (tmp_path / "checkpoints").mkdir()
    torch.save(theirs.state_dict(), tmp_path / "checkpoints" / weights.url.rpartition("/")[2])
    model = load_model("torchvision/vit_b_32", size=96)
    assert model.module.encoder.pos_embedding.shape == (1, 10, 768)
    class_token = theirs.encoder.pos_embedding[:, 0]
    assert torch.equal(model.module.encoder.pos_embedding[:, 0], class_token)


def test_a_size_that_is_no_multiple_of_the_patch_is_refused():
    with pytest.raises(ModelError, match="torchvision cannot build 'vit_b_32' at 100 pixels"):
        load_model("torchvision/vit_b_32", weights="random", size=100)


def test_a_file_of_ones_own_sets_the_number_of_classes(tmp_path):
    theirs = torchvision.models.swin_t(num_classes=3)
    torch.save({"state_dict": {f"module.{k}": v for k, v in theirs.state_dict().items()}},
               tmp_path / "own.pt")  # fmt: skip
    model = load_model("torchvision/swin_t", weights=tmp_path / "own.pt")
    assert torch.equal(model.module.head.weight, theirs.head.weight)
    assert (model.checkpoint.n_classes, model.labels) == (3, ())


def test_unknown_names_and_tags_are_met_with_near_ones():
    with pytest.raises(UnknownName, match="Did you mean 'torchvision/vit_b_16'"):
        load_model("torchvision/vit_b16")
    with pytest.raises(ModelError, match=r"has no weights 'V9'\. It has: .*IMAGENET1K_V1"):
        load_model("torchvision/vit_b_16.V9")
