"""Judges: on models whose answer is a sum, where the truth is known, and from end to end."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from samples import command_line
from torch import nn

import vizattn as va
from vizattn.digits import read_scans
from vizattn.errors import EvaluationError
from vizattn.evaluation.answers import Answer, in_batches
from vizattn.evaluation.baselines import centred_gaussian, random_map
from vizattn.evaluation.covering import (
    deletion,
    even_shares,
    fidelity,
    insertion,
    patch_flipping,
    salience_order,
)
from vizattn.evaluation.data import Extent, trial_of
from vizattn.evaluation.judges import Location, Perturbation, Segmentation
from vizattn.evaluation.maps import maps_of, recipes_of
from vizattn.evaluation.questions import Question
from vizattn.evaluation.report import report_of
from vizattn.evaluation.run import Plan, judge
from vizattn.evaluation.samples import Sample, digit_samples, mosaic_samples
from vizattn.evaluation.sanity import likeness, randomised
from vizattn.evaluation.tables import markdown
from vizattn.evaluation.trust import trust
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.heatmap import Heatmap
from vizattn.models import assets

SIDE, PATCH = 12, 3
GRID = TokenGrid(SIDE // PATCH, SIDE // PATCH)


class Sum(nn.Module):
    """Two classes: a weighted sum of all pixels, and nothing."""

    def __init__(self, weights):
        super().__init__()
        self.register_buffer("weights", weights)
        self.num_classes = 2

    def forward(self, pixels):
        total = (pixels * self.weights).sum((1, 2, 3))
        return torch.stack([total, torch.zeros_like(total)], 1)


@pytest.fixture
def summed():
    """A model that adds up, pixels, and what each patch truly adds."""
    random = torch.Generator().manual_seed(2)
    pixels = torch.randn(3, SIDE, SIDE, generator=random)
    weights = torch.randn(3, SIDE, SIDE, generator=random)
    adds = (pixels * weights).sum(0)
    by_patch = adds.unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).sum((-1, -2))
    model = replace(va.wrap_model(Sum(weights)), labels=("sum", "nothing"))
    return model, pixels, adds, by_patch


def heat_of(values):
    return Heatmap(values, GRID, Frame(0, 0, SIDE, SIDE), torch.zeros(0))


def patch_numbers():
    index = torch.arange(SIDE) // PATCH
    return index[:, None] * GRID.cols + index[None, :]


def test_probabilities_and_logits_are_those_of_the_model(summed):
    model, pixels, adds, _ = summed
    answer = Answer.of(model, pixels, "sum")
    pictures = torch.stack([pixels, pixels * 0])
    assert answer.raw(pictures).tolist() == pytest.approx([float(adds.sum()), 0], abs=1e-4)
    assert answer.share(pictures)[1] == pytest.approx(0.5)
    many = replace(answer, model=replace(model, is_multi_label=True))
    expected = torch.sigmoid(adds.sum())
    assert many.share(pictures)[0] == pytest.approx(float(expected))


def test_answers_do_not_depend_on_how_pictures_are_batched(summed, monkeypatch):
    model, pixels, _, _ = summed
    answer = Answer.of(model, pixels, "sum")
    pictures = torch.randn(7, 3, SIDE, SIDE)
    monkeypatch.setattr("vizattn.evaluation.answers._PIXELS", 2 * SIDE * SIDE)
    told = []
    found = in_batches(
        pictures.__getitem__, 7, (SIDE, SIDE), answer.raw, lambda *at: told.append(at)
    )
    assert torch.allclose(found, answer.raw(pictures))
    assert told == [(2, 7), (4, 7), (6, 7), (7, 7)]


def test_true_contributions_are_perfectly_faithful_and_their_opposite_is_not(summed):
    model, pixels, _, by_patch = summed
    answer = Answer.of(model, pixels, "sum")
    worth = by_patch.flatten(), patch_numbers()
    assert fidelity(answer, pixels, *worth) == pytest.approx(1, abs=1e-5)
    assert fidelity(answer, pixels, -worth[0], worth[1]) == pytest.approx(-1, abs=1e-5)
    assert salience_order(answer, pixels, *worth) == pytest.approx(1)


def test_deletion_and_flipping_by_hand(summed):
    model, pixels, adds, _ = summed
    answer = Answer.of(model, pixels, "sum")
    order = adds.flatten().argsort(descending=True)
    steps = 4
    taken = [round(share * order.numel() / steps) for share in range(steps + 1)]
    left = [float(adds.flatten()[order[count:]].sum()) for count in taken]
    curve = deletion(answer, pixels, order, even_shares(steps))
    expected = torch.softmax(torch.tensor([[each, 0.0] for each in left]), 1)[:, 0]
    assert curve.answers == pytest.approx(expected.tolist(), abs=1e-5)
    assert curve.area == pytest.approx(float(torch.trapezoid(expected, dx=1 / steps)), abs=1e-5)
    worst = [float(adds.flatten()[order[: order.numel() - count]].sum()) for count in taken]
    between, drop = patch_flipping(answer, pixels, order, steps)
    assert between == pytest.approx(np.mean(worst[1:]) - np.mean(left[1:]), abs=1e-4)
    assert drop == pytest.approx(left[0] - np.mean(left[1:]), abs=1e-4)


def test_insertion_starts_blurred_and_ends_with_the_picture(summed):
    model, pixels, _, _ = summed
    answer = Answer.of(model, pixels, "sum")
    curve = insertion(answer, pixels, torch.arange(SIDE * SIDE), even_shares(3))
    assert curve.answers[-1] == pytest.approx(float(answer.share(pixels[None])[0]), abs=1e-6)
    assert curve.answers[0] != pytest.approx(curve.answers[-1], abs=1e-3)


def test_the_order_of_pixels_follows_the_map_and_leaves_out_what_it_does_not_cover(summed):
    model, _, _, _ = summed
    whole = replace(model, transform=va.Preprocess(SIDE, SIDE, mode="squash"))
    picture = Image.new("RGB", (24, 24))
    question = Question(whole, Sample("x", 0, picture, None), GRID)
    values = torch.arange(16.0).reshape(4, 4)
    order = question.order(Heatmap(values, GRID, Frame(0, 0, 24, 24), torch.zeros(0)))
    # values are held beyond the middle of the last patch, 10.5 px: 4 pixels tie, read in order
    assert order[:4].tolist() == [10 * SIDE + 10, 10 * SIDE + 11, 11 * SIDE + 10, 11 * SIDE + 11]
    half = question.order(Heatmap(values, GRID, Frame(12, 0, 12, 24), torch.zeros(0)))
    covered = half[: SIDE * SIDE // 2] % SIDE
    assert (covered >= SIDE // 2).all()


def test_perturbation_is_the_area_of_accuracy_over_nine_tenths():
    # bright pixels on the left alone speak for class 0; black ones are 0
    weights = torch.zeros(3, SIDE, SIDE)
    weights[:, :, : SIDE // 2] = 1.0
    weights -= 1e-3
    model = replace(va.wrap_model(Sum(weights)), labels=("sum", "nothing"),
                    transform=va.Preprocess(SIDE, SIDE, mean=(0, 0, 0), std=(1, 1, 1)))  # fmt: skip
    picture = Image.new("RGB", (SIDE, SIDE), (200, 200, 200))
    question = Question(model, Sample("x", 0, picture, None, label=0), GRID)
    values = torch.zeros(4, 4)
    values[:, :2] = 1.0
    line = Perturbation().judge(question, heat_of(values))
    # the left half goes first: right with 0 to 4 tenths black, wrong with 5 to 9
    assert line["positive"] == line["positive to 1"] == pytest.approx(45.0)
    # some of the left is there until the end
    assert line["negative"] == pytest.approx(90.0)
    assert line["negative to 1"] == pytest.approx(95.0)


def test_segmentation_counts_by_hand():
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[:2] = True
    model = va.wrap_model(Sum(torch.ones(3, 4, 4)))
    question = Question(model, Sample("x", 0, Image.new("RGB", (4, 4)), None, mask=mask), GRID)
    values = torch.tensor([[1.0], [0.0]]).expand(2, 2)
    heat = Heatmap(values, TokenGrid(2, 2), Frame(0, 0, 4, 4), torch.zeros(0))
    judge_ = Segmentation()
    line = judge_.judge(question, heat)
    found = judge_.verdicts([line, line], torch.arange(2))
    assert line["right"] == line["pixels"] == 16
    assert found["accuracy"][0] == found["union"][0] == found["precision"][0] == 1.0
    upside_down = judge_.judge(question, replace(heat, values=values.flip(0)))
    assert judge_.verdicts([upside_down], torch.arange(1))["union"][0] == 0.0


def test_baselines_know_no_model():
    assert torch.equal(random_map(3, 4, 1), random_map(3, 4, 1))
    assert not torch.equal(random_map(3, 4, 1), random_map(3, 4, 2))
    bell = centred_gaussian(5, 5)
    assert bell.argmax() == 12
    assert torch.allclose(bell, bell.flip(0))


@pytest.fixture(scope="module")
def digits():
    return va.load_model("vizattn/digits")


@pytest.fixture(scope="module")
def questions(digits):
    scans = read_scans(assets() / "models" / "digits" / "scans.png").split("tune")
    return list(digit_samples(digits, scans, 6, 3))


def test_maps_of_one_question_are_those_of_the_methods_alone(digits, questions):
    sample = questions[0]
    maps = maps_of(digits, sample, recipes_of(["gae", "rollout"]), smooth=True)
    assert set(maps.heats) == {
        name + end
        for name in ("gae", "rollout", "random", "centred-gaussian")
        for end in ("", " ~")
    }
    alone = va.explain(sample.picture, model=digits, method="gae", target=sample.target).heatmap
    assert torch.allclose(maps.heats["gae"].values, alone.values, atol=1e-7)


def test_gae_points_at_the_digit_it_is_asked_about_and_rollout_at_any(digits, questions):
    located = {"gae": [], "rollout": []}
    for sample in questions:
        maps = maps_of(digits, sample, recipes_of(located))
        for name, found in located.items():
            question = Question(digits, sample, maps.grid)
            found.append(Location().judge(question, maps.heats[name])["pointing"])
    assert np.mean(located["gae"]) > 0.9
    assert np.mean(located["rollout"]) < 0.7


def test_judging_goes_on_where_it_stopped(digits, questions, tmp_path, monkeypatch):
    plan = Plan(recipes_of(["raw", "cp-lrp"]), ((Location(), None),))
    whole = judge(digits, questions, plan, tmp_path / "whole")
    judge(digits, questions[:4], plan, tmp_path / "part")
    path = tmp_path / "part" / "judged.jsonl"
    path.write_text(path.read_text() + '{"plan": "cut sho')
    asked = []
    real = maps_of

    def noted(model, sample, *more, **others):
        asked.append(sample.name)
        return real(model, sample, *more, **others)

    monkeypatch.setattr("vizattn.evaluation.run.maps_of", noted)
    rest = judge(digits, questions, plan, tmp_path / "part")
    assert asked == [sample.name for sample in questions[4:]]
    assert rest.lines == whole.lines
    other = Plan(recipes_of(["raw"]), ((Location(), None),))
    judge(digits, questions[:1], other, tmp_path / "part")
    assert asked[-1] == questions[0].name, "another plan has lines of its own"


def test_a_method_without_a_map_is_named_with_its_reason(questions, tmp_path):
    tiny = va.load_model("timm/cait_xxs24_224", weights="random")
    plan = Plan(recipes_of(["raw", "gae"]), ((Location(), None),))
    sample = replace(questions[0], target=None)
    found = judge(tiny, [sample], plan, tmp_path)
    assert "gae" in found.refused
    assert "raw" in found.lines["location"]


def test_the_table_has_the_best_on_top_and_baselines_in_italics(digits, questions, tmp_path):
    plan = Plan(recipes_of(["raw", "cp-lrp"]), ((Location(), None),))
    found = judge(digits, questions, plan, tmp_path)
    table = markdown(Location(), found.verdicts([Location()])["location"], {
        name: len(lines) for name, lines in found.lines["location"].items()
    })  # fmt: skip
    rows = table.splitlines()[2:]
    assert rows[0].startswith("| cp-lrp |")
    assert any(row.startswith("| *random* |") for row in rows)


def test_randomised_weights_change_what_the_model_made_and_nothing_of_the_model(digits, questions):
    before = {name: weight.clone() for name, weight in digits.module.state_dict().items()}
    other = randomised(digits)
    assert all(torch.equal(before[name], now) for name, now in digits.module.state_dict().items())
    changed = other.module.state_dict()
    assert not any(
        torch.equal(before[name], now) for name, now in changed.items()
        if now.numel() > 1 and "norm" not in name and now.std() > 0
    )  # fmt: skip
    found = likeness(digits, questions[:3], recipes_of(["gae"]))
    assert found["centred-gaussian"] == [pytest.approx(1)] * 3
    assert abs(np.mean(found["gae"])) < 0.6


def test_mosaics_hold_four_different_photos_and_say_where_each_is(digits, tmp_path):
    for number in range(6):
        Image.new("RGB", (40, 30), (40 * number, 0, 0)).save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.iterdir())
    samples = list(mosaic_samples(digits, paths, 3, 96, 0))
    assert len(samples) == 12
    for sample in samples:
        box = sample.box
        inside = sample.picture.crop((box.left, box.top, box.right, box.bottom))
        assert len(inside.getcolors()) == 1
    for group in range(3):
        mosaic = next(sample.picture for sample in samples if sample.group == group)
        assert len(mosaic.getcolors()) == 4
    with pytest.raises(EvaluationError, match="got 3 photos"):
        list(mosaic_samples(digits, paths[:3], 1, 96, 0))


def test_each_kind_of_data_finds_its_judges(digits, tmp_path):
    assert trial_of(digits, None, Extent(limit=1)).kind == "digits"
    with pytest.raises(EvaluationError, match="no pictures of its own"):
        trial_of(replace(digits, name="mine"), None, Extent())
    for name in "0123":
        (tmp_path / name).mkdir()
        Image.new("RGB", (96, 96), (9, 9, 9)).save(tmp_path / name / "a.png")
    labelled = trial_of(digits, tmp_path, Extent())
    assert labelled.kind == "labelled"
    assert sorted(sample.label for sample in labelled.samples) == [0, 1, 2, 3]
    (tmp_path / "other").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "other" / "a.png")
    with pytest.raises(EvaluationError, match="'other' is called like none of the 10 classes"):
        trial_of(digits, tmp_path, Extent())
    mosaics = trial_of(replace(digits, labels=()), tmp_path, Extent(limit=1))
    assert mosaics.kind == "mosaics"


def test_imagenet_segmentation_is_read_as_matlab_wrote_it(digits, tmp_path):
    path = tmp_path / "gtsegs_ijcv.mat"
    picture = np.zeros((30, 40, 3), np.uint8)
    picture[:, :20] = 255
    mask = picture[:, :, 0] > 0
    with h5py.File(path, "w") as file:
        references = h5py.special_dtype(ref=h5py.Reference)
        for name in ("img", "gt"):
            file.create_dataset(f"value/{name}", (1, 1), dtype=references)
        file["pixels"] = picture.transpose(2, 1, 0)
        file["mask"] = mask.transpose(1, 0).astype(np.uint8)
        cell = file.create_dataset("cell", (1, 1), dtype=references)
        cell[0, 0] = file["mask"].ref
        file["value/img"][0, 0] = file["pixels"].ref
        file["value/gt"][0, 0] = cell.ref
    trial = trial_of(digits, path, Extent())
    (sample,) = trial.samples
    assert sample.picture.size == (224, 224)
    assert sample.mask[:, :112].all()
    assert not sample.mask[:, 112:].any()
    (tmp_path / "other.mat").write_bytes(b"not one")
    with pytest.raises(EvaluationError, match=r"other\.mat is not the file"):
        trial_of(digits, tmp_path / "other.mat", Extent())


def test_the_command_writes_tables_numbers_and_curves(tmp_path):
    folder = tmp_path / "out"
    words = ["judge", "--methods", "raw,gae", "--limit", "2", "--curves", "1", "--steps", "4",
             "--sane", "1", "--no-smooth", "-o", str(folder)]  # fmt: skip
    done = command_line(*words)
    assert done.returncode == 0, done.stderr
    text = (folder / "judge.md").read_text()
    assert "Does the map point at what was asked about?" in text
    assert "| *random* |" in text
    numbers = json.loads((folder / "judge.json").read_text())
    assert set(numbers["verdicts"]) == {"location", "covering"}
    assert (folder / "deletion.png").stat().st_size > 10_000
    assert (folder / "insertion.png").exists()
    assert "Best by pointing: gae" in done.stdout


def test_trust_tells_a_true_map_from_its_opposite_and_from_a_random_one(digits, questions):
    sample = questions[0]
    told = []
    shown = va.explain(sample.picture, model=digits, method="gae", target=sample.target)
    found = trust(shown, shown.heatmap, lambda *at: told.append(at))
    assert found.verdict == "better"
    assert told[-1] == (2 * (2 * 11 + 2), 2 * (2 * 11 + 2))
    assert found.deletion.area < found.random_deletion.area
    assert found.insertion.area > found.random_insertion.area
    assert found.deletion.answers[0] == found.insertion.answers[-1], "the whole picture, twice"
    upside_down = replace(shown.heatmap, values=-shown.heatmap.values)
    assert trust(shown, upside_down).verdict == "worse"
    noise = replace(shown.heatmap, values=random_map(12, 12, 0))
    same = trust(shown, noise)
    assert (same.verdict, same.deletion) == ("chance", same.random_deletion)


def test_trust_stops_when_it_is_told_to(digits, questions):
    shown = va.explain(questions[0].picture, model=digits, method="gae", target=questions[0].target)

    def stop(*_at):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trust(shown, shown.heatmap, stop)


def test_a_model_that_finds_nothing_is_told_so(digits, tmp_path):
    extent = Extent(limit=1)
    empty = replace(trial_of(digits, None, extent), samples=iter(()))
    with pytest.raises(EvaluationError, match="nothing could be asked about vizattn/digits"):
        report_of(digits, empty, recipes_of(["raw"]), tmp_path, few=0, sane=0, smooth=False,
                  extent=extent)  # fmt: skip
