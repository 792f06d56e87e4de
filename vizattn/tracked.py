"""A forward pass that autograd can be asked about afterwards.

The model's parameters stay as they are: a twin of the module, which shares their memory, runs in
its place with parameters that ask for no gradient. So the graph holds what attention needs and
nothing else, a trainable bias does not send the kernels another way, and nothing is ever added to
anybody's ``.grad``. The picture is a copy, and the only leaf of the graph.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from vizattn.blocks import block_of
from vizattn.calls import EVERYTHING
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
from vizattn.operands import Operands
from vizattn.recorder import Recorder


@dataclass(frozen=True)
class Tracked:
    """A forward pass with its graph.

    Attributes:
        seen: What was seen; calls hold their outputs, and everything holds the graph.
        leaf: The pixels that went in, ``[1, 3, height, width]``.
        twin: The module that ran.
        blocks: What each block put out, by the name of the block, where that was asked for.
        entered: What went into each block, likewise.
        made: What the parts of the model put out, where that was asked for.
        operands: What sums and products were made of, likewise.
    """

    seen: Observation
    leaf: Tensor
    twin: nn.Module
    blocks: dict[str, Any]
    entered: dict[str, Any]
    made: list[Tensor]
    operands: Operands | None


def track(
    module: nn.Module,
    pixels: Tensor,
    inputs: dict[str, Any] | None = None,
    readout: str = "",
    *,
    with_blocks: bool = False,
    with_parts: bool = False,
    with_operands: bool = False,
) -> Tracked:
    """Run a module once on the pixels of one picture, ``[3, height, width]``, with gradients.

    Whether the caller has switched gradients off does not matter. The first time, a plain pass
    finds out where the tokens lie.

    Args:
        module: The module.
        pixels: What it is shown.
        inputs: Further keyword arguments of its forward pass.
        readout: How it reads its tokens out, where that is known.
        with_blocks: Whether to keep what goes into each block and comes out of it.
        with_parts: Whether to keep what all parts of the module put out.
        with_operands: Whether to note what sums and products are made of.

    Raises:
        CaptureError: The module cannot be differentiated, or attends in another way then.
    """
    inputs = inputs or {}
    module = original(module)
    refuse_training(module)
    _refuse_inference(module)
    twin = _twin(module)
    known = known_of(module, pixels, inputs, readout) or _look(module, pixels, inputs, readout)
    kept = {
        "with_blocks": with_blocks,
        "with_parts": with_parts,
        "with_operands": with_operands,
    }
    tracked = _run(twin, pixels, inputs, known, **kept)
    if signature_of(tracked.seen.calls) != known.signature:  # this time it went another way
        known = _look(module, pixels, inputs, readout)
        tracked = _run(twin, pixels, inputs, known, **kept)
    if signature_of(tracked.seen.calls) != known.signature:
        raise CaptureError(
            f"{type(module).__name__} made {len(tracked.seen.calls)} attention calls with "
            f"gradients and {len(known.signature)} without, or not the same ones. Is activation "
            f"checkpointing on? Methods that need no gradient, such as rollout, work."
        )
    return tracked


def _run(
    twin: nn.Module,
    pixels: Tensor,
    inputs: dict[str, Any],
    known: Known,
    *,
    with_blocks: bool,
    with_parts: bool,
    with_operands: bool,
) -> Tracked:
    """One pass with gradients; whether it made the calls that are known is still to be asked."""
    with torch.inference_mode(False), torch.enable_grad():
        first = next(twin.parameters(), pixels)
        batch = pixels.unsqueeze(0).to(device=first.device, dtype=first.dtype)
        leaf = batch.detach().clone().requires_grad_()
        recorder = Recorder(twin, keep=EVERYTHING)
        passed = _Passed()
        names = _blocks(twin, known) if with_blocks else []
        watched = _watching(twin, names, passed, with_parts=with_parts)
        operands = Operands() if with_operands else None
        gate = Gate(recorder) if known.by_gate else recorder
        with watched, operands or nullcontext(), gate:
            output = run_module(twin, leaf, inputs)
    seen = Observation(recorder.calls, known.places, recorder.unrecorded, output)
    return Tracked(seen, leaf, twin, passed.blocks, passed.entered, passed.made, operands)


def _blocks(module: nn.Module, known: Known) -> list[str]:
    """The blocks around all attention calls; a pooling head's belongs to none."""
    names = []
    for caller, *_ in known.signature:
        with suppress(CaptureError):
            names.append(block_of(module, caller))
    return names


@dataclass(frozen=True)
class _Passed:
    """What parts of a module took in and put out; the same as ``Tracked`` names it."""

    blocks: dict[str, Any] = field(default_factory=dict)
    entered: dict[str, Any] = field(default_factory=dict)
    made: list[Tensor] = field(default_factory=list)

    def block(self, name: str, _module: nn.Module, inputs: Any, output: Any) -> None:
        """Note what passed a block; a hook."""
        self.blocks[name] = output
        self.entered[name] = inputs[0] if inputs else None

    def part(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """Note what any part put out; a hook."""
        if isinstance(output, Tensor):
            self.made.append(output)


@contextmanager
def _watching(
    module: nn.Module, names: Iterable[str], passed: _Passed, *, with_parts: bool
) -> Iterator[None]:
    """Note what passes some parts of a module; the hooks are gone afterwards, whatever happens."""
    hooks = [
        module.get_submodule(name).register_forward_hook(partial(passed.block, name))
        for name in dict.fromkeys(names)
    ]
    if with_parts:
        hooks += [part.register_forward_hook(passed.part) for part in module.modules()]
    try:
        yield
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
