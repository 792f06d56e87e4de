"""Sweep over every timm architecture with attention over places; write docs/coverage.md and .json.

Each architecture runs in a process of its own, with a limit of time and of address space; memory
that is asked for and never touched, as by weights of blocks that are left out, costs nothing.
Results go to a file of JSON lines as they come, so a sweep that was stopped goes on where it was:

    python scripts/coverage.py                   # everything that is not in the file yet
    python scripts/coverage.py --families        # one small architecture of each family
    python scripts/coverage.py swin hiera        # names that contain one of these words
    python scripts/coverage.py --tables          # only write the documents again
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "tests"))

from coverage_check import check  # noqa: E402
from coverage_models import Architecture, universe  # noqa: E402
from coverage_table import write_documents  # noqa: E402

FORK = multiprocessing.get_context("fork")


def main(
    words: Annotated[list[str] | None, typer.Argument(help="Parts of names; none: all.")] = None,
    folder: Annotated[Path, typer.Option(help="Where results are kept.")] = ROOT / "build/coverage",
    families: Annotated[bool, typer.Option(help="Only the smallest of each family.")] = False,
    again: Annotated[bool, typer.Option(help="Also what is in the file already.")] = False,
    tables: Annotated[bool, typer.Option(help="Run nothing, write the documents.")] = False,
    processes: Annotated[int, typer.Option(help="Architectures at a time.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time limit of one.")] = 300,
    gigabytes: Annotated[float, typer.Option(help="Address space of one.")] = 48,
) -> None:
    """Run the sweep."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # before any fork; two processes use two cores
    architectures = _universe(folder / "universe.json")
    results = folder / "results.jsonl"
    if not tables:
        wanted = _smallest(architectures) if families else architectures
        if words:
            wanted = [a for a in wanted if any(word in a.name for word in words)]
        known = {} if again else _read(results)
        todo = [a for a in wanted if "error" in known.get(a.name, {"error": "never run"})]
        _sweep(todo, results, processes, seconds, int(gigabytes * 2**30))
    write_documents(list(_read(results).values()), architectures, ROOT / "docs")


def _universe(path: Path) -> list[Architecture]:
    """All architectures to look at, largest last; found once and then read from a file."""
    if not path.exists():
        with _bar() as bar:
            found = [each for each in bar.track(list(universe()), description="timm") if each]
        path.write_text(json.dumps(found))
    architectures = [Architecture(**each) for each in json.loads(path.read_text())]
    return sorted(architectures, key=lambda each: each.parameters)


def _smallest(architectures: list[Architecture]) -> list[Architecture]:
    return list({each.family: each for each in reversed(architectures)}.values())


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Results by name; of several, the last."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["name"]: result for result in map(json.loads, lines)}


def _bar() -> Progress:
    text = TextColumn("{task.description:40}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, auto_refresh=False)  # a thread that draws would not survive a fork


def _sweep(
    todo: list[Architecture], results: Path, processes: int, seconds: float, memory: int
) -> None:
    running: dict[Connection, tuple[Architecture, BaseProcess, float]] = {}
    queue = list(todo)
    with _bar() as bar, results.open("a") as file:
        task = bar.add_task("", total=len(todo))
        while queue or running:
            while queue and len(running) < processes:
                about = queue.pop(0)
                receiver, process = _start(about, memory)
                running[receiver] = (about, process, time.monotonic() + seconds)
                bar.update(task, description=about.name)
            for receiver in _finished(running):
                about, process, _ = running.pop(receiver)
                file.write(json.dumps(_result(about, receiver, process)) + "\n")
                file.flush()
                bar.advance(task)
                bar.refresh()


def _start(about: Architecture, memory: int) -> tuple[Connection, BaseProcess]:
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_child, args=(about, sender, memory), daemon=True)
    process.start()
    sender.close()
    return receiver, process


def _child(about: Architecture, sender: Connection, memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    warnings.filterwarnings("ignore")
    try:
        result = check(about)
    except BaseException as error:  # whatever it is, the sweep goes on and says so
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
        result = {"name": about.name, "family": about.family, "error": text[:500]}
    sender.send(result)


def _finished(running: dict[Connection, Any]) -> Iterable[Connection]:
    """Pipes with a result, and those of processes that ran out of time."""
    ready = [pipe for pipe in wait(list(running), timeout=1) if isinstance(pipe, Connection)]
    late = [pipe for pipe, (_, _, end) in running.items() if time.monotonic() > end]
    return {*ready, *late}


def _result(about: Architecture, receiver: Connection, process: BaseProcess) -> dict[str, Any]:
    try:
        if receiver.poll():
            result: dict[str, Any] = receiver.recv()
            process.join()
            return result
        reason = "ran out of time"
    except EOFError:
        reason = "its process ended without a word, perhaps for lack of memory"
    process.kill()
    process.join()
    return {"name": about.name, "family": about.family, "error": reason}


if __name__ == "__main__":
    typer.run(main)
