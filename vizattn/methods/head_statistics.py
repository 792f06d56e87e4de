"""Statistics of a head as maps: how much each patch receives, how widely and how far it looks.

Source: the entropy of a row and the mean attention distance of Dosovitskiy et al. 2021, appendix
D.7, before they are averaged over patches; what a token receives is how Darcet et al. 2024,
"Vision Transformers Need Registers", find the patches that draw much attention and say little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.base import LayerMaps
from vizattn.methods.one_layer import ByHead, fusion_setting, head_setting, layer_setting
from vizattn.methods.query import Asker, placed
from vizattn.methods.settings import setting
from vizattn.places import Tokens
from vizattn.record import AttentionRecord
from vizattn.token_statistics import token_statistics

# What each says, for a sentence.
STATISTICS: Mapping[str, str] = {
    "received": "how much of all tokens' attention each patch draws",
    "entropy": "over how much each patch spreads its attention, in bits",
    "distance": "how far each patch looks, in patches",
}


@dataclass(frozen=True)
class HeadStatisticMaps(ByHead):
    """One number of each patch in one layer, of one head or of all heads together."""

    name: ClassVar[str] = "head-statistics"
    title: ClassVar[str] = "Head statistics"
    about: ClassVar[str] = (
        "What all patches do in a head, where other maps show what one of them sees: how much "
        "attention each receives from everybody, over how much each spreads its own (entropy), or "
        "how far each looks. It finds sinks, heads that look next door and heads that look "
        "everywhere. It says nothing of what the model decides."
    )
    formula: ClassVar[str] = (
        "received_j = mean_i A_ij;  entropy_i = - Σ_j A_ij log₂ A_ij;  "
        "distance_i = Σ_j A_ij |p_i - p_j|\n"
        "A: attention of one head; i, j: the token that looks and the one that is looked at; "
        "p: the middle of a patch"
    )
    paper: ClassVar[str] = (
        "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, appendix D.7; "
        "Darcet et al. 2024, Vision Transformers Need Registers"
    )
    per_head: ClassVar[bool] = True
    has_query: ClassVar[bool] = False
    is_share: ClassVar[bool] = False

    statistic: str = setting(
        "received",
        label="Statistic",
        help="Attention that each patch receives, entropy of its own, or how far it looks.",
        kind="choice",
        choices=tuple(STATISTICS),
    )
    layer: int | None = layer_setting()
    head: int | None = head_setting()
    fusion: str = fusion_setting()

    def __call__(
        self, record: AttentionRecord, _query: Float[Tensor, " query"]
    ) -> Float[Tensor, " token"]:
        """The number of every token in this layer; 0 for prefix tokens that have none."""
        return self.together(self._by_head(self.asked(record)))

    def shown(self, record: AttentionRecord) -> Tokens:
        """The keys where it is about what they receive, else the queries."""
        return self._tokens(self.asked(record))

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """Every head of every layer that can be laid over the picture and where patches ask."""
        if at is not None:
            raise self.no_query()
        maps = []
        for index, layer in enumerate(record):
            if not layer.is_drawable:
                continue
            try:
                maps.append(LayerMaps(index, self._tokens(layer), self._by_head(layer)))
            except MethodError:
                continue
        return maps

    def describe(self, record: AttentionRecord, _query: str) -> str:
        """``Layer 12, mean of 6 heads: how far each patch looks, in patches``."""
        index = self.index(record)
        heads = self.heads_in_words(record[index].n_heads)
        return f"Layer {index + 1}, {heads}: {self.subject}"

    @property
    def subject(self) -> str:
        """What the statistic says."""
        return STATISTICS[self.statistic]

    def no_query(self) -> MethodError:
        """What to raise when somebody asks from a patch."""
        return MethodError(
            f"{self.name} shows all patches at once, whoever asks; leave the pixel out. "
            f"Raw attention and rollout can be asked from a patch."
        )

    def _tokens(self, layer: Attention) -> Tokens:
        return placed(layer, layer.keys if self.statistic == "received" else layer.queries)

    def _by_head(self, layer: Attention) -> Float[Tensor, "head token"]:
        queries, keys = placed(layer, layer.queries), placed(layer, layer.keys)
        numbers: Tensor = getattr(token_statistics(layer, queries, keys), self.statistic)
        tokens = self._tokens(layer)
        if tokens.grid.to_map(numbers).isnan().any():
            raise MethodError(
                f"in {layer.name} not every patch asks for something, so there is no map of their "
                f"{self.statistic}. Look at what they receive."
            )
        return numbers.nan_to_num(0.0).float()
