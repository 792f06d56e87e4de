"""Carry positions through a forward pass, beside its tensors.

Every family of models arranges its tokens in its own way: windows, shifted windows, padding, grids
with strides, unrolled blocks, pooled keys, registers in front and detection tokens behind. None of
that has to be known: the operations of the pass themselves move the positions (``motions``). The
pass is not changed. An operation that no rule fits loses the position of what it makes, and a token
without position is never drawn.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from vizattn.motions import PICKS, RULES, Step, keep, tensors_in
from vizattn.positions import Shadow, of_picture


class PositionTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Knows, while a model runs on ``pixels`` under it, where every tensor's numbers come from.

    Attributes:
        depends_on_picture: Whether tokens were picked by an index; another picture, or another
            draw, may then have its tokens elsewhere.
    """

    def __init__(self, pixels: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shadows: Any = WeakTensorKeyDictionary()
        self._shadows[pixels] = of_picture(pixels)
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
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        given = tensors_in([*args, *kwargs.values()])
        if packet is None or not any(tensor in self._shadows for tensor in given):
            return result
        self.depends_on_picture |= packet in PICKS
        try:
            cast = RULES.get(packet, keep)(Step(self.shadow, func, args, kwargs, result))
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
