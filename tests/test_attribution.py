"""Transformer Attribution against its paper written out by hand, and what it conserves."""

import gradient_oracle as oracle
import positive_oracle
import pytest
import timm
import torch
from gradient_oracle import relative_error
from samples import randomised
from test_gradient_methods import BOUND, TARGET, other_library

from vizattn.attribution import relevance_of
from vizattn.errors import CaptureError, MethodError
from vizattn.gradients import capture_gradients
from vizattn.graph import Graph
from vizattn.methods import TransformerAttribution
from vizattn.positive import divided
from vizattn.record import AttentionRecord
from vizattn.targets import goal_of
from vizattn.tracked import track

NEEDS = TransformerAttribution.needs


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_it_is_the_paper_module_by_module(pool, tiny_vit, pixels, tmp_path):
    small, model = pixels[:, :, :48], tiny_vit.double()
    model.pool = pool
    record = capture_gradients(model, small, TARGET, needs=NEEDS)
    dense = oracle.dense_pass(model, small, TARGET, oracle.third_part, oracle.output_layer)
    for query in (record.grid.cls, record.grid.mean, record.grid.patch(1, 2)):
        expected, _ = positive_oracle.attribution(model, small, TARGET, query, dense.gradients)
        found = TransformerAttribution()(record, query)
        others = query == 0  # the identity's own would hide errors of all others
        if others.any():
            assert relative_error(found[others], expected[others]) < BOUND
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-7)
    by_layer = TransformerAttribution().by_layer(record)
    torch.testing.assert_close(
        by_layer[-1].relevance[0], TransformerAttribution()(record, record.grid.query)
    )
    loaded = AttentionRecord.load(record.save(tmp_path / "record"))
    heat = TransformerAttribution().heatmap(record)
    assert torch.equal(TransformerAttribution().heatmap(loaded).values, heat.values)
    later = TransformerAttribution(start_layer=1)(record, record.grid.cls)[1:]
    given = (model, small, TARGET, record.grid.cls, dense.gradients)
    torch.testing.assert_close(
        later.double(), positive_oracle.attribution(*given, start=1)[0][1:], rtol=1e-5, atol=1e-12
    )


def test_relevance_is_the_same_from_fused_kernels(tiny_timm, pixels):
    model, found = tiny_timm.double(), []
    for fused in (True, False):
        for block in model.blocks:
            block.attn.fused_attn = fused
        record = capture_gradients(model, pixels, TARGET, needs=NEEDS)
        found.append(TransformerAttribution()(record, record.grid.cls)[1:])
    assert relative_error(found[0], found[1]) < BOUND


NARROW = {"depth": 2, "embed_dim": 32, "num_heads": 2}
FAMILIES = {
    "deit_tiny_distilled_patch16_224": {"img_size": 64, **NARROW},
    "vit_base_patch16_siglip_224": {"img_size": 64, **NARROW},
    "eva02_tiny_patch14_224": {"img_size": 56, **NARROW},
    "vit_small_patch16_dinov3": {"img_size": 64, **NARROW},
    "swin_tiny_patch4_window7_224": {"img_size": 56, "depths": (2, 1)},
}


@pytest.mark.parametrize("name", [*FAMILIES, "clip", "vit_model", "torchvision"])
def test_all_relevance_of_the_target_enters_every_block(name, pixels):
    if name in FAMILIES:
        model = randomised(timm.create_model(name, num_classes=5, **FAMILIES[name]))
    else:
        model = other_library(name)
    side = FAMILIES.get(name, {}).get("img_size", 64)
    tracked = track(model.double(), pixels[:, :side, :side], with_blocks=True, with_operands=True)
    with torch.enable_grad(), tracked.operands:
        goal = goal_of(tracked.seen.output, model)
    graph, kept = Graph(goal.scalar), tracked.seen.on_picture
    nodes = graph.nodes_of([call for call, _ in kept])
    entered = list(tracked.entered.values())
    for relevance in relevance_of(entered, tracked, graph, kept, nodes):
        torch.testing.assert_close(float(relevance.sum()), 1.0, rtol=0, atol=1e-5)


def test_nothing_is_passed_through_what_has_no_rule(pixels):
    model = randomised(timm.create_model("pvt_v2_b0", num_classes=5))
    with pytest.raises(CaptureError, match="no rule is known for ConvolutionBackward0 between"):
        capture_gradients(model, pixels, needs=["relevance"])


def test_mixed_heads_are_refused_and_so_is_a_record_of_gradients_alone(tiny_timm, pixels):
    model = timm.create_model("cait_xxs24_224", img_size=64, depth=1, num_classes=5)
    record = capture_gradients(randomised(model), pixels, needs=NEEDS)
    with pytest.raises(MethodError, match="it mixes heads after the softmax"):
        TransformerAttribution().heatmap(record)
    record = capture_gradients(tiny_timm, pixels)
    with pytest.raises(MethodError, match=r"needs=\['attention', 'relevance'\]"):
        TransformerAttribution().heatmap(record)


def test_a_number_is_shared_out_only_where_there_is_one():
    found = divided(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.0, 2.0, -4.0]))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.5, -0.25]))
