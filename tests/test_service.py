"""The service, and the canvas's data that is written from it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from samples import dot_image

from vizattn.errors import ImageError, UnknownName
from vizattn.explain import explain
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.viewer import write_view


@pytest.fixture
def model(tiny_timm):
    return wrap_model(tiny_timm, Preprocess(64, 64), name="tiny")


@pytest.fixture
def explanation(model):
    picture = dot_image(128, 64, 60, 30)
    return explain(picture, model=model, settings={"layer": 2, "head": 1}, name="a <b>.png")


def test_the_service_gives_what_the_parts_give(explanation, model):
    from vizattn.capture import capture
    from vizattn.methods import RawAttention

    record = capture(model, dot_image(128, 64, 60, 30))
    heat = RawAttention(layer=1, head=0).heatmap(record)
    torch.testing.assert_close(explanation.heatmap.values, heat.values)
    assert explanation.heatmap.sentence == heat.sentence
    assert explanation.name == "a <b>.png"


def test_progress_is_told_from_start_to_end(model):
    told = []
    explain(dot_image(64, 64, 9, 9), model=model, progress=lambda *step: told.append(step))
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert all(words for _, words in told)


def test_names_are_checked_before_anything_is_opened_or_loaded(tmp_path):
    with pytest.raises(UnknownName, match="no method named 'x'"):
        explain(tmp_path / "gone.jpg", model="timm/none", method="x")
    with pytest.raises(ImageError, match="there is no file"):
        explain(tmp_path / "gone.jpg", model="timm/none")


def test_a_view_holds_every_map_to_three_digits(explanation, tmp_path):
    view = write_view(explanation, tmp_path)
    assert json.loads(json.dumps(view)) == view
    numbers = np.fromfile(view["files"]["maps"], dtype="<f2").astype(np.float64)
    assert len(numbers) == 3 * 2 * 16
    for number, layer in enumerate(view["layers"]):
        assert layer["grid"] == {"rows": 4, "cols": 4, "prefix": ["class"]}
        unit = numbers[layer["offset"] :][: 2 * 16].reshape(2, 16)
        row = explanation.record[number].rows(0)[:, 0]
        maps = unit * np.array(layer["top"])[:, None]
        np.testing.assert_allclose(maps, row[:, 1:], rtol=1e-3, atol=1e-7)
        np.testing.assert_allclose([head[0] for head in layer["prefix_mass"]], row[:, 0], rtol=1e-5)
    assert view["frame"] == {"left": 32.0, "top": 0.0, "width": 64.0, "height": 64.0}
    assert view["input"] == {"width": 64, "height": 64}
    assert view["picture"] == {"name": "a <b>.png", "width": 128, "height": 64}
    assert [layer["query"] for layer in view["layers"]] == [{"kind": "class"}] * 3


def test_two_views_never_share_an_id(explanation, tmp_path):
    first, second = (write_view(explanation, tmp_path / str(i)) for i in range(2))
    assert first["id"] != second["id"]


def test_a_large_picture_travels_small_and_says_its_true_size(model, tmp_path):
    look = explain(Image.new("RGB", (4000, 1000)), model=model)
    view = write_view(look, tmp_path)
    assert (view["picture"]["width"], view["picture"]["height"]) == (4000, 1000)
    with Image.open(view["files"]["picture"]) as sent:
        assert sent.size == (1600, 400)
