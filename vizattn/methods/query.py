"""What is asked of a layer: the model's own query, one patch, or any weighting of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.grid import TokenGrid
from vizattn.layers import Attention
from vizattn.places import Tokens
from vizattn.record import AttentionRecord

# A position on the original picture: x to the right and y down from its upper left corner.
Pixel = tuple[float, float]

# Who asks: the patch under a pixel, or tokens by what they are: a role such as "class" or
# "register", or "mean", all patches alike.
Asker = Pixel | str


@dataclass(frozen=True)
class Query:
    """A question to one layer.

    Attributes:
        weights: A weight for each query token of the layer; they sum to 1.
        words: Who asks, for a sentence.
        made: The same as plain values for a file.
    """

    weights: Float[Tensor, " query"]
    words: str
    made: dict[str, Any]

    @classmethod
    def of(
        cls,
        record: AttentionRecord,
        layer: Attention,
        at: Asker | None = None,
        query: Float[Tensor, " query"] | None = None,
    ) -> Query:
        """Ask a layer from a patch or a kind of token, with a weighting, or as the model asks.

        Raises:
            MethodError: Both were given, the layer has no such token, or it cannot be laid over the
                picture.
            FrameError: The layer has no patch under this pixel.
        """
        tokens = placed(layer, layer.queries)
        if at is not None and query is not None:
            raise MethodError("got both at= and a query; give one of them.")
        if query is not None:
            tokens.grid.check(query.shape[-1])
            return cls(query, "the query", {"kind": "custom"})
        if isinstance(at, str):
            return cls._of_role(layer, tokens.grid, at)
        if at is not None:
            return cls._of_patch(layer, tokens, at)
        return cls._own(record, layer, tokens)

    @classmethod
    def _of_patch(cls, layer: Attention, tokens: Tokens, at: Pixel) -> Query:
        grid = tokens.grid
        row, col = tokens.frame.patch_at(*at, grid.rows, grid.cols)
        if not (tokens.numbers() == grid.patch_index(row, col)).any():
            raise MethodError(
                f"no patch asks in {layer.name}: its queries are "
                f"{' and '.join(dict.fromkeys(grid.roles)) or 'learnt'} tokens. "
                f"Leave the pixel out to see what they look at."
            )
        words = f"the patch at row {row + 1}, column {col + 1}"
        return cls(grid.patch(row, col), words, {"kind": "patch", "row": row, "col": col})

    @classmethod
    def _of_role(cls, layer: Attention, grid: TokenGrid, role: str) -> Query:
        if role == "mean":
            return cls(grid.mean, "the mean of the patches", {"kind": "mean"})
        asking = [index for index, name in enumerate(grid.roles) if name == role]
        if not asking:
            roles = ", ".join([*dict.fromkeys(grid.roles), "mean"])
            raise MethodError(
                f"no {role} token asks in {layer.name}; there one can ask from {roles}, or from a "
                f"pixel as a pair of numbers."
            )
        weights = torch.zeros(grid.n_tokens)
        weights[asking] = 1 / len(asking)
        words = f"the {role} token{'s' * (len(asking) > 1)}"
        return cls(weights, words, {"kind": role})

    @classmethod
    def _own(cls, record: AttentionRecord, layer: Attention, tokens: Tokens) -> Query:
        grid = tokens.grid
        if layer.kind in ("class", "pool", "cross"):
            asking = torch.unique(tokens.numbers())
            weights = torch.zeros(grid.n_tokens).index_fill(0, asking, 1 / len(asking))
            if layer.kind == "class":
                roles = " and ".join(dict.fromkeys(grid.roles[index] for index in asking))
                return cls(weights, f"the {roles} token", {"kind": "class"})
            return cls(weights, "the pooling head", {"kind": "pool"})
        pooled = _pooled(record, layer)
        if pooled is not None:
            return cls(pooled, "the pooling head", {"kind": "pool"})
        return cls(grid.query, grid.asks, {"kind": grid.readout})


def placed(layer: Attention, tokens: Tokens | None) -> Tokens:
    """The tokens of one side of a layer.

    Raises:
        MethodError: The layer cannot be laid over the picture; the reason is named.
    """
    if tokens is None:
        raise MethodError(
            f"{layer.name} cannot be laid over the picture: {layer.reason}. "
            f"Its matrix can be read with .rows() and .columns()."
        )
    return tokens


def _pooled(record: AttentionRecord, layer: Attention) -> Tensor | None:
    """What a pooling head reads from this layer's tokens, heads averaged, where there is one."""
    last = record.drawable[-1]
    if last.kind != "pool" or last.keys is None or layer.queries is None:
        return None
    if last.keys.grid != layer.queries.grid or last.keys.frame != layer.queries.frame:
        return None
    return last.rows(0).mean(0)[0]


def reading(grid: TokenGrid, relevance: Tensor, query: str) -> str:
    """The numbers that every map needs: its strongest patch, and what is not on the picture."""
    words = f"{percent(float(grid.to_map(relevance).max()))} on one patch"
    for role in dict.fromkeys(grid.roles):
        picked = [index for index, name in enumerate(grid.roles) if name == role]
        token = f"{role} token{'s' * (len(picked) > 1)}"
        itself = " itself" if f"the {token}" == query else ""
        words += f", {percent(float(relevance[picked].sum()))} on the {token}{itself}"
    return words


def reading_of_values(grid: TokenGrid, relevance: Tensor, _query: str = "") -> str:
    """The numbers of a map whose values are no shares: its strongest patch, and its weakest."""
    values = grid.to_map(relevance)
    index = int(values.argmax())
    row, col = index // grid.cols + 1, index % grid.cols + 1
    lowest = float(values.min())
    words = f"at most {float(values.max()):.3g}, on the patch at row {row}, column {col}"
    return f"{words}, and at least {lowest:.3g}" if lowest < 0 else words


def percent(share: float) -> str:
    """A share with two significant digits: ``4.1 %``, ``12 %``, ``0.06 %``.

    >>> percent(0.0413), percent(0.123), percent(0.0006), percent(1.0)
    ('4.1 %', '12 %', '0.06 %', '100 %')
    """
    value = 100 * share
    if abs(value) >= 9.95:
        return f"{value:.0f} %"
    return f"{float(f'{value:.1e}'):g} %"
