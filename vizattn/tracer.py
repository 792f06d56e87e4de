"""Carry positions through a forward pass, beside its tensors.

Every family of models arranges its tokens in its own way: windows, shifted windows, padding, grids
with strides, unrolled blocks, pooled keys, registers in front and detection tokens behind. None of
that has to be known: the operations of the pass themselves move the positions (``motions``). The
pass is not changed. An operation that no rule fits loses the position of what it makes, and a token
whose position was lost is never drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from vizattn.motions import PICKS, RULES, Step, keep, tensors_in
from vizattn.positions import Shadow, lost, nowhere, of_picture
from vizattn.running import run

_PLAIN = torch.contiguous_format


class PositionTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Knows, while a model runs on ``pixels`` under it, where every tensor's numbers come from.

    Attributes:
        depends_on_picture: Whether tokens were picked by an index; another picture, or another
            draw, may then have its tokens elsewhere.
    """

    def __init__(self, pixels: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shadows: Any = WeakTensorKeyDictionary()
        self._ages: Any = WeakTensorKeyDictionary()
        self._count = 0
        self._cast(pixels, of_picture(pixels))
        self.depends_on_picture = False

    def shadow(self, tensor: Tensor) -> Shadow | None:
        """Positions of a tensor's numbers, ``None`` when nothing in it comes from the picture."""
        found: Shadow | None = self._shadows.get(tensor)
        return found

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation as it is; then let the positions follow."""
        kwargs = kwargs or {}
        result = run(func, args, kwargs)
        packet = getattr(func, "overloadpacket", None)
        given = tensors_in([*args, *kwargs.values()])
        if packet is None or not any(tensor in self._shadows for tensor in given):
            return result
        self.depends_on_picture |= packet in PICKS
        try:
            self._move(Step(self.shadow, self._ages.__getitem__, func, args, kwargs, result))
        except Exception:  # the model must not notice that somebody looks
            self._store(result, None)
        return result

    def _move(self, step: Step) -> None:
        self._store(step.result, RULES.get(step.func.overloadpacket, keep)(step))
        is_written = step.func._schema.is_mutable and isinstance(step.result, Tensor)
        if is_written and step.result._is_view():
            self._write_through(step.result)

    def _store(self, result: Any, cast: Any) -> None:
        """Keep the positions of what came out; what has no fitting ones is lost."""
        if isinstance(result, tuple | list):
            # further results, such as the means of a norm, are no tokens
            casts = cast if isinstance(cast, tuple | list) else [cast]
            for tensor, shadow in zip(result, casts, strict=False):
                self._store(tensor, shadow)
        elif isinstance(result, Tensor) and not result.is_nested:
            if not isinstance(cast, Shadow) or cast.shape != result.shape:
                cast = lost(result)
            if result.is_floating_point() or result.is_complex():
                self._cast(result, cast)

    def _write_through(self, view: Tensor) -> None:
        """A part was written to, so the whole has new positions there."""
        whole = view._base
        assert whole is not None
        if not whole.is_contiguous() or not whole.is_floating_point():
            return
        written, before = self._shadows[view], self._shadows.get(whole) or nowhere(whole)
        after = before.map(lambda part: part.expand(whole.shape).clone(memory_format=_PLAIN))
        offset = int(view.storage_offset() - whole.storage_offset())
        for part in ("y", "x", "seen"):
            at = getattr(after, part).as_strided(view.shape, view.stride(), offset)
            at.copy_(getattr(written, part))
        self._cast(whole, after)

    def _cast(self, tensor: Tensor, shadow: Shadow) -> None:
        self._shadows[tensor] = shadow
        if tensor not in self._ages:  # written to in place, a tensor stays as old as it was
            self._count += 1
            self._ages[tensor] = self._count
