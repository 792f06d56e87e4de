"""The text towers of transformers' models with two towers: fetched when somebody brings a text."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from vizattn.errors import ModelError
from vizattn.models.hub import hugging_face
from vizattn.models.vision import Request, TextTower


def text_tower(
    transformers: Any, request: Request, config: Any, vision: nn.Module
) -> TextTower | None:
    """From a text to its embedding, where the model was trained with text.

    Args:
        transformers: The library.
        request: The model that was asked for; a file of weights fills the vision tower alone.
        config: The configuration of the whole model.
        vision: Its vision tower.
    """
    kind = transformers.MODEL_MAPPING.get(type(config), None)
    if request.path is not None or not hasattr(kind, "get_text_features"):
        return None

    @cache
    def parts() -> tuple[Any, Any]:
        with hugging_face(request.full_name):
            tokenizer = transformers.AutoTokenizer.from_pretrained(request.name)
            return _built(kind, request, config, vision), tokenizer

    def embed(text: str) -> Tensor:
        model, tokenizer = parts()
        # as they were trained: SigLIP reads its last token, the padding, and CLIP finds its own
        tokens = tokenizer(
            [text], padding="max_length", truncation=True, return_tensors="pt",
            max_length=config.text_config.max_position_embeddings,
        )  # fmt: skip
        taken = inspect.signature(kind.get_text_features).parameters
        with torch.no_grad():
            found = model.get_text_features(**{k: v for k, v in tokens.items() if k in taken})
        pooled: Tensor = getattr(found, "pooler_output", found)
        return pooled[0]

    return embed


def _built(kind: Any, request: Request, config: Any, vision: nn.Module) -> nn.Module:
    """The whole model without its vision tower, which is there already."""
    if request.is_pretrained:
        model: Any = kind.from_pretrained(request.name, config=config, dtype=torch.float32)
    else:
        model = kind(config)
    if hasattr(model, "visual_projection") and not hasattr(vision, "visual_projection"):
        raise ModelError(
            f"the vision tower of {request.full_name} is loaded without its projection into the "
            f"space that it shares with text, so the two cannot be compared."
        )
    model.vision_model = None
    built: nn.Module = model.eval()
    return built
