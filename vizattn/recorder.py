"""Watch a forward pass from below and note every attention call.

A ``TorchDispatchMode`` sees each operation of PyTorch after autograd and autocast, in whatever way
the model was written, and runs it unchanged: no hooks, no patched classes, no switched-off kernels,
so the model's output is bit-identical. Two shapes of attention are told apart:

* a fused kernel: its arguments are q, k, v and a bias, its second result is often the row
  log-sum-exp;
* a softmax whose result is then multiplied with something that is no parameter: the values. The
  result is followed through reshapes, casts and dropout to that product (its *trail*).

Which module called is read from the Python stack: the innermost module of this model whose code is
running. Modes are local to a thread, so two threads never mix.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

# Modules that only carry out one operation for the attention that holds them.
_ELEMENTARY = (nn.Softmax, nn.Dropout, nn.Linear, nn.Identity, nn.Conv2d, nn.Sequential)

# A trail that has not met its values after this many operations is no attention.
_TRAIL_OPERATIONS = 64


@dataclass
class AttentionCall:
    """One attention call as the recorder saw it, batch axis and all.

    Attributes:
        module: Name of the calling module, ``""`` when none is on the stack.
        module_type: Its class.
        operation: The operation that was recognised.
        q: Queries, where a fused kernel got them.
        k: Keys, likewise.
        v: Values.
        scale: What the kernel was told to multiply the scores with.
        bias: What the kernel added to the scores, or which keys a boolean mask lets through.
        causal: Whether the kernel hid later keys.
        lse: Row log-sum-exp, where the kernel gave it.
        softmax: The softmax, where it was not fused.
        blank: Queries that had no key left to look at: their softmax is uniform by arithmetic only.
        weights: What multiplied the values: the softmax again, or what was made of it.
    """

    module: str
    module_type: str
    operation: str
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    scale: float | None = None
    bias: Tensor | None = None
    causal: bool = False
    lse: Tensor | None = None
    softmax: Tensor | None = None
    blank: Tensor | None = None
    weights: Tensor | None = None

    @property
    def is_exact(self) -> bool:
        """Whether the softmax itself multiplied the values, and not something made from it."""
        if self.softmax is None or self.weights is None:
            return self.q is not None
        same_values = self.weights.data_ptr() == self.softmax.data_ptr()
        return same_values or torch.equal(self.weights.flatten(), self.softmax.flatten())


@dataclass
class _Trail:
    """A softmax on its way to the values; ``tensor`` is held so that its id stays its own."""

    call: AttentionCall
    tensor: Tensor
    started: int


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Records the attention calls of ``model`` while it is active.

    Attributes:
        calls: What was recognised, in order.
        unrecorded: ``(operation, reason)`` of whatever looked like attention and could not be
            kept. Recording never raises into the model.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[AttentionCall] = []
        self.unrecorded: list[tuple[str, str]] = []
        self._names = {id(module): name for name, module in model.named_modules()}
        self._model = model
        self._trails: dict[int, _Trail] = {}
        self._operations = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation as it is; then look at it."""
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", None)
        if packet in _COMPOSITES:
            with self:  # taken apart under our eyes: what it is made of comes by one by one
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        handler = _HANDLERS.get(packet)
        if handler is None and not self._trails:
            return result
        try:
            if handler is not None:
                handler(self, func, args, kwargs, result)
            else:
                self._follow(args, result)
        except Exception as error:  # the model must not notice that somebody looks
            self.unrecorded.append((str(func), f"{type(error).__name__}: {error}"))
        return result

    def _on_fused(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        given = _bind(func, args, kwargs)
        bias = given.get("attn_mask")
        self.calls.append(
            AttentionCall(
                *self._caller(),
                operation=str(func),
                q=given["query"],
                k=given["key"],
                v=given["value"],
                scale=given.get("scale"),
                bias=given.get("attn_bias") if bias is None else bias,
                causal=bool(given.get("is_causal", False)),
                lse=_log_sum_exp(result, given["query"]),
            )
        )

    def _on_softmax(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        axis = args[1] if len(args) > 1 else kwargs["dim"]
        if result.dim() < 2 or axis % result.dim() != result.dim() - 1:
            return  # over classes, channels or the batch: no keys on the last axis
        blank = args[0].amax(-1, keepdim=True) <= torch.finfo(args[0].dtype).min
        call = AttentionCall(*self._caller(), operation=str(func), softmax=result, blank=blank)
        self._mark(result, call)

    def _on_product(
        self, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any
    ) -> None:
        if not self._trails:
            return
        left, right = [x for x in _tensors(args) if x.dim() > 1][-2:]
        trail = self._trails.get(id(left))
        if trail is None or self._is_weight(right):
            self._follow(args, result)
            return
        call = trail.call
        call.weights, call.v = left, right
        self.calls.append(call)
        self._trails = {key: t for key, t in self._trails.items() if t.call is not call}

    def _follow(self, args: tuple[Any, ...], result: Any) -> None:
        """What is made from a marked tensor is marked, until its trail grows cold."""
        self._operations += 1
        trail = next((self._trails[id(x)] for x in _tensors(args) if id(x) in self._trails), None)
        if trail is not None and isinstance(result, Tensor) and result.dim() > 1:
            self._mark(result, trail.call)
        if self._operations % _TRAIL_OPERATIONS == 0:
            oldest = self._operations - _TRAIL_OPERATIONS
            self._trails = {k: t for k, t in self._trails.items() if t.started >= oldest}

    def _mark(self, tensor: Tensor, call: AttentionCall) -> None:
        self._trails[id(tensor)] = _Trail(call, tensor, self._operations)

    @cached_property
    def _weights(self) -> set[int]:
        """Where the model's own parameters and buffers are; asked only when a softmax is about."""
        held = [*self._model.parameters(), *self._model.buffers()]
        return {tensor.untyped_storage().data_ptr() for tensor in held}

    def _is_weight(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._weights

    def _caller(self) -> tuple[str, str]:
        """Name and class of the innermost module of this model on the Python stack."""
        frame = sys._getframe(2)
        while frame is not None:
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and not isinstance(module, _ELEMENTARY):
                name = self._names.get(id(module))
                if name is not None:
                    return name, type(module).__name__
            frame = frame.f_back  # type: ignore[assignment]  # the outermost frame has none
        return "", ""


def _log_sum_exp(result: Any, q: Tensor) -> Tensor | None:
    """The kernel's second result, when it is one number per query (padded on some devices)."""
    if not isinstance(result, tuple | list) or len(result) < 2:
        return None
    lse = result[1]
    n_queries = q.shape[-2]
    if not isinstance(lse, Tensor) or lse.dim() != q.dim() - 1 or lse.shape[-1] < n_queries:
        return None
    return lse[..., :n_queries]


def _bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, defaults filled in, as the operation's schema declares them."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def _tensors(args: Iterable[Any]) -> list[Tensor]:
    return [x for x in args if isinstance(x, Tensor)]


def _packets(names: Iterable[str]) -> list[Any]:
    """The operations of these names that this build of PyTorch knows."""
    found = (getattr(torch.ops.aten, name, None) for name in names)
    return [packet for packet in found if packet is not None]


_FUSED = _packets(
    [
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_dot_product_attention_math_for_mps",
    ]
)
_SOFTMAX = _packets(["_softmax", "_safe_softmax", "softmax"])
_PRODUCTS = _packets(["bmm", "mm", "baddbmm"])

# Made of several of the above; seen whole where autograd is out of the way.
_COMPOSITES = frozenset(_packets(["scaled_dot_product_attention", "einsum", "matmul"]))

_Handler = Callable[[Recorder, Any, tuple[Any, ...], dict[str, Any], Any], None]
_HANDLERS: dict[Any, _Handler] = {
    **dict.fromkeys(_FUSED, Recorder._on_fused),
    **dict.fromkeys(_SOFTMAX, Recorder._on_softmax),
    **dict.fromkeys(_PRODUCTS, Recorder._on_product),
}
