"""Which attention calls of a model are seen, of which kind, how exactly, and which are not.

Three things are checked on one picture: that watching changes no bit of the output; that every
module which should attend was seen to do so; and, call by call, that rows sum to 1 and that rows
times values are what the model went on with.
"""

from __future__ import annotations

import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vizattn.calls import EVERYTHING, AttentionCall
from vizattn.capture import layer_of
from vizattn.layers import DenseAttention, LayerAttention
from vizattn.models import VisionModel
from vizattn.observation import observe
from vizattn.places import CallPlace

# What the source of a class that takes a softmax over keys says somewhere.
_ATTENDS = re.compile(
    r"softmax|scaled_dot_product_attention|multi_head_attention_forward|"
    r"_transformer_encoder_layer_fwd"
)

# What has been found out about classes; a class does not change its source.
_ATTENDING: dict[type, bool] = {}

# Rows that sum to 1 and values that agree to this share of their largest are exact: it is what
# float32 keeps of a sum over some thousand tokens.
ROW_TOLERANCE = 1e-5
VALUE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class CallReport:
    """One attention call.

    Attributes:
        module: Name of the module that called.
        module_type: Its class.
        call: How many calls of this module came before, from 0.
        kind: What attends to what.
        heads: Heads of the call.
        windows: Windows that attend each by itself.
        queries: Query tokens of a window.
        keys: Key tokens of a window.
        grid: Rows and columns of the keys on the picture, ``None`` when they have no place there.
        reason: Why they have none.
        exact: Whether the softmax itself multiplied the values.
        row_error: Largest ``|sum of a row - 1|``.
        value_error: Largest ``|A v - output|`` over the largest ``|output|``; ``None`` where the
            output of the call alone cannot be seen.
    """

    module: str
    module_type: str
    call: int
    kind: str
    heads: int
    windows: int
    queries: int
    keys: int
    grid: tuple[int, int] | None
    reason: str
    exact: bool
    row_error: float
    value_error: float | None


@dataclass(frozen=True)
class Audit:
    """What ``vizattn check`` prints.

    Attributes:
        model: Name of the model.
        calls: Every call that was seen.
        missed: ``(module, reason)`` of attention that was not seen or could not be kept.
        identical: Whether the output is bit-identical with and without watching.
        notes: What else a reader has to know, such as random weights.
    """

    model: str
    calls: tuple[CallReport, ...]
    missed: tuple[tuple[str, str], ...]
    identical: bool
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether all was seen, nothing was changed, and the numbers agree."""
        errors = [call.row_error for call in self.calls if call.exact]
        values = [call.value_error or 0.0 for call in self.calls if call.exact]
        agree = (
            max(errors, default=0) <= ROW_TOLERANCE and max(values, default=0) <= VALUE_TOLERANCE
        )
        return bool(self.calls) and not self.missed and self.identical and agree

    @property
    def verdict(self) -> str:
        """One line: ``12 of 12 attention calls, exact, output bit-identical``."""
        seen, expected = len(self.calls), len(self.calls) + len(self.missed)
        mixed = sum(not call.exact for call in self.calls)
        exact = "exact" if not mixed else f"{seen - mixed} exact, {mixed} mixed after the softmax"
        output = "output bit-identical" if self.identical else "OUTPUT CHANGED"
        return f"{seen} of {expected} attention calls, {exact}, {output}"

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return asdict(self) | {"passed": self.passed, "verdict": self.verdict}


def audit(model: VisionModel, pixels: Tensor) -> Audit:
    """Look at one forward pass of a model and report on every attention call.

    Args:
        model: From ``load_model`` or ``wrap_model``.
        pixels: One preprocessed picture, ``[3, height, width]``.
    """
    first = next(model.module.parameters(), pixels)
    batch = pixels.unsqueeze(0).to(device=first.device, dtype=first.dtype)
    with torch.no_grad(), _called(model.module) as called:
        plain = model.module(batch)
    seen = observe(model.module, pixels, readout=model.readout, keep=EVERYTHING)
    again = observe(model.module, pixels, readout=model.readout, keep=EVERYTHING)
    identical = _same(plain, seen.output) and _same(plain, again.output)
    reports = _reports(seen.calls, seen.places)
    missed = list(seen.unrecorded)
    callers = {call.module for call in seen.calls} | {module for module, _ in seen.unrecorded}
    unseen = "its class takes a softmax, and no attention call was seen in it"
    missed += [(name, unseen) for name in called if name not in callers]
    return Audit(model.name, reports, tuple(missed), identical, model.notes)


def noise(side: int = 512) -> Image.Image:
    """A picture that no model has expectations of: every pixel drawn anew, always the same."""
    values = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return Image.fromarray(values)


def attends(module: nn.Module) -> bool:
    """Whether the source of a module's class takes a softmax, comments and strings aside."""
    kind = type(module)
    if kind not in _ATTENDING:
        _ATTENDING[kind] = kind is not nn.Softmax and bool(_ATTENDS.search(_code(kind)))
    return _ATTENDING[kind]


def _code(kind: type) -> str:
    """Source of a class without comments and strings; empty where it cannot be had."""
    skipped = (tokenize.COMMENT, tokenize.STRING)
    try:
        source = io.StringIO(inspect.cleandoc(inspect.getsource(kind)))
        tokens = list(tokenize.generate_tokens(source.readline))
    except (OSError, TypeError, tokenize.TokenError, IndentationError):
        return ""
    return " ".join(token.string for token in tokens if token.type not in skipped)


@contextmanager
def _called(module: nn.Module) -> Iterator[list[str]]:
    """Names of the modules that should attend and were called, filled while the model runs."""
    called: list[str] = []
    hooks = []
    for name, part in module.named_modules():
        if attends(part):
            hooks.append(part.register_forward_pre_hook(partial(_note, called, name)))
    try:
        yield called
    finally:
        for each in hooks:
            each.remove()


def _note(called: list[str], name: str, *_arguments: Any) -> None:
    if name not in called:
        called.append(name)


def _reports(calls: list[AttentionCall], places: list[CallPlace]) -> tuple[CallReport, ...]:
    counts: dict[str, int] = {}
    reports = []
    for call, place in zip(calls, places, strict=True):
        number = counts[call.module] = counts.get(call.module, -1) + 1
        layer = layer_of(call, place)
        grid = None if layer.keys is None else (layer.keys.grid.rows, layer.keys.grid.cols)
        row_error, value_error = _errors(layer, call, place)
        lead, queries, keys = layer.core_shape
        n_windows = len(place.windows)
        about = (call.module, call.module_type, number, place.kind, lead // n_windows, n_windows)
        checks = (layer.reason, layer.is_exact, row_error, value_error)
        reports.append(CallReport(*about, queries, keys, grid, *checks))
    return tuple(reports)


def _errors(
    layer: LayerAttention | DenseAttention, call: AttentionCall, place: CallPlace
) -> tuple[float, float | None]:
    """Largest row error, and largest relative difference of rows times values to the output."""
    output = call.taken
    if output is not None:
        order = place.windows.flatten()
        output = output.reshape(-1, *output.shape[-2:])[order].float()
    row_error, value_error = 0.0, 0.0
    for part, rows in layer.core_tiles():
        sums = rows.sum(-1)
        filled = sums[sums > 0]  # a query with every key masked is blank
        if filled.numel():
            row_error = max(row_error, float((filled - 1).abs().max()))
        if output is not None:
            mixed = getattr(layer, "mixed", None)
            used = rows if mixed is None else mixed[:, part].float()
            made = used @ layer.values.float()
            value_error = max(value_error, float((made - output[:, part]).abs().max()))
    if output is None:
        return row_error, None
    return row_error, value_error / max(float(output.abs().max()), 1e-12)


def _same(first: Any, second: Any) -> bool:
    """Whether two outputs are equal bit by bit, whatever they are made of."""
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[k], second[k]) for k in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second)
