"""What a model returns, read as one vector for each picture: its logits or its embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from vizattn.errors import TargetError
from vizattn.grid import TokenGrid

# Names that libraries give to the layer that makes logits.
_HEADS = ("head", "heads", "fc", "classifier", "mlp_head", "linear_head")

# Fields of transformers' outputs, in the order in which they are believed.
_LOGITS, _POOLED, _TOKENS = "logits", ("image_embeds", "pooler_output"), "last_hidden_state"


def vectors_of(
    output: Any, module: nn.Module, grid: TokenGrid | None = None
) -> Float[Tensor, "batch number"]:
    """Logits or embeddings in what a model returned for a batch.

    Args:
        output: What the model returned.
        module: The model.
        grid: The grid of the output tokens, where the model returns tokens.

    Raises:
        TargetError: It returned neither logits nor embeddings nor tokens.
    """
    return _vectors(_tensor_of(output, module), module, grid)


def vector_of(
    output: Any, module: nn.Module, labels: Sequence[str], grid: TokenGrid | None
) -> tuple[Float[Tensor, " number"], bool]:
    """One vector for the picture of a batch of one, and whether it holds logits.

    Raises:
        TargetError: What the model returned is neither logits nor an embedding nor tokens.
    """
    found, is_logits = _tensor_of(output, module), False
    if isinstance(output, Mapping):
        is_logits = _LOGITS in output
    if len(found) != 1:
        raise _unreadable(found, module)
    vector = _vectors(found, module, grid)[0]
    return vector, found.dim() == 2 and (is_logits or _is_logits(module, len(vector), labels))


def _vectors(
    found: Tensor, module: nn.Module, grid: TokenGrid | None
) -> Float[Tensor, "batch number"]:
    """One vector for each picture; tokens are read out as the model would."""
    if found.dim() == 4:  # a map of patches, channels first
        found = found.flatten(2).mT
    if found.dim() == 3:
        weights = found.new_full((found.shape[1],), 1 / found.shape[1])
        if grid is not None and grid.n_tokens == found.shape[1]:
            weights = grid.query.to(found)
        return weights @ found
    if found.dim() != 2:
        raise _unreadable(found, module)
    return found


def _unreadable(found: Tensor, module: nn.Module) -> TargetError:
    return TargetError(
        f"{type(module).__name__} returned a tensor of shape {tuple(found.shape)}; what can be "
        f"asked about is logits or an embedding, [1, number], or tokens, [1, token, number]."
    )


def _tensor_of(output: Any, module: nn.Module) -> Tensor:
    if isinstance(output, Mapping):
        for name in (_LOGITS, *_POOLED, _TOKENS):
            found = output.get(name)
            if isinstance(found, Tensor):
                return found
    if isinstance(output, tuple | list) and output:
        output = output[0]
    if isinstance(output, Tensor):
        return output
    raise TargetError(
        f"{type(module).__name__} returned {type(output).__name__}, in which no logits and no "
        f"embedding were found. Methods that need no target, such as rollout, work."
    )


def _is_logits(module: nn.Module, count: int, labels: Sequence[str]) -> bool:
    if labels:
        return len(labels) == count
    if _ends_in_projection(module):
        return False
    declared = getattr(module, "num_classes", None)
    if isinstance(declared, int):
        return declared == count
    heads = (getattr(module, name, None) for name in _HEADS)
    layers = [part for head in heads if isinstance(head, nn.Module) for part in head.modules()]
    return any(isinstance(part, nn.Linear) and part.out_features == count for part in layers)


def _ends_in_projection(module: nn.Module) -> bool:
    """Whether what looks like a head projects into the space that CLIP shares with text.

    Timm keeps the projection where classifiers are, and counts its numbers as classes; models of
    CLIP that were fine-tuned to classes say so in their tag. open_clip puts a head on timm's.
    """
    if hasattr(module, "trunk"):
        return True
    config: Any = getattr(module, "pretrained_cfg", None) or {}
    name, tag = str(config.get("architecture", "")), str(config.get("tag", ""))
    same = getattr(module, "num_classes", None) == config.get("num_classes")
    return "clip" in name and "ft" not in tag.split("_") and same


def logits_of(
    output: Any, module: nn.Module, labels: Sequence[str] = ()
) -> Float[Tensor, " class"] | None:
    """The logits in what a model returned for one picture; ``None`` where it has no classes."""
    try:
        vector, is_logits = vector_of(output, module, labels, None)
    except TargetError:
        return None
    return vector.detach() if is_logits else None
