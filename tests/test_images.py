import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from vizattn.errors import ImageError
from vizattn.images import open_image


def saved(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_header(width, height):
    """A PNG that announces a size and holds nothing."""
    body = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + body
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
        + struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    )  # fmt: skip


def test_a_camera_held_sideways_gives_an_upright_picture():
    lying = Image.new("RGB", (40, 20))
    lying.putpixel((0, 0), (255, 0, 0))  # orientation 6: this corner belongs at the upper right
    exif = Image.Exif()
    exif[0x112] = 6
    upright = open_image(saved(lying, exif=exif))
    assert upright.size == (20, 40)
    assert upright.getpixel((19, 0)) == (255, 0, 0)


def test_turning_upright_twice_changes_nothing():
    exif = Image.Exif()
    exif[0x112] = 6
    once = open_image(saved(Image.new("RGB", (40, 20)), exif=exif))
    assert open_image(once).size == (20, 40)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr",
                                  "HSV", "LAB", "I", "F", "I;16"])  # fmt: skip
def test_every_mode_becomes_rgb(mode):
    assert open_image(Image.new(mode, (5, 4))).mode == "RGB"


def test_transparent_red_is_white_and_half_transparent_black_is_grey():
    image = Image.new("RGBA", (2, 1))
    image.putpixel((0, 0), (255, 0, 0, 0))
    image.putpixel((1, 0), (0, 0, 0, 128))
    opened = open_image(saved(image))
    assert opened.getpixel((0, 0)) == (255, 255, 255)
    assert opened.getpixel((1, 0)) == (127, 127, 127)


def test_a_palette_with_a_transparent_entry_shows_the_background_there():
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((1, 0), 1)
    opened = open_image(saved(image, transparency=0))
    assert opened.getpixel((0, 0)) == (255, 255, 255)
    assert opened.getpixel((1, 0)) == (0, 255, 0)


def test_sixteen_bits_are_scaled_and_not_cut():
    image = Image.fromarray(np.array([[0, 32768, 65535]], dtype=np.uint16))
    opened = open_image(saved(image))
    assert [opened.getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


def test_floats_in_a_file_are_stretched_over_their_own_range():
    image = Image.fromarray(np.array([[-2.0, 0.0, 2.0]], dtype=np.float32))
    opened = open_image(saved(image, "TIFF"))
    assert [opened.getpixel((x, 0))[0] for x in range(3)] == [0, 128, 255]


def test_of_an_animation_the_first_frame_is_taken():
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    moving = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert open_image(moving).getpixel((0, 0)) == (255, 0, 0)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 3), (3, 4, 4)])
def test_arrays_are_taken_as_bytes_or_as_floats_from_0_to_1(shape):
    ones = np.ones(shape)
    assert open_image(ones).getpixel((0, 0)) == (255, 255, 255)
    assert open_image((ones * 255).astype(np.uint8)).size == (4, 3)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros((3, 8, 8)), r"shape \(3, 8, 8\).*colours in front"),
        (np.full((4, 4), 7.0), "floats from 7 to 7"),
        (np.zeros((4, 4), dtype=np.int64), "array of int64"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(values, said):
    with pytest.raises(ImageError, match=said):
        open_image(values)


def test_a_tiny_file_that_announces_a_huge_picture_is_refused_before_it_is_decoded():
    bomb = png_header(9000, 9000)
    assert len(bomb) < 100
    with pytest.raises(ImageError, match=r"9000×9000 = 81,000,000 pixels; at most 50,000,000"):
        open_image(bomb)


def test_an_even_larger_announcement_is_refused_too():
    with pytest.raises(ImageError, match=r"too many pixels|at most"):
        open_image(png_header(60000, 60000))


def test_the_limit_can_be_moved():
    assert open_image(Image.new("RGB", (10, 10)), max_pixels=100).size == (10, 10)
    with pytest.raises(ImageError, match="at most 99 are read"):
        open_image(Image.new("RGB", (10, 10)), max_pixels=99)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"])
def test_common_kinds_of_file_open(kind, tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(saved(Image.new("RGB", (8, 6), "red"), kind))
    opened = open_image(path)
    assert opened.size == (8, 6)
    assert opened.getpixel((0, 0))[0] > 250


def test_a_file_cut_short_is_a_sentence():
    whole = saved(Image.effect_noise((200, 200), 80).convert("RGB"), "JPEG")
    with pytest.raises(ImageError, match="damaged or cut short"):
        open_image(whole[: len(whole) // 2])


def test_what_is_no_picture_is_a_sentence(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    with pytest.raises(ImageError, match=r"'notes\.txt' is not a picture that can be read here"):
        open_image(path)
    with pytest.raises(ImageError, match=r"there is no file 'gone\.jpg'"):
        open_image(tmp_path / "gone.jpg")
    with pytest.raises(ImageError, match="is a folder"):
        open_image(tmp_path)
    with pytest.raises(ImageError, match="is not a picture"):
        open_image(b"")


def test_opening_leaves_pillows_own_limits_alone():
    before = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    open_image(Image.new("RGB", (4, 4)))
    assert (Image.MAX_IMAGE_PIXELS, warnings.filters) == before
