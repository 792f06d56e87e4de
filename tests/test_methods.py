import pytest
import torch
from hypothesis import given
from hypothesis import settings as property_settings
from hypothesis import strategies as st
from samples import dense, tokens_of
from torch.utils._python_dispatch import TorchDispatchMode

from vizattn.errors import FrameError, MethodError, OutOfRange, UnknownName
from vizattn.grid import TokenGrid
from vizattn.layers import DenseAttention
from vizattn.methods import METHODS, RawAttention, Rollout, find_method, parse_settings, settings
from vizattn.methods.discard import kth_smallest
from vizattn.record import AttentionRecord


def dense_rollout(
    record, query, residual=0.5, fusion="mean", discard=0.0, start_layer=0, upto=None
):
    """The paper, matrix by matrix, in float64: Â_L ⋯ Â_1, later layers on the left."""
    n_tokens = record.grid.n_tokens
    product = torch.eye(n_tokens, dtype=torch.float64)
    for layer in record.layers[start_layer:upto]:
        heads = dense(layer) if hasattr(layer, "q") else layer.weights.double()
        fused = {"mean": heads.mean(0), "max": heads.max(0).values, "min": heads.min(0).values}[
            fusion
        ]
        weakest = fused.flatten().argsort()[: int(discard * n_tokens**2)]
        keep = torch.ones(n_tokens**2, dtype=torch.bool)
        keep[weakest] = False
        keep = keep.view(n_tokens, n_tokens)
        if record.grid.has_cls and discard:
            keep[:, record.grid.cls_index] = True
        fused = fused * keep
        fused = fused / fused.sum(-1, keepdim=True)
        mixed = (1 - residual) * fused + residual * torch.eye(n_tokens, dtype=torch.float64)
        product = mixed @ product
    return query.double() @ product


def record_of(*weights, prefix=1):
    """A record of given weights, one ``[head, query, key]`` per layer, patches in one row."""
    weights = [torch.as_tensor(w, dtype=torch.float32) for w in weights]
    n_tokens = weights[0].shape[-1]
    tokens = tokens_of(TokenGrid(1, n_tokens - prefix, prefix))
    about = ("self", tokens, tokens, "", True)
    layers = tuple(DenseAttention(f"layer{i}", *about, w) for i, w in enumerate(weights))
    return AttentionRecord(layers, tokens.frame, (10, 10 * (n_tokens - prefix)))


def test_raw_attention_of_the_class_token_is_its_row(record):
    for index, layer in enumerate(record):
        for head in range(2):
            heat = RawAttention(layer=index, head=head)(record, record.grid.cls)
            torch.testing.assert_close(heat.double(), dense(layer)[head, 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_heads_are_fused_entry_by_entry(record, fusion):
    heads = dense(record[1])[:, 4]
    expected = {"mean": heads.mean(0), "max": heads.max(0).values, "min": heads.min(0).values}
    heat = RawAttention(layer=1, fusion=fusion)(record, record.grid.patch(0, 3))
    torch.testing.assert_close(heat.double(), expected[fusion], rtol=0, atol=1e-6)


def test_any_query_mixes_rows_in_its_own_proportion(record):
    query = torch.rand(17)
    query /= query.sum()
    expected = query.double() @ dense(record[2])[1]
    heat = RawAttention(layer=2, head=1)(record, query)
    torch.testing.assert_close(heat.double(), expected, rtol=0, atol=1e-6)


def test_looking_through_all_layers_gives_what_each_alone_gives(record):
    query = record.grid.query
    every = [maps.relevance for maps in RawAttention().by_layer(record)]
    assert [maps.shape for maps in every] == [(2, 17)] * 3
    for layer in range(3):
        for head in range(2):
            alone = RawAttention(layer=layer, head=head)(record, query)
            torch.testing.assert_close(every[layer][head], alone)


def test_two_layers_of_rollout_worked_out_by_hand():
    # class token and two patches; layer 1 swaps the patches, layer 2 sends class to patch 1
    swap = [[[1, 0, 0], [0, 0, 1], [0, 1, 0]]]
    read = [[[0, 1, 0], [0, 1, 0], [0, 0, 1]]]
    record = record_of(swap, read)
    # after layer 2: class ½, patch 1 ½; then layer 1 keeps class and swaps half of patch 1
    expected = torch.tensor([0.5, 0.25, 0.25])
    torch.testing.assert_close(Rollout()(record, record.grid.cls), expected)


def test_the_order_of_layers_matters_and_later_ones_come_first():
    swap = [[[1, 0, 0], [0, 0, 1], [0, 1, 0]]]
    read = [[[0, 1, 0], [0, 1, 0], [0, 0, 1]]]
    forward = Rollout(residual=0.0)(record_of(swap, read), torch.tensor([1.0, 0, 0]))
    backward = Rollout(residual=0.0)(record_of(read, swap), torch.tensor([1.0, 0, 0]))
    torch.testing.assert_close(forward, torch.tensor([0.0, 0, 1]))  # class -> patch 1 -> patch 2
    torch.testing.assert_close(backward, torch.tensor([0.0, 1, 0]))


@pytest.mark.parametrize("residual", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("start_layer", [0, 2])
def test_rollout_is_the_dense_product_of_the_paper(record, residual, fusion, discard, start_layer):
    given = {"residual": residual, "fusion": fusion, "discard": discard, "start_layer": start_layer}
    for query in (record.grid.cls, record.grid.mean, record.grid.patch(1, 2)):
        expected = dense_rollout(record, query, **given)
        rolled = Rollout(**given)(record, query)
        torch.testing.assert_close(rolled.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("given", [{}, {"start_layer": 1}, {"fusion": "max", "discard": 0.5}])
def test_rollouts_through_each_layer_come_out_of_one_pass(record, given):
    every = Rollout(**given).by_layer(record)
    assert [maps.layer for maps in every] == list(range(given.get("start_layer", 0), 3))
    for maps in every:
        expected = dense_rollout(record, record.grid.cls, **given, upto=maps.layer + 1)
        torch.testing.assert_close(maps.relevance[0].double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", [5, 40])
@pytest.mark.parametrize("many", [1, 1000])  # heads averaged before the product, or after it
@pytest.mark.parametrize("given", [{}, {"residual": 0.2, "start_layer": 1}, {"discard": 0.5}])
def test_all_queries_in_tiles_are_the_dense_product(record, given, many, length, monkeypatch):
    monkeypatch.setattr("vizattn.layers._MANY", many)
    expected = dense_rollout(record, torch.eye(17), **given)
    upto = 0
    for part, rows in Rollout(**given).of_all_queries(record, length):
        assert part.start == upto
        torch.testing.assert_close(rows.double(), expected[part], rtol=0, atol=1e-6)
        torch.testing.assert_close(rows.sum(-1), torch.ones(len(rows)))
        upto = part.stop
    assert upto == 17


@pytest.mark.parametrize("many", [1, 1000])
def test_all_queries_in_tiles_hold_no_tensor_of_all_by_all(record, many, monkeypatch):
    class Squares(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            self.seen += isinstance(made, torch.Tensor) and made.shape[-2:] == (17, 17)
            return made

    monkeypatch.setattr("vizattn.attention.TILE_FLOATS", 2 * 17 * 3)
    monkeypatch.setattr("vizattn.layers._MANY", many)
    for length, has_squares in ((4, False), (17, True)):
        with Squares() as squares:
            assert len(list(Rollout().of_all_queries(record, length))) == -(-17 // length)
        assert bool(squares.seen) == has_squares


@property_settings(max_examples=30, deadline=None)
@given(
    residual=st.floats(0, 1),
    fusion=st.sampled_from(["mean", "max", "min"]),
    discard=st.floats(0, 0.95),
    prefix=st.integers(0, 2),
    seed=st.integers(0, 2**31),
)
def test_rollout_conserves_relevance_whatever_its_settings(residual, fusion, discard, prefix, seed):
    generator = torch.Generator().manual_seed(seed)
    weights = [(torch.randn(2, 6, 6, generator=generator) * 2).softmax(-1) for _ in range(3)]
    record = record_of(*weights, prefix=prefix)
    if not prefix and discard:
        discard = min(discard, 0.5)  # without a protected column whole rows can go
    rolled = Rollout(residual, fusion, discard)(record, record.grid.mean)
    assert (rolled >= 0).all()
    if prefix or not discard:
        torch.testing.assert_close(rolled.sum(), torch.tensor(1.0))


def test_the_class_tokens_column_survives_any_discard(record):
    rolled = Rollout(residual=0.0, discard=0.99)(record, record.grid.patch(3, 3))
    assert rolled[0] > 0
    torch.testing.assert_close(rolled.sum(), torch.tensor(1.0))


@given(st.lists(st.floats(0, 2**20, width=32), min_size=1, max_size=60), st.data())
def test_the_kth_smallest_of_a_stream_is_that_of_the_sorted_list(values, data):
    rank = data.draw(st.integers(0, len(values) - 1))
    cut = data.draw(st.integers(0, len(values)))
    parts = [torch.tensor(part, dtype=torch.float32) for part in (values[:cut], values[cut:])]
    expected = torch.tensor(values, dtype=torch.float32).sort().values[rank]
    assert kth_smallest(lambda: [p for p in parts if len(p)], rank) == float(expected)


def test_a_rank_beyond_the_values_is_refused():
    with pytest.raises(IndexError, match="rank 3 of 3 values"):
        kth_smallest(lambda: [torch.ones(3)], 3)


def test_a_heatmap_from_a_pixel_asks_the_patch_under_it(record):
    heat = RawAttention(layer=0, head=0).heatmap(record, at=(20, 50))  # 16-pixel patches
    expected = dense(record[0])[0, 1 + 3 * 4 + 1, 1:].view(4, 4)
    torch.testing.assert_close(heat.values.double(), expected, rtol=0, atol=1e-6)
    assert heat.made["query"] == {"kind": "patch", "row": 3, "col": 1}


def test_what_is_shown_is_said_in_one_sentence_with_true_numbers():
    weights = torch.tensor([[[0.12, 0.041, 0.839], [0, 1, 0], [0, 0, 1]]])
    record = record_of(weights)
    assert RawAttention(layer=0, head=0).heatmap(record).sentence == (
        "Layer 1, head 1: what the class token attends to; "
        "84 % on one patch, 12 % on the class token itself."
    )
    rolled = Rollout().heatmap(record, at=(5, 5)).sentence
    assert rolled == (
        "Rollout through 1 layer: what the patch at row 1, column 1 draws on; "
        "100 % on one patch, 0 % on the class token."
    )


def test_a_pixel_outside_and_two_queries_at_once_are_refused(record):
    with pytest.raises(FrameError, match="did not see"):
        RawAttention().heatmap(record, at=(64, 5))
    with pytest.raises(MethodError, match="give one of them"):
        RawAttention().heatmap(record, at=(1, 1), query=record.grid.cls)


def setting_of(method, name):
    return next(known for known in settings(method) if known.name == name)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Rollout(residual=1.5), r"residual is from 0 to 1; got 1\.5\."),
        (lambda: Rollout(fusion="sum"), "fusion is one of mean, max, min; got 'sum'"),
        (lambda: setting_of(Rollout, "discard").check("much"), "discard is a number; got 'much'"),
        (lambda: setting_of(Rollout, "start_layer").check(0.5), r"is a whole number; got 0\.5"),
        (lambda: parse_settings(Rollout, {"discard": "much"}), "discard is a number; got 'much'"),
        (lambda: parse_settings(Rollout, {"start_layer": "0.5"}), "is a whole number; got '0.5'"),
        (lambda: Rollout(start_layer=-1), "start_layer is at least 0; got -1"),
    ],
)
def test_settings_out_of_range_are_refused_with_what_they_take(make, said):
    with pytest.raises(MethodError, match=said):
        make()


def test_layers_and_heads_that_are_not_there_are_refused(record):
    with pytest.raises(OutOfRange, match=r"no layer 4 \(index 3\): there are 3"):
        RawAttention(layer=3)(record, record.grid.cls)
    with pytest.raises(OutOfRange, match=r"no head 3 \(index 2\): there are 2"):
        RawAttention(head=2)(record, record.grid.cls)
    with pytest.raises(MethodError, match="start_layer 3 of a model with 3 layers"):
        Rollout(start_layer=3)(record, record.grid.cls)


def test_people_count_layers_from_one_and_the_fields_from_zero():
    given = parse_settings(RawAttention, {"layer": "12", "head": 3, "fusion": "max"})
    assert given == {"layer": 11, "head": 2, "fusion": "max"}
    assert parse_settings(RawAttention, {"layer": "-1"}) == {"layer": -1}
    with pytest.raises(MethodError, match="counts from 1"):
        parse_settings(RawAttention, {"layer": "0"})
    with pytest.raises(UnknownName, match=r"no setting named 'heads'\. Did you mean 'head'"):
        parse_settings(RawAttention, {"heads": "1"})


def test_an_unknown_method_is_met_with_its_nearest_name():
    with pytest.raises(UnknownName, match=r"^no method named 'rolout'\. Did you mean 'rollout'\?"):
        find_method("rolout")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_what_a_page_and_a_command_line_need(name):
    method = METHODS[name]
    assert method.name == name
    assert method.title
    assert len(method.about) > 80
    assert method.paper
    for known in settings(method):
        assert known.label
        assert known.help.endswith(".")
        known.check(known.default)


def test_tokens_are_asked_by_what_they_are(record):
    layer, grid = record[-1], record[-1].queries.grid
    for role, query in [("class", grid.cls), ("mean", grid.mean)]:
        expected = layer.attend(query).mean(0)
        heat = RawAttention().heatmap(record, at=role)
        torch.testing.assert_close(heat.values.flatten(), expected[grid.prefix :])
        torch.testing.assert_close(heat.prefix_mass, expected[: grid.prefix])
        assert heat.made["query"] == {"kind": role}
        rolled = Rollout(start_layer=len(record) - 1, residual=0.0).heatmap(record, at=role)
        torch.testing.assert_close(rolled.values, heat.values)
    assert "what the class token attends to" in RawAttention().heatmap(record, at="class").sentence


def test_a_kind_of_token_that_is_not_there_is_named_with_those_that_are(record):
    with pytest.raises(MethodError, match=r"no register token asks in .*class, mean"):
        RawAttention().heatmap(record, at="register")
