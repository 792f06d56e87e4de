"""Many pictures a second: explained and written, beside the same model's plain batched inference.

All ways read the same files with the same threads into the same batches, in turns within one
process. Work is the time of all cores together: where others use the machine, it is the steadier
measure, and where all cores are busy it is what throughput comes down to.

    python benchmarks/many.py [PICTURES] [SIDE OF THE INPUT] [LONGER SIDE OF A PICTURE]
"""

from __future__ import annotations

import platform
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
from PIL import Image

from vizattn.explain import recipe_of
from vizattn.many.prepare import Failed, batches, prepared
from vizattn.many.run import Asked, explain_many
from vizattn.many.sources import Source, find_sources
from vizattn.models import VisionModel, load_model
from vizattn.models.embedded import assets

ROUNDS = 3


def make_pictures(folder: Path, count: int, side: int) -> None:
    """Pieces of the example photographs, all of one shape, as JPEG."""
    examples = sorted((assets() / "examples").glob("*.jpg"))
    for number in range(count):
        with Image.open(examples[number % len(examples)]) as photo:
            left = number % 7 * 8
            piece = photo.convert("RGB").crop((left, 0, left + 384, 288))
            piece.resize((side, side * 3 // 4)).save(folder / f"{number:04}.jpg", quality=90)


def plain(sources: list[Source], model: VisionModel) -> None:
    """Nothing but inference."""
    for ready in batches(prepared(sources, model.transform)):
        if isinstance(ready, Failed):
            raise ready.error
        with torch.no_grad():
            model.module(torch.stack([picture.pixels for picture in ready]))


def main(count: int = 48, size: int = 224, side: int = 640) -> None:
    """Print the table."""
    model = load_model("vizattn/dinov2-small", size=size)
    with tempfile.TemporaryDirectory() as made:
        pictures, out = Path(made, "in"), Path(made, "out")
        pictures.mkdir()
        make_pictures(pictures, count, side)
        sources = find_sources([str(pictures)])
        ways = {"plain": partial(plain, sources, model)}
        for method, formats in (
            ("raw", ("npz",)),
            ("raw", ("png", "npz")),
            ("rollout", ("png", "npz")),
        ):
            asked = Asked(model, recipe_of(method, {}), formats=formats)
            ways[f"{method}, {'+'.join(formats)}"] = partial(
                explain_many, sources, out, asked, again=True
            )
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        work: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(ROUNDS + 1):
            for name, way in ways.items():
                started, worked = perf_counter(), process_time()
                way()
                if number:  # the first round warms up
                    seconds[name].append(perf_counter() - started)
                    work[name].append(process_time() - worked)
    print(
        f"{count} pictures of {side}×{side * 3 // 4}, input {size} px, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}, {platform.machine()}"
    )
    for name, taken in seconds.items():
        share = median(a / b for a, b in zip(seconds["plain"], taken, strict=True))
        by_work = median(a / b for a, b in zip(work["plain"], work[name], strict=True))
        each = 1000 * median(work[name]) / count
        print(
            f"{name:20} {count / median(taken):6.2f} pictures/s  {share:.2f} of plain  "
            f"{each:6.1f} ms of cores each  {by_work:.2f} of plain by work"
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
