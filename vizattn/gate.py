"""The quick way to look: a recorder that is there only while fused attention runs.

A recorder sees every operation of PyTorch, a few hundred in each forward pass, and each costs it
some microseconds. Once a first pass has shown that all of a model's attention goes through the
fused kernels, it is enough to stand by at the one function that leads to them, which is seen one
level higher, as Python calls it, at a tenth of the price.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from vizattn.calls import MANY_QUERIES, AttentionCall
from vizattn.recorder import Recorder

# These ask whether anybody stands by, and then compute in another way.
_SHY = (nn.MultiheadAttention, nn.TransformerEncoderLayer)


class Gate(TorchFunctionMode):
    """Lets a recorder see nothing but fused attention."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function as it is, under the recorder if it leads to a fused kernel."""
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        if args and args[0].dim() == 4 and args[0].shape[-2] < MANY_QUERIES:
            output = func(*args, **kwargs)
            self._recorder.note(args, kwargs, output)
            return output
        with self._recorder:
            return func(*args, **kwargs)


def is_enough(module: nn.Module, calls: Iterable[AttentionCall]) -> bool:
    """Whether a gate should see all that a recorder saw in a pass of this module.

    It is still to be compared: attention that no Python function leads to passes a gate by.
    """
    if any(isinstance(part, _SHY) for part in module.modules()):
        return False
    return all("scaled_dot_product" in call.operation for call in calls)
