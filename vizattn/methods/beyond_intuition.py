"""Beyond Intuition: attention through the layers, times what the target gains from the last of it.

    P   = (I + Ā_L) ⋯ (I + Ā_s)                          attention perception, from layer s on
    F   = mean over heads of (1/K Σ_k ∂y(k/K · x)/∂A_L)⁺     reasoning feedback, on the way to x
    map = query's rows of P ⊙ F

A layer's Ā comes in two ways:

* by tokens:  Ā[i, j] = mean over heads of A_h[i, j] · ‖v[j] W_O‖ / ‖z[j]‖      z enters the block
* by heads:   Ā = Σ_h θ_h A_h,  θ_h ∝ mean of |A_hᵀ ∂y/∂A_h|, and they sum to 1

The way starts at the model's mean colour, and each of its K pictures is a pass of its own.

Source: Chen et al. 2023, "Beyond Intuition: Rethinking Token Attributions inside Transformers",
TMLR, sections 3 and 4. The authors leave out the first three of twelve layers. Values are those
that the model computes, its normalisation and their bias included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.attention import tile_length
from vizattn.errors import MethodError
from vizattn.grid import TokenGrid
from vizattn.layers import Attention, DenseAttention, LayerAttention
from vizattn.methods.base import LayerMaps
from vizattn.methods.downward import Downward
from vizattn.methods.query import Asker, Query, placed
from vizattn.methods.settings import setting
from vizattn.methods.stream import members_of
from vizattn.methods.tiles import Tile, carry, gradient_and_values, tiles_of, why_no_weights
from vizattn.progress import Tell, within
from vizattn.record import AttentionRecord
from vizattn.windows import put, take

# The authors begin with the fourth of twelve blocks.
_SKIPPED = 3

# Queries whose relevance goes down through the layers together.
_TOGETHER = 256


@dataclass(frozen=True)
class BeyondIntuition(Downward):
    """Rows of attention carried through all layers, times integrated gradients of the last."""

    name: ClassVar[str] = "beyond-intuition"
    title: ClassVar[str] = "Beyond Intuition"
    about: ClassVar[str] = (
        "Attention of all layers multiplied through, each weight counting as much as what it "
        "carries is long (or each head as much as the target depends on it), times what the target "
        "gains from the last layer's attention while the picture grows out of its mean colour. One "
        "of the best maps that are made of attention, at the price of a pass for each step. What "
        "speaks against the target is left out."
    )
    paper: ClassVar[str] = (
        "Chen et al. 2023, Beyond Intuition: Rethinking Token Attributions inside Transformers, "
        "TMLR, §3 and §4"
    )
    is_slow: ClassVar[bool] = True
    formula: ClassVar[str] = (
        "map = P ⊙ F,  P = (I + Ā_L) ⋯ (I + Ā_s),  F = mean over heads of "
        "(1/K Σ_k ∂y(k/K · x)/∂A_L)⁺\n"
        "Ā: a layer's attention, each weight times the length of what the token adds over the "
        "token's own, or its heads weighed by the target's gradient; x: the picture; y: the target"
    )
    class_agnostic: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    has_query: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ("added", "lengths", "path:20")

    by: str = setting(
        "tokens",
        label="Weighed by",
        help="What weighs attention: lengths of what tokens add, or heads by their gradient.",
        kind="choice",
        choices=("tokens", "heads"),
    )
    steps: int = setting(
        20,
        label="Steps",
        help="How many pictures on the way; more of them sum to the whole more exactly.",
        kind="integer",
        minimum=1,
        maximum=200,
        step=1,
    )
    start_layer: int | None = setting(  # type: ignore[assignment]  # the others have a number
        None,
        label="Skip layers",
        help="How many of the first layers to leave out; 3 as the authors, at most a quarter.",
        kind="integer",
        minimum=0,
        step=1,
    )

    @property
    def wanted(self) -> tuple[str, ...]:
        """Lengths for tokens, gradients of every layer for heads."""
        of_layers = ("added", "lengths") if self.by == "tokens" else ("attention",)
        return (*of_layers, f"path:{self.steps}")

    def with_progress(
        self, record: AttentionRecord, query: Float[Tensor, " query"], progress: Tell
    ) -> Float[Tensor, " token"]:
        """Each row of ``P ⊙ F`` that the query weighs, mixed as it weighs them."""
        last, record = self._last(record), self._with_lengths(record)
        shown = self.shown(record).grid
        total = torch.zeros(shown.n_tokens)
        parts = torch.split(query.nonzero().flatten(), _TOGETHER)
        for number, asking in enumerate(parts):
            rows = torch.zeros(len(asking), len(query))
            rows[torch.arange(len(asking)), asking] = 1.0
            stream = self._down(record, rows, within(progress, number, len(parts)))
            total += query[asking] @ (stream.relevance * _feedback(last, asking, shown))
        return total

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The one map that there is, as of the last layer."""
        if at is not None:
            raise self.no_query()
        query = Query.of(record, self.asked(record)).weights
        return [LayerMaps(len(record) - 1, self.shown(record), self(record, query).unsqueeze(0))]

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Beyond Intuition by tokens through 9 layers for class 3: what the class token …``."""
        through = f"by {self.by} {self._through_layers(record)} for {record.target}"
        return f"Beyond Intuition {through}: what {query} draws on"

    def _layers(self, record: AttentionRecord) -> tuple[Attention, ...]:
        if self.start_layer is None:
            skipped = min(_SKIPPED, len(record) // 4)
            return replace(self, start_layer=skipped)._layers(record)
        return super()._layers(record)

    def _why_not(self, layer: Attention) -> str:
        if self.by == "tokens" and layer.kind in ("pool", "cross", "class"):
            return "what asks there is not among the tokens; weighed by heads it is defined"
        return why_no_weights(layer)

    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """``r ← r + r Ā``."""
        if self.by == "heads":
            shares = head_shares(layer)
            return carry(layer, relevance, lambda tile: _by_heads(tile, shares))
        return carry(layer, relevance, _by_tokens)

    def _last(self, record: AttentionRecord) -> LayerAttention | DenseAttention:
        """The last layer with what the target gains from its attention on the way."""
        need, last = self.wanted[-1], self._layers(record)[-1]
        if f"{need}:g" not in record.extras:
            raise MethodError(
                f"{self.name} needs the gradient of the last attention on the way to the picture, "
                f"and this record has none. Capture it with capture_gradients(model, image, "
                f"target, needs={list(self.wanted)!r})."
            )
        assert isinstance(last, LayerAttention | DenseAttention)
        here, there = placed(last, last.keys).grid, self.shown(record).grid
        if last.n_windows > 1 or (here.rows, here.cols) != (there.rows, there.cols):
            raise MethodError(
                f"{self.name} is not defined in {record.model}: its last layer does not attend to "
                f"the tokens of the first. GAE passes through."
            )
        return replace(last, g=record.extras[f"{need}:g"], v=record.extras[f"{need}:v"])

    def _with_lengths(self, record: AttentionRecord) -> AttentionRecord:
        """By tokens: how long what each key adds is, over its own length, in place of ``gives``."""
        if self.by == "heads":
            return record
        made = []
        for layer, lengths in zip(record, record.extras["lengths"], strict=True):
            if layer.gives is None:
                raise MethodError(
                    f"{self.name} by tokens needs what each key adds in {layer.name}, which is "
                    f"not known there. By heads it needs no such thing."
                )
            added = rearrange(layer.gives, "(w h) k c -> w h k c", h=layer.n_heads).sum(1)
            own = take(lengths.unsqueeze(0), placed(layer, layer.keys).numbers())[0]
            share = added.norm(dim=-1) / own.clamp_min(torch.finfo().tiny)
            made.append(replace(layer, gives=share.repeat_interleave(layer.n_heads, 0)[..., None]))
        return replace(record, layers=tuple(made))


def _by_tokens(tile: Tile) -> Float[Tensor, "window query key"]:
    assert tile.layer.gives is not None
    return tile.over_heads(tile.weights * tile.layer.gives.mT)


def _by_heads(tile: Tile, shares: Float[Tensor, " head"]) -> Float[Tensor, "window query key"]:
    weights = rearrange(tile.weights, "(w h) q k -> w h q k", h=tile.layer.n_heads)
    return torch.einsum("whqk,h->wqk", weights, shares.to(weights))


def head_shares(layer: Attention) -> Float[Tensor, " head"]:
    """How much the target depends on each head: the mean of ``|Aᵀ ∂y/∂A|``, summing to 1.

    As ``∂y/∂A = g vᵀ``, the matrix is ``(Aᵀ g) vᵀ``; a few of its rows are made at a time.
    """
    g, v = gradient_and_values(layer)
    received = torch.zeros_like(v, dtype=torch.float32)
    for tile in tiles_of(layer):
        received += tile.weights.float().mT @ g[:, tile.part].float()
    size = torch.zeros(len(v))
    for part in torch.split(received, tile_length(len(v), v.shape[1]), dim=1):
        size += (part @ v.float().mT).abs().sum((1, 2))
    by_head = rearrange(size, "(w h) -> w h", h=layer.n_heads).sum(0)
    return by_head / by_head.sum().clamp_min(torch.finfo().tiny)


def _feedback(
    layer: Attention, asking: Int[Tensor, " asking"], shown: TokenGrid
) -> Float[Tensor, "asking token"]:
    """Rows of F: the positive part of each head's mean gradient, heads averaged."""
    g, v = gradient_and_values(layer)
    keys, numbers = placed(layer, layer.keys), placed(layer, layer.queries).numbers()[0]
    rows = torch.zeros(len(asking), layer.n_keys)
    for row, token in zip(rows, asking, strict=True):
        positions = (numbers == token).nonzero().flatten()
        gained = g[:, positions].float() @ v.float().mT  # [head, position, key]
        mean = gained.clamp_min(0).mean(0).mean(0)
        put(row.unsqueeze(0), keys.numbers(), mean.view(1, 1, -1))
    prefix = torch.zeros(len(asking), shown.prefix)
    prefix[:, members_of(keys, shown.roles)] = rows[:, : keys.grid.prefix]
    return torch.cat([prefix, rows[:, keys.grid.prefix :]], dim=1)
