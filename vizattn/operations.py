"""The operations of PyTorch that attention is made of, as far as this build knows them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def packets(names: Iterable[str]) -> list[Any]:
    """The operations of these names that this build of PyTorch knows."""
    found = (getattr(torch.ops.aten, name, None) for name in names)
    return [packet for packet in found if packet is not None]


FUSED = packets(
    [
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_attention_math_for_mps",
    ]
)
# Of torch.nn.functional.scaled_dot_product_attention, those that may come without their name.
ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
LAYERS = packets(["_native_multi_head_attention", "_transformer_encoder_layer_fwd"])
SOFTMAX = packets(["_softmax", "_safe_softmax", "softmax"])
PRODUCTS = packets(["bmm", "mm", "baddbmm"])

# Made of several of the above; seen whole where autograd is out of the way.
COMPOSITES = frozenset(
    packets(
        [
            "scaled_dot_product_attention",
            "_scaled_dot_product_attention_math",
            "einsum",
            "matmul",
        ]
    )
)
