"""A survey from its folder to its summary: what is done is kept, what is missing is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vizattn.errors import SurveyError, UnknownName
from vizattn.many.prepare import WORKERS, Failed
from vizattn.many.sources import Source
from vizattn.survey.look import Asked, Progress, Surveyor
from vizattn.survey.parts import (
    Identity,
    Part,
    identity,
    need_pyarrow,
    read_parts,
    remove_unfinished,
)
from vizattn.survey.summary import Summary, summarise

# Pictures of one part: a few MB of rows, and the most that is lost when a machine dies.
PART = 256

# With several workers, so many parts for each: the last ones do not wait long for one another.
_PARTS_A_WORKER = 4


@dataclass(frozen=True)
class Work:
    """Pictures that are to be looked at, cut into parts.

    Attributes:
        asked: What is asked of each.
        key: What a part says of that.
        folder: Where parts go.
        chunks: The pictures of each part.
    """

    asked: Asked
    key: dict[str, Any]
    folder: Path
    chunks: Sequence[Sequence[Source]]


# Looks at pictures with so many workers, tells how many are done, and returns those that failed.
Engine = Callable[[Work, int | None, Progress], list[Failed]]


@dataclass(frozen=True)
class Outcome:
    """What became of a survey.

    Attributes:
        summary: Mean and spread over all pictures that are in the folder.
        looked_at: How many were looked at now.
        skipped: How many were there already.
        failed: Those that could not be looked at, each with its sentence.
    """

    summary: Summary | None
    looked_at: int
    skipped: int
    failed: tuple[Failed, ...]


def survey(
    sources: Sequence[Source],
    folder: Path,
    asked: Asked,
    *,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress = lambda _done: None,
) -> Outcome:
    """Write the numbers of every head in every picture, and their mean and spread.

    Pictures whose rows are in the folder already are not looked at again, unless they changed.

    Args:
        sources: The pictures.
        folder: Where to write; parts of an earlier run of the same survey stay.
        asked: What is asked of each.
        engine: ``local``, or ``ray`` for a cluster.
        workers: Threads that read on this machine, or models side by side on a cluster.
        progress: Called with how many pictures are done, those that were there included.

    Raises:
        MissingPackage: pyarrow is not installed, or Ray where it is asked for.
        SurveyError: The folder holds another survey.
        VizattnError: No picture can be looked at.
    """
    need_pyarrow()
    look = _engine(engine)
    folder.mkdir(parents=True, exist_ok=True)
    remove_unfinished(folder)
    key = asked.key() | {"pictures": _root(sources)}
    done = _kept(folder, key, sources)
    to_do = [source for source in sources if source.name not in done]
    skipped = len(sources) - len(to_do)
    progress(skipped)
    failed: list[Failed] = []
    if to_do:
        size = PART if engine == "local" else _part_size(len(to_do), workers)
        work = Work(asked, key, folder, _cut(to_do, size))
        failed = look(work, workers, lambda now: progress(skipped + now))
    failed.sort(key=lambda each: each.source.name)
    summary = summarise(folder, asked.model, failed)
    return Outcome(summary, len(to_do) - len(failed), skipped, tuple(failed))


def on_this_machine(work: Work, workers: int | None, progress: Progress) -> list[Failed]:
    """One part after the other, with one model."""
    surveyor = Surveyor(work.asked, work.folder, work.key, workers or WORKERS)
    failed: list[Failed] = []
    n_before = 0
    for chunk in work.chunks:
        failed += surveyor.look(chunk, _after(n_before, progress))
        n_before += len(chunk)
    return failed


def _after(n_before: int, progress: Progress) -> Progress:
    return lambda now: progress(n_before + now)


def _engine(name: str) -> Engine:
    from vizattn.survey.on_ray import need_ray, on_ray

    engines: Mapping[str, Engine] = {"local": on_this_machine, "ray": on_ray}
    if name not in engines:
        raise UnknownName("engine", name, engines)
    if name == "ray":
        need_ray()
    return engines[name]


def _kept(folder: Path, key: Mapping[str, Any], sources: Iterable[Source]) -> set[str]:
    """Names of pictures that are done; parts with a picture that changed since are dropped."""
    now = {source.name: identity(source) for source in sources if source.path.exists()}
    done: set[str] = set()
    for part in read_parts(folder):
        _check_same(part, key)
        if any(_has_changed(picture, now) for picture in part.pictures):
            part.path.unlink()
            continue
        done |= {name for name, *_ in part.pictures}
    return done


def _root(sources: Sequence[Source]) -> str:
    """The folder that names start at, so that pictures of another one are told apart."""
    path, name = sources[0].path.absolute().as_posix(), sources[0].name
    path = path if path.endswith(name) else sources[0].path.resolve().as_posix()
    return path.removesuffix(name)


def _has_changed(picture: Identity, now: Mapping[str, Identity]) -> bool:
    return picture[0] in now and now[picture[0]] != picture


def _check_same(part: Part, key: Mapping[str, Any]) -> None:
    other = [name for name in key if part.asked.get(name) != key[name]]
    if other:
        name = other[0]
        raise SurveyError(
            f"{part.path.parent} holds another survey: {name} was {part.asked.get(name)!r} there "
            f"and is {key[name]!r} now. Write to another folder."
        )


def _part_size(n_pictures: int, workers: int | None) -> int:
    return max(1, min(PART, -(-n_pictures // (_PARTS_A_WORKER * (workers or 1)))))


def _cut(sources: Sequence[Source], size: int) -> list[Sequence[Source]]:
    return [sources[start : start + size] for start in range(0, len(sources), size)]
