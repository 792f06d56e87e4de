"""What a gradient is asked of: one number that a model gives for one picture.

A model with classes gives a logit for each; never a probability, because one that is near 1 hardly
moves any more and its gradient shows what speaks against the other classes. A model without classes
gives an embedding, and the number is how far it reaches along its own direction, which is held
fixed, or the cosine of its angle with another embedding. A cosine and not a product: most of what
makes an embedding long makes it like nothing more than like anything else, and a map of the product
shows that. Such others are asked for by name: ``patch:412,230`` (the patch
of the same picture under this pixel), ``picture:dog.jpg``, and ``text:a cat`` for models that were
trained with text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vizattn.errors import TargetError
from vizattn.grid import TokenGrid
from vizattn.outputs import vector_of


@dataclass(frozen=True)
class Compared:
    """An embedding to compare with, and what it is of.

    Attributes:
        embedding: The embedding; only its direction matters.
        words: What it is of, for a sentence: ``the text 'a cat'``.
        name: How it is asked for: ``text:a cat``.
    """

    embedding: Tensor
    words: str
    name: str


Target = int | str | Tensor | Compared
"""A class by index or name; ``patch:X,Y``, ``picture:FILE`` or ``text:WORDS``; an embedding."""

# Above this cosine two embeddings are one, and what is left of its derivative is rounding.
_SAME = 1 - 1e-5

# What a name begins with, before a colon, that is no class.
PATCH, PICTURE, TEXT = "patch", "picture", "text"


@dataclass(frozen=True)
class Goal:
    """One number of one picture.

    Attributes:
        scalar: The number, with its graph.
        words: What it is, for a sentence.
        direction: What the model's vector is multiplied with to get it.
        is_cosine: Whether only the vector's direction counts, and not its length.
        is_logit: Whether it is a class's logit.
    """

    scalar: Float[Tensor, ""]
    words: str
    direction: Float[Tensor, " number"]
    is_cosine: bool = False
    is_logit: bool = False

    @classmethod
    def of(
        cls, vector: Tensor, words: str, direction: Tensor, *, is_cosine: bool = False,
        is_logit: bool = False,
    ) -> Goal:  # fmt: skip
        """The goal that a vector of the model is asked for."""
        goal = cls(vector.new_zeros(()), words, direction, is_cosine, is_logit)
        return replace(goal, scalar=goal.value(vector))

    def value(self, vectors: Float[Tensor, "*many number"]) -> Float[Tensor, "*many"]:
        """The number in any vectors of the model."""
        if self.is_logit:  # picked and not multiplied: a product shares relevance out by sign
            return vectors[..., int(self.direction.argmax())]
        if self.is_cosine:
            vectors = torch.nn.functional.normalize(vectors, dim=-1)
        return (vectors * self.direction.to(vectors)).sum(-1)

    def share(
        self, vectors: Float[Tensor, "*many number"], *, is_multi_label: bool = False
    ) -> Float[Tensor, "*many"]:
        """The same on a scale that ends at 1: the class's probability, or the cosine."""
        if not self.is_logit:
            return replace(self, is_cosine=True).value(vectors)
        if is_multi_label:
            return self.value(vectors).sigmoid()
        return self.value(vectors.softmax(-1))


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
            with the largest logit, or the embedding's own direction. What has to be looked up
            first, such as a text, has been.
        grid: The grid of the output tokens, where the model returns tokens.

    Raises:
        TargetError: There is no such class, or the model has none.
    """
    vector, is_logits = vector_of(output, module, labels, grid)
    if isinstance(target, Compared):
        if is_logits:
            raise has_classes(module, target.words)
        return _towards(vector, target.embedding, target.words)
    if isinstance(target, Tensor):
        return _towards(vector, target, "the given embedding")
    if is_logits or isinstance(target, int):
        return _logit(vector, labels, target)
    if target is not None:
        raise TargetError(
            f"got the class {target!r}, but {type(module).__name__} has no classes: it gives an "
            f"embedding of {len(vector)} numbers. Leave the target out to ask what made the "
            f"embedding, or compare it with patch:X,Y, picture:FILE or another embedding."
        )
    own = _unit(vector)
    return Goal.of(vector, "the embedding along its own direction", own)


def asked_by_name(target: Target | None) -> tuple[str, str]:
    """What a name asks to be compared with: ``("text", "a cat")``; two empty words for a class."""
    kind, colon, asked = target.partition(":") if isinstance(target, str) else ("", "", "")
    known = colon and kind in (PATCH, PICTURE, TEXT)
    return (kind, asked.strip()) if known else ("", "")


def name_of(target: Target | None) -> str | int | None:
    """How a target is asked for, without folders; ``None`` for an embedding that has no name."""
    name = target.name if isinstance(target, Compared) else target
    kind, asked = asked_by_name(name)
    if kind == PICTURE:
        return f"{PICTURE}:{Path(asked).name}"
    return None if isinstance(name, Tensor) else name


def pixel_of(asked: str) -> tuple[float, float]:
    """``412,230`` as a pixel.

    Raises:
        TargetError: It is none.
    """
    try:
        x, y = (float(part) for part in asked.split(","))
    except ValueError:
        raise TargetError(
            f"got patch:{asked}; it is patch:X,Y, a pixel from the picture's upper left corner, "
            f"such as patch:412,230."
        ) from None
    return x, y


def has_classes(module: nn.Module, words: str) -> TargetError:
    """What to raise when a model with classes is asked for a likeness."""
    return TargetError(
        f"{type(module).__name__} has classes and gives no embedding to compare with {words}. "
        f"Give a class by index or name."
    )


def embedding_of(
    output: Any, module: nn.Module, labels: Sequence[str] = (), grid: TokenGrid | None = None
) -> Float[Tensor, " number"]:
    """The embedding in what a model returned for a batch of one picture.

    Raises:
        TargetError: The model has classes, or nothing of the kind was found.
    """
    vector, is_logits = vector_of(output, module, labels, grid)
    if is_logits:
        raise has_classes(module, "another")
    return vector.detach()


def class_name(index: int, labels: Sequence[str], count: int) -> str:
    """The first of the names of a class, or its number where names are not known."""
    return labels[index].split(",")[0] if len(labels) == count else str(index)


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
    name = class_name(index, names, len(vector))
    name = repr(name) if names else name
    top = ", the top class," if target is None else ""
    logit, one_hot = float(vector[index].detach()), torch.zeros_like(vector.detach())
    one_hot[index] = 1
    words = f"class {name}{top} with logit {logit:.3g}"
    return Goal.of(vector, words, one_hot, is_logit=True)


def _towards(vector: Tensor, other: Tensor, words: str) -> Goal:
    if other.numel() != vector.numel():
        raise TargetError(
            f"got an embedding of {other.numel()} numbers to compare with; the model gives "
            f"{vector.numel()}. Was it made by another model?"
        )
    direction = _unit(other.flatten().to(vector))
    cosine = float(_unit(vector) @ direction)
    if cosine > _SAME:
        raise TargetError(
            f"{words} has the very embedding of this picture, so nothing can make it more alike "
            f"and every map would show rounding. Leave the target out to ask what made the "
            f"embedding."
        )
    return Goal.of(vector, f"{words}, cosine {cosine:.2f}", direction, is_cosine=True)


def _unit(vector: Tensor) -> Tensor:
    vector = vector.detach()
    length: Tensor = torch.linalg.vector_norm(vector)
    return vector / length.clamp_min(torch.finfo(vector.dtype).tiny)
