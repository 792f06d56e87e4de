"""Ways to see where a vision transformer looks, each as its documentation says to do it.

Run by ``peers.py``, one way in one process:

    python benchmarks/ways.py WAY SIZE BATCH GIB

says as one line of JSON that it is ready, and then, for each line it reads, what one look took. All
ways look at the same photographs with the weights of the embedded DINOv2 ViT-S/14.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from einops import rearrange
from measure import give_back, held_mib, restart_peak
from torch import Tensor, nn

if TYPE_CHECKING:
    from vizattn.models import VisionModel
    from vizattn.record import AttentionRecord

# From pixels [batch, 3, height, width] to maps [batch, row, col], or to something else that is no
# map of patches.
Look = Callable[[Tensor], Any]

PATCH = 14


def embedded(size: int, *, fused: bool = True) -> VisionModel:
    """The embedded model; timm decides when it builds one whether attention is fused."""
    import timm.layers

    from vizattn.models import load_model

    timm.layers.set_fused_attn(fused)
    return load_model("vizattn/dinov2-small", size=size)


def pictures(size: int, batch: int) -> Tensor:
    """The example photographs, again and again, as squares the way the model wants them."""
    from vizattn.images import open_image
    from vizattn.models import assets
    from vizattn.preprocess import Preprocess

    paths = sorted((assets() / "examples").glob("*.jpg"))[:batch]
    squares = [Preprocess(size, size, mode="squash")(open_image(path))[0] for path in paths]
    return torch.stack([squares[number % len(squares)] for number in range(batch)])


def on_grid(values: Tensor) -> Tensor:
    """Values of square grids of patches, row by row, ``[batch, patch]``."""
    rows = round(values.shape[-1] ** 0.5)
    return rearrange(values, "b (r c) -> b r c", r=rows)


def plain(size: int) -> Look:
    """Nothing but the forward pass."""
    module = embedded(size).module

    def look(pixels: Tensor) -> None:
        with torch.no_grad():
            module(pixels)

    return look


def records_of(model: VisionModel, pixels: Tensor) -> list[AttentionRecord]:
    """What rows and rollout need of each picture."""
    from vizattn.batch import capture_batch
    from vizattn.capture import capture

    if len(pixels) == 1:
        return [capture(model, pixels, values=False)]
    return capture_batch(model, pixels, values=False)


def vizattn_rows(size: int) -> Look:
    """The class token's rows of all layers and heads; of the last layer the mean over heads."""
    from vizattn.methods import RawAttention

    model = embedded(size)

    def look(pixels: Tensor) -> Tensor:
        records = records_of(model, pixels)
        maps = [RawAttention().by_layer(record)[-1].relevance.mean(0) for record in records]
        return on_grid(torch.stack(maps)[:, 1:])

    return look


def vizattn_rollout(size: int) -> Look:
    """Exact rollout of the class token."""
    from vizattn.methods import Rollout

    model = embedded(size)

    def look(pixels: Tensor) -> Tensor:
        records = records_of(model, pixels)
        return torch.stack([Rollout().heatmap(record).values for record in records])

    return look


def matrix_rollout(size: int) -> Look:
    """Attention switched to unfused, hooks on ``attn_drop``, the layers' matrices multiplied.

    With heads averaged and nothing discarded, and with the axis kept where rows are made to sum to
    1, which is what the paper says and what works for several pictures.
    """
    module = embedded(size, fused=False).module
    attentions: list[Tensor] = []
    for name, part in module.named_modules():
        if "attn_drop" in name:
            part.register_forward_hook(lambda _module, _given, output: attentions.append(output))

    def look(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            module(pixels)
            identity = torch.eye(attentions[0].shape[-1])
            result = identity
            for attention in attentions:
                mixed = (attention.mean(dim=1) + identity) / 2
                mixed = mixed / mixed.sum(dim=-1, keepdim=True)
                result = mixed @ result
        attentions.clear()  # some GiB, and others take their turn now
        return on_grid(result[:, 0, 1:])

    return look


def fast_vit_rollout(size: int) -> Look:
    """As its README shows it, with nothing discarded; it gives the matrix."""
    from fast_vit_rollout import ViTAttentionRollout

    rollout = ViTAttentionRollout(embedded(size, fused=False).module, discard_ratio=0.0)

    def look(pixels: Tensor) -> Tensor:
        matrix = rollout(pixels)
        rollout.attentions = []  # as the next call would do first
        return on_grid(matrix[:, 0, 1:])

    return look


def attention_extract(size: int, *, fused: bool) -> Look:
    """With its defaults, on a model that is built as it comes or with attention unfused."""
    from timm.utils import AttentionExtract

    extract = AttentionExtract(embedded(size, fused=fused).module)

    def look(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            attentions = list(extract(pixels).values())
        return on_grid(attentions[-1].mean(1)[:, 0, 1:])

    return look


def output_attentions(size: int, *, attention: str) -> Look:
    """The same weights in transformers' own Dinov2Model; its output is compared first."""
    model = dinov2_of(embedded(size).module, size, attention)

    def look(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            attentions = model(pixels, output_attentions=True).attentions
        return on_grid(attentions[-1].mean(1)[:, 0, 1:])

    return look


def dinov2_of(module: nn.Module, size: int, attention: str) -> nn.Module:
    """A ``Dinov2Model`` with the weights of timm's and positions already resampled to this size.

    Raises:
        RuntimeError: Its output is not the same to 1e-4.
    """
    from timm.layers import resample_abs_pos_embed
    from transformers import Dinov2Config, Dinov2Model

    width, depth, heads = module.embed_dim, len(module.blocks), module.blocks[0].attn.num_heads
    config = Dinov2Config(
        hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, patch_size=PATCH,
        image_size=size,
    )  # fmt: skip
    model = Dinov2Model._from_config(config, attn_implementation=attention).eval()
    grid = [size // PATCH] * 2
    state = module.state_dict()
    state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], grid, num_prefix_tokens=1)
    missing, unexpected = model.load_state_dict(_renamed(state), strict=False)
    pixels = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, ours = model(pixels).pooler_output, module(pixels)
    difference = float((theirs - ours).abs().max() / ours.abs().max())
    if unexpected or missing != ["embeddings.mask_token"] or not difference < 1e-4:
        raise RuntimeError(f"the weights do not fit: {difference:.1e}, {missing}, {unexpected}")
    return model


def _renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names of timm's parameters as transformers has them; q, k and v apart."""
    whole = {
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "patch_embed.proj.": "embeddings.patch_embeddings.projection.",
        "norm.": "layernorm.",
    }
    inside = {
        "attn.proj.": "attention.o_proj.",
        "ls1.gamma": "layer_scale1.lambda1",
        "ls2.gamma": "layer_scale2.lambda1",
        "blocks.": "encoder.layer.",
    }
    made = {}
    for name, tensor in state.items():
        if ".qkv." in name:
            block, _, kind = name.partition("attn.qkv.")
            block = block.replace("blocks.", "encoder.layer.")
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                made[f"{block}attention.{letter}_proj.{kind}"] = part
            continue
        for old, new in inside.items() if name.startswith("blocks.") else whole.items():
            name = name.replace(old, new)  # the name, step by step
        made[name] = tensor
    return made


def legrad(size: int) -> Look:
    """Its method for transformers, as the docstring shows it, with the last four blocks."""
    from torchcam.methods import LeGrad

    module = embedded(size).module
    extractor = LeGrad(
        module, list(module.blocks)[-4:],
        score_projection=lambda tokens: module.norm(tokens.mean(dim=1)),
    )  # fmt: skip

    def look(pixels: Tensor) -> Tensor:
        scores = module(pixels)
        return extractor(scores.argmax(-1).tolist(), scores)[0]

    return look


def gradcam(size: int) -> Look:
    """Grad-CAM of the last block's tokens, with the transform that its guide gives for ViTs.

    It answers another question, what the largest coordinate of the embedding depends on.
    """
    from torchcam.methods import GradCAM

    module, side = embedded(size).module, size // PATCH

    def to_map(tokens: Tensor) -> Tensor:
        return rearrange(tokens[:, 1:], "b (r c) d -> b d r c", r=side)

    extractor = GradCAM(module, target_layer="blocks.11.norm1", reshape_transform=to_map)

    def look(pixels: Tensor) -> None:
        scores = module(pixels)
        extractor(scores.argmax(-1).tolist(), scores)

    return look


PREPARE: tuple[Callable[[int], Look], ...] = (
    plain,
    vizattn_rows,
    vizattn_rollout,
    matrix_rollout,
    fast_vit_rollout,
    lambda size: attention_extract(size, fused=True),
    lambda size: attention_extract(size, fused=False),
    lambda size: output_attentions(size, attention="sdpa"),
    lambda size: output_attentions(size, attention="eager"),
    legrad,
    gradcam,
)


def failure(error: Exception) -> dict[str, str]:
    """The kind and the first line of an error."""
    words = str(error).splitlines() or [""]
    return {"failed": f"{type(error).__name__}: {words[0].strip()}".replace("|", "\\|")}


def limit_memory(gib: float) -> None:
    """Let this process take so much more than it has; then PyTorch says that there is no more.

    Of private memory that can be written, not of addresses: PyTorch maps many that it never uses.
    """
    most = int((held_mib("VmData") + gib * 1024) * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def looked(look: Look, pixels: Tensor, loaded: float) -> dict[str, Any]:
    """What one look took: seconds, the peak above what was held, maps; or why it failed."""
    give_back()
    restart_peak()
    start, worked = time.perf_counter(), time.process_time()
    try:
        maps = look(pixels)
    except Exception as error:  # its own message is the result
        return failure(error)
    seconds, work = time.perf_counter() - start, time.process_time() - worked
    made = None if maps is None else maps.tolist()
    return {"seconds": seconds, "work": work, "mib": held_mib("VmHWM") - loaded, "maps": made}


def main(number: int, size: int, batch: int, gib: float) -> None:
    """Get ready, say so, and look whenever a line comes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print would disturb the answers

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=out, flush=True)

    try:
        look, pixels = PREPARE[number](size), pictures(size, batch)
    except Exception as error:
        say(failure(error))
        return
    give_back()
    loaded = held_mib()
    limit_memory(gib)
    say({})
    for _ in sys.stdin:
        say(looked(look, pixels, loaded))
        give_back()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), float(sys.argv[4]))
