"""What capture sees of one model, held against what there is to see."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import torch
from attention_oracle import attention_that_runs
from coverage_models import Architecture, make, tensors
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vizattn.calls import AttentionCall
from vizattn.capture import layer_of
from vizattn.layers import Attention, DenseAttention
from vizattn.observation import Observation, observe
from vizattn.places import CallPlace
from vizattn.running import run


class KernelOutputs(TorchDispatchMode):
    """Keeps what fused kernels returned, so that weights times values can be held against it."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation as it is."""
        result = run(func, args, kwargs or {})
        name = getattr(func, "__name__", "")
        if name.startswith("_scaled_dot_product") and not name.startswith(
            "_scaled_dot_product_attention_math."
        ):
            self.outputs.append(result[0])
        return result


# Errors above this are looked at again: float32 does no better where scores are in the hundreds.
TOLERANCE = 1e-5


def check(about: Architecture) -> dict[str, Any]:
    """One architecture: figures of how well it was seen."""
    started = time.monotonic()
    for sharpness in (1.5, 0.5):
        model, pixels, left_out = make(about, sharpness)
        figures = examine(model, pixels)
        if max(figures["row_error"], figures["value_error_relative"]) <= TOLERANCE:
            break
    report = {"name": about.name, "family": about.family, "parameters": about.parameters}
    report |= {"size": list(pixels.shape[1:]), "blocks_left_out": left_out, "sharpness": sharpness}
    return report | figures | {"seconds": round(time.monotonic() - started, 1)}


def examine(model: nn.Module, pixels: Tensor) -> dict[str, Any]:
    """Any model in evaluation mode: figures of how well it was seen."""
    with torch.no_grad(), attention_that_runs(model) as expected:
        plain = model(pixels.unsqueeze(0))
    traced = observe(model, pixels)
    kernels = KernelOutputs()
    with kernels:
        again = observe(model, pixels)
    owners = {call.module for call in again.calls}
    missing = [name for name in expected if name not in owners]
    report = {
        "identical_traced": _identical(plain, traced.output),
        "identical_again": _identical(plain, again.output),
        "remembered": again.places is traced.places,
        "expected": len(expected),
        "found": len(expected) - len(missing),
        "missing": [f"{name} ({_kind(model, name)})" for name in missing],
        "beyond": sorted({_kind(model, name) for name in owners - set(expected)}),
        "unrecorded": again.unrecorded[:4],
    }
    return report | _places(again) | _figures(again, kernels.outputs)


def _kind(model: nn.Module, name: str) -> str:
    return type(model.get_submodule(name)).__name__


def _identical(first: Any, second: Any) -> bool:
    ours, theirs = tensors(first), tensors(second)
    return len(ours) == len(theirs) > 0 and all(map(torch.equal, ours, theirs))


def _places(seen: Observation) -> dict[str, Any]:
    kinds = Counter(place.kind for place in seen.places)
    reasons = Counter(
        f"{call.module_type}: {place.reason}"
        for call, place in zip(seen.calls, seen.places, strict=True)
        if place.reason
    )
    drawn = sum(place.keys is not None and place.queries is not None for place in seen.places)
    grids = [_grids(call, place) for call, place in zip(seen.calls, seen.places, strict=True)]
    return {
        "calls": len(seen.calls), "kinds": dict(kinds), "reasons": dict(reasons), "drawn": drawn,
        "grids": dict(Counter(grids)), "furthest": max(map(_offset, seen.places), default=0.0),
    }  # fmt: skip


def _grids(call: AttentionCall, place: CallPlace) -> str:
    """Grids of queries and keys as ``7x14+1 > 7x14+1``."""
    sides = (place.queries, place.keys)
    grids = [f"{s.grid.rows}x{s.grid.cols}+{s.grid.prefix}" if s else "-" for s in sides]
    windows = "" if len(place.windows) == 1 else f" in {len(place.windows)}"
    return f"{call.module_type} {place.kind} {grids[0]} > {grids[1]}{windows}"


def _offset(place: CallPlace) -> float:
    """How far a grid begins from the edge of the input, in its own cells."""
    frames = [(s.frame, s.grid) for s in (place.queries, place.keys) if s is not None]
    cells = [
        (abs(frame.left) / frame.width * grid.cols, abs(frame.top) / frame.height * grid.rows)
        for frame, grid in frames
    ]
    return round(max((max(pair) for pair in cells), default=0.0), 3)


def _figures(seen: Observation, outputs: list[Tensor]) -> dict[str, Any]:
    """Exactness of the numbers: rows sum to 1, and weights times values are the kernel's output."""
    kernels = iter(outputs)
    mixed = both = 0
    rows = absolute = relative = 0.0
    for call in seen.calls:
        layer = _as_it_came(call)
        sums, product = _multiplied(layer)
        rows = max(rows, sums)
        if not layer.is_exact:
            mixed += 1
            both += int(_has_both(layer))
        if call.operation.startswith("aten._scaled_dot_product"):
            returned = next(kernels).reshape(product.shape)
            error = float((returned - product).abs().max())
            absolute = max(absolute, error)
            relative = max(relative, error / max(float(returned.abs().max()), 1e-12))
    return {
        "mixed": mixed, "both_matrices": both, "row_error": rows, "value_error": absolute,
        "value_error_relative": relative, "fused": len(outputs), "fused_left": len(list(kernels)),
    }  # fmt: skip


def _has_both(layer: Attention) -> bool:
    """Whether a mixed layer kept the softmax and what was made of it."""
    if not isinstance(layer, DenseAttention):
        return False
    return layer.mixed is not None or layer.softmax is not None


def _as_it_came(call: AttentionCall) -> Attention:
    """A call as a layer without places: rows by their position in the tensors."""
    assert call.v is not None
    asking = call.q if call.q is not None else call.weights
    assert asking is not None
    whole = torch.arange(asking.shape[:-2].numel()).unsqueeze(0)
    return layer_of(call, CallPlace("unknown", whole, reason="not asked"))


def _multiplied(layer: Attention) -> tuple[float, Tensor]:
    """Largest distance of a row's sum from 1, and weights times values."""
    worst, parts = 0.0, []
    for _, rows in layer.tiles():
        sums = rows.sum(-1)
        worst = max(worst, float(((sums - 1).abs() * (sums != 0)).max()))
        parts.append(rows @ layer.v.float())  # type: ignore[attr-defined]  # both forms have it
    return worst, torch.cat(parts, 1)
