"""Which ingredient of attention shift pays: ``python scripts/ablate_attention_shift.py PHOTOS``.

From LeGrad to attention shift one change at a time, and beyond it, each judged on pictures of
digits and on mosaics of photos (``scripts/gather_photos.py``). Rows are written out densely here,
as small models allow, so this is also a second way to the method's own numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from vizattn.digits import read_scans
from vizattn.evaluation.judges import Location
from vizattn.evaluation.questions import Question
from vizattn.evaluation.samples import Sample, digit_samples, mosaic_samples
from vizattn.evaluation.scores import smoothed
from vizattn.gradients import capture_gradients
from vizattn.heatmap import Heatmap
from vizattn.layers import Attention
from vizattn.many.sources import find_sources
from vizattn.methods.tiles import gradient_and_values
from vizattn.models import VisionModel, assets, load_model

NUMBERS = tuple(Location.better)


def gradient(layer: Attention) -> Tensor:
    """Derivative of a reading by all weights, ``[head, query, key]``."""
    g, v = gradient_and_values(layer)
    return g @ v.mT


def maps(mean: tuple[Attention, ...], own: tuple[Attention, ...]) -> dict[str, Tensor]:
    """A map ``[token]`` of each variant, from readings of all tokens and of the class token."""
    every = [gradient(layer) for layer in mean]
    rows = [gradient(layer)[:, 0] for layer in own]
    attention = [layer.rows(0)[:, 0] for layer in own]
    shifts = [
        (row - (weights * row).sum(-1, keepdim=True)).sum(0)
        for row, weights in zip(rows, attention, strict=True)
    ]
    spread = [shift[1:].std(correction=0) for shift in shifts]
    times = [(weights * row).sum(0) for row, weights in zip(rows, attention, strict=True)]

    def balanced(by: float) -> Tensor:
        return sum_of(shift / s**by for shift, s in zip(shifts, spread, strict=True))

    return {
        "LeGrad": sum_of(each.clamp(min=0).mean((0, 1)) for each in every),
        "1 signs kept to the end": sum_of(each.mean((0, 1)) for each in every),
        "2 and only the row that is read, in its own reading": sum_of(row.sum(0) for row in rows),
        "3 and zero where attention is now": sum_of(shifts),
        "4 and layers balanced: attention shift": balanced(0.5),
        "4 with all layers alike (balance 1)": balanced(1.0),
        "4 but cut off at zero in each layer": sum_of(
            (shift / s**0.5).clamp(min=0) for shift, s in zip(shifts, spread, strict=True)
        ),
        "4 but the last layer alone": shifts[-1],
        "2 times attention": sum_of(times),
    }


def sum_of(layers: Iterable[Tensor]) -> Tensor:
    """The layers added up."""
    return torch.stack(list(layers)).sum(0)


def judged(model: VisionModel, samples: Iterable[Sample]) -> tuple[int, dict[str, Tensor]]:
    """How many questions, and the mean numbers of each variant, as it is and smoothed."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for sample in samples:
        needs = ["readouts", "readouts:own"]
        record = capture_gradients(model, sample.picture, sample.target, needs=needs)
        tokens = record.drawable[-1].keys
        assert tokens is not None
        question = Question(model, sample, record.grid)
        for name, relevance in maps(*(record.readouts[need] for need in needs)).items():
            heat = Heatmap.from_relevance(relevance, tokens.grid, tokens.frame)
            for end, values in (("", heat.values), (" ~", smoothed(heat.values))):
                line = Location().judge(question, replace(heat, values=values))
                found[name + end].append([line[number] for number in NUMBERS])
    count = len(next(iter(found.values())))
    return count, {name: torch.tensor(lines).mean(0) for name, lines in found.items()}


def main(
    photos: Annotated[Path, typer.Argument(help="Folder of photos for the mosaics.")],
    split: Annotated[str, typer.Option(help="Writers of the digits.")] = "report",
    pictures: Annotated[int, typer.Option(help="Pictures of digits.")] = 100,
    mosaics: Annotated[int, typer.Option(help="Mosaics of photos.")] = 40,
) -> None:
    """Print a table of both."""
    digits = load_model("vizattn/digits")
    scans = read_scans(assets() / "models" / "digits" / "scans.png").split(split)
    dino = load_model("vizattn/dinov2-small", size=224)
    files = [source.path for source in find_sources([str(photos)])]
    n_digits, ours = judged(digits, digit_samples(digits, scans, pictures, 2))
    n_mosaics, theirs = judged(dino, mosaic_samples(dino, files, mosaics, 224, 2))
    heads = [f"{kind}: {number}" for kind in ("digits", "mosaics") for number in NUMBERS]
    print(f"{n_digits} questions about digits, {n_mosaics} about mosaics; ~ smoothed\n")
    print("| variant | " + " | ".join(heads) + " |\n|---|" + "---:|" * len(heads))
    for name, numbers in ours.items():
        cells = [f"{float(value):.3f}" for value in torch.cat([numbers, theirs[name]])]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    typer.run(main)
