"""From a model and what a person has to what can be judged on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vizattn.digits import read_scans
from vizattn.errors import EvaluationError, MissingPackage, TargetError
from vizattn.evaluation.judges import Covering, Judge, Location, Perturbation, Segmentation
from vizattn.evaluation.samples import Sample, digit_samples, mosaic_samples
from vizattn.images import open_image
from vizattn.many.sources import find_sources
from vizattn.models import VisionModel, assets
from vizattn.targets import class_index

DIGITS = "vizattn/digits"

# Of ImageNet-Segmentation: pictures are squeezed to this side, as its protocol says.
_SEGMENTED = 224

# Blur of a canvas of digits in pixels, a patch: with RISE's 5 they can still be read.
_DIGIT_BLUR = 8


@dataclass(frozen=True)
class Trial:
    """What is judged, and on what.

    Attributes:
        kind: ``digits``, ``mosaics``, ``labelled`` or ``segmentation``.
        samples: The questions, made as they are asked for.
        count: How many pictures they are about.
        judges: Who judges; the second number is on how many questions, ``None`` for all.
        about: The same for people, a sentence.
    """

    kind: str
    samples: Iterator[Sample]
    count: int
    judges: tuple[tuple[Judge, int | None], ...]
    about: str


@dataclass(frozen=True)
class Extent:
    """How much is judged.

    Attributes:
        limit: Pictures; as many as the kind needs for narrow intervals when left out.
        curves: Questions for the judges that cover parts of a picture, many passes each.
        steps: Steps of insertion and deletion; one for each row of pixels when left out.
        split: Writers of the digits: ``tune`` or ``report``.
        seed: Which pictures of digits, which mosaics.
    """

    limit: int | None = None
    curves: int = 24
    steps: int | None = None
    split: str = "report"
    seed: int = 1


def trial_of(model: VisionModel, data: Path | None, extent: Extent) -> Trial:
    """What a model can be judged on.

    Args:
        model: Who is judged.
        data: A folder of photos, or of one folder of pictures for each class, or the file of
            ImageNet-Segmentation (``gtsegs_ijcv.mat``); nothing for the digits model, which has
            its own.
        extent: How much.

    Raises:
        EvaluationError: Nothing was given for a model that needs it, or it does not fit the model.
    """
    if data is None:
        if model.name != DIGITS:
            raise EvaluationError(
                f"{model.name} has no pictures of its own to be judged on. Give a folder of "
                f"photos, at least four, or one with a folder for each class. {DIGITS} has its own."
            )
        return _digits(model, extent)
    if data.is_file():
        return _segmentation(data, extent)
    if model.labels and _class_folders(data):
        return _labelled(model, data, extent)
    return _mosaics(model, data, extent)


def _digits(model: VisionModel, extent: Extent) -> Trial:
    scans = read_scans(assets() / "models" / "digits" / "scans.png").split(extent.split)
    count = extent.limit or 400
    covering = Covering(extent.steps, spread=_DIGIT_BLUR)
    about = (
        f"{count} pictures of 2 to 4 digits by writers that training never saw ({extent.split} "
        f"split, seed {extent.seed}), a question for each digit that is there and was found"
    )
    samples = digit_samples(model, scans, count, extent.seed)
    return Trial("digits", samples, count, ((Location(), None), (covering, extent.curves)), about)


def _mosaics(model: VisionModel, folder: Path, extent: Extent) -> Trial:
    photos = [source.path for source in find_sources([str(folder)])]
    count = extent.limit or 60
    side = _side_of(model)
    samples = mosaic_samples(model, photos, count, side, extent.seed)
    about = (
        f"{count} mosaics of 2 × 2 out of {len(photos)} photos, {side} px, seed {extent.seed}; "
        f"four questions each: where is this photo?"
    )
    judges = (Location(), None), (Covering(extent.steps), extent.curves)
    return Trial("mosaics", samples, count, judges, about)


def _labelled(model: VisionModel, folder: Path, extent: Extent) -> Trial:
    pictures = list(_labelled_pictures(model, folder))
    order = np.random.default_rng(extent.seed).permutation(len(pictures))
    chosen = [pictures[index] for index in order[: extent.limit]]

    def samples() -> Iterator[Sample]:
        for number, (path, label) in enumerate(chosen):
            name = path.relative_to(folder).as_posix()
            yield Sample(name, number, open_image(path), None, label=label)

    about = (
        f"{len(chosen)} of {len(pictures)} labelled pictures; each method explains the top class"
    )
    judges = (Perturbation(), None), (Covering(extent.steps), extent.curves)
    return Trial("labelled", samples(), len(chosen), judges, about)


def _labelled_pictures(model: VisionModel, folder: Path) -> Iterator[tuple[Path, int]]:
    folders = _class_folders(folder)
    for number, each in enumerate(folders):
        try:
            label = class_index(each.name, model.labels, len(model.labels))
        except TargetError:
            if len(folders) != len(model.labels):
                raise EvaluationError(
                    f"the folder {each.name!r} is called like none of the {len(model.labels)} "
                    f"classes, and there are {len(folders)} folders, so they cannot be matched by "
                    f"order either. Name each folder like its class."
                ) from None
            label = number
        for source in find_sources([str(each)]):
            yield source.path, label


def _class_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if each.is_dir() and any(each.iterdir()))


def _segmentation(path: Path, extent: Extent) -> Trial:
    try:
        import h5py
    except ImportError as error:
        raise MissingPackage("Reading a .mat file", "h5py", "vizattn[judge]") from error
    try:
        with h5py.File(path) as file:
            total = len(file["value/img"])
    except (OSError, KeyError) as error:
        raise EvaluationError(
            f"{path.name} is not the file of ImageNet-Segmentation, which holds value/img and "
            f"value/gt: {error}. Is it gtsegs_ijcv.mat?"
        ) from error
    count = min(total, extent.limit or total)
    about = f"{count} of {total} pictures of {path.name}, squeezed to {_SEGMENTED} px"
    samples = _segmented(path, count)
    return Trial("segmentation", samples, count, ((Segmentation(), None),), about)


def _segmented(path: Path, count: int) -> Iterator[Sample]:
    """Pictures and masks of Guillaumin et al. 2014; MATLAB stores arrays columns first."""
    import h5py

    side = (_SEGMENTED, _SEGMENTED)
    with h5py.File(path) as file:
        for number in range(count):
            pixels = np.array(file[file["value/img"][number, 0]]).transpose(2, 1, 0)
            cell = file[file["value/gt"][number, 0]]
            mask = np.array(file[cell[0, 0]]).transpose(1, 0).astype(np.uint8)
            picture = Image.fromarray(pixels).convert("RGB").resize(side, Image.Resampling.BILINEAR)
            seen = Image.fromarray(mask).resize(side, Image.Resampling.NEAREST)
            yield Sample(str(number), number, picture, None,
                         mask=torch.from_numpy(np.array(seen)) > 0)  # fmt: skip


def _side_of(model: VisionModel) -> int:
    """The side of the square that a model takes."""
    pixels, _ = model.transform(Image.new("RGB", (512, 512)))
    return max(pixels.shape[-2:])
