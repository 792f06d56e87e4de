"""Fixtures: tiny seeded models and pictures whose right answer is known beforehand.

vizattn is imported inside the fixtures, because the shape checker has to be in place first.
"""

import pytest
import torch
from samples import randomised
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


@pytest.fixture
def pixels():
    return torch.randn(3, 64, 64, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def record(tiny_timm, pixels):
    from vizattn.capture import capture

    return capture(tiny_timm, pixels)
