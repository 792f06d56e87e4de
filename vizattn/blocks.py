"""Which module is the block around an attention call: attention, MLP and what goes past both."""

from __future__ import annotations

from torch import nn

from vizattn.errors import CaptureError


def block_of(module: nn.Module, name: str) -> str:
    """The block that an attention call belongs to: the nearest member of a list of modules.

    Raises:
        CaptureError: The call belongs to none, or the block is no module of its own.
    """
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        block = module.get_submodule(".".join(parts[:end]))
        above = [
            module.get_submodule(".".join(parts[:stop])) for stop in range(max(0, end - 2), end)
        ]
        if not isinstance(above[-1], nn.ModuleList | nn.Sequential):
            continue
        if len(above) == 2 and isinstance(above[0], nn.ModuleList):
            continue  # attention in a pair with its MLP: the residual is added further out
        if type(block) is not nn.ModuleList:  # a plain list is never called
            return ".".join(parts[:end])
    raise CaptureError(
        f"the tokens after {name} cannot be had: the block around it is not a module of its own. "
        f"Leave the layer out to get the model's last tokens."
    )
