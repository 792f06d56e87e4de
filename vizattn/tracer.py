"""Carry positions through a forward pass: one rule for each kind of operation.

* What moves numbers (view, permute, roll, slice, cat, index, …) moves their positions alike.
* What mixes the numbers of one token (linear, norm, activation) keeps its position.
* What mixes neighbours (convolution, pooling, mean, merging) stands in their middle.
* What attention returns stands where its query stood.

So windows, shifts, strides, unrolled orders and tokens in front or behind are found in any model,
without knowing its family. Nothing of the pass is changed; an operation without a rule loses the
position of what it makes, and a token without position is never drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from vizattn.positions import Shadow, nowhere, of_picture


class PositionTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Knows, while a model runs on ``pixels`` under it, where every tensor's numbers come from.

    Attributes:
        depends_on_picture: Whether tokens were picked by an index; another picture, or another
            draw, may then have its tokens elsewhere.
    """

    def __init__(self, pixels: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shadows = WeakTensorKeyDictionary()  # type: ignore[no-untyped-call]
        self._shadows[pixels] = of_picture(pixels)
        self.depends_on_picture = False

    def shadow(self, tensor: Tensor) -> Shadow | None:
        """Positions of a tensor's numbers, ``None`` when nothing in it comes from the picture."""
        found: Shadow | None = self._shadows.get(tensor)
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation as it is; then let the positions follow."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        if packet is None or not any(t in self._shadows for t in _tensors([*args, *kwargs.values()])):
            return result
        rule = _RULES.get(packet, _keep)
        self.depends_on_picture |= packet in _PICKS
        try:
            cast = rule(_Step(self, func, args, kwargs, result))
        except (RuntimeError, IndexError, ValueError, TypeError):
            return result  # positions are lost here; the model must not notice
        self._store(result, cast)
        return result

    def _store(self, result: Any, cast: Any) -> None:
        if isinstance(result, Tensor):
            if isinstance(cast, Shadow) and cast.shape == result.shape:
                self._shadows[result] = cast
        elif isinstance(result, tuple | list) and isinstance(cast, tuple | list):
            for tensor, shadow in zip(result, cast, strict=False):
                self._store(tensor, shadow)


class _Step:
    """One operation: what went in, what came out, and the positions of what went in."""

    def __init__(
        self, tracer: PositionTracer, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any
    ) -> None:
        self.func, self.args, self.kwargs, self.result = func, args, kwargs, result
        self._tracer = tracer

    def shadow(self, tensor: Tensor) -> Shadow:
        return self._tracer.shadow(tensor) or nowhere(tensor)

    def known(self, tensor: Any) -> Shadow | None:
        return self._tracer.shadow(tensor) if isinstance(tensor, Tensor) else None

    def argument(self, name: str) -> Any:
        """An argument by its name in the schema, or its default."""
        for position, declared in enumerate(self.func._schema.arguments):
            if declared.name == name:
                if position < len(self.args):
                    return self.args[position]
                return self.kwargs.get(name, declared.default_value)
        return None


Cast = Shadow | list[Any] | None


def _keep(step: _Step) -> Cast:
    """Activations, norms, sums, products of equals: a number stays where it was."""
    result = step.result[0] if isinstance(step.result, tuple | list) else step.result
    shape = result.shape
    shadows = [s for t in _tensors(step.args) if (s := step.known(t)) is not None]
    # an operand of the result's own shape knows better than one that was spread over it
    shadows.sort(key=lambda shadow: shadow.shape != shape)
    combined = shadows[0].expand(shape)
    for other in shadows[1:]:
        combined = combined.or_else(other.expand(shape))
    return [combined] if isinstance(step.result, tuple | list) else combined


def _move(step: _Step) -> Cast:
    """Views, slices, rolls, concatenations: positions move as the numbers do."""
    parts = []
    for part in ("y", "x", "seen"):
        def cast(value: Any, part: str = part) -> Any:
            if isinstance(value, Tensor) and value.is_floating_point():
                return getattr(step.shadow(value), part)
            if isinstance(value, list | tuple):
                return type(value)(cast(each) for each in value)
            return value

        kwargs = {k: v for k, v in step.kwargs.items() if k not in ("memory_format", "dtype")}
        parts.append(step.func(*cast(list(step.args)), **kwargs))
    if isinstance(parts[0], Tensor):
        return Shadow(*parts)
    return [Shadow(y, x, seen) for y, x, seen in zip(*parts, strict=True)]


def _view(step: _Step) -> Cast:
    """Another shape of the same numbers; an axis that only repeats is not written out for it."""
    shadow, shape = step.shadow(step.args[0]), step.result.shape
    repeats = bool(shape) and shadow.y.dim() > 0 and shadow.shape[-1] == shape[-1] > 1
    if repeats and all(part.stride(-1) == 0 for part in (shadow.y, shadow.x, shadow.seen)):
        thin = _with(shape, len(shape) - 1, 1)
        return shadow.map(lambda part: part[..., :1].reshape(thin)).expand(shape)
    return shadow.map(lambda part: part.reshape(shape))


def _pad(step: _Step) -> Cast:
    """Filling continues the picture's positions and is marked as not seen."""
    shadow = step.shadow(step.args[0])
    widths = list(step.args[1])
    y, x, seen = shadow.y, shadow.x, shadow.seen
    for number in range(len(widths) // 2):
        axis = -1 - number
        before, after = widths[2 * number], widths[2 * number + 1]
        y, x = _continue(y, axis, before, after), _continue(x, axis, before, after)
        zero = seen.narrow(axis, 0, 1) * 0
        ends = [zero.expand(_with(seen.shape, axis, max(0, n))) for n in (before, after)]
        inside = seen.narrow(axis, max(0, -before), seen.shape[axis] + min(0, before) + min(0, after))
        seen = torch.cat([ends[0], inside, ends[1]], axis)
    return Shadow(y, x, seen)


def _continue(values: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Go on in equal steps on both sides along an axis; negative widths cut."""
    cut = values.narrow(axis, max(0, -before), values.shape[axis] + min(0, before) + min(0, after))
    first, last = cut.narrow(axis, 0, 1), cut.narrow(axis, cut.shape[axis] - 1, 1)
    long = cut.shape[axis] > 1
    step = cut.narrow(axis, 1, 1) - first if long else first * 0

    def ladder(count: int) -> Tensor:
        shape = [1] * values.dim()
        shape[axis] = max(0, count)
        return torch.arange(1, max(0, count) + 1, device=values.device).view(shape)

    return torch.cat([first - step * ladder(before).flip(axis), cut, last + step * ladder(after)], axis)


def _product(step: _Step) -> Cast:
    """Rows times columns: an entry stands where its row stands.

    That is a linear layer (rows are tokens, weights are nowhere), queries times keys (rows are
    queries) and weights times values (rows are queries again). Where rows are no tokens, as when
    keys and values stand transposed, an entry stands where its column stands.
    """
    left, right = [t for t in _tensors(step.args) if t.dim() > 1][-2:]
    shape = step.result.shape
    rows, columns = step.known(left), step.known(right)
    across = columns.centre(-2).expand(shape) if columns is not None else None
    if rows is None:
        return across
    along = rows.centre(-1)
    if across is not None and along.shape[-2] > 1 and not along.varies(-2) and across.varies(-1):
        return across
    return along.expand(shape)


def _attend(step: _Step) -> Cast:
    """A fused kernel returns a mixture of values where each query stood."""
    query = step.shadow(step.argument("query"))
    result = step.result[0] if isinstance(step.result, tuple | list) else step.result
    cast = query.centre(-1).expand(result.shape)
    return [cast] if isinstance(step.result, tuple | list) else cast


def _convolve(step: _Step) -> Cast:
    """A convolution looks at a window of neighbours and stands in its middle."""
    given, weight = step.args[0], step.args[1]
    if step.argument("transposed"):
        return None
    spatial = weight.dim() - 2
    channels_at = given.dim() - spatial - 1
    shadow = step.shadow(given).centre(channels_at)
    return _slide(
        shadow, step.result.shape, spatial, list(weight.shape[2:]),
        step.argument("stride"), step.argument("padding"), step.argument("dilation"),
    )  # fmt: skip


def _pool(step: _Step) -> Cast:
    """A pooling window stands in its middle; channels stay apart."""
    result = step.result[0] if isinstance(step.result, tuple | list) else step.result
    kernel = step.argument("kernel_size")
    cast = _slide(
        step.shadow(step.args[0]), result.shape, len(kernel), kernel,
        step.argument("stride") or kernel, step.argument("padding"), step.argument("dilation") or 1,
    )  # fmt: skip
    return [cast] if isinstance(step.result, tuple | list) else cast


def _slide(
    shadow: Shadow, shape: torch.Size, spatial: int, kernel: Any, stride: Any, padding: Any,
    dilation: Any,
) -> Shadow:  # fmt: skip
    """Positions of the middle of a sliding window, axis by axis."""
    for number in range(spatial):
        axis = len(shadow.shape) - spatial + number
        size, step, pad, gap = (_nth(v, number) for v in (kernel, stride, padding, dilation))
        start = gap * (size - 1) / 2 - pad
        if (size, step, pad) != (1, 1, 0):
            middle = start + step * torch.arange(shape[axis], dtype=torch.float64)
            shadow = shadow.map(lambda part, axis=axis, middle=middle: _read(part, axis, middle))
    return shadow.expand(shape)


def _read(values: Tensor, axis: int, at: Tensor) -> Tensor:
    """Values between whole indices along an axis, continued beyond both ends."""
    count = values.shape[axis]
    if count == 1:
        return values.expand(_with(values.shape, axis, len(at)))
    before = at.floor().long().clamp(0, count - 2)
    shape = [1] * values.dim()
    shape[axis] = -1
    share = (at - before).to(values.dtype).view(shape)
    low, high = values.index_select(axis, before), values.index_select(axis, before + 1)
    # a whole index reads one neighbour alone, so that NaN next to it does not leak in
    return torch.where(share == 0, low, torch.where(share == 1, high, low + (high - low) * share))


def _reduce(step: _Step) -> Cast:
    """Mean, sum or maximum over some axes stands in the middle of what went in."""
    result = step.result[0] if isinstance(step.result, tuple | list) else step.result
    axes = step.argument("dim")
    shadow = step.shadow(step.args[0])
    if axes is None or axes == []:
        axes = list(range(len(shadow.shape)))
    axes = [axes] if isinstance(axes, int) else axes
    middle = shadow.centre(*(axis % len(shadow.shape) for axis in axes))
    cast = middle.map(lambda part: part.reshape(result.shape))
    return [cast] if isinstance(step.result, tuple | list) else cast


def _resize(step: _Step) -> Cast:
    """Resampled feature maps are read at the middle of each new cell."""
    shadow, shape = step.shadow(step.args[0]), step.result.shape
    for axis in (-2, -1):
        ratio = shadow.shape[axis] / shape[axis]
        middle = (torch.arange(shape[axis], dtype=torch.float64) + 0.5) * ratio - 0.5
        axis = len(shape) + axis
        shadow = shadow.map(lambda part, axis=axis, middle=middle: _read(part, axis, middle))
    return shadow


def _nth(values: Any, number: int) -> int:
    if isinstance(values, int):
        return values
    return int(values[number] if number < len(values) else values[-1])


def _with(shape: torch.Size, axis: int, length: int) -> list[int]:
    sizes = list(shape)
    sizes[axis] = length
    return sizes


def _tensors(args: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found


def _rules() -> dict[Any, Callable[[_Step], Cast]]:
    """Operation -> rule; whatever is not named keeps positions when shapes allow it."""
    named = {
        _view: "view _unsafe_view reshape",
        _move: "permute transpose t expand slice select unbind split split_with_sizes cat stack "
        "roll flip index index_select gather unsqueeze squeeze repeat unfold im2col narrow "
        "pixel_shuffle pixel_unshuffle channel_shuffle",
        _pad: "constant_pad_nd",
        _product: "mm bmm addmm baddbmm",
        _attend: "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_attention_math_for_mps scaled_dot_product_attention",
        _convolve: "convolution",
        _pool: "avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices",
        _reduce: "mean sum amax amin max min linalg_vector_norm var std logsumexp",
        _resize: "upsample_bicubic2d upsample_bilinear2d upsample_nearest2d "
        "_upsample_bicubic2d_aa _upsample_bilinear2d_aa _upsample_nearest_exact2d "
        "_adaptive_avg_pool2d",
    }
    return {
        getattr(torch.ops.aten, name): rule
        for rule, names in named.items()
        for name in names.split()
        if hasattr(torch.ops.aten, name)
    }


_RULES = _rules()

# Operations that move tokens to where an index says, and an index can be computed or drawn.
_PICKS = frozenset({torch.ops.aten.index, torch.ops.aten.gather, torch.ops.aten.index_select})
