"""Gather the photos that installed packages carry, to judge maps on mosaics of them.

    python scripts/gather_photos.py build/photos

Photos of scikit-image, scikit-learn, matplotlib and gradio, none of which is copied into the
project. Large ones give four squares, one from each corner. Each photo has a folder of its own,
because two pieces of one photo must not meet in a mosaic; every second photo is for tuning, the
others are for reports, so that no piece of a photo is in both.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

SIDE = 320
PLACES = {
    "skimage": ("data", "*.png", "*.jpg"),
    "sklearn": ("datasets/images", "*.jpg"),
    "matplotlib": ("mpl-data/sample_data", "*.jpg"),
    "gradio": ("media_assets/images", "*.jpg", "*.jpeg"),
}
# Drawings, text, tests' own pictures and second views of what is there already.
LEFT_OUT = {
    "color", "motorcycle_right", "multipage", "no_time_for_that_tiny", "microaneurysms", "phantom",
    "chessboard_GRAY", "chessboard_RGB", "text", "page", "logo", "checker_bilevel", "clock_motion",
    "cheetah1", "horse", "rank_filters_expected",
}  # fmt: skip
SMALLEST, LARGE = 200, 380


def squares(image: Image.Image) -> list[Image.Image]:
    """Squares of a photo, at one size: its middle, or its four corners where it is large."""
    width, height = image.size
    side = min(width, height)
    corners = [((width - side) // 2, (height - side) // 2)]
    if side >= LARGE:
        side = min(side * 5 // 8, max(width, height) // 2)
        corners = [(x, y) for y in (0, height - side) for x in (0, width - side)]
    return [
        image.resize((SIDE, SIDE), Image.Resampling.LANCZOS, (x, y, x + side, y + side))
        for x, y in corners
    ]


def main(folder: Annotated[Path, typer.Argument(help="Where to put them.")]) -> None:
    """Gather photos into ``tune`` and ``report``."""
    found = []
    for package, (place, *patterns) in PLACES.items():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            raise SystemExit(f"{package} is not installed; it carries some of the photos.")
        home = Path(spec.origin).parent / place
        found += sorted(path for pattern in patterns for path in home.glob(pattern))
    number = 0
    for path in found:
        with Image.open(path) as file:
            image = file.convert("RGB")
        if path.stem in LEFT_OUT or min(image.size) < SMALLEST:
            continue
        split = ("tune", "report")[number % 2]
        number += 1
        for index, square in enumerate(squares(image)):
            target = folder / split / path.stem / f"{index + 1}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            square.save(target)
    for split in ("tune", "report"):
        print(split, len(list((folder / split).glob("*/*.png"))), "pictures")


if __name__ == "__main__":
    typer.run(main)
