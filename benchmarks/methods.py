"""What each method costs: time beside a plain forward pass, and memory.

    python benchmarks/methods.py [--sizes 224 518] [--rounds 3] [--slow] [--write]

Every round runs every method once, in turn, on the same picture with the embedded DINOv2; medians
are compared. ``forward + backward`` is a plain pass of the same model whose gradient goes to the
pixels. Memory is how far one run drives a child process of its own above a plain forward pass.
Methods of many passes are left out without ``--slow``. ``--write`` puts the table into
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from measure import ROOT, give_back, held_mib, machine, restart_peak, rewrite

from vizattn.capture import capture
from vizattn.errors import VizattnError
from vizattn.gradients import capture_gradients
from vizattn.methods import METHODS, Method
from vizattn.models import load_model

MODEL = "vizattn/dinov2-small"
PLAIN, BACKWARD = "plain forward", "forward + backward"


def ways(size: int, *, slow: bool) -> dict[str, Callable[[], object]]:
    """A map of every method from pixels, the plain passes first."""
    model = load_model(MODEL)
    pixels = torch.randn(3, size, size, generator=torch.Generator().manual_seed(0))
    module = model.module.requires_grad_(False)

    def plain() -> object:
        with torch.no_grad():
            return module(pixels.unsqueeze(0))

    def backward() -> object:
        leaf = pixels.unsqueeze(0).requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(module(leaf).pow(2).sum(), leaf)

    def look(method: Method) -> object:
        if not method.wanted:
            return method.heatmap(capture(model, pixels))
        return method.heatmap(capture_gradients(model, pixels, needs=method.wanted))

    made = {PLAIN: plain, BACKWARD: backward}
    for name, recipe in METHODS.items():
        if slow or not recipe.is_slow:
            made[name] = partial(look, recipe())
    return made


def seconds(size: int, rounds: int, *, slow: bool) -> dict[str, float]:
    """Median seconds of each way, all in turn in one process; those that refuse are left out."""
    prepared = ways(size, slow=slow)
    taken: dict[str, list[float]] = {way: [] for way in prepared}
    for turn in range(rounds + 1):
        for way, look in list(prepared.items()):
            start = time.perf_counter()
            try:
                look()
            except VizattnError as error:
                print(f"{way}: {error}")
                del prepared[way], taken[way]
                continue
            if turn:  # the first round warms up
                taken[way].append(time.perf_counter() - start)
    return {way: statistics.median(times) for way, times in taken.items()}


def growth_mib(size: int, way: str) -> float:
    """How far one way drives up the memory of a child process, in MiB."""
    command = [sys.executable, __file__, "--child", str(size), way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def child(size: int, way: str) -> None:
    """Run one way twice, so that lazy parts are loaded, and print the second run's growth."""
    look = ways(size, slow=True)[way]
    look()
    give_back()
    restart_peak()
    before = held_mib()
    kept = look()
    print(held_mib("VmHWM") - before)
    del kept


def table(sizes: list[int], rounds: int, *, slow: bool) -> str:
    """A Markdown table with a row for every method of every size."""
    lines = [
        "| px | method | seconds | × forward | × (forward + backward) | peak above plain, MiB |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for size in sizes:
        times = seconds(size, rounds, slow=slow)
        base = growth_mib(size, PLAIN)
        for way, taken in times.items():
            ratios = f"{taken / times[PLAIN]:.2f} | {taken / times[BACKWARD]:.2f}"
            more = growth_mib(size, way) - base
            lines.append(f"| {size} | {way} | {taken:.3f} | {ratios} | {more:+.0f} |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 518])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slow", action="store_true", help="methods of many passes too")
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    parser.add_argument("--child", nargs=2, metavar=("SIZE", "WAY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(int(given.child[0]), given.child[1])
        return
    made = table(given.sizes, given.rounds, slow=given.slow)
    if given.write:
        command = shlex.join(["python", "benchmarks/methods.py", *sys.argv[1:]])
        about = f"{machine('torch', 'timm')}, {given.rounds} rounds, `{command}`"
        rewrite(ROOT / "docs" / "benchmarks.md", "methods", f"{about}\n\n{made}")


if __name__ == "__main__":
    main()
