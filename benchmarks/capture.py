"""Time and memory of looking, beside a plain forward pass of the same model.

    python benchmarks/capture.py [--rounds 5] [--sizes 224 518 1022] [--write]

Each round runs every way once, in turn, so that a machine whose speed drifts slows all of them
alike; the medians of the rounds are compared. Memory is how far one way drives a child process of
its own up, beyond what it held before with the model loaded. ``--write`` puts the table into
docs/benchmarks.md and the README.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vizattn.capture import capture
from vizattn.methods import RawAttention, Rollout
from vizattn.models import load_model

ROOT = Path(__file__).parent.parent
GLOBAL = "vizattn/dinov2-small"
WINDOWED = ("timm/swin_tiny_patch4_window7_224", "timm/maxvit_tiny_rw_224")
PLAIN = "plain forward"


def ways(name: str, size: int) -> dict[str, Callable[[], object]]:
    """Every way of looking at one random picture, cheapest first; places are known already."""
    model = load_model(name, weights="pretrained" if name == GLOBAL else "random")
    pixels = torch.randn(3, size, size, generator=torch.Generator().manual_seed(0))

    def plain() -> object:
        with torch.no_grad():
            return model.module(pixels.unsqueeze(0))

    looks = {
        PLAIN: plain,
        "capture": lambda: capture(model, pixels),
        "capture + rows": lambda: RawAttention().by_layer(capture(model, pixels)),
        "capture + rollout": lambda: Rollout().heatmap(capture(model, pixels)),
    }
    looks["capture"]()  # the first pass of a size finds out where tokens lie
    return looks


def seconds(name: str, size: int, rounds: int) -> dict[str, float]:
    """Median seconds of each way, all ways in turn in one process."""
    prepared = ways(name, size)
    taken: dict[str, list[float]] = {way: [] for way in prepared}
    for turn in range(rounds + 1):
        for way, look in prepared.items():
            start = time.perf_counter()
            look()
            if turn:  # the first round warms up
                taken[way].append(time.perf_counter() - start)
    return {way: statistics.median(times) for way, times in taken.items()}


def growth_mib(name: str, size: int, way: str) -> float:
    """How far one way drives up the memory of a child process, in MiB."""
    command = [sys.executable, __file__, "--child", name, str(size), way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def child(name: str, size: int, way: str) -> None:
    """Run one way twice, so that lazy parts are loaded, and print the second run's growth."""
    look = ways(name, size)[way]
    look()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from here
    before = _status("VmRSS")
    kept = look()
    print((_status("VmHWM") - before) / 1024)
    del kept


def _status(field: str) -> int:
    """A figure of this process in KiB, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def kept_mib(name: str, size: int) -> float:
    """What a record of this input keeps, in MiB: q, k and v, or weights and v."""
    model = load_model(name, weights="pretrained" if name == GLOBAL else "random")
    record = capture(model, torch.randn(3, size, size))
    return sum(layer.bytes for layer in record) / 2**20


def table(runs: list[tuple[str, int]], rounds: int) -> str:
    """A Markdown table with a row for every way of every run."""
    lines = [
        "| model | px | way | seconds | × plain | peak above plain, MiB | record keeps, MiB |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for name, size in runs:
        times = seconds(name, size, rounds)
        base, kept = growth_mib(name, size, PLAIN), kept_mib(name, size)
        for way, taken in times.items():
            more = growth_mib(name, size, way) - base
            figures = f"{taken:.3f} | {taken / times[PLAIN]:.2f} | {more:+.0f} | {kept:.0f}"
            lines.append(f"| {name.partition('/')[2]} | {size} | {way} | {figures} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def write(made: str, rounds: int) -> None:
    """Put the table where the documentation shows it."""
    about = (
        f"torch {torch.__version__}, {os.cpu_count()} cores ({platform.machine()}), "
        f"{rounds} rounds, `python benchmarks/capture.py --write`"
    )
    page = ROOT / "docs" / "benchmarks.md"
    page.write_text(re.sub(
        r"(?s)<!-- capture -->.*?<!-- end -->",
        lambda _: f"<!-- capture -->\n{about}\n\n{made}\n<!-- end -->",
        page.read_text(),
    ))  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 518, 1022])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    parser.add_argument(
        "--child", nargs=3, metavar=("MODEL", "SIZE", "WAY"), help=argparse.SUPPRESS
    )
    given = parser.parse_args()
    if given.child:
        name, size, way = given.child
        child(name, int(size), way)
        return
    runs = [(GLOBAL, size) for size in given.sizes] + [(name, 224) for name in WINDOWED]
    made = table(runs, given.rounds)
    if given.write:
        write(made, given.rounds)


if __name__ == "__main__":
    main()
