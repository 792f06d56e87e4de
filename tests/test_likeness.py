"""Likeness as a target: to a patch of the same picture and to another picture."""

import pytest
import timm
import torch
from samples import command_line, dot_image, randomised

from vizattn.errors import CaptureError, FrameError, TargetError
from vizattn.explain import explain
from vizattn.export import file_stem
from vizattn.gradients import capture_gradients
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.recipe import python_lines
from vizattn.targets import Compared, asked_by_name, name_of

PICTURE = dot_image(128, 64, 60, 30)  # the model sees its middle: x from 32 to 96


@pytest.fixture
def headless():
    about = {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2}
    module = randomised(timm.create_model("vit_tiny_patch16_224", num_classes=0, **about))
    module.norm.weight.data.normal_()  # as it is made, leaving it out would hardly show
    module.norm.bias.data.normal_()
    return module


@pytest.fixture
def model(headless):
    return wrap_model(headless, Preprocess(64, 64), name="tiny")


def pixel_gradient(scalar, x):
    return torch.autograd.grad(scalar, x)[0][0]


def test_a_patch_is_compared_by_its_output_token_in_pixels_of_the_original(model, headless):
    record = capture_gradients(model, PICTURE, "patch:70,20", needs=["plain"])
    x = model.transform(PICTURE)[0].unsqueeze(0).requires_grad_()
    tokens = headless.forward_features(x)[0]
    token = tokens[1 + 1 * 4 + 2].detach()  # x 70 is 38 into the frame, y 20: row 1, column 2
    expected = pixel_gradient(torch.cosine_similarity(tokens[0], token, dim=0), x)
    torch.testing.assert_close(record.input_gradients["plain"], expected, rtol=1e-4, atol=1e-6)
    cosine = float(torch.cosine_similarity(tokens[0].detach(), token, dim=0))
    assert record.target == f"the patch at row 2, column 3, cosine {cosine:.2f}"


def test_a_projection_is_taken_along(headless):
    headless.head = torch.nn.Linear(32, 7)
    headless.num_classes = 7
    headless.pretrained_cfg = {"architecture": "vit_tiny_clip", "tag": "own", "num_classes": 7}
    model = wrap_model(headless, Preprocess(64, 64))
    record = capture_gradients(model, PICTURE, "patch:70,20", needs=["plain"])
    x = model.transform(PICTURE)[0].unsqueeze(0).requires_grad_()
    tokens = headless.head(headless.forward_features(x)[0])
    token = tokens[7].detach()
    expected = pixel_gradient(torch.cosine_similarity(tokens[0], token, dim=0), x)
    torch.testing.assert_close(record.input_gradients["plain"], expected, rtol=1e-4, atol=1e-6)


def test_a_pooling_head_reads_the_patch_out_alone():
    about = {"img_size": 64, "depth": 2, "embed_dim": 32, "num_heads": 2, "num_classes": 0}
    module = randomised(timm.create_model("vit_base_patch16_siglip_224", **about))
    record = capture_gradients(wrap_model(module, Preprocess(64, 64)), PICTURE, "patch:70,20")
    pixels = Preprocess(64, 64)(PICTURE)[0].unsqueeze(0)
    with torch.no_grad():
        tokens = module.forward_features(pixels)
        alone = module.forward_head(tokens[:, 6:7])[0]  # row 1, column 2, and no class token
        cosine = float(torch.cosine_similarity(module(pixels)[0], alone, dim=0))
    assert record.target == f"the patch at row 2, column 3, cosine {cosine:.2f}"
    assert abs(cosine) > 0.05


def test_another_picture_is_compared_by_its_embedding(model, headless, tmp_path):
    other = dot_image(64, 64, 9, 50)
    other.save(tmp_path / "other.png")
    asked = f"picture:{tmp_path / 'other.png'}"
    given = explain(PICTURE, model=model, method="gae", target=asked)
    with torch.no_grad():
        embedding = headless(model.transform(other)[0].unsqueeze(0))[0]
    same = explain(PICTURE, model=model, method="gae", target=embedding)
    assert torch.equal(given.heatmap.values, same.heatmap.values)
    assert given.record.target.startswith("the picture 'other.png', cosine ")
    assert file_stem(given) == "picture_gae_target-picture-other.png"
    assert "capture_gradients(model, image, 'picture:other.png', needs=" in python_lines(given)


def test_a_model_with_classes_is_asked_for_classes(tiny_timm, tmp_path):
    model = wrap_model(tiny_timm, Preprocess(64, 64))
    PICTURE.save(tmp_path / "dot.png")
    for asked in ("patch:70,40", f"picture:{tmp_path / 'dot.png'}"):
        with pytest.raises(TargetError, match="has classes and gives no embedding to compare"):
            capture_gradients(model, PICTURE, asked)
    with pytest.raises(TargetError, match="has classes and gives no embedding"):
        capture_gradients(model, PICTURE, Compared(torch.ones(5), "five ones", "ones"))


def test_what_is_no_patch_of_the_picture_is_refused(model):
    with pytest.raises(TargetError, match=r"got patch:left; it is patch:X,Y, a pixel"):
        capture_gradients(model, PICTURE, "patch:left")
    with pytest.raises(FrameError, match="did not see x=5"):
        capture_gradients(model, PICTURE, "patch:5,5")


def test_where_it_is_not_known_what_becomes_of_a_patch_the_model_is_named():
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, num_classes=0, depths=(1, 1, 1, 1),
        embed_dim=16, num_heads=(1, 1, 1, 1),
    )  # fmt: skip
    with pytest.raises(CaptureError, match="it is not known how to read SwinTransformer out"):
        capture_gradients(wrap_model(model.eval(), Preprocess(56, 56)), PICTURE, "patch:70,40")


def test_names_are_told_from_classes_by_what_stands_before_the_colon():
    assert asked_by_name("text: a cat: black ") == ("text", "a cat: black")
    assert asked_by_name("tabby: a cat") == asked_by_name(3) == asked_by_name(None) == ("", "")
    assert name_of("picture:/home/me/dog.jpg") == "picture:dog.jpg"
    assert name_of(torch.ones(2)) is None
    assert name_of(Compared(torch.ones(2), "the text 'a'", "text:a")) == "text:a"


def test_of_clip_in_timm_the_projection_is_no_classifier():
    about = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
    pixels, name = torch.randn(3, 32, 32), "vit_base_patch16_clip_224"
    own = timm.create_model(f"{name}.openai", **about).eval()
    assert capture_gradients(own, pixels).target == "the embedding along its own direction"
    tuned = timm.create_model(f"{name}.openai_ft_in1k", **about).eval()
    assert "the top class" in capture_gradients(tuned, pixels).target
    mine = timm.create_model(f"{name}.openai", num_classes=3, **about).eval()
    assert "the top class" in capture_gradients(mine, pixels).target


def test_the_command_line_takes_one_target_of_any_kind(tmp_path):
    PICTURE.save(tmp_path / "dot.png")
    dot_image(64, 64, 9, 50).save(tmp_path / "other.png")
    picture, other, out = (str(tmp_path / name) for name in ("dot.png", "other.png", "out"))
    explained = ("explain", picture, "--size", "56", "--method", "gae", "--format", "json")
    done = command_line(*explained, "--target-image", picture, "-o", out)
    assert "the picture 'dot.png' has the very embedding of this picture" in done.stderr
    done = command_line(*explained, "--target-image", other, "-o", out)
    assert "for the picture 'other.png', cosine 0." in done.stdout, done.stderr
    done = command_line(*explained, "--target-text", "a cat", "--target", "3", "-o", out)
    assert "each name what is explained; give one" in done.stderr
