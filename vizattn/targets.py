"""What a gradient is asked of: one number that a model gives for one picture.

A model with classes gives a logit for each; never a probability, because one that is near 1 hardly
moves any more and its gradient shows what speaks against the other classes. A model without classes
gives an embedding, and the number is how far it reaches along a direction: its own, which is held
fixed, or that of another embedding, such as another picture's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vizattn.errors import TargetError
from vizattn.grid import TokenGrid

Target = int | str | Tensor
"""A class by index or name, or an embedding to be compared with."""

# Names that libraries give to the layer that makes logits.
_HEADS = ("head", "heads", "fc", "classifier", "mlp_head", "linear_head")

# Fields of transformers' outputs, in the order in which they are believed.
_LOGITS, _POOLED, _TOKENS = "logits", ("image_embeds", "pooler_output"), "last_hidden_state"


@dataclass(frozen=True)
class Goal:
    """One number of one picture.

    Attributes:
        scalar: The number, with its graph.
        words: What it is, for a sentence.
        direction: What the model's vector is multiplied with to get it.
        is_logit: Whether it is a class's logit.
    """

    scalar: Float[Tensor, ""]
    words: str
    direction: Float[Tensor, " number"]
    is_logit: bool = False


def goal_of(
    output: Any,
    module: nn.Module,
    labels: Sequence[str] = (),
    target: Target | None = None,
    grid: TokenGrid | None = None,
) -> Goal:
    """The number that ``target`` names in what a model returned.

    Args:
        output: What the model returned for a batch of one picture.
        module: The model, which is asked whether it has classes.
        labels: Names of the classes, where they are known.
        target: A class by index or name, or an embedding to compare with; when left out, the class
            with the largest logit, or the embedding's own direction.
        grid: The grid of the output tokens, where the model returns tokens.

    Raises:
        TargetError: There is no such class, or the model has none.
    """
    vector, is_logits = _read(output, module, labels, grid)
    if isinstance(target, Tensor):
        return _towards(vector, target)
    if is_logits or isinstance(target, int):
        return _logit(vector, labels, target)
    if target is not None:
        raise TargetError(
            f"got the class {target!r}, but {type(module).__name__} has no classes: it gives an "
            f"embedding of {len(vector)} numbers. Leave the target out to ask what made the "
            f"embedding, or give another embedding to compare with."
        )
    own = _unit(vector)
    return Goal((vector * own).sum(), "the embedding along its own direction", own)


def class_index(target: int | str, labels: Sequence[str], count: int) -> int:
    """The number of a class, by index or name.

    Names may differ in case, and one of several names of a class, with commas between, is enough.

    Raises:
        TargetError: There is no such class; near names are offered.
    """
    if isinstance(target, str) and target.lstrip("-").isdigit() and target not in labels:
        target = int(target)
    if isinstance(target, int):
        if not -count <= target < count:
            raise TargetError(
                f"there is no class {target}: the model has {count}, from 0 to {count - 1}."
            )
        return target % count
    if not labels:
        raise TargetError(
            f"got the class {target!r}, but the names of this model's {count} classes are not "
            f"known. Give its index, from 0 to {count - 1}."
        )
    wanted = target.strip().casefold()
    for index, label in enumerate(labels):
        names = {label.casefold(), *(part.strip().casefold() for part in label.split(","))}
        if wanted in names:
            return index
    parts = {part.strip() for label in labels for part in label.split(",")}
    near = get_close_matches(target, parts, n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    raise TargetError(f"no class is named {target!r} among {count}.{hint}")


def _logit(vector: Tensor, labels: Sequence[str], target: int | str | None) -> Goal:
    names = labels if len(labels) == len(vector) else ()
    index = int(vector.argmax()) if target is None else class_index(target, names, len(vector))
    name = f"{names[index].split(',')[0]!r}" if names else f"{index}"
    top = ", the top class," if target is None else ""
    logit, one_hot = float(vector[index].detach()), torch.zeros_like(vector.detach())
    one_hot[index] = 1
    return Goal(vector[index], f"class {name}{top} with logit {logit:.3g}", one_hot, is_logit=True)


def _towards(vector: Tensor, other: Tensor) -> Goal:
    if other.numel() != vector.numel():
        raise TargetError(
            f"got an embedding of {other.numel()} numbers to compare with; the model gives "
            f"{vector.numel()}. Was it made by another model?"
        )
    direction = _unit(other.flatten().to(vector))
    cosine = float(_unit(vector) @ direction)
    words = f"the given embedding, cosine {cosine:.2f}"
    return Goal((vector * direction).sum(), words, direction)


def _unit(vector: Tensor) -> Tensor:
    vector = vector.detach()
    length: Tensor = torch.linalg.vector_norm(vector)
    return vector / length.clamp_min(torch.finfo(vector.dtype).tiny)


def values_of(
    output: Any, module: nn.Module, goal: Goal, grid: TokenGrid | None = None
) -> Float[Tensor, " batch"]:
    """The number that was asked about for each picture of a batch.

    Args:
        output: What the model returned for the batch.
        module: The model.
        goal: What was asked about, found for one picture.
        grid: The grid of the output tokens, where the model returns tokens.
    """
    return _vectors(_tensor_of(output, module), module, grid) @ goal.direction


def certainties_of(
    output: Any, module: nn.Module, goal: Goal, grid: TokenGrid | None = None
) -> Float[Tensor, " batch"]:
    """How sure the model is of what was asked about, for each picture of a batch.

    The class's probability among all classes; for an embedding, the cosine to the direction.
    """
    vectors = _vectors(_tensor_of(output, module), module, grid)
    if goal.is_logit:
        return vectors.softmax(-1) @ goal.direction
    cosine: Tensor = nn.functional.normalize(vectors, dim=-1) @ goal.direction
    return cosine


def _read(
    output: Any, module: nn.Module, labels: Sequence[str], grid: TokenGrid | None
) -> tuple[Tensor, bool]:
    """One vector for the picture, and whether it holds logits."""
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
    declared = getattr(module, "num_classes", None)
    if isinstance(declared, int):
        return declared == count
    heads = (getattr(module, name, None) for name in _HEADS)
    layers = [part for head in heads if isinstance(head, nn.Module) for part in head.modules()]
    return any(isinstance(part, nn.Linear) and part.out_features == count for part in layers)
