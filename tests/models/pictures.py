"""Pictures of awkward shapes, and where a bright dot in them must be found."""

import numpy as np
from PIL import Image

SHAPES = [(451, 300), (300, 451), (512, 512), (100, 397), (37, 29), (640, 639)]


def noise(width, height):
    values = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def dot(width, height, x, y, radius=6):
    values = np.zeros((height, width, 3), dtype=np.uint8)
    values[y - radius : y + radius + 1, x - radius : x + radius + 1] = 255
    return Image.fromarray(values)


def error_of_frame(transform, size, where=(0.52, 0.47)):
    """How far, in pixels of the original, the brightest pixel is from the dot's middle."""
    x, y = int(where[0] * size[0]), int(where[1] * size[1])
    pixels, frame = transform(dot(*size, x, y))
    light = pixels.sum(0)
    light = light - light.min()
    rows, cols = light.shape
    mass = light.where(light > 0.5 * light.max(), light.new_zeros(()))
    row = float((mass.sum(1) * (light.new_tensor(range(rows)) + 0.5)).sum() / mass.sum())
    col = float((mass.sum(0) * (light.new_tensor(range(cols)) + 0.5)).sum() / mass.sum())
    seen_x = frame.left + col / cols * frame.width
    seen_y = frame.top + row / rows * frame.height
    return max(abs(seen_x - x - 0.5), abs(seen_y - y - 0.5))
