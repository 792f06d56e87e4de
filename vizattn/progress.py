"""How far a long piece of work is, and how long it will still take.

Whoever does the work says which share of it is done and knows no clock; ``Pace`` has one, and makes
a sentence of it where the work is long enough that somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from time import monotonic

# Called with a share from 0 to 1 and what is being done.
Progress = Callable[[float, str], None]

# Called with the share of one piece of work that is done.
Tell = Callable[[float], None]

# Work that takes less, in seconds, is over before anybody has read how long it takes.
_LONG = 2.0


class Pace:
    """Tells a share of one piece of work on, as a share of all of it and with the time left.

    Called with a share from 0 to 1; nothing is said of work that is short, nor when a share falls.

    Args:
        progress: Who is told.
        words: What is being done.
        start: Where this piece begins in all of the work, from 0 to 1.
        end: Where it ends.
    """

    def __init__(self, progress: Progress, words: str, start: float, end: float) -> None:
        self._progress, self._words = progress, words
        self._start, self._end = start, end
        self._since, self._done = monotonic(), 0.0
        progress(start, words)

    def __call__(self, share: float) -> None:
        """So much of it is done."""
        if share <= self._done:
            return
        self._done = min(1.0, share)
        passed = monotonic() - self._since
        whole = passed / self._done
        if whole >= _LONG and self._done < 1:  # what comes next is told by whoever does it
            at = self._start + self._done * (self._end - self._start)
            self._progress(at, f"{self._words}: {in_words(whole - passed)} left")


def in_words(seconds: float) -> str:
    """A time to wait, no more exact than an estimate is.

    >>> in_words(0.2), in_words(7.4), in_words(94), in_words(400)
    ('about 1 s', 'about 7 s', 'about 95 s', 'about 7 min')
    """
    if seconds >= 120:
        return f"about {seconds / 60:.0f} min"
    rounded = round(seconds) if seconds < 20 else 5 * round(seconds / 5)
    return f"about {max(1, rounded)} s"


def silent(_share: float) -> None:
    """Nobody is watching."""


def within(tell: Tell, number: int, count: int) -> Tell:
    """Told shares of one of several equal pieces, it tells those of the whole."""
    return lambda share: tell((number + share) / count)


def shares_at_middles(costs: Sequence[float]) -> list[float]:
    """Which share of all costs has come up at the middle of each.

    >>> shares_at_middles([1.0, 2.0, 1.0])
    [0.125, 0.5, 0.875]
    """
    whole = sum(costs) or 1.0
    return [(upto - cost / 2) / whole for upto, cost in zip(accumulate(costs), costs, strict=True)]
