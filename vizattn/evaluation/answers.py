"""What a model answers about one target, for many changed pictures at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.grid import TokenGrid
from vizattn.models import VisionModel
from vizattn.outputs import vectors_of
from vizattn.targets import Goal, Target, goal_of

# Pixels in one forward pass, at most; a picture alone is always allowed. More pictures at a time
# fall out of the processor's cache: ViTs take the same or up to three times as long for each.
_PIXELS = 2**15

Pictures = Float[Tensor, "picture 3 height width"]
Made = Callable[[slice], Tensor]
Ask = Callable[[Tensor], Tensor]
Told = Callable[[int, int], None]


@dataclass(frozen=True)
class Answer:
    """A target of one picture, and how far another picture has it.

    Attributes:
        model: Who is asked.
        goal: What is asked, found for one picture.
        grid: The grid of tokens, where the model returns tokens.
    """

    model: VisionModel
    goal: Goal
    grid: TokenGrid | None

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
        return cls(model, goal, grid)

    def vectors(self, pictures: Pictures) -> Float[Tensor, "picture number"]:
        """The model's logits or embeddings of some pictures."""
        with torch.no_grad():
            output = self.model.module(pictures)
        return vectors_of(output, self.model.module, self.grid).float()

    def raw(self, pictures: Pictures) -> Float[Tensor, " picture"]:
        """The number that methods explain: a logit, or what an embedding is asked for."""
        return self.goal.value(self.vectors(pictures))

    def share(self, pictures: Pictures) -> Float[Tensor, " picture"]:
        """The same on a scale that ends at 1: the class's probability, or the cosine."""
        is_multi_label = self.model.is_multi_label
        return self.goal.share(self.vectors(pictures), is_multi_label=is_multi_label)


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
