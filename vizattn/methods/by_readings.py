"""What methods have in common that read the model out after each of its layers.

Each reading says something of the attention of its layer; the map is the sum over layers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import MethodError
from vizattn.layers import Attention
from vizattn.methods.base import LayerMaps, Method
from vizattn.methods.query import Asker, placed
from vizattn.methods.tiles import why_no_weights
from vizattn.places import Tokens
from vizattn.record import AttentionRecord


class ByReadings(Method):
    """A method that sums up what readings after each layer say of its attention.

    Attributes:
        says: What a map is, for a sentence.
    """

    class_agnostic: ClassVar[bool] = False
    is_share: ClassVar[bool] = False
    has_query: ClassVar[bool] = False
    says: ClassVar[str]

    start_layer: int

    @abstractmethod
    def _of_layer(self, layer: Attention) -> Float[Tensor, " key"]:
        """What one reading contributes to the sum."""

    def asked(self, record: AttentionRecord) -> Attention:
        """The last reading; the target alone decides."""
        return self._readings(record)[-1]

    def shown(self, record: AttentionRecord) -> Tokens:
        """The tokens of the last reading, which all readings share."""
        layer = self.asked(record)
        return placed(layer, layer.keys)

    def __call__(
        self,
        record: AttentionRecord,
        query: Float[Tensor, " query"],  # noqa: ARG002
    ) -> Float[Tensor, " token"]:
        """The sum over layers from ``start_layer`` on."""
        return torch.stack([self._of_layer(layer) for layer in self._readings(record)]).sum(0)

    def by_layer(self, record: AttentionRecord, at: Asker | None = None) -> list[LayerMaps]:
        """The sum up to each layer, which is the map of a model that ends there."""
        if at is not None:
            raise self.no_query()
        tokens = self.shown(record)
        sums = torch.stack([self._of_layer(layer) for layer in self._readings(record)]).cumsum(0)
        return [
            LayerMaps(self.start_layer + index, tokens, each.unsqueeze(0))
            for index, each in enumerate(sums)
        ]

    def describe(self, record: AttentionRecord, query: str) -> str:  # noqa: ARG002
        """``LeGrad over 12 layers for class 3: where more attention would raise it``."""
        count = len(self._readings(record))
        over = f"{count} layer{'s' * (count > 1)}"
        return f"{self.says} over {over} for {record.target}: where more attention would raise it"

    def _readings(self, record: AttentionRecord) -> tuple[Attention, ...]:
        (need,) = self.needs
        found = record.readouts.get(need, ())
        if not found:
            raise MethodError(
                f"{self.name} needs the model read out after each layer, and this record has no "
                f"such readings. Capture it with capture_gradients(model, image, target, "
                f"needs=[{need!r}])."
            )
        if self.start_layer >= len(found):
            raise MethodError(
                f"got start_layer {self.start_layer} of a model with {len(found)} layers; at "
                f"least one layer has to stay."
            )
        readings = found[self.start_layer :]
        grids = {placed(layer, layer.keys).grid for layer in readings}
        if len(grids) > 1:
            raise MethodError(
                f"{self.name} adds up the maps of layers, and those of {record.model} have "
                f"different grids. GAE passes from one to the other."
            )
        for layer in readings:
            why = why_no_weights(layer)
            if why:
                raise MethodError(f"{self.name} is not defined in {layer.name}: {why}.")
        return readings
