"""A run without a browser: what is said while it lasts, and what when it fails."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture
def uploaded(tmp_path, monkeypatch, photos):
    """File data of a picture where Gradio keeps uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    path = shutil.copy(photos[0], tmp_path)
    return {"path": str(path), "orig_name": "cat.jpg", "meta": {"_type": "gradio.FileData"}}


def press(picture, model="vizattn/dinov2-small", method="raw", settings=None, target=None):
    from vizattn.ui.run import press_run

    return [said for _, said in press_run(picture, model, method, settings, target, None)]


def test_the_steps_of_a_run_are_said_while_it_lasts(uploaded):
    said = press(uploaded)
    assert [step["kind"] for step in said] == ["running"] * (len(said) - 1) + ["done"]
    assert said[0]["text"] == "Opening the picture"
    assert len({step["run"] for step in said}) == 1


def test_a_run_without_a_picture_says_what_to_do():
    assert press(None)[-1]["text"] == "there is no picture yet. Choose an example or upload one."


def test_a_file_that_was_not_uploaded_is_not_read(uploaded, photos):
    said = press(uploaded | {"path": str(photos[0])})[-1]
    assert said["text"] == "this picture was not uploaded to this page. Upload it and run again."


def test_a_fault_of_ours_is_a_sentence_and_goes_to_the_log(uploaded, monkeypatch, caplog):
    def fault(*_, **__):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("vizattn.ui.run.explain", fault)
    said = press(uploaded)[-1]
    assert said["kind"] == "error"
    assert said["text"].startswith("Something went wrong inside vizattn (ZeroDivisionError).")
    assert "secret detail" not in said["text"]
    assert "secret detail" in caplog.text


def test_an_emptied_model_field_is_a_sentence(uploaded):
    assert "no model named ''" in press(uploaded, model=None)[-1]["text"]


@pytest.mark.parametrize("settings", ["residual", [1, 2]])
def test_settings_of_a_program_have_to_be_names_with_values(uploaded, settings):
    import gradio as gr

    from vizattn.ui.run import explain_for_programs

    with pytest.raises(gr.Error, match="settings are names with values"):
        explain_for_programs(uploaded, "vizattn/dinov2-small", "raw", settings)


def test_the_first_example_is_awake_before_anybody_asks(tmp_path, monkeypatch):
    from vizattn.ui import first
    from vizattn.ui.kept import Shelf

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(first, "SHELF", Shelf())
    first.look_ahead()
    kept = first.SHELF.get(first.ID)
    assert kept is not None
    assert [layer["name"] for layer in kept.payload["layers"]] == [
        layer.name for layer in kept.view.record
    ]


def test_an_example_that_cannot_be_looked_at_ahead_is_a_line_in_the_log(monkeypatch, caplog):
    from vizattn.ui import first

    def broken(*_, **__):
        raise RuntimeError("no memory left")

    monkeypatch.setattr(first, "revive", broken)
    first.look_ahead()
    assert "no memory left" in caplog.text
