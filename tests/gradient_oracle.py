"""Methods as their papers write them, matrix by matrix in float64, with autograd and hooks.

Nothing of vizattn computes here: attention is what the models' own unfused code makes, gradients
are taken by its weights themselves, and rollouts are products of whole matrices.
"""

import copy
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Dense:
    """A, ∂y/∂A, values and output projections of every layer, first layer first."""

    weights: list
    gradients: list
    values: list
    projections: list
    logits: torch.Tensor


def dense_pass(model, pixels, target, values_of, projection_of):
    """Run a float64 copy and differentiate a logit by the weights of every layer."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    with weights_seen(model) as seen, qkv_seen(model) as qkv:
        logits = model(pixels.double().unsqueeze(0))[0]
    gradients = torch.autograd.grad(logits[target], seen)
    heads = seen[0].shape[1]
    return Dense(
        [each[0].detach() for each in seen],
        [each[0] for each in gradients],
        [values_of(each[0], heads).detach() for each in qkv],
        [projection_of(part, heads).detach() for part in attention_of(model)],
        logits.detach(),
    )


def attention_of(model):
    return [m for m in model.modules() if type(m).__name__ == "Attention"]


@contextmanager
def weights_seen(model):
    """Softmaxed weights with their graph, as dropout gets them after the softmax."""
    seen = []
    inner = [m.attn_drop if hasattr(m, "attn_drop") else m.dropout for m in attention_of(model)]
    hooks = [m.register_forward_pre_hook(lambda _m, args: seen.append(args[0])) for m in inner]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def qkv_seen(model):
    seen = []
    inner = [m.qkv if hasattr(m, "qkv") else m.to_qkv for m in attention_of(model)]
    hooks = [m.register_forward_hook(lambda _m, _a, out: seen.append(out)) for m in inner]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def third_part(qkv, heads):
    """Values, [head, token, value], of tokens times (three, head, value)."""
    n_tokens = qkv.shape[0]
    return qkv.reshape(n_tokens, 3, heads, -1)[:, 2].transpose(0, 1)


def output_layer(part, heads):
    """[head, value, dim], with timm's LayerScale left to the caller."""
    layer = part.proj if hasattr(part, "proj") else part.to_out[0]
    return layer.weight.mT.reshape(heads, -1, layer.out_features)


def gae(dense, query):
    """R ← R + mean over heads of (A ⊙ ∇A)⁺ · R, from the first layer to the last."""
    relevance = torch.eye(dense.weights[0].shape[-1], dtype=torch.float64)
    for weights, gradient in zip(dense.weights, dense.gradients, strict=True):
        relevance = relevance + (weights * gradient).clamp(min=0).mean(0) @ relevance
    return query.double() @ relevance


def gradient_rollout(dense, query):
    identity = torch.eye(dense.weights[0].shape[-1], dtype=torch.float64)
    product = identity
    for weights, gradient in zip(dense.weights, dense.gradients, strict=True):
        mixed = identity + (weights * gradient).clamp(min=0).mean(0)
        product = mixed / mixed.sum(-1, keepdim=True) @ product
    return query.double() @ product


def value_norms(dense, layer, scale=1.0):
    """‖Σ_h α f‖ for every query and key, [query, key], with every vector written out."""
    contributions = torch.einsum("hkv,hvd->hkd", dense.values[layer], dense.projections[layer])
    summed = torch.einsum("hqk,hkd->qkd", dense.weights[layer], contributions * scale)
    return summed.norm(dim=-1)


def value_norm_rollout(dense, query, residual, scales=None):
    identity = torch.eye(dense.weights[0].shape[-1], dtype=torch.float64)
    product = identity
    for layer in range(len(dense.weights)):
        norms = value_norms(dense, layer, 1.0 if scales is None else scales[layer])
        rows = norms / norms.sum(-1, keepdim=True)
        product = ((1 - residual) * rows + residual * identity) @ product
    return query.double() @ product


def relative_error(found, expected):
    """Largest difference on the patches, in units of the largest value on a patch."""
    return float((found.double() - expected).abs().max() / expected.abs().max())


def without_biases(model):
    """All biases zero, so that nothing but the picture and learnt tokens carries relevance."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model


def attention_gradcam(dense, layer, query, prefix):
    """Row of A and of ∇A, one number for each head."""
    row, gradient = query.double() @ dense.weights[layer], query.double() @ dense.gradients[layer]
    strength = gradient[:, prefix:].mean(-1, keepdim=True)
    return (strength * row).mean(0).clamp(min=0)


def held(x):
    return x.detach()


def fixed_deviation(norm, x):
    """LayerNorm whose deviation is a constant."""
    centred = x - x.mean(-1, keepdim=True)
    deviation = held((centred.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt())
    y = centred / deviation
    return y * norm.weight + norm.bias


def line_through_zero(x):
    return x * held(0.5 * (1 + torch.erf(x / 2**0.5)))


def halves(product, left, right):
    """A product whose derivative is shared half and half between its factors."""
    whole = product(left, right)
    return held(whole) / 2 + whole / 2


def propagate(model, pixels, target, rule):
    """x · ∂ỹ/∂x for the seed's ViT by a forward pass with these rules written into it."""
    x, _, _, logit = propagated(model, pixels, target, rule)
    return x, float(logit)


def propagated(model, pixels, target, rule):
    """The same of pixels, patch embeddings and the tokens that enter each layer, and the logit."""
    model = copy.deepcopy(model).double()
    x = pixels.double().unsqueeze(0).requires_grad_()
    norms = fixed_deviation if rule != "plain" else lambda norm, x: norm(x)
    bend = line_through_zero if rule != "plain" else nn.functional.gelu
    cut, norm, linear, last = model.to_patch_embedding
    embedded = norms(last, linear(norms(norm, cut(x))))
    tokens = torch.cat([model.cls_token.unsqueeze(0), embedded], 1) + model.pos_embedding
    entering = []
    for attention, feed_forward in model.transformer.layers:
        entering.append(tokens)
        norm, widen, _, _, narrow, _ = feed_forward.net
        tokens = tokens + _attend(attention, norms(attention.norm, tokens), rule)
        tokens = tokens + narrow(bend(widen(norms(norm, tokens))))
    tokens = norms(model.transformer.norm, tokens)
    pooled = tokens[:, 0] if model.pool == "cls" else tokens.mean(1)
    logit = model.mlp_head(pooled)[0, target]
    places = [x, embedded, *entering]
    found = [
        (place * gradient)[0].detach()
        for place, gradient in zip(places, torch.autograd.grad(logit, places), strict=True)
    ]
    layers = torch.stack([each.sum(-1) for each in found[2:]])
    return found[0], found[1].sum(-1), layers, logit.detach()


def _attend(attention, x, rule):
    q, k, v = (
        part.unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        for part in attention.to_qkv(x).chunk(3, -1)
    )
    if rule == "cp":
        taken = held((q @ k.mT * attention.scale).softmax(-1)) @ v
    elif rule == "plain":
        taken = (q @ k.mT * attention.scale).softmax(-1) @ v
    else:
        weights = (halves(torch.matmul, q, k.mT) * attention.scale).softmax(-1)
        taken = halves(torch.matmul, weights, v)
    return attention.to_out(taken.transpose(1, 2).flatten(2))


def readings(model, pixels, target, blocks, read, query=None):
    """Derivative of each layer's reading by its weights, and the weights, ``[head, query, key]``.

    Hooks on the blocks, and autograd by the weights; the mean of all tokens is read, or ``query``.
    """
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    outputs = []
    hooks = [
        b.register_forward_hook(lambda _m, _a, out: outputs.append(out)) for b in blocks(model)
    ]
    with weights_seen(model) as weights:
        model(pixels.double().unsqueeze(0))
    for hook in hooks:
        hook.remove()
    for tokens, seen in zip(outputs, weights, strict=True):
        scalar = read(model, tokens.mean(1) if query is None else query @ tokens)[0, target]
        gradient = torch.autograd.grad(scalar, seen, retain_graph=True)[0][0]
        yield gradient, seen.detach()[0]


def legrad(model, pixels, target, blocks, read):
    """E_l of every layer, [layer, key]."""
    found = readings(model, pixels, target, blocks, read)
    return torch.stack([gradient.clamp(min=0).mean((0, 1)) for gradient, _ in found])


def attention_shift(model, pixels, target, blocks, read, query, balance):
    """e_l / σ_l^balance of every layer, by what a step of attention towards each token changes."""
    maps = []
    for gradient, weights in readings(model, pixels, target, blocks, read, query):
        gain = torch.zeros(weights.shape[-1], dtype=torch.float64)
        for j in range(len(gain)):
            moved = -weights.clone()  # (1 - step) of what there is, and the step for token j
            moved[:, :, j] += 1
            gain[j] = (gradient * moved).sum()
        maps.append(gain / gain[1:].std(correction=0) ** balance)
    return torch.stack(maps)
