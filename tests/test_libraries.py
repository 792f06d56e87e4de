"""Other libraries than timm, in the ways that people run models: small, with drawn weights."""

import importlib
import threading

import pytest
import torch
from attention_oracle import attention_that_runs, measure_norms, randomised
from torch import nn
from torch.utils.checkpoint import checkpoint

from vizattn.capture import capture, layer_of
from vizattn.errors import CaptureError
from vizattn.observation import observe
from vizattn.places import CallPlace
from vizattn.recorder import Recorder


def picture(height=64, width=64):
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(2))


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    is_container = isinstance(output, dict | list | tuple)
    return [tensor for part in parts for tensor in tensors(part)] if is_container else []


def dense(call):
    """All weights of a call, ``[window and head, query, key]``, by the layer made of it."""
    asking = call.weights if call.q is None else call.q
    whole = torch.arange(asking.shape[:-2].numel()).unsqueeze(0)
    layer = layer_of(call, CallPlace("unknown", whole, reason="not asked"))
    return layer.rows(range(layer.n_queries))


def seen_whole(model, pixels, **inputs):
    """Watch a model twice, hold output and modules against a plain pass, and return what was seen.

    Draws of the model's own, such as dropped patches, are the same each time.
    """
    torch.manual_seed(0)
    with torch.no_grad(), attention_that_runs(model) as expected:
        plain = tensors(model(pixels.unsqueeze(0), **inputs))
    for _ in range(2):
        torch.manual_seed(0)
        seen = observe(model, pixels, inputs)
        output = tensors(seen.output)
        assert len(output) == len(plain) > 0
        assert all(map(torch.equal, output, plain))
        assert seen.unrecorded == []
        assert {call.module for call in seen.calls} == set(expected)
    return seen


def kinds(seen):
    """Kinds and grids of keys in the order of calls, such as ``self 4x4+1``."""
    described = []
    for place in seen.places:
        grid = "" if place.keys is None else f" {place.keys.grid.rows}x{place.keys.grid.cols}"
        prefix = place.keys.grid.prefix if place.keys is not None else 0
        described.append(place.kind + grid + f"+{prefix}" * (prefix > 0))
    return described


# --- transformers -----------------------------------------------------------------------------

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "image_size": 64, "patch_size": 16,
}  # fmt: skip
WINDOWS = {
    "image_size": 64, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2],
    "window_size": 4,
}  # fmt: skip
PYRAMID = {
    "hidden_sizes": [16, 32, 32, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 2],
    "mlp_ratios": [2, 2, 2, 2],
}  # fmt: skip
BACKBONE = {
    "embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1],
    "layer_type": "basic", "out_features": ["stage4"],
}  # fmt: skip
DECODER = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_queries": 5,
}  # fmt: skip

PATCHES = ["self 4x4"] * 2
CLASS = ["self 4x4+1"] * 2
PYRAMIDS = ["pooled 2x2"] * 3 + ["self 2x2"]

# Model, further settings, what its calls are, and how many maps the library itself gives when it
# is asked for them (0: it gives none, or none that are weights).
TRANSFORMERS = [
    ("ViTModel", SMALL, CLASS, 2),
    ("DeiTModel", SMALL, ["self 4x4+2"] * 2, 2),
    ("BeitModel", SMALL | {"use_relative_position_bias": True}, CLASS, 2),
    ("Dinov2Model", SMALL, CLASS, 2),
    ("Dinov2WithRegistersModel", SMALL, ["self 4x4+5"] * 2, 2),
    ("DINOv3ViTModel", SMALL | {"num_register_tokens": 4}, ["self 4x4+5"] * 2, 2),
    ("CLIPVisionModel", SMALL, CLASS, 2),
    ("MetaClip2VisionModel", SMALL, CLASS, 2),
    ("AltCLIPVisionModel", SMALL, CLASS, 2),
    ("ChineseCLIPVisionModel", SMALL, CLASS, 2),
    ("CLIPSegVisionModel", SMALL, CLASS, 2),
    ("SiglipVisionModel", SMALL, [*PATCHES, "pool 4x4"], 2),
    ("Aimv2VisionModel", SMALL, [*PATCHES, "pool 4x4"], 2),
    ("OwlViTVisionModel", SMALL, CLASS, 2),
    ("Owlv2VisionModel", SMALL, CLASS, 2),
    ("BlipVisionModel", SMALL, CLASS, 2),
    ("Blip2VisionModel", SMALL, CLASS, 2),
    ("IJepaModel", SMALL, PATCHES, 2),
    ("ViTMSNModel", SMALL, CLASS, 2),
    ("DPTModel", SMALL, CLASS, 2),
    ("Data2VecVisionModel", SMALL, CLASS, 0),
    # five detection tokens behind the patches
    ("YolosModel", SMALL | {"image_size": [64, 64], "num_detection_tokens": 5},
     ["self 4x4+6"] * 2, 2),
    ("InternVLVisionModel", SMALL | {"image_size": [64, 64], "patch_size": [16, 16]}, CLASS, 2),
    ("VitDetModel", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                     "image_size": 64, "patch_size": 16, "window_size": 2,
                     "window_block_indices": [0]}, ["window 4x4", "self 4x4"], 2),
    # windows of 3 fill 4 x 4 up to 6 x 6
    ("SamVisionModel", SMALL | {"window_size": 3, "global_attn_indexes": [1], "mlp_ratio": 2.0,
                                "output_channels": 16}, ["window 4x4", "self 4x4"], 0),
    ("SwinModel", WINDOWS, ["window 16x16"] * 2 + ["window 8x8"] * 2, 0),
    ("Swinv2Model", WINDOWS, ["window 16x16"] * 2 + ["window 8x8"] * 2, 0),
    ("DonutSwinModel", WINDOWS, ["window 16x16"] * 2 + ["window 8x8"] * 2, 0),
    ("MaskFormerSwinModel", WINDOWS, ["window 16x16"] * 2 + ["window 8x8"] * 2, 0),
    ("PvtV2Model", PYRAMID | {"image_size": 64, "sr_ratios": [8, 4, 2, 1]}, PYRAMIDS, 4),
    ("PvtModel", PYRAMID | {"image_size": 64, "sequence_reduction_ratios": [8, 4, 2, 1]},
     ["pooled 2x2"] * 3 + ["self 2x2+1"], 4),
    ("SegformerModel", PYRAMID, PYRAMIDS, 4),
    ("GLPNModel", PYRAMID, PYRAMIDS, 4),
    ("HieraModel", {"image_size": [64, 64], "embed_dim": 16, "depths": [1, 1, 1, 1],
                    "num_heads": [1, 2, 2, 2]},
     ["window 16x16", "window 16x16", "window 8x8", "pooled 4x4"], 0),
    ("MobileViTModel", {"image_size": 64, "hidden_sizes": [16, 24, 32],
                        "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 16]},
     ["window 8x8"] * 2 + ["window 4x4"] * 4 + ["window 2x2"] * 3, 0),
    ("LevitModel", {"image_size": 64, "hidden_sizes": [32, 32, 32],
                    "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
     ["self 4x4", "pooled 4x4", "self 2x2", "pooled 2x2", "self 1x1"], 0),
    # learnt queries among each other, before and after they have met the picture
    ("DetrModel", DECODER, ["self 2x2"] * 2 + ["outside", "cross 2x2", "unknown", "cross 2x2"], 2),
    ("ConditionalDetrModel", DECODER,
     ["self 2x2"] * 2 + ["outside", "cross 2x2", "unknown", "cross 2x2"], 2),
]  # fmt: skip


def transformers_model(name, settings, **arguments):
    import transformers

    config_of = getattr(transformers, name).config_class
    settings = dict(settings)
    if settings is not DECODER and "d_model" in settings:
        settings["backbone_config"] = transformers.ResNetConfig(**BACKBONE)
    config = config_of(**settings)
    return randomised(getattr(transformers, name)._from_config(config, **arguments).eval())


def holds(maps, calls):
    """Whether the library's maps are found among ours, in the same order."""
    remaining = iter(calls)
    for expected in maps:
        flat = expected.reshape(-1, *expected.shape[-2:])
        for call in remaining:
            ours = dense(call)
            if ours.shape == flat.shape and torch.allclose(ours, flat, rtol=0, atol=1e-5):
                break
        else:
            return False
    return True


@pytest.mark.parametrize(
    ("name", "settings", "calls", "n_maps"), TRANSFORMERS, ids=[row[0] for row in TRANSFORMERS]
)
def test_transformers(name, settings, calls, n_maps):
    model = transformers_model(name, settings)
    seen = seen_whole(model, picture())
    assert kinds(seen) == calls
    if n_maps:
        eager = transformers_model(name, settings, attn_implementation="eager")
        eager.load_state_dict(model.state_dict())
        with torch.no_grad():
            output = eager(picture().unsqueeze(0), output_attentions=True)
        maps = tensors(output.get("attentions") or output.encoder_attentions)
        assert len(maps) == n_maps
        assert all(each.amax(-1).median() > 1.1 / each.shape[-1] for each in maps)  # not uniform
        assert holds(maps, seen.calls)
        assert not holds([each.roll(1, -1) for each in maps], seen.calls)


def test_two_windows_of_transformers_swin_are_the_librarys_own_maps():
    model = transformers_model("SwinModel", WINDOWS, attn_implementation="eager")
    seen = observe(model, picture())
    with torch.no_grad():
        maps = model(picture().unsqueeze(0), output_attentions=True).attentions
    assert len(maps) == 2  # one a stage; there are four
    assert holds(maps, seen.calls)


def test_masked_patches_keep_their_place_and_the_size_of_their_cell():
    model = transformers_model("ViTMAEModel", SMALL)
    noise = torch.linspace(1, 0, 16).unsqueeze(0)  # the last four patches stay, last first
    seen = seen_whole(model, picture(), noise=noise)
    (place, _) = seen.places
    assert place.keys.frame.height / place.keys.grid.rows == 16
    columns = place.keys.frame.left + (place.keys.index[0, 1:] - 1) % place.keys.grid.cols * 16
    assert columns.tolist() == [48, 32, 16, 0]
    assert place.keys.frame.top == 48


def test_video_is_seen_and_not_drawn():
    model = transformers_model("VideoMAEModel", SMALL | {"num_frames": 4})
    frames = torch.randn(4, 3, 64, 64)
    seen = seen_whole(model, frames)
    assert kinds(seen) == ["unknown"] * 2
    assert "frames of a video" in seen.places[0].reason


# --- torchvision ------------------------------------------------------------------------------


def torchvision_models():
    from torchvision.models import maxvit, swin_transformer, vision_transformer
    from torchvision.models.video import mvit
    from torchvision.models.video import swin_transformer as swin_video

    swin = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2],
            "window_size": [4, 4], "num_classes": 3}  # fmt: skip
    stage = mvit.MSBlockConfig
    return {
        "vit": (vision_transformer.VisionTransformer(64, 16, 2, 2, 32, 48), CLASS),
        "swin": (
            swin_transformer.SwinTransformer(**swin), ["window 16x16"] * 2 + ["window 8x8"] * 2
        ),
        "swin v2": (
            swin_transformer.SwinTransformer(
                **swin, block=swin_transformer.SwinTransformerBlockV2,
                downsample_layer=swin_transformer.PatchMergingV2,
            ),
            ["window 16x16"] * 2 + ["window 8x8"] * 2,
        ),
        "maxvit": (
            maxvit.MaxVit((64, 64), 8, 4, [16, 32], [1, 1], 8, 0.0),
            ["window 16x16"] * 2 + ["window 8x8"] * 2,
        ),
        "mvit": (
            mvit.MViT((64, 64), 4, [
                stage(1, 16, 32, [3, 3, 3], [3, 3, 3], [1, 1, 1], [1, 4, 4]),
                stage(2, 32, 32, [3, 3, 3], [3, 3, 3], [1, 2, 2], [1, 2, 2]),
            ], True, False, True, True, num_classes=3),
            ["unknown"] * 2,
        ),
        "swin video": (
            swin_video.SwinTransformer3d([1, 4, 4], 16, [2], [2], [2, 4, 4], num_classes=3),
            ["unknown"] * 2,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["vit", "swin", "swin v2", "maxvit", "mvit", "swin video"])
def test_torchvision(name):
    model, calls = torchvision_models()[name]
    pixels = picture() if "4x4" in calls[0] or "16" in calls[0] else torch.randn(3, 4, 64, 64)
    model = randomised(model)
    if name == "maxvit":
        measure_norms(model, pixels)
    assert kinds(seen_whole(model, pixels)) == calls


# --- open_clip --------------------------------------------------------------------------------

VISION = {"layers": 2, "width": 32, "head_width": 16, "patch_size": 16, "image_size": 64}
POOLED = {"attn_pooler_queries": 4, "attn_pooler_heads": 2}

OPEN_CLIP = {
    "vit": (VISION, CLASS),
    "custom blocks": (
        VISION | {"block_type": "custom", "qk_norm": True, "scale_heads": True}, CLASS
    ),
    "pool": (VISION | POOLED | {"attentional_pool": True}, [*CLASS, "cross 4x4+1"]),
    # the second pools what the first has pooled
    "cascade": (
        VISION | POOLED | {"attentional_pool": "cascade"}, [*CLASS, "cross 4x4+1", "unknown"]
    ),
    "parallel": (
        VISION | POOLED | {"attentional_pool": "parallel"}, [*CLASS, "cross 4x4+1", "pool 4x4+1"]
    ),
    # the mean of all is the first token
    "resnet": (VISION | {"layers": (1, 1, 1, 1), "width": 16}, ["self 2x2+1"]),
}  # fmt: skip


def open_clip_model(vision):
    from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

    text = CLIPTextCfg(context_length=8, vocab_size=50, width=32, heads=2, layers=2)
    model = randomised(CLIP(32, CLIPVisionCfg(**vision), text))
    measure_norms(model.visual, picture())
    return model


@pytest.mark.parametrize("name", OPEN_CLIP)
def test_open_clip(name):
    vision, calls = OPEN_CLIP[name]
    assert kinds(seen_whole(open_clip_model(vision).visual, picture())) == calls


def test_the_text_branch_is_not_taken_for_vision():
    model, text = open_clip_model(VISION), torch.randint(0, 50, (1, 8))
    seen = seen_whole(model, picture(), text=text)
    assert kinds(seen) == [*CLASS, "outside", "outside"]
    record = capture(model, picture(), text=text)
    assert [layer.name for layer in record] == [
        "visual.transformer.resblocks.0.attn", "visual.transformer.resblocks.1.attn",
    ]  # fmt: skip


# --- vit-pytorch ------------------------------------------------------------------------------

BASE = {
    "image_size": 64, "patch_size": 16, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2,
    "mlp_dim": 48, "dim_head": 16,
}  # fmt: skip
MAXVIT = {"num_classes": 5, "dim_conv_stem": 16, "dim": 16, "dim_head": 16, "depth": (1, 1, 1),
          "window_size": 4}  # fmt: skip
IN_STAGES = {"num_classes": 5, "dim": (32, 64, 64, 64), "depth": (1, 1, 1, 1)}

# Module and class, what to build it with, the side of its input and what its calls are.
VIT_PYTORCH = [
    ("vit.ViT", BASE, 64, CLASS),
    ("simple_vit.SimpleViT", BASE, 64, PATCHES),
    ("simple_flash_attn_vit.SimpleViT", BASE | {"use_flash": True}, 64, PATCHES),
    ("deepvit.DeepViT", BASE, 64, CLASS),
    # the class token has not met the picture at first
    ("cait.CaiT", BASE | {"cls_depth": 2}, 64, [*PATCHES, "pool 4x4+1", "class 4x4+1"]),
    ("cct.CCT", {"img_size": 64, "embedding_dim": 32, "n_conv_layers": 2, "num_layers": 2,
                 "num_heads": 2, "num_classes": 5, "mlp_ratio": 2}, 64, [*PATCHES, "local"]),
    ("t2t.T2TViT", BASE | {"t2t_layers": ((7, 4), (3, 2), (3, 2))}, 64,
     ["self 16x16", "self 8x8", *CLASS]),
    # patches of 8 every 4 pixels: (64 - 8) / 4 + 1
    ("pit.PiT", BASE | {"patch_size": 8, "depth": (1, 1)}, 64, ["self 15x15+1", "self 8x8+1"]),
    ("levit.LeViT", {"image_size": 128, "num_classes": 5, "dim": (32, 32, 32), "depth": 1,
                     "heads": 2, "mlp_mult": 2, "dim_key": 8, "dim_value": 16}, 128,
     ["self 8x8", "pooled 8x8", "self 4x4", "pooled 4x4", "self 2x2"]),
    ("cvt.CvT", {"num_classes": 5, "s1_emb_dim": 16, "s2_emb_dim": 32, "s3_emb_dim": 32,
                 "s2_heads": 2, "s3_heads": 2, "s2_depth": 1, "s3_depth": 1}, 64,
     ["pooled 8x8", "pooled 4x4", "pooled 2x2"]),
    ("cross_vit.CrossViT", {
        "image_size": 64, "num_classes": 5, "depth": 1, "sm_dim": 32, "lg_dim": 32,
        "sm_patch_size": 16, "sm_enc_depth": 1, "sm_enc_heads": 2, "sm_enc_mlp_dim": 32,
        "lg_patch_size": 32, "lg_enc_depth": 1, "lg_enc_heads": 2, "lg_enc_mlp_dim": 32,
        "cross_attn_depth": 1, "cross_attn_heads": 2}, 64,
     ["self 4x4+1", "self 2x2+1", "class 2x2+1", "class 4x4+1"]),
    ("twins_svt.TwinsSVT", {
        "num_classes": 5, "s1_emb_dim": 16, "s2_emb_dim": 16, "s3_emb_dim": 32, "s4_emb_dim": 32,
        "s1_depth": 1, "s2_depth": 1, "s3_depth": 1, "s4_depth": 1, "s4_global_k": 2}, 224,
     2 * ["window 56x56", "pooled 8x8"] + 2 * ["window 28x28", "pooled 4x4"]
     + 2 * ["window 14x14", "pooled 2x2"] + ["pooled 3x3"] * 2),
    ("scalable_vit.ScalableViT", {
        "num_classes": 5, "dim": 32, "heads": (1, 1, 2, 2), "depth": (1, 1, 1, 1),
        "ssa_dim_key": (8, 8, 8, 8), "reduction_factor": (8, 4, 2, 1),
        "window_size": (16, 8, 4, None)}, 128,
     ["pooled 4x4", "window 32x32", "pooled 4x4", "window 16x16", "pooled 4x4", "window 8x8",
      "self 4x4", "self 4x4"]),
    # a token for each window, and then those tokens among each other
    ("sep_vit.SepViT", {"num_classes": 5, "dim": 16, "dim_head": 16, "heads": (1, 2, 2, 2),
                        "depth": (1, 1, 1, 1), "window_size": 7}, 224,
     ["window 56x56+1", "cross 8x8", "window 28x28+1", "cross 4x4", "window 14x14+1", "cross 2x2",
      "self 7x7+1"]),
    ("max_vit.MaxViT", MAXVIT, 64,
     ["window 16x16"] * 2 + ["window 8x8"] * 2 + ["self 4x4"] * 2),
    ("max_vit_with_registers.MaxViT", MAXVIT | {"num_register_tokens": 2}, 64,
     ["window 16x16+2"] * 2 + ["window 8x8+2"] * 2 + ["self 4x4+2"] * 2),
    ("nest.NesT", {"image_size": 64, "patch_size": 4, "dim": 16, "heads": 2,
                   "num_hierarchies": 3, "block_repeats": (1, 1, 1), "num_classes": 5}, 64,
     ["window 16x16", "window 8x8", "self 4x4"]),
    ("mobile_vit.MobileViT", {"image_size": (64, 64), "dims": [16, 24, 32], "num_classes": 5,
                              "channels": [8, 8, 16, 16, 24, 24, 32, 32, 40, 40, 48]}, 64,
     ["window 8x8"] * 2 + ["window 4x4"] * 4 + ["window 2x2"] * 3),
    ("xcit.XCiT", BASE | {"cls_depth": 1}, 64, ["channel"] * 2 + ["pool 4x4+1"]),
    ("vit_for_small_dataset.ViT", BASE, 64, CLASS),
    ("parallel_vit.ViT", BASE | {"num_parallel_branches": 2}, 64, CLASS * 2),
    ("rvt.RvT", BASE, 64, CLASS),
    # some rows are taken out of the second softmax; their patches keep their places
    ("ats_vit.ViT", BASE | {"max_tokens_per_depth": (15, 8)}, 64, None),
    ("vit_with_patch_merger.ViT", BASE | {"patch_merge_layer": 1, "patch_merge_num_tokens": 4}, 64,
     ["self 4x4", "local", "unknown"]),
    ("vit_with_patch_dropout.ViT", BASE | {"patch_dropout": 0.25}, 64, CLASS),
    ("normalized_vit.nViT", BASE, 64, PATCHES),
    ("na_vit.NaViT", BASE, 64, [*PATCHES, "pool 4x4"]),
    ("jumbo_vit.JumboViT", BASE | {"num_jumbo_cls": 1, "jumbo_cls_k": 2, "jumbo_ff_mult": 1}, 64,
     ["self 4x4+2"] * 2),
    ("look_vit.LookViT", {
        "dim": 32, "image_size": 64, "num_classes": 5, "depth": 1, "patch_size": 16, "heads": 2,
        "highres_patch_size": 8, "cross_attn_heads": 2}, 64,
     ["pooled 8x8", "self 4x4", "cross 4x4"]),
    ("simple_vit_with_value_residual.SimpleViT", BASE, 64, PATCHES),
    ("simple_vit_with_patch_dropout.SimpleViT", BASE, 64, PATCHES),
    ("simple_vit_with_qk_norm.SimpleViT", BASE, 64, PATCHES),
    ("simple_vit_with_register_tokens.SimpleViT", BASE, 64, ["self 4x4+4"] * 2),
    ("simple_vit_with_hyper_connections.SimpleViT", BASE | {"num_residual_streams": 2}, 64,
     ["self 4x4+4"] * 2),
    # what was a spectrum has no place
    ("simple_vit_with_fft.SimpleViT", BASE | {"freq_patch_size": 16}, 64, ["unknown"] * 2),
    ("simple_vit_orthog_residual_update.SimpleViT", BASE, 64, PATCHES),
    ("simple_vit_with_relative_proj_pos_bias.SimpleViT", BASE, 64, PATCHES),
    ("simple_vit_with_specialized_cls.SimpleViT", BASE, 64, CLASS),
    ("simple_uvit.SimpleUViT", BASE, 64, ["self 4x4+4"] * 2),
    ("vit_with_decorr.ViT", BASE, 64, CLASS),
    ("vit_with_keel_post_ln.ViT", BASE, 64, CLASS),
    ("jet_vit.JetViT", BASE, 64, PATCHES),
    ("learnable_memory_vit.ViT", BASE, 64, CLASS),
]  # fmt: skip

# Re-attention and talking heads, and rows taken out of the softmax.
MIXED = {"deepvit.DeepViT": 2, "cait.CaiT": 4, "ats_vit.ViT": 1}


@pytest.mark.filterwarnings("ignore:.*sdp_kernel")  # one of them chooses its kernel the old way
@pytest.mark.parametrize(
    ("name", "arguments", "side", "calls"), VIT_PYTORCH, ids=[row[0] for row in VIT_PYTORCH]
)
def test_vit_pytorch(name, arguments, side, calls):
    module, kind = name.split(".")
    make = getattr(importlib.import_module(f"vit_pytorch.{module}"), kind)
    if arguments.items() >= BASE.items():  # not all know all of these
        known = make.__init__.__code__.co_varnames
        arguments = {key: value for key, value in arguments.items() if key in known}
    model = randomised(make(**arguments))
    seen = seen_whole(model, picture(side, side))
    if calls is not None:
        assert kinds(seen) == calls
    assert sum(not call.is_exact for call in seen.calls) == MIXED.get(name, 0)


def test_sampled_tokens_keep_their_places():
    from vit_pytorch.ats_vit import ViT

    model = randomised(ViT(**BASE, max_tokens_per_depth=(15, 8)))
    first, second = observe(model, picture()).places
    assert (first.keys.grid.n_patches, first.keys.index) == (16, None)
    cells = second.keys.numbers()[0, 1:]
    assert len(cells.unique()) == len(cells) <= 15
    assert second.keys.frame.width / second.keys.grid.cols == 16


def test_flex_attention_is_refused_in_words():
    from vit_pytorch.vit_nd import ViTND

    model = ViTND(ndim=2, input_shape=64, patch_size=16, num_classes=5, dim=32, depth=1, heads=2,
                  mlp_dim=48, dim_head=16)  # fmt: skip
    with (
        pytest.warns(UserWarning, match="flex_attention"),
        pytest.raises(
            CaptureError, match=r"ViTND attends with flex_attention.*Has the model a setting"
        ),
    ):
        capture(model.eval(), picture())


# --- torch.nn, and the ways to run a model ----------------------------------------------------


class Encoder(nn.Module):
    """Patches of 16 pixels through PyTorch's own encoder."""

    def __init__(self, norm_first=False, nested=False, again=False):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            32, 2, 48, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        self.patches = nn.Conv2d(3, 32, 16, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.again = again

    def forward(self, images, hidden=None):
        tokens = self.patches(images).flatten(2).mT
        if not self.again:
            return self.encoder(tokens, src_key_padding_mask=hidden)
        for layer in self.encoder.layers:
            tokens = checkpoint(layer, tokens, use_reentrant=False)
        return tokens


def reference(model, images, hidden=None):
    """Weights of each layer by the definition, from the parameters."""
    tokens, maps = model.patches(images).flatten(2).mT, []
    for layer in model.encoder.layers:
        x = layer.norm1(tokens) if layer.norm_first else tokens
        qkv = x @ layer.self_attn.in_proj_weight.T + layer.self_attn.in_proj_bias
        q, k, _ = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in qkv.chunk(3, -1))
        scores = q @ k.mT / 4
        if hidden is not None:
            scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        maps.append(scores.softmax(-1)[0])
        tokens = layer(tokens, src_key_padding_mask=hidden)
    return maps


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("is_masked", [False, True])
def test_the_fast_path_of_torchs_encoder_stays_fast_and_is_seen(norm_first, is_masked):
    model = randomised(Encoder(norm_first))
    hidden = torch.tensor([[False] * 11 + [True] * 5]) if is_masked else None
    inputs = {} if hidden is None else {"hidden": hidden}
    seen = seen_whole_on_the_fast_path(model, inputs)
    with torch.no_grad():
        expected = reference(model, picture().unsqueeze(0), hidden)
    for call, weights in zip(seen.calls, expected, strict=True):
        assert "_transformer_encoder_layer_fwd" in call.operation
        torch.testing.assert_close(dense(call), weights, rtol=0, atol=1e-5)


def seen_whole_on_the_fast_path(model, inputs):
    with torch.no_grad():
        plain = model(picture().unsqueeze(0), **inputs)
    seen = observe(model, picture(), inputs)
    assert torch.equal(seen.output, plain)
    assert kinds(seen) == PATCHES
    return seen


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_a_nested_batch_is_refused_with_the_reason_and_the_model_does_not_notice():
    model, hidden = randomised(Encoder(nested=True)), torch.tensor([[False] * 11 + [True] * 5])
    with torch.no_grad():
        plain = model(picture().unsqueeze(0), hidden)
    seen = observe(model, picture(), {"hidden": hidden})
    assert torch.equal(seen.output, plain)
    assert "different lengths" in seen.unrecorded[0][1]
    with pytest.raises(CaptureError, match="give one at a time"):
        capture(model, picture(), hidden=hidden)


def test_multihead_attention_alone():
    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 32, 16, 16)
            self.attention = nn.MultiheadAttention(32, 2, batch_first=True)

        def forward(self, images):
            tokens = self.patches(images).flatten(2).mT
            return self.attention(tokens, tokens, tokens, average_attn_weights=False)

    model = randomised(Alone())
    seen = seen_whole(model, picture())
    _, weights = seen.output
    torch.testing.assert_close(dense(seen.calls[0]), weights[0], rtol=0, atol=1e-5)


WAYS = {
    "no_grad": torch.no_grad,
    "grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["ViTModel", "SwinModel", "PvtV2Model"])
def test_a_recorder_sees_the_same_in_every_way_to_run_a_model(name, way):
    settings = {"ViTModel": SMALL, "SwinModel": WINDOWS}.get(
        name, PYRAMID | {"image_size": 64, "sr_ratios": [8, 4, 2, 1]}
    )
    model = transformers_model(name, settings)
    images = picture().unsqueeze(0)
    with WAYS[way]():
        plain = tensors(model(images))
        with Recorder(model) as recorder:
            watched = tensors(model(images))
    assert all(map(torch.equal, watched, plain))
    assert recorder.unrecorded == []
    expected = observe(model, picture()).calls
    assert [call.module for call in recorder.calls] == [call.module for call in expected]
    if way != "autocast":  # which casts queries and keys
        for call, same in zip(recorder.calls, expected, strict=True):
            torch.testing.assert_close(dense(call), dense(same), rtol=0, atol=1e-5)


def test_bfloat16_is_captured_as_it_is():
    model = transformers_model("ViTModel", SMALL).bfloat16()
    seen = seen_whole(model, picture().bfloat16())
    assert {call.q.dtype for call in seen.calls} == {torch.bfloat16}
    layer = capture(model, picture())[0]
    torch.testing.assert_close(layer.rows([0]).sum(-1), torch.ones(2, 1), rtol=0, atol=2e-2)


def test_gradients_pass_through_a_watched_model_as_through_a_plain_one():
    model, images = transformers_model("ViTModel", SMALL), picture().unsqueeze(0)

    def gradients():
        model.zero_grad()
        model(images).last_hidden_state.square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = gradients()
    with Recorder(model) as recorder:
        watched = gradients()
    assert all(map(torch.equal, watched, plain))
    assert len(recorder.calls) == 2


def test_checkpointed_layers_are_captured_once_each():
    model = randomised(Encoder(again=True))
    with torch.no_grad():
        plain = model(picture().unsqueeze(0))
    seen = observe(model, picture())
    assert torch.equal(seen.output, plain)
    assert [call.module for call in seen.calls] == ["encoder.layers.0", "encoder.layers.1"]


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel], ids=["compile", "DataParallel"])
def test_a_wrapped_model_is_captured_as_the_model_inside(wrap):
    model = transformers_model("ViTModel", SMALL)
    with torch.no_grad():
        plain = model(picture().unsqueeze(0)).last_hidden_state
    wrapped = wrap(model).eval()
    seen = observe(wrapped, picture())
    assert torch.equal(seen.output.last_hidden_state, plain)
    assert [call.module for call in seen.calls] == [
        call.module for call in observe(model, picture()).calls
    ]
    assert len(capture(wrapped, picture())) == 2


def test_two_threads_with_two_models_never_mix():
    models = {
        name: transformers_model(name, settings)
        for name, settings in (("ViTModel", SMALL), ("SwinModel", WINDOWS))
    }
    expected = {name: observe(model, picture()) for name, model in models.items()}
    seen = {name: [] for name in models}

    def look(name):
        for _ in range(5):
            seen[name].append(observe(models[name], picture()))

    threads = [threading.Thread(target=look, args=(name,)) for name in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, all_seen in seen.items():
        assert len(all_seen) == 5
        for each in all_seen:
            assert each.unrecorded == []
            ours, theirs = each.calls, expected[name].calls
            assert [call.module for call in ours] == [call.module for call in theirs]
            assert all(map(torch.equal, map(dense, ours), map(dense, theirs)))
