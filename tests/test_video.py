"""Video in, video out: the frames, their maps, and one scale for all of them."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from samples import dot_image

from vizattn.animation import palette_for
from vizattn.capture import capture
from vizattn.errors import ImageError, MissingPackage, UnknownName, VizattnError
from vizattn.many import frames as room
from vizattn.many.frames import Clip, Encoder, is_video
from vizattn.many.run import Asked
from vizattn.many.video import explain_video
from vizattn.methods import RawAttention
from vizattn.models import wrap_model
from vizattn.overlay import colour_table, overlay
from vizattn.preprocess import Preprocess

N_FRAMES, WIDTH, HEIGHT, RATE = 9, 65, 49, 12.5


def shot(number):
    """A white square that walks to the right."""
    return np.asarray(dot_image(WIDTH + 1, HEIGHT + 1, 8 + 6 * number, 24, radius=5))


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "walk.mp4"
    with Encoder(path, RATE, "viridis", 0.85) as encoder:
        for number in range(N_FRAMES):
            encoder.write(shot(number)[:HEIGHT, :WIDTH])
    return path


@pytest.fixture
def asked(tiny_timm):
    model = wrap_model(tiny_timm, Preprocess(64, 64, mode="squash"), name="tiny")
    return Asked(model, RawAttention(), formats=("mp4", "gif", "npz"))


def frames_of(path):
    return [np.asarray(image) for image in Clip.open(path)]


def test_frames_come_back_in_their_order_at_their_rate_with_even_sides(clip):
    about = Clip.open(clip)
    assert (about.width, about.height, about.rate) == (WIDTH + 1, HEIGHT + 1, RATE)
    assert about.n_frames == N_FRAMES
    found = frames_of(clip)
    assert len(found) == N_FRAMES
    for number, frame in enumerate(found):
        assert abs(frame[:HEIGHT, :WIDTH].astype(int) - shot(number)[:HEIGHT, :WIDTH]).mean() < 5
        np.testing.assert_allclose(frame[:, -1].astype(int), frame[:, -2].astype(int), atol=30)


def test_every_frame_has_its_own_map_on_the_scale_of_all(clip, asked, tmp_path):
    film = explain_video(clip, tmp_path / "out", asked)
    assert [path.name for path in film.files] == [f"walk_raw.{end}" for end in asked.formats]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        [*(path.name for path in film.files), "vizattn.jsonl"]
    )
    pictures = [Image.fromarray(frame) for frame in frames_of(clip)]
    heats = [asked.method.heatmap(capture(asked.model, picture)) for picture in pictures]
    values = torch.stack([heat.values for heat in heats]).numpy()
    with np.load(film.files[2]) as saved:
        np.testing.assert_allclose(saved["values"], values, atol=1e-5)
        np.testing.assert_allclose(saved["prefix_mass"][3], heats[3].prefix_mass, atol=1e-5)
    assert film.top == pytest.approx(np.quantile(values, 0.995), rel=1e-4)
    assert film.n_frames == N_FRAMES

    drawn = Clip.open(film.files[0])
    assert (drawn.rate, drawn.n_frames) == (RATE, N_FRAMES)
    for frame, picture, heat in zip(drawn, pictures, heats, strict=True):
        expected = overlay(picture, heat, top=film.top).astype(int)
        assert abs(np.asarray(frame).astype(int) - expected).mean() < 6  # H.264 and its colours


def test_a_gif_has_all_frames_the_rate_and_one_palette(clip, asked, tmp_path):
    film = explain_video(clip, tmp_path / "out", Asked(asked.model, asked.method, formats=("gif",)))
    with Image.open(film.files[0]) as gif:
        assert gif.n_frames == N_FRAMES
        durations, colours = [], set()
        for number in range(N_FRAMES):
            gif.seek(number)
            durations.append(gif.info["duration"])
            colours |= {colour for _, colour in gif.convert("RGB").getcolors(1 << 16)}
    assert sum(durations) == pytest.approx(1000 * N_FRAMES / RATE, abs=20)
    assert len(colours) <= 256


def test_a_palette_holds_the_colour_map_from_end_to_end():
    palette = palette_for("viridis", 0.85).astype(int)
    for colour in (colour_table("viridis")[0], colour_table("viridis")[255], (0, 0, 0), (255,) * 3):
        assert abs(palette - colour).sum(1).min() == 0


def test_a_gif_that_moves_is_a_video_and_one_that_does_not_a_picture(tmp_path):
    still, moving = tmp_path / "still.gif", tmp_path / "moving.gif"
    first, *others = [Image.fromarray(shot(number)) for number in range(4)]
    first.save(still)
    first.save(moving, save_all=True, append_images=others, duration=100)
    assert [is_video(path) for path in (still, moving)] == [False, True]
    assert [is_video(tmp_path / name) for name in ("a.MP4", "a.jpg", "gone.gif")] == [
        True, False, False,
    ]  # fmt: skip
    assert len(frames_of(moving)) == 4


def test_what_is_there_is_not_done_again(clip, asked, tmp_path):
    quick = Asked(asked.model, asked.method, formats=("npz",))
    told = []
    assert explain_video(clip, tmp_path, quick, progress=lambda *step: told.append(step))
    assert told[0] == ("Looking", 0, N_FRAMES)
    assert told[-1] == ("Looking", N_FRAMES, N_FRAMES)
    assert explain_video(clip, tmp_path, quick) is None
    assert explain_video(clip, tmp_path, quick, again=True)


def test_stopped_half_way_there_is_nothing(clip, asked, tmp_path):
    def stop(words, done, _of):
        if (words, done) == ("Drawing", 5):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explain_video(clip, tmp_path / "out", asked, progress=stop)
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_no_video_is_said(tmp_path, asked):
    path = tmp_path / "words.mp4"
    path.write_text("no video at all " * 100)
    with pytest.raises(ImageError, match=r"'words\.mp4' is not a video that can be read here"):
        explain_video(path, tmp_path / "out", asked)
    with pytest.raises(ImageError, match=r"there is no file 'gone\.mp4'"):
        explain_video(tmp_path / "gone.mp4", tmp_path / "out", asked)
    assert not (tmp_path / "out").exists()


def test_without_ffmpeg_it_says_how_to_get_it(clip, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(room, "find_spec", lambda _: None)
    with pytest.raises(MissingPackage, match=r"a video needs imageio-ffmpeg.*vizattn\[video\]"):
        explain_video(clip, tmp_path, asked)
    monkeypatch.undo()
    monkeypatch.setattr("imageio_ffmpeg.get_ffmpeg_exe", no_program)
    with pytest.raises(MissingPackage, match="a video needs ffmpeg"):
        explain_video(clip, tmp_path, asked)


def no_program():
    raise RuntimeError("No ffmpeg exe could be found.")


def test_a_video_is_no_figure(clip, asked, tmp_path):
    with pytest.raises(UnknownName, match="no format of a video named 'pdf'"):
        explain_video(clip, tmp_path, Asked(asked.model, asked.method, formats=("pdf",)))


def test_what_ffmpeg_cannot_write_is_said_in_its_words(tmp_path):
    with pytest.raises(VizattnError, match=r"MP4 could not be written: .*gone"):
        write_to(tmp_path / "gone" / "x.mp4")


def write_to(path):
    with Encoder(path, 10, "viridis", 0.85) as encoder:
        for number in range(200):
            encoder.write(shot(number % 9))


def test_a_video_on_the_command_line(clip, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vizattn", "explain", str(clip), "-o", str(tmp_path / "out"),
         "--size", "56"], capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"{N_FRAMES} frames on one scale: the last colour from" in done.stdout
    assert (tmp_path / "out" / "walk_raw.mp4").is_file()
