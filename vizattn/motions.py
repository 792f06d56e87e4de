"""How positions follow an operation: one rule for each kind.

* What moves numbers (view, permute, roll, slice, cat, index, …) moves their positions alike.
* What mixes the numbers of one token (linear, norm, activation) keeps its position.
* What mixes neighbours (convolution, pooling, mean, merging) stands in their middle.
* What attention returns stands where its query stood.
* A sum of several stands where the oldest of them stands: a residual stream stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from vizattn.positions import Shadow, nowhere
from vizattn.sliding import read, slide, spread, with_length


class Step:
    """One operation: what went in, what came out, and the positions of what went in."""

    def __init__(
        self,
        known: Callable[[Tensor], Shadow | None],
        age: Callable[[Tensor], int],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        self.func, self.args, self.kwargs, self.result = func, args, kwargs, result
        self._known = known
        self.age = age

    def known(self, tensor: Tensor) -> Shadow | None:
        """Positions of a tensor, ``None`` when nothing in it comes from the picture."""
        return self._known(tensor)

    def shadow(self, tensor: Tensor) -> Shadow:
        """The same; what comes from elsewhere stands nowhere."""
        return self._known(tensor) or nowhere(tensor)

    def argument(self, name: str) -> Any:
        """An argument by its name in the schema, or its default."""
        for position, declared in enumerate(self.func._schema.arguments):
            if declared.name == name:
                if position < len(self.args):
                    return self.args[position]
                return self.kwargs.get(name, declared.default_value)
        return None

    @property
    def first(self) -> Tensor:
        """What came out, or the first part of it."""
        made: Tensor = self.result[0] if isinstance(self.result, tuple | list) else self.result
        return made

    def all(self, cast: Shadow) -> Shadow | list[Any]:
        """The shadow of the first part, in the form of what came out."""
        return [cast] if isinstance(self.result, tuple | list) else cast


Cast = Shadow | list[Any] | None


def keep(step: Step) -> Cast:
    """Activations, norms, sums, products of equals: a number stays where it was."""
    shape = step.first.shape
    given = {id(t): t for t in tensors_in(step.args) if step.known(t) is not None}
    # an operand of the result's own shape knows better than one that was spread over it
    order = sorted(given.values(), key=lambda t: (t.shape != shape, step.age(t)))
    shadows = [step.shadow(tensor) for tensor in order]
    shadows = [shadow for shadow in shadows if not shadow.is_lost] or shadows
    combined = shadows[0].expand(shape)
    for other in shadows[1:]:
        combined = combined.or_else(other.expand(shape))
    return step.all(combined)


def _move(step: Step) -> Cast:
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


def _fresh(step: Step) -> Cast:
    """Only shape and type are taken over, no number."""
    return nowhere(step.result)


def _copy(step: Step) -> Cast:
    """What is written over takes the position of what is written."""
    return step.shadow(step.args[1]).expand(step.result.shape)


def _view(step: Step) -> Cast:
    """Another shape of the same numbers; an axis that only repeats is not written out for it."""
    shadow, shape = step.shadow(step.args[0]), step.result.shape
    repeats = bool(shape) and shadow.y.dim() > 0 and shadow.shape[-1] == shape[-1] > 1
    if repeats and all(part.stride(-1) == 0 for part in (shadow.y, shadow.x, shadow.seen)):
        thin = with_length(shape, len(shape) - 1, 1)
        return shadow.map(lambda part: part[..., :1].reshape(thin)).expand(shape)
    return shadow.map(lambda part: part.reshape(shape))


def _pad(step: Step) -> Cast:
    """Filling continues the picture's positions and is marked as not seen."""
    return _filled(step.shadow(step.args[0]), list(step.args[1]))


def _filled(shadow: Shadow, widths: list[int]) -> Shadow:
    """Positions with filling around, widths as ``torch.nn.functional.pad`` takes them."""
    y, x, seen = shadow.y, shadow.x, shadow.seen
    for number in range(len(widths) // 2):
        axis = -1 - number
        before, after = widths[2 * number], widths[2 * number + 1]
        y, x = _continue(y, axis, before, after), _continue(x, axis, before, after)
        zero = seen.narrow(axis, 0, 1) * 0
        ends = [zero.expand(with_length(seen.shape, axis, max(0, n))) for n in (before, after)]
        inside = _cut(seen, axis, before, after)
        seen = torch.cat([ends[0], inside, ends[1]], axis)
    return Shadow(y, x, seen)


def _unfold(step: Step) -> Cast:
    """Windows of a map one after another, with filling around it."""
    pad_y, pad_x = (int(width) for width in step.argument("padding"))
    shadow = _filled(step.shadow(step.args[0]), [pad_x, pad_x, pad_y, pad_y])
    size, gap, every = (step.argument(name) for name in ("kernel_size", "dilation", "stride"))
    return shadow.map(lambda part: step.func(part.contiguous(), size, gap, [0, 0], every))


def _continue(values: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Go on in equal steps on both sides along an axis; negative widths cut."""
    kept = _cut(values, axis, before, after)
    first, last = kept.narrow(axis, 0, 1), kept.narrow(axis, kept.shape[axis] - 1, 1)
    step = kept.narrow(axis, 1, 1) - first if kept.shape[axis] > 1 else first * 0
    start = first - step * _ladder(before, axis, values).flip(axis)
    return torch.cat([start, kept, last + step * _ladder(after, axis, values)], axis)


def _cut(values: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Without what negative widths take away."""
    length = values.shape[axis] + min(0, before) + min(0, after)
    return values.narrow(axis, max(0, -before), length)


def _ladder(count: int, axis: int, like: Tensor) -> Tensor:
    """1, 2, … along an axis; empty for a negative count."""
    shape = [1] * like.dim()
    shape[axis] = max(0, count)
    return torch.arange(1, max(0, count) + 1, device=like.device).view(shape)


def _product(step: Step) -> Cast:
    """Rows times columns: an entry stands where its row stands.

    That is a linear layer (rows are tokens, weights are nowhere), queries times keys (rows are
    queries) and weights times values (rows are queries again). Where rows are no tokens, as when
    keys and values stand transposed, an entry stands where its column stands. A sum over places,
    as a learnt query takes it, stands nowhere.
    """
    left, right = [t for t in tensors_in(step.args) if t.dim() > 1][-2:]
    shape = step.result.shape
    rows, columns = step.known(left), step.known(right)
    across = columns.centre(-2).expand(shape) if columns is not None else None
    if rows is None:
        return across
    along = rows.centre(-1)
    # what is multiplied stands at the same places on both sides, and all of them meet
    meets = columns is not None and columns.varies(-2)
    is_sum = meets and rows.varies(-1) and not rows.varies(-2)
    rows_are_tokens = (along.shape[-2] == 1 and not is_sum) or along.varies(-2)
    if across is not None and not rows_are_tokens and across.varies(-1):
        return across
    return nowhere(step.result) if is_sum else along.expand(shape)


def _linear(step: Step) -> Cast:
    """A linear layer, seen whole: each token stays where it was."""
    return step.shadow(step.args[0]).centre(-1).expand(step.result.shape)


def _attend(step: Step) -> Cast:
    """A fused kernel returns a mixture of values where each query stood."""
    query = step.shadow(step.argument("query"))
    return step.all(query.centre(-1).expand(step.first.shape))


def _convolve(step: Step) -> Cast:
    """A convolution looks at a window of neighbours and stands in its middle."""
    given, weight = step.args[0], step.args[1]
    spatial = weight.dim() - 2
    channels_at = given.dim() - spatial - 1
    shadow = step.shadow(given).centre(channels_at)
    move = spread if step.argument("transposed") else slide
    return move(
        shadow, step.result.shape, spatial, list(weight.shape[2:]),
        step.argument("stride"), step.argument("padding"), step.argument("dilation"),
    )  # fmt: skip


def _pool(step: Step) -> Cast:
    """A pooling window stands in its middle; channels stay apart."""
    kernel = step.argument("kernel_size")
    cast = slide(
        step.shadow(step.args[0]), step.first.shape, len(kernel), kernel,
        step.argument("stride") or kernel, step.argument("padding"), step.argument("dilation") or 1,
    )  # fmt: skip
    return step.all(cast)


def _reduce(step: Step) -> Cast:
    """Mean, sum or maximum over some axes stands in the middle of what went in."""
    axes = step.argument("dim")
    shadow = step.shadow(step.args[0])
    if axes is None or axes == []:
        axes = list(range(len(shadow.shape)))
    axes = [axes] if isinstance(axes, int) else axes
    middle = shadow.centre(*(axis % len(shadow.shape) for axis in axes))
    if not any(middle.varies(axis) for axis in range(len(shadow.shape))):
        return step.all(nowhere(step.first))  # a summary of the whole picture has no place on it
    return step.all(middle.map(lambda part: part.reshape(step.first.shape)))


def _resize(step: Step) -> Cast:
    """Resampled feature maps are read at the middle of each new cell."""
    shadow, shape = step.shadow(step.args[0]), step.result.shape
    for axis in (-2, -1):
        ratio = shadow.shape[axis] / shape[axis]
        middle = (torch.arange(shape[axis], dtype=torch.float64) + 0.5) * ratio - 0.5
        axis = len(shape) + axis
        shadow = shadow.map(partial(read, axis=axis, at=middle))
    return shadow


def _lose(_step: Step) -> Cast:
    """Numbers come in an order that the numbers themselves decide, or from all over."""
    return None


def tensors_in(args: Iterable[Any]) -> list[Tensor]:
    """All tensors among arguments, those in lists included."""
    found: list[Tensor] = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += tensors_in(value)
    return found


def _rules() -> dict[Any, Callable[[Step], Cast]]:
    """Operation -> rule; whatever is not named keeps positions when shapes allow it."""
    named = {
        _view: "view _unsafe_view reshape flatten unflatten",
        _move: "permute transpose t expand slice select unbind split split_with_sizes cat stack "
        "roll flip index index_select gather unsqueeze squeeze repeat unfold narrow "
        "pixel_shuffle pixel_unshuffle channel_shuffle mT chunk movedim repeat_interleave",
        _fresh: "new_zeros new_ones new_full new_empty new_empty_strided zeros_like ones_like "
        "full_like empty_like rand_like randn_like zero_ fill_ normal_ uniform_",
        _copy: "copy_ copy",
        _pad: "constant_pad_nd",
        _unfold: "im2col",
        _product: "mm bmm addmm baddbmm",
        _linear: "linear",
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
        _lose: "sort topk as_strided cumsum cumprod _fft_r2c _fft_c2r _fft_c2c",
    }
    return {
        getattr(torch.ops.aten, name): rule
        for rule, names in named.items()
        for name in names.split()
        if hasattr(torch.ops.aten, name)
    }


RULES = _rules()

# Operations that move tokens to where an index says, and an index can be computed or drawn.
PICKS = frozenset({torch.ops.aten.index, torch.ops.aten.gather, torch.ops.aten.index_select})
