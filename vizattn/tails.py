"""What a model does with its tokens after the last layer, as a function of any tokens.

So a model can be read out after each of its layers. Families keep their last normalisation, their
pooling and their head under other names; those known here are timm's plain vision transformers,
torchvision's, open_clip's, transformers' ViT, DINOv2, CLIP and SigLIP, and vit-pytorch's, which is
the seed's too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vizattn.errors import CaptureError

Step = Callable[[Tensor], Tensor]

# Of transformers: models that end in a normalisation and read the class token.
_PLAIN = ("ViTModel", "Dinov2Model", "Dinov2WithRegistersModel")


@dataclass(frozen=True)
class Tail:
    """The part of a model after its last layer.

    Attributes:
        norm: Its last normalisation.
        pool: What makes one vector of all tokens, by attention of its own; ``None`` where the mean
            of the tokens is to be taken.
        head: What makes logits or an embedding of that vector.
    """

    norm: Step
    pool: Step | None
    head: Step

    def __call__(
        self, tokens: Float[Tensor, "1 token dim"], weights: Float[Tensor, " token"] | None = None
    ) -> Float[Tensor, " number"]:
        """Logits or embedding of these tokens: their mean by weights, or pooled by the model.

        Without weights all tokens count alike.
        """
        if self.pool is None:
            mean = tokens.mean(1) if weights is None else weights @ tokens
            return self.head(self.norm(mean))[0]
        return self.head(self.pool(self.norm(tokens)))[0]


def tail_of(module: nn.Module) -> Tail:
    """The tail of a model.

    Raises:
        CaptureError: The model is of no family that is known here.
    """
    for find in (_timm, _torchvision, _open_clip, _transformers, _vit_pytorch):
        tail = find(module)
        if tail is not None:
            return tail
    raise CaptureError(
        f"it is not known how to read {type(module).__name__} out after each of its layers; plain "
        f"vision transformers of timm, torchvision, open_clip, transformers and vit-pytorch are. "
        f"GAE needs no such thing."
    )


def _timm(module: Any) -> Tail | None:
    if not all(hasattr(module, name) for name in ("forward_features", "blocks", "norm", "head")):
        return None
    after = getattr(module, "fc_norm", None) or nn.Identity()
    second = getattr(module, "head_dist", None)

    def head(vector: Tensor) -> Tensor:
        vector = after(vector)
        first: Tensor = module.head(vector)
        return first if second is None else (first + second(vector)) / 2

    return Tail(module.norm, getattr(module, "attn_pool", None), head)


def _torchvision(module: Any) -> Tail | None:
    norm = getattr(getattr(module, "encoder", None), "ln", None)
    heads = getattr(module, "heads", None)
    return None if norm is None or heads is None else Tail(norm, None, heads)


def _open_clip(module: Any) -> Tail | None:
    trunk = getattr(module, "trunk", None)
    if isinstance(trunk, nn.Module) and hasattr(module, "head"):  # a model of timm inside
        inner = _timm(trunk)
        if inner is None:
            return None
        head = inner.head
        return Tail(inner.norm, inner.pool, lambda vector: module.head(head(vector)))
    if not hasattr(module, "ln_post") or getattr(module, "attn_pool", None) is not None:
        return None
    proj = getattr(module, "proj", None)
    return Tail(module.ln_post, None, lambda vector: vector if proj is None else vector @ proj)


def _transformers(module: Any) -> Tail | None:
    if not hasattr(module, "config"):
        return None
    inner = getattr(module, "model", None)
    if hasattr(inner, "config"):  # loaded by its name, it comes in a shell that calls it by pixels
        module = inner
    vision = getattr(module, "vision_model", module)
    if hasattr(vision, "post_layernorm"):  # CLIP and SigLIP
        head = getattr(module, "visual_projection", None) or nn.Identity()
        pool = getattr(vision, "head", None)
        return Tail(vision.post_layernorm, pool if isinstance(pool, nn.Module) else None, head)
    body = getattr(module, "vit", module if type(module).__name__ in _PLAIN else None)
    if body is None:
        return None
    head = getattr(module, "classifier", None) or getattr(body, "pooler", None)
    if type(head).__name__ == "ViTPooler":  # it takes tokens and reads the first
        pooler: Any = head
        return Tail(body.layernorm, None, lambda vector: pooler(vector.unsqueeze(1)))
    return Tail(body.layernorm, None, head or nn.Identity())


def _vit_pytorch(module: Any) -> Tail | None:
    norm = getattr(getattr(module, "transformer", None), "norm", None)
    if norm is None or not hasattr(module, "mlp_head"):
        return None
    return Tail(norm, None, module.mlp_head or nn.Identity())
