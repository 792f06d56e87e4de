"""A bar with rate and time left, on terminals; elsewhere nothing but the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from vizattn.cli.console import out


class _Rate(ProgressColumn):
    """How many in a second, or in a minute where they are slow."""

    def __init__(self, things: str) -> None:
        super().__init__()
        self._things = things

    def render(self, task: Task) -> Text:
        """The rate of the last half minute."""
        speed = task.finished_speed or task.speed
        return Text("" if not speed else rate(speed, self._things), style="dim")


def rate(speed: float, things: str) -> str:
    """Things per second in words people can use."""
    if speed >= 1:
        return f"{speed:.1f} {things} a second"
    return f"{60 * speed:.1f} {things} a minute"


@contextmanager
def looking(words: str) -> Iterator[Callable[[float, str], None]]:
    """One piece of work in steps; what it gives is called with a share from 0 to 1 and words."""
    columns = SpinnerColumn(), BarColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as shown:
        task = shown.add_task(words, total=1.0)
        yield lambda share, step: shown.update(task, completed=share, description=step)


@contextmanager
def bar(words: str, total: int, things: str) -> Iterator[Callable[[int], None]]:
    """Shows how much is done; what it gives is called with the number of things done."""
    with bars(things) as progress:
        yield lambda done: progress(words, done, total)


@contextmanager
def bars(things: str) -> Iterator[Callable[[str, int, int], None]]:
    """The same for several kinds of work, one after the other, each called by its words."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(things),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as shown:

        def progress(words: str, done: int, total: int) -> None:
            if words not in tasks:
                tasks[words] = shown.add_task(words, total=total or None)
            shown.update(tasks[words], completed=done, total=total or None)

        yield progress
