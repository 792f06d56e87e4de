"""What takes passes of its own: a model asked about many pictures that were made of one.

Derivatives are gathered along the straight way from a picture without content to the picture, and
answers while parts of it are covered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vizattn.capture import layer_of
from vizattn.errors import CaptureError, VizattnError
from vizattn.graph import Graph
from vizattn.grid import TokenGrid
from vizattn.masks import random_masks
from vizattn.outputs import vectors_of
from vizattn.targets import Goal
from vizattn.tracked import Tracked, track

# Where a way can begin.
BASELINES = ("black", "mean", "blur")

# Of a blurred picture: the deviation of the Gaussian, as a share of the shorter side.
_BLUR = 1 / 16

# Pixels that go through the model in one pass.
_PIXELS = 2**15

Values = Callable[[Float[Tensor, "batch 3 height width"]], Float[Tensor, " batch"]]


def integrated(
    need: str, values: Values, tracked: Tracked, transform: Callable[[Image.Image], object]
) -> dict[str, Tensor]:
    """The mean derivative of the target by the pixels on the way from a baseline.

    The way is cut into equal steps, and the derivative taken in the middle of each.

    Args:
        need: What is asked for: ``integrated``, the baseline and the number of steps.
        values: The target of each picture of a batch.
        tracked: A pass of the picture.
        transform: What shows the model a picture.

    Returns:
        Under the word itself the mean derivative, ``[3, height, width]``; with ``:start`` behind it
        the baseline, and with ``:ends`` the target there and of the picture.
    """
    _, name, steps = need.split(":")
    end = tracked.leaf.detach()[0]
    start = baseline(name, end, transform)
    with torch.inference_mode(False), torch.enable_grad():
        total = torch.zeros_like(end)
        for shares in parts(int(steps), end.shape[-2:].numel()):
            along = start + shares.to(end).view(-1, 1, 1, 1) * (end - start)
            along.requires_grad_()
            total += torch.autograd.grad(values(along).sum(), along)[0].sum(0)
    with torch.no_grad():
        ends = values(torch.stack([start, end])).float()
    return {need: total / int(steps), f"{need}:start": start, f"{need}:ends": ends}


def last_attention(
    need: str,
    tracked: Tracked,
    goal: Goal,
    grid: TokenGrid | None,
    inputs: dict[str, Any],
    readout: str,
) -> dict[str, Tensor]:
    """What the target gains from the last attention, on the way from the mean colour.

    The pictures on the way are k/K of this one, k from 1 to K. Each has its own values, so its
    derivative by the weights is ``g_k v_kᵀ``; standing beside each other, all ``g_k`` times all
    ``v_k`` are their sum, and no matrix of weights is ever made.

    Args:
        need: What is asked for: ``path`` and the number of steps K.
        tracked: A pass of the picture.
        goal: What was asked about.
        grid: The grid of the output tokens.
        inputs: Further keyword arguments of the forward pass.
        readout: How the model reads its tokens out, where that is known.

    Returns:
        With ``:g`` and ``:v`` behind the word, both for the last call, steps side by side: the
        values are divided by their number.
    """
    steps = int(need.split(":")[1])
    end, found = tracked.leaf.detach()[0], []
    for step in range(1, steps + 1):
        seen = track(tracked.twin, end * step / steps, inputs, readout).seen
        with torch.inference_mode(False), torch.enable_grad():
            scalar = goal.value(vectors_of(seen.output, tracked.twin, grid))[0]
            call, place = seen.on_picture[-1]
            (gradient,) = Graph(scalar).gradients(Graph(scalar).nodes_of([call]))
        call.gradient = gradient.mT if call.is_turned else gradient
        layer = layer_of(call, place)
        assert layer.g is not None
        found.append((layer.g.detach(), layer.values.detach() / steps))
    g, v = (torch.cat(each, dim=-1) for each in zip(*found, strict=True))
    return {f"{need}:g": g, f"{need}:v": v}


def answers_to_masks(need: str, values: Values, tracked: Tracked) -> Float[Tensor, " mask"]:
    """What a model says of a picture with parts of it covered by its mean colour.

    Args:
        need: What is asked for: ``masks``, how many, and their cells along each side.
        values: What it says of each picture of a batch.
        tracked: A pass of the picture.
    """
    _, count, cells = need.split(":")
    pixels = tracked.leaf.detach()[0]
    height, width = pixels.shape[-2:]
    together = max(1, _PIXELS // (height * width))
    with torch.no_grad():
        found = [
            values(masks.to(pixels).unsqueeze(1) * pixels).float().cpu()
            for masks in random_masks(int(count), int(cells), height, width, together)
        ]
    return torch.cat(found)


def parts(steps: int, n_pixels: int) -> list[Float[Tensor, " part"]]:
    """The middles of equal steps from 0 to 1, as many at a time as one pass can take."""
    middles = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    return list(torch.split(middles, max(1, _PIXELS // n_pixels)))


def baseline(
    name: str, pixels: Float[Tensor, "3 height width"], transform: Callable[[Image.Image], object]
) -> Float[Tensor, "3 height width"]:
    """A picture without content, as the model sees it.

    Args:
        name: ``black``; ``mean``, the colour that the model takes off; or ``blur``, the picture
            itself out of focus.
        pixels: The picture.
        transform: What shows the model a picture, which is shown a black one.

    Raises:
        CaptureError: It is not known how the model sees black.
    """
    if name == "mean":
        return torch.zeros_like(pixels)
    if name == "blur":
        return _blurred(pixels)
    height, width = pixels.shape[-2:]
    try:
        shown = transform(Image.new("RGB", (width, height)))
    except VizattnError as error:
        raise CaptureError(
            f"it is not known how this model sees black, because it was wrapped without a "
            f"transform ({error}) The mean colour needs none: baseline mean."
        ) from error
    assert isinstance(shown, tuple)
    black: Tensor = shown[0]
    middle = black[:, black.shape[1] // 2, black.shape[2] // 2]  # the picture's, not a border's
    return middle.to(pixels).view(3, 1, 1).expand_as(pixels).clone()


def _blurred(pixels: Float[Tensor, "3 height width"]) -> Float[Tensor, "3 height width"]:
    """Each pixel the mean of those around it, weighed by a Gaussian that ends with the picture."""
    deviation = min(pixels.shape[-2:]) * _BLUR
    down, along = (_gaussian(count, deviation).to(pixels) for count in pixels.shape[-2:])
    return down @ pixels @ along.mT


def _gaussian(count: int, deviation: float) -> Float[Tensor, "row col"]:
    places = torch.arange(count, dtype=torch.float64)
    scores = -((places[:, None] - places) ** 2) / (2 * deviation**2)
    return scores.softmax(-1)
