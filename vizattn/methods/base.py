"""What every method is: settings now, data later.

A method is a frozen dataclass. Called with a record and a query it gives one relevance per token;
it knows records and never models, and it never draws.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.heatmap import Heatmap
from vizattn.layers import Attention
from vizattn.methods.query import Asker, Query, reading, reading_of_values
from vizattn.methods.settings import settings
from vizattn.places import Tokens
from vizattn.progress import Tell, silent
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class LayerMaps:
    """The maps of one layer, each a relevance per token.

    Attributes:
        layer: Number of the layer in the record, from 0.
        tokens: Where the tokens of the maps lie.
        relevance: One map, or one for every head.
    """

    layer: int
    tokens: Tokens
    relevance: Float[Tensor, "map token"]


@dataclass(frozen=True)
class Method(ABC):
    """A recipe from a record and a query to a relevance per token.

    Attributes:
        name: The word people type.
        title: The words people read.
        about: One paragraph: what it shows, and what it does not.
        formula: The same as a formula in plain text, its letters explained.
        paper: Where it comes from.
        per_head: Whether every head has a map of its own.
        class_agnostic: Whether the map is the same whatever class is asked about.
        is_signed: Whether values below zero mean something: what speaks against the target.
        has_query: Whether it matters who asks; else the target alone decides.
        is_share: Whether values are shares of a whole, so that a percentage says something.
        needs: What a record has to hold beside attention, as ``capture_gradients`` names it; of a
            method with its settings it is ``wanted``.
        is_slow: Whether it takes many passes through the model.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    about: ClassVar[str]
    formula: ClassVar[str]
    paper: ClassVar[str]
    per_head: ClassVar[bool] = False
    class_agnostic: ClassVar[bool] = True
    is_signed: ClassVar[bool] = False
    has_query: ClassVar[bool] = True
    is_share: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ()
    is_slow: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for known in settings(type(self)):
            known.check(getattr(self, known.name))

    @property
    def has_rows(self) -> bool:
        """Whether its maps are rows of heads, which can be worked out anew from q and k."""
        return self.per_head and self.has_query

    @property
    def subject(self) -> str:
        """What the map shows, for a sentence, where neither who asks nor a target says it."""
        return ""

    @property
    def wanted(self) -> tuple[str, ...]:
        """``needs`` of these settings, where settings decide."""
        return self.needs

    @abstractmethod
    def asked(self, record: AttentionRecord) -> Attention:
        """The layer whose query tokens a query weighs."""

    @abstractmethod
    def shown(self, record: AttentionRecord) -> Tokens:
        """Where the tokens lie that relevance is given for."""

    @abstractmethod
    def __call__(
        self, record: AttentionRecord, query: Float[Tensor, " query"]
    ) -> Float[Tensor, " token"]:
        """Relevance of every token for the query, as the paper defines it."""

    def with_progress(
        self, record: AttentionRecord, query: Float[Tensor, " query"], progress: Tell
    ) -> Float[Tensor, " token"]:
        """The same as calling it; one that goes through layers tells how far it is on the way."""
        relevance = self(record, query)
        progress(1.0)
        return relevance

    @abstractmethod
    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The maps to look through: one per layer, and per head where heads have their own."""

    @abstractmethod
    def describe(self, record: AttentionRecord, query: str) -> str:
        """What the map of these settings shows, as the start of a sentence."""

    def heatmap(
        self,
        record: AttentionRecord,
        *,
        at: Asker | None = None,
        query: Float[Tensor, " query"] | None = None,
        progress: Tell = silent,
    ) -> Heatmap:
        """The map of this method on the picture.

        Args:
            record: What was captured.
            at: Ask from the patch under this pixel ``(x, y)`` of the original picture.
            query: Any weighting over the query tokens; without both, the model's own query.
            progress: Called with the share of the work that is done, from 0 to 1.

        Raises:
            FrameError: The model did not see this pixel.
            MethodError: Both ``at`` and ``query`` were given, or the method is not defined here.
        """
        if not self.has_query and (at is not None or query is not None):
            raise self.no_query()
        asked = Query.of(record, self.asked(record), at, query)
        relevance = self.with_progress(record, asked.weights, progress)
        tokens = self.shown(record)
        made: dict[str, Any] = {
            "model": record.model,
            "method": self.name,
            "settings": asdict(self),
            "query": asked.made,
            "notes": list(record.notes),
        }
        if self.wanted and record.target:
            made["target"] = record.target
        read = reading if self.is_share else reading_of_values
        said = read(tokens.grid, relevance, asked.words)
        sentence = f"{self.describe(record, asked.words)}; {said}."
        return Heatmap.from_relevance(relevance, tokens.grid, tokens.frame, made, sentence)

    def no_query(self) -> MethodError:
        """What to raise when somebody asks from a patch and the target alone decides."""
        return MethodError(
            f"{self.name} says what speaks for and against the target, whoever asks; leave the "
            f"pixel out. Raw attention and rollout can be asked from a patch."
        )
