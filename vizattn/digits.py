"""Pictures of handwritten digits on textured ground, with the exact box of every digit.

What photographs do not have: it is known to the pixel where each class is. A map for "7" should
fall on the 7 and not on the 3 beside it, and whether it does can be counted.

The digits are 8×8 scans of real handwriting (Alpaydin and Kaynak 1998, "Optical Recognition of
Handwritten Digits"), drawn large, turned, sheared and coloured as light ink on dark to middling
ground. The scans are in order of their writers: the first three quarters are for training, the rest
are of writers that training never saw, half of them for tuning what is judged and half for reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from vizattn.errors import ImageError, UnknownName

CLASSES = 10
SIDE = 96
CELL = 8
SCAN = 8

# Sides of a digit's box in pixels, the smallest and one more than the largest.
_SIDES = (20, 27)
_TRIES = 200

# Shares of the scans, in the order in which they were collected.
SPLITS = {
    "train": (0.0, 0.75),
    "tune": (0.75, 0.875),
    "report": (0.875, 1.0),
    "held-out": (0.75, 1.0),
}


@dataclass(frozen=True)
class Scans:
    """Scans of single digits: ink from 0 to 1, and which digit each is."""

    ink: Float[Tensor, "scan 8 8"]
    digits: Int[Tensor, " scan"]

    def split(self, name: str) -> Scans:
        """The scans of one split: train, tune, report, or held-out for the last two together.

        Raises:
            UnknownName: There is no such split.
        """
        if name not in SPLITS:
            raise UnknownName("split", name, list(SPLITS))
        first, last = (round(share * len(self.digits)) for share in SPLITS[name])
        return Scans(self.ink[first:last], self.digits[first:last])


@dataclass(frozen=True)
class Scenes:
    """Pictures with what is in them.

    Attributes:
        pixels: Colours from 0 to 1.
        boxes: Left, top, right and bottom edge of each digit in pixels; -1 where it is absent.
    """

    pixels: Float[Tensor, "picture 3 height width"]
    boxes: Int[Tensor, "picture digit 4"]

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def present(self) -> Tensor:
        """Whether each digit is in each picture, boolean ``[picture, digit]``."""
        return self.boxes[:, :, 0] >= 0

    def picture(self, index: int) -> Image.Image:
        """One of the pictures, RGB."""
        pixels = (self.pixels[index] * 255).round().byte().permute(1, 2, 0)
        return Image.fromarray(pixels.numpy())


@dataclass(frozen=True)
class Scenery:
    """How pictures are made.

    Attributes:
        counts: The fewest and the most digits in a picture; none comes twice.
        jitter: Pixels by which a digit's cell may be off the grid of patches, at most.
        side: Of the picture, in pixels.
    """

    counts: tuple[int, int] = (2, 4)
    jitter: int = 4
    side: int = SIDE

    def scenes(self, scans: Scans, count: int, random: np.random.Generator) -> Scenes:
        """Make ``count`` pictures from scans."""
        boxes = np.full((count, CLASSES, 4), -1)
        for picture in range(count):
            self._place(boxes[picture], random)
        pixels = _ground(count, self.side, random)
        pictures, digits = np.nonzero(boxes[:, :, 0] >= 0)
        placed = boxes[pictures, digits]
        ink = _drawn(scans, digits, placed[:, 2] - placed[:, 0], random)
        colours = _ink_colours(len(digits), random)
        for index, (left, top, right, bottom), shape, colour in zip(
            pictures, placed, ink, colours, strict=True
        ):
            under = pixels[index, :, top:bottom, left:right]
            cover = shape[: bottom - top, : right - left]
            under += cover * (colour[:, None, None] - under)
        return Scenes(pixels.clamp_(0, 1), torch.from_numpy(boxes))

    def _place(self, boxes: np.ndarray, random: np.random.Generator) -> None:
        """Choose digits and places for one picture, at least a pixel apart."""
        wanted = int(random.integers(self.counts[0], self.counts[1] + 1))
        taken: list[np.ndarray] = []
        for digit in random.permutation(CLASSES)[:wanted].tolist():
            box = self._free_box(taken, random)
            if box is not None:
                taken.append(box)
                boxes[digit] = box

    def _free_box(self, taken: list[np.ndarray], random: np.random.Generator) -> np.ndarray | None:
        for _ in range(_TRIES):
            side = int(random.integers(*_SIDES))
            cell = random.integers(0, (self.side - 24) // CELL + 1, size=2) * CELL
            cell += random.integers(-self.jitter, self.jitter + 1, size=2)
            corner = np.clip(cell + (24 - side) // 2, 0, self.side - side)
            box = np.concatenate((corner, corner + side))
            if all(_apart(box, other) for other in taken):
                return box
        return None


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one[:2] > other[2:]).any() or (other[:2] > one[2:]).any())


def _drawn(
    scans: Scans, digits: np.ndarray, sides: np.ndarray, random: np.random.Generator
) -> Float[Tensor, "digit height width"]:
    """A scan of each digit, drawn large and turned a little; ink from 0 to 1 in its box."""
    pools = {digit: np.nonzero(scans.digits.numpy() == digit)[0] for digit in set(digits.tolist())}
    chosen = [random.choice(pools[digit]) for digit in digits.tolist()]
    n, widest = len(digits), _SIDES[1] - 1
    angle, shear = random.uniform(-0.22, 0.22, n), random.uniform(-0.2, 0.2, n)
    wide, high = 1 + random.uniform(-0.12, 0.12, n), 1 + random.uniform(-0.06, 0.06, n)
    cos, sin = np.cos(angle), np.sin(angle)
    # from a pixel of the box to a point of the scan: the turn undone, then shear and size
    turn = np.stack((np.stack((cos, sin), -1), np.stack((-sin, cos), -1)), -2)
    size = np.stack((np.stack((1 / wide, shear), -1), np.stack((0 * shear, 1 / high), -1)), -2)
    way = torch.from_numpy(size @ turn).float()
    middle = torch.arange(widest) + 0.5
    across = middle / torch.from_numpy(sides)[:, None].float() * 2 - 1
    square = (n, widest, widest)
    grid = torch.stack((across[:, None, :].expand(square), across[:, :, None].expand(square)), -1)
    points = torch.einsum("nij, nyxj -> nyxi", way, grid)
    ink = F.grid_sample(scans.ink[chosen][:, None], points, mode="bicubic", align_corners=False)
    inside = (across <= 1).float()
    return ink[:, 0].clamp(0, 1) * inside[:, None, :] * inside[:, :, None]


def _ink_colours(count: int, random: np.random.Generator) -> Float[Tensor, "digit 3"]:
    """Light, with a tint."""
    light = random.uniform(0.9, 1.0, (count, 1)) - random.uniform(0, 0.15, (count, 3))
    return torch.from_numpy(light).float()


def _ground(
    count: int, side: int, random: np.random.Generator
) -> Float[Tensor, "picture 3 side side"]:
    """Dark to middling ground with a slope, soft blotches, stripes, lines and grain."""

    def some(low: float, high: float, *shape: int) -> Tensor:
        return torch.from_numpy(random.uniform(low, high, (count, *shape))).float()

    place = torch.linspace(-1, 1, side)
    y, x = place[:, None], place[None, :]
    ground = (
        some(0.1, 0.5, 3, 1, 1) + some(-0.12, 0.12, 1, 1, 1) * x + some(-0.12, 0.12, 1, 1, 1) * y
    )
    for cells, amount in ((3, 0.12), (7, 0.08), (15, 0.05)):
        blotches = some(-amount, amount, 3, cells, cells)
        ground += F.interpolate(blotches, size=(side, side), mode="bilinear", align_corners=True)
    wave = some(-25, 25, 1, 1, 1) * x + some(-25, 25, 1, 1, 1) * y
    ground += some(0, 0.06, 1, 1, 1) * torch.sin(wave + some(0, 6.3, 1, 1, 1))
    for _ in range(3):
        angle = some(0, 6.3, 1, 1, 1)
        distance = torch.cos(angle) * x + torch.sin(angle) * y - some(-0.9, 0.9, 1, 1, 1)
        ground += some(-0.2, 0.2, 3, 1, 1) * (distance.abs() < some(0.008, 0.025, 1, 1, 1))
    grain = torch.from_numpy(random.standard_normal((count, 3, side, side), dtype=np.float32))
    return (ground + 0.02 * grain).clamp_(0, 0.7)


@cache
def read_scans(path: Path) -> Scans:
    """Read scans from a PNG: tiles of 8×8 in reading order, their digits in its text ``digits``.

    Raises:
        ImageError: The picture is not such a sheet.
    """
    with Image.open(path) as file:
        named = str(file.info.get("digits", ""))
        sheet = torch.from_numpy(np.array(file.convert("L"))).float() / 255
    tiles = sheet.unfold(0, SCAN, SCAN).unfold(1, SCAN, SCAN).flatten(0, 1)
    if not named.isdecimal() or len(named) > len(tiles):
        raise ImageError(
            f"{path.name} has {len(tiles)} tiles of 8×8 pixels and {len(named)} digits that name "
            f"them; a digit for each tile was expected in the text 'digits'. Was it saved again?"
        )
    return Scans(tiles[: len(named)], torch.tensor([int(digit) for digit in named]))
