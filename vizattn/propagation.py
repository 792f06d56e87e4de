"""Relevance propagation as a gradient whose rules are changed on the way down.

    relevance of x = x · ∂y/∂x            with some derivatives replaced:

* LayerNorm: the standard deviation counts as a constant, the mean does not;
* GELU, SiLU and the like: the slope f(x) / x of the line through zero, not the derivative;
* gates (sigmoid): constants; a product of two activations is shared half and half;
* attention: ``cp`` holds the weights fixed, so relevance goes through the values alone; ``attn``
  shares each of its two products half and half, so that queries and keys get a quarter each and
  values a half.

Hooks on the nodes of one graph do this. Nothing is patched, no other gradient is touched, and the
hooks are gone when the pass is over. Biases keep what falls to them, so the relevance of all pixels
need not sum to the target.

LibraGrad (Mehri et al. 2025, section 3.5) comes to the rules of ``cp`` from another side: every
operation is to be a linear one of its input, exact for this picture.

Sources: Ali et al. 2022, "XAI for Transformers: Better Explanations through Conservative
Propagation", section 3 (``cp``); Achtibat et al. 2024, "AttnLRP: Attention-Aware Layer-Wise
Relevance Propagation for Transformers", section 3 (``attn``). Both without the γ rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

Grads = tuple[Tensor | None, ...]
_Hook = Callable[[Grads, Grads], Grads | None]

RULES = ("cp", "attn")


@contextmanager
def changed_rules(rule: str, nodes: Iterable[Node], attention: dict[Node, bool]) -> Iterator[None]:
    """While this lasts, backward passes through these nodes carry relevance and not gradients.

    Args:
        rule: ``cp`` or ``attn``.
        nodes: All nodes of the graph.
        attention: Those that multiply weights and values, and whether the weights stand right.
    """
    handles = []
    for node in nodes:
        hook = _attention_hook(rule, node, attention) or _hook_of(node)
        if hook is not None:
            handles.append(node.register_hook(hook))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _attention_hook(rule: str, node: Node, attention: dict[Node, bool]) -> _Hook | None:
    name = node.name()
    if node in attention:
        if name.startswith("ScaledDotProduct"):
            return _only_values if rule == "cp" else _share_attention
        return partial(_constant_weights, attention[node]) if rule == "cp" else _halved
    if rule == "attn" and name.startswith(("SoftmaxBackward", "SafeSoftmaxBackward")):
        return _halved
    return None


def _hook_of(node: Node) -> _Hook | None:
    name = node.name()
    if name.startswith("NativeLayerNormBackward"):
        return partial(_layer_norm, node)
    if name.startswith(("GeluBackward", "SiluBackward")):
        return partial(_through_zero, node)
    if name.startswith(("SigmoidBackward", "HardsigmoidBackward")):
        return _nothing
    if name.startswith("MulBackward") and _is_shared(node):
        return _halved
    return None


def _is_shared(node: Node) -> bool:
    """Whether a product is of two activations, neither of which is a gate."""
    below = [each for each, _ in node.next_functions]
    if len(below) < 2 or any(each is None for each in below):
        return False
    return not any(each.name().startswith(("Sigmoid", "Hardsigmoid")) for each in below if each)


def _only_values(inputs: Grads, _outputs: Grads) -> Grads:
    return tuple(each if index == 2 else _zero(each) for index, each in enumerate(inputs))


def _share_attention(inputs: Grads, _outputs: Grads) -> Grads:
    shares = (0.25, 0.25, 0.5)
    return tuple(
        each if each is None else each * (shares[index] if index < len(shares) else 1.0)
        for index, each in enumerate(inputs)
    )


def _constant_weights(weights_right: bool, inputs: Grads, _outputs: Grads) -> Grads:
    """A product's operands are its last two inputs (``baddbmm`` has one more before them)."""
    left, right = inputs[-2:]
    pair = (left, _zero(right)) if weights_right else (_zero(left), right)
    return (*inputs[:-2], *pair)


def _halved(inputs: Grads, _outputs: Grads) -> Grads:
    return tuple(None if each is None else each / 2 for each in inputs)


def _nothing(inputs: Grads, _outputs: Grads) -> Grads:
    return tuple(map(_zero, inputs))


def _zero(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else torch.zeros_like(grad)


def _layer_norm(node: Any, inputs: Grads, outputs: Grads) -> Grads | None:
    (given, *_), (_, *others) = outputs, inputs
    if given is None:
        return None
    weight, inverse = node._saved_weight, node._saved_result2
    given = given if weight is None else given * weight
    axes = tuple(range(-len(node._saved_normalized_shape), 0))
    centred = given - given.mean(axes, keepdim=True)
    return (centred * inverse.to(centred.dtype), *others)


def _through_zero(node: Any, _inputs: Grads, outputs: Grads) -> Grads | None:
    (given, *_), x = outputs, node._saved_self
    if given is None:
        return None
    if node.name().startswith("Silu"):
        return (given * torch.sigmoid(x),)
    if node._saved_approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return (given * 0.5 * (1 + torch.tanh(inner)),)
    return (given * 0.5 * (1 + torch.erf(x / math.sqrt(2))),)
