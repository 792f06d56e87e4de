"""Which token is where: the grid of a model's patches for an input of a given size.

Each family says it in its own way and is asked in that way. Where nothing is declared there is no
grid, and a caller may give one; a square root of the number of tokens is never taken for one.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from vizattn.errors import GridError
from vizattn.grid import TokenGrid


def layout_of(module: nn.Module, height: int, width: int) -> TokenGrid:
    """The grid that a model declares for an input of ``height × width`` pixels.

    Raises:
        GridError: The model declares none that is known here.
    """
    for family in (_timm, _seed):
        grid = family(module, height, width)
        if grid is not None:
            return grid
    raise GridError(
        f"{type(module).__name__} does not say how its tokens lie on a {width}×{height} picture. "
        f"Say it with wrap_model(module, layout=TokenGrid(rows, cols, prefix))."
    )


def _timm(module: nn.Module, height: int, width: int) -> TokenGrid | None:
    """Plain vision transformers of timm: the patch embedding knows its grid."""
    embed: Any = getattr(module, "patch_embed", None)
    prefix = getattr(module, "num_prefix_tokens", None)
    if prefix is None or not hasattr(embed, "dynamic_feat_size"):
        return None
    rows, cols = embed.dynamic_feat_size((height, width))
    roles = _timm_roles(module, prefix)
    pooled = getattr(module, "global_pool", "token")
    return TokenGrid(rows, cols, prefix, roles, "class" if pooled == "token" else "mean")


def _timm_roles(module: nn.Module, prefix: int) -> tuple[str, ...]:
    named = [
        "class" if getattr(module, "cls_token", None) is not None else "",
        "distillation" if getattr(module, "dist_token", None) is not None else "",
    ]
    roles = [role for role in named if role]
    return (*roles, *["register"] * (prefix - len(roles)))


def _seed(module: nn.Module, height: int, width: int) -> TokenGrid | None:
    """The project's own ViT and others that speak as it does."""
    patch_size: Any = getattr(module, "patch_size", None)
    prefix: Any = getattr(module, "num_prefix_tokens", None)
    if not isinstance(patch_size, tuple) or prefix is None:
        return None
    rows, cols = height // patch_size[0], width // patch_size[1]
    readout = "class" if getattr(module, "pool", "cls") == "cls" else "mean"
    return TokenGrid(rows, cols, prefix, readout=readout)
