"""Attention flow: how much of the query could have come from each patch, as water through pipes.

    the tokens of every layer are places; from token i of layer l to token j of the layer below runs
    a pipe of capacity Â_l[i, j] = (1 - r) A_l + r I,  heads averaged
    map_j = the most that can flow from the query to token j, over the sum of all j

Where rollout multiplies along every way, a flow is bounded by the narrowest pipe of each way, and
no pipe carries more than it can. Computing it takes time that grows steeply with tokens, so patches
are merged into blocks until few are left: a block's rows are averaged and its columns added up.

Source: Abnar & Zuidema 2020, "Quantifying Attention Flow in Transformers", ACL, section 3. Merging
is an addition; a block's flow is shared out among its patches alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.grid import TokenGrid
from vizattn.layers import Attention
from vizattn.maxflow import Network
from vizattn.methods.base import LayerMaps
from vizattn.methods.downward import Downward, start_layer
from vizattn.methods.query import Asker, Query, placed
from vizattn.methods.settings import setting
from vizattn.progress import Tell
from vizattn.record import AttentionRecord


@dataclass(frozen=True)
class AttentionFlow(Downward):
    """The maximum flow from the query down to each token, through the attention of every layer."""

    name: ClassVar[str] = "flow"
    title: ClassVar[str] = "Attention flow"
    about: ClassVar[str] = (
        "Attention as pipes and the query as a source: the map says how much could flow down to "
        "each patch when no pipe carries more than its weight. It is the sister of rollout and "
        "more even, because many narrow ways add up. Slow, so patches are merged into blocks "
        "first. As rollout, it is the same whatever class is asked about."
    )
    formula: ClassVar[str] = (
        "map_j = maxflow(query → token j) / Σ_j maxflow(query → token j)\n"
        "capacity from token i of a layer to token j below: (1 − s) A[i, j] + s I[i, j]; A: its "
        "attention, heads averaged; s: residual share"
    )
    paper: ClassVar[str] = "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers, §3"
    instead: ClassVar[str] = "Rollout may be."

    residual: float = setting(
        0.5,
        label="Residual share",
        help="Share of each token that passes a layer unchanged; the paper takes one half.",
        kind="number",
        minimum=0.0,
        maximum=1.0,
        step=0.05,
    )
    tokens: int = setting(
        50,
        label="Most tokens",
        help="Patches are merged until a layer has no more tokens than this; time grows steeply.",
        kind="integer",
        minimum=8,
        maximum=200,
        step=1,
    )
    start_layer: int = start_layer()

    def with_progress(
        self, record: AttentionRecord, query: Float[Tensor, " query"], progress: Tell
    ) -> Float[Tensor, " token"]:
        """Shares of all tokens in what could flow; they sum to 1. Tells after each block."""
        block_of, n_blocks = self._blocks(record)
        network = self._network(record, query, block_of, n_blocks)
        bottom, flows = network.n_places - n_blocks, []
        for block in range(n_blocks):
            flows.append(network.maximum_flow(0, bottom + block))
            progress((block + 1) / n_blocks)
        shares = torch.tensor(flows, dtype=torch.float64)
        sizes = torch.bincount(block_of, minlength=n_blocks)
        return (shares / shares.sum() / sizes)[block_of].float()

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The one map through all layers, as of the last; others would take as long again."""
        query = Query.of(record, self.asked(record), at).weights
        return [LayerMaps(len(record) - 1, self.shown(record), self(record, query).unsqueeze(0))]

    def describe(self, record: AttentionRecord, query: str) -> str:
        """``Flow through 12 layers, patches merged 3×3: what the class token can draw on``."""
        grid = self.shown(record).grid
        side = merged_side(grid, self.tokens)
        merged = "" if side == 1 else f", patches merged {side}×{side}"
        return f"Flow {self._through_layers(record)}{merged}: what {query} can draw on"

    def _why_not(self, layer: Attention) -> str:
        if layer.n_windows > 1:
            return "it attends in windows"
        if layer.kind != "self":
            return "what asks there is not among the tokens that are asked"
        return ""

    def _carry(
        self, layer: Attention, relevance: Float[Tensor, "many query"]
    ) -> tuple[Float[Tensor, "many key"], Float[Tensor, "many query"]]:
        """One layer by itself, where flow and attention are the same."""
        return (1 - self.residual) * layer.pull_back(relevance), self.residual * relevance

    def _blocks(self, record: AttentionRecord) -> tuple[Int[Tensor, " token"], int]:
        """Which block each token belongs to, and how many there are."""
        grids = {placed(layer, layer.keys).grid for layer in self._layers(record)}
        if len(grids) > 1:
            raise MethodError(
                f"{self.name} goes from token to token, and the layers of {record.model} have "
                f"different grids. {self.instead}"
            )
        return blocks_of(grids.pop(), self.tokens)

    def _network(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],
        block_of: Int[Tensor, " token"],
        n_blocks: int,
    ) -> Network:
        """Place 0 is the query; then follow the blocks of all layers, from the top down."""
        layers = self._layers(record)
        network = Network(1 + (len(layers) + 1) * n_blocks)
        asking = torch.zeros(n_blocks).index_add(0, block_of, query)
        for block, share in enumerate(asking.tolist()):
            if share > 0:
                network.connect(0, 1 + block, share)
        for depth, layer in enumerate(reversed(layers)):
            top = 1 + depth * n_blocks
            capacity = (1 - self.residual) * merged(layer, block_of, n_blocks)
            capacity += self.residual * torch.eye(n_blocks)
            for start, row in enumerate(capacity.tolist()):
                for end, size in enumerate(row):
                    network.connect(top + start, top + n_blocks + end, size)
        return network


def merged_side(grid: TokenGrid, most: int) -> int:
    """The smallest side of square blocks of patches with which no more than ``most`` are left."""
    side = 1
    while grid.prefix + -(-grid.rows // side) * -(-grid.cols // side) > most:
        side += 1
        if side > max(grid.rows, grid.cols):
            raise MethodError(f"{grid.prefix} tokens have no patch, more than {most} are allowed.")
    return side


def blocks_of(grid: TokenGrid, most: int) -> tuple[Int[Tensor, " token"], int]:
    """For each token the number of its block, prefix tokens each by themselves."""
    side = merged_side(grid, most)
    wide = -(-grid.cols // side)
    rows, cols = torch.arange(grid.rows) // side, torch.arange(grid.cols) // side
    patches = (rows.unsqueeze(1) * wide + cols).flatten() + grid.prefix
    return torch.cat([torch.arange(grid.prefix), patches]), int(patches.max()) + 1


def merged(
    layer: Attention, block_of: Int[Tensor, " token"], n_blocks: int
) -> Float[Tensor, "block block"]:
    """Attention among blocks: heads and rows averaged, columns added up; each row sums to 1."""
    total = torch.zeros(n_blocks, n_blocks)
    for part, weights in layer.tiles():
        columns = torch.zeros(weights.shape[1], n_blocks)
        columns.index_add_(1, block_of, weights.float().mean(0))
        total.index_add_(0, block_of[part], columns)
    sizes: Tensor = torch.bincount(block_of, minlength=n_blocks)
    return total / sizes.unsqueeze(1)
