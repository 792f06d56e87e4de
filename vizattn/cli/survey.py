"""``vizattn survey``: numbers of every head over a data set."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from vizattn.cli.console import Size, Weights, errors, out
from vizattn.cli.progress import bar, rate

if TYPE_CHECKING:
    from vizattn.many.sources import Source
    from vizattn.survey.look import Asked
    from vizattn.survey.run import Outcome


def survey(
    pictures: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER|PATTERN...",
            help="The data set; folders are searched with all that is in them.",
        ),
    ],
    model: Annotated[str, typer.Option(help="Model by name.")] = "vizattn/dinov2-small",
    weights: Weights = "pretrained",
    size: Size = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write to.")] = Path(
        "survey"
    ),
    batch: Annotated[
        int | None,
        typer.Option(help="Pictures in one pass of the model.", min=1, show_default="by size"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            help="So many pictures, evenly spread over the data set.", min=1, show_default="all"
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(metavar="local|ray", help="This process, or Ray: RAY_ADDRESS names a cluster"),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            help="Threads that read pictures; with Ray, models side by side.",
            min=1,
            show_default="2; with Ray one for each core",
        ),
    ] = None,
    figures: Annotated[bool, typer.Option(help="Draw distance by depth, and entropy.")] = True,
) -> None:
    """Measure every head over a data set: entropy, attention distance, sinks, likeness of heads.

    Writes rows for every picture, layer and head (pictures-*.parquet), their mean and standard
    deviation (survey.json), and two figures (distance and entropy, as PNG and SVG). Stop it when
    you like: the same command goes on from there, and looks at nothing twice.

    For example: vizattn survey photos --limit 500 -o survey-of-photos
    """
    from vizattn.many.sources import find_sources
    from vizattn.models import load_model
    from vizattn.survey.look import Asked
    from vizattn.survey.parts import need_pyarrow

    need_pyarrow()
    sources = _spread(find_sources(pictures, without=[output]), limit)
    with out.status("Loading the model", spinner="dots"):
        asked = Asked(load_model(model, weights=weights, size=size), weights, batch)
    for note in asked.model.notes:
        out.print(f"Note: {note}.", markup=False)
    outcome = _looked(sources, output, asked, engine, workers)
    if figures and outcome.summary is not None:
        from vizattn.survey.figures import save_figures

        for path in save_figures(outcome.summary, output):
            out.print(f"wrote {path}", markup=False)
    raise typer.Exit(1 if outcome.failed else 0)


def _looked(
    sources: list[Source], output: Path, asked: Asked, engine: str, workers: int | None
) -> Outcome:
    """The survey with a bar, and what became of it in words."""
    from vizattn.survey.run import survey as look

    started = monotonic()
    try:
        with bar("Looking", len(sources), "pictures") as progress:
            outcome = look(
                sources, output, asked, engine=engine, workers=workers, progress=progress
            )
    except KeyboardInterrupt:
        errors.print("Stopped. Parts that are there are whole; the same command goes on from here.")
        raise typer.Exit(130) from None
    _say(outcome, output, monotonic() - started)
    return outcome


def _say(outcome: Outcome, output: Path, seconds: float) -> None:
    if outcome.skipped:
        out.print(f"{outcome.skipped} were there already.", markup=False)
    if outcome.looked_at:
        speed = rate(outcome.looked_at / seconds, "pictures")
        out.print(f"looked at {outcome.looked_at}, {speed}", markup=False)
    if outcome.summary is not None:
        n_pictures = outcome.summary.n_pictures
        out.print(f"wrote {output / 'survey.json'}, of {n_pictures} pictures", markup=False)
    for failed in outcome.failed:
        errors.print(f"vizattn: {failed.source.name}: {failed.sentence}", markup=False)
    if outcome.failed:
        n_all = outcome.skipped + outcome.looked_at + len(outcome.failed)
        errors.print(f"vizattn: {len(outcome.failed)} of {n_all} could not be looked at.")


def _spread(sources: list[Source], limit: int | None) -> list[Source]:
    """So many of them, evenly spread, because folders of data sets are sorted by class."""
    if limit is None or limit >= len(sources):
        return sources
    return [sources[number * len(sources) // limit] for number in range(limit)]
