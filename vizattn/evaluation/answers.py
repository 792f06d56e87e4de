"""What a model answers about one target, for many changed pictures at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.grid import TokenGrid
from vizattn.models import VisionModel
from vizattn.targets import Target, goal_of, vector_of

# Pixels in one forward pass, at most; a picture alone is always allowed.
_PIXELS = 600_000

Pictures = Float[Tensor, "picture 3 height width"]
Made = Callable[[slice], Tensor]
Ask = Callable[[Tensor], Tensor]
Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Answer:
    """A target of one picture, and how far another picture has it.

    Attributes:
        model: Who is asked.
        direction: What the model's vector is multiplied with: one class, or a unit embedding.
        is_logits: Whether the vector holds logits; else it is an embedding.
        grid: The grid of tokens, where the model returns tokens.
        words: The target, for a sentence.
    """

    model: VisionModel
    direction: Float[Tensor, " number"]
    is_logits: bool
    grid: TokenGrid | None
    words: str

    @classmethod
    def of(
        cls,
        model: VisionModel,
        pixels: Float[Tensor, "3 height width"],
        target: Target | None = None,
        grid: TokenGrid | None = None,
    ) -> Answer:
        """What ``target`` stands for in this picture, as gradients understand it.

        Raises:
            TargetError: There is no such target.
        """
        with torch.no_grad():
            output = model.module(pixels.unsqueeze(0))
        goal = goal_of(output, model.module, model.labels, target, grid)
        _, is_logits = vector_of(output, model.module, model.labels, grid)
        return cls(model, goal.direction, is_logits, grid, goal.words)

    def vectors(self, pictures: Pictures) -> Float[Tensor, "picture number"]:
        """The model's logits or embeddings of some pictures."""
        with torch.no_grad():
            output = self.model.module(pictures)
        found = [
            vector_of(each, self.model.module, self.model.labels, self.grid)[0]
            for each in _one_by_one(output, len(pictures))
        ]
        return torch.stack(found).float()

    def raw(self, pictures: Pictures) -> Float[Tensor, " picture"]:
        """The number that methods explain: the logit, or how far the embedding reaches."""
        return self.vectors(pictures) @ self.direction.float()

    def share(self, pictures: Pictures) -> Float[Tensor, " picture"]:
        """The same on a scale that ends at 1: the class's probability, or the cosine."""
        vectors = self.vectors(pictures)
        if not self.is_logits:
            return torch.nn.functional.normalize(vectors, dim=1) @ self.direction.float()
        if self.model.is_multi_label:
            return (vectors @ self.direction.float()).sigmoid()
        return vectors.softmax(1) @ self.direction.float()


def in_batches(
    pictures: Made,
    count: int,
    size: tuple[int, int],
    ask: Ask,
    told: Told | None = None,
) -> Float[Tensor, " picture"]:
    """Ask about ``count`` pictures, made a few at a time so that memory stays flat.

    Args:
        pictures: Makes the pictures of a range.
        count: How many there are.
        size: Their height and width in pixels.
        ask: ``Answer.raw`` or ``Answer.share``.
        told: Called with how many are done, of how many.
    """
    length = max(1, _PIXELS // (size[0] * size[1]))
    answers = []
    for start in range(0, count, length):
        part = slice(start, min(start + length, count))
        answers.append(ask(pictures(part)))
        if told is not None:
            told(part.stop, count)
    return torch.cat(answers)


def _one_by_one(output: Any, count: int) -> Iterator[Any]:
    """What a model would have returned for each picture of a batch."""
    if isinstance(output, tuple | list):
        output = output[0]
    for index in range(count):
        if isinstance(output, Mapping):
            yield {
                name: value[index : index + 1]
                for name, value in output.items()
                if isinstance(value, Tensor)
            }
        else:
            yield output[index : index + 1]
