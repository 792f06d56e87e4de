"""One small architecture of each of timm's 50 families with attention over places.

Blocks that repeat are left out and weights drawn, so that the whole takes about a minute. The
sweep over all 661 is ``scripts/coverage.py``. Grids were worked out by hand: pixels of the input
over the stride at which a stage works, rounded up, or as a comment says.
"""

import itertools

import pytest
import timm
import torch
from attention_oracle import (
    attention_that_runs,
    measure_norms,
    randomised,
    shorten,
    without_draws,
)

from vizattn.capture import capture
from vizattn.layers import DenseAttention
from vizattn.observation import observe

# Name, height and width of the input, and calls as "kind queries" or "kind queries > keys"; calls
# in a row that are alike are written once, and a grid is rows x columns + tokens without a place.
FAMILIES = [
    ("beit_base_patch16_224", 64, 96, "self 4x6+1"),
    # 16 x 16 at stride 16 in blocks of 8; the next stage asks with half of it
    ("halonet26t", 256, 256, "window 16x16, window 8x8 > 16x16, self 8x8"),
    ("resnet50_clip", 64, 96, "self 2x3+1"),  # the mean of all is the first token
    ("cait_xxs24_224", 64, 96, "self 4x6, class 4x6+1"),
    ("convit_tiny", 64, 64, "self 4x4"),
    ("cpubone_nano", 64, 96, "self 2x3"),
    # patches of 12, and of 16 on the picture scaled by 224/240
    ("crossvit_tiny_240", 120, 240, "self 10x20+1, self 7x14+1, class 7x14+1, class 10x20+1, "
     "self 10x20+1, self 7x14+1, class 7x14+1, class 10x20+1"),
    # softmaxes over the batch in between
    ("csatv2", 128, 192, "channel, self 4x6, channel, self 2x3"),
    ("davit_tiny", 96, 128, "window 24x32, channel, window 12x16, channel, window 6x8, channel, "
     "window 6x8, channel, self 3x4, channel"),
    ("deepseek_vit_412m", 84, 84, "self 6x6"),
    ("deit_tiny_distilled_patch16_224", 64, 96, "self 4x6+2"),
    ("efficientformer_l1", 224, 224, "self 7x7"),
    ("efficientformerv2_s0", 224, 224, "self 7x7, pooled 7x7 > 14x14, self 7x7"),
    # windows of 7 at stride 16 on 14 x 14; then one window of all
    ("efficientvit_m0", 224, 224, "window 14x14, self 7x7, self 4x4"),
    ("vit_tiny_patch16_dinov3_qkvb", 64, 96, "self 4x6+5"),
    ("fastvit_mci0", 64, 96, "self 2x3"),
    ("gcvit_xxtiny", 224, 224, "window 56x56, window 28x28, self 14x14, self 7x7"),
    ("gemma4_vit_167m", 96, 96, "self 6x6"),
    ("hiera_tiny_224", 96, 160, "window 24x40, window 12x20 > 24x40, window 12x20, "
     "window 6x10 > 12x20, self 6x10, pooled 3x5 > 6x10, self 3x5"),
    ("sam2_hiera_tiny", 96, 160, "window 24x40, window 12x20 > 24x40, window 12x20, "
     "window 6x10 > 12x20, self 6x10, pooled 3x5 > 6x10, self 3x5"),
    ("iformer_t", 96, 160, "self 6x10, self 3x5"),
    ("levit_128s", 64, 96, "self 4x6, pooled 2x3 > 4x6, self 2x3, pooled 1x2 > 2x3, self 1x2"),
    ("lowformer_b0", 64, 96, "self 2x3"),
    ("maxvit_pico_rw_256", 64, 96, "window 16x24, window 8x12, window 4x6, self 2x3"),
    ("caformer_s18", 64, 96, "self 4x6, self 2x3"),
    ("mobilenetv4_hybrid_medium_075", 64, 96, "pooled 4x6 > 2x3, self 2x3"),
    ("mobilenetv5_base", 64, 96, "self 4x6, self 2x3"),
    # every second token in either direction; 2 x 3 is resized to 2 x 4
    ("mobilevit_xxs", 64, 96, "window 8x12, window 4x6, window 2x4"),
    ("mvitv2_tiny", 224, 224, "pooled 56x56 > 14x14, self 28x28, pooled 28x28 > 14x14, "
     "pooled 14x14 > 28x28, self 14x14, pooled 7x7 > 14x14, self 7x7"),
    ("naflexvit_base_patch16_parfac_gap", 64, 96, "self 4x6+4"),
    ("nest_tiny", 112, 112, "window 28x28, window 14x14, self 7x7"),
    # pools 16 and 4 tokens in the order of rows, across their ends: nothing to draw
    ("nextvit_small", 64, 96, "unknown, self 2x3"),
    # patches of 16 every 8 pixels: (64 - 16) / 8 + 1
    ("pit_ti_224", 64, 96, "self 7x11+1, self 4x6+1, self 2x3+1"),
    ("pvt_v2_b0", 64, 96, "pooled 16x24 > 2x3, pooled 8x12 > 2x3, pooled 4x6 > 2x3, self 2x3"),
    ("qwen3_vit_88m", 64, 96, "self 4x6"),
    ("shvit_s1", 64, 96, "self 2x3, self 1x2"),
    ("swin_tiny_patch4_window7_224", 56, 112, "window 14x28, window 7x14, self 4x7, self 2x4"),
    ("swinv2_tiny_window8_256", 64, 96, "window 16x24, window 8x12, self 4x6, self 2x3"),
    ("swinv2_cr_tiny_224", 56, 112, "window 14x28, window 7x14, window 4x7, window 2x4"),
    ("tiny_vit_5m_224", 64, 96, "window 8x12, self 4x6, self 2x3"),
    # pixels of each patch among each other, every 4
    ("tnt_s_legacy_patch16_224", 64, 96, "window 16x24, self 4x6+1, window 16x24, self 4x6+1"),
    ("twins_svt_small", 224, 224, "window 56x56, pooled 56x56 > 7x7, window 28x28, "
     "pooled 28x28 > 7x7" + 5 * ", window 14x14, pooled 14x14 > 7x7" + ", self 7x7"),
    ("visformer_tiny", 64, 96, "self 4x6, self 2x3"),
    ("test_vit", 64, 96, "self 4x6+1"),
    ("vit_tiny_r_s16_p8_224", 224, 224, "self 7x7+1"),
    ("test_vit_relpos", 64, 96, "self 4x6"),
    ("samvit_base_patch16_224", 64, 96, "self 4x6"),
    ("vitamin_small_224", 64, 96, "self 4x6"),
    # weights of a 3 x 3 kernel first
    ("volo_d1_224", 64, 96, "local, self 4x6, class 4x6+1"),
    ("xcit_nano_12_p8_224", 64, 96, "channel, class 8x12+1"),
]  # fmt: skip

# Blocks that are wired by their number cannot be left out.
WHOLE = {"efficientvit_m0", "twins_svt_small"}

# What is made of the softmax before it meets the values, by class.
MIXED = {"TalkingHeadAttn", "GPSA", "Attention2d"}


def make(name, height, width):
    with without_draws():
        try:
            model = timm.create_model(name, img_size=(height, width))
        except TypeError:  # takes any size
            model = timm.create_model(name)
    if name not in WHOLE:
        shorten(model, keep=2)
    pixels = torch.randn(3, height, width, generator=torch.Generator().manual_seed(2))
    return measure_norms(randomised(model), pixels), pixels


def described(place):
    """A call's place in the notation above."""
    if place.keys is None or place.queries is None:
        return place.kind
    queries, keys = (
        f"{tokens.grid.rows}x{tokens.grid.cols}"
        + f"+{tokens.grid.prefix}" * (tokens.grid.prefix > 0)
        for tokens in (place.queries, place.keys)
    )
    return f"{place.kind} {queries}" + f" > {keys}" * (queries != keys)


def test_every_family_of_timm_is_here_once():
    families = [timm.model_entrypoint(name).__module__ for name, *_ in FAMILIES]
    assert len(set(families)) == len(families) == 50


@pytest.mark.parametrize(("name", "height", "width", "calls"), FAMILIES, ids=lambda v: str(v)[:24])
def test_a_family_is_seen_whole_and_left_as_it_is(name, height, width, calls):
    model, pixels = make(name, height, width)
    with torch.no_grad(), attention_that_runs(model) as expected:
        plain = model(pixels.unsqueeze(0))
    found = observe(model, pixels)
    remembered = observe(model, pixels)
    assert torch.equal(found.output, plain)
    assert torch.equal(remembered.output, plain)
    assert (remembered.places is found.places) == (name != "csatv2")  # it moves tokens by an index

    assert found.unrecorded == []
    assert {call.module for call in found.calls} == set(expected)
    described_calls = [key for key, _ in itertools.groupby(map(described, found.places))]
    assert ", ".join(described_calls) == calls
    for call in remembered.calls:
        assert call.is_exact == (call.module_type not in MIXED)

    record = capture(model, pixels)
    assert torch.equal(record.output, plain[0])
    assert len(record) == len(found.calls)
    for layer in record:
        if not layer.is_exact:
            assert isinstance(layer, DenseAttention)
            assert layer.mixed is not None or layer.softmax is not None
        elif layer.is_drawable and layer.queries.index is layer.keys.index is None:  # no filling
            sums = layer.rows([0, layer.n_queries - 1]).sum(-1)
            torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=2e-5)
        if layer.is_drawable:
            begins_at_the_edge(layer, height, width)


def begins_at_the_edge(layer, height, width):
    """A grid covers the picture from its upper left edge on, to within a cell."""
    for tokens in (layer.queries, layer.keys):
        frame, grid = tokens.frame, tokens.grid
        cell = frame.height / grid.rows, frame.width / grid.cols
        assert max(abs(frame.top) / cell[0], abs(frame.left) / cell[1]) <= 1
        assert frame.top + frame.height >= height - 2 * cell[0]
        assert frame.left + frame.width >= width - 2 * cell[1]
