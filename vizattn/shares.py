"""Several pictures in one forward pass: whose share of each tensor is whose.

Where the tokens of one picture lie is known from a look at one picture. Batched, a call's tensors
are as many times longer along one axis as there are pictures; which axis that is, and that nothing
is mixed, is found out once for a model and a size of its input, by looking at two pictures together
and at each alone. Where the two ways do not agree, pictures are looked at one by one: slower, and
right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vizattn.calls import VALUES, AttentionCall, Keep
from vizattn.observation import Observation, observe, observe_together, original

_TENSORS = ("q", "k", "v", "lse", "bias", "softmax", "blank", "weights")
_SETTINGS = ("module", "scale", "causal", "from_scores")

# Two ways to the same numbers agree to this share of the largest, by how many digits are kept;
# another picture's numbers are off by something like the largest itself.
_CLOSE = {torch.float64: 1e-8, torch.float32: 1e-4}
_CLOSE_IN_HALF = 5e-2

# Pictures that differ by less than this from each other, or from themselves shifted by half, in
# units of what a model takes, could be mixed up without anybody seeing it.
_DISTINCT = 0.1


@dataclass(frozen=True)
class _Share:
    """How the tensor of one picture comes to lie in that of a batch.

    Attributes:
        shape: Its shape for one picture.
        axis: The axis along which pictures follow each other; ``None`` for what all of them share.
    """

    shape: torch.Size
    axis: int | None

    def of(self, together: Tensor, number: int, n_pictures: int) -> Tensor | None:
        """The share of one picture; ``None`` when the tensor is not made in this way."""
        if self.axis is None:
            return together if together.shape == self.shape else None
        length = self.shape[self.axis]
        whole = list(self.shape)
        whole[self.axis] = length * n_pictures
        if list(together.shape) != whole:
            return None
        return together.narrow(self.axis, number * length, length)


# For every call, the shares of its tensors by name; the last is that of the output.
_Layout = list[dict[str, _Share]]

# By model, and by the shape of its input, how it is read out and what is kept; None where pictures
# are looked at one by one.
_LAYOUTS: WeakKeyDictionary[nn.Module, dict[Any, _Layout | None]] = WeakKeyDictionary()


def observe_each(
    module: nn.Module, pixels: Tensor, readout: str = "", *, keep: Keep = VALUES
) -> list[Observation]:
    """Look at several pictures of one size, ``[batch, 3, height, width]``, at once if that is safe.

    Returns:
        What was seen of each; their tensors are views into those of the batch.

    Raises:
        CaptureError: As ``observe``.
    """
    if len(pixels) > 1:
        layouts = _LAYOUTS.setdefault(original(module), {})
        key = tuple(pixels.shape[1:]), readout, keep
        if key not in layouts:
            layouts[key] = _find_out(module, _telling_pair(pixels), readout, keep)
        layout = layouts[key]
        together = None
        if layout is not None:
            together = observe_together(module, pixels, readout, keep=keep)
        if layout is not None and together is not None:
            parts = [_part(together, layout, number, len(pixels)) for number in range(len(pixels))]
            found = [part for part in parts if part is not None]
            if len(found) == len(pixels):
                return found
    return [observe(module, each, readout=readout, keep=keep) for each in pixels]


def _telling_pair(pixels: Tensor) -> Tensor:
    """The first and the last picture; noise where they are so alike that they prove nothing."""
    first, last = pixels[0], pixels[-1]
    half = pixels.shape[-1] // 2
    apart = [first - last, first - first.roll(half, -1), last - last.roll(half, -1)]
    if all(float(each.float().abs().mean()) > _DISTINCT for each in apart):
        return pixels[[0, -1]]
    generator = torch.Generator().manual_seed(0)
    return torch.randn(2, *first.shape, generator=generator).to(pixels)


def _find_out(module: nn.Module, pair: Tensor, readout: str, keep: Keep) -> _Layout | None:
    """How pictures lie in a batch, when each alone has the same numbers as with another."""
    alone = [observe(module, each, readout=readout, keep=keep) for each in pair]
    try:
        together = observe_together(module, pair, readout, keep=keep)
    except Exception:  # there are models that take one picture and no more, each in its own words
        return None
    layout = None if together is None else _layout(alone[0], together, len(pair))
    if together is None or layout is None:
        return None
    for number, expected in enumerate(alone):
        part = _part(together, layout, number, len(pair))
        if part is None or not _agree(part, expected):
            return None
    return layout


def _layout(alone: Observation, together: Observation, n_pictures: int) -> _Layout | None:
    """Shares by comparing shapes; ``None`` where some tensor is no whole number of pictures.

    Or where a call took another kernel: convolutions leave two pictures in another order of memory
    than one, and PyTorch's fused attention takes queries in that order alone (timm's cpubone).
    """
    if len(alone.calls) != len(together.calls) or together.unrecorded:
        return None
    layout: _Layout = []
    for one, all_of_them in zip(
        [*map(_tensors, alone.calls), _output(alone)],
        [*map(_tensors, together.calls), _output(together)],
        strict=True,
    ):
        if one.keys() != all_of_them.keys():
            return None
        shares = {name: _share(one[name], all_of_them[name], n_pictures) for name in one}
        found = {name: share for name, share in shares.items() if share is not None}
        if len(found) < len(shares):
            return None
        layout.append(found)
    return layout


def _share(one: Tensor, together: Tensor, n_pictures: int) -> _Share | None:
    if one.dim() != together.dim():
        return None
    pairs = enumerate(zip(one.shape, together.shape, strict=True))
    longer = [axis for axis, (length, whole) in pairs if length != whole]
    if not longer:
        return _Share(one.shape, None)
    axis = longer[0]
    is_whole = one.shape[axis] * n_pictures == together.shape[axis]
    return _Share(one.shape, axis) if len(longer) == 1 and is_whole else None


def _part(
    together: Observation, layout: _Layout, number: int, n_pictures: int
) -> Observation | None:
    """One picture's part; ``None`` when this batch is not laid out in the way that is known."""
    if len(together.calls) + 1 != len(layout) or together.unrecorded:
        return None
    calls = []
    for call, shares in zip(together.calls, layout, strict=False):
        part = _cut(_tensors(call), shares, number, n_pictures)
        if part is None:
            return None
        calls.append(replace(call, **part))
    output = _cut(_output(together), layout[-1], number, n_pictures)
    if output is None:
        return None
    return Observation(calls, together.places, [], output.get("output", together.output))


def _cut(
    tensors: dict[str, Tensor], shares: dict[str, _Share], number: int, n_pictures: int
) -> dict[str, Any] | None:
    if tensors.keys() != shares.keys():
        return None
    parts = {name: shares[name].of(tensors[name], number, n_pictures) for name in shares}
    return None if any(part is None for part in parts.values()) else parts


def _tensors(call: AttentionCall) -> dict[str, Tensor]:
    given = {name: getattr(call, name) for name in _TENSORS}
    return {name: tensor for name, tensor in given.items() if tensor is not None}


def _output(seen: Observation) -> dict[str, Tensor]:
    return {"output": seen.output} if isinstance(seen.output, Tensor) else {}


def _agree(part: Observation, expected: Observation) -> bool:
    """Whether two observations of one picture hold the same numbers."""
    pairs = zip(part.calls, expected.calls, strict=True)
    return _all_close(_output(part), _output(expected)) and all(
        all(getattr(ours, name) == getattr(theirs, name) for name in _SETTINGS)
        and _all_close(_tensors(ours), _tensors(theirs))
        for ours, theirs in pairs
    )


def _all_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return all(_is_close(ours[name], theirs[name]) for name in theirs)


def _is_close(ours: Tensor, theirs: Tensor) -> bool:
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    finite = theirs[theirs.isfinite()]
    largest = float(finite.abs().max()) if len(finite) else 0.0
    close = _CLOSE.get(theirs.dtype, _CLOSE_IN_HALF) * largest
    return torch.allclose(ours, theirs, rtol=0, atol=close, equal_nan=True)
