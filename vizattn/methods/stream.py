"""Relevance on its way down: on which grid it lies now, and how it gets onto another.

Models that merge patches have coarser grids in later layers. One coarse patch was made of several
fine ones in equal parts, so what is relevant in it is shared out among them equally, and relevance
is conserved. Tokens without a place keep theirs in whatever layer they take no part.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.places import Tokens


@dataclass(frozen=True)
class Stream:
    """Relevance of one or many queries, between two layers.

    Attributes:
        roles: Tokens without a place that any of the layers has.
        prefix: Their relevance.
        patches: Relevance of the patches, row by row.
        rows: Rows of the grid that they lie on now.
        cols: Its columns.
        frame: The rectangle of the picture that it covers.
    """

    roles: tuple[str, ...]
    prefix: Float[Tensor, "many role"]
    patches: Float[Tensor, "many patch"]
    rows: int
    cols: int
    frame: Frame

    @property
    def tokens(self) -> Tokens:
        """All tokens of the stream, numbered as a grid numbers them."""
        readout = "class" if "class" in self.roles else "mean"
        grid = TokenGrid(self.rows, self.cols, len(self.roles), self.roles, readout)
        return Tokens(grid, self.frame)

    @property
    def relevance(self) -> Float[Tensor, "many token"]:
        """Relevance of all tokens, prefix first."""
        return torch.cat([self.prefix, self.patches], dim=-1)

    def onto(self, tokens: Tokens) -> Stream:
        """The same relevance on the grid of some layer's tokens, as fine or finer."""
        grid, frame = tokens.grid, tokens.frame
        patches = spread(self.patches, self.tokens, tokens)
        return Stream(self.roles, self.prefix, patches, grid.rows, grid.cols, frame)

    def of(self, tokens: Tokens) -> Float[Tensor, "many token"]:
        """Relevance of a layer's own tokens, in their numbers; the stream lies on their grid."""
        members = members_of(tokens, self.roles)
        return torch.cat([self.prefix[:, members], self.patches], dim=-1)

    def without(self, tokens: Tokens) -> Stream:
        """What is left when the tokens that ask in a layer have given theirs to it."""
        asks = torch.zeros(tokens.grid.n_tokens, dtype=torch.bool)
        numbers = tokens.numbers()
        asks[numbers[numbers >= 0]] = True
        prefix, patches = self.prefix.clone(), self.patches.clone()
        members = members_of(tokens, self.roles)
        prefix[:, members[asks[: len(members)]]] = 0
        patches[:, asks[tokens.grid.prefix :]] = 0
        return Stream(self.roles, prefix, patches, self.rows, self.cols, self.frame)

    def plus(self, given: Float[Tensor, "many token"], tokens: Tokens) -> Stream:
        """With a layer's relevance added, on the finer of both grids."""
        finest = finer(self.tokens, tokens)
        here = self.onto(finest)
        prefix = here.prefix.index_add(
            1, members_of(tokens, self.roles), given[:, : tokens.grid.prefix]
        )
        patches = here.patches + spread(given[:, tokens.grid.prefix :], tokens, finest)
        return Stream(self.roles, prefix, patches, here.rows, here.cols, here.frame)

    def with_query(self, query: Float[Tensor, "*many token"], tokens: Tokens) -> Stream:
        """With one or many more queries, first of all, of tokens whose grid the stream lies on."""
        queries = query.reshape(-1, query.shape[-1])
        prefix = torch.zeros(len(queries), len(self.roles)).index_add(
            1, members_of(tokens, self.roles), queries[:, : tokens.grid.prefix]
        )
        patches = torch.cat([queries[:, tokens.grid.prefix :], self.patches])
        both = torch.cat([prefix, self.prefix])
        return Stream(self.roles, both, patches, self.rows, self.cols, self.frame)


def empty_stream(roles: tuple[str, ...], tokens: Tokens) -> Stream:
    """A stream of no query yet, on the grid of some layer's tokens."""
    grid = tokens.grid
    nothing = torch.zeros(0, len(roles)), torch.zeros(0, grid.n_patches)
    return Stream(roles, *nothing, grid.rows, grid.cols, tokens.frame)


def members_of(tokens: Tokens, roles: tuple[str, ...]) -> Int[Tensor, " prefix"]:
    """For each prefix token of a layer, its number among the roles of the stream."""
    left = list(range(len(roles)))
    found = []
    for role in tokens.grid.roles:
        number = next(number for number in left if roles[number] == role)
        left.remove(number)
        found.append(number)
    return torch.tensor(found, dtype=torch.long)


def finer(first: Tokens, second: Tokens) -> Tokens:
    """The one with more patches; the first when both have as many."""
    return second if second.grid.n_patches > first.grid.n_patches else first


def spread(
    patches: Float[Tensor, "many patch"], source: Tokens, target: Tokens
) -> Float[Tensor, "many fine"]:
    """Share what lies on coarse patches out among the fine ones that they were made of.

    Raises:
        MethodError: The target is coarser than the source, or some patch was made of none.
    """
    ours, theirs = source.grid, target.grid
    if (ours.rows, ours.cols) == (theirs.rows, theirs.cols) and source.frame == target.frame:
        return patches
    if theirs.rows < ours.rows or theirs.cols < ours.cols:
        raise MethodError(
            f"a later layer has {ours.rows}×{ours.cols} patches and an earlier one only "
            f"{theirs.rows}×{theirs.cols}: the layers do not follow each other from fine to "
            f"coarse, so rollout is not defined. Raw attention of each layer is."
        )
    parent = _parents(source, target)
    children = torch.bincount(parent, minlength=ours.n_patches)
    if (children == 0).any():
        raise MethodError(
            "some patches of a later layer were made of no patch of an earlier one, so rollout is "
            "not defined. Raw attention of each layer is."
        )
    return patches[:, parent] / children[parent]


def _parents(coarse: Tokens, fine: Tokens) -> Int[Tensor, " fine"]:
    """Which coarse patch the middle of each fine one lies in, or is nearest to."""
    here, there = fine.frame, coarse.frame
    down = (here.top, here.height, fine.grid.rows), (there.top, there.height, coarse.grid.rows)
    along = (here.left, here.width, fine.grid.cols), (there.left, there.width, coarse.grid.cols)
    row, col = _nearest(*down), _nearest(*along)
    return (row.unsqueeze(1) * coarse.grid.cols + col).flatten()


def _nearest(fine: tuple[float, float, int], coarse: tuple[float, float, int]) -> Tensor:
    """Along one axis, given as start, extent and number of cells: the coarse cell of each fine."""
    start, extent, count = fine
    middle = start + (torch.arange(count, dtype=torch.float64) + 0.5) * extent / count
    start, extent, count = coarse
    return ((middle - start) / extent * count).floor().long().clamp(0, count - 1)
