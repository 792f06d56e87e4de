"""Places inside a model that methods ask about: its patch embedding, and what enters each block.

They are found in the graph and by the parts of the model whose results they are, so that no name of
a module matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.graph import Node

from vizattn.blocks import block_of
from vizattn.calls import AttentionCall
from vizattn.errors import CaptureError
from vizattn.graph import VIEWS, Graph
from vizattn.grid import TokenGrid
from vizattn.places import CallPlace
from vizattn.tracked import Tracked

# What makes queries, keys and values of tokens, and what only moves tokens about before that.
_LINEAR = ("Addmm", "Mm")
_MOVES = (*VIEWS, "Roll", "ConstantPad", "Slice", "Expand", "Index", "Split", "Unbind", "Select")

# Where positions or learnt tokens join the patches, and the embedding is over.
_JOINS = ("AddBackward", "CatBackward")

Kept = Sequence[tuple[AttentionCall, CallPlace]]


def by_tokens(
    tracked: Tracked, graph: Graph, kept: Kept, rules: AbstractContextManager[None]
) -> Float[Tensor, " patch"]:
    """What the patch embedding put out times its derivative, summed over each patch's numbers.

    Args:
        tracked: A pass that kept what its parts put out.
        graph: The graph of the target.
        kept: Its attention calls, which know the grids.
        rules: What changes derivatives on the way down.

    Raises:
        CaptureError: The embedding was not found, or is not one vector for each patch.
    """
    embedded = _embedding(tracked, graph)
    with rules:
        (gradient,) = torch.autograd.grad(graph.root, [embedded], retain_graph=True)
    for grid in _grids(kept):
        rows = [tokens_on(grid, tensor, patches_alone=True) for tensor in (embedded, gradient)]
        if rows[0] is not None and rows[1] is not None:
            return (rows[0].double() * rows[1].double()).sum(-1).float()
    raise CaptureError(
        f"the patch embedding of {type(tracked.twin).__name__} put out numbers of shape "
        f"{tuple(embedded.shape)}, which is not one vector for each patch that attends. "
        f"Relevance of pixels works."
    )


def by_layers(
    tracked: Tracked, graph: Graph, kept: Kept, rules: AbstractContextManager[None]
) -> Float[Tensor, "layer token"]:
    """What enters each block times its derivative, summed over each token's numbers.

    Raises:
        CaptureError: What enters a block is not known, or not the tokens that attend in it.
    """
    entering, grids = _entering(tracked, kept)
    with rules:
        gradients = torch.autograd.grad(graph.root, entering, retain_graph=True)
    summed = []
    for tensor, gradient, grid in zip(entering, gradients, grids, strict=True):
        rows = [tokens_on(grid, each) for each in (tensor, gradient)]
        if rows[0] is None or rows[1] is None:
            raise _unfit(tracked, tensor, grid)
        summed.append((rows[0].double() * rows[1].double()).sum(-1).float())
    return torch.stack(summed)


def lengths(tracked: Tracked, kept: Kept) -> Float[Tensor, "layer token"]:
    """How long the tokens are that enter each block.

    Raises:
        CaptureError: What enters a block is not known, or not the tokens that attend in it.
    """
    found = []
    for tensor, grid in zip(*_entering(tracked, kept), strict=True):
        tokens = tokens_on(grid, tensor)
        if tokens is None:
            raise _unfit(tracked, tensor, grid)
        found.append(torch.linalg.vector_norm(tokens.float(), dim=-1))
    return torch.stack(found)


def _unfit(tracked: Tracked, tensor: Tensor, grid: TokenGrid) -> CaptureError:
    return CaptureError(
        f"a block of {type(tracked.twin).__name__} takes in numbers of shape "
        f"{tuple(tensor.shape)}, which is not one vector for each of {grid.n_tokens} tokens. "
        f"GAE and relevance of pixels need no such thing."
    )


def _entering(tracked: Tracked, kept: Kept) -> tuple[list[Tensor], list[TokenGrid]]:
    """What enters the block of each call, and the grid that it lies on, which is always the same.

    A pooling head is left out: it reads what the last block put out.
    """
    entering, grids = [], []
    calls = [(call, place) for call, place in kept if place.kind != "pool"]
    for call, place in calls:
        tensor = tracked.entered.get(block_of(tracked.twin, call.module))
        if isinstance(tensor, Tensor) and place.queries is not None:
            entering.append(tensor)
            grids.append(place.queries.grid)
    if not grids or len(grids) < len(calls) or len(set(grids)) > 1:
        raise CaptureError(
            f"not all blocks of {type(tracked.twin).__name__} take the same tokens in, so they "
            f"cannot be asked alike. Relevance of pixels works, and GAE."
        )
    return entering, grids


def last_read(
    tracked: Tracked, graph: Graph, kept: Kept, nodes: Sequence[Node]
) -> Float[Tensor, "2 token dim"]:
    """The tokens that the last attention makes queries, keys and values of, and their derivative.

    In a usual block that is what its first normalisation put out.

    Args:
        tracked: A pass that kept what its parts put out.
        graph: The graph of the target.
        kept: Its attention calls.
        nodes: The nodes of these calls.

    Raises:
        CaptureError: The tokens were not found, or do not lie on the grid of the keys.
    """
    call, place = kept[-1]
    read = _read(tracked, nodes[-1])
    if read is not None and place.keys is not None:
        (gradient,) = torch.autograd.grad(graph.root, [read], retain_graph=True)
        rows = [tokens_on(place.keys.grid, each) for each in (read, gradient)]
        if rows[0] is not None and rows[1] is not None:
            return torch.stack([rows[0], rows[1]])
    raise CaptureError(
        f"it was not found what tokens {call.module or 'the last attention call'} makes its keys "
        f"and values of, or they are not those that are shown. GAE needs no such thing."
    )


def _read(tracked: Tracked, node: Node) -> Tensor | None:
    """What all linear layers before an attention call take in, when that is one and the same."""
    linear = _below(node, stop=lambda each: each.name().startswith(_LINEAR))
    sources = set()
    for each in linear:
        sources |= _below(each, stop=lambda found: not found.name().startswith(_MOVES))
    made = {tensor.grad_fn: tensor for tensor in tracked.made if tensor.grad_fn is not None}
    return made.get(sources.pop()) if len(sources) == 1 else None


def _below(node: Node, stop: Callable[[Node], bool]) -> set[Node]:
    """The first nodes on all ways down from one, itself left out, at which to stop."""
    found, seen = set(), {node}
    waiting = [below for below, _ in node.next_functions if below is not None]
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if stop(each):
            found.add(each)
        else:
            waiting += [below for below, _ in each.next_functions if below is not None]
    return found


def tokens_on(
    grid: TokenGrid, tensor: Tensor, *, patches_alone: bool = False
) -> Float[Tensor, "token dim"] | None:
    """One vector for each token of a grid, first prefix tokens and then row by row.

    Args:
        grid: Where the tokens should lie.
        tensor: Tokens ``[1, token, dim]``, or patches ``[1, row, col, dim]`` or
            ``[1, dim, row, col]``.
        patches_alone: Whether there are no prefix tokens yet.

    Returns:
        ``None`` where the tensor is nothing of the kind.
    """
    count, square = grid.n_patches if patches_alone else grid.n_tokens, (grid.rows, grid.cols)
    if tensor.shape[0] != 1 or tensor.dim() not in (3, 4):
        return None
    if tensor.dim() == 3:
        return tensor[0].detach() if tensor.shape[1] == count else None
    if count != grid.n_patches:
        return None
    if tensor.shape[1:3] == square:
        return tensor[0].detach().flatten(0, 1)
    return tensor[0].detach().flatten(1).mT if tensor.shape[2:] == square else None


def _embedding(tracked: Tracked, graph: Graph) -> Tensor:
    """The last result of a part of the model before anything joins the way from the pixels."""
    made = {tensor.grad_fn: tensor for tensor in tracked.made if tensor.grad_fn is not None}
    leaves = [n for n in graph.consumers if getattr(n, "variable", None) is tracked.leaf]
    found = None
    if leaves:
        node = leaves[0]
        while len(users := graph.consumers[node]) == 1:
            (node,) = users
            if node.name().startswith(_JOINS):
                break
            found = made.get(node, found)
    if found is None:
        raise CaptureError(
            f"no patch embedding was found in {type(tracked.twin).__name__}: its pixels go several "
            f"ways before any part of the model puts out patches. Relevance of pixels works."
        )
    return found


def _grids(kept: Kept) -> list[TokenGrid]:
    """The grids of all calls that have one, finest first."""
    sides = [side for _, place in kept for side in (place.keys, place.queries)]
    grids = dict.fromkeys(side.grid for side in sides if side is not None)
    return sorted(grids, key=lambda grid: -grid.n_patches)
