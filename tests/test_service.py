"""The service, and the canvas's data that is written from it."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from samples import dot_image

from vizattn.errors import ImageError, MethodError, UnknownName
from vizattn.explain import explain
from vizattn.export import _View, file_stem
from vizattn.gradients import capture_gradients
from vizattn.methods import GAE, METHODS
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.recipe import python_lines
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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_works_through_the_service_with_its_own_target(method, model, tmp_path):
    explanation = explain(dot_image(64, 64, 9, 9), model=model, method=method)
    assert explanation.heatmap.values.isfinite().all()
    if method != "attention-gradcam":  # all heads of this layer speak against its top class
        assert explanation.heatmap.range[0] < explanation.heatmap.range[1]
    view = write_view(explanation, tmp_path)
    assert json.loads(json.dumps(view)) == view


def test_a_target_goes_to_the_gradients_and_into_the_lines_that_make_the_view_again(model):
    picture = dot_image(64, 64, 9, 9)
    explanation = explain(picture, model=model, method="gae", target="3")
    record = capture_gradients(model, picture, 3)
    torch.testing.assert_close(explanation.heatmap.values, GAE().heatmap(record).values)
    assert explanation.heatmap.made["target"] == record.target
    lines = python_lines(explanation)
    assert "record = va.capture_gradients(model, image, '3', needs=('attention',))" in lines
    given = explain(picture, model=model, method="gae", target=torch.randn(5))
    assert "va.capture_gradients(model, image, embedding, needs=" in python_lines(given)


def test_a_target_for_a_method_that_takes_none_is_refused_with_those_that_do(model):
    with pytest.raises(
        MethodError, match=r"so it takes no target\. These do: gae, gradient-rollout"
    ):
        explain(dot_image(64, 64, 9, 9), model=model, method="rollout", target=1)


def test_files_are_named_for_their_target_and_bars_say_percent_for_shares_alone(model):
    picture = dot_image(64, 64, 9, 9)
    about = {"model": model, "name": "dot.png"}
    gae = explain(picture, method="gae", target=3, **about)
    rolled = explain(picture, method="gradient-rollout", **about)
    assert [file_stem(gae), file_stem(rolled)] == ["dot_gae_target-3", "dot_gradient-rollout"]
    assert (_View(gae).look.unit, _View(gae).look.scale) == (
        "Attention × gradient (GAE) per patch",
        1,
    )
    assert (_View(rolled).look.unit, _View(rolled).look.scale) == (
        "Gradient rollout per patch, %",
        100,
    )
