"""Surveys: numbers against dense float64, merging as a law, and what stopping half-way loses."""

import json
import math
import sys
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from samples import command_line, dense, dot_image, randomised
from test_statistics import looking, whole_matrix

from vizattn import attention
from vizattn.capture import capture
from vizattn.errors import MissingPackage, SurveyError, UnknownName
from vizattn.grid import TokenGrid
from vizattn.layers import DenseAttention
from vizattn.many.sources import find_sources
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.record import AttentionRecord
from vizattn.survey import numbers, run
from vizattn.survey.figures import _even, _readable_on, plot_distance, plot_entropy
from vizattn.survey.look import Asked, Surveyor, fingerprint
from vizattn.survey.moments import Moments
from vizattn.survey.notes import LayerNote, together
from vizattn.survey.numbers import NUMBERS, picture_numbers
from vizattn.survey.parts import read_parts, remove_unfinished
from vizattn.survey.run import survey
from vizattn.survey.summary import summarise

# --- numbers of one picture ---------------------------------------------------------------------


def cosines(matrix):
    """Mean cosine of the rows of each two heads, row by row."""
    n_heads = len(matrix)
    found = np.zeros((n_heads, n_heads))
    for one in range(n_heads):
        for two in range(n_heads):
            found[one, two] = np.mean([
                float(a @ b / (a.norm() * b.norm()))
                for a, b in zip(matrix[one], matrix[two], strict=True)
            ])  # fmt: skip
    return found


def close(ours, expected):
    np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-6)


def test_every_number_is_what_dense_float64_gives(record, monkeypatch):
    monkeypatch.setattr(numbers, "SINK", 1.5)
    found = picture_numbers(record)
    assert np.isfinite(found.numbers["mass_sink"]).all()
    n_sinks = 0
    for index, layer in enumerate(record):
        matrix = dense(layer)
        row = {name: values[index] for name, values in found.numbers.items()}
        bits = -(matrix * matrix.log2()).sum(-1)
        close(row["mean_entropy"], bits.mean(-1))
        close(row["query_entropy"], bits[:, 0])
        close(row["mass_class"], matrix[:, :, 0].mean(-1))
        close(row["query_mass_class"], matrix[:, 0, 0])
        drawn = matrix.mean(1)
        are_sinks = drawn[:, 1:] >= 1.5 / 17
        close(row["n_sinks"], are_sinks.sum(-1))
        close(row["mass_sink"], (drawn[:, 1:] * are_sinks).sum(-1))
        close(row["input_distance"], row["distance"] * 16)
        alike = cosines(matrix)
        close(found.likeness[index], alike)
        close(row["similarity"], [alike[0, 1], alike[1, 0]])
        n_sinks += int(are_sinks.sum())
    assert n_sinks > 0


def test_heads_of_windows_are_compared_where_they_lie():
    import timm

    swin = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=(56, 112), window_size=7, depths=(2, 2),
        num_heads=(2, 4), embed_dim=16, num_classes=0,
    )  # fmt: skip
    record = capture(randomised(swin), torch.randn(3, 56, 112))
    found = picture_numbers(record)
    for index, layer in enumerate(record):
        heads = slice(layer.n_heads)
        close(found.likeness[index, heads, heads], cosines(whole_matrix(layer)))
        assert np.isnan(found.likeness[index, layer.n_heads :]).all()
    assert [note.patch for note in found.layers] == [4, 4, 8, 8]
    assert [note.n_seen for note in found.layers] == [49] * 4


def test_the_length_of_a_tile_changes_nothing(record, monkeypatch):
    whole = picture_numbers(record)
    monkeypatch.setattr(attention, "TILE_FLOATS", 100)  # two rows at a time
    close(picture_numbers(record).likeness, whole.likeness)


def test_a_patch_that_draws_ten_times_the_average_is_a_sink_and_a_class_token_never_is():
    grid = TokenGrid(5, 5, prefix=1)
    weights = torch.zeros(2, 26, 26)
    weights[0, :, 7] = 10.1 / 26
    weights[0, :, 8] = 15.9 / 26
    weights[1, :, 0] = 0.7
    weights[1, :, 7] = 9.9 / 26
    found = picture_numbers(looking(weights.double(), grid)).numbers
    assert found["n_sinks"].tolist() == [[2, 0]]
    close(found["mass_sink"], [[1, 0]])
    close(found["mass_class"], [[0, 0.7 / (0.7 + 9.9 / 26)]])


def test_heads_that_share_no_key_are_not_alike_and_rows_without_attention_are_left_out():
    one, other = torch.eye(3), torch.eye(3)[[1, 2, 0]]
    mixed = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 1, 0]])
    found = picture_numbers(looking(torch.stack([one, other, mixed]), TokenGrid(1, 3)))
    close(found.likeness[0], [[1, 0, 0.5], [0, 1, 0], [0.5, 0, 1]])
    close(found.numbers["similarity"], [[0.25, 0, 0.25]])


def test_what_is_not_defined_is_blank_and_says_why():
    import timm

    cait = timm.create_model(
        "cait_xxs24_224", img_size=64, embed_dim=32, depth=1, num_heads=2, num_classes=0
    )
    record = capture(randomised(cait), torch.randn(3, 64, 64))
    blind = DenseAttention(
        "odd", "channel", None, None, "it attends among channels", True,
        torch.eye(3).unsqueeze(0),
    )  # fmt: skip
    record = AttentionRecord((*record.layers, blind), record.frame, record.input_size)
    found = picture_numbers(record)
    *_, last, odd = found.layers
    assert last.blank["distance"] == "no patch asks"
    assert last.blank["mass_register"] == "there is no register token among its keys"
    assert odd.blank == dict.fromkeys(NUMBERS, "it attends among channels")
    assert np.isnan(found.numbers["input_distance"][-2]).all()
    for index, note in enumerate(found.layers):
        blank = {name for name in NUMBERS if np.isnan(found.numbers[name][index]).all()}
        assert blank == set(note.blank), note.name
    alone = picture_numbers(looking(torch.eye(4)[[3, 2, 1, 0]].unsqueeze(0), TokenGrid(2, 2)))
    assert alone.layers[0].blank["similarity"] == "it has one head"
    squashed = looking(torch.eye(2).unsqueeze(0), TokenGrid(1, 2))
    squashed = AttentionRecord(squashed.layers, squashed.frame, (20, 10))
    note = picture_numbers(squashed).layers[0]
    assert note.blank["input_distance"] == "its patches are not square in the model's input"


def test_what_is_known_of_a_layer_is_the_same_whichever_picture_comes_first():
    notes = [
        [LayerNote("a", "window", 2, (2, 3), 8.0, 4, {"distance": "why", "sink": "b"}).plain()],
        [LayerNote("a", "self", 2, (4, 3), 8.0, 12, {"similarity": "for", "sink": "a"}).plain()],
        [LayerNote("a", "self", 2).plain()],
    ]
    (layer,) = together(notes)
    assert all((layer,) == together(order) for order in permutations(notes))
    assert layer == {
        "name": "a", "n_heads": 2, "kinds": ["self", "window"], "grids": [[2, 3], [4, 3]],
        "patches": [8.0], "n_seen": [4, 12],
        "blank": {"distance": "why", "similarity": "for", "sink": "a"},
    }  # fmt: skip


# --- merging ------------------------------------------------------------------------------------

NUMBER = st.one_of(st.just(math.nan), st.floats(-1e3, 1e3, width=32))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.tuples(NUMBER, NUMBER), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
)
def test_any_split_of_pictures_has_the_same_mean_and_spread(values, cuts):
    values = np.array(values)
    edges = sorted({0, *(cut for cut in cuts if cut < len(values))})
    parts = [Moments.of(values[a:b]) for a, b in pairwise([*edges, len(values)])]
    merged = sum(parts[1:], parts[0])
    for column in range(2):
        numbers = values[:, column][~np.isnan(values[:, column])]
        assert merged.count[column] == len(numbers)
        if len(numbers):
            assert merged.mean[column] == pytest.approx(numbers.mean(), rel=1e-9, abs=1e-9)
        if len(numbers) > 1:
            expected = np.std(numbers, ddof=1)
            assert merged.deviation[column] == pytest.approx(expected, rel=1e-6, abs=1e-6)
        else:
            assert np.isnan(merged.deviation[column])


def test_a_small_spread_around_a_large_mean_is_not_lost():
    values = 1e9 + np.arange(10.0).reshape(-1, 1)
    merged = sum((Moments.of(values[k : k + 1]) for k in range(1, 10)), Moments.of(values[:1]))
    assert merged.deviation[0] == pytest.approx(np.std(np.arange(10), ddof=1))


def test_moments_are_read_as_they_were_written():
    moments = Moments.of(np.random.default_rng(0).normal(size=(5, 2, 3)))
    again = Moments.read(json.loads(json.dumps(moments.plain())))
    assert (again.mean == moments.mean).all()
    assert (again.squares == moments.squares).all()


# --- a survey -----------------------------------------------------------------------------------

NAMES = ["a.png", "b.png", "sub/a.png", "sub/c.png", "d.png"]


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(NAMES):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size = (96, 64) if number % 2 else (64, 64)
        dot_image(*size, 10 + 9 * number, 30).save(path)
    return tmp_path / "in"


@pytest.fixture
def asked(tiny_timm):
    preprocess = Preprocess(64, 64, mode="fit", multiple=16)
    return Asked(wrap_model(tiny_timm, preprocess, name="tiny"))


@pytest.fixture
def looked(asked, monkeypatch):
    """Names of the pictures that were looked at, as often as they were."""
    names = []
    seen = Surveyor._seen

    def noted(self, picture, record, state):
        names.append(picture.source.name)
        return seen(self, picture, record, state)

    monkeypatch.setattr(Surveyor, "_seen", noted)
    return names


def rows_of(out):
    from pyarrow import dataset

    return dataset.dataset(sorted(out.glob("pictures-*.parquet"))).to_table().to_pandas()


def plain(out):
    return json.loads((out / "survey.json").read_text())


def is_same_survey(one, other):
    """All but the last digits, which batches of another size round in another order."""
    ours, theirs = plain(one), plain(other)
    assert {**ours, "numbers": 0} == {**theirs, "numbers": 0}
    for name, number in ours["numbers"].items():
        for key in ("count", "mean", "deviation"):
            pair = (np.ravel(each[key]).astype(float) for each in (number, theirs["numbers"][name]))
            np.testing.assert_allclose(*pair, rtol=1e-4, atol=1e-5, err_msg=f"{name} {key}")


def test_rows_and_means_are_those_of_each_picture_alone(folder, asked, tmp_path):
    out = tmp_path / "out"
    outcome = survey(find_sources([str(folder)]), out, asked)
    assert (outcome.looked_at, outcome.skipped, outcome.failed) == (5, 0, ())
    rows = rows_of(out).sort_values(["picture", "layer", "head"])
    assert len(rows) == 5 * 3 * 2
    alone = {
        name: picture_numbers(capture(asked.model, Image.open(folder / name))) for name in NAMES
    }
    for name in NUMBERS:
        expected = np.stack([alone[each].numbers[name] for each in sorted(NAMES)])
        found = rows[name].to_numpy(float).reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=name)
        number = plain(out)["numbers"][name]
        if np.isnan(expected).all():
            assert set(np.ravel(number["count"])) == {0}
            assert set(np.ravel(number["mean"])) == {None}
            continue
        np.testing.assert_allclose(number["mean"], expected.mean(0), rtol=1e-5, atol=1e-6)
        spread = expected.std(0, ddof=1)
        np.testing.assert_allclose(number["deviation"], spread, rtol=1e-3, atol=1e-6)
    likeness = np.stack([alone[each].likeness for each in sorted(NAMES)])
    kept = np.stack(rows["likeness"].to_numpy()).reshape(likeness.shape)
    np.testing.assert_allclose(kept, likeness, rtol=1e-5)
    assert list(rows["module"].unique()) == [f"blocks.{n}.attn" for n in range(3)]
    assert plain(out)["input_sizes"] == {"64×64": 3, "48×64": 2}
    assert list(rows["layer"].unique()) == [1, 2, 3]
    assert list(rows["head"].unique()) == [1, 2]
    assert plain(out)["layers"][0] == {
        "layer": 1, "name": "blocks.0.attn", "n_heads": 2, "kinds": ["self"],
        "grids": [[3, 4], [4, 4]], "patches": [16.0], "n_seen": [13, 17],
        "blank": dict.fromkeys(["mass_register", "query_mass_register"],
                               "there is no register token among its keys"),
    }  # fmt: skip


def test_how_pictures_are_cut_into_parts_changes_no_number(folder, asked, tmp_path, monkeypatch):
    sources = find_sources([str(folder)])
    survey(sources, tmp_path / "one", asked)
    monkeypatch.setattr(run, "PART", 2)
    survey(sources, tmp_path / "three", asked)
    assert len(list(read_parts(tmp_path / "three"))) == 3
    is_same_survey(tmp_path / "one", tmp_path / "three")


@pytest.mark.parametrize("n_done", [1, 3])
def test_what_was_seen_when_it_stopped_is_kept_and_nothing_is_looked_at_twice(
    folder, asked, looked, tmp_path, n_done
):
    sources, out = find_sources([str(folder)]), tmp_path / "out"
    asked = Asked(asked.model, batch=1)

    def stop(done):
        if done == n_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey(sources, out, asked, progress=stop)
    done = []
    outcome = survey(sources, out, asked, progress=done.append)
    assert (outcome.looked_at, outcome.skipped) == (5 - n_done, n_done)
    assert sorted(looked) == sorted(NAMES)
    assert done == list(range(n_done, 6))
    survey(sources, tmp_path / "whole", asked)
    is_same_survey(out, tmp_path / "whole")
    assert survey(sources, out, asked).skipped == 5


def test_a_bad_file_is_named_and_tried_again_next_time(folder, asked, looked, tmp_path):
    bad = folder / "bad.png"
    bad.write_bytes(b"no picture")
    sources, out = find_sources([str(folder)]), tmp_path / "out"
    outcome = survey(sources, out, asked)
    assert [(each.source.name, outcome.looked_at) for each in outcome.failed] == [("bad.png", 5)]
    assert "bad.png" in plain(out)["failed"]
    assert plain(out)["pictures"] == 5
    dot_image(64, 64, 1, 1).save(bad)
    assert survey(sources, out, asked).looked_at == 1
    assert plain(out)["pictures"] == 6
    assert plain(out)["failed"] == {}
    assert len(looked) == 6


def test_a_picture_that_changed_is_looked_at_again(folder, asked, tmp_path):
    sources, out = find_sources([str(folder)]), tmp_path / "out"
    survey(sources, out, asked)
    dot_image(64, 64, 50, 50, radius=20).save(folder / "a.png")
    assert survey(sources, out, asked).looked_at == 5  # its part goes, and with it the others
    survey(sources, tmp_path / "fresh", asked)
    is_same_survey(out, tmp_path / "fresh")


def test_another_model_or_other_pictures_need_another_folder(folder, asked, tmp_path):
    sources, out = find_sources([str(folder)]), tmp_path / "out"
    survey(sources[:1], out, asked)
    weights = asked.model.module.blocks[1].attn.qkv.weight.data
    before = weights.clone()
    weights *= 1.01
    with pytest.raises(SurveyError, match="holds another survey: fingerprint was '"):
        survey(sources, out, asked)
    weights.copy_(before)
    others = find_sources([str(folder / "sub")])
    with pytest.raises(SurveyError, match=r"pictures was '.*/in/' there and is '.*/in/sub/' now"):
        survey(others, out, asked)


def test_weights_tell_models_apart_and_copies_are_the_same(tiny_timm):
    import copy

    other = copy.deepcopy(tiny_timm)
    assert fingerprint(other) == fingerprint(tiny_timm)
    other.norm.bias.data[3] = 1
    assert fingerprint(other) != fingerprint(tiny_timm)


def test_what_stops_the_survey_of_all_pictures_is_said_at_once(folder, tiny_timm, tmp_path):
    model = wrap_model(tiny_timm, Preprocess(64, 64, mode="fit", multiple=16))
    tiny_timm.train()
    with pytest.raises(Exception, match="training mode"):
        survey(find_sources([str(folder)]), tmp_path / "out", Asked(model))
    assert not list(tmp_path.glob("out/*"))


def test_a_part_that_is_damaged_or_twice_is_named(folder, asked, tmp_path):
    sources, out = find_sources([str(folder)]), tmp_path / "out"
    survey(sources[:3], out, asked)
    (part,) = out.glob("pictures-*.parquet")
    twin = part.with_name("pictures-twin.parquet")
    twin.write_bytes(part.read_bytes())
    with pytest.raises(SurveyError, match=r"a\.png is in .*pictures-twin\.parquet and in another"):
        summarise(out, asked.model)
    twin.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(SurveyError, match=r"pictures-twin\.parquet is no part of a survey, or"):
        survey(sources, out, asked)


def test_parts_are_there_whole_or_not_at_all(folder, asked, tmp_path, monkeypatch):
    from pyarrow import parquet

    sources, out = find_sources([str(folder)]), tmp_path / "out"

    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parquet.ParquetWriter, "write_table", full)
        with pytest.raises(SurveyError, match="cannot be written: No space left on device"):
            survey(sources, out, asked)
    assert not list(out.iterdir())
    (out / ".pictures-ab.parquet.cd.tmp").write_bytes(b"what a process that was killed left")
    remove_unfinished(out)
    assert not list(out.iterdir())


def test_the_same_pictures_make_the_same_file(asked, folder, tmp_path, monkeypatch):
    sources = find_sources([str(folder)])[:2]
    written = []
    for out in (tmp_path / "one", tmp_path / "two"):
        survey(sources, out, asked)
        written += [path.name for path in out.glob("pictures-*.parquet")]
    assert written[0] == written[1]


# --- figures ------------------------------------------------------------------------------------


@pytest.fixture
def summary(folder, asked, tmp_path):
    return survey(find_sources([str(folder / "*.png")])[::2], tmp_path / "out", asked).summary


def test_distances_are_drawn_where_the_numbers_say(summary):
    figure = plot_distance(summary)
    (axis,) = figure.axes
    dots = [np.stack(each[0].get_data()) for each in axis.containers]
    mean = summary.moments["input_distance"].mean
    np.testing.assert_allclose([y for _, y in dots], mean)
    assert all((abs(x - number) < 0.4).all() for number, (x, _) in enumerate(dots, 1))
    assert axis.get_ylim()[0] == 0
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[1:] == ["mean of the heads", "attention spread evenly over all patches"]


def test_even_attention_reaches_as_far_as_pairs_of_patches_lie_apart():
    layer = {"kinds": ["self"], "patches": [4.0], "grids": [[3, 5]]}
    where = [(y, x) for y in range(3) for x in range(5)]
    apart = [math.dist(one, two) for one in where for two in where]
    assert _even(layer) == pytest.approx(4 * sum(apart) / len(apart))
    assert math.isnan(_even(layer | {"kinds": ["window"]}))
    assert math.isnan(_even(layer | {"grids": [[3, 5], [5, 3]]}))


def test_entropies_are_drawn_on_a_scale_from_one_token_to_all_alike(summary):
    figure = plot_entropy(summary)
    axis = figure.axes[0]
    (image,) = axis.images
    np.testing.assert_allclose(image.get_array(), summary.moments["mean_entropy"].mean.T)
    assert image.get_clim() == (0, pytest.approx(math.log2(17)))
    numbers = {text.get_text() for text in axis.texts}
    assert numbers == {f"{value:.1f}" for value in image.get_array().ravel()}
    assert _readable_on((1, 1, 0.2)) == "black"
    assert _readable_on((0.2, 0.1, 0.4)) == "white"


def test_a_survey_without_any_distance_is_drawn_as_such(summary, tmp_path):
    from dataclasses import replace

    nothing = Moments.of(np.full((2, 3, 2), np.nan))
    empty = replace(summary, moments=dict.fromkeys(summary.moments, nothing))
    assert len(plot_distance(empty).axes[0].get_yticks()) == 0
    assert not plot_entropy(empty).axes[0].texts


# --- on the command line ------------------------------------------------------------------------


def test_a_survey_on_the_command_line_goes_on_and_names_what_it_could_not_see(folder, tmp_path):
    (folder / "bad.png").write_bytes(b"no picture")
    out = tmp_path / "out"
    words = ["survey", str(folder), "--size", "56", "-o", str(out)]
    done = command_line(*words, "--limit", "2", "--no-figures")
    assert (done.returncode, done.stderr) == (0, "")
    assert "of 2 pictures" in done.stdout
    assert list(rows_of(out)["picture"].unique()) == ["a.png", "d.png"]  # evenly spread
    assert {path.suffix for path in out.iterdir()} == {".parquet", ".json"}
    done = command_line(*words)
    assert done.returncode == 1
    assert "2 were there already." in done.stdout
    assert "vizattn: bad.png: " in done.stderr
    assert "vizattn: 1 of 6 could not be looked at." in done.stderr
    for name in ("distance.png", "distance.svg", "entropy.png", "entropy.svg"):
        assert f"wrote {out / name}" in done.stdout
        assert (out / name).stat().st_size > 1000
    with Image.open(out / "distance.png") as picture:
        assert picture.width == 1920


@pytest.mark.parametrize(
    ("gone", "words", "said"),
    [
        ("pyarrow.parquet", [], "a survey needs pyarrow, which is not installed: "
                                "pip install 'vizattn[survey]'."),
        ("ray.data", ["--engine", "ray"], "--engine ray needs Ray, which is not installed: "
                                          "pip install 'vizattn[ray]'."),
        ("none", ["--engine", "rai"], "no engine named 'rai'. Did you mean 'ray'?"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_with_the_way_to_get_it(
    folder, tmp_path, monkeypatch, gone, words, said
):
    monkeypatch.setitem(sys.modules, gone, None)
    done = command_line("survey", str(folder), *words, "--size", "56", "-o", str(tmp_path / "out"))
    assert done.returncode == 1
    assert said in done.stderr
    assert issubclass(MissingPackage, ImportError)
    assert issubclass(UnknownName, LookupError)


def test_the_help_has_an_example():
    said = " ".join(command_line("survey", "--help").stdout.split())
    assert "vizattn survey photos --limit 500 -o survey-of-photos" in said
