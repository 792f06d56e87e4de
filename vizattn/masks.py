"""Random masks that cover parts of a picture softly, always the same for the same numbers.

    a small grid of ones and zeros, drawn by chance -> enlarged bilinearly by one cell more than the
    picture in each direction -> cut out at a place drawn by chance

Source: Petsiuk, Das & Saenko 2018, "RISE: Randomized Input Sampling for Explanation of Black-box
Models", BMVC, section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

# How many cells of a mask show the picture, on average.
KEPT = 0.5

_SEED = 0


def random_masks(
    count: int, cells: int, height: int, width: int, together: int = 64
) -> Iterator[Float[Tensor, "part {height} {width}"]]:
    """Masks from 0 (covered) to 1, a few at a time; the same whatever the number at a time.

    Args:
        count: How many.
        cells: Cells along each side of the picture.
        height: Height of the picture in pixels.
        width: Its width.
        together: How many at a time.
    """
    generator = torch.Generator().manual_seed(_SEED)
    high, wide = -(-height // cells), -(-width // cells)
    for start in range(0, count, together):
        masks = []
        for _ in range(min(together, count - start)):
            grid = (torch.rand(1, 1, cells, cells, generator=generator) < KEPT).float()
            down = int(torch.randint(high, (), generator=generator))
            along = int(torch.randint(wide, (), generator=generator))
            size = ((cells + 1) * high, (cells + 1) * wide)
            large = F.interpolate(grid, size, mode="bilinear", align_corners=False)[0, 0]
            masks.append(large[down : down + height, along : along + width])
        yield torch.stack(masks)
