"""Run an operation under a dispatch mode as it would run without one, to the last bit."""

from __future__ import annotations

from typing import Any

import torch

# Makes views; a mode's handler runs below it.
_VIEWS = getattr(getattr(torch._C, "DispatchKey", None), "ADInplaceOrView", None)
_WITHOUT_EXCLUDING = getattr(torch._C, "_SetExcludeDispatchKeyGuard", None)


def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``func`` returns, computed by the very kernels that a plain forward pass uses.

    A ``linear`` seen whole transposes its weight inside. In a plain pass that view requires a
    gradient when the weight does, and PyTorch then copies an input that is not contiguous and
    multiplies once, instead of multiplying block by block: other kernels, other last bits. Views
    made below a dispatch mode forget that they require a gradient, so they are made above it here.
    """
    if func is not torch.ops.aten.linear.default or args[0].is_contiguous():
        return func(*args, **kwargs)
    if _VIEWS is None or _WITHOUT_EXCLUDING is None:
        return func(*args, **kwargs)
    with _WITHOUT_EXCLUDING(_VIEWS, False):
        return func(*args, **kwargs)
