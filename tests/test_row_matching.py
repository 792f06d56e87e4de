"""Windows lie where they lie: two oracles that know nothing of how vizattn finds it out.

Row matching: a window's tokens are vectors, and all vectors of a feature map differ, so each is
found again in the feature map that the windows were cut from; what is not found is filling. Where
a module cuts inside, the cut is done by hand on a map of numbers instead.
"""

import pytest
import timm
import torch
from attention_oracle import measure_norms, randomised, shorten, without_draws
from torch.nn import functional as F

from vizattn.capture import capture


def picture(height, width):
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(2))


def timm_model(name, height, width, keep=2, **arguments):
    with without_draws():
        try:
            model = timm.create_model(name, img_size=(height, width), **arguments)
        except TypeError:  # takes any size
            model = timm.create_model(name, **arguments)
    if keep:
        shorten(model, keep)
    return measure_norms(randomised(model), picture(height, width))


def numbers(tokens):
    """Cells of the grid, window by window, -1 for filling; learnt tokens would come out below."""
    index = tokens.numbers()
    return torch.where(index >= 0, index - tokens.grid.prefix, index)


def tokens_given(model, pixels, kind, channels_first=False):
    """What each module of a class gets, ``[window, token, channel]``, and all maps before it."""
    maps, found, handles = [], {}, []

    def note(_module, given, made=None):
        tensors = [*given, made]
        maps.extend(t.clone() for t in tensors if isinstance(t, torch.Tensor) and len(t) == 1)

    def look(name):
        def hook(_module, given):
            x = given[0].clone()
            x = x.flatten(2).mT if channels_first else x
            found[name] = x.reshape(-1, x.shape[1:-1].numel() if x.dim() < 5 else 0, x.shape[-1])
            found[name] = found[name], list(maps)

        return hook

    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(note))
        handles.append(module.register_forward_pre_hook(note))
        if type(module).__name__ == kind:
            handles.append(module.register_forward_pre_hook(look(name)))
    with torch.no_grad():
        model(pixels.unsqueeze(0))
    for handle in handles:
        handle.remove()
    return found


def match(tokens, maps, grids):
    """Rows, columns and cells of the latest map that holds every token but the filling."""
    for each in reversed(maps):
        for rows, cols in grids:
            for raster in as_raster(each, rows, cols, tokens.shape[-1]):
                cells = {vector.numpy().tobytes(): cell for cell, vector in enumerate(raster)}
                at = [[cells.get(t.numpy().tobytes(), -1) for t in window] for window in tokens]
                at = torch.tensor(at)
                if len(cells) == rows * cols == len(at[at >= 0].unique()):
                    return rows, cols, at
    raise AssertionError("no feature map holds these tokens")


def as_raster(each, rows, cols, channels):
    """A map as ``[cell, channel]``, in whichever order of axes it comes."""
    shape = tuple(each.shape[1:])
    if shape == (rows, cols, channels):
        yield each[0].flatten(0, 1)
    if shape == (channels, rows, cols):
        yield each[0].flatten(1).T
    if shape == (rows * cols, channels):
        yield each[0]


def grids_at(height, width, strides):
    return [(-(-height // stride), -(-width // stride)) for stride in strides]


def windows_match(model, pixels, kind, strides, channels_first=False):
    """Hold every call's keys against the cells where their vectors were found; count what was."""
    record = capture(model, pixels)
    grids = grids_at(*pixels.shape[1:], strides)
    n_windowed = n_filled = 0
    for name, (tokens, maps) in tokens_given(model, pixels, kind, channels_first).items():
        rows, cols, at = match(tokens, maps, grids)
        calls = [each for each in record if each.name == name]
        assert calls
        for layer in calls:
            assert (layer.keys.grid.rows, layer.keys.grid.cols) == (rows, cols)
            assert torch.equal(numbers(layer.keys), at), name
            if (layer.queries.grid.rows, layer.queries.grid.cols) == (rows, cols):
                assert torch.equal(numbers(layer.queries), at)
        n_windowed += len(at) > 1
        n_filled += bool((at < 0).any())
    return n_windowed, n_filled


# Name, input, class of the attention module, strides of its stages; how many modules attend in
# several windows and how many of them hold filling, by hand, so that no case is empty.
TIMM = [
    # two blocks a stage, the second shifted: 30 x 38 in windows of 7 is filled up to 35 x 42,
    # 15 x 19 to 21 x 21, 8 x 10 to 14 x 14; 4 x 5 is one window
    ("swin_tiny_patch4_window7_224", 120, 152, "WindowAttention", (4, 8, 16, 32), (6, 6)),
    # windows of 8: 36 x 52 to 40 x 56, 18 x 26 to 24 x 32, 9 x 13 to 16 x 16; 5 x 7 is one
    ("swinv2_tiny_window8_256", 144, 208, "WindowAttention", (4, 8, 16, 32), (6, 6)),
    # windows of 1 x 3: 14 x 28, 7 x 14, 4 x 7 and 2 x 4 are all filled up at their right edge
    ("swinv2_cr_tiny_224", 56, 112, "WindowMultiHeadAttention", (4, 8, 16, 32), (8, 8)),
    # windows of 7: 24 x 32, 12 x 16 and twice 6 x 8 are filled up, and 3 x 4 to a single one
    ("davit_tiny", 96, 128, "WindowAttention", (4, 8, 16, 32), (4, 5)),
    ("gcvit_xxtiny", 224, 224, "WindowAttentionGlobal", (4, 8, 16, 32), (4, 0)),
    # 8 x 12 in windows of 7, 4 x 6 in one of 14, 2 x 3 in one of 7
    ("tiny_vit_5m_224", 64, 96, "Attention", (8, 16, 32), (2, 6)),
    # blocks and grids of 2 x 3: 2, 2 and 3 of both, and the last stage is one
    ("maxvit_pico_rw_256", 64, 96, "AttentionCl", (4, 8, 16, 32), (14, 0)),
    # 15 x 20 in windows of 14, but for four blocks that see all
    ("samvit_base_patch16_224", 240, 320, "Attention", (16,), (8, 8)),
    # 40 x 56 in windows of 8; 20 x 28 in windows of 4; one of 14 for 10 x 14, which one block
    # sees as it is; one of 7 for 5 x 7
    ("sam2_hiera_tiny", 160, 224, "MultiScaleAttention", (4, 8, 16, 32), (4, 3)),
]  # fmt: skip
SMALLER = {"samvit_base_patch16_224": {"embed_dim": 96, "num_heads": 2}}


@pytest.mark.parametrize(("name", "height", "width", "kind", "strides", "counts"), TIMM)
def test_windows_of_timm_hold_the_tokens_that_stand_there(
    name, height, width, kind, strides, counts
):
    model = timm_model(name, height, width, **SMALLER.get(name, {}))
    assert windows_match(model, picture(height, width), kind, strides) == counts


def test_windows_with_channels_first_hold_the_tokens_that_stand_there():
    model = timm_model("efficientvit_m0", 224, 224, keep=0)
    counts = windows_match(model, picture(224, 224), "CascadedGroupAttention", (16, 32, 64), True)
    assert counts == (1, 0)


def test_windows_of_transformers_swin_hold_the_tokens_that_stand_there():
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=(72, 104), patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 2],
        window_size=4,
    )  # fmt: skip
    model = randomised(SwinModel(config))
    # 18 x 26 in windows of 4: 20 x 28; then 9 x 13: 12 x 16
    assert windows_match(model, picture(72, 104), "SwinAttention", (4, 8)) == (4, 4)


def cells(rows, cols, padding=(0, 0, 0, 0)):
    """A map of numbers, with -1 around it (left, right, top, bottom)."""
    return F.pad(torch.arange(rows * cols).view(rows, cols), padding, value=-1)


def cut(grid, height, width=None):
    """Windows row by row, and their tokens row by row."""
    width = width or height
    rows, cols = grid.shape[0] // height, grid.shape[1] // width
    windows = grid.view(rows, height, cols, width).transpose(1, 2)
    return windows.reshape(rows * cols, height * width)


@pytest.mark.parametrize("version", [1, 2])
def test_torchvisions_swin_fills_up_and_then_shifts(version):
    from torchvision.models import swin_transformer as swin

    block = swin.SwinTransformerBlock if version == 1 else swin.SwinTransformerBlockV2
    merge = swin.PatchMerging if version == 1 else swin.PatchMergingV2
    model = swin.SwinTransformer(
        [4, 4], 16, [2, 2], [2, 2], [4, 4], block=block, downsample_layer=merge, num_classes=3
    )
    # 18 x 26 in windows of 4, then 9 x 13
    record = capture(randomised(model), picture(72, 104))
    for first, (rows, cols, right, bottom) in ((0, (18, 26, 2, 2)), (2, (9, 13, 3, 3))):
        whole = cells(rows, cols, (0, right, 0, bottom))
        assert torch.equal(numbers(record[first].keys), cut(whole, 4))
        assert torch.equal(numbers(record[first + 1].keys), cut(whole.roll((-2, -2), (0, 1)), 4))


def test_torchvisions_maxvit_cuts_blocks_and_then_grids():
    from torchvision.models.maxvit import MaxVit

    model = MaxVit(
        input_size=(96, 96), stem_channels=8, partition_size=4, block_channels=[16, 32],
        block_layers=[1, 1], head_dim=8, stochastic_depth_prob=0,
    )  # fmt: skip
    pixels = picture(96, 96)
    record = capture(measure_norms(randomised(model), pixels), pixels)
    assert len(record) == 4
    for block, grid, size in ((record[0], record[1], 24), (record[2], record[3], 12)):
        assert torch.equal(numbers(block.keys), cut(cells(size, size), 4))
        # a grid of 4 x 4 tokens, as far apart as the map allows
        apart = cells(size, size).view(4, size // 4, 4, size // 4).permute(1, 3, 0, 2)
        assert torch.equal(numbers(grid.keys), apart.reshape(-1, 16))


def test_nested_blocks():
    record = capture(timm_model("nest_tiny", 112, 112), picture(112, 112))
    for layer, size in ((record[0], 28), (record[2], 14), (record[4], 7)):
        assert torch.equal(numbers(layer.keys), cut(cells(size, size), 7))


def test_twins_cuts_within_its_attention():
    record = capture(timm_model("twins_svt_small", 128, 160, keep=0), picture(128, 160))
    # 32 x 40 in windows of 7; then 16 x 20
    assert torch.equal(numbers(record[0].keys), cut(cells(32, 40, (0, 2, 0, 3)), 7))
    assert torch.equal(numbers(record[2].keys), cut(cells(16, 20, (0, 1, 0, 5)), 7))
    assert (record[1].kind, record[1].keys.grid.rows, record[1].keys.grid.cols) == ("pooled", 4, 5)


def test_halos_reach_into_the_blocks_around():
    record = capture(timm_model("halonet26t", 256, 256), picture(256, 256))
    around = cells(16, 16, (2, 2, 2, 2)).unfold(0, 12, 8).unfold(1, 12, 8).reshape(4, 144)
    assert torch.equal(numbers(record[0].keys), around)
    assert torch.equal(numbers(record[0].queries), cut(cells(16, 16), 8))
    # the next asks at every second place
    assert torch.equal(numbers(record[1].keys), around)
    assert torch.equal(numbers(record[1].queries), cut(cells(8, 8), 4))


def test_mobilevit_looks_from_every_second_place_to_every_second_place():
    record = capture(timm_model("mobilevit_xxs", 64, 96), picture(64, 96))
    apart = cells(8, 12).view(4, 2, 6, 2).permute(1, 3, 0, 2).reshape(4, 24)
    assert torch.equal(numbers(record[0].keys), apart)


def test_iformer_cuts_within_its_attention():
    model = timm_model("iformer_t", 96, 160)
    for module in model.modules():
        if type(module).__name__ == "SHMA":
            module.window_size = 4
    layer = capture(model, picture(96, 160))[0]
    assert torch.equal(numbers(layer.keys), cut(cells(6, 10, (0, 2, 0, 2)), 4))


def test_hiera_is_unrolled_as_it_rolls_itself_up_again():
    model = timm_model("hiera_tiny_224", 96, 160, keep=0)
    record = capture(model, picture(96, 160))
    assert len(record) == 12
    for number, layer in enumerate(record):
        before = max(number - 1, 0)  # a block gets what the one before it gave
        n_tokens = layer.keys.grid.rows * layer.keys.grid.cols
        rolled_up = model.reroll(torch.arange(n_tokens)[None, :, None], before).flatten()
        cell_of = rolled_up.argsort()  # the cell of each token, from the token of each cell
        in_windows = cell_of.view(-1, layer.n_windows).T  # tokens of a window are far apart
        assert torch.equal(numbers(layer.keys), in_windows), layer.name


def test_a_wrong_permutation_would_be_noticed():
    model, pixels = timm_model("swin_tiny_patch4_window7_224", 120, 152), picture(120, 152)
    given = tokens_given(model, pixels, "WindowAttention")
    tokens, maps = given["layers.0.blocks.1.attn"]
    _, _, at = match(tokens, maps, [(30, 38)])
    assert not torch.equal(at, cut(cells(30, 38, (0, 4, 0, 5)).roll((-3, -3), (0, 1)), 7))
    rolled_first = F.pad(cells(30, 38).roll((-3, -3), (0, 1)), (0, 4, 0, 5), value=-1)
    assert torch.equal(at, cut(rolled_first, 7))  # timm shifts and then fills up
