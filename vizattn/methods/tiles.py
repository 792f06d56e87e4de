"""Matrices made from a layer's weights, gradients and contributions, a few rows at a time.

Methods differ in the matrix W that they make of a layer: of its weights A, of the derivative of
the target by them, ``g vᵀ``, or of what keys add to tokens. W is never stored; relevance is carried
through it tile by tile, window by window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vizattn.attention import tile_length
from vizattn.errors import MethodError
from vizattn.layers import Attention, DenseAttention, LayerAttention
from vizattn.windows import put, take, windows_per_token


@dataclass(frozen=True)
class Tile:
    """A few query positions of every window of a layer.

    Attributes:
        layer: The layer.
        part: Which positions.
        weights: Their weights.
    """

    layer: Attention
    part: slice
    weights: Float[Tensor, "lead query key"]

    @property
    def gradient(self) -> Float[Tensor, "lead query key"]:
        """Derivative of the target by the weights, ``g vᵀ``."""
        g, v = gradient_and_values(self.layer)
        return g[:, self.part].to(self.weights.dtype) @ v.to(self.weights.dtype).mT

    def over_heads(
        self, values: Float[Tensor, "lead query key"]
    ) -> Float[Tensor, "window query key"]:
        """The mean over the heads of each window."""
        return rearrange(values, "(w h) q k -> w h q k", h=self.layer.n_heads).mean(1)


Matrix = Callable[[Tile], Float[Tensor, "window query key"]]


def gradient_and_values(layer: Attention) -> tuple[Tensor, Tensor]:
    """``g`` and ``v`` of a layer.

    Raises:
        MethodError: The layer has no gradient, or what multiplied its values was no softmax.
    """
    assert isinstance(layer, LayerAttention | DenseAttention)
    if layer.g is None:
        raise MethodError(
            f"the record does not know what a target depends on in {layer.name}. Capture it with "
            f"capture_gradients(model, image, target)."
        )
    return layer.g, layer.values


def why_no_weights(layer: Attention) -> str:
    """Why the weights of a layer are not those that multiplied its values; empty when they are."""
    if isinstance(layer, DenseAttention) and not layer.is_exact:
        return "its heads are mixed or gated after the softmax, so the gradient is another matrix's"
    return ""


def tiles_of(layer: Attention) -> Iterator[Tile]:
    """All rows of a layer, filling left out."""
    seen = None
    if layer.keys is not None and layer.keys.index is not None:
        seen = (layer.keys.index >= 0).repeat_interleave(layer.n_heads, 0).unsqueeze(1)
    for part, weights in layer.core_tiles():
        yield Tile(layer, part, weights if seen is None else weights * seen)


def gradient_tiles(layer: Attention) -> Iterator[tuple[slice, Float[Tensor, "lead query key"]]]:
    """Derivatives by all weights of a layer, a few query positions at a time; 0 for filling."""
    g, v = gradient_and_values(layer)
    lead, n_queries, n_keys = layer.core_shape
    length = tile_length(lead, n_keys)
    for start in range(0, n_queries, length):
        part = slice(start, min(start + length, n_queries))
        yield part, g[:, part].float() @ v.float().mT


def carry(
    layer: Attention,
    relevance: Float[Tensor, "many query"],
    matrix: Matrix,
    *,
    with_identity: bool = False,
) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
    """``r W``, and what the queries keep.

    A token that stands in several windows asks in each with an equal share.

    Args:
        layer: A layer that can be laid over the picture.
        relevance: Relevance of the query tokens.
        matrix: What W is, for a tile.
        with_identity: Whether the rows of ``I + W`` are first made to sum to 1; else W is taken as
            it is and queries keep all.
    """
    assert layer.queries is not None
    assert layer.keys is not None
    asking, asked = layer.queries.numbers(), layer.keys.numbers()
    windows = windows_per_token(asking, layer.n_queries).clamp_min(1)
    share = take(relevance / windows, asking)
    given = torch.zeros(len(relevance), *asked.shape, dtype=relevance.dtype)
    kept = torch.zeros_like(share)
    for tile in tiles_of(layer):
        made = matrix(tile).to(relevance.dtype)
        of = share[:, :, tile.part]
        if with_identity:
            of = of / (1 + made.sum(-1))
        kept[:, :, tile.part] = of
        given += torch.einsum("mwq,wqk->mwk", of, made)
    total = torch.zeros(len(relevance), layer.n_keys, dtype=relevance.dtype)
    put(total, asked, given)
    if not with_identity:
        return total, relevance
    remaining = torch.zeros_like(relevance)
    put(remaining, asking, kept)
    return total, remaining


def rows_to_one(matrix: Float[Tensor, "window query key"]) -> Float[Tensor, "window query key"]:
    """With each row divided by its sum; rows of zeros stay."""
    total = matrix.sum(-1, keepdim=True)
    return matrix / total.masked_fill(total == 0, 1.0)
