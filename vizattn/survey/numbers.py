"""The numbers of every head in one picture, and why one is missing.

A sink is a patch that draws from a head, on average over all tokens that ask, at least ten times
what an average token of the keys draws. Where as many tokens ask as are asked, the average one gets
back just the attention it gives, so that a sink gets ten times what it gives. The factor is our
own. Papers that call patches with outlying norms of hidden states sinks or artefacts (Darcet et al.
2024, "Vision Transformers Need Registers") mean the cause; a record holds queries, keys and values
but no hidden states, so what is counted here is the effect, as in Xiao et al. 2024, "Efficient
Streaming Language Models with Attention Sinks".

Two heads are alike as far as their rows point the same way: the cosine of the two rows of a token,
averaged over all tokens that ask in both. 1 is the same map, 0 is no key in common.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.layers import Attention
from vizattn.methods.query import placed
from vizattn.record import AttentionRecord
from vizattn.rows import patches_ask
from vizattn.statistics import LayerStatistics, layer_statistics
from vizattn.survey.notes import LayerNote

# How many times the average share makes a patch a sink.
SINK = 10.0

# Prefix tokens whose shares are always there, blank where a model has none.
_ROLES = ("class", "register")

# Numbers of a head and what they are, in the order in which people read them.
NUMBERS: Mapping[str, str] = {
    "mean_entropy": "entropy of a row, mean over all tokens that ask; bits",
    "query_entropy": "entropy of what the model's own query looks at; bits",
    "distance": "mean attention distance; patches of the grid of the keys",
    "input_distance": "mean attention distance; pixels of the model's input",
    "pixel_distance": "mean attention distance; pixels of the original picture",
    "mass_class": "share of attention on the class token, mean over all tokens that ask",
    "mass_register": "the same on register tokens",
    "mass_sink": f"the same on sinks: patches that draw {SINK:g} times the average or more",
    "n_sinks": "how many patches are sinks",
    "sink_share": "largest share that one token draws, mean over all tokens that ask",
    "query_mass_class": "share of the attention of the model's own query on the class token",
    "query_mass_register": "the same on register tokens",
    "similarity": "cosine of this head's rows with those of another, mean over the other heads",
}


@dataclass(frozen=True)
class PictureNumbers:
    """The numbers of all heads in one picture, ``[layer, head]``; NaN where there is none.

    Attributes:
        layers: What there is to know of each layer.
        numbers: By name: those of ``NUMBERS``, and shares on other prefix tokens of the model.
        likeness: Cosine of the rows of each two heads of a layer, ``[layer, head, head]``.
        sink_token: Token that draws the largest share, by its number in the grid; -1 for none.
    """

    layers: tuple[LayerNote, ...]
    numbers: Mapping[str, Float[np.ndarray, "layer head"]]
    likeness: Float[np.ndarray, "layer head head"]
    sink_token: np.ndarray


def picture_numbers(record: AttentionRecord) -> PictureNumbers:
    """The numbers of every head of a record, in one pass over tiles of rows for each layer."""
    found = [_of_layer(record, layer) for layer in record]
    width = max(layer.n_heads for layer in record)
    names = list(dict.fromkeys([*NUMBERS, *(name for each in found for name in each.numbers)]))
    numbers = {name: np.full((len(found), width), np.nan) for name in names}
    likeness = np.full((len(found), width, width), np.nan)
    sink_token = np.full((len(found), width), -1)
    for index, each in enumerate(found):
        heads = slice(each.note.n_heads)
        for name, values in each.numbers.items():
            numbers[name][index, heads] = values
        if each.likeness is not None and each.sink_token is not None:
            likeness[index, heads, heads] = each.likeness
            sink_token[index, heads] = each.sink_token
    # rounded to what the files hold, so that means are those of the rows that people find there
    rounded = {name: _rounded(values) for name, values in numbers.items()}
    notes = tuple(each.note for each in found)
    return PictureNumbers(notes, rounded, _rounded(likeness), sink_token)


@dataclass(frozen=True)
class _Layer:
    note: LayerNote
    numbers: dict[str, np.ndarray] = field(default_factory=dict)
    likeness: np.ndarray | None = None
    sink_token: np.ndarray | None = None


def _of_layer(record: AttentionRecord, layer: Attention) -> _Layer:
    if not layer.is_drawable:
        blank = dict.fromkeys(NUMBERS, layer.reason)
        return _Layer(LayerNote(layer.name, layer.kind, layer.n_heads, blank=blank))
    likeness = Likeness(layer.n_heads)
    found = layer_statistics(record, layer, watch=likeness.watch)
    patch = _patch(record, layer)
    cosines = likeness.mean
    numbers = _numbers(layer, found, patch) | {"similarity": _with_others(cosines)}
    arrays = {name: values.double().numpy() for name, values in numbers.items()}
    keys = placed(layer, layer.keys)
    note = LayerNote(
        layer.name, layer.kind, layer.n_heads, (keys.grid.rows, keys.grid.cols), patch,
        layer.core_shape[2], _reasons(layer, arrays, patch),
    )  # fmt: skip
    return _Layer(note, arrays, cosines.numpy(), found.sink_token.numpy())


def _numbers(layer: Attention, found: LayerStatistics, patch: float) -> dict[str, Tensor]:
    """Those that follow from the statistics of a layer."""
    prefix = placed(layer, layer.keys).grid.prefix
    n_sinks, mass = sinks(found.received, prefix)
    return {
        "mean_entropy": found.mean_entropy,
        "query_entropy": found.query_entropy,
        "distance": found.distance,
        "input_distance": found.distance * (patch or torch.nan),
        "pixel_distance": found.pixel_distance,
        **{f"mass_{role}": share for role, share in found.mean_prefix.items()},
        "mass_sink": mass,
        "n_sinks": n_sinks,
        "sink_share": found.sink_share,
        **{f"query_mass_{role}": share for role, share in found.query_prefix.items()},
    }


def sinks(
    received: Float[Tensor, "head key"], prefix: int
) -> tuple[Float[Tensor, " head"], Float[Tensor, " head"]]:
    """How many patches are sinks, and their share of all attention.

    Args:
        received: Share of the attention of all tokens that ask that each token draws.
        prefix: Tokens before the first patch, which are no patches and no sinks.
    """
    patches = received[:, prefix:]
    are_sinks = patches >= SINK * received.mean(-1, keepdim=True)
    undefined = patches.sum(-1) * 0  # NaN where no token asks
    return are_sinks.sum(-1) + undefined, (patches * are_sinks).sum(-1)


class Likeness:
    """How alike the heads of a layer look, from its rows as they come.

    Args:
        n_heads: Heads of the layer.
    """

    def __init__(self, n_heads: int) -> None:
        self._total, self._count = torch.zeros(2, n_heads, n_heads, dtype=torch.float64)

    def watch(self, _part: slice, rows: Float[Tensor, "head tile key"]) -> None:
        """Take some rows into account."""
        pairs = torch.einsum("htk,gtk->thg", rows, rows).double()
        squares = pairs.diagonal(dim1=1, dim2=2)
        asking = (squares > 0).double()
        length = torch.where(squares > 0, squares, 1).rsqrt()
        self._total += torch.einsum("thg,th,tg->hg", pairs, length, length)
        self._count += torch.einsum("th,tg->hg", asking, asking)

    @property
    def mean(self) -> Float[Tensor, "head head"]:
        """Mean cosine of each two heads; NaN where no token asks in both."""
        cosines: Tensor = self._total / self._count
        return cosines


def _with_others(likeness: Float[Tensor, "head head"]) -> Float[Tensor, " head"]:
    """Mean over the other heads; NaN for a head that is alone."""
    others = likeness.clone().fill_diagonal_(torch.nan)
    mean: Tensor = others.nanmean(-1)
    return mean


def _patch(record: AttentionRecord, layer: Attention) -> float:
    """Side of a patch of the keys in pixels of the model's input; 0 where it is no square."""
    keys, (height, width) = placed(layer, layer.keys), record.input_size
    high = keys.frame.height / keys.grid.rows * height / record.frame.height
    wide = keys.frame.width / keys.grid.cols * width / record.frame.width
    return round(high, 6) if math.isclose(high, wide, rel_tol=1e-3) else 0.0


def _reasons(layer: Attention, numbers: Mapping[str, np.ndarray], patch: float) -> dict[str, str]:
    """Why numbers are blank for all heads of a layer."""
    missing = [
        name for name in NUMBERS if name not in numbers or bool(np.isnan(numbers[name]).all())
    ]
    return {name: _reason(name, layer, patch) for name in missing}


def _reason(name: str, layer: Attention, patch: float) -> str:
    roles = placed(layer, layer.keys).grid.roles
    role = name.rpartition("_")[2]
    if role in _ROLES and role not in roles:
        return f"there is no {role} token among its keys"
    if name == "similarity" and layer.n_heads == 1:
        return "it has one head"
    if "distance" in name and not patches_ask(layer):
        return "no patch asks"
    if name == "input_distance" and not patch:
        return "its patches are not square in the model's input"
    if name.startswith("query"):
        return "the model's own query is not among those that ask, or all it could see is masked"
    return "every row is masked"


def _rounded(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).astype(np.float64)
