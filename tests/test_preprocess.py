import numpy as np
import pytest
import torch
from PIL import Image
from samples import dot_image
from timm.data import create_transform

from vizattn.errors import ImageError
from vizattn.frame import Frame
from vizattn.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess

SIZES = [(451, 300), (300, 451), (512, 512), (100, 400), (37, 29), (1000, 999)]


def noise(width, height):
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("height", "width", "crop_pct", "crop_mode", "interpolation"),
    [
        (224, 224, 0.875, "center", "bicubic"),
        (224, 224, 0.9, "center", "bilinear"),
        (224, 224, 1.0, "center", "bicubic"),
        (384, 384, 0.95, "squash", "bicubic"),
        (192, 256, 0.9, "center", "bicubic"),
        (256, 192, 1.0, "squash", "bilinear"),
    ],
)
def test_pixels_are_those_of_timms_own_transform(
    size, height, width, crop_pct, crop_mode, interpolation
):
    image = noise(*size)
    oracle = create_transform(
        (3, height, width), crop_pct=crop_pct, crop_mode=crop_mode, interpolation=interpolation,
        mean=IMAGENET_MEAN, std=IMAGENET_STD,
    )  # fmt: skip
    mode = "squash" if crop_mode == "squash" else "crop"
    ours = Preprocess(height, width, interpolation=interpolation, mode=mode, crop_pct=crop_pct)
    pixels, _ = ours(image)
    torch.testing.assert_close(pixels, oracle(image), rtol=0, atol=1e-6)


def test_the_frame_of_a_centre_crop_is_the_middle_of_a_wide_picture():
    _, frame = Preprocess(224, 224, crop_pct=1.0)(noise(400, 200))
    torch.testing.assert_close(
        torch.tensor([frame.left, frame.top, frame.width, frame.height]),
        torch.tensor([100.0, 0.0, 200.0, 200.0]),
    )


def test_a_crop_of_nine_tenths_leaves_a_twentieth_out_on_each_side():
    _, frame = Preprocess(90, 90, crop_pct=0.9)(noise(200, 200))
    torch.testing.assert_close(
        torch.tensor([frame.left, frame.top, frame.width, frame.height]),
        torch.tensor([10.0, 10.0, 180.0, 180.0]),
    )


@pytest.mark.parametrize("size", SIZES)
def test_fitting_crops_nothing_and_gives_whole_patches(size):
    pixels, frame = Preprocess(518, 518, mode="fit", multiple=14)(noise(*size))
    assert frame == Frame(0, 0, *size)
    height, width = pixels.shape[1:]
    assert height % 14 == width % 14 == 0
    assert max(height, width) == 518
    scale = 518 / max(size)
    assert abs(width - size[0] * scale) <= 7.5
    assert abs(height - size[1] * scale) <= 7.5


def test_the_cat_of_451_by_300_pixels_becomes_518_by_350():
    pixels, _ = Preprocess(518, 518, mode="fit", multiple=14)(noise(451, 300))
    assert pixels.shape == (3, 350, 518)


def test_a_very_long_picture_still_has_one_row_of_patches():
    pixels, _ = Preprocess(518, 518, mode="fit", multiple=14)(noise(2000, 10))
    assert pixels.shape == (3, 14, 518)


@pytest.mark.parametrize(
    "transform",
    [
        Preprocess(224, 224, crop_pct=0.875),
        Preprocess(224, 224, mode="squash"),
        Preprocess(224, 224, mode="fit", multiple=14),
        Preprocess(192, 256, crop_pct=0.9),
    ],
)
@pytest.mark.parametrize("size", [(640, 400), (400, 640), (500, 500)])
@pytest.mark.parametrize("where", [(0.4, 0.45), (0.55, 0.6), (0.5, 0.35)])
def test_a_bright_dot_is_found_where_it_is_on_the_original(transform, size, where):
    x, y = int(where[0] * size[0]), int(where[1] * size[1])
    pixels, frame = transform(dot_image(*size, x, y))
    light = pixels.mean(0)
    rows, cols = light.shape
    hottest = int(light.argmax())
    box = frame.patch_box(hottest // cols, hottest % cols, rows, cols)
    middle = box.left + box.width / 2, box.top + box.height / 2
    assert abs(middle[0] - (x + 0.5)) <= 7  # within the dot itself, 13 pixels wide
    assert abs(middle[1] - (y + 0.5)) <= 7


def test_a_picture_that_is_not_rgb_is_refused():
    with pytest.raises(ImageError, match="mode 'L'; open_image"):
        Preprocess(32, 32)(Image.new("L", (8, 8)))
