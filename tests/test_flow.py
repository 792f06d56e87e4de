"""Attention flow against cuts by brute force, networkx, and an example worked out by hand."""

import itertools
import random

import networkx
import pytest
import timm
import torch
from gradient_oracle import relative_error
from samples import dense, randomised, tokens_of

from vizattn.capture import capture
from vizattn.errors import MethodError
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.layers import DenseAttention
from vizattn.maxflow import Network
from vizattn.methods import AttentionFlow
from vizattn.methods.flow import blocks_of, merged_side
from vizattn.record import AttentionRecord


def random_pipes(seed, n_places):
    chance = random.Random(seed)
    pairs = [pair for pair in itertools.permutations(range(n_places), 2) if chance.random() < 0.6]
    return {pair: chance.choice([0.0, chance.random(), 3.0]) for pair in pairs}


@pytest.mark.parametrize("seed", range(8))
def test_the_most_that_flows_is_the_least_that_a_cut_lets_through(seed):
    pipes, network = random_pipes(seed, 6), Network(6)
    for pair, capacity in pipes.items():
        network.connect(*pair, capacity)
    cuts = []
    for count in range(5):
        for inner in itertools.combinations(range(1, 5), count):
            inside = {0, *inner}
            cuts.append(sum(c for (i, j), c in pipes.items() if i in inside and j not in inside))
    assert network.maximum_flow(0, 5) == pytest.approx(min(cuts), abs=1e-9)
    assert network.maximum_flow(0, 5) == pytest.approx(min(cuts), abs=1e-9)  # it stays as it is


def record_of(*matrices):
    """Layers of one head with these weights, on a grid of one row and no prefix."""
    n = len(matrices[0])
    grid = TokenGrid(1, n, 0)
    layers = tuple(
        DenseAttention(
            f"blocks.{i}", "self", tokens_of(grid), tokens_of(grid), "", True,
            torch.tensor(each).unsqueeze(0),
        )
        for i, each in enumerate(matrices)
    )  # fmt: skip
    return AttentionRecord(layers, Frame(0, 0, 10 * n, 10), (10, 10 * n))


def test_the_narrowest_pipe_of_each_way_bounds_a_flow():
    upper = [[0.9, 0.1], [0.5, 0.5]]
    lower = [[0.5, 0.5], [0.2, 0.8]]
    # from token 0, without residual. To 0: min(.9, .5) + min(.1, .2) = .6;
    # to 1: min(.9, .5) + min(.1, .8) = .6. Rollout says .47 and .53.
    flow = AttentionFlow(residual=0.0)
    found = flow(record_of(lower, upper), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(found, torch.tensor([0.5, 0.5]))
    # from both alike, at most half from each: to 0: min(.5·1, …) is bounded by pipes .5 and .2
    found = flow(record_of(lower, upper), torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(found, torch.tensor([0.7, 1.0]) / 1.7)


def by_networkx(matrices, query):
    """One maximum flow for each token at the bottom, on Â of every layer in float64."""
    graph, n, depth = networkx.DiGraph(), len(query), len(matrices)
    for token in query.nonzero().flatten().tolist():
        graph.add_edge("query", (depth, token), capacity=float(query[token]))
    for layer, matrix in enumerate(matrices):
        for i, j in itertools.product(range(n), range(n)):
            graph.add_edge((layer + 1, i), (layer, j), capacity=float(matrix[i, j]))
    flows = [networkx.maximum_flow_value(graph, "query", (0, j)) for j in range(n)]
    return torch.tensor(flows, dtype=torch.float64)


def mixed(layer, residual=0.5):
    weights = dense(layer).mean(0)
    return (1 - residual) * weights + residual * torch.eye(len(weights), dtype=torch.float64)


def test_it_is_networkx_on_the_matrices_of_a_model(tiny_timm, pixels):
    record = capture(tiny_timm.double(), pixels)
    matrices = [mixed(layer) for layer in record]
    flows = by_networkx(matrices, record.grid.cls)
    found = AttentionFlow()(record, record.grid.cls)
    assert relative_error(found, flows / flows.sum()) < 1e-5
    assert (flows <= matrices[0].sum(0).clamp(max=1) + 1e-9).all()  # what arrives, and what leaves
    heat = AttentionFlow(start_layer=1).heatmap(record, at=(20, 40))
    flows = by_networkx(matrices[1:], record.grid.patch(2, 1))
    assert relative_error(heat.values.flatten(), (flows / flows.sum())[1:]) < 1e-5
    assert heat.sentence.startswith("Flow through 2 layers: what the patch at row 3, column 2 can")


def test_blocks_are_rows_averaged_and_columns_added_up(tiny_timm, pixels):
    record, method = capture(tiny_timm.double(), pixels), AttentionFlow(tokens=8)
    block_of, n_blocks = blocks_of(record.grid, 8)
    assert block_of.tolist() == [0, 1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4]
    member = torch.nn.functional.one_hot(block_of, n_blocks).double()
    mean = (member / member.sum(0)).mT
    eye = torch.eye(n_blocks, dtype=torch.float64)
    matrices = [(mean @ dense(layer).mean(0) @ member + eye) / 2 for layer in record]
    flows = by_networkx(matrices, torch.eye(n_blocks)[0])
    expected = (flows / flows.sum() / member.sum(0))[block_of]
    found = method(record, record.grid.cls)
    assert relative_error(found, expected) < 1e-5
    assert float(found.sum()) == pytest.approx(1, abs=1e-6)
    assert "patches merged 2×2: what the class token can draw on" in method.heatmap(record).sentence


@pytest.mark.parametrize(
    ("grid", "most", "side"),
    [((14, 14, 1), 50, 2), ((37, 37, 5), 50, 7), ((5, 9, 0), 45, 1), ((5, 9, 0), 44, 2)],
)
def test_patches_are_merged_no_more_than_is_needed(grid, most, side):
    assert merged_side(TokenGrid(*grid), most) == side
    block_of, n_blocks = blocks_of(TokenGrid(*grid), most)
    assert n_blocks <= most
    assert block_of.unique().tolist() == list(range(n_blocks))


def test_too_many_tokens_without_a_patch_leave_nothing_to_merge():
    with pytest.raises(MethodError, match="9 tokens have no patch, more than 8 are allowed"):
        merged_side(TokenGrid(2, 2, 9), 8)


def test_layers_of_different_grids_have_no_flow():
    three, two = record_of([[1.0, 0, 0]] * 3), record_of([[0.5, 0.5]] * 2)
    record = AttentionRecord((*three, *two), three.frame, three.input_size)
    with pytest.raises(MethodError, match="goes from token to token, and the layers of model"):
        AttentionFlow().heatmap(record)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("swin_tiny_patch4_window7_224", "it attends in windows. Rollout may be"),
        ("vit_base_patch16_siglip_224", "what asks there is not among the tokens"),
    ],
)
def test_where_tokens_are_not_asked_by_all_it_is_refused(name, reason):
    given = {"depths": (1, 1)} if name.startswith("swin") else {"depth": 1, "embed_dim": 24}
    heads = {} if name.startswith("swin") else {"num_heads": 2}
    model = timm.create_model(name, img_size=64, num_classes=5, **given, **heads)
    record = capture(randomised(model), torch.randn(3, 64, 64))
    with pytest.raises(MethodError, match=reason):
        AttentionFlow().heatmap(record)
