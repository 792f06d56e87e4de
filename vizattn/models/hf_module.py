"""A model of transformers as a module that takes pixels and returns a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

# What to return of the many things that such a model returns, the first that is there.
_OUTPUTS = ("logits", "image_embeds", "pooler_output", "last_hidden_state")


class ImageModel(nn.Module):
    """Holds an untouched model of transformers and calls it with pixels by name.

    Attributes:
        model: The model.
        config: Its configuration, where rooms below look for what it says about its tokens.
        num_classes: How many classes it has, when it has any.
    """

    def __init__(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.config: Any = model.config
        n_classes: Any = getattr(model.config, "num_labels", None)
        if "ImageClassification" in type(model).__name__ and isinstance(n_classes, int):
            self.num_classes = n_classes
        self._settings = dict(settings)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits, or else an embedding of the picture, or else the last tokens."""
        given = {
            name: value.to(pixels.device) if isinstance(value, Tensor) else value
            for name, value in self._settings.items()
        }
        return _tensor(self.model(pixel_values=pixels, **given))


def _tensor(output: Any) -> Tensor:
    for name in _OUTPUTS:
        value = getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    values = output if isinstance(output, tuple) else tuple(output.values())
    tensor: Tensor = next(value for value in values if isinstance(value, Tensor))
    return tensor
