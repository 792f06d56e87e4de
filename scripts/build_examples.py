"""Build assets/examples: the pictures that the page offers.

Four photos as JPEG at full size, files inside scikit-image's wheel, so nothing is downloaded; and
two pictures of digits, made here. Who made them and under which licence is written in
assets/examples/CREDITS.md.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import skimage.data
import typer
from PIL import Image

from vizattn.digits import Scenery, read_scans
from vizattn.errors import ImageError

SOURCES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
QUALITY = 90  # of 100, JPEG
# Of sixty pictures of digits by writers the model never saw: the number of each, by file.
DIGITS = {"digits-2678.png": 3, "digits-3469.png": 18}
LARGEST = 300_000  # bytes a picture may take
OUTPUT = Path(__file__).resolve().parents[1] / "assets" / "examples"


def find(name: str) -> Path:
    """The file ``name`` in the installed scikit-image."""
    path = Path(skimage.data.__file__).parent / name
    if not path.exists():
        raise ImageError(
            f"no {name} in {path.parent}. Does this release of scikit-image download it instead?"
        )
    return path


def as_jpeg(source: Path) -> bytes:
    """The picture as JPEG bytes; one that is JPEG already stays as it is, to lose nothing."""
    if source.suffix == ".jpg":
        encoded = source.read_bytes()
    else:
        buffer = io.BytesIO()
        Image.open(source).convert("RGB").save(buffer, "JPEG", quality=QUALITY, optimize=True)
        encoded = buffer.getvalue()
    if len(encoded) > LARGEST:
        raise ImageError(f"{source.name} takes {len(encoded)} bytes, at most {LARGEST} are wanted.")
    return encoded


def main(output: Annotated[Path, typer.Option(help="Where they go.")] = OUTPUT) -> None:
    """Write the example pictures."""
    output.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        target = output / Path(name).with_suffix(".jpg").name
        target.write_bytes(as_jpeg(find(name)))
        width, height = Image.open(target).size
        print(f"{target.name}: {width} × {height} px, {target.stat().st_size} bytes")
    scans = read_scans(output.parent / "models" / "digits" / "scans.png").split("report")
    scenes = Scenery(counts=(3, 4)).scenes(scans, 60, np.random.default_rng(3))
    for name, number in DIGITS.items():
        scenes.picture(number).save(output / name, optimize=True)
        print(f"{name}: 96 × 96 px, {(output / name).stat().st_size} bytes")


if __name__ == "__main__":
    typer.run(main)
