"""``vizattn judge``: how far the maps of each method can be trusted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vizattn.cli.console import Size, Weights, errors, out
from vizattn.cli.progress import bar

if TYPE_CHECKING:
    from vizattn.evaluation.data import Trial
    from vizattn.evaluation.report import Report


def judge(
    model: Annotated[str, typer.Option(help="Model by name.")] = "vizattn/digits",
    weights: Weights = "pretrained",
    size: Size = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="A folder of photos, or of a folder of pictures for each class, or the .mat file "
            "of ImageNet-Segmentation.",
            show_default="the digits model's own pictures",
        ),
    ] = None,
    methods: Annotated[
        str, typer.Option(metavar="NAMES", help="Methods with commas between, or all.")
    ] = "all",
    limit: Annotated[int | None, typer.Option(help="Pictures, at most.", min=1)] = None,
    curves: Annotated[
        int, typer.Option(help="Questions for deletion, insertion and the like.", min=0)
    ] = 24,
    few: Annotated[
        int, typer.Option(help="Questions for methods that take many passes.", min=0)
    ] = 24,
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of deletion and insertion.", min=2, show_default="one a row"),
    ] = None,
    sane: Annotated[
        int, typer.Option(help="Questions for the check with randomised weights.", min=0)
    ] = 10,
    split: Annotated[str, typer.Option(help="Writers of the digits: tune or report.")] = "report",
    seed: Annotated[int, typer.Option(help="Which pictures are made.")] = 1,
    smooth: Annotated[bool, typer.Option(help="Judge maps smoothed as well.")] = True,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write to.")] = Path(
        "judged"
    ),
) -> None:
    """Judge the maps of methods, beside a random map and a Gaussian in the middle.

    Where it is known what a map should point at, the judges look whether it does: the digits model
    has pictures with the box of every digit, and any folder of photos becomes mosaics of four, in
    which one photo has to be found. Pixels are covered in the map's order, and the answer of the
    model is watched. With a folder for each class accuracy is what falls; with the file of
    ImageNet-Segmentation the map is compared with a mask.

    Writes judge.md, judge.json and two figures of curves. The same command goes on where it was
    stopped.
    """
    from vizattn.evaluation.data import Extent, trial_of
    from vizattn.evaluation.maps import recipes_of
    from vizattn.evaluation.report import report_of
    from vizattn.models import load_model

    recipes = recipes_of(name.strip() for name in methods.split(","))
    with out.status("Loading the model", spinner="dots"):
        loaded = load_model(model, weights=weights, size=size)
    extent = Extent(limit, curves, steps, split, seed)
    trial = trial_of(loaded, data, extent)
    for note in loaded.notes:
        out.print(f"Note: {note}.", markup=False)
    out.print(f"{trial.about}.", markup=False)
    try:
        with bar("Judging", trial.count, "pictures") as progress:
            report = report_of(
                loaded, trial, recipes, output, few=few, sane=sane, smooth=smooth, extent=extent,
                progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        errors.print("Stopped. What was judged is kept; the same command goes on from here.")
        raise typer.Exit(130) from None
    _say(report, trial, output)


def _say(report: Report, trial: Trial, output: Path) -> None:
    for path in report.write(output):
        out.print(f"wrote {path}", markup=False)
    for name, why in report.judged.refused.items():
        out.print(f"{name} has no maps here: {why}", markup=False)
    first = trial.judges[0][0]
    number = next(iter(first.better))
    found = report.verdicts[first.name]
    best = max(found, key=lambda name: found[name][number][0])
    out.print(f"Best by {number}: {best}, {json.dumps(round(found[best][number][0], 3))}.")
