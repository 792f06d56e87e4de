"""Watch a forward pass from below and note every attention call.

A ``TorchDispatchMode`` sees each operation of PyTorch after autograd and autocast, in whatever way
the model was written, and runs it unchanged: no hooks, no patched classes, no switched-off kernels,
so the model's output is bit-identical. Three shapes of attention are told apart:

* a fused kernel, whose arguments are q, k, v and a bias, and whose second result is often the
  log-sum-exp of each row;
* a whole layer in one operation, as ``nn.MultiheadAttention`` runs it when no gradient is asked:
  q, k and v are computed again from its arguments;
* a softmax whose result is then multiplied with something that is no parameter, the values. The
  result is followed through reshapes, casts, gates and mixing of heads to that product.

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
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vizattn.calls import MANY_QUERIES, VALUES, AttentionCall, Keep
from vizattn.operations import ARGUMENTS, COMPOSITES, FUSED, LAYERS, PRODUCTS, SOFTMAX
from vizattn.running import run

# Modules that only carry out one operation for the attention that holds them.
_ELEMENTARY = (nn.Softmax, nn.Dropout, nn.Linear, nn.Identity, nn.Conv2d, nn.Sequential)

# A trail that has not met its values after this many operations is no attention.
_TRAIL_OPERATIONS = 128


@dataclass
class _Trail:
    """A tensor on its way; it is held so that its id stays its own.

    ``call`` is the softmax's on its way to the values, or ``None`` for scores on their way to one.
    """

    tensor: Tensor
    call: AttentionCall | None
    started: int


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Records the attention calls of ``model`` while it is active.

    Attributes:
        calls: What was recognised, in order.
        unrecorded: ``(module, reason)`` of whatever looked like attention and could not be kept.
            Recording never raises into the model; ``progress``, told of each call, may.
    """

    def __init__(
        self,
        model: nn.Module,
        on_call: Callable[[AttentionCall], None] | None = None,
        *,
        keep: Keep = VALUES,
        progress: Callable[[AttentionCall], None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[AttentionCall] = []
        self.unrecorded: list[tuple[str, str]] = []
        self._model = model
        self._on_call = on_call
        self._what = keep
        self._progress = progress
        self._told = 0
        self._names = {id(module): name for name, module in model.named_modules()}
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
        if packet in COMPOSITES:
            with self:  # taken apart under our eyes: what it is made of comes by one by one
                return func.decompose(*args, **kwargs)
        result = run(func, args, kwargs)
        handler = _HANDLERS.get(packet)
        if handler is None and not self._trails:
            return result
        try:
            if handler is not None:
                handler(self, func, args, kwargs, result)
            else:
                self._follow(args, result)
        except Exception as error:  # the model must not notice that somebody looks
            reason = f"{func}: {type(error).__name__}: {error}"
            self.unrecorded.append((self._caller()[0], reason))
        self._tell()
        return result

    def note(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Keep a call of ``scaled_dot_product_attention`` by its arguments, without an lse."""
        given = dict(zip(ARGUMENTS, args, strict=False)) | kwargs
        self._keep_fused("scaled_dot_product_attention", given, None, output)
        self._tell()

    def _tell(self) -> None:
        """Say which call was kept; outside of what keeps errors from the model, so one can stop."""
        if self._progress is not None and len(self.calls) > self._told:
            self._told = len(self.calls)
            self._progress(self.calls[-1])

    def _keep(self, call: AttentionCall, output: Tensor | None = None) -> None:
        call.output = output if self._what.outputs else None
        self.calls.append(call)
        if self._on_call is not None:
            self._on_call(call)
        if not self._what.values and call.q is not None:
            call.leave_values()

    def _on_fused(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        given = _bind(func, args, kwargs)
        output = _tensors([result] if isinstance(result, Tensor) else result)[0]
        self._keep_fused(str(func), given, _log_sum_exp(result, given["query"]), output)

    def _keep_fused(
        self, operation: str, given: dict[str, Any], lse: Tensor | None, output: Tensor
    ) -> None:
        bias = given.get("attn_mask")
        call = AttentionCall(
            *self._caller(),
            operation=operation,
            q=given["query"],
            k=given["key"],
            v=given["value"],
            scale=given.get("scale"),
            bias=given.get("attn_bias") if bias is None else bias,
            causal=bool(given.get("is_causal", False)),
            lse=lse,
        )
        self._keep(call, output)

    def _on_layer(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any
    ) -> None:
        """``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer`` on their fast path."""
        given = _bind(func, args, kwargs)
        x = given["src"] if "src" in given else given["query"]
        if x.is_nested:
            raise TypeError(
                "a nested tensor holds pictures of different lengths; give one at a time"
            )
        if given.get("norm_first"):
            norm = given["norm_weight_1"], given["norm_bias_1"]
            x = F.layer_norm(x, (given["embed_dim"],), *norm, given["eps"])
        n_heads = given.get("num_heads") or given.get("num_head")
        qkv = F.linear(x, given["qkv_weight"], given["qkv_bias"])
        q, k, v = (
            rearrange(part, "b n (h d) -> b h n d", h=n_heads) for part in qkv.chunk(3, dim=-1)
        )
        mask = given.get("mask")
        if mask is not None:
            mask = ~mask.bool()  # there, True hides a key
            mask = mask[:, None, None, :] if given.get("mask_type") == 1 else mask
        caller = self._caller()
        self._keep(AttentionCall(*caller, operation=str(func), q=q, k=k, v=v, bias=mask))

    def _on_softmax(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        axis = args[1] if len(args) > 1 else kwargs["dim"]
        if result.dim() < 2 or axis % result.dim() != result.dim() - 1:
            return  # over classes, channels or the batch: no keys on the last axis
        scores = args[0]
        trail = self._trails.get(id(scores))
        call = AttentionCall(
            *self._caller(),
            operation=str(func),
            softmax=result,
            blank=scores.amax(-1, keepdim=True) <= torch.finfo(scores.dtype).min,
            from_scores=trail is not None and trail.call is None,
        )
        self._mark(result, call)

    def _on_product(
        self, _func: Any, args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any
    ) -> None:
        left, right = [x for x in _tensors(args) if x.dim() > 1][-2:]
        first, second = self._softmax_of(left), self._softmax_of(right)
        if first is not None and not self._is_weight(right):
            self._complete(first, left, right, result)
        elif second is not None and not self._is_weight(left):
            second.is_turned = True  # v Aᵀ: values stand on the left
            self._complete(second, right.mT, left.mT, result)
        elif not self._is_weight(left) and not self._is_weight(right):
            self._mark(result, None)
        else:
            self._follow(args, result)  # heads mixed by a learnt matrix

    def _complete(
        self, call: AttentionCall, weights: Tensor, values: Tensor, output: Tensor
    ) -> None:
        call.weights, call.v = weights, values
        self._trails = {key: t for key, t in self._trails.items() if t.call is not call}
        self._keep(call, output)

    def _softmax_of(self, tensor: Tensor) -> AttentionCall | None:
        """The softmax that a tensor comes from, when the same module is still at work on it."""
        trail = self._trails.get(id(tensor))
        if trail is None or trail.call is None or trail.call.module != self._caller()[0]:
            return None
        return trail.call

    def _follow(self, args: tuple[Any, ...], result: Any) -> None:
        """What is made from a marked tensor is marked, until its trail grows cold."""
        self._operations += 1
        given = [self._trails[id(x)] for x in _tensors(args) if id(x) in self._trails]
        if given:
            # a softmax among the arguments outweighs scores: it is nearer to the values
            trail = next((t for t in given if t.call is not None), given[0])
            for made in _tensors([result]):
                if made.dim() > 1 and not _is_single_product(made, trail.call):
                    self._mark(made, trail.call)
        if self._operations % _TRAIL_OPERATIONS == 0:
            oldest = self._operations - _TRAIL_OPERATIONS
            self._trails = {k: t for k, t in self._trails.items() if t.started >= oldest}

    def _mark(self, tensor: Tensor, call: AttentionCall | None) -> None:
        self._trails[id(tensor)] = _Trail(tensor, call, self._operations)

    @cached_property
    def _weights(self) -> set[int]:
        """Where the model's own parameters and buffers are; asked only when a product comes by."""
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


def _is_single_product(made: Tensor, call: AttentionCall | None) -> bool:
    """Whether a softmax over one key has met its values: einsum then multiplies by broadcasting.

    Its weights are all 1, there is nothing to see; but followed further they would be taken for
    those of the next product.
    """
    if call is None or call.softmax is None or call.softmax.shape[-1] > 1:
        return False
    return made.numel() != call.softmax.numel()


def _log_sum_exp(result: Any, q: Tensor) -> Tensor | None:
    """The kernel's second result, when it is one number per query (padded on some devices).

    With few queries it is as quick to compute when it is needed as to keep, and then it is never
    kept, so that rows are the same to the bit however they were seen.
    """
    n_queries = q.shape[-2]
    if n_queries < MANY_QUERIES or not isinstance(result, tuple | list) or len(result) < 2:
        return None
    lse = result[1]
    if not isinstance(lse, Tensor) or lse.dim() != q.dim() - 1 or lse.shape[-1] < n_queries:
        return None
    # A copy: the kernel's own pins the memory beside it, and its next output needs fresh pages.
    return lse[..., :n_queries].clone(memory_format=torch.contiguous_format)


def _bind(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, defaults filled in, as the operation's schema declares them."""
    names = [argument.name for argument in func._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments}
    return {**defaults, **dict(zip(names, args, strict=False)), **kwargs}


def _tensors(args: Iterable[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in args:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [x for x in value if isinstance(x, Tensor)]
    return found


_Handler = Callable[[Recorder, Any, tuple[Any, ...], dict[str, Any], Any], None]
_HANDLERS: dict[Any, _Handler] = {
    **dict.fromkeys(FUSED, Recorder._on_fused),
    **dict.fromkeys(LAYERS, Recorder._on_layer),
    **dict.fromkeys(SOFTMAX, Recorder._on_softmax),
    **dict.fromkeys(PRODUCTS, Recorder._on_product),
}
