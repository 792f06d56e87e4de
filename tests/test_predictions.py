"""The first classes of a model: by hand, and for models that have none."""

import json
from dataclasses import replace

import pytest
import timm
import torch
from samples import command_line, dot_image

from vizattn.capture import capture
from vizattn.explain import explain
from vizattn.export import describe
from vizattn.models import wrap_model
from vizattn.predictions import in_words, predictions_of
from vizattn.preprocess import Preprocess

LABELS = ("tabby, tabby cat", "dog", "rocket", "cup", "face")
LOGITS = torch.tensor([0.0, 2.0, 1.0, -1.0, 2.0]).log1p().nan_to_num(neginf=-9.0)


@pytest.fixture
def model(tiny_timm):
    return wrap_model(tiny_timm, Preprocess(64, 64), labels=LABELS)


@pytest.fixture
def record(model, pixels):
    # softmax of log(1 + x): 1, 3, 2 and 3 parts of 9, and next to nothing
    return replace(capture(model, pixels), output=LOGITS)


def test_the_likeliest_classes_come_first_with_their_share_of_all(model, record):
    found = predictions_of(record, model)
    assert [each.index for each in found] == [1, 4, 2, 0, 3]
    assert [each.name for each in found] == ["dog", "face", "rocket", "tabby", "cup"]
    assert [round(9 * each.probability, 2) for each in found] == [3, 3, 2, 1, 0]
    assert found[2].logit == pytest.approx(0.6931, abs=1e-4)


def test_where_several_may_be_there_each_class_is_a_question_of_its_own(model, record):
    found = predictions_of(record, replace(model, is_multi_label=True), count=2)
    # the sigmoid of log 3 is 3 of 4
    assert [each.probability for each in found] == pytest.approx([0.75, 0.75])


def test_classes_without_names_are_called_by_their_numbers(tiny_timm, record):
    assert predictions_of(record, wrap_model(tiny_timm), count=1)[0].name == "1"


def test_a_model_without_classes_predicts_none(pixels):
    module = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1, num_classes=0)
    model = wrap_model(module.eval())
    assert predictions_of(capture(model, pixels), model) == ()


def test_in_one_line_shares_near_the_ends_are_not_rounded_to_them(model, record):
    said = in_words(predictions_of(record, model))
    assert said == "dog 33 %, face 33 %, rocket 22 %, tabby 11 %, cup < 0.1 %"
    sure = replace(record, output=torch.tensor([0.0, 9.0, 0.0, 0.0, 0.0]))
    assert in_words(predictions_of(sure, model, count=1)) == "dog > 99.9 %"


def test_the_manifest_says_what_was_predicted_and_whether_the_map_is_flat(model):
    explanation = explain(dot_image(64, 64, 9, 9), model=model)
    told = json.loads(json.dumps(describe(explanation)))
    assert told["predictions"][0]["name"] == explanation.predictions[0].name
    assert told["nearly_flat"] == explanation.heatmap.is_nearly_flat


def test_the_command_line_says_the_first_classes_in_a_line(tmp_path):
    dot_image(64, 64, 9, 9).save(tmp_path / "dot.png")
    done = command_line(
        "explain", str(tmp_path / "dot.png"), "--model", "timm/test_vit", "--weights", "random",
        "--format", "json", "-o", str(tmp_path),
    )  # fmt: skip
    line = next(line for line in done.stdout.splitlines() if line.startswith("Top classes: "))
    assert line.count(" %") == 5
    assert line.endswith(" %.")
