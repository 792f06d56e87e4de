"""A forward pass that autograd can be asked about afterwards.

The model's parameters stay as they are: a twin of the module, which shares their memory, runs in
its place with parameters that ask for no gradient. So the graph holds what attention needs and
nothing else, a trainable bias does not send the kernels another way, and nothing is ever added to
anybody's ``.grad``. The picture is a copy, and the only leaf of the graph.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vizattn.blocks import block_of
from vizattn.errors import CaptureError
from vizattn.gate import Gate
from vizattn.observation import (
    Known,
    Observation,
    known_of,
    observe,
    original,
    refuse_training,
    run_module,
    signature_of,
)
from vizattn.recorder import Recorder


@dataclass(frozen=True)
class Tracked:
    """A forward pass with its graph.

    Attributes:
        seen: What was seen; calls hold their outputs, and everything holds the graph.
        leaf: The pixels that went in, ``[1, 3, height, width]``.
        twin: The module that ran.
        blocks: What each block put out, by the name of the block, where that was asked for.
    """

    seen: Observation
    leaf: Tensor
    twin: nn.Module
    blocks: dict[str, Any]


def track(
    module: nn.Module,
    pixels: Tensor,
    inputs: dict[str, Any] | None = None,
    readout: str = "",
    *,
    with_blocks: bool = False,
) -> Tracked:
    """Run a module once on the pixels of one picture, ``[3, height, width]``, with gradients.

    Whether the caller has switched gradients off does not matter. The first time, a plain pass
    finds out where the tokens lie.

    Raises:
        CaptureError: The module cannot be differentiated, or attends in another way then.
    """
    inputs = inputs or {}
    module = original(module)
    refuse_training(module)
    _refuse_inference(module)
    twin = _twin(module)
    known = known_of(module, pixels, inputs, readout) or _look(module, pixels, inputs, readout)
    tracked = _run(twin, pixels, inputs, known, with_blocks=with_blocks)
    if signature_of(tracked.seen.calls) != known.signature:  # this time it went another way
        known = _look(module, pixels, inputs, readout)
        tracked = _run(twin, pixels, inputs, known, with_blocks=with_blocks)
    if signature_of(tracked.seen.calls) != known.signature:
        raise CaptureError(
            f"{type(module).__name__} made {len(tracked.seen.calls)} attention calls with "
            f"gradients and {len(known.signature)} without, or not the same ones. Is activation "
            f"checkpointing on? Methods that need no gradient, such as rollout, work."
        )
    return tracked


def _run(
    twin: nn.Module, pixels: Tensor, inputs: dict[str, Any], known: Known, *, with_blocks: bool
) -> Tracked:
    """One pass with gradients; whether it made the calls that are known is still to be asked."""
    with torch.inference_mode(False), torch.enable_grad():
        first = next(twin.parameters(), pixels)
        batch = pixels.unsqueeze(0).to(device=first.device, dtype=first.dtype)
        leaf = batch.detach().clone().requires_grad_()
        recorder = Recorder(twin, keep_outputs=True)
        names = _blocks(twin, known) if with_blocks else []
        with _outputs_of(twin, names) as blocks, Gate(recorder) if known.by_gate else recorder:
            output = run_module(twin, leaf, inputs)
    seen = Observation(recorder.calls, known.places, recorder.unrecorded, output)
    return Tracked(seen, leaf, twin, blocks)


def _blocks(module: nn.Module, known: Known) -> list[str]:
    """The blocks around all attention calls; a pooling head's belongs to none."""
    names = []
    for caller, *_ in known.signature:
        with suppress(CaptureError):
            names.append(block_of(module, caller))
    return names


@contextmanager
def _outputs_of(module: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """What some parts of a module return; the hooks are gone afterwards, whatever happens."""
    found: dict[str, Any] = {}

    def keep(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        found[name] = output

    hooks = [
        module.get_submodule(name).register_forward_hook(partial(keep, name))
        for name in dict.fromkeys(names)
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _look(module: nn.Module, pixels: Tensor, inputs: dict[str, Any], readout: str) -> Known:
    """What a plain pass of this picture shows."""
    seen = observe(module, pixels, inputs, readout)
    return Known(signature_of(seen.calls), seen.places, by_gate=False)


def _twin(module: nn.Module) -> nn.Module:
    """The module with the same numbers in memory, and parameters that ask for no gradient."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    shared: dict[int, Any] = {id(buffer): buffer for buffer in module.buffers()}
    for parameter in module.parameters():
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    try:
        return copy.deepcopy(module, shared)
    except Exception:  # something in it cannot be copied: it serves itself, flags untouched
        return module


def _refuse_inference(module: nn.Module) -> None:
    if any(parameter.is_inference() for parameter in module.parameters()):
        raise CaptureError(
            f"{type(module).__name__} was made in torch.inference_mode, so PyTorch lets nobody ask "
            f"for gradients through its parameters. Make it outside of that, or use methods that "
            f"need no gradient, such as rollout."
        )
