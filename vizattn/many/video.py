"""A video in, a video out: every frame with its own map, all frames on one colour scale.

The scale is that of the whole film, the 99.5th percentile of all patches of all frames, so the film
is read twice: first the model looks and the maps, a few thousand numbers each, go to a temporary
file; then frames are read again and drawn. What is kept in memory does not grow with the film.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vizattn.errors import ImageError, UnknownName
from vizattn.explain import Explanation
from vizattn.export import describe, file_stem
from vizattn.files import written_whole
from vizattn.frame import Frame
from vizattn.heatmap import Heatmap
from vizattn.many.frames import Clip, Encoder, Pixels
from vizattn.many.journal import Journal
from vizattn.many.prepare import batch_size, in_groups, read_ahead
from vizattn.many.run import Asked
from vizattn.many.sources import Source
from vizattn.overlay import SIGNED, TOP_PERCENTILE, overlay
from vizattn.record import AttentionRecord

FORMATS = ("mp4", "gif", "npz")

Progress = Callable[[str, int, int], None]
_Ready = tuple[Image.Image, Tensor, Frame]


@dataclass(frozen=True)
class Film:
    """What a video was made into.

    Attributes:
        files: What was written.
        n_frames: How many frames it has.
        sentence: What is shown in the first of them.
        top: The value from which on patches take the last colour, in all frames.
    """

    files: tuple[Path, ...]
    n_frames: int
    sentence: str
    top: float


def explain_video(
    path: Path,
    folder: Path,
    asked: Asked,
    *,
    again: bool = False,
    batch: int | None = None,
    progress: Progress = lambda _words, _done, _of: None,
) -> Film | None:
    """Look at every frame of a video and write it with the maps laid over, at its own rate.

    Args:
        path: The video.
        folder: Where to write.
        asked: What is asked of each frame; formats are ``mp4``, ``gif``, and ``npz`` for the true
            numbers.
        again: Do it also when it is there already.
        batch: How many frames to look at together; by their size when left out.
        progress: Called with what is done, the number of frames, and how many there are (0 when
            nobody knows).

    Returns:
        What was written; ``None`` when it was there already.

    Raises:
        ImageError: It is no video.
        MissingPackage: There is no ffmpeg.
        UnknownName: There is no such format for a video.
    """
    for name in asked.formats:
        if name not in FORMATS:
            raise UnknownName("format of a video", name, FORMATS)
    clip = Clip.open(path)
    folder.mkdir(parents=True, exist_ok=True)
    source, journal = Source(path, path.name, path.stem), Journal(folder, asked.key)
    if not again and journal.has(source):
        return None
    with tempfile.TemporaryFile() as kept:
        first, n_frames = _look(clip, asked, batch, kept, progress)
        maps = _Maps(
            first.heatmap,
            np.memmap(kept, np.float32, "r", shape=(n_frames, _length(first.heatmap))),
        )
        stem = file_stem(first, source.stem)
        paths = tuple(folder / f"{stem}.{name}" for name in asked.formats)
        with ExitStack() as whole:
            parts = [whole.enter_context(written_whole(each)) for each in paths]
            _draw(clip, maps, [part for part in parts if part.suffix != ".npz"], asked, progress)
            for part in parts:
                if part.suffix == ".npz":
                    _save(part, first, maps, clip)
    journal.add(source, paths)
    return Film(paths, n_frames, first.heatmap.sentence, maps.top)


@dataclass(frozen=True)
class _Maps:
    """The maps of all frames, as they lie in a file: values, then what went to prefix tokens."""

    first: Heatmap
    numbers: Float[np.ndarray, "frame number"]

    @property
    def values(self) -> Float[np.ndarray, "frame row col"]:
        shape = self.first.grid.rows, self.first.grid.cols
        values: np.ndarray = self.numbers[:, : shape[0] * shape[1]].reshape(-1, *shape)
        return values

    @property
    def prefix(self) -> Float[np.ndarray, "frame prefix"]:
        return self.numbers[:, self.first.values.numel() :]

    @property
    def top(self) -> float:
        return float(np.quantile(np.abs(self.values), TOP_PERCENTILE / 100))

    @property
    def signed(self) -> bool:
        return bool((self.values < 0).any())

    def __iter__(self) -> Iterator[Heatmap]:
        for values in self.values:
            yield replace(self.first, values=torch.from_numpy(np.array(values)))


def _look(
    clip: Clip, asked: Asked, batch: int | None, kept: IO[bytes], progress: Progress
) -> tuple[Explanation, int]:
    """Write the map of every frame to a file; the first frame explained, and how many there are."""

    def ready(image: Image.Image) -> _Ready:
        return image, *asked.model.transform(image)

    def look(group: list[_Ready]) -> list[AttentionRecord]:
        pixels = torch.stack([pixels for _, pixels, _ in group])
        return asked.look([image for image, *_ in group], pixels, [frame for *_, frame in group])

    def together(each: _Ready) -> int:
        return batch or batch_size(each[1])

    first: Explanation | None = None
    done = 0
    progress("Looking", 0, clip.n_frames)
    for group in in_groups(read_ahead(clip, ready), together):
        for (image, _, _), record in zip(group, look(group), strict=True):
            heat = asked.method.heatmap(record, at=asked.at)
            numbers = torch.cat([heat.values.flatten(), heat.prefix_mass]).float()
            kept.write(numbers.numpy().tobytes())
            if first is None:
                light = replace(record, layers=())
                first = asked.explained(image, clip.path.name, light, heat)
        done += len(group)
        progress("Looking", done, max(done, clip.n_frames))
    kept.flush()
    if first is None:
        raise ImageError(f"{clip.path.name!r} has no frames.")
    return first, done


def _length(heat: Heatmap) -> int:
    return heat.values.numel() + len(heat.prefix_mass)


def _draw(clip: Clip, maps: _Maps, paths: list[Path], asked: Asked, progress: Progress) -> None:
    """Lay the maps over the frames and write them."""
    if not paths:
        return
    top, signed, n_frames = maps.top, maps.signed, len(maps.numbers)

    def drawn(pair: tuple[Image.Image, Heatmap]) -> Pixels:
        return overlay(*pair, top=top, signed=signed, **asked.overlay)

    colours = SIGNED if signed else asked.overlay.get("colours", "viridis")
    look = colours, asked.overlay.get("opacity", 0.85)
    with ExitStack() as open_files:
        encoders = [open_files.enter_context(Encoder(path, clip.rate, *look)) for path in paths]
        pairs = zip(clip, maps, strict=False)
        for number, frame in enumerate(read_ahead(pairs, drawn), 1):
            for encoder in encoders:
                encoder.write(frame)
            progress("Drawing", number, n_frames)


def _save(path: Path, first: Explanation, maps: _Maps, clip: Clip) -> None:
    """The true numbers of all frames."""
    scale = {"rate": clip.rate, "top_percentile": TOP_PERCENTILE, "top": maps.top}
    heat = first.heatmap
    np.savez(
        path,
        allow_pickle=False,
        values=maps.values,
        prefix_mass=maps.prefix,
        prefix=np.array(heat.grid.roles, dtype=str),
        grid=np.array([heat.grid.rows, heat.grid.cols, heat.grid.prefix]),
        frame=np.array([heat.frame.left, heat.frame.top, heat.frame.width, heat.frame.height]),
        manifest=np.array(json.dumps(describe(first) | {"video": scale})),
    )
