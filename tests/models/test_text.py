"""Texts as targets: towers of transformers and open_clip, tiny and random, with real tokenizers."""

import pytest
import torch
from hub_cache import save
from samples import close

from vizattn.errors import ModelError, TargetError
from vizattn.gradients import capture_gradients
from vizattn.models import load_model

transformers = pytest.importorskip("transformers")
open_clip = pytest.importorskip("open_clip")

TINY = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
}  # fmt: skip
WORDS = {"<s>": 0, "</s>": 1, "a": 2, "cat": 3, "dog": 4, "?": 5}
TEXT = {**TINY, "vocab_size": 8, "max_position_embeddings": 6, "bos_token_id": 0, "eos_token_id": 1}
VISION = {**TINY, "image_size": 32, "patch_size": 8}
PICTURES = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32}}  # fmt: skip
PIXELS = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(3))
CAT = torch.tensor([[0, 2, 3, 1, 1, 1]])  # "a cat" by hand: start, words, end, padding


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def clip():
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=16)
    return transformers.CLIPModel(config).eval()


def siglip():
    return transformers.SiglipModel(
        transformers.SiglipConfig(text_config=TEXT, vision_config=VISION)
    ).eval()


def tokenizer():
    """Splits at spaces, and knows six words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel(WORDS, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("<s>", 0), ("</s>", 1)]
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="?",
        model_input_names=["input_ids"],
    )  # fmt: skip


@pytest.fixture(params=[clip, siglip])
def both(request, tmp_path):
    """A repository on disk, and the model in it."""
    whole = request.param()
    tokenizer().save_pretrained(tmp_path)
    return save(tmp_path, whole, PICTURES), whole


def test_a_text_of_transformers_is_what_its_own_tower_makes_of_its_tokens(both):
    folder, whole = both
    model = load_model(f"hf/{folder}")
    close(model.text("a cat"), whole.get_text_features(CAT).pooler_output[0])
    long = model.text("a cat a cat a cat a cat")  # cut off, not refused
    assert long.shape == model.text("a cat").shape


def test_the_scalar_is_the_cosine_between_the_picture_and_the_text(both):
    folder, whole = both
    model = load_model(f"hf/{folder}")
    record = capture_gradients(model, PIXELS, "text:a cat", needs=["plain"])
    x = PIXELS.unsqueeze(0).requires_grad_()
    seen = whole.get_image_features(x).pooler_output[0]
    said = whole.get_text_features(CAT).pooler_output[0].detach()
    (expected,) = torch.autograd.grad(torch.cosine_similarity(seen, said, dim=0), x)
    torch.testing.assert_close(record.input_gradients["plain"], expected[0], rtol=1e-4, atol=1e-6)
    cosine = float(torch.cosine_similarity(seen.detach(), said, dim=0))
    assert record.target == f"the text 'a cat', cosine {cosine:.2f}"


@pytest.mark.parametrize("tower", ["own", "timm"])
def test_a_text_of_open_clip_is_what_encode_text_gives(tower, monkeypatch):
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
    if tower == "timm":
        vision = {"timm_model_name": "test_vit", "timm_pool": "token", "timm_proj": "linear",
                  "image_size": 160}  # fmt: skip
    text = {"context_length": 8, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "tiny", config)
    kept = []
    create = open_clip.create_model
    monkeypatch.setattr(
        open_clip, "create_model", lambda *a, **k: kept.append(create(*a, **k)) or kept[-1]
    )
    model = load_model("open_clip/tiny", weights="random")
    tokens = open_clip.get_tokenizer("tiny")(["a cat"])
    with torch.no_grad():
        close(model.text("a cat"), kept[0].encode_text(tokens)[0])
    pixels = torch.randn(3, model.transform.height, model.transform.width)
    target = capture_gradients(model, pixels, "text:a cat").target
    assert target.startswith("the text 'a cat', cosine ")
    patch = capture_gradients(model, pixels, "patch:9,1").target
    assert patch.startswith("the patch at row 1, column ")


def test_where_there_is_no_tower_for_text_a_sentence_says_where_there_are(tiny_timm, tmp_path):
    with pytest.raises(TargetError, match=r"VisionTransformer has no text tower here.*hf/"):
        capture_gradients(tiny_timm, torch.zeros(3, 64, 64), "text:a cat")
    folder = save(tmp_path, clip(), PICTURES)
    own = load_model(f"hf/{folder}", weights=folder / "model.safetensors")
    with pytest.raises(TargetError, match=r"have one, with the library's own weights"):
        capture_gradients(own, PIXELS, "text:a cat")
    with pytest.raises(TargetError, match="there is no text to compare with"):
        capture_gradients(own, PIXELS, "text: ")


def test_a_vision_tower_without_its_projection_is_not_compared_with_text(tmp_path):
    from vizattn.models.hf_text import text_tower
    from vizattn.models.vision import Request

    tokenizer().save_pretrained(tmp_path)
    whole, request = clip(), Request("hf", str(tmp_path), "random")
    embed = text_tower(transformers, request, whole.config, whole.vision_model)
    with pytest.raises(ModelError, match="without its projection into the space"):
        embed("a cat")
