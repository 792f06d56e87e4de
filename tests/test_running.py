"""Operations under a mode give the bits that they give without one."""

import pytest
import torch
from torch import nn

from vizattn.observation import observe


class Blocks(nn.Module):
    """A linear layer on tokens that lie block by block in memory, and attention among them."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 256, 4, 4)
        self.qkv = nn.Linear(256, 768)

    def forward(self, images):
        x = self.patches(images).permute(0, 2, 3, 1).contiguous()
        blocks = x.view(1, 2, 7, 2, 7, 256).transpose(2, 3)
        q, k, v = self.qkv(blocks).flatten(1, 2).flatten(2, 3).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("is_trainable", [True, False])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_linear_layer_on_strided_tokens_runs_the_kernels_of_a_plain_pass(is_trainable, context):
    model = Blocks().eval().requires_grad_(is_trainable)
    pixels = torch.randn(3, 56, 56)
    with context():
        plain = model(pixels.unsqueeze(0))
        for _ in range(3):  # found out, and then remembered
            assert torch.equal(observe(model, pixels).output, plain)


def test_places_are_found_once_for_each_size():
    model = Blocks().eval()
    first = observe(model, torch.randn(3, 56, 56))
    assert observe(model, torch.randn(3, 56, 56)).places is first.places
