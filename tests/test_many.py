"""Many pictures: which are meant, what is written, and what happens when it stops half-way."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from samples import dot_image

from vizattn import export
from vizattn.errors import ImageError, MethodError, OutOfRange, VizattnError
from vizattn.explain import explain, recipe_of
from vizattn.frame import Frame
from vizattn.many.prepare import Failed, Prepared, batches, in_groups, read_ahead
from vizattn.many.run import Asked, explain_many
from vizattn.many.sources import Source, are_many, find_sources
from vizattn.methods import RawAttention
from vizattn.models import assets, wrap_model
from vizattn.preprocess import Preprocess

# In three sizes, of which the model makes three, and in sub-folders.
TREE = {"a.png": (96, 64), "sub/a.png": (64, 96), "sub/deep/b.png": (64, 64), "c.png": (96, 64)}


@pytest.fixture
def folder(tmp_path):
    for number, (name, size) in enumerate(TREE.items()):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        dot_image(*size, 20 + 5 * number, 30).save(path)
    return tmp_path / "in"


@pytest.fixture
def asked(tiny_timm):
    preprocess = Preprocess(64, 64, mode="fit", multiple=16)
    return Asked(wrap_model(tiny_timm, preprocess, name="tiny"), RawAttention())


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# --- which pictures -----------------------------------------------------------------------------


def test_a_folder_is_searched_and_names_keep_its_sub_folders(folder):
    (folder / "notes.txt").write_text("no picture")
    (folder / "._a.png").write_bytes(b"what a Mac leaves behind")
    assert [source.name for source in find_sources([str(folder)])] == sorted(TREE)


def test_patterns_start_names_where_they_turn_wild(folder):
    found = find_sources([str(folder / "sub" / "**" / "*.png")])
    assert [source.name for source in found] == ["a.png", "deep/b.png"]


def test_several_words_start_names_at_what_they_have_in_common(folder):
    words = [str(folder / "a.png"), str(folder / "sub"), str(folder / "sub" / "a.png")]
    names = [source.name for source in find_sources(words)]
    assert names == ["a.png", "sub/a.png", "sub/deep/b.png"]


def test_no_two_pictures_of_a_folder_share_the_name_of_a_file(tmp_path):
    for name in ("a.png", "a.jpg", "A.PNG", "a b.png", "a-b.png", "é.png", "x/a.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    found = {source.name: source.stem for source in find_sources([str(tmp_path)])}
    assert found == {
        "A.PNG": "A.PNG", "a.jpg": "a.jpg", "a.png": "a.png-2", "a b.png": "a-b.png",
        "a-b.png": "a-b.png-2", "é.png": "é", "x/a.png": "a",
    }  # fmt: skip


def test_one_file_is_no_many(folder):
    assert not are_many([str(folder / "a.png")])
    assert are_many([str(folder)])
    assert are_many([str(folder / "*.png")])
    assert are_many(["a.png", "b.png"])


@pytest.mark.parametrize(
    ("word", "said"), [("gone", "no file or folder 'gone'"), ("*.tif", "there is no picture in")]
)
def test_what_is_not_there_is_said(word, said):
    with pytest.raises(ImageError, match=said):
        find_sources([word])


# --- reading ahead ------------------------------------------------------------------------------


def test_what_is_read_ahead_comes_in_its_order():
    def slow_first(number):
        time.sleep(0.02 if number == 0 else 0)
        return number * number

    assert list(read_ahead(range(9), slow_first, 3)) == [n * n for n in range(9)]


def test_no_more_is_read_ahead_than_is_wanted_soon():
    taken = []
    results = read_ahead((taken.append(n) or n for n in range(100)), lambda n: n, 2)
    next(results)
    assert len(taken) <= 5
    results.close()


def test_groups_are_as_long_as_their_first_says():
    assert list(in_groups(range(7), lambda first: 3)) == [[0, 1, 2], [3, 4, 5], [6]]


def ready(number, side):
    image = Image.new("RGB", (side, side))
    return Prepared(named(number), image, torch.zeros(3, side, side), Frame(0, 0, side, side))


def named(number):
    return Source(Path(f"{number}.png"), f"{number}.png", str(number))


def test_a_batch_is_of_one_size_and_a_failure_comes_at_once():
    pictures = [
        ready(0, 16),
        ready(1, 32),
        Failed(named(2), ValueError()),
        ready(3, 16),
        ready(4, 32),
    ]
    found = list(batches([*pictures, ready(5, 16)], 2))
    assert isinstance(found[0], Failed)
    numbers = [[picture.source.stem for picture in batch] for batch in found[1:]]
    assert numbers == [["0", "3"], ["1", "4"], ["5"]]


def test_pictures_that_are_all_of_different_sizes_do_not_pile_up():
    waiting = 0
    pictures = [ready(number, 16 + number) for number in range(50)]
    most = 0

    def watched():
        nonlocal waiting, most
        for picture in pictures:
            waiting += 1
            most = max(most, waiting)
            yield picture

    for batch in batches(watched(), 4):
        waiting -= len(batch)
    assert waiting == 0
    assert most <= 16


# --- what is written ----------------------------------------------------------------------------


def test_every_picture_gets_the_files_that_it_gets_alone(folder, asked, tmp_path):
    outcome = explain_many(find_sources([str(folder)]), tmp_path / "out", asked)
    assert (outcome.written, outcome.skipped, outcome.failed) == (4, 0, ())
    stems = ["a_raw", "c_raw", "sub/a_raw", "sub/deep/b_raw"]
    expected = [f"{stem}.{kind}" for stem in stems for kind in ("npz", "png")]
    assert files(tmp_path / "out") == sorted([*expected, "vizattn.jsonl"])
    for name in TREE:
        alone = explain(folder / name, model=asked.model)
        with np.load(tmp_path / "out" / f"{name[:-4]}_raw.npz") as saved:
            np.testing.assert_allclose(saved["values"], alone.heatmap.values, atol=1e-5)
            assert json.loads(str(saved["manifest"]))["picture"] == name
        with Image.open(tmp_path / "out" / f"{name[:-4]}_raw.png") as drawn:
            assert drawn.size == TREE[name]


def test_films_and_figures_of_many_have_their_layers(folder, asked, tmp_path):
    sources = find_sources([str(folder / "c.png")])
    explain_many(sources, tmp_path / "out", Asked(asked.model, asked.method, formats=("gif",)))
    with Image.open(tmp_path / "out" / "c_raw.gif") as film:
        assert film.n_frames == 3


def test_what_is_there_is_not_done_again(folder, asked, tmp_path):
    out = tmp_path / "out"
    sources = find_sources([str(folder)])
    done = []

    def run(asked=asked, **how):
        done.clear()
        outcome = explain_many(find_sources([str(folder)]), out, asked, progress=done.append, **how)
        assert outcome.written + outcome.skipped == len(sources)
        return outcome.written

    assert run() == 4
    assert run() == 0
    assert done == [4]
    assert run(again=True) == 4
    (out / "sub" / "a_raw.png").unlink()
    assert run() == 1
    dot_image(96, 64, 1, 1).save(folder / "c.png")  # another picture of the same name
    assert run() == 1
    rollout = Asked(asked.model, recipe_of("rollout", {}))
    assert run(rollout) == 4
    assert run() == 0  # both stand beside each other
    darker = Asked(asked.model, asked.method, overlay={"opacity": 0.2})  # over the same names
    assert run(darker) == 4
    assert run() == 4


def test_a_journal_that_was_cut_short_loses_one_picture_and_no_more(folder, asked, tmp_path):
    sources = find_sources([str(folder)])
    explain_many(sources, tmp_path, asked)
    journal = tmp_path / "vizattn.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])
    assert explain_many(sources, tmp_path, asked).written == 1
    assert explain_many(sources, tmp_path, asked).written == 0


def test_a_bad_file_stops_nothing_and_is_listed_with_its_sentence(folder, asked, tmp_path):
    (folder / "bad.png").write_bytes(b"not a picture")
    (folder / "cut.png").write_bytes((folder / "a.png").read_bytes()[:80])
    outcome = explain_many(find_sources([str(folder)]), tmp_path / "out", asked)
    assert outcome.written == 4
    assert [failed.source.name for failed in outcome.failed] == ["bad.png", "cut.png"]
    assert "is not a picture that can be read here" in outcome.failed[0].sentence


def test_a_pixel_that_one_picture_lacks_is_that_pictures_failure(folder, asked, tmp_path):
    there = Asked(asked.model, asked.method, at=(80, 10))  # beyond the narrow ones
    outcome = explain_many(find_sources([str(folder)]), tmp_path / "out", there)
    assert outcome.written == 2
    assert all("did not see x=80" in failed.sentence for failed in outcome.failed)


def test_what_can_be_done_on_no_picture_is_said_once_and_nothing_written(folder, asked, tmp_path):
    nobody = Asked(asked.model, RawAttention(head=7))
    with pytest.raises(OutOfRange, match="no head 8"):
        explain_many(find_sources([str(folder)]), tmp_path / "out", nobody)
    assert files(tmp_path / "out") == []
    odd = Asked(asked.model, asked.method, overlay={"opacity": 3})
    with pytest.raises(MethodError, match="opacity"):
        explain_many(find_sources([str(folder)]), tmp_path / "out", odd)
    assert files(tmp_path / "out") == []


def test_a_model_that_fails_on_one_picture_still_sees_the_others_of_its_batch(
    folder, asked, tmp_path
):
    def refuse(_module, args):
        if (args[0].amax((1, 2, 3)) < 0).any():
            raise RuntimeError("too dark")

    Image.new("RGB", (96, 64)).save(folder / "black.png")
    hook = asked.model.module.register_forward_pre_hook(refuse)
    outcome = explain_many(find_sources([str(folder)]), tmp_path / "out", asked, batch=8)
    hook.remove()
    assert outcome.written == 4
    assert [failed.sentence for failed in outcome.failed] == ["RuntimeError: too dark"]


def test_a_file_is_there_when_it_is_whole(asked, tmp_path, monkeypatch):
    explanation = explain(dot_image(64, 64, 9, 9), model=asked.model)

    def fail_half_way(_view, path):
        path.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setitem(export.FORMATS, "npz", fail_half_way)
    with pytest.raises(KeyboardInterrupt):
        export.save_explanation(explanation, tmp_path, formats=("png", "npz"))
    assert files(tmp_path) == ["picture_raw.png"]


def test_a_folder_that_cannot_be_written_to_is_said_in_words(folder, asked, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sub").write_text("in the way")
    sources = find_sources([str(folder / "sub" / "a.png")])
    sources = [type(each)(each.path, "sub/a.png", each.stem) for each in sources]
    with pytest.raises(VizattnError, match=r"sub/a\.png cannot be written to"):
        explain_many(sources, tmp_path / "out", asked)


# --- on the command line ------------------------------------------------------------------------


def command(*words):
    return [sys.executable, "-m", "vizattn", "explain", *map(str, words)]


def test_a_folder_on_the_command_line_beside_its_own_output(tmp_path):
    for number in range(3):
        dot_image(60, 60, 20, 10 + number).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.jpg").write_text("no")
    words = command(tmp_path, "-o", tmp_path, "--size", "56", "--method", "rollout", "--residual",
                    "0.6", "--format", "png")  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "wrote 3 to" in done.stdout
    assert "vizattn: bad.jpg: 'bad.jpg' is not a picture" in done.stderr
    assert "1 of 4 could not be looked at" in done.stderr
    again = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "3 were there already; --again does them again." in again.stdout
    assert len(list(tmp_path.glob("*_rollout_residual0.6.png"))) == 3
    assert len(list(tmp_path.glob("*.png"))) == 6


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_control_c_leaves_whole_files_and_the_same_command_goes_on(tmp_path):
    photo = Image.open(assets() / "examples" / "chelsea.jpg").resize((600, 400))
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(60):
        photo.rotate(number).save(source / f"{number:02}.jpg")
    words = command(source, "-o", out, "--size", "112", "--batch", "2")
    started = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a shell has what it runs in the background ignore the signal, and that is inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(list(out.glob("*.npz"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    started.send_signal(signal.SIGINT)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 130, said
    assert "the same command goes on from here" in said
    written = [path for path in out.iterdir() if path.suffix != ".jsonl"]
    assert 3 <= len(written) < 120
    for path in written:
        assert not path.name.startswith(".")
        if path.suffix == ".npz":
            np.load(path)["values"]
        else:
            Image.open(path).load()
