import json

import pytest
import timm
import torch
from hub_cache import publish, save
from pictures import SHAPES, error_of_frame, noise
from safetensors.torch import load_file, save_file
from samples import close

from vizattn.capture import capture
from vizattn.errors import ModelError
from vizattn.models import RANDOM_NOTE, load_model
from vizattn.models.hf_preprocess import preprocess_of
from vizattn.preprocess import Preprocess

transformers = pytest.importorskip("transformers")

TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
VIT_PICTURES = {
    "image_processor_type": "ViTFeatureExtractor", "size": 32, "resample": 2,
    "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}  # fmt: skip
PIXELS = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    place = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place))
    return place


def vit(**more):
    config = transformers.ViTConfig(**TINY, image_size=32, patch_size=8, **more)
    return transformers.ViTForImageClassification(config).eval()


def clip():
    config = transformers.CLIPConfig(
        text_config={**TINY, "vocab_size": 50}, projection_dim=16,
        vision_config={**TINY, "image_size": 32, "patch_size": 8},
    )  # fmt: skip
    return transformers.CLIPModel(config).eval()


def siglip():
    config = transformers.SiglipConfig(
        text_config={**TINY, "vocab_size": 50},
        vision_config={**TINY, "image_size": 32, "patch_size": 8},
    )
    return transformers.SiglipModel(config).eval()


# Every family whose pictures are prepared by Pillow, by its defaults and by other settings.
PROCESSORS = [
    ("ViT", {}),
    ("ViT", {"size": {"height": 384, "width": 320}, "resample": 3}),
    ("ViT", {"do_normalize": False}),
    ("CLIP", {}),
    ("CLIP", {"size": {"shortest_edge": 256}, "crop_size": {"height": 225, "width": 225}}),
    ("CLIP", {"size": {"shortest_edge": 200}}),  # smaller than the crop: black around it
    ("Siglip", {"resample": 1}),
    ("Bit", {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}),
    ("Blip", {}),
    ("DeiT", {}),
    ("Beit", {"size": {"height": 256, "width": 256}, "do_center_crop": True}),
    ("Segformer", {}),
    ("ChineseCLIP", {}),
    ("OwlViT", {}),
    ("Pvt", {}),
    ("MobileViT", {"size": {"shortest_edge": 288}}),  # blue first
    ("ConvNext", {"size": {"shortest_edge": 224}}),
    ("ConvNext", {}),
    ("Levit", {}),
    ("Sam", {"size": {"longest_edge": 256}, "pad_size": {"height": 256, "width": 256}}),
    ("DPT", {}),
    ("Detr", {"size": {"shortest_edge": 200, "longest_edge": 333}}),
    ("Yolos", {"size": {"shortest_edge": 200, "longest_edge": 333}}),
]
# Families that exist only with torch doing the resizing.
TORCH_PROCESSORS = [
    ("DINOv3ViT", {}),
    ("DINOv3ViT", {"size": {"height": 96, "width": 128}, "resample": 3}),
    ("Sam2", {"size": {"height": 256, "width": 256}}),
    ("Tipsv2", {"size": {"height": 224, "width": 224}}),
]


def both(family, settings, ending):
    named = {"image_processor_type": f"{family}ImageProcessor", **settings}
    theirs = getattr(transformers, f"{family}ImageProcessor{ending}")(**settings)
    return preprocess_of(transformers, named, "vit"), theirs


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("family", "settings"), PROCESSORS)
def test_pixels_are_bit_equal_to_those_of_the_image_processor(family, settings, shape):
    ours, theirs = both(family, settings, "Pil")
    image = noise(*shape)
    expected = theirs(image, return_tensors="pt")["pixel_values"][0]
    assert torch.equal(ours(image)[0], expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("family", "settings"), TORCH_PROCESSORS)
def test_pixels_resized_by_torch_are_those_of_the_image_processor(family, settings, shape):
    ours, theirs = both(family, settings, "")
    image = noise(*shape)
    expected = theirs(image, return_tensors="pt")["pixel_values"][0]
    torch.testing.assert_close(ours(image)[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [(640, 400), (400, 640)])
@pytest.mark.parametrize(("family", "settings"), PROCESSORS + TORCH_PROCESSORS)
def test_a_bright_dot_is_found_at_its_pixel(family, settings, size):
    named = {"image_processor_type": f"{family}ImageProcessor", **settings}
    assert error_of_frame(preprocess_of(transformers, named, "vit"), size) < 2


@pytest.mark.parametrize("family", ["Owlv2", "Qwen2VL", "VideoMAE", "Siglip2", "Perceiver"])
def test_a_processor_with_a_rule_of_its_own_is_refused_by_name(family):
    with pytest.raises(ModelError, match=f"prepared by {family}ImageProcessor.*wrap_model"):
        preprocess_of(transformers, {"image_processor_type": f"{family}ImageProcessor"}, "vit")


def test_without_a_file_the_models_type_says_how_pictures_are_prepared():
    found = preprocess_of(transformers, {}, "dinov2")
    assert (found.mode, found.height) == ("crop", 224)


def test_another_size_keeps_the_share_that_is_cut_off():
    settings = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}
    named = {"image_processor_type": "BitImageProcessor", **settings}
    found = preprocess_of(transformers, named, "dinov2", 448)
    assert (found.height, found.resized) == (448, (512, 512))


def test_a_cached_repository_is_loaded_without_a_network_and_gives_the_models_own_logits(
    cache, tmp_path
):
    model = vit(id2label={0: "cat", 1: "dog", 2: "rocket"})
    publish(cache, "someone/tiny-vit", save(tmp_path / "vit", model, VIT_PICTURES))
    loaded = load_model("hf/someone/tiny-vit")
    close(loaded.module(PIXELS), model(PIXELS).logits)
    assert loaded.labels == ("cat", "dog", "rocket")
    assert loaded.transform == Preprocess(
        32, 32, (0.5,) * 3, (0.5,) * 3, "bilinear", "squash", resized=(32, 32), halves="down"
    )
    assert (loaded.label, loaded.notes) == ("tiny-vit", ())
    assert not loaded.module.training


def test_a_folder_is_loaded_like_a_repository_and_captured(tmp_path):
    model = vit()
    loaded = load_model(f"hf/{save(tmp_path / 'vit', model, VIT_PICTURES)}")
    record = capture(loaded, noise(64, 48))
    assert [layer.n_heads for layer in record] == [2, 2]
    assert (record.grid.rows, record.grid.cols, record.grid.prefix) == (4, 4, 1)
    pixels, _ = loaded.transform(noise(64, 48))
    close(record.output, model(pixels.unsqueeze(0)).logits[0])


@pytest.mark.parametrize("build", [clip, siglip])
def test_of_two_towers_only_the_vision_tower_is_built(build, tmp_path):
    model = build()
    folder = save(tmp_path / "towers", model, VIT_PICTURES)
    loaded = load_model(f"hf/{folder}")
    assert not any("text" in name for name, _ in loaded.module.named_modules())
    close(loaded.module(PIXELS), model.get_image_features(PIXELS).pooler_output)
    assert loaded.labels == ()


def test_the_vision_part_of_sam_is_called_with_pixels_alone(tmp_path):
    config = transformers.SamConfig(
        vision_config={
            "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 64,
            "patch_size": 16, "output_channels": 16, "mlp_dim": 48, "global_attn_indexes": [1],
            "window_size": 2,
        },
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    pad = {"size": {"longest_edge": 64}, "pad_size": {"height": 64, "width": 64}}
    settings = {"image_processor_type": "SamImageProcessor", **pad}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    loaded = load_model(f"hf/{tmp_path}", weights="random")
    assert loaded.module(torch.zeros(1, 3, 64, 64)).shape == (1, 16, 4, 4)
    assert loaded.transform.mode == "pad"


def test_a_masked_autoencoder_sees_all_patches_in_their_order(tmp_path):
    config = transformers.ViTMAEConfig(**TINY, image_size=32, patch_size=8)
    folder = save(tmp_path / "mae", transformers.ViTMAEModel(config), VIT_PICTURES)
    loaded = load_model(f"hf/{folder}")
    first, second = loaded.module(PIXELS), loaded.module(PIXELS)
    assert first.shape == (1, 17, 32)
    assert torch.equal(first, second)


def test_hiera_is_captured_at_its_own_size(tmp_path):
    transformers.HieraConfig(embed_dim=16, depths=[1, 1, 1, 1]).save_pretrained(tmp_path)
    record = capture(load_model(f"hf/{tmp_path}", weights="random"), noise(100, 80))
    assert len(record) == 4


def test_random_weights_need_only_the_configuration_and_are_noted(cache, tmp_path):
    folder = tmp_path / "vit"
    save(folder, vit(), VIT_PICTURES)
    (folder / "model.safetensors").unlink()
    publish(cache, "someone/config-only", folder)
    assert load_model("hf/someone/config-only", weights="random").notes == (RANDOM_NOTE,)
    with pytest.raises(ModelError, match="could not be fetched"):
        load_model("hf/someone/config-only")


def test_another_size_is_asked_for_by_moving_position_embeddings(tmp_path):
    folder = save(tmp_path / "vit", vit(), VIT_PICTURES)
    loaded = load_model(f"hf/{folder}", size=48)
    record = capture(loaded, noise(64, 48))
    assert (record.grid.rows, record.grid.cols) == (6, 6)


def test_a_size_that_is_no_multiple_of_the_patch_is_refused(tmp_path):
    config = transformers.SamVisionConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=64, patch_size=16,
        output_channels=16, mlp_dim=48, global_attn_indexes=[0],
    )  # fmt: skip
    folder = save(tmp_path / "sam", transformers.SamVisionModel(config), VIT_PICTURES)
    with pytest.raises(ModelError, match="does not take pictures of 80×80 pixels"):
        load_model(f"hf/{folder}", size=80)


def test_half_precision_is_loaded_in_full_so_that_a_processor_can_run_it(tmp_path):
    folder = save(tmp_path / "vit", vit().to(torch.float16), VIT_PICTURES)
    loaded = load_model(f"hf/{folder}")
    assert {tensor.dtype for tensor in loaded.module.parameters()} == {torch.float32}


def test_weights_that_leave_the_backbone_empty_are_refused(tmp_path):
    folder = save(tmp_path / "vit", vit(), VIT_PICTURES)
    state = load_file(folder / "model.safetensors")
    lost = [key for key in state if "layer.1" in key or "layers.1" in key]
    assert lost
    kept = {key: tensor for key, tensor in state.items() if key not in lost}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"leave \d+ tensors of the model empty, such as .*1"):
        load_model(f"hf/{folder}")


def test_code_that_a_repository_brings_is_not_run(tmp_path):
    ran = tmp_path / "ran"
    (tmp_path / "modeling_own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    config = {"model_type": "own", "auto_map": {"AutoModel": "modeling_own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="Code that a repository brings is not run"):
        load_model(f"hf/{tmp_path}", weights="random")
    assert not ran.exists()


def test_code_that_a_repository_brings_is_not_run_for_a_known_type_either(tmp_path):
    ran = tmp_path / "ran"
    folder = save(tmp_path / "vit", vit(), VIT_PICTURES)
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')\nclass Own: pass\n")
    for file in ("config.json", "preprocessor_config.json"):
        raw = json.loads((folder / file).read_text())
        raw["auto_map"] = {"AutoModel": "own.Own", "AutoImageProcessor": "own.Own"}
        (folder / file).write_text(json.dumps(raw))
    assert load_model(f"hf/{folder}").module(PIXELS).shape == (1, 2)
    assert not ran.exists()


def test_a_text_model_is_refused(tmp_path):
    transformers.BertConfig().save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(VIT_PICTURES))
    with pytest.raises(ModelError, match="no model in transformers that takes nothing but pixel"):
        load_model(f"hf/{tmp_path}", weights="random")


def test_a_repository_of_timm_is_loaded_by_timm(tmp_path):
    arguments = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 32}
    theirs = timm.create_model("vit_tiny_patch16_224", num_classes=3, **arguments).eval()
    about = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 1.0}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 3, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps({**config, "pretrained_cfg": about}))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    loaded = load_model(f"hf/{tmp_path}")
    close(loaded.module(PIXELS), theirs(PIXELS))
    assert (loaded.transform.height, loaded.transform.mean) == (32, (0.5, 0.5, 0.5))


def test_a_file_of_ones_own_fills_the_model_with_as_many_classes_as_it_has(tmp_path):
    folder = save(tmp_path / "vit", vit(), VIT_PICTURES)
    own = vit(num_labels=7)
    torch.save({"model": own.state_dict()}, tmp_path / "own.pt")
    loaded = load_model(f"hf/{folder}", weights=tmp_path / "own.pt")
    close(loaded.module(PIXELS), own(PIXELS).logits)
    assert loaded.checkpoint.n_classes == 7
    assert loaded.labels == ()
