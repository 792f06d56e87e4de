"""Time and peak memory of looking, beside a plain forward pass of the same model.

    python benchmarks/capture.py [--sizes 224 518 1022] [--rounds 5]

Each round runs every way once, in turn, so that a machine whose speed drifts slows all of them
alike; the median of the rounds is compared. Memory is the growth of a child process's peak over
that of a plain forward pass, each way in a child of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
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

MODEL = "vizattn/dinov2-small"


def ways(size: int) -> dict[str, Callable[[], object]]:
    """Every way of looking at one random picture, cheapest first."""
    model = load_model(MODEL)
    pixels = torch.randn(3, size, size, generator=torch.Generator().manual_seed(0))

    def plain() -> object:
        with torch.no_grad():
            return model.module(pixels.unsqueeze(0))

    def rows() -> object:
        record = capture(model, pixels)
        return RawAttention().by_layer(record, record.grid.query)

    def rollout() -> object:
        record = capture(model, pixels)
        return Rollout()(record, record.grid.query)

    return {
        "plain forward": plain,
        "capture": lambda: capture(model, pixels),
        "capture + class rows": rows,
        "capture + rollout": rollout,
    }


def seconds(size: int, rounds: int) -> dict[str, float]:
    """Median seconds of each way, all ways in turn in one process."""
    prepared = ways(size)
    taken: dict[str, list[float]] = {name: [] for name in prepared}
    for turn in range(rounds + 1):
        for name, way in prepared.items():
            start = time.perf_counter()
            way()
            if turn:  # the first round warms up
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def growth_mib(size: int, name: str) -> float:
    """How far one way drives up the memory of a child process that has loaded the model, in MiB."""
    command = [sys.executable, __file__, "--child", str(size), name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def child(size: int, name: str) -> None:
    """Run one way twice, so that lazy parts are loaded, and print the second run's growth."""
    way = ways(size)[name]
    way()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak starts again from here
    before = _status("VmRSS")
    kept = way()
    print((_status("VmHWM") - before) / 1024)
    del kept


def _status(field: str) -> int:
    """A figure of this process in KiB, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 518, 1022])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", nargs=2, metavar=("SIZE", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(int(given.child[0]), given.child[1])
        return
    cores, machine = os.cpu_count(), platform.machine()
    print(f"{MODEL}, torch {torch.__version__}, {cores} cores, {machine}, {given.rounds} rounds\n")
    print("| size | tokens | way | seconds | x plain | peak over plain, MiB | q + k + v, MiB |")
    print("|---|---|---|---|---|---|---|")
    for size in given.sizes:
        tokens = (size // 14) ** 2 + 1
        kept = 12 * tokens * 384 * 3 * 4 / 2**20
        times = seconds(size, given.rounds)
        base = growth_mib(size, "plain forward")
        for name, taken in times.items():
            ratio = taken / times["plain forward"]
            more = growth_mib(size, name) - base
            print(
                f"| {size} | {tokens} | {name} | {taken:.3f} | {ratio:.2f} | {more:+.0f} | "
                f"{kept:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
