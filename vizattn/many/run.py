"""Look at many pictures: read ahead, look in batches, write behind, and go on where it stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vizattn import __version__
from vizattn.batch import capture_prepared
from vizattn.errors import FrameError, ImageError, VizattnError
from vizattn.explain import Explanation, record_for
from vizattn.export import check_formats, save_explanation
from vizattn.frame import Frame
from vizattn.heatmap import Heatmap
from vizattn.many.journal import Journal
from vizattn.many.prepare import WORKERS, Failed, Prepared, batches, prepared
from vizattn.many.sources import Source
from vizattn.methods import Asker, Method
from vizattn.models import VisionModel
from vizattn.record import AttentionRecord
from vizattn.targets import Target

# These need nothing of a record but its name, so that its tensors need not wait to be written.
_LIGHT = frozenset({"png", "npz", "json", "py"})

# Errors that are about one picture; another one on the first picture is about all of them.
_OF_A_PICTURE = (ImageError, FrameError)


@dataclass(frozen=True)
class Asked:
    """What is asked of every picture.

    Attributes:
        model: The model.
        method: The method with its settings.
        at: Who asks, ``None`` for the model's own query.
        target: What a method with gradients explains; see ``explain``.
        formats: What to write.
        overlay: How overlays are coloured, as ``save_explanation`` takes it.
        weights: Where the model's weights are from.
    """

    model: VisionModel
    method: Method
    at: Asker | None = None
    target: Target | None = None
    formats: Sequence[str] = ("png", "npz")
    overlay: Mapping[str, Any] = field(default_factory=dict)
    weights: str = "pretrained"

    @property
    def key(self) -> dict[str, Any]:
        """All that changes what is written, as plain values."""
        return {
            "version": __version__,
            "model": [self.model.name, self.weights, repr(self.model.transform)],
            "method": repr(self.method),
            "at": self.at,
            "target": repr(self.target),
            "formats": list(self.formats),
            "overlay": dict(self.overlay),
        }

    def explained(
        self, image: Image.Image, name: str, record: AttentionRecord, heat: Heatmap
    ) -> Explanation:
        """What was seen in one picture, with what was asked."""
        return Explanation(image, name, record, self.method, self.model, self.at, heat, self.target)

    def look(
        self, images: Sequence[Image.Image], pixels: Tensor, frames: Sequence[Frame]
    ) -> list[AttentionRecord]:
        """A record of each picture of a batch, with all that the method needs.

        Args:
            images: The pictures.
            pixels: What the model takes of them, ``[batch, 3, height, width]``.
            frames: Which part of its picture each shows.
        """
        if self.method.wanted:  # a backward pass belongs to one picture
            return [record_for(self.model, image, self.method, self.target) for image in images]
        return capture_prepared(self.model, pixels, frames, values=False)


@dataclass(frozen=True)
class Outcome:
    """What became of many pictures.

    Attributes:
        written: How many were looked at and written.
        skipped: How many were there already.
        failed: Those that could not be, each with its sentence.
    """

    written: int
    skipped: int
    failed: tuple[Failed, ...]


Progress = Callable[[int], None]
Look = Callable[[Sequence[Image.Image], Tensor, Sequence[Frame]], list[AttentionRecord]]


def explain_many(
    sources: Sequence[Source],
    folder: Path,
    asked: Asked,
    *,
    again: bool = False,
    batch: int | None = None,
    workers: int = WORKERS,
    progress: Progress = lambda _done: None,
) -> Outcome:
    """Look at pictures and write what is seen, sub-folders kept; what is there is not done again.

    Args:
        sources: The pictures.
        folder: Where to write.
        asked: What is asked of each.
        again: Do also what is there already.
        batch: How many pictures to look at together; by their size when left out.
        workers: Threads that read, and as many that write.
        progress: Called with how many pictures are done, those that were there included.

    Raises:
        VizattnError: What is asked cannot be done on any picture.
    """
    check_formats(asked.formats)
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder, asked.key)
    to_do = [source for source in sources if again or not journal.has(source)]
    skipped = len(sources) - len(to_do)
    progress(skipped)
    failed: list[Failed] = []
    written = 0
    for done in _explained(to_do, folder, asked, batch, workers):
        if isinstance(done, Failed):
            if not written and is_of_all(done.error):
                raise done.error
            failed.append(done)
        else:
            journal.add(*done)
            written += 1
        progress(skipped + written + len(failed))
    return Outcome(written, skipped, tuple(sorted(failed, key=lambda each: each.source.name)))


def is_of_all(error: Exception) -> bool:
    """Whether an error on the first picture says that what is asked cannot be done on any."""
    return isinstance(error, VizattnError) and not isinstance(error, _OF_A_PICTURE)


Written = tuple[Source, list[Path]]


def _explained(
    sources: Iterable[Source], folder: Path, asked: Asked, batch: int | None, workers: int
) -> Iterator[Written | Failed]:
    """Each picture once its files are there. Never more than some wait to be written."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="write")
    writing: dict[Future[list[Path]], Source] = {}
    reading = prepared(sources, asked.model.transform, workers)
    try:
        for ready in batches(reading, batch):
            if isinstance(ready, Failed):
                yield ready
                continue
            for seen in _look(ready, asked):
                if isinstance(seen, Failed):
                    yield seen
                    continue
                source, explanation = seen
                writing[pool.submit(_write, source, explanation, folder, asked)] = source
            yield from _finished(writing, 2 * len(ready))
        yield from _finished(writing, 0)
    finally:
        reading.close()  # type: ignore[attr-defined]  # a generator, whatever it says it is
        pool.shutdown(cancel_futures=True)


def _finished(writing: dict[Future[list[Path]], Source], most: int) -> Iterator[Written | Failed]:
    """What is written by now, and the oldest until no more than so many wait."""
    ready = [future for future in writing if future.done()]
    waiting = [future for future in writing if not future.done()]
    for future in [*ready, *islice(waiting, max(0, len(waiting) - most))]:
        source = writing.pop(future)
        try:
            yield source, future.result()
        except VizattnError as error:
            yield Failed(source, error)


def _look(ready: list[Prepared], asked: Asked) -> Iterator[tuple[Source, Explanation] | Failed]:
    """What is seen in the pictures of a batch, which stand for each other where they can."""
    for picture, record in zip(ready, records_of(ready, asked.look), strict=True):
        if isinstance(record, Failed):
            yield record
            continue
        try:
            heat = asked.method.heatmap(record, at=asked.at)
        except VizattnError as error:
            yield Failed(picture.source, error)
            continue
        if set(asked.formats) <= _LIGHT:
            record = replace(record, layers=())
        name = picture.source.name
        yield (
            picture.source,
            asked.explained(picture.image, name, record, heat),
        )


def records_of(ready: list[Prepared], look: Look) -> list[AttentionRecord | Failed]:
    """A record of each picture of a batch; where it fails, of those that do not fail alone.

    Args:
        ready: The pictures, of one size as the model takes them.
        look: Makes a record of each from the pictures, their pixels, and the part each shows.
    """
    pixels = torch.stack([picture.pixels for picture in ready])
    try:
        images, frames = [each.image for each in ready], [each.frame for each in ready]
        return list(look(images, pixels, frames))
    except Exception as error:  # whatever a model says of a picture that it cannot take
        if len(ready) == 1:
            return [Failed(ready[0].source, error)]
    return [record for picture in ready for record in records_of([picture], look)]


def _write(source: Source, explanation: Explanation, folder: Path, asked: Asked) -> list[Path]:
    try:
        return save_explanation(
            explanation, folder / source.folder, formats=asked.formats, stem=source.stem,
            **asked.overlay,
        )  # fmt: skip
    except OSError as error:
        raise VizattnError(
            f"what was seen in {source.name} cannot be written to {folder}: {error.strerror}."
        ) from error
