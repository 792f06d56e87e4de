"""From the positions of a call's tokens to grids: which token is which patch of the picture.

A call's tokens come as rows of positions, one row for each window and head. Rows with the same
positions are heads of one window; the positions of all windows together form a lattice, or they do
not, and then nothing is drawn over the picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.positions import are_lost

# Positions nearer than this share of a step are one: half-pixel sums are exact, resized feature
# maps are off by rounding alone.
_TOLERANCE = 0.02


@dataclass(frozen=True)
class Positions:
    """Where the tokens on one side of a call stand, one row for each window and head.

    Attributes:
        y: Down from the upper edge of the input, in pixels; NaN stands nowhere.
        x: From its left edge, likewise.
        seen: 0 for tokens that only fill up a window.
        is_scattered: Whether each token is made of numbers from many places, as a channel is.
        is_probe: Whether nothing of them has met the picture yet, unlike a class token.
    """

    y: Float[Tensor, "lead token"]
    x: Float[Tensor, "lead token"]
    seen: Float[Tensor, "lead token"]
    is_scattered: bool = False
    is_probe: bool = False

    @property
    def nowhere(self) -> Tensor:
        """Which tokens were learnt and have no position."""
        return torch.isnan(self.y)

    @property
    def is_lost(self) -> bool:
        """Whether it is not known of all tokens where they stand."""
        return bool(are_lost(self.y).any())

    @property
    def on_picture(self) -> Tensor:
        """Which tokens stand on the picture and are more than filling."""
        return ~self.nowhere & (self.seen > 0)

    def pick(self, rows: Tensor) -> Positions:
        """Some of the rows."""
        return replace(self, y=self.y[rows], x=self.x[rows], seen=self.seen[rows])

    def key(self) -> Tensor:
        """The rows as plain numbers that can be compared, NaN included."""
        parts = [self.y.nan_to_num(-1e6), self.x.nan_to_num(-1e6), self.seen]
        return torch.cat([(part * 64).round() for part in parts], dim=1)


@dataclass(frozen=True)
class Tokens:
    """Where the tokens on one side of a call lie.

    Attributes:
        grid: Rows and columns of patches, and the tokens without a place.
        frame: The rectangle that the grid covers: in input pixels here, in those of the original
            picture once it is part of a record.
        index: The number in the grid of each token of each window, -1 for filling; ``None`` when
            there is one window and its tokens are those of the grid in their order.
    """

    grid: TokenGrid
    frame: Frame
    index: Int[Tensor, "window token"] | None = None

    def numbers(self) -> Int[Tensor, "window token"]:
        """The index, written out."""
        return torch.arange(self.grid.n_tokens).unsqueeze(0) if self.index is None else self.index


@dataclass(frozen=True)
class Lattice:
    """Evenly spaced rows and columns of positions, in pixels of the input."""

    top: float
    left: float
    step_y: float
    step_x: float
    rows: int
    cols: int

    @property
    def frame(self) -> Frame:
        """The rectangle that its cells cover."""
        return Frame(
            self.left - self.step_x / 2,
            self.top - self.step_y / 2,
            self.step_x * self.cols,
            self.step_y * self.rows,
        )

    def squared(self) -> Lattice:
        """With gaps, whole rows may be missing: the shorter step, if the longer is made of it."""
        step = min(self.step_y, self.step_x)
        along_y, along_x = round(self.step_y / step), round(self.step_x / step)
        if abs(self.step_y - along_y * step) + abs(self.step_x - along_x * step) > 1e-3:
            return self
        rows, cols = (self.rows - 1) * along_y + 1, (self.cols - 1) * along_x + 1
        return Lattice(self.top, self.left, step, step, rows, cols)

    def cells(self, positions: Positions) -> Int[Tensor, "lead token"]:
        """The number of each token's cell, row by row; -1 for tokens not on the picture."""
        row = ((positions.y.nan_to_num() - self.top) / self.step_y).round().long()
        col = ((positions.x.nan_to_num() - self.left) / self.step_x).round().long()
        return torch.where(positions.on_picture, row * self.cols + col, -1)

    def holds(self, positions: Positions) -> bool:
        """Whether every token on the picture stands in the middle of a cell of this lattice."""
        on = positions.on_picture
        if not on.any():
            return True
        row = (positions.y[on] - self.top) / self.step_y
        col = (positions.x[on] - self.left) / self.step_x
        inside = (row > -0.5) & (row < self.rows - 0.5) & (col > -0.5) & (col < self.cols - 0.5)
        off = torch.maximum((row - row.round()).abs(), (col - col.round()).abs())
        return bool(inside.all()) and bool((off <= _TOLERANCE).all())


def find_lattice(positions: Positions, height: int, width: int) -> Lattice | None:
    """The lattice that the tokens on the picture stand on; ``None`` when they stand on none.

    Args:
        positions: Positions of all windows.
        height: Height of the model's input in pixels, for a lattice of one row.
        width: Its width, likewise.
    """
    on = positions.on_picture
    if not on.any():
        return None
    top, step_y, rows = _spacing(positions.y[on])
    left, step_x, cols = _spacing(positions.x[on])
    step_y, step_x = step_y or step_x or float(height), step_x or step_y or float(width)
    lattice = Lattice(top, left, step_y, step_x, rows, cols)
    occupied = len(torch.unique(lattice.cells(positions)[on])) if rows and cols else 0
    if occupied < rows * cols:
        lattice = lattice.squared()
    # fewer than a quarter of the cells: rather scattered tokens than a lattice with gaps
    if not occupied or not lattice.holds(positions) or occupied < lattice.rows * lattice.cols / 4:
        return None
    return lattice


def _spacing(values: Tensor) -> tuple[float, float, int]:
    """Start, step and count of evenly spaced values; step 0 for a single one, count 0 for none."""
    distinct = torch.unique(values.double())
    gaps = distinct.diff()
    gaps = gaps[gaps > 0.05]
    if not len(gaps):
        return float(distinct.mean()), 0.0, 1
    start, extent = float(distinct[0]), float(distinct[-1] - distinct[0])
    count = round(extent / float(gaps.min()))
    return start, extent / count, count + 1


def windows_of(query: Positions, key: Positions) -> Int[Tensor, "window head"] | None:
    """Which rows are heads of which window, windows in the order of their first row.

    Rows with the same positions of queries and keys are heads of one window. ``None`` when windows
    would have different numbers of heads.
    """
    rows = torch.cat([query.key(), key.key()], dim=1)
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    members = [torch.nonzero(group == number).flatten() for number in torch.unique(group)]
    if len({len(each) for each in members}) != 1:
        return None
    return torch.stack(sorted(members, key=lambda each: int(each[0])))


@dataclass(frozen=True)
class CallPlace:
    """What one call attends with, to what, and where that is.

    Attributes:
        kind: ``self``, ``window``, ``pooled``, ``class``, ``pool``, ``cross``, ``channel``,
            ``outside`` (no token of it comes from the picture) or ``unknown``.
        windows: Rows of the call's tensors, window by window and head by head.
        queries: Where the queries lie; ``None`` when they cannot be laid over the picture.
        keys: Where the keys lie, likewise.
        reason: Why nothing can be laid over the picture, a clause; empty otherwise.
    """

    kind: str
    windows: Int[Tensor, "window head"]
    queries: Tokens | None = None
    keys: Tokens | None = None
    reason: str = ""


@dataclass(frozen=True)
class Inputs:
    """What places need to know of the model and its input.

    Attributes:
        height: Height of the input in pixels.
        width: Its width.
        roles: What the tokens without a place are, by how many there are.
        readout: How the model reads its tokens out, where a call has such a token.
    """

    height: int
    width: int
    roles: Callable[[int], tuple[str, ...]]
    readout: str = ""


def place_call(query: Positions | None, key: Positions | None, inputs: Inputs) -> CallPlace:
    """Windows, heads and grids of one call; ``None`` for tokens that owe the picture nothing."""
    if query is None or key is None:
        return CallPlace("outside", _one_window(1), reason="none of it is from the picture")
    windows = windows_of(query, key)
    reason = _reason_against(query, key, windows)
    if reason or windows is None:
        return CallPlace("unknown", _one_window(len(key.y)), reason=reason)
    query, key = query.pick(windows[:, 0]), key.pick(windows[:, 0])
    is_cut = len(windows) > 1 and query.y.shape == key.y.shape
    if is_cut and len(torch.unique(query.key(), dim=0)) == 1:
        query = key  # one query shared by all windows stands in each where that window's tokens do
    if len(windows) == 1 and _one_place(key) and not key.nowhere.any():
        if key.is_scattered:
            reason = "it attends among channels, not among places"
            return CallPlace("channel", windows, reason=reason)
        if key.y.shape[1] > 1:
            reason = "its keys all stand in one place, as summaries of the picture do"
            return CallPlace("unknown", windows, reason=reason)
    return _place_windows(query, key, windows, inputs)


def _reason_against(query: Positions, key: Positions, windows: Tensor | None) -> str:
    """Why positions say nothing, or an empty string."""
    if not key.on_picture.any():
        return "its keys are learnt tokens, which have no place on the picture"
    if query.is_lost or key.is_lost:
        side = "keys" if key.is_lost else "queries"
        return f"where its {side} lie was lost in an operation before it"
    return "" if windows is not None else "its windows have different numbers of heads"


def _place_windows(query: Positions, key: Positions, windows: Tensor, inputs: Inputs) -> CallPlace:
    """The same for one row of positions in each window."""
    key_lattice = find_lattice(key, inputs.height, inputs.width)
    asked = find_lattice(query, inputs.height, inputs.width)
    if key_lattice is None or (asked is None and query.on_picture.any()):
        side = "keys" if key_lattice is None else "queries"
        reason = f"its {side} do not stand on a grid"
        return CallPlace("unknown", windows, reason=reason)
    query_lattice = asked or key_lattice
    if _share_a_cell(query, query_lattice) or _share_a_cell(key, key_lattice):
        reason = "several of its tokens stand in one place, as frames of a video do"
        return CallPlace("unknown", windows, reason=reason)
    same = asked is None or _same(asked, key_lattice)
    keys = _tokens(key, key_lattice, inputs)
    if bool(query.nowhere.all()):
        kind = "pool" if query.y.shape[1] == 1 else "cross"
        if not query.is_probe and key.nowhere.any():
            kind = "class"
        queries = keys if kind == "class" else None
        return CallPlace(kind, windows, _asking(query, key_lattice, queries, kind), keys)
    queries = _tokens(query, key_lattice if same else query_lattice, inputs)
    kind = "window" if len(windows) > 1 else ("self" if same else "pooled")
    return CallPlace(kind, windows, queries, keys)


def _tokens(positions: Positions, lattice: Lattice, inputs: Inputs) -> Tokens:
    n_nowhere = int(positions.nowhere.sum(1).max())
    roles = inputs.roles(n_nowhere)
    readout = inputs.readout if inputs.readout == "mean" or "class" in roles else "mean"
    grid = TokenGrid(lattice.rows, lattice.cols, n_nowhere, roles, readout)
    cells = lattice.cells(positions)
    index = torch.where(cells >= 0, cells + n_nowhere, cells)
    index = torch.where(positions.nowhere, positions.nowhere.cumsum(1) - 1, index)
    return Tokens(grid, lattice.frame, None if _in_order(index, grid) else index)


def _asking(query: Positions, lattice: Lattice, keys: Tokens | None, kind: str) -> Tokens:
    """Queries without a place: the class token among the keys, or probes that were learnt."""
    n_queries = query.y.shape[1]
    index = torch.arange(n_queries).expand(query.y.shape)
    if keys is not None and n_queries <= keys.grid.prefix:
        return Tokens(keys.grid, keys.frame, index)
    roles = ("probe" if kind == "pool" else "query",) * n_queries
    grid = TokenGrid(lattice.rows, lattice.cols, n_queries, roles, "mean")
    return Tokens(grid, lattice.frame, index)


def _in_order(index: Tensor, grid: TokenGrid) -> bool:
    return len(index) == 1 and torch.equal(index[0], torch.arange(grid.n_tokens))


def _share_a_cell(positions: Positions, lattice: Lattice) -> bool:
    cells = lattice.cells(positions).sort(1).values
    return bool(((cells[:, 1:] == cells[:, :-1]) & (cells[:, 1:] >= 0)).any())


def _same(first: Lattice, second: Lattice) -> bool:
    if (first.rows, first.cols) != (second.rows, second.cols):
        return False
    near = _TOLERANCE * max(first.step_y, first.step_x)
    ours = (first.top, first.left, first.step_y, first.step_x)
    theirs = (second.top, second.left, second.step_y, second.step_x)
    return all(abs(a - b) <= near for a, b in zip(ours, theirs, strict=True))


def _one_place(positions: Positions) -> bool:
    spread = positions.y - positions.y[:, :1], positions.x - positions.x[:, :1]
    return all(bool((part.abs() < 1e-2).all()) for part in spread)


def _one_window(n_lead: int) -> Tensor:
    return torch.arange(n_lead).unsqueeze(0)
