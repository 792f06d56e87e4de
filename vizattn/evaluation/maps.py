"""Maps of many methods for one question, made with as few passes as they can share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from vizattn.capture import capture
from vizattn.errors import VizattnError
from vizattn.evaluation.baselines import BASELINES, baseline
from vizattn.evaluation.samples import Sample
from vizattn.evaluation.scores import smoothed
from vizattn.frame import Frame
from vizattn.gradients import capture_gradients
from vizattn.grid import TokenGrid
from vizattn.heatmap import Heatmap
from vizattn.methods import METHODS, Method
from vizattn.models import VisionModel
from vizattn.record import AttentionRecord

# What the name of a map ends with when its values were smoothed.
SMOOTH = " ~"


@dataclass(frozen=True)
class Maps:
    """Maps of one question.

    Attributes:
        heats: Name of a method, or of a baseline, and its map. Smoothed ones end with `` ~``.
        refused: Name of a method and why it has none.
        seen: The part of the picture that the model saw.
        grid: Of the tokens that the model put out.
    """

    heats: Mapping[str, Heatmap]
    refused: Mapping[str, str]
    seen: Frame
    grid: TokenGrid


def recipes_of(names: Iterable[str]) -> dict[str, Method]:
    """Methods by their names, with the settings that they come with; ``all`` for every one.

    Baselines are always there and may be named; they are no methods.

    Raises:
        UnknownName: There is no such method.
    """
    from vizattn.methods import find_method

    wanted = [*names]
    if "all" in wanted:
        # one that asks nobody and aims at nothing describes the model and explains nothing
        wanted = [name for name, each in METHODS.items()
                  if each.has_query or not each.class_agnostic]  # fmt: skip
    return {name: find_method(name)() for name in wanted if name not in BASELINES}


def maps_of(
    model: VisionModel, sample: Sample, recipes: Mapping[str, Method], *, smooth: bool = False
) -> Maps:
    """Maps of all these methods and of the baselines, from one record where one will do.

    Args:
        model: Who is asked.
        sample: What about.
        recipes: By name.
        smooth: Whether each map comes smoothed as well.
    """
    record = capture(model, sample.picture)
    heats: dict[str, Heatmap] = {}
    refused: dict[str, str] = {}
    shared = _record_for_all(model, sample, recipes)
    for name, recipe in recipes.items():
        try:
            of = shared or _record_for(model, sample, recipe)
            heats[name] = recipe.heatmap(of)
        except VizattnError as error:
            refused[name] = str(error)
    grid = record.grid
    seed = sum(map(ord, sample.name))
    for name in BASELINES:
        values = baseline(name, grid.rows, grid.cols, seed)
        heats[name] = Heatmap(values, grid, record.frame, values.new_zeros(0))
    if smooth:
        heats |= {name + SMOOTH: replace(heat, values=smoothed(heat.values))
                  for name, heat in heats.items()}  # fmt: skip
    return Maps(heats, refused, record.frame, grid)


def _record_for_all(
    model: VisionModel, sample: Sample, recipes: Mapping[str, Method]
) -> AttentionRecord | None:
    """One record that holds what every method needs, or nothing where one cannot have it."""
    needs = {need: None for recipe in recipes.values() for need in recipe.wanted}
    try:
        return capture_gradients(model, sample.picture, sample.target, needs=needs)
    except VizattnError:
        return None


def _record_for(model: VisionModel, sample: Sample, recipe: Method) -> AttentionRecord:
    if not recipe.wanted:
        return capture(model, sample.picture)
    return capture_gradients(model, sample.picture, sample.target, needs=recipe.wanted)
