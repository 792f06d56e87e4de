"""Draw the README's picture from the embedded model: ``python scripts/readme_pictures.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

import vizattn as va

ASSETS = Path(__file__).parent.parent / "assets"

# What is shown, left to right: a picture and the map laid over it.
HEADS = [("astronaut", 11, 5), ("chelsea", 11, 2), ("rocket", 11, 1), ("coffee", 11, 4)]
SIDE, GAP = 300, 12


def main() -> None:
    """Write ``assets/readme.jpg``."""
    model = va.load_model("vizattn/dinov2-small")
    columns = [column(model, *head) for head in HEADS]
    gap = np.full((columns[0].shape[0], GAP, 3), 255, dtype=np.uint8)
    parts = [part for each in columns for part in (each, gap)][:-1]
    path = ASSETS / "readme.jpg"
    Image.fromarray(np.concatenate(parts, axis=1)).save(path, quality=90)
    print(f"wrote {path} ({path.stat().st_size / 1000:.0f} kB)")


def column(model: va.VisionModel, name: str, layer: int, head: int) -> np.ndarray:
    """The picture above, one head's map over it below, both cut to a square."""
    image = va.open_image(ASSETS / "examples" / f"{name}.jpg")
    record = va.capture(model, image)
    heat = va.RawAttention(layer=layer, head=head).heatmap(record)
    drawn = Image.fromarray(va.overlay(image, heat, opacity=0.9))
    gap = np.full((GAP, SIDE, 3), 255, dtype=np.uint8)
    return np.concatenate([np.asarray(square(image)), gap, np.asarray(square(drawn))])


def square(image: Image.Image) -> Image.Image:
    """The middle of a picture as a square of ``SIDE`` pixels."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side)).resize(
        (SIDE, SIDE), Image.Resampling.LANCZOS
    )


if __name__ == "__main__":
    main()
