"""Time and memory of looking, beside a plain forward pass of the same model, and what they may be.

    python benchmarks/rollout.py [--rounds 5] [--sizes 224 518 1022] [--large 1792] [--write]

Each round runs every way once, in turn, so that a machine whose speed drifts slows all of them
alike; the medians of the rounds are compared. Work is the time of all cores together: where others
use the machine, it is the steadier measure. Memory is how far one way drives a child process of
its own up, beyond what it held before with the model loaded. Below the table stands whether the
bars are held. ``--write`` puts all of it into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from measure import ROOT, give_back, held_mib, machine, restart_peak, rewrite
from PIL import Image

from vizattn.capture import capture
from vizattn.methods import RawAttention, Rollout
from vizattn.models import load_model

GLOBAL = "vizattn/dinov2-small"
WINDOWED = ("timm/swin_tiny_patch4_window7_224", "timm/maxvit_tiny_rw_224")
# Rows and rollout need no values, and ``explain`` keeps none for them.
PLAIN, CAPTURE, ROWS, ROLLOUT = "plain forward", "capture", "capture + rows", "capture + rollout"

# Bars for the global model: times a plain pass, MiB above one at 1022 px, MiB in all at 1792 px.
ROWS_BAR, ROLLOUT_BAR = 1.05, 1.65
EXTRA_BAR, WHOLE_BAR = 0.2e9 / 2**20, 8e9 / 2**20
BARRED_SIZES = (518, 1022)


@dataclass(frozen=True)
class Row:
    """One way of one run: seconds, times a plain pass by clock and by work, peak above its."""

    model: str
    size: int
    way: str
    seconds: float
    times: float
    works: float
    extra_mib: float
    kept_mib: float

    def __str__(self) -> str:
        figures = (
            f"{self.seconds:.3f} | {self.times:.2f} | {self.works:.2f} | {self.extra_mib:+.0f}"
        )
        name = self.model.partition("/")[2]
        return f"| {name} | {self.size} | {self.way} | {figures} | {self.kept_mib:.0f} |"


def ways(name: str, size: int) -> dict[str, Callable[[], object]]:
    """Every way of looking at one random picture, cheapest first; places are known already."""
    model = load_model(name, weights="pretrained" if name == GLOBAL else "random")
    pixels = torch.randn(3, size, size, generator=torch.Generator().manual_seed(0))

    def plain() -> object:
        with torch.no_grad():
            return model.module(pixels.unsqueeze(0))

    looks = {
        PLAIN: plain,
        CAPTURE: lambda: capture(model, pixels),
        ROWS: lambda: RawAttention().by_layer(capture(model, pixels, values=False)),
        ROLLOUT: lambda: Rollout().heatmap(capture(model, pixels, values=False)),
    }
    looks[CAPTURE]()  # the first pass of a size finds out where tokens lie
    return looks


def seconds(name: str, size: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Median seconds of each way and median work, all ways in turn in one process."""
    prepared = ways(name, size)
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in prepared}
    for turn in range(rounds + 1):
        for way, look in prepared.items():
            start, worked = time.perf_counter(), time.process_time()
            look()
            if turn:  # the first round warms up
                taken[way].append((time.perf_counter() - start, time.process_time() - worked))
    return {
        way: (statistics.median(clock), statistics.median(work))
        for way, (clock, work) in ((way, zip(*each, strict=True)) for way, each in taken.items())
    }


def growth_mib(name: str, size: int, way: str) -> float:
    """How far one way drives up the memory of a child process, in MiB."""
    command = [sys.executable, __file__, "--child", name, str(size), way]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def child(name: str, size: int, way: str) -> None:
    """Run one way twice, so that lazy parts are loaded, and print the second run's growth."""
    look = ways(name, size)[way]
    look()
    give_back()
    restart_peak()
    before = held_mib()
    kept = look()
    print(held_mib("VmHWM") - before)
    del kept


def large(size: int) -> str:
    """One sentence about a rollout at a size whose N × N maps would not fit."""
    command = [sys.executable, __file__, "--large-child", str(size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    held = _held(found["mib"] <= WHOLE_BAR)
    return (
        f"- {held}: {found['tokens']:,} tokens ({size} px) with rollout peak at "
        f"{found['mib']:,.0f} MiB in all, model and PyTorch included (bar {WHOLE_BAR:,.0f}), in "
        f"{found['seconds']:.0f} s."
    )


def large_child(size: int) -> None:
    """Explain one photograph, saying on the way how far it is; print what it took."""
    from vizattn.explain import explain
    from vizattn.models import assets

    model = load_model(GLOBAL, size=size)
    photograph = Image.open(assets() / "examples" / "astronaut.jpg")
    start = time.perf_counter()

    def tell(share: float, words: str) -> None:
        print(f"{time.perf_counter() - start:6.1f} s  {share:4.0%}  {words}", file=sys.stderr)

    explanation = explain(photograph, model=model, method="rollout", progress=tell)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    n_tokens = explanation.record[-1].n_queries
    print(json.dumps({"tokens": n_tokens, "mib": peak, "seconds": seconds}))


def kept_mib(name: str, size: int, way: str) -> float:
    """What a record keeps, in MiB: q and k, and v where it is only captured; or weights."""
    model = load_model(name, weights="pretrained" if name == GLOBAL else "random")
    record = capture(model, torch.randn(3, size, size), values=way == CAPTURE)
    return sum(layer.bytes for layer in record) / 2**20


def rows(runs: list[tuple[str, int]], rounds: int) -> list[Row]:
    """Every way of every run; each is printed when it is there."""
    made = []
    for name, size in runs:
        times = seconds(name, size, rounds)
        base = growth_mib(name, size, PLAIN)
        plain, plain_work = times[PLAIN]
        for way, (taken, work) in times.items():
            more = 0.0 if way == PLAIN else growth_mib(name, size, way) - base
            kept = 0.0 if way == PLAIN else kept_mib(name, size, way)
            ratios = taken / plain, work / plain_work
            made.append(Row(name, size, way, taken, *ratios, more, kept))
            print(made[-1], flush=True)
    return made


def bars(made: list[Row]) -> list[str]:
    """A line for every bar that was measured: whether it is held, and by what."""
    lines = []
    for row in made:
        if row.model != GLOBAL or row.size not in BARRED_SIZES:
            continue
        bar = {ROWS: ROWS_BAR, ROLLOUT: ROLLOUT_BAR}.get(row.way)
        if bar is None:
            continue
        at = f"{row.way} at {row.size} px"
        lines.append(f"- {_held(row.times <= bar)}: {at} takes {row.times:.2f} × (bar {bar}).")
        if row.size == max(BARRED_SIZES):
            extra = f"{row.extra_mib:.0f} MiB above a plain pass (bar {EXTRA_BAR:.0f})"
            lines.append(f"- {_held(row.extra_mib <= EXTRA_BAR)}: {at} peaks {extra}.")
    return lines


def _held(is_held: bool) -> str:
    return "held" if is_held else "MISSED"


HEAD = [
    "| model | px | way | seconds | × plain | × plain by work | peak above plain, MiB | "
    "record keeps, MiB |",
    "|---|---:|---|---:|---:|---:|---:|---:|",
]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 518, 1022])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--large", type=int, default=1792, help="0 leaves it out")
    parser.add_argument(
        "--beside", default="idle machine", help="what else the machine did, for the page"
    )
    parser.add_argument("--write", action="store_true", help="update docs/benchmarks.md")
    parser.add_argument(
        "--child", nargs=3, metavar=("MODEL", "SIZE", "WAY"), help=argparse.SUPPRESS
    )
    parser.add_argument("--large-child", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        name, size, way = given.child
        child(name, int(size), way)
        return
    if given.large_child:
        large_child(given.large_child)
        return
    print("\n".join(HEAD))
    runs = [(GLOBAL, size) for size in given.sizes] + [(name, 224) for name in WINDOWED]
    made = rows(runs, given.rounds)
    held = bars(made) + ([large(given.large)] if given.large else [])
    print("\n".join(["", *held]))
    if given.write:
        command = f"`python {shlex.join(['benchmarks/rollout.py', *sys.argv[1:]])}`"
        how = f"{given.beside}; {given.rounds} rounds, medians; {command}"
        about = f"{machine('torch', 'timm')}; {how}"
        lines = [about, "", *HEAD, *map(str, made), "", *held]
        rewrite(ROOT / "docs" / "benchmarks.md", "rollout", "\n".join(lines))


if __name__ == "__main__":
    main()
