"""What a model says about its own tokens: what the learnt ones are, and which it reads out.

Where tokens lie is not asked here; it is found out by carrying positions through a forward pass
(``tracer``, ``places``). A pass cannot tell a class token from a register, though, nor what becomes
of them after the last layer: that is read from the names of parameters and settings.
"""

from __future__ import annotations

from typing import Any

from torch import nn

# Role -> names that families give to the parameter that holds the tokens.
_LEARNT = {
    "class": ("cls_token", "class_token", "class_embedding", "cls_embed"),
    "distillation": ("dist_token", "distillation_token"),
    "register": ("reg_token", "register_tokens", "reg_tokens", "registers"),
    "detection": ("detection_tokens", "det_token", "query_embed"),
}


def roles_of(module: nn.Module, count: int) -> tuple[str, ...]:
    """What ``count`` learnt tokens of a call are, in their order.

    The parameters are believed when they hold just so many tokens. A single token is the class
    token where there is one; whatever remains unclear is called ``extra``.
    """
    held = {role: _count(module, names) for role, names in _LEARNT.items()}
    declared = tuple(role for role, number in held.items() for _ in range(number))
    if len(declared) == count:
        return declared
    if len(declared) > count and declared[:count].count("class") == min(1, count):
        return declared[:count]  # such as class attention, which the registers do not take part in
    known = ("class",) if held["class"] and count else ()
    return (*known, *["extra"] * (count - len(known)))


def readout_of(module: nn.Module) -> str:
    """``class`` or ``mean``: which tokens a model reads out at the end, where it has both."""
    for name in ("global_pool", "pool"):
        pooled = getattr(module, name, None)
        if isinstance(pooled, str):
            return "class" if pooled in ("token", "cls") else "mean"
    config: Any = getattr(module, "config", None)
    if getattr(config, "use_mean_pooling", False):
        return "mean"
    return "class"


def _count(module: nn.Module, names: tuple[str, ...]) -> int:
    """Tokens in the first parameter whose name starts so; 0 when there is none."""
    for name, parameter in module.named_parameters():
        if name.rpartition(".")[2].startswith(names):
            return parameter.numel() // parameter.shape[-1]
    return 0
