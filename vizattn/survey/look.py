"""One model looks at the pictures of one part and writes it: the same code wherever it runs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from vizattn import __version__
from vizattn.batch import capture_prepared
from vizattn.errors import SurveyError, VizattnError
from vizattn.frame import Frame
from vizattn.many.prepare import WORKERS, Failed, Prepared, batches, prepared
from vizattn.many.run import is_of_all, records_of
from vizattn.many.sources import Source
from vizattn.models import VisionModel
from vizattn.record import AttentionRecord
from vizattn.survey.notes import LayerNote
from vizattn.survey.numbers import SINK, picture_numbers
from vizattn.survey.parts import Identity, Seen, identity, write_part

# Values of each tensor that go into a model's fingerprint.
_SAMPLES = 1024

# What differs from process to process in the words for a function.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Asked:
    """What is asked of every picture of a survey.

    Attributes:
        model: The model.
        weights: Where its weights are from.
        batch: Pictures in one pass of the model; by the size of their pixels when ``None``.
    """

    model: VisionModel
    weights: str = "pretrained"
    batch: int | None = None

    def key(self) -> dict[str, Any]:
        """All that changes the numbers, as plain values."""
        return {
            "vizattn": __version__,
            "model": self.model.name,
            "weights": self.weights,
            "fingerprint": fingerprint(self.model.module),
            "preprocessing": _ADDRESS.sub("", repr(self.model.transform)),
            "sink": SINK,
        }


@dataclass
class Surveyor:
    """One model and the folder that it writes parts to.

    Attributes:
        asked: What is asked of every picture.
        folder: Where parts go.
        key: What they say of that, as ``Asked.key`` gives it.
        workers: Threads that read pictures.
    """

    asked: Asked
    folder: Path
    key: dict[str, Any]
    workers: int = WORKERS
    _layers: tuple[tuple[str, int], ...] = field(default=(), init=False)

    def look(
        self, sources: Sequence[Source], progress: Progress = lambda _done: None
    ) -> list[Failed]:
        """Look at some pictures and write the part that holds them.

        When it is interrupted, what was seen so far is written as a part of its own.

        Args:
            sources: The pictures.
            progress: Called with how many of them are done.

        Returns:
            Those that could not be looked at.

        Raises:
            VizattnError: The first picture says that none can be.
        """
        seen: list[Seen] = []
        failed: list[Failed] = []
        try:
            for done in self._each(sources):
                if isinstance(done, Seen):
                    seen.append(done)
                elif not self._layers and is_of_all(done.error):
                    raise done.error
                else:
                    failed.append(done)
                progress(len(seen) + len(failed))
        finally:
            if seen:
                write_part(self.folder, self.key, sorted(seen, key=lambda each: each.identity))
        return failed

    def _each(self, sources: Sequence[Source]) -> Iterator[Seen | Failed]:
        """The pictures as they are done; those of one size come together."""
        states: dict[Source, Identity] = {}

        def noted() -> Iterator[Source]:
            for source in sources:  # before it is read: what changes in between is seen next time
                states[source] = _state(source)
                yield source

        reading = prepared(noted(), self.asked.model.transform, self.workers)
        try:
            for ready in batches(reading, self.asked.batch):
                if isinstance(ready, Failed):
                    yield ready
                    continue
                for picture, record in zip(ready, records_of(ready, self._records), strict=True):
                    yield self._seen(picture, record, states[picture.source])
        finally:
            reading.close()  # type: ignore[attr-defined]  # a generator, whatever it says it is

    def _records(
        self, _images: Sequence[Image.Image], pixels: Tensor, frames: Sequence[Frame]
    ) -> list[AttentionRecord]:
        return capture_prepared(self.asked.model, pixels, frames, values=False)

    def _seen(
        self, picture: Prepared, record: AttentionRecord | Failed, state: Identity
    ) -> Seen | Failed:
        if isinstance(record, Failed):
            return record
        try:
            numbers = picture_numbers(record)
            self._check_layers(numbers.layers)
        except VizattnError as error:
            return Failed(picture.source, error)
        return Seen(state, record.input_size, numbers)

    def _check_layers(self, layers: Sequence[LayerNote]) -> None:
        names = tuple((layer.name, layer.n_heads) for layer in layers)
        self._layers = self._layers or names
        if names != self._layers:
            raise SurveyError(
                f"{len(names)} attention calls were made in this picture and other ones in the "
                f"first, which has {len(self._layers)}; a survey compares the same calls."
            )


def fingerprint(module: nn.Module) -> str:
    """Tells models with other weights apart: by a sample of each of their tensors."""
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        found.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = tensor.detach().flatten()
        some = flat[:: max(1, len(flat) // _SAMPLES)].cpu()
        found.update(some.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _state(source: Source) -> Identity:
    try:
        return identity(source)
    except OSError:  # it is gone; who reads it says so
        return source.name, 0, 0
