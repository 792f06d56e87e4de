"""Where tokens sit: a few prefix tokens, then one token per patch, row by row.

A *query* is a weighting over tokens that sums to 1. ``cls`` asks for the class token alone,
``patch`` for one patch, ``mean`` for all patches alike; every question that vizattn answers is one
of these carried back through attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import GridError

READOUTS = ("class", "mean")

# Prefix tokens that a model reads out, where it has them.
_READ = ("class", "distillation")


@dataclass(frozen=True)
class TokenGrid:
    """``rows × cols`` patches after ``prefix`` tokens that have no place on the picture.

    Attributes:
        rows: Patches from top to bottom.
        cols: Patches from left to right.
        prefix: Tokens before the first patch.
        roles: What each prefix token is, such as ``("class", "register")``; when left out, the
            first is the class token and the others are registers.
        readout: How the model reads its tokens out at the end: the ``class`` token or the ``mean``
            of the patches; when left out, the class token where there is one.
    """

    rows: int
    cols: int
    prefix: int = 0
    roles: tuple[str, ...] = ()
    readout: str = ""

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1 or self.prefix < 0:
            raise GridError(
                f"got a grid of {self.rows}×{self.cols} patches after {self.prefix} prefix tokens; "
                f"a grid has at least one row and one column, and no fewer than 0 prefix tokens."
            )
        if not self.roles:
            roles = ("class", *["register"] * self.prefix)[: self.prefix]
            object.__setattr__(self, "roles", roles)
        if len(self.roles) != self.prefix:
            raise GridError(
                f"got {len(self.roles)} roles {self.roles} for {self.prefix} prefix tokens; "
                f"each prefix token has one."
            )
        if not self.readout:
            object.__setattr__(self, "readout", "class" if self.has_cls else "mean")
        if self.readout not in READOUTS or (self.readout == "class" and not self.has_cls):
            raise GridError(
                f"got readout {self.readout!r} for a grid whose prefix tokens are "
                f"{', '.join(self.roles) or 'none'}; it is 'mean', or 'class' with a class token."
            )

    @property
    def n_patches(self) -> int:
        """Patches alone."""
        return self.rows * self.cols

    @property
    def n_tokens(self) -> int:
        """Prefix tokens and patches."""
        return self.prefix + self.n_patches

    @property
    def has_cls(self) -> bool:
        """Whether one of the prefix tokens is a class token."""
        return "class" in self.roles

    @property
    def cls_index(self) -> int:
        """Index of the class token.

        Raises:
            GridError: The model has no class token.
        """
        if not self.has_cls:
            raise GridError(
                f"this grid has no class token (prefix tokens: {', '.join(self.roles) or 'none'}). "
                f"Ask with `.mean`, the mean of the patches, or with `.patch(row, col)`."
            )
        return self.roles.index("class")

    @property
    def cls(self) -> Float[Tensor, " token"]:
        """The query that asks for the class token alone."""
        return self._one_hot(self.cls_index)

    @property
    def mean(self) -> Float[Tensor, " token"]:
        """The query of a model that averages its patches: uniform over them, 0 on prefix tokens."""
        query = torch.zeros(self.n_tokens)
        query[self.prefix :] = 1 / self.n_patches
        return query

    @property
    def query(self) -> Float[Tensor, " token"]:
        """The query that the model itself asks when it reads its tokens out.

        A distilled model reads its class and its distillation token, half and half.
        """
        if self.readout == "mean":
            return self.mean
        read = [index for index, role in enumerate(self.roles) if role in _READ]
        query = torch.zeros(self.n_tokens)
        query[read] = 1 / len(read)
        return query

    @property
    def asks(self) -> str:
        """The same in words."""
        if self.readout == "mean":
            return "the mean of the patches"
        read = [role for role in self.roles if role in _READ]
        return f"the {' and '.join(read)} token{'s' * (len(read) > 1)}"

    def patch_index(self, row: int, col: int) -> int:
        """Token index of the patch at ``row``, ``col``, both counted from 0 at the top left."""
        if not (0 <= row < self.rows and 0 <= col < self.cols):
            raise GridError(
                f"got patch ({row}, {col}) of a grid of {self.rows}×{self.cols} patches; "
                f"rows run from 0 to {self.rows - 1} and columns from 0 to {self.cols - 1}."
            )
        return self.prefix + row * self.cols + col

    def patch(self, row: int, col: int) -> Float[Tensor, " token"]:
        """The query that asks for one patch; ``row`` and ``col`` count from 0."""
        return self._one_hot(self.patch_index(row, col))

    def check(self, n_values: int) -> None:
        """Refuse a vector that does not have one value per token.

        Raises:
            GridError: With the number that came, the number expected, and the likely cause.
        """
        if n_values != self.n_tokens:
            likely = n_values - self.n_patches
            cause = (
                f"Does the model have {likely} prefix tokens?"
                if likely >= 0
                else f"There are not even {self.n_patches} values, one for each patch."
            )
            raise GridError(
                f"got {n_values} values for a grid of {self.n_tokens} tokens "
                f"({self.prefix} prefix + {self.rows}×{self.cols} patches). {cause}"
            )

    def to_map(self, vector: Float[Tensor, "*many token"]) -> Float[Tensor, "*many row col"]:
        """Lay a value per token out as the picture lies; prefix tokens have no place and go.

        >>> TokenGrid(1, 2, prefix=1).to_map(torch.tensor([0.5, 0.2, 0.3]))
        tensor([[0.2000, 0.3000]])
        """
        self.check(vector.shape[-1])
        patches = vector[..., self.prefix :]
        return rearrange(patches, "... (row col) -> ... row col", row=self.rows)

    def prefix_of(self, vector: Float[Tensor, "*many token"]) -> Float[Tensor, "*many prefix"]:
        """The part of a vector that ``to_map`` drops: one value per prefix token."""
        self.check(vector.shape[-1])
        return vector[..., : self.prefix]

    def _one_hot(self, index: int) -> Tensor:
        query = torch.zeros(self.n_tokens)
        query[index] = 1.0
        return query
