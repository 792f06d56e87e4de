"""What every method is: settings now, data later.

A method is a frozen dataclass. Called with a record and a query it gives one relevance per token;
it knows records and never models, and it never draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.heatmap import Heatmap
from vizattn.methods.settings import settings
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class Method(ABC):
    """A recipe from a record and a query to a relevance per token.

    Attributes:
        name: The word people type.
        title: The words people read.
        about: One paragraph: what it shows, and what it does not.
        paper: Where it comes from.
        per_head: Whether every head has a map of its own.
        class_agnostic: Whether the map is the same whatever class is asked about.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    paper: ClassVar[str]
    per_head: ClassVar[bool] = False
    class_agnostic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for known in settings(type(self)):
            known.check(getattr(self, known.name))

    @abstractmethod
    def __call__(
        self, record: AttentionRecord, query: Float[Tensor, " token"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query, as the paper defines it."""

    @abstractmethod
    def by_layer(
        self, record: AttentionRecord, query: Float[Tensor, " token"]
    ) -> Float[Tensor, "layer map token"]:
        """The maps to look through: one per layer, and per head where heads have their own."""

    @abstractmethod
    def describe(self, record: AttentionRecord, query: str) -> str:
        """What the map of these settings shows, as the start of a sentence."""

    def heatmap(
        self,
        record: AttentionRecord,
        *,
        at: tuple[float, float] | None = None,
        query: Float[Tensor, " token"] | None = None,
    ) -> Heatmap:
        """The map of this method on the picture.

        Args:
            record: What was captured.
            at: Ask from the patch under this pixel ``(x, y)`` of the original picture.
            query: Any weighting over the tokens; without both, the model's own query is asked.

        Raises:
            FrameError: The model did not see this pixel.
            MethodError: Both ``at`` and ``query`` were given.
        """
        asked, words, place = pick_query(record, at, query)
        relevance = self(record, asked)
        made = {
            "model": record.model,
            "method": self.name,
            "settings": asdict(self),
            "query": place,
            "notes": list(record.notes),
        }
        sentence = f"{self.describe(record, words)}; {reading(record, relevance, words)}."
        return Heatmap.from_relevance(relevance, record.grid, record.frame, made, sentence)


def pick_query(
    record: AttentionRecord,
    at: tuple[float, float] | None = None,
    query: Tensor | None = None,
) -> tuple[Tensor, str, dict[str, Any]]:
    """The query as a vector, in words, and as plain values for a file."""
    if at is not None and query is not None:
        raise MethodError("got both a pixel (at=) and a query; give one of them.")
    if at is not None:
        row, col = record.at(*at)
        words = f"the patch at row {row + 1}, column {col + 1}"
        return record.grid.patch(row, col), words, {"kind": "patch", "row": row, "col": col}
    if query is not None:
        record.grid.check(query.shape[-1])
        return query, "the query", {"kind": "custom"}
    words = "the class token" if record.grid.readout == "class" else "the mean of the patches"
    return record.grid.query, words, {"kind": record.grid.readout}


def reading(record: AttentionRecord, relevance: Tensor, query: str) -> str:
    """The two numbers that every map needs: its strongest patch, and what is not on the picture."""
    strongest = float(record.grid.to_map(relevance).max())
    words = f"{percent(strongest)} on one patch"
    for role in dict.fromkeys(record.grid.roles):
        picked = [index for index, name in enumerate(record.grid.roles) if name == role]
        mass = float(relevance[torch.tensor(picked)].sum())
        token = "register tokens" if role == "register" else f"{role} token"
        itself = " itself" if f"the {token}" == query else ""
        words += f", {percent(mass)} on the {token}{itself}"
    return words


def percent(share: float) -> str:
    """A share with two significant digits: ``4.1 %``, ``12 %``, ``0.06 %``.

    >>> percent(0.0413), percent(0.123), percent(0.0006), percent(1.0)
    ('4.1 %', '12 %', '0.06 %', '100 %')
    """
    value = 100 * share
    if abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{float(f'{value:.1e}'):g} %"
