"""Files of a view: every format has the same true numbers, one scale, and says how it was made."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from samples import command_line as run
from samples import dot_image, randomised

from vizattn import animation
from vizattn.drawing import Look, Panel, shared_top
from vizattn.errors import MissingPackage, UnknownName
from vizattn.explain import explain
from vizattn.export import FORMATS, check_formats, describe, save_explanation
from vizattn.figures import plot_heads, plot_maps
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.heatmap import Heatmap
from vizattn.models import assets, wrap_model
from vizattn.overlay import colour_table, overlay
from vizattn.preprocess import Preprocess
from vizattn.recipe import python_lines

PICTURE = dot_image(128, 64, 60, 30)

# A name that is markup, a template, a formula and the end of a string.
NASTY = "<img src=x onerror=alert(1)> ${7*7} $x_1$ '\"\\\n.png"


@pytest.fixture
def model(tiny_timm):
    return wrap_model(tiny_timm, Preprocess(64, 64), name="tiny")


@pytest.fixture
def explanation(model):
    return explain(PICTURE, model=model, settings={"layer": 2, "head": 1}, name="a <b>.png")


@pytest.fixture
def swin():
    import timm

    module = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=(56, 112), window_size=7, depths=(2, 2),
        num_heads=(2, 4), embed_dim=16, num_classes=0,
    )  # fmt: skip
    return wrap_model(randomised(module), Preprocess(56, 112), name="swin")


def saved(explanation, folder, name, **look):
    (path,) = save_explanation(explanation, folder, formats=[name], **look)
    assert path.suffix == f".{name}"
    return path


def film(explanation, folder):
    """Frames of a GIF as arrays, and how long each is shown."""
    with Image.open(saved(explanation, folder, "gif")) as gif:
        frames, shown = [], []
        for number in range(gif.n_frames):
            gif.seek(number)
            frames.append(np.asarray(gif.convert("RGB")))
            shown.append(gif.info["duration"])
    return frames, shown


def drawn_panels(monkeypatch):
    """What is handed to the drawing of each frame."""
    from vizattn import export

    handed = []
    real = export.film_frame

    def noted(panel, image, **about):
        handed.append((panel, about))
        return real(panel, image, **about)

    monkeypatch.setattr(export, "film_frame", noted)
    return handed


def test_files_hold_the_true_numbers_and_how_they_were_made(explanation, tmp_path):
    picture, numbers = save_explanation(explanation, tmp_path / "new" / "folder")
    assert picture.name == "a-b-_raw_layer2_head1.png"
    with Image.open(picture) as drawn:
        assert drawn.size == (128, 64)
        expected = overlay(explanation.image, explanation.heatmap)
        assert np.array_equal(np.asarray(drawn), expected)
    with np.load(numbers, allow_pickle=False) as saved:
        assert np.array_equal(saved["values"], explanation.heatmap.values.numpy())
        manifest = json.loads(str(saved["manifest"]))
        total = saved["values"].sum() + saved["prefix_mass"].sum()
    assert total == pytest.approx(1, abs=1e-5)
    assert manifest["frame"] == [32, 0, 64, 64]
    assert manifest["grid"] == {"rows": 4, "cols": 4, "prefix": ["class"]}
    assert manifest["settings"] == {"layer": 1, "head": 0, "fusion": "mean"}
    assert set(manifest["versions"]) == {"vizattn", "torch", "timm"}


def test_the_description_is_plain_json(explanation):
    assert json.loads(json.dumps(describe(explanation))) == describe(explanation)


def test_numbers_come_with_their_grid_frame_model_and_versions(explanation, tmp_path):
    with np.load(saved(explanation, tmp_path, "npz"), allow_pickle=False) as arrays:
        assert arrays["grid"].tolist() == [4, 4, 1]
        assert arrays["prefix"].tolist() == ["class"]
        assert arrays["frame"].tolist() == [32, 0, 64, 64]
        assert str(arrays["model"]) == "tiny"
        assert json.loads(str(arrays["versions"])) == explanation.versions
        top = json.loads(str(arrays["manifest"]))["overlay"]["top"]
        assert top == pytest.approx(np.quantile(arrays["values"].astype(float), 0.995))


def test_every_format_is_written_and_named_in_order(explanation, tmp_path):
    names = [name for name in FORMATS if name != "mp4"]
    paths = save_explanation(explanation, tmp_path, formats=[*names, "png"])
    assert [path.name for path in paths] == [f"a-b-_raw_layer2_head1.{name}" for name in names]
    assert sorted(tmp_path.iterdir()) == sorted(paths)


def test_the_manifest_is_the_same_alone_and_inside_the_numbers(explanation, tmp_path):
    manifest = json.loads(saved(explanation, tmp_path, "json", colours="magma").read_text("utf-8"))
    with np.load(saved(explanation, tmp_path, "npz", colours="magma")) as arrays:
        assert json.loads(str(arrays["manifest"])) == manifest
    assert manifest["overlay"]["colours"] == "magma"
    assert manifest["picture"] == "a <b>.png"
    assert manifest["at"] is None


def test_unknown_formats_are_refused_before_anything_is_written(explanation, tmp_path):
    with pytest.raises(UnknownName, match="no format named 'jpg'"):
        save_explanation(explanation, tmp_path / "new", formats=["png", "jpg"])
    assert not (tmp_path / "new").exists()


def test_a_video_without_its_package_says_what_to_install(explanation, tmp_path, monkeypatch):
    monkeypatch.setattr(animation, "find_spec", lambda name: None)
    with pytest.raises(MissingPackage) as refused:
        save_explanation(explanation, tmp_path / "new", formats=["png", "mp4"])
    assert str(refused.value) == (
        "an MP4 needs imageio-ffmpeg, which is not installed: pip install 'vizattn[video]'."
    )
    assert isinstance(refused.value, ImportError)
    assert not (tmp_path / "new").exists()
    assert check_formats(["gif"]) == ("gif",)


# Figures


def test_a_figure_shows_every_head_on_one_scale_with_a_colour_bar(explanation):
    layer = explanation.record[-1]
    figure = plot_heads(layer, explanation.image)
    words = [text.get_text() for text in figure.texts]
    assert {"head 1", "head 2", "attention per patch, %"} <= set(words)
    assert words[0] == "What the class token attends to in blocks.2.attn"
    weights = layer.rows(0)[:, 0]
    for share in weights[:, 0].tolist():
        assert any(word.endswith("% on class") and near(word, 100 * share) for word in words)
    pictures, bar = figure.axes[:-1], figure.axes[-1]
    top = float(np.quantile(weights[:, 1:].double().numpy(), 0.995))
    assert bar.get_xlim()[1] == pytest.approx(100 * top)
    for head, axis in zip(weights, pictures, strict=True):
        heat = Heatmap.from_relevance(head, layer.keys.grid, layer.keys.frame)
        expected = overlay(explanation.image, heat, top=top)
        assert np.array_equal(axis.get_images()[0].get_array(), expected)


def near(word, percent):
    return float(word.partition(" ")[0]) == pytest.approx(percent, rel=0.06)


def test_the_patch_that_was_asked_is_framed(explanation):
    figure = plot_heads(explanation.record[-1], explanation.image, at=(70, 20))
    assert "the patch at row 2, column 3" in figure.texts[0].get_text()
    box = figure.axes[0].patches[-1].get_bbox()  # frame from x = 32, patches of 16 pixels
    assert (box.x0, box.y0, box.x1, box.y1) == (64, 16, 80, 32)


@pytest.mark.parametrize(
    ("count", "shape", "columns"),
    [(1, 1.5, 1), (3, 1.5, 3), (6, 1.5, 3), (12, 1.5, 4), (16, 1, 4), (24, 1.5, 6), (6, 0.33, 6)],
)
def test_maps_stand_in_full_rows_of_a_handy_shape(count, shape, columns):
    grid = TokenGrid(1, 1)
    image = Image.new("RGB", (int(60 * shape), 60))
    heat = Heatmap(torch.ones(1, 1), grid, Frame(0, 0, *image.size), torch.zeros(0))
    figure = plot_maps([Panel(heat, "x")] * count, image)
    lefts = {round(axis.get_position().x0, 4) for axis in figure.axes[:-1]}
    assert len(lefts) == columns
    width, height = figure.get_size_inches()
    for axis in figure.axes[:-1]:  # no map is stretched, none lies on another or outside
        place = axis.get_position()
        drawn = place.width * width / (place.height * height)
        assert drawn == pytest.approx(image.width / image.height)
        assert place.y0 > 0
        assert place.x1 < 1


def test_a_large_picture_is_made_smaller_and_its_maps_stay_in_place():
    grid, image = TokenGrid(2, 2), Image.new("RGB", (3000, 2000))
    heat = Heatmap(
        torch.tensor([[0.0, 0], [0, 1]]), grid, Frame(1000, 0, 2000, 2000), torch.zeros(0)
    )
    figure = plot_maps([Panel(heat, "x")], image, look=Look(opacity=1, top=1.0))
    drawn = np.asarray(figure.axes[0].get_images()[0].get_array())
    assert drawn.shape == (427, 640, 3)
    hot = np.argwhere((drawn == colour_table("viridis")[255]).all(-1))
    assert hot.min(0) == pytest.approx([213.5, 640 * 2 / 3], abs=1)
    assert hot.max(0).tolist() == [426, 639]


def test_the_scale_of_a_figure_counts_every_map_alike():
    maps = [
        Heatmap(torch.full((1, 2), value), TokenGrid(1, 2), Frame(0, 0, 2, 1), torch.zeros(0))
        for value in (1.0, 3.0)
    ]
    assert shared_top(maps) == pytest.approx(np.quantile([1, 1, 3, 3], 0.995))


@pytest.mark.parametrize("name", ["pdf", "svg"])
def test_the_same_view_is_the_same_file(explanation, tmp_path, name):
    first, second = (saved(explanation, tmp_path / side, name) for side in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_fonts_of_a_pdf_can_be_printed_by_journals(explanation, tmp_path):
    assert b"/Type3" not in saved(explanation, tmp_path, "pdf").read_bytes()


def test_names_are_text_in_a_figure_and_nothing_else(explanation, tmp_path):
    named = replace(explanation, model=replace(explanation.model, label=NASTY))
    root = ElementTree.fromstring(saved(named, tmp_path, "svg").read_bytes())
    kinds = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert not kinds & {"script", "img", "foreignObject"}
    figure = plot_maps([Panel(explanation.heatmap, NASTY)], PICTURE, title=NASTY)
    assert not any(text.get_parse_math() for text in figure.texts)


def test_a_map_that_is_nearly_flat_says_so_in_its_caption():
    image, place = Image.new("RGB", (40, 20)), (TokenGrid(1, 2), Frame(0, 0, 40, 20))
    even, uneven = (
        Heatmap(torch.tensor([[1.0, high]]), *place, torch.zeros(0)) for high in (1.04, 1.06)
    )
    figure = plot_maps([Panel(even, "head 1"), Panel(uneven, "head 2")], image)
    said = [text.get_text() for text in figure.texts]
    assert "head 1, nearly flat" in said
    assert "head 2" in said


def test_a_method_with_heads_shows_those_of_the_chosen_layer(explanation):
    from vizattn.export import _View

    title, panels = _View(explanation, {}).panels()
    assert title == "tiny: raw attention of the class token, layer 2"
    assert [panel.label for panel in panels] == ["head 1", "head 2"]
    for panel, weights in zip(panels, explanation.record[1].rows(0)[:, 0, 1:], strict=True):
        torch.testing.assert_close(panel.heat.values, weights.reshape(4, 4))


def test_a_method_without_heads_shows_all_layers(model):
    from vizattn.export import _View

    look = explain(PICTURE, model=model, method="rollout", at=(70, 20))
    title, panels = _View(look, {}).panels()
    assert [panel.label for panel in panels] == ["layer 1", "layer 2", "layer 3"]
    assert title == "tiny: attention rollout of the patch at row 2, column 3"
    torch.testing.assert_close(panels[-1].heat.values, look.heatmap.values)


def test_random_weights_are_named_in_every_figure(explanation):
    from vizattn.export import _View

    noted = replace(explanation.record, notes=("random weights: the maps show how things work",))
    assert _View(replace(explanation, record=noted), {}).asks == (
        "tiny (random weights): raw attention of the class token"
    )


# Films


def test_a_film_goes_through_all_layers_and_stays_longer_on_the_last(explanation, tmp_path):
    frames, shown = film(explanation, tmp_path)
    assert shown == [700, 700, 1400]
    assert len({frame.shape for frame in frames}) == 1
    assert all(side % 2 == 0 for side in frames[0].shape[:2])


def test_a_film_shows_the_true_numbers_of_the_chosen_head(explanation, tmp_path, monkeypatch):
    handed = drawn_panels(monkeypatch)
    film(explanation, tmp_path)
    for number, (panel, _) in enumerate(handed):
        row = explanation.record[number].rows(0)[0, 0]
        torch.testing.assert_close(panel.heat.values, row[1:].reshape(4, 4))
        assert panel.label == f"Layer {number + 1} of 3, head 1"
    assert torch.equal(handed[1][0].heat.values, explanation.heatmap.values)


def test_all_frames_have_one_scale(explanation, tmp_path, monkeypatch):
    handed = drawn_panels(monkeypatch)
    frames, _ = film(explanation, tmp_path)
    values = torch.cat([panel.heat.values.flatten() for panel, _ in handed])
    (top,) = {about["look"].top for _, about in handed}
    assert top == pytest.approx(np.quantile(values.double().numpy(), 0.995))
    bars = [frame[-70:] for frame in frames]  # the bar and its numbers stand still
    assert all(np.array_equal(bars[0], bar) for bar in bars)


def test_heads_together_are_the_mean_that_the_map_shows(model, tmp_path, monkeypatch):
    handed = drawn_panels(monkeypatch)
    look = explain(PICTURE, model=model, settings={"layer": 3})
    film(look, tmp_path)
    assert handed[2][0].label == "Layer 3 of 3, mean of 2 heads"
    torch.testing.assert_close(handed[2][0].heat.values, look.heatmap.values)


def test_grids_of_different_size_share_a_scale_in_times_uniform(swin, tmp_path, monkeypatch):
    handed = drawn_panels(monkeypatch)
    look = explain(PICTURE, model=swin)
    film(look, tmp_path)
    assert [panel.heat.grid.n_patches for panel, _ in handed] == [392, 392, 98, 98]
    for panel, about in handed:  # all heads and rows together look about everywhere alike
        assert panel.heat.values.mean().item() == pytest.approx(1, abs=1e-4)
        assert (about["look"].unit, about["look"].scale) == ("Raw attention, times uniform", 1)


def test_layers_without_the_chosen_head_are_left_out_of_a_film(swin, tmp_path, monkeypatch):
    handed = drawn_panels(monkeypatch)
    film(explain(PICTURE, model=swin, settings={"head": 4}), tmp_path)
    assert [panel.label for panel, _ in handed] == [
        "Layer 3 of 4, head 4", "Layer 4 of 4, head 4",
    ]  # fmt: skip


def test_a_gif_keeps_the_rare_colours_of_the_strongest_patches(model, tmp_path):
    look = explain(assets() / "examples" / "chelsea.jpg", model=model)
    frames, _ = film(look, tmp_path)
    last = colour_table("viridis")[255].astype(int)
    bar = frames[0][-70:]
    assert np.abs(bar.astype(int) - last).sum(-1).min() <= 6
    assert (bar == 255).all(-1).mean() > 0.5  # paper stays white


def test_colours_of_a_gif_are_those_of_the_frames(tmp_path):
    from vizattn.export import _View

    look = explain(assets() / "examples" / "chelsea.jpg", settings={"layer": 12})
    frames, _ = film(look, tmp_path)
    for shown, drawn in zip(frames, _View(look, {}).frames, strict=True):
        off = shown[:576, :672].astype(float) - drawn[:576, :672]
        areas = off.reshape(72, 8, 84, 8, 3).mean((1, 3))  # dithering is right on average
        assert np.abs(off).mean() < 2
        # 11 of 255 levels; 17 when the palette counts colours as often as they are there
        assert np.quantile(np.abs(areas).max(-1), 0.999) < 13


@pytest.mark.skipif(find_spec("imageio_ffmpeg") is None, reason="imageio-ffmpeg is not installed")
def test_a_video_has_the_frames_of_the_gif(explanation, tmp_path):
    import imageio_ffmpeg

    frames, _ = film(explanation, tmp_path)
    path = saved(explanation, tmp_path, "mp4")
    tool = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)]
    about = subprocess.run(tool, capture_output=True, text=True, check=False).stderr
    height, width = frames[0].shape[:2]
    assert re.search(rf"Video: h264.* yuv420p\b.* {width}x{height}", about), about
    raw = subprocess.run(
        [*tool, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True
    ).stdout
    seen = np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)
    assert len(seen) == 7 + 7 + 14  # ten a second
    for number, frame in ((3, frames[0]), (10, frames[1]), (20, frames[2])):
        assert np.abs(seen[number].astype(int) - frame).mean() < 6
        others = [np.abs(seen[number].astype(int) - other).mean() for other in frames]
        assert int(np.argmin(others)) == (3, 10, 20).index(number)


# Python lines


def run_lines(explanation, **names):
    """Run the lines of a view and give what they made."""
    made = dict(names)
    exec(compile(python_lines(explanation, colours="magma", opacity=0.5), "view", "exec"), made)
    return made


@pytest.mark.parametrize(
    "asked",
    [
        {"settings": {"layer": 2, "head": 1}},
        {"settings": {"fusion": "max"}, "at": (70.5, 20)},
        {"method": "rollout", "settings": {"residual": "0.3", "start_layer": 1}, "at": (70, 20)},
    ],
)
def test_the_python_lines_make_the_same_numbers_and_picture(
    asked, model, tiny_timm, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    PICTURE.save("dot.png")
    look = explain("dot.png", model=model, **asked)
    made = run_lines(look, module=tiny_timm)
    assert torch.equal(made["heat"].values, look.heatmap.values)
    assert made["heat"].made == look.heatmap.made
    expected = overlay(look.image, look.heatmap, colours="magma", opacity=0.5)
    assert np.array_equal(made["picture"], expected)


def test_the_lines_of_a_loaded_model_run_by_themselves(tmp_path):
    look = explain(
        assets() / "examples" / "chelsea.jpg", settings={"layer": 12, "head": 3}, at=(225, 150)
    )
    look.image.save(tmp_path / "chelsea.png")
    look = replace(look, name="chelsea.png")
    lines = saved(look, tmp_path, "py")
    with lines.open("a") as file:
        file.write("heat.values.numpy().tofile('values.bin')\n")
    done = subprocess.run(
        [sys.executable, lines.name], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": ":".join(sys.path)}, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == look.heatmap.sentence
    values = np.fromfile(tmp_path / "values.bin", dtype=np.float32).reshape(25, 37)
    assert np.array_equal(values, look.heatmap.values.numpy())


def test_names_are_strings_in_the_lines_and_nothing_else(explanation):
    named = replace(explanation, name=NASTY, model=replace(explanation.model, name=NASTY))
    lines = python_lines(named)
    assert f"va.open_image({NASTY!r})" in lines
    assert len(lines.splitlines()) == len(python_lines(explanation).splitlines())
    compile(lines, "view", "exec")


def test_the_lines_stop_where_the_model_sees_another_size(explanation, tiny_timm, tmp_path):
    path = tmp_path / "dot.png"
    PICTURE.save(path)
    larger = replace(
        explanation, name=str(path), record=replace(explanation.record, input_size=(9, 9))
    )
    with pytest.raises(AssertionError, match=re.escape("(64, 64)")):
        run_lines(larger, module=tiny_timm)


def test_random_weights_and_a_transform_of_ones_own_are_said_in_the_lines(explanation):
    drawn = replace(
        explanation.model, name="timm/vit_tiny_patch16_224", notes=("random weights: so and so",)
    )
    lines = python_lines(replace(explanation, model=drawn))
    assert "va.load_model('timm/vit_tiny_patch16_224', weights='random')" in lines
    assert "# Weights are drawn anew each time, so the numbers differ." in lines
    own = replace(explanation.model, transform=lambda image: None, readout="mean")
    lines = python_lines(replace(explanation, model=own))
    assert "va.wrap_model(module, transform, name='tiny', readout='mean')" in lines


def test_formats_are_chosen_on_the_command_line(tmp_path):
    picture = tmp_path / "dot.png"
    PICTURE.save(picture)
    done = run("explain", str(picture), "--format", "json, py,json", "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    written = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert written == ["dot_raw.json", "dot_raw.py"]
    refused = run("explain", "gone.png", "--format", "png,pfd", "-o", str(tmp_path / "out"))
    assert refused.returncode == 1
    assert "no format named 'pfd'. Did you mean 'pdf'?" in refused.stderr
    assert all(name in run("explain", "--help").stdout for name in FORMATS)
