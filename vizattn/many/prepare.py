"""Pictures read ahead by other threads, and put together into batches of one size.

Threads and not processes: Pillow decodes and resizes without holding Python's lock, while the model
runs; a process would first load PyTorch again and then send every picture through a pipe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from PIL import Image
from torch import Tensor

from vizattn.errors import VizattnError
from vizattn.frame import Frame
from vizattn.images import open_image
from vizattn.many.sources import Source
from vizattn.models.vision import Transform

Item = TypeVar("Item")
Result = TypeVar("Result")

WORKERS = 2

# A batch of so many pixels of the model's input keeps the cores busy; more only takes memory.
_BATCH_PIXELS = 1_100_000
_LARGEST_BATCH = 16

# Pictures that wait for others of their size: never more batches than this, or pixels of theirs.
_WAITING_BATCHES = 4
_WAITING_PIXELS = 100_000_000


@dataclass(frozen=True)
class Prepared:
    """A picture that was read.

    Attributes:
        source: Which one.
        image: The picture, upright, RGB.
        pixels: What the model takes of it, ``[3, height, width]``.
        frame: Which part of the picture that is.
    """

    source: Source
    image: Image.Image
    pixels: Tensor
    frame: Frame


@dataclass(frozen=True)
class Failed:
    """A picture that could not be read or looked at, and a sentence why."""

    source: Source
    error: Exception

    @property
    def sentence(self) -> str:
        """Why, for people."""
        if isinstance(self.error, VizattnError):
            return str(self.error)
        return f"{type(self.error).__name__}: {self.error}"


def prepared(
    sources: Iterable[Source], transform: Transform, workers: int = WORKERS
) -> Iterator[Prepared | Failed]:
    """Read pictures ahead, in their order."""

    def read(source: Source) -> Prepared | Failed:
        try:
            image = open_image(source.path)
            return Prepared(source, image, *transform(image))
        except Exception as error:  # one bad file does not stop the others
            return Failed(source, error)

    return read_ahead(sources, read, workers)


def read_ahead(
    items: Iterable[Item], read: Callable[[Item], Result], workers: int = WORKERS
) -> Iterator[Result]:
    """What other threads make of the next few items, in their order."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="read")
    try:
        remaining = iter(items)
        ahead = deque(pool.submit(read, item) for item in islice(remaining, 2 * workers))
        while ahead:
            done = ahead.popleft().result()
            ahead.extend(pool.submit(read, item) for item in islice(remaining, 1))
            yield done
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def in_groups(items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Items that all are of one kind, as many together as the first of them says."""
    remaining = iter(items)
    for first in remaining:
        yield [first, *islice(remaining, size(first) - 1)]


def batches(
    pictures: Iterable[Prepared | Failed], size: int | None = None
) -> Iterator[list[Prepared] | Failed]:
    """Batches of pictures whose pixels have one size, and what could not be read.

    Args:
        pictures: As they come.
        size: How many make a batch; by the size of their pixels when left out.
    """
    waiting: dict[tuple[int, ...], list[Prepared]] = {}
    for picture in pictures:
        if isinstance(picture, Failed):
            yield picture
            continue
        shape = tuple(picture.pixels.shape)
        group = waiting.setdefault(shape, [])
        group.append(picture)
        full = size or batch_size(picture.pixels)
        if len(group) >= full:
            yield waiting.pop(shape)
        elif _are_too_many(list(waiting.values()), full):
            yield waiting.pop(max(waiting, key=lambda each: len(waiting[each])))
    yield from waiting.values()


def batch_size(pixels: Tensor) -> int:
    """How many pictures of this size are looked at together."""
    return max(1, min(_LARGEST_BATCH, _BATCH_PIXELS // pixels[0].numel()))


def _are_too_many(groups: Sequence[Sequence[Prepared]], full: int) -> bool:
    pictures = [picture for group in groups for picture in group]
    n_pixels = sum(picture.image.width * picture.image.height for picture in pictures)
    return len(pictures) >= _WAITING_BATCHES * full or n_pixels > _WAITING_PIXELS
