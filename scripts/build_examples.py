"""Build assets/examples: the four pictures that the page offers, as JPEG at full size.

They are files inside scikit-image's wheel, so nothing is downloaded. Who made them and under
which licence is written in assets/examples/CREDITS.md.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import skimage.data
import typer
from PIL import Image

from vizattn.errors import ImageError

SOURCES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
QUALITY = 90  # of 100, JPEG
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


if __name__ == "__main__":
    typer.run(main)
