"""What a model with classes says of a picture: its first classes, with their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vizattn.models import VisionModel
from vizattn.outputs import logits_of
from vizattn.record import AttentionRecord
from vizattn.targets import class_name

# How many classes are named where somebody is to choose among all of them.
FIRST = 5


@dataclass(frozen=True)
class Prediction:
    """One class.

    Attributes:
        index: Its number, from 0.
        name: The first of its names, or its number where names are not known.
        probability: Among all classes; for a model in which several may be there at once, alone.
        logit: What gradients are asked of.
    """

    index: int
    name: str
    probability: float
    logit: float


def predictions_of(
    record: AttentionRecord, model: VisionModel, count: int = FIRST
) -> tuple[Prediction, ...]:
    """The first classes, the likeliest first; none where the model has no classes.

    Args:
        record: What was captured of a picture; it holds what the model returned.
        model: The model.
        count: How many classes.
    """
    output = record.output
    if output is None:
        return ()
    logits = logits_of(output.unsqueeze(0), model.module, model.labels)
    if logits is None:
        return ()
    logits = logits.double().cpu()
    shares = logits.sigmoid() if model.is_multi_label else logits.softmax(0)
    order = logits.argsort(descending=True, stable=True)[:count].tolist()
    return tuple(
        Prediction(
            index, class_name(index, model.labels, len(logits)),
            float(shares[index]), float(logits[index]),
        )
        for index in order
    )  # fmt: skip


def in_words(predictions: Sequence[Prediction]) -> str:
    """The classes in one line: ``tabby 81 %, lynx 6.0 %``."""
    return ", ".join(f"{each.name} {_percent(each.probability)}" for each in predictions)


def _percent(share: float) -> str:
    percent = 100 * share
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %" if percent < 9.95 else f"{percent:.0f} %"
