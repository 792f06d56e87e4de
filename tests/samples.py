"""Models, pictures and records in small, and what is known of them beforehand."""

import numpy as np
import torch
from PIL import Image


def randomised(model):
    """Weights large enough that attention is far from uniform: a wrong scale would show."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            gain = 2.0 if "qkv" in name else 1.0
            parameter.data.normal_(0, gain / parameter.shape[-1] ** 0.5, generator=generator)
    return model.eval()


def dot_image(width, height, x, y, radius=6):
    """A black picture with one white square around pixel ``x``, ``y``."""
    values = np.zeros((height, width, 3), dtype=np.uint8)
    values[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1] = 255
    return Image.fromarray(values)


def tokens_of(grid, frame=None, index=None):
    """Where the tokens of a grid lie; on ten pixels for each patch when nothing else is said."""
    from vizattn.frame import Frame
    from vizattn.places import Tokens

    return Tokens(grid, frame or Frame(0, 0, 10 * grid.cols, 10 * grid.rows), index)


def dense(layer):
    """All weights of a layer, ``[head, query, key]``, the slow and obvious way in float64."""
    scores = layer.q.double() @ layer.k.double().mT * layer.scale
    if layer.bias is not None:
        scores = scores + layer.bias.double()
    return scores.softmax(-1)
