"""Pictures of digits and the model that reads them."""

import numpy as np
import pytest
import torch
from PIL import Image

import vizattn as va
from vizattn.digits import Scenery, read_scans
from vizattn.errors import ImageError, UnknownName
from vizattn.models import assets

SHEET = assets() / "models" / "digits" / "scans.png"


@pytest.fixture(scope="module")
def scans():
    return read_scans(SHEET)


def test_the_sheet_holds_the_scans_of_scikit_learn(scans):
    from sklearn.datasets import load_digits

    source = load_digits()
    assert scans.digits.tolist() == source.target.tolist()
    assert np.abs(scans.ink.numpy() - source.images / 16).max() <= 0.5 / 255 + 1e-6


def test_splits_share_no_scan_and_leave_none_out(scans):
    sizes = [len(scans.split(name).digits) for name in ("train", "tune", "report")]
    assert sum(sizes) == len(scans.digits) == 1797
    held = torch.cat([scans.split(name).ink for name in ("tune", "report")])
    assert torch.equal(held, scans.split("held-out").ink)
    assert torch.equal(scans.split("train").ink, scans.ink[: sizes[0]])
    with pytest.raises(UnknownName, match="split"):
        scans.split("test")


def test_boxes_hold_the_ink_and_nothing_else_is_as_light(scans):
    random = np.random.default_rng(0)
    scenes = Scenery().scenes(scans, 40, random)
    assert set(scenes.present.sum(1).tolist()) == {2, 3, 4}
    for pixels, boxes in zip(scenes.pixels, scenes.boxes, strict=True):
        outside = torch.ones(96, 96, dtype=torch.bool)
        for left, top, right, bottom in boxes[boxes[:, 0] >= 0].tolist():
            assert 0 <= left < right <= 96
            assert 0 <= top < bottom <= 96
            assert 20 <= right - left == bottom - top <= 26
            assert outside[top:bottom, left:right].all(), "boxes overlap"
            assert pixels[:, top:bottom, left:right].mean(0).max() > 0.75
            outside[top:bottom, left:right] = False
        assert pixels[:, outside].max() <= 0.7 + 1e-6


def test_the_same_seed_makes_the_same_pictures(scans):
    one, two = (Scenery().scenes(scans, 3, np.random.default_rng(5)) for _ in range(2))
    assert torch.equal(one.pixels, two.pixels)
    assert torch.equal(one.boxes, two.boxes)


def test_the_embedded_model_reads_digits_of_writers_it_never_saw(scans):
    model = va.load_model("vizattn/digits")
    assert model.labels == tuple("0123456789")
    assert model.is_multi_label
    scenes = Scenery().scenes(scans.split("held-out"), 200, np.random.default_rng(17))
    pixels = torch.stack([model.transform(scenes.picture(i))[0] for i in range(200)])
    with torch.no_grad():
        right = (model.module(pixels) > 0) == scenes.present
    # 0.99 on thousands; 2,000 labels in pictures of 10 are within 0.01 of it
    assert right.float().mean() > 0.97


def test_a_sheet_without_its_digits_is_refused(tmp_path):
    path = tmp_path / "sheet.png"
    Image.new("L", (16, 8)).save(path)
    with pytest.raises(ImageError, match="2 tiles of 8×8 pixels and 0 digits"):
        read_scans(path)
