"""Transformer Attribution for the seed's ViT, module by module in float64.

A forward pass that keeps what every part took in, and a way down that is written out by hand for
each of them. Nothing of vizattn computes here, nor does autograd: sums are written with einsum.
"""

import copy

import torch


def attribution(model, pixels, target, query, gradients, start=0):
    """query (I + W_L) ⋯ (I + W_1), and the relevance that enters each block."""
    relevance, entering = relevances(model, pixels, target)
    product = torch.eye(relevance[0].shape[-1], dtype=torch.float64)
    for weights, gradient in zip(relevance[start:], gradients[start:], strict=True):
        product = product + (gradient * weights).clamp(min=0).mean(0) @ product
    return query.double() @ product, entering


def relevances(model, pixels, target):
    """R of every layer's weights, [head, query, key], and of the tokens before every block."""
    model = copy.deepcopy(model).double()
    steps, tokens, logits = forward(model, pixels.double())
    one_hot = torch.zeros_like(logits)
    one_hot[target] = 1
    pooled = linear(model.mlp_head, tokens[0] if model.pool == "cls" else tokens.mean(0), one_hot)
    down = torch.zeros_like(tokens)
    if model.pool == "cls":
        down[0] = pooled
    else:
        positive = tokens.clamp(min=0)
        down = positive / positive.sum(0) * pooled
    of_weights, of_tokens = [], []
    for step in reversed(steps):
        down, weights = block(step, down)
        of_weights.append(weights)
        of_tokens.append(down)
    return of_weights[::-1], of_tokens[::-1]


def forward(model, pixels):
    tokens = model.to_patch_embedding(pixels.unsqueeze(0))[0]
    tokens = torch.cat([model.cls_token, tokens]) + model.pos_embedding
    steps = []
    for attention, feed_forward in model.transformer.layers:
        step = {"attention": attention, "net": feed_forward.net, "entered": tokens}
        step["normed"] = attention.norm(tokens)
        q, k, v = (
            part.unflatten(-1, (attention.heads, -1)).transpose(0, 1)
            for part in attention.to_qkv(step["normed"]).chunk(3, -1)
        )
        weights = (torch.einsum("hid,hjd->hij", q, k) * attention.scale).softmax(-1)
        mixed = torch.einsum("hij,hjd->hid", weights, v)
        step |= {"q": q, "k": k, "v": v, "weights": weights, "mixed": mixed}
        step["joined"] = mixed.transpose(0, 1).flatten(1)
        step["attended"] = attention.to_out[0](step["joined"])
        step["between"] = tokens + step["attended"]
        norm, widen, bend, _, narrow, _ = feed_forward.net
        step["normed_again"] = norm(step["between"])
        step["bent"] = bend(widen(step["normed_again"]))
        step["fed"] = narrow(step["bent"])
        tokens = step["between"] + step["fed"]
        steps.append({key: held(value) for key, value in step.items()})
    tokens = model.transformer.norm(tokens).detach()
    pooled = tokens[0] if model.pool == "cls" else tokens.mean(0)
    return steps, tokens, model.mlp_head(pooled).detach()


def held(value):
    return value.detach() if isinstance(value, torch.Tensor) else value


def block(step, down):
    """Relevance before a block and of its weights, from that behind it."""
    _, widen, _, _, narrow, _ = step["net"]
    straight, through = added(step["between"], step["fed"], down)
    through = linear(narrow, step["bent"], through)
    down = straight + linear(widen, step["normed_again"], through)
    straight, through = added(step["entered"], step["attended"], down)
    joined = linear(step["attention"].to_out[0], step["joined"], through)
    mixed = joined.unflatten(-1, (step["attention"].heads, -1)).transpose(0, 1)
    share = over(mixed, step["mixed"])
    weights = step["weights"] * torch.einsum("hid,hjd->hij", share, step["v"]) / 2
    values = step["v"] * torch.einsum("hij,hid->hjd", step["weights"], share) / 2
    share = over(weights, torch.einsum("hid,hjd->hij", step["q"], step["k"]))
    queries = step["q"] * torch.einsum("hij,hjd->hid", share, step["k"]) / 2
    keys = step["k"] * torch.einsum("hij,hid->hjd", share, step["q"]) / 2
    parts = [part.transpose(0, 1).flatten(1) for part in (queries, keys, values)]
    down = straight + linear(step["attention"].to_qkv, step["normed"], torch.cat(parts, -1))
    return down, weights


def added(left, right, down):
    """Each summand's part of a sum, scaled to conserve."""
    parts = [part * over(down, left + right) for part in (left, right)]
    sizes = [part.sum().abs() for part in parts]
    return [
        part / part.sum() * size / sum(sizes) * down.sum()
        for part, size in zip(parts, sizes, strict=True)
    ]


def linear(layer, x, down):
    """R_i = Σ_j (x_i w_ji)⁺ / Σ_i' (x_i' w_ji')⁺ · R_j, every product written out."""
    positive = (x.unsqueeze(-2) * layer.weight.detach()).clamp(min=0)  # [*, out, in]
    shares = over(positive, positive.sum(-1, keepdim=True))
    return (shares * down.unsqueeze(-1)).sum(-2)


def over(relevance, result):
    return torch.where(result == 0, 0, relevance / torch.where(result == 0, 1, result))
