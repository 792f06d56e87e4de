"""Whether maps depend on what a model has learnt at all.

A map that stays the same when the weights are drawn anew shows the picture, not the model.

Source: Adebayo et al. 2018, "Sanity Checks for Saliency Maps", section 3 (all layers at once).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import nn

from vizattn.evaluation.maps import maps_of
from vizattn.evaluation.samples import Sample
from vizattn.evaluation.scores import correlation, middle_ranks
from vizattn.methods import Method
from vizattn.models import VisionModel

_SEED = 0


def randomised(model: VisionModel) -> VisionModel:
    """The same model with weights drawn anew; the given one stays as it is.

    Modules that know how to start are asked to; other parameters, such as class tokens and
    positions, are drawn from a normal distribution with the mean and spread that they have.
    """
    module = copy.deepcopy(model.module)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(_SEED)
        started: set[int] = set()
        for part in module.modules():
            start = getattr(part, "reset_parameters", None)
            if callable(start):
                start()
                started |= {id(weight) for weight in part.parameters(recurse=False)}
        for weight in module.parameters():
            if id(weight) not in started and weight.numel() > 1:
                weight.normal_(float(weight.mean()), float(weight.std()))
    return replace(model, module=_still(module))


def _still(module: nn.Module) -> nn.Module:
    return module.eval().requires_grad_(False)


def likeness(
    model: VisionModel, samples: Iterable[Sample], recipes: Mapping[str, Method]
) -> dict[str, list[float]]:
    """Rank correlation of each map with that of a randomised model, for each sample.

    1 means that the model does not matter, 0 that nothing is left of the map. Baselines, which know
    no model, show what the check makes of such maps.
    """
    other = randomised(model)
    found: dict[str, list[float]] = {}
    for sample in samples:
        ours, theirs = (maps_of(each, sample, recipes).heats for each in (model, other))
        for name in ours.keys() & theirs.keys():
            ranks = [middle_ranks(heats[name].values.flatten()) for heats in (ours, theirs)]
            found.setdefault(name, []).append(correlation(*ranks))
    return found
