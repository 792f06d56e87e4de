"""Fixtures: tiny seeded models and pictures whose right answer is known beforehand.

vizattn is imported inside the fixtures, because the shape checker has to be in place first.
"""

import numpy as np
import pytest
import torch
from PIL import Image
from shape_checker import install

install()
torch.set_num_threads(1)  # these models are so small that threads only wait for each other


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def qk():
    """Queries and keys of 3 heads, 17 tokens, dimension 8, with scores far from uniform."""
    return torch.randn(2, 3, 17, 8, dtype=torch.float64).mul(1.5).unbind()


@pytest.fixture
def tiny_vit():
    """The seed with 2 layers, 2 heads and 16-pixel patches on 64×48 pixels (4 × 3 patches)."""
    from vizattn.vit import ViT

    model = ViT(
        image_size=(64, 48), patch_size=16, num_classes=5, dim=24, depth=2, heads=2, dim_head=12,
        mlp_dim=32,
    )  # fmt: skip
    return randomised(model)


@pytest.fixture
def tiny_timm():
    """A plain timm vision transformer, 3 blocks of 2 heads on 64×64 pixels (4 × 4 patches)."""
    import timm

    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, depth=3, embed_dim=32, num_heads=2, num_classes=5,
        dynamic_img_size=True,
    )  # fmt: skip
    return randomised(model)


def randomised(model):
    """Weights large enough that attention is far from uniform: a wrong scale would show."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            gain = 2.0 if "qkv" in name else 1.0
            parameter.data.normal_(0, gain / parameter.shape[-1] ** 0.5, generator=generator)
    return model.eval()


@pytest.fixture
def pixels():
    return torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def record(tiny_timm, pixels):
    from vizattn.capture import capture

    return capture(tiny_timm, pixels)


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
