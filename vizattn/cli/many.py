"""``vizattn explain`` for more than one picture: what it says while it works and at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import typer

from vizattn.cli.console import errors, out
from vizattn.cli.progress import bar, bars, rate

if TYPE_CHECKING:
    from vizattn.many.journal import Journal
    from vizattn.many.run import Asked, Outcome


def explain_pictures(
    words: Sequence[str], folder: Path, asked: Asked, *, again: bool, batch: int | None
) -> None:
    """Look at every picture that the words name and say what became of them.

    Raises:
        VizattnError: There are none, or what is asked cannot be done on any of them.
        Exit: With 1 when some could not be looked at, with 130 when it was interrupted.
    """
    from vizattn.many.journal import Journal
    from vizattn.many.run import explain_many
    from vizattn.many.sources import find_sources

    sources = find_sources(words, without=_own(words, folder, Journal(folder, {})))
    for note in asked.model.notes:
        out.print(f"Note: {note}.", markup=False)
    started = monotonic()
    try:
        with bar("Looking", len(sources), "pictures") as progress:
            outcome = explain_many(
                sources, folder, asked, again=again, batch=batch, progress=progress
            )
    except KeyboardInterrupt:
        errors.print("Stopped. Files that are there are whole; the same command goes on from here.")
        raise typer.Exit(130) from None
    _say(outcome, folder, monotonic() - started)
    raise typer.Exit(1 if outcome.failed else 0)


def _own(words: Sequence[str], folder: Path, journal: Journal) -> list[Path]:
    """What was written by earlier runs is no picture to look at."""
    inside = [Path(word).resolve() in folder.resolve().parents for word in words]
    return [*journal.written(), *([folder] if any(inside) else [])]


def _say(outcome: Outcome, folder: Path, seconds: float) -> None:
    if outcome.skipped:
        out.print(f"{outcome.skipped} were there already; --again does them again.", markup=False)
    if outcome.written:
        speed = rate(outcome.written / seconds, "pictures")
        out.print(f"wrote {outcome.written} to {folder}, {speed}", markup=False)
    for failed in outcome.failed:
        errors.print(f"vizattn: {failed.source.name}: {failed.sentence}", markup=False)
    if outcome.failed:
        n_all = outcome.skipped + outcome.written + len(outcome.failed)
        errors.print(f"vizattn: {len(outcome.failed)} of {n_all} could not be looked at.")


def explain_films(
    videos: Sequence[Path], folder: Path, asked: Asked, *, again: bool, batch: int | None
) -> None:
    """Look at every frame of some videos and write them with the maps laid over.

    Raises:
        VizattnError: What is asked cannot be done.
        Exit: With 130 when it was interrupted.
    """
    from vizattn.many.video import explain_video

    for note in asked.model.notes:
        out.print(f"Note: {note}.", markup=False)
    for video in videos:
        try:
            with bars("frames") as progress:
                film = explain_video(
                    video, folder, asked, again=again, batch=batch, progress=progress
                )
        except KeyboardInterrupt:
            errors.print("Stopped. Nothing was written of the video that was being looked at.")
            raise typer.Exit(130) from None
        if film is None:
            out.print(f"{video} was there already; --again does it again.", markup=False)
            continue
        out.print(f"First frame: {film.sentence}", markup=False)
        out.print(
            f"{film.n_frames} frames on one scale: the last colour from {100 * film.top:.3g} % "
            f"a patch upwards.", markup=False,
        )  # fmt: skip
        for path in film.files:
            out.print(f"wrote {path}", markup=False)
