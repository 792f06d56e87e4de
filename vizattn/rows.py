"""The rows of one layer as a file, from which a browser computes what any patch looks at.

Where a layer keeps q and k, the file holds them as float16, with everything else that a row and a
column need: the logarithm of each row's softmax denominator, computed from the same rounded q and
k so that rows sum to 1, and the mean row of all patches. Where it keeps weights, it holds those.

A row over N keys then costs N · dim multiplications and one exponential per key, both of which a
browser does faster than any server could answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vizattn import attention
from vizattn.layers import Attention, DenseAttention, LayerAttention

# Larger layers are not sent: a ViT-L/14 of 73 × 73 patches has 22 MB.
LARGEST_FILE = 32 * 2**20

_SENT = ("q", "k", "bias", "weights")
_HALF = torch.finfo(torch.float16)


def patches_ask(layer: Attention) -> bool:
    """Whether patches ask in this layer, and not only a class token or a learnt probe."""
    side = layer.queries
    return side is not None and bool((side.numbers() >= side.grid.prefix).any())


def rows_size(layer: Attention) -> int | None:
    """About how many bytes ``write_rows`` writes; ``None`` when the layer is too large to send."""
    sent = (getattr(layer, name, None) for name in _SENT)
    size = 2 * sum(tensor.numel() for tensor in sent if tensor is not None)
    return size if layer.is_drawable and size <= LARGEST_FILE else None


def write_rows(layer: Attention, path: Path) -> dict[str, Any]:
    """Write what the rows and columns of a layer are computed from.

    Args:
        layer: A layer that can be laid over the picture.
        path: The file to write.

    Returns:
        JSON values: ``form`` (``qk`` or ``dense``), ``heads``, ``windows``, ``queries`` and
        ``keys`` (tokens of a window), ``dim``, ``scale``, and ``parts``: for each array in the
        file its ``[byte offset, type, shape]`` with types as numpy writes them, little-endian.
    """
    parts, described, at = list(_parts(layer)), {}, 0
    with path.open("wb") as file:
        for name, array in parts:  # four-byte numbers come first, so that all stay aligned
            file.write(array.tobytes())
            described[name] = [at, array.dtype.str[1:], list(array.shape)]
            at += array.nbytes
    _, n_queries, n_keys = _shape(layer)
    qk = isinstance(layer, LayerAttention)
    return {
        "form": "qk" if qk else "dense",
        "heads": layer.n_heads,
        "windows": layer.n_windows,
        "queries": n_queries,
        "keys": n_keys,
        "dim": layer.q.shape[-1] if isinstance(layer, LayerAttention) else 0,
        "scale": layer.scale if isinstance(layer, LayerAttention) else 1.0,
        "parts": described,
    }


def _parts(layer: Attention) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(layer, LayerAttention):
        layer = rounded(layer)
        assert layer.lse is not None
        # a blank row has nothing under its exponential: +inf makes it all zeros
        yield "lse", _array(layer.lse.masked_fill(layer.lse == -math.inf, math.inf), "<f4")
    if patches_ask(layer):
        yield "mean", _array(mean_row(layer), "<f4")
    for name, side in (("query_index", layer.queries), ("key_index", layer.keys)):
        if side is not None and side.index is not None:
            yield name, _array(side.index, "<i4")
    for name in _SENT:
        tensor = getattr(layer, name, None)
        if tensor is not None:
            yield name, _array(tensor, "<f2")


def rounded(layer: LayerAttention) -> LayerAttention:
    """The layer as float16 holds it, with the log-sum-exp of exactly these numbers."""
    q, k = _round(layer.q), _round(layer.k)
    bias = None if layer.bias is None else _round(layer.bias)
    lse = attention.log_sum_exp(q, k, layer.scale, bias)
    return replace(layer, q=q, k=k, bias=bias, lse=lse)


def mean_row(layer: Attention) -> Float[Tensor, "head key"]:
    """What all patches together look at: the mean of their rows, in the grid of the keys."""
    assert layer.queries is not None
    numbers, grid = layer.queries.numbers(), layer.queries.grid
    weights = torch.zeros(grid.n_tokens)
    weights[numbers[numbers >= grid.prefix]] = 1
    return layer.attend(weights / weights.sum())


def _shape(layer: Attention) -> tuple[int, int, int]:
    if isinstance(layer, LayerAttention):
        return layer.q.shape[0], layer.q.shape[1], layer.k.shape[1]
    assert isinstance(layer, DenseAttention)
    lead, n_queries, n_keys = layer.weights.shape
    return lead, n_queries, n_keys


def _round(tensor: Tensor) -> Tensor:
    """To float16 and back; what is too large for it becomes its largest, except infinity."""
    finite = tensor.float().clamp(_HALF.min, _HALF.max)
    return torch.where(tensor.isinf(), tensor.float(), finite).half().float()


def _array(tensor: Tensor, kind: str) -> np.ndarray:
    return np.asarray(tensor.detach().cpu().numpy()).astype(kind)
