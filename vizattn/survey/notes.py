"""What there is to know of a layer beside its numbers, in one picture and in many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

# What may differ from picture to picture, because their sizes do.
_LISTS = ("kinds", "grids", "patches", "n_seen")


@dataclass(frozen=True)
class LayerNote:
    """One layer in one picture.

    Attributes:
        name: The module, as ``named_modules`` names it.
        kind: What attends to what.
        n_heads: Its heads.
        grid: Rows and columns of the grid of the keys; empty when it is not on the picture.
        patch: Side of a patch of that grid, in pixels of the model's input; 0 where it has none.
        n_seen: Keys that one row runs over, all of them or those of one window; 0 when it is not
            on the picture.
        blank: Why a number is missing, by its name.
    """

    name: str
    kind: str
    n_heads: int
    grid: tuple[int, ...] = ()
    patch: float = 0.0
    n_seen: int = 0
    blank: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """The same as JSON values, with lists of what may be another in other pictures."""
        return {
            "name": self.name,
            "n_heads": self.n_heads,
            "kinds": [self.kind],
            "grids": [list(self.grid)] if self.grid else [],
            "patches": [self.patch] if self.patch else [],
            "n_seen": [self.n_seen] if self.n_seen else [],
            "blank": dict(self.blank),
        }


def together(pictures: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, Any], ...]:
    """The layers of several pictures, or of several parts, in whichever order these come.

    >>> [layer] = together([[LayerNote("a", "self", 2, patch=n).plain()] for n in (8.0, 4.0)])
    >>> layer["patches"]
    [4.0, 8.0]
    """
    layers: Iterable[tuple[Mapping[str, Any], ...]] = zip(*pictures, strict=True)
    return tuple(reduce(_both, notes[1:], dict(notes[0])) for notes in layers)


def _both(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    if one == other:
        return one
    lists = {
        name: sorted(one[name] + [each for each in other[name] if each not in one[name]])
        for name in _LISTS
    }
    # a number may be missing for different reasons: the first by the alphabet, whoever came first
    names = sorted(one["blank"].keys() | other["blank"].keys())
    reasons = {
        name: min(each["blank"][name] for each in (one, other) if name in each["blank"])
        for name in names
    }
    return {**one, **lists, "blank": reasons}
