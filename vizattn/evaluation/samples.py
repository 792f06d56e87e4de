"""What judges look at: pictures, a target in each, and where it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vizattn.digits import Scans, Scenery
from vizattn.errors import EvaluationError
from vizattn.evaluation.answers import Answer
from vizattn.evaluation.regions import Box
from vizattn.images import open_image
from vizattn.models import VisionModel
from vizattn.targets import Target

_TILES = 2


@dataclass(frozen=True)
class Sample:
    """One question about one picture.

    Attributes:
        name: What it is called in results; no two are called the same.
        group: The picture it belongs to: questions about one picture are not independent.
        picture: RGB.
        target: What a method is to explain; ``None`` for the model's own.
        box: Where that is, if it is known.
        label: The class that the picture truly shows, by index, if it is known.
        mask: Pixels that show it, boolean ``[height, width]``, if they are known.
    """

    name: str
    group: int
    picture: Image.Image
    target: Target | None
    box: Box | None = None
    label: int | None = None
    mask: Tensor | None = None


def digit_samples(
    model: VisionModel, scans: Scans, count: int, seed: int, *, at_once: int = 50
) -> Iterator[Sample]:
    """Pictures of digits and, for each digit that is there and was found, a question about it.

    A digit counts as found when its probability is above a half: why a model sees what it does not
    see cannot be asked.

    Args:
        model: A classifier of the ten digits.
        scans: Of the split to draw from.
        count: How many pictures.
        seed: Which pictures; the first ones are the same however many are asked for.
        at_once: Pictures that are made together.
    """
    for start in range(0, count, at_once):
        random = np.random.default_rng([seed, start])
        scenes = Scenery().scenes(scans, at_once, random)
        for index in range(min(at_once, count - start)):
            picture = scenes.picture(index)
            pixels, _ = model.transform(picture)
            with torch.no_grad():
                found = model.module(pixels.unsqueeze(0))[0] > 0
            for digit in (scenes.present[index] & found).nonzero().flatten().tolist():
                box = Box(*scenes.boxes[index, digit].tolist())
                yield Sample(f"{start + index}:{digit}", start + index, picture, digit, box)


def mosaic_samples(
    model: VisionModel, photos: Sequence[Path], count: int, side: int, seed: int
) -> Iterator[Sample]:
    """Mosaics of 2 × 2 photos, and for each of their tiles the question where its photo is.

    The target is the embedding of the photo alone, or its top class where the model has classes.
    In one mosaic the photos differ, and where they come from four folders or more, so do their
    folders: what lies in one folder may be pieces of one photo. Each comes about as often as the
    others.

    Args:
        model: Any model.
        photos: Files; at least four.
        count: How many mosaics; four questions each.
        side: Of a mosaic in pixels.
        seed: Which mosaics.

    Raises:
        EvaluationError: There are fewer than four photos.
    """
    if len(photos) < _TILES**2:
        raise EvaluationError(
            f"got {len(photos)} photos; a mosaic is made of {_TILES**2} that differ. Is it the "
            f"right folder?"
        )
    targets: dict[Path, Target] = {}
    for number, chosen in enumerate(_dealt(photos, count, seed)):
        half = side // _TILES
        mosaic = Image.new("RGB", (half * _TILES, half * _TILES))
        for tile, path in enumerate(chosen):
            mosaic.paste(squared(open_image(path), half), _corner(tile, half))
        for tile, path in enumerate(chosen):
            if path not in targets:
                targets[path] = _target_of(model, squared(open_image(path), side))
            left, top = _corner(tile, half)
            box = Box(left, top, left + half, top + half)
            yield Sample(f"{number}:{tile}", number, mosaic, targets[path], box)


def photo_samples(photos: Sequence[Path]) -> Iterator[Sample]:
    """Photos as they are, each with the model's own target."""
    for number, path in enumerate(photos):
        yield Sample(path.name, number, open_image(path), None)


def squared(image: Image.Image, side: int) -> Image.Image:
    """The middle square of a picture at another size."""
    shorter = min(image.size)
    left, top = (image.width - shorter) // 2, (image.height - shorter) // 2
    box = (left, top, left + shorter, top + shorter)
    return image.resize((side, side), Image.Resampling.BICUBIC, box)


def _dealt(photos: Sequence[Path], count: int, seed: int) -> Iterator[list[Path]]:
    """Hands of four photos that may meet, dealt from decks that hold each photo once."""
    random = np.random.default_rng(seed)
    wanted = _TILES**2
    by_folder = len({photo.parent for photo in photos}) >= wanted
    deck: list[Path] = []
    for _ in range(count):
        hand: dict[Path, Path] = {}
        while len(hand) < wanted:
            deck = deck or [photos[index] for index in random.permutation(len(photos))]
            fits = (photo for photo in deck if _kin(photo, by_folder) not in hand)
            photo = next(fits, None)
            if photo is None:
                deck = []
                continue
            deck.remove(photo)
            hand[_kin(photo, by_folder)] = photo
        yield list(hand.values())


def _kin(photo: Path, by_folder: bool) -> Path:
    """What two photos of one mosaic must not have in common."""
    return photo.parent if by_folder else photo


def _corner(tile: int, half: int) -> tuple[int, int]:
    return tile % _TILES * half, tile // _TILES * half


def _target_of(model: VisionModel, image: Image.Image) -> Target:
    pixels, _ = model.transform(image)
    answer = Answer.of(model, pixels)
    if answer.goal.is_logit:
        return int(answer.goal.direction.argmax())
    return answer.goal.direction
