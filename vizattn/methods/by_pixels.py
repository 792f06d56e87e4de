"""What methods have in common that give every pixel a relevance: pixels times a gradient.

    map_p = Σ over pixels x of patch p and their colours:  x · ∂y/∂x

The gradient is a plain one, or one whose rules were changed on the way down (``propagation``). In
place of pixels it can be the patch's embedding, before its position is added: a model may normalise
pixels first, and then their plain gradient is at right angles to them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.query import Asker, placed
from vizattn.methods.settings import setting
from vizattn.methods.stream import finer
from vizattn.places import Tokens
from vizattn.record import AttentionRecord


def where() -> Any:
    """The setting that they share."""
    return setting(
        "pixels",
        label="Relevance of",
        help="Whether relevance is that of pixels, or of patch embeddings before their position.",
        kind="choice",
        choices=("pixels", "tokens"),
    )


class OnFinestGrid(Method):
    """A method that gives relevance of the picture itself, laid on the finest grid of patches."""

    class_agnostic: ClassVar[bool] = False
    is_signed: ClassVar[bool] = True
    is_share: ClassVar[bool] = False
    has_query: ClassVar[bool] = False

    def asked(self, record: AttentionRecord) -> Attention:
        """The last layer that can be laid over the picture; the target alone decides."""
        _ = record.grid  # says why there is none
        return record.drawable[-1]

    def shown(self, record: AttentionRecord) -> Tokens:
        """The finest grid of patches."""
        _ = record.grid
        tokens = [placed(layer, layer.keys) for layer in record.drawable]
        finest = tokens[-1]
        for each in reversed(tokens):
            finest = finer(finest, each)
        return Tokens(finest.grid, finest.frame)

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The one map that there is, as of the last layer that can be drawn."""
        if at is not None:
            raise self.no_query()
        last = max(i for i, layer in enumerate(record) if layer is self.asked(record))
        relevance = self(record, torch.zeros(0)).unsqueeze(0)
        return [LayerMaps(last, self.shown(record), relevance)]


class ByPixels(OnFinestGrid):
    """A method that sums pixels times a gradient over the patches, or embeddings times theirs.

    Attributes:
        says: What a map is, for a sentence.
    """

    says: ClassVar[str]
    of: str

    @property
    def wanted(self) -> tuple[str, ...]:
        """By pixels, or by tokens."""
        (rule,) = self.needs
        return (rule,) if self.of == "pixels" else (f"{rule}:{self.of}",)

    def __call__(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],  # noqa: ARG002
    ) -> Float[Tensor, " token"]:
        """Relevance of every patch for the target; tokens without a place have none."""
        (need,) = self.wanted
        if need in record.extras:
            return self._by_tokens(record.extras[need], self.shown(record))
        gradient = record.input_gradients.get(need)
        if gradient is None or record.pixels is None:
            raise MethodError(
                f"{self.name} needs derivatives of a target by the {self.of}, and this record has "
                f"none. Capture it with capture_gradients(model, image, target, "
                f"needs=[{need!r}])."
            )
        by_pixel = (record.pixels.float() * gradient.float()).sum(0)
        return summed(record, self.shown(record), by_pixel)

    def describe(self, record: AttentionRecord, query: str) -> str:  # noqa: ARG002
        """``Gradient × input for class 3: what raises it, and below zero what lowers it``."""
        tokens = "" if self.of == "pixels" else " of patch embeddings"
        says = "what raises it, and below zero what lowers it"
        return f"{self.says}{tokens} for {record.target}: {says}"

    def _by_tokens(self, found: Float[Tensor, " patch"], tokens: Tokens) -> Float[Tensor, " token"]:
        grid = tokens.grid
        if len(found) != grid.n_patches:
            raise MethodError(
                f"the embedding has {len(found)} patches and the finest map {grid.n_patches}, so "
                f"its relevance has no place there. Relevance of pixels has."
            )
        total = torch.zeros(grid.n_tokens)
        total[grid.prefix :] = found
        return total


def summed(
    record: AttentionRecord, tokens: Tokens, by_pixel: Float[Tensor, "height width"]
) -> Float[Tensor, " token"]:
    """Sums over the patches of a grid; tokens without a place get none."""
    total = torch.zeros(tokens.grid.n_tokens, dtype=torch.float64)
    total.index_add_(0, _patches(record, tokens).flatten(), by_pixel.double().flatten().cpu())
    return total.float()


def _patches(record: AttentionRecord, tokens: Tokens) -> Int[Tensor, "height width"]:
    """The token of the patch that each pixel of the model's input lies in, or is nearest to."""
    height, width = record.input_size
    seen, grid, frame = record.frame, tokens.grid, tokens.frame
    y = seen.top + (torch.arange(height, dtype=torch.float64) + 0.5) * seen.height / height
    x = seen.left + (torch.arange(width, dtype=torch.float64) + 0.5) * seen.width / width
    row = ((y - frame.top) / frame.height * grid.rows).floor().long().clamp(0, grid.rows - 1)
    col = ((x - frame.left) / frame.width * grid.cols).floor().long().clamp(0, grid.cols - 1)
    return grid.prefix + row.unsqueeze(1) * grid.cols + col
