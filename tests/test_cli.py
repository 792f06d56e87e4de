import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from samples import command_line as run

from vizattn.models import assets

CHELSEA = str(assets() / "examples" / "chelsea.jpg")


def run_alone(*words):
    """In a process of its own, as people do."""
    return subprocess.run(
        [sys.executable, "-m", "vizattn", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        timeout=120,
    )


def test_a_picture_and_numbers_are_written_and_named(tmp_path):
    done = run_alone("explain", CHELSEA, "--layer", "12", "--head", "3", "-o", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Layer 12, head 3: what the class token attends to; " in done.stdout
    written = [line.removeprefix("wrote ") for line in done.stdout.splitlines() if "wrote" in line]
    assert sorted(written) == sorted(str(path) for path in tmp_path.iterdir())
    with Image.open(next(tmp_path.glob("*.png"))) as picture:
        assert picture.size == (451, 300)
    with np.load(next(tmp_path.glob("*.npz"))) as saved:
        assert saved["values"].shape == (25, 37)
        assert saved["values"].sum() + saved["prefix_mass"].sum() == pytest.approx(1, abs=1e-4)


def test_settings_of_a_method_are_flags_of_their_own(tmp_path):
    done = run(
        "explain", CHELSEA, "--method", "rollout", "--residual=0.3", "--start-layer", "2",
        "--at", "225,150", "-o", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Rollout through 10 layers: what the patch at row 13, column 19 draws on" in done.stdout
    assert (
        next(tmp_path.glob("*.png")).name == "chelsea_rollout_residual0.3_start_layer2_r13c19.png"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "gone.jpg"], "vizattn: there is no file 'gone.jpg'."),
        (["explain", CHELSEA, "gone"], "vizattn: there is no file or folder 'gone'."),
        (["explain", CHELSEA, "--method", "rolout"], "Did you mean 'rollout'?"),
        (["explain", CHELSEA, "--residual", "1"], "no setting named 'residual'"),
        (["explain", CHELSEA, "--method", "rollout", "--residual", "2"], "residual is from 0 to 1"),
        (["explain", CHELSEA, "--head", "7"], "there is no head 7 (index 6): there are 6"),
        (["explain", CHELSEA, "--at", "900,10"], "the model did not see x=900"),
        (["explain", CHELSEA, "--model", "vizattn/dino"], "no model named 'vizattn/dino'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_no_traceback(words, said, tmp_path):
    done = run(*words, *(["-o", str(tmp_path)] if words[0] == "explain" else []))
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_in_a_process_of_its_own_an_error_is_a_sentence_and_an_exit_code():
    done = run_alone("explain", "gone.jpg")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == "vizattn: there is no file 'gone.jpg'. Is the path right?"


@pytest.mark.parametrize(
    "words", [["explain", CHELSEA, "--at", "12"], ["explain", CHELSEA, "--residual"]]
)
def test_a_misspelt_command_is_explained(words):
    done = run(*words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_methods_are_listed_with_their_settings():
    from vizattn.methods import METHODS, settings

    listed = run("methods").stdout
    for name, method in METHODS.items():
        assert name in listed
        assert method.paper in listed
        for setting in settings(method):
            assert f"--{setting.name.replace('_', '-')}" in listed


def test_the_version_is_the_packages_own():
    from vizattn import __version__

    assert run("--version").stdout.strip() == f"vizattn {__version__}"


def test_a_class_is_asked_by_index_and_said_by_name(tmp_path):
    done = run(
        "explain", CHELSEA, "--method", "gae", "--target", "281", "--model",
        "timm/vit_tiny_patch16_224", "--weights", "random", "-o", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "GAE through 12 layers for class 'tabby' with logit " in done.stdout
    assert len(list(tmp_path.glob("*gae*.png"))) == 1


def test_a_model_without_classes_is_asked_for_its_embedding_and_has_no_class(tmp_path):
    asked = ("explain", CHELSEA, "--method", "gae", "-o", str(tmp_path))
    done = run(*asked)
    assert done.returncode == 0, done.stderr
    assert "GAE through 12 layers for the embedding along its own direction: " in done.stdout
    done = run(*asked, "--target", "tabby")
    assert done.returncode == 1
    assert "VisionTransformer has no classes: it gives an embedding of 384 numbers" in done.stderr
