"""What is to be explained, as a browser says it: what is read of it, and what is not trusted."""

from __future__ import annotations

import shutil
from importlib import import_module

import pytest
import timm
import torch

from vizattn.errors import ImageError, TargetError
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.ui import aim, run
from vizattn.ui.kept import SHELF

LABELS = ("tabby, tabby cat", "dog", "rocket", "cup", "face")


@pytest.fixture
def uploaded(tmp_path, monkeypatch, photos):
    """File data of a picture where Gradio keeps uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    return {"path": shutil.copy(photos[0], tmp_path), "orig_name": "cat.jpg"}


@pytest.fixture
def named(tiny_timm, monkeypatch):
    """A tiny model with five classes, under the name 'tiny' wherever the page loads models."""
    model = wrap_model(tiny_timm, Preprocess(64, 64), labels=LABELS, name="tiny")
    for room in (aim, import_module("vizattn.explain")):
        monkeypatch.setattr(room, "model_named", lambda _name: model)
    return model


@pytest.mark.parametrize(
    ("choice", "targets"),
    [
        (None, [None]),
        ({"kind": "own"}, [None]),
        ({"kind": "classes", "classes": [3, 1, 3]}, [3, 1]),
        ({"kind": "classes", "classes": [0, 1, 2, 3, 4]}, [0, 1, 2, 3]),
        ({"kind": "patch", "x": 412, "y": 230.25}, ["patch:412,230.25"]),
        ({"kind": "text", "text": " a cat "}, ["text:a cat"]),
    ],
)
def test_a_choice_becomes_targets(choice, targets):
    assert aim.targets_of(choice) == targets


@pytest.mark.parametrize(
    ("choice", "error", "said"),
    [
        ({"kind": "patch"}, TargetError, "no patch has been chosen yet"),
        ({"kind": "text", "text": " "}, TargetError, "there is no text yet"),
        ({"kind": "picture", "file": None}, ImageError, "there is no other picture yet"),
        ({"kind": "classes", "classes": ["picture:/etc/passwd"]}, TargetError, "by their numbers"),
        ({"kind": "classes", "classes": []}, TargetError, "by their numbers"),
        ({"kind": "file"}, TargetError, "has a kind, one of own, classes, patch"),
        (["own"], TargetError, "has a kind, one of own"),
    ],
)
def test_what_is_no_choice_is_a_sentence(choice, error, said):
    with pytest.raises(error, match=said):
        aim.targets_of(choice)


def test_another_picture_is_read_only_from_what_was_uploaded(uploaded, photos):
    file = {"kind": "picture", "file": uploaded}
    assert aim.targets_of(file) == [f"picture:{uploaded['path']}"]
    with pytest.raises(ImageError, match="was not uploaded to this page"):
        aim.targets_of({"kind": "picture", "file": {"path": str(photos[0])}})


def test_a_link_carries_classes_patches_and_texts_and_no_file(uploaded):
    patch = {"kind": "patch", "x": 1, "y": 2, "file": uploaded}
    assert aim.linkable(patch) == {"kind": "patch", "x": 1, "y": 2}
    assert aim.linkable({"kind": "picture", "file": uploaded}) is None
    assert aim.linkable("own") is None


def test_a_model_with_classes_offers_them_with_the_likeliest_first(uploaded, named):
    offered = aim.offer(uploaded, "tiny", None)
    assert (offered["classes"], offered["labels"]) == (5, list(LABELS))
    shares = [share for _, _, share in offered["top"]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert not offered["text"]


def test_a_model_without_classes_offers_none_and_says_whether_it_takes_a_text(
    uploaded, monkeypatch
):
    module = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1, num_classes=0).eval()
    model = wrap_model(module, Preprocess(64, 64), text=lambda _text: torch.ones(192))
    monkeypatch.setattr(aim, "model_named", lambda _name: model)
    assert aim.offer(uploaded, "tiny", None) == {
        "classes": 0, "chosen": [], "top": [], "text": True, "labels": [],
    }  # fmt: skip


def test_several_classes_are_several_views_and_what_was_seen_is_not_looked_at_again(
    uploaded, named, monkeypatch
):
    choice = {"kind": "classes", "classes": [2, 0]}
    steps = list(run.press_run(uploaded, "tiny", "gae", {}, choice, None))
    assert steps[-1][1]["kind"] == "done", steps[-1]
    view = steps[-1][0]
    seen = [view["method"]["target"], *(each["method"]["target"] for each in view["beside"])]
    assert [words.partition(" with")[0] for words in seen] == ["class 'rocket'", "class 'tabby'"]
    assert view["asked"]["target"] == choice
    assert view["answers"]["classes"] == 5
    assert view["answers"]["chosen"] == [[2, "rocket"], [0, "tabby"]]
    assert SHELF.get(view["id"]).payload == view  # what a link to it brings
    monkeypatch.setattr(aim, "capture", None)  # would fail if it were called
    assert aim.offer(None, "tiny", view["id"])["labels"] == list(LABELS)


def test_a_view_of_another_model_is_no_answer(uploaded, named, monkeypatch):
    view = list(run.press_run(uploaded, "tiny", "raw", {}, None, None))[-1][0]
    looked = []
    capture = aim.capture
    monkeypatch.setattr(aim, "capture", lambda *what: looked.append(1) or capture(*what))
    aim.offer(uploaded, "tiny", view["id"])
    assert not looked
    aim.offer(uploaded, "another", view["id"])
    assert looked


def test_an_error_is_what_the_control_says(uploaded):
    said = run.open_target(uploaded, "nowhere/nothing", None, None)
    assert "no model named 'nowhere/nothing'" in said["known"]["error"]
    assert "there is no picture yet" in run.open_target(None, "x", None, None)["known"]["error"]
