"""Which architectures of timm have attention over places, and how to make them small enough.

Nothing here asks vizattn: a class takes a softmax when its own source says so
(``tests/attention_oracle.py``), and what those few softmaxes are that do not run over places was
read from timm's files.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import timm
import torch
from attention_oracle import measure_norms, randomised, shorten, takes_softmax, without_draws
from torch import Tensor, nn

# Softmaxes over something else than places: channels, gates of branches, keys alone, a learnt
# kernel, the batch. An architecture that has no other is not counted.
NOT_OVER_PLACES = {
    *("XCA", "ChannelAttention", "ChannelAttentionV2", "CrossCovarianceAttn"),  # channels
    *("RadixSoftmax", "SplitAttn", "SelectiveKernelAttn", "GlobalContext"),  # gates, pooling
    *("EfficientViM", "EfficientViMDistilled", "HSMSSD"),
    *("FactorAttnConvRelPosEnc", "LambdaLayer", "LinearSelfAttention"),  # keys alone
    "OutlookAttention",  # weights of a 3 × 3 kernel, from a linear layer
    "SpatialTransformerBlock",  # the batch
}

# Above so many parameters repeated blocks are left out, so that a sweep fits into memory and time.
SHORTEN_ABOVE = 110e6


@dataclass(frozen=True)
class Architecture:
    """One architecture: its name, family (timm's file), parameters and default input."""

    name: str
    family: str
    parameters: int
    height: int
    width: int


def universe() -> Iterator[dict[str, Any] | None]:
    """Every architecture of timm: a dictionary when it attends over places, else ``None``."""
    for name in timm.list_models():
        model = _on_paper(name)
        kinds = {type(module).__name__ for module in model.modules() if _counts(module)}
        family = timm.model_entrypoint(name).__module__.rpartition(".")[2]
        size = model.default_cfg["input_size"][1:]
        parameters = sum(p.numel() for p in model.parameters())
        yield asdict(Architecture(name, family, parameters, *size)) if kinds else None


def _on_paper(name: str) -> Any:
    """A model without memory for its weights."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        return timm.create_model(name)


def _counts(module: nn.Module) -> bool:
    return takes_softmax(type(module)) and type(module).__name__ not in NOT_OVER_PLACES


def make(about: Architecture, sharpness: float) -> tuple[nn.Module, Tensor, int]:
    """A model with drawn weights, an input that it takes, and how many blocks were left out.

    The input is not square and smaller than the default where the model allows it.
    """
    failures = []
    for size in _sizes(about):
        pixels = torch.randn(3, *size, generator=torch.Generator().manual_seed(2))
        try:
            model, left_out = _model(about, size, sharpness)
            measure_norms(model, pixels)
        except Exception as error:  # another size may do
            failures.append(f"{size}: {type(error).__name__}: {error}")
        else:
            return model, pixels, left_out
    raise RuntimeError("; ".join(failures))


def _sizes(about: Architecture) -> list[tuple[int, int]]:
    """Half as high as wide; then the same, larger; then as it wants it."""
    height, width = about.height, about.width
    if height >= 384:
        shrunk = [(height // 4, width // 2), (height // 2, width), (height // 2, width // 2)]
    else:
        shrunk = [(height // 2, width), (height // 2, width // 2)]
    return [*shrunk, (height, width)]


def _model(about: Architecture, size: tuple[int, int], sharpness: float) -> tuple[nn.Module, int]:
    with warnings.catch_warnings(), without_draws():
        warnings.simplefilter("ignore")
        try:
            model = timm.create_model(about.name, img_size=size)
        except TypeError:  # takes any size
            model = timm.create_model(about.name)
    left_out = 0
    if about.parameters >= SHORTEN_ABOVE:
        left_out = shorten(model, keep=4 if about.parameters < 4e8 else 2)
    return randomised(model, sharpness), left_out


def tensors(output: Any) -> list[Tensor]:
    """All tensors of what a model returned."""
    if isinstance(output, Tensor):
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    if not isinstance(output, dict | list | tuple):
        return []
    return [tensor for part in parts for tensor in tensors(part)]
