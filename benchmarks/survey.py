"""What one picture of a survey costs, step by step, and what follows for very many of them.

Steps are timed by the work of all cores together, on one thread, the least of some rounds, because
others may use the machine at the same time. FLOPs are those of matrix products alone. Kernels are
operations of PyTorch that compute something (and do not just look at memory in another way) while
the numbers of one picture are made; bytes are what they read and write, caches left aside.

    python benchmarks/survey.py [PICTURES] [SIDE OF THE INPUT] [MODEL]
"""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from many import make_pictures
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from vizattn.batch import capture_prepared
from vizattn.images import open_image
from vizattn.many.sources import Source, find_sources
from vizattn.models import VisionModel, load_model
from vizattn.record import AttentionRecord
from vizattn.survey.look import Asked
from vizattn.survey.numbers import picture_numbers
from vizattn.survey.run import survey

ROUNDS, BATCH, PICTURES = 7, 4, 1_280_000

# What is assumed of a machine that nobody measured, and of what it reaches of its data sheet: an
# H100 SXM in float32, which is how models are loaded, with its host's share of 16 cores.
FLOPS, BYTES, LAUNCH, CORES = 0.4 * 67e12, 0.5 * 3.35e12, 8e-6, 16


class Kernels(TorchDispatchMode):
    """Counts operations that compute something, and the bytes that they touch."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.bytes = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do it and count it."""
        made = func(*args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        results = [each for each in tree_leaves(made) if isinstance(each, Tensor)]
        here = {each.untyped_storage().data_ptr() for each in given}
        is_view = bool(results) and all(
            each.untyped_storage().data_ptr() in here for each in results
        )
        if not is_view or func._schema.is_mutable:
            self.count += 1
            self.bytes += sum(each.nbytes for each in (*given, *results))
        return made


def work(step: Callable[[], object]) -> float:
    """Milliseconds of all cores together for each picture of a batch."""
    step()
    spent = []
    for _ in range(ROUNDS):
        started = process_time()
        step()
        spent.append(1000 * (process_time() - started))
    return min(spent) / BATCH


def steps(model: VisionModel, sources: list[Source]) -> Iterator[tuple[str, float]]:
    """Milliseconds of each step for one picture."""
    images = [open_image(source.path) for source in sources[:BATCH]]
    ready = [model.transform(image) for image in images]
    pixels, frames = torch.stack([each for each, _ in ready]), [frame for _, frame in ready]
    records = capture_prepared(model, pixels, frames)
    yield "open", work(lambda: [open_image(each.path) for each in sources[:BATCH]])
    yield "resize", work(lambda: [model.transform(image) for image in images])
    yield "plain forward pass", (plainly := work(lambda: plain(model, pixels)))
    yield "capture beyond it", work(lambda: capture_prepared(model, pixels, frames)) - plainly
    yield "the numbers", work(lambda: [picture_numbers(record) for record in records])
    count(model, pixels, records[0], work(lambda: read(model, sources)))


def read(model: VisionModel, sources: list[Source]) -> None:
    """What is done before a GPU has anything to do."""
    for source in sources[:BATCH]:
        model.transform(open_image(source.path))


def plain(model: VisionModel, pixels: Tensor) -> None:
    """Nothing but inference."""
    with torch.no_grad():
        model.module(pixels)


def count(model: VisionModel, pixels: Tensor, record: AttentionRecord, reading: float) -> None:
    """What a machine has to do for one picture, and how long one could take that was not here."""
    forward, numbers, kernels = (
        FlopCounterMode(display=False),
        FlopCounterMode(display=False),
        Kernels(),
    )
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), forward:
        plain(model, pixels[:1])
    with numbers:
        picture_numbers(record)
    with kernels:
        picture_numbers(record)
    flops = forward.get_total_flops(), numbers.get_total_flops()
    weights = sum(layer.n_heads * layer.n_queries * layer.n_keys for layer in record)
    print(
        f"Forward pass {flops[0] / 1e9:.2f} GFLOP, numbers {flops[1] / 1e9:.2f} GFLOP "
        f"({flops[1] / flops[0]:.2f} of it), {weights / 1e6:.1f} million weights, "
        f"{kernels.count} kernels, {kernels.bytes / 1e6:.0f} MB.\n"
    )
    products, memory = sum(flops) / FLOPS, kernels.bytes / BYTES
    ways = {
        "kernel by kernel": products + max(memory, kernels.count * LAUNCH),
        "launches hidden": products + memory,
    }
    for name, seconds in ways.items():
        each = max(seconds, reading / 1000 / CORES)
        minutes = " | ".join(f"{PICTURES * each / 60 / gpus:,.3g} |" for gpus in (1, 8, 64))
        print(f"| {name} | {1000 * seconds:.2f} | {reading / CORES:.2f} | {minutes}")
    print()


def throughput(model: VisionModel, sources: list[Source], out: Path) -> None:
    """Pictures a second of the whole thing by the clock, and what it writes."""
    torch.set_num_threads(2)
    survey(sources[:BATCH], out / "warm", Asked(model))
    started = perf_counter()
    survey(sources, out / "all", Asked(model))
    seconds = perf_counter() - started
    size = sum(path.stat().st_size for path in (out / "all").glob("*.parquet"))
    print(
        f"{len(sources) / seconds:.1f} pictures a second by the clock on two threads, "
        f"{size / len(sources) / 1000:.1f} kB written for each."
    )


def main(pictures: int = 256, size: int = 224, name: str = "vizattn/dinov2-small") -> None:
    """Print what a picture costs."""
    weights = "pretrained" if name.startswith("vizattn/") else "random"
    model = load_model(name, size=size, weights=weights)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made, "in")
        folder.mkdir()
        make_pictures(folder, pictures, 500)
        sources = find_sources([str(folder)])
        print(f"{name}, {size} px, torch {torch.__version__}, {platform.machine()}\n")
        torch.set_num_threads(1)
        spent = dict(steps(model, sources))
        print("| step | ms a picture |\n|---|---:|")
        for step, milliseconds in (spent | {"together": sum(spent.values())}).items():
            print(f"| {step} | {milliseconds:.1f} |")
        print()
        throughput(model, sources, Path(made, "out"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
