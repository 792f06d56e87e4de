"""What a model makes of each patch: its output tokens as colours, and how long they are.

Patches whose tokens point the same way get the same colour when three principal components become
red, green and blue: parts of things stand out that nobody named. The length of a token finds the
few patches that a model without registers uses as notepaper: their attention says little about
what lies there.

Sources: Oquab et al. 2023, "DINOv2", section 7.5 and figure 1 (components as colours); Darcet et
al. 2024, "Vision Transformers Need Registers", section 2 (norms).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vizattn.blocks import block_of
from vizattn.capture import capture
from vizattn.errors import CaptureError, MethodError
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.heatmap import Heatmap
from vizattn.images import ImageSource, open_image
from vizattn.methods.query import placed
from vizattn.models import VisionModel, wrap_model
from vizattn.places import Tokens
from vizattn.record import AttentionRecord

# Each component takes the whole range of its colour between these percentiles of its values, so
# that a few far-off patches do not leave all others grey.
LOW, HIGH = 1.0, 99.0


@dataclass(frozen=True)
class Features:
    """Tokens as they left a layer, or the model.

    Attributes:
        tokens: One vector for each token, prefix tokens first.
        grid: Which token is which patch.
        frame: The rectangle of the original picture that the grid covers.
        model: Name of the model.
        module: The module whose output they are, as ``named_modules`` names it.
    """

    tokens: Float[Tensor, "token dim"]
    grid: TokenGrid
    frame: Frame
    model: str = "model"
    module: str = ""

    def norms(self) -> Heatmap:
        """The length of every patch's token; ``prefix_mass`` holds that of the prefix tokens."""
        lengths = self.tokens.norm(dim=-1)
        made = {"model": self.model, "map": "token norm", "module": self.module}
        values = self.grid.to_map(lengths)
        sentence = (
            f"Length of the tokens after {self.module or 'the model'}: median "
            f"{float(values.median()):.3g} and at most {float(values.max()):.3g} on a patch."
        )
        return Heatmap.from_relevance(lengths, self.grid, self.frame, made, sentence)

    def colours(self, low: float = LOW, high: float = HIGH) -> FeatureColours:
        """The first three principal components of the patches, as red, green and blue.

        Args:
            low: Percentile of a component that takes none of its colour.
            high: Percentile of a component that takes all of it.

        Raises:
            MethodError: The percentiles do not follow each other, or there are fewer than four
                patches or three dimensions.
        """
        if not 0 <= low < high <= 100:
            raise MethodError(
                f"percentiles run from 0 to 100, the lower one first; got {low:g} and {high:g}."
            )
        patches = self.tokens[self.grid.prefix :].double()
        scores, shares = _components(patches)
        bottom, top = (torch.quantile(scores, part / 100, dim=0) for part in (low, high))
        spread = top - bottom
        unit = torch.where(spread > 0, (scores - bottom) / spread, 0.5).clamp(0, 1)
        rgb = unit.reshape(self.grid.rows, self.grid.cols, 3).float()
        return FeatureColours(rgb, tuple(shares.tolist()), (low, high), self.grid, self.frame)


@dataclass(frozen=True)
class FeatureColours:
    """Three principal components of the patches as red, green and blue.

    Attributes:
        rgb: From 0 to 1 in each channel; 0.5 throughout where a component does not vary.
        shares: Share of the patches' variance on each component.
        percentiles: Percentiles of each component that took 0 and 1.
        grid: Which token is which patch.
        frame: The rectangle of the original picture that the grid covers.
    """

    rgb: Float[Tensor, "row col 3"]
    shares: tuple[float, ...]
    percentiles: tuple[float, float]
    grid: TokenGrid
    frame: Frame

    @property
    def sentence(self) -> str:
        """How to read the colours."""
        red, green, blue = (f"{100 * share:.0f} %" for share in self.shares)
        low, high = self.percentiles
        return (
            f"Like colours, like tokens: the principal components with {red}, {green} and {blue} "
            f"of the variance as red, green and blue, each from percentile {low:g} to percentile "
            f"{high:g} of its values."
        )


def capture_features(
    model: VisionModel | nn.Module,
    image: ImageSource,
    *,
    layer: int | None = None,
    record: AttentionRecord | None = None,
) -> Features:
    """Run a model on a picture and keep the tokens that it, or one of its layers, puts out.

    Args:
        model: From ``load_model`` or ``wrap_model``, or a module, which is wrapped as it is.
        image: Anything ``open_image`` takes.
        layer: A layer by its number in the record: tokens after its whole block, with the
            residual connection. When left out, the tokens that the model reads out in the end,
            after its last normalisation.
        record: The record of the same model and picture, where it is at hand; saves a pass.

    Raises:
        CaptureError: It is not known which module puts the tokens out, or they do not lie on the
            grid of the attention.
        OutOfRange: There is no such layer.
    """
    model = model if isinstance(model, VisionModel) else wrap_model(model)
    picture = open_image(image)
    record = capture(model, picture) if record is None else record
    module = model.module
    if layer is None:
        name, tokens = _last_module(module), placed(record.drawable[-1], record.drawable[-1].keys)
    else:
        name = block_of(module, record[layer].name)
        tokens = placed(record[layer], record[layer].queries)
    pixels, _ = model.transform(picture)
    first = next(module.parameters(), pixels)
    with torch.no_grad(), _output_of(module.get_submodule(name)) as kept:
        module(pixels.unsqueeze(0).to(device=first.device, dtype=first.dtype))
    said = name or type(module).__name__
    return Features(_on_grid(kept, tokens, said), tokens.grid, tokens.frame, record.model, said)


@contextmanager
def _output_of(module: nn.Module) -> Iterator[list[Tensor | None]]:
    """What a module returns, call by call; the hook is gone afterwards, whatever happens."""
    kept: list[Tensor | None] = []
    handle = module.register_forward_hook(
        lambda _module, _inputs, output: kept.append(_own(output))
    )
    try:
        yield kept
    finally:
        handle.remove()


def _own(output: Any) -> Tensor | None:
    """The tokens among what a module returned, as a copy that later layers cannot write into."""
    if isinstance(output, Mapping):  # transformers' outputs are mappings
        output = output.get("last_hidden_state")
    if isinstance(output, tuple | list):
        output = output[0] if output else None
    return output.detach().clone() if isinstance(output, Tensor) else None


def _on_grid(kept: list[Tensor | None], where: Tokens, name: str) -> Float[Tensor, "token dim"]:
    """One vector for each token of a grid, from ``[1, token, dim]`` or a map of patches.

    Raises:
        CaptureError: The shape is another one, or the module was not called just once.
    """
    grid = where.grid
    found = kept[0] if len(kept) == 1 else None
    if found is not None and found.dim() == 4 and grid.prefix == 0:
        if tuple(found.shape[2:]) == (grid.rows, grid.cols):
            found = found.permute(0, 2, 3, 1)
        if tuple(found.shape[1:3]) == (grid.rows, grid.cols):
            found = found.flatten(1, 2)
    if found is None or found.dim() != 3 or found.shape[:2] != (1, grid.n_tokens):
        came = f"{len(kept)} calls" if len(kept) != 1 else _shape(kept[0])
        raise CaptureError(
            f"{name} did not put out one token for each of the {grid.prefix} prefix tokens and "
            f"{grid.rows}×{grid.cols} patches: {came}."
        )
    return found[0].float().cpu()


def _shape(found: Tensor | None) -> str:
    return "no tensor" if found is None else f"a tensor of shape {tuple(found.shape)}"


def _last_module(module: nn.Module) -> str:
    """The name of the module that puts the model's last tokens out.

    Raises:
        CaptureError: The model is of no family that is known here.
    """
    inner = getattr(module, "model", None)
    if hasattr(module, "config") and isinstance(inner, nn.Module) and hasattr(inner, "config"):
        return ".".join(["model", _last_module(inner)]).rstrip(".")  # in a shell, by its name
    base = getattr(module, "base_model_prefix", None)
    if isinstance(base, str) and hasattr(module, "config"):  # transformers
        return base if isinstance(getattr(module, base, None), nn.Module) else ""
    children = dict(module.named_children())
    if hasattr(module, "forward_features") and "norm" in children:  # timm
        return "norm"
    if hasattr(children.get("encoder"), "ln"):  # torchvision
        return "encoder"
    if hasattr(children.get("transformer"), "norm"):  # vit-pytorch and the seed
        return "transformer"
    raise CaptureError(
        f"it is not known which part of {type(module).__name__} puts its last tokens out; timm, "
        f"transformers, torchvision and vit-pytorch models are. Ask for a layer's instead."
    )


def _components(
    patches: Float[Tensor, "patch dim"],
) -> tuple[Float[Tensor, "patch 3"], Float[Tensor, "3"]]:
    """Scores on the first three principal components, and their shares of the variance.

    A component's sign is arbitrary; the one is taken whose largest weight is positive, so that the
    same tokens always give the same colours.
    """
    n_patches, dim = patches.shape
    if n_patches < 4 or dim < 3:
        raise MethodError(
            f"got {n_patches} patches of {dim} dimensions; three components need at least four "
            f"patches and three dimensions."
        )
    centred: Tensor = patches - patches.mean(0)
    variance, axes = torch.linalg.eigh(centred.mT @ centred)  # ascending
    axes, variance = axes[:, -3:].flip(1), variance.clamp_min(0)
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    total = variance.sum()
    shares = variance[-3:].flip(0) / total if total > 0 else torch.zeros(3).double()
    scores = centred @ (axes * largest.sign())
    # what is left of a component without variance is rounding, and no colour should show it
    return torch.where(shares > 1e-12, scores, 0), shares
