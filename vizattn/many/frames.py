"""Frames of a video, in and out, one at a time: ffmpeg decodes and encodes in processes of its own.

A film of any length passes through in the memory of a few frames.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from vizattn.animation import SIDE, palette_for
from vizattn.errors import ImageError, MissingPackage, VizattnError

VIDEOS = frozenset(
    {".avi", ".flv", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}
)

_RATE = re.compile(r"([\d.]+) (?:fps|tbr)")
_DURATION = re.compile(r"Duration: (\d+):(\d+):([\d.]+)")

Pixels = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True)
class Clip:
    """A video file.

    Attributes:
        path: Where it is.
        width: Width of a frame in pixels.
        height: Height of a frame.
        rate: Frames per second.
        n_frames: About how many there are, by its duration; 0 when it does not say.
    """

    path: Path
    width: int
    height: int
    rate: float
    n_frames: int

    @classmethod
    def open(cls, path: Path) -> Clip:
        """Read what a file says of itself, and its first frame.

        Raises:
            ImageError: There is no such file, or it is no video.
            MissingPackage: There is no ffmpeg to read it.
        """
        said = _about(path)
        rate = next((float(each) for each in _RATE.findall(said) if float(each)), 0.0)
        if not rate:
            raise _no_video(path)
        with closing(_decode(path, rate)) as frames:
            first = next(frames, None)
        if first is None:
            raise _no_video(path)
        hours, minutes, seconds = next(iter(_DURATION.findall(said)), (0, 0, 0))
        duration = 3600 * int(hours) + 60 * int(minutes) + float(seconds)
        return cls(path, *first.size, rate, round(duration * rate))

    def __iter__(self) -> Iterator[Image.Image]:
        """Its frames, RGB, from the first to the last."""
        return _decode(self.path, self.rate)


def is_video(path: Path) -> bool:
    """Whether a file is named like a video, or is a GIF that moves."""
    if path.suffix.lower() != ".gif":
        return path.suffix.lower() in VIDEOS
    try:
        with Image.open(path) as image:
            return bool(getattr(image, "is_animated", False))
    except (OSError, UnidentifiedImageError):
        return False


def ffmpeg() -> str:
    """The program that reads and writes videos.

    Raises:
        MissingPackage: There is none.
    """
    if find_spec("imageio_ffmpeg") is None:
        raise MissingPackage("a video", "imageio-ffmpeg", "vizattn[video]")
    import imageio_ffmpeg

    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError as error:
        raise MissingPackage("a video", "ffmpeg", "vizattn[video]") from error


def _about(path: Path) -> str:
    """What ffmpeg says of a file that it is given and asked nothing about."""
    program = ffmpeg()
    if not path.is_file():
        raise ImageError(f"there is no file {path.name!r}. Is the path right?")
    command = [program, "-hide_banner", "-i", f"file:{path}"]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.stderr.decode(errors="replace")


def _no_video(path: Path) -> ImageError:
    return ImageError(
        f"{path.name!r} is not a video that can be read here. MP4, WebM, MOV, MKV, AVI and GIF "
        f"work; is the file whole?"
    )


def _decode(path: Path, rate: float) -> Generator[Image.Image]:
    """Frames as they are shown, turned upright, at an even rate."""
    command = [ffmpeg(), "-loglevel", "error", "-i", f"file:{path}", "-map", "0:v:0"]
    command += ["-r", f"{rate:g}", "-f", "image2pipe", "-c:v", "ppm", "-pix_fmt", "rgb24", "-"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        while process.stdout.readline() == b"P6\n":
            width, height = map(int, process.stdout.readline().split())
            process.stdout.readline()  # the largest value
            data = process.stdout.read(3 * width * height)
            if len(data) < 3 * width * height:
                return
            yield Image.frombytes("RGB", (width, height), data)
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


class Encoder:
    """Writes frames to a file as they come; a context.

    Attributes:
        path: The file, whose ending says how: ``.mp4`` is H.264 that browsers and phones play,
            ``.gif`` a smaller picture in colours that are the same in all frames.
    """

    def __init__(self, path: Path, rate: float, colours: str, opacity: float) -> None:
        self.path = path
        self._rate = rate
        self._look = colours, opacity
        self._process: subprocess.Popen[bytes] | None = None
        self._beside = tempfile.TemporaryDirectory()
        self._said = Path(self._beside.name, "said")
        self._palette = Path(self._beside.name, "palette.png")

    def __enter__(self) -> Encoder:
        return self

    def write(self, frame: Pixels) -> None:
        """Add a frame; all have the size of the first.

        Raises:
            VizattnError: ffmpeg stopped, with its own words.
        """
        height, width = frame.shape[:2]
        if self.path.suffix == ".mp4":  # its colours lie on every second pixel
            frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        if self._process is None:
            self._process = self._start(*frame.shape[1::-1])
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(np.ascontiguousarray(frame).tobytes())
        except OSError:
            self._fail()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        process = self._process
        try:
            if process is not None and kind is not None:
                process.kill()
            if process is not None and process.stdin is not None:
                process.communicate()
            if kind is None and process is not None and process.returncode:
                self._fail()
        finally:
            self._beside.cleanup()

    def _start(self, width: int, height: int) -> subprocess.Popen[bytes]:
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        command = [ffmpeg(), "-y", "-loglevel", "error", *raw, "-r", f"{self._rate:g}", "-i", "-"]
        if self.path.suffix == ".gif":
            command += self._as_gif(width, height)
        else:
            command += ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "18"]
            command += ["-preset", "veryfast", "-movflags", "+faststart"]
        with self._said.open("wb") as said:
            return subprocess.Popen([*command, str(self.path)], stdin=subprocess.PIPE, stderr=said)

    def _as_gif(self, width: int, height: int) -> list[str]:
        """One palette for all frames, made of what the colour map can make of greys."""
        share = min(1.0, SIDE / max(width, height))
        Image.fromarray(palette_for(*self._look).reshape(16, 16, 3)).save(self._palette)
        size = f"{max(1, round(width * share))}:{max(1, round(height * share))}"
        chain = f"[0:v]scale={size}:flags=area[x];[x][1:v]paletteuse=dither=bayer:bayer_scale=4"
        return ["-i", str(self._palette), "-filter_complex", chain, "-loop", "0"]

    def _fail(self) -> None:
        said = self._said.read_text(errors="replace").strip().splitlines()
        why = said[0] if said else "ffmpeg stopped"
        raise VizattnError(f"{self.path.suffix[1:].upper()} could not be written: {why}.")
