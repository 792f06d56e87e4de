"""One forward pass, watched: the attention calls it made and where each of them lies.

A recorder notes the calls (``recorder``). The first time that a model meets an input of some size,
a tracer runs along and finds out where every token lies (``tracer``, ``places``); after that it is
known.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vizattn.calls import VALUES, AttentionCall, Keep, for_all_heads
from vizattn.errors import CaptureError
from vizattn.gate import Gate, is_enough
from vizattn.layouts import readout_of, roles_of
from vizattn.places import CallPlace, Inputs, Positions, place_call
from vizattn.progress import Tell, shares_at_middles
from vizattn.recorder import Recorder
from vizattn.tracer import PositionTracer


@dataclass(frozen=True)
class Observation:
    """Everything that was seen in one forward pass.

    Attributes:
        calls: Attention calls as the recorder saw them.
        places: Where each of them lies.
        unrecorded: ``(module, reason)`` of attention that could not be kept.
        output: What the model returned.
    """

    calls: list[AttentionCall]
    places: list[CallPlace]
    unrecorded: list[tuple[str, str]]
    output: Any

    @property
    def on_picture(self) -> list[tuple[AttentionCall, CallPlace]]:
        """The calls among parts of the picture, each with its place."""
        both = zip(self.calls, self.places, strict=True)
        return [(call, place) for call, place in both if place.kind != "outside"]


@dataclass(frozen=True)
class Known:
    """What a first pass found out, which is the same for every picture.

    Attributes:
        signature: What the calls of a later pass must have in common with it.
        places: Where each call lies.
        by_gate: Whether it is enough to look at fused attention, and nothing else.
    """

    signature: list[Any]
    places: list[CallPlace]
    by_gate: bool


# By model and by the shape of its input.
_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, Known]] = WeakKeyDictionary()


def observe(
    module: nn.Module,
    pixels: Tensor,
    inputs: dict[str, Any] | None = None,
    readout: str = "",
    *,
    keep: Keep = VALUES,
    progress: Tell | None = None,
) -> Observation:
    """Run a module once on the pixels of one picture, ``[3, height, width]``, and look.

    ``progress`` is told at each attention call which share of the pass is done.

    Raises:
        CaptureError: The module is in training mode, or attends by code that PyTorch compiles.
    """
    module = original(module)
    refuse_training(module)
    batch = _as_taken(module, pixels.unsqueeze(0))
    key = _key(pixels, inputs or {}, readout)
    known = _KNOWN.setdefault(module, {}).get(key)
    if known is not None:
        seen = _watch(module, batch, inputs or {}, known, keep, progress)
        if known.signature == signature_of(seen.calls):
            return seen
    return _trace(module, batch, inputs or {}, readout, key, keep, progress)


def observe_together(
    module: nn.Module, pixels: Tensor, readout: str = "", *, keep: Keep = VALUES
) -> Observation | None:
    """Run a module once on several pictures, ``[batch, 3, height, width]``, and look.

    The calls are those of all pictures at once, their places those of one picture. ``None`` where
    they are not known from a look at a single one, or can change from picture to picture.
    """
    module = original(module)
    refuse_training(module)
    known = _KNOWN.setdefault(module, {}).get(_key(pixels[0], {}, readout))
    if known is None:
        return None
    return _watch(module, _as_taken(module, pixels), {}, known, keep)


def known_of(
    module: nn.Module, pixels: Tensor, inputs: dict[str, Any] | None = None, readout: str = ""
) -> Known | None:
    """What is known of passes like this one, if there was one before."""
    return _KNOWN.get(original(module), {}).get(_key(pixels, inputs or {}, readout))


def _watch(
    module: nn.Module,
    batch: Tensor,
    inputs: dict[str, Any],
    known: Known,
    keep: Keep = VALUES,
    progress: Tell | None = None,
) -> Observation:
    """One pass whose places are known already."""
    told = _told(progress, module, known)
    recorder = Recorder(module, keep=keep, progress=told)
    with torch.no_grad(), Gate(recorder) if known.by_gate else _seeing_all(recorder):
        output = run_module(module, batch, inputs)
    return Observation(recorder.calls, known.places, recorder.unrecorded, output)


def _told(
    progress: Tell | None, module: nn.Module, known: Known | None
) -> Callable[[AttentionCall], None] | None:
    """From an attention call to the share of the pass that is done by then.

    A known pass has known calls, and a layer takes about as long as it has weights. In the first
    one, how many of the modules with a matrix stand before the one that attends has to do: they are
    mostly called in the order in which they were made, and blocks have equally many.
    """
    if progress is None:
        return None
    if known is not None:
        costs = [float(shape[:-1].numel()) * shape[-2] for *_, shape in known.signature]
        shares = iter(shares_at_middles(costs))
        return lambda _call: progress(next(shares, 1.0))
    names = [name for name, parameter in module.named_parameters() if parameter.dim() > 1]

    def tell(call: AttentionCall) -> None:
        own = [at for at, name in enumerate(names) if name.startswith(f"{call.module}.")]
        if own:
            progress((own[0] + len(own) / 2) / len(names))

    return tell


def _key(pixels: Tensor, inputs: dict[str, Any], readout: str) -> Any:
    return (1, *pixels.shape), tuple(sorted(inputs)), readout


def _as_taken(module: nn.Module, batch: Tensor) -> Tensor:
    """Pixels on the device and in the precision of the module."""
    first = next(module.parameters(), batch)
    return batch.to(device=first.device, dtype=first.dtype)


def _trace(
    module: nn.Module,
    batch: Tensor,
    inputs: dict[str, Any],
    readout: str,
    key: Any,
    keep: Keep,
    progress: Tell | None,
) -> Observation:
    """The same with positions carried along; they are remembered when no picture can move them."""
    tracer = PositionTracer(batch)
    positions: list[tuple[Positions | None, Positions | None]] = []
    recorder = Recorder(
        module,
        on_call=lambda call: positions.append(_positions(tracer, call)),
        keep=keep,
        progress=_told(progress, module, None),
    )
    with torch.no_grad(), tracer, recorder:
        output = run_module(module, batch, inputs)
    height, width = batch.shape[-2:]
    roles = partial(roles_of, module)
    about = Inputs(height, width, roles, readout or readout_of(module))
    places = [place_call(query, keys, about) for query, keys in positions]
    places = [_as_local(place, call) for place, call in zip(places, recorder.calls, strict=True)]
    if not tracer.depends_on_picture:
        met = key in _KNOWN[module]  # a gate was tried and did not see the same
        by_gate = not met and is_enough(module, recorder.calls)
        _KNOWN[module][key] = Known(signature_of(recorder.calls), places, by_gate)
    return Observation(recorder.calls, places, recorder.unrecorded, output)


def signature_of(calls: list[AttentionCall]) -> list[Any]:
    """What two passes have in common when their tokens lie in the same places.

    Not the operation: a softmax has another name where autograd is out of the way.
    """
    return [(call.module, call.q is None, _query_shape(call)) for call in calls]


def _query_shape(call: AttentionCall) -> torch.Size:
    asking = call.q if call.q is not None else call.weights
    assert asking is not None
    return asking.shape


def _positions(
    tracer: PositionTracer, call: AttentionCall
) -> tuple[Positions | None, Positions | None]:
    """Positions of the queries and keys of a call, while the pass is still at it."""
    assert call.v is not None
    keys = _token_positions(tracer, for_all_heads(call.v if call.k is None else call.k, call))
    if keys is None:
        return None, None
    asking = call.weights if call.q is None else call.q
    assert asking is not None
    shadow = tracer.shadow(asking)
    # weights whose rows have no position: what asks was learnt
    is_learnt = shadow is None or (call.q is None and shadow.varies(-1))
    if is_learnt:
        nan = torch.full((len(keys.y), asking.shape[-2]), torch.nan, device=asking.device)
        return Positions(nan, nan, torch.ones_like(nan), is_probe=True), keys
    return _token_positions(tracer, asking), keys


def _token_positions(tracer: PositionTracer, tensor: Tensor) -> Positions | None:
    shadow = tracer.shadow(tensor)
    if shadow is None:
        return None
    middle = shadow.centre(-1)
    y, x, seen = (
        part[..., 0].reshape(-1, part.shape[-2]).clone()
        for part in (middle.y, middle.x, middle.seen)
    )
    return Positions(y, x, seen, is_scattered=shadow.varies(-1))


def _as_local(place: CallPlace, call: AttentionCall) -> CallPlace:
    """Weights that were not made of queries and keys have their own kind and no map of tokens."""
    if call.from_scores or place.kind in ("outside", "channel"):
        return place
    reason = "its weights are not made of queries and keys"
    return replace(place, kind="local", queries=None, keys=None, reason=reason)


def run_module(module: nn.Module, batch: Tensor, inputs: dict[str, Any]) -> Any:
    """The forward pass; what cannot be watched at all is refused in words."""
    try:
        return module(batch, **inputs)
    except (NotImplementedError, RuntimeError) as error:
        if "flex_attention" not in str(error) and "flex_attention" not in _files(error):
            raise
        raise CaptureError(
            f"{type(module).__name__} attends with flex_attention, which PyTorch compiles as a "
            f"whole, so nobody can look into it. Has the model a setting for another attention, "
            f'such as attn_implementation="sdpa" or "eager"?'
        ) from error


def _files(error: BaseException) -> str:
    """The files that an error came through."""
    return " ".join(frame.filename for frame in traceback.extract_tb(error.__traceback__))


def original(module: nn.Module) -> nn.Module:
    """The module inside a wrapper that splits batches over devices or holds compiled code."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and isinstance(module, nn.DataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        module = inner


@contextmanager
def _seeing_all(recorder: Recorder) -> Iterator[None]:
    """A recorder at work without autograd's layer, which under no_grad has nothing to do.

    A ``linear`` then comes by whole and not as transpose, views and product: 261 operations
    instead of 420 for a ViT-S, half the recorder's cost. ``inference_mode`` does the same, but a
    model that keeps something for its next forward pass would keep a tensor that cannot be
    trained with.
    """
    with getattr(torch._C, "_AutoDispatchBelowAutograd", nullcontext)(), recorder:
        yield


def refuse_training(module: nn.Module) -> None:
    """Say so when a module is in training mode."""
    if module.training:
        raise CaptureError(
            f"{type(module).__name__} is in training mode, where dropout changes attention at "
            f"random. Call .eval() on it first; capture does not change your model."
        )
