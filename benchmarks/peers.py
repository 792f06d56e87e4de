"""vizattn beside what people use today: time, memory, and whether the maps agree.

    pip install -e '.[hf,bench]'
    python benchmarks/peers.py [--sizes 224 518 1022] [--batches 1 8] [--rounds 5] [--write]

Every way is what somebody writes after reading its documentation (``ways.py``). Each has a child
process of its own with the same weights and the same pictures, and stays there for all rounds; they
take turns, one look each in every round and nothing held in between, so that a machine whose speed
drifts slows all of them alike. The first round warms up and is not counted. Memory is how far a
child's own peak rises above what it held with its model loaded. A child that needs more than
``--memory`` (by default four fifths of what is free) or longer than ``--patience`` fails with its
own message and not the machine. ``--write`` puts the tables into docs/benchmarks.md and the README.
"""

from __future__ import annotations

import argparse
import json
import select
import shlex
import statistics
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from measure import ROOT, machine, rewrite

PLAIN = "plain forward"

# Each way by its name for people, and whose map its own has to equal; in the order of ``ways.py``.
ROLLOUT, ROWS = "vizattn: rollout", "vizattn: class rows of all layers and heads"
WAYS = {
    PLAIN: None,
    ROWS: None,
    ROLLOUT: None,
    "vit-explain's way: hooks, unfused, matrix rollout": ROLLOUT,
    "fast-vit-rollout": ROLLOUT,
    "timm AttentionExtract, as it comes": ROWS,
    "timm AttentionExtract, unfused": ROWS,
    "transformers output_attentions, as it comes": ROWS,
    "transformers output_attentions, eager": ROWS,
    "torch-cam LeGrad": None,
    "torch-cam GradCAM": None,
}


@dataclass
class Measured:
    """What one way came to for one size and batch.

    Attributes:
        seconds: Of each round after the first.
        work: The same in time of all cores together: where others use the machine it is steadier.
        mib: How far its peak rose above what it held with the model loaded.
        maps: One map for each picture, ``[picture, row, col]``, where it makes any.
        failed: Why it did not work, the first line of its own message; empty when it did.
    """

    seconds: list[float] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    mib: float = 0.0
    maps: np.ndarray | None = None
    failed: str = ""

    def times(self, plain: Measured) -> float:
        """How many times as long as a plain pass, by the clock."""
        return statistics.median(self.seconds) / statistics.median(plain.seconds)

    def works(self, plain: Measured) -> float:
        """The same by the time of all cores together."""
        return statistics.median(self.work) / statistics.median(plain.work)


class Child:
    """A process that looks once whenever it is told to."""

    def __init__(self, way: str, size: int, batch: int, memory_gib: float) -> None:
        words = [str([*WAYS].index(way)), str(size), str(batch), str(memory_gib)]
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("ways.py")), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def answer(self, patience: float) -> dict[str, Any]:
        """The next line that it writes, or why there is none."""
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], patience)[0]:
            self.end()
            return {"failed": f"took longer than {patience:g} s"}
        line = stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        return {"failed": "was killed, for want of memory" if code == -9 else f"ended with {code}"}

    def look(self, patience: float) -> dict[str, Any]:
        """Have it look once."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, and its answer says so
            self._process.stdin.write("look\n")
            self._process.stdin.flush()
        return self.answer(patience)

    def end(self) -> None:
        """Stop it, whatever it is at."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # a word that it never read
                assert pipe is not None
                pipe.close()


def measure(
    size: int, batch: int, rounds: int, memory_gib: float, patience: float
) -> dict[str, Measured]:
    """All ways for one size and batch, in turns."""
    found = {way: Measured() for way in WAYS}
    children: dict[str, Child] = {}
    try:
        for way in WAYS:  # one after the other: loading is not to disturb anybody's look
            children[way] = Child(way, size, batch, memory_gib)
            found[way].failed = children[way].answer(patience).get("failed", "")
        for turn in range(rounds + 1):
            for way, child in children.items():
                if not found[way].failed:
                    _take(found[way], child.look(patience), is_warm=turn > 0)
    finally:
        for child in children.values():
            child.end()
    return found


def _take(measured: Measured, answer: dict[str, Any], *, is_warm: bool) -> None:
    measured.failed = answer.get("failed", "")
    if measured.failed:
        return
    if is_warm:
        measured.seconds.append(answer["seconds"])
        measured.work.append(answer["work"])
    measured.mib = max(measured.mib, answer["mib"])
    if answer.get("maps") is not None:
        measured.maps = np.array(answer["maps"])


def agreement(maps: np.ndarray | None, expected: np.ndarray | None) -> str:
    """The largest difference between maps as a share of the largest value, in words.

    >>> agreement(np.array([0.5, 0.25]), np.array([0.5, 0.2501]))
    '2.0e-04'
    """
    if maps is None or expected is None:
        return ""
    if maps.shape != expected.shape:
        return f"{'×'.join(map(str, maps.shape))} values for {'×'.join(map(str, expected.shape))}"
    return f"{np.abs(maps - expected).max() / np.abs(expected).max():.1e}"


def rows(found: dict[str, Measured], size: int, batch: int) -> list[str]:
    """One row of the large table for every way."""
    made = []
    for way, measured in found.items():
        about = f"| {size} | {batch} | {way} |"
        if measured.failed:
            made.append(f"{about} – | – | – | – | {measured.failed} | |")
            continue
        seconds = statistics.median(measured.seconds)
        like = WAYS[way]
        same = "" if like is None else agreement(measured.maps, found[like].maps)
        times = f"{measured.times(found[PLAIN]):.2f} | {measured.works(found[PLAIN]):.2f}"
        made.append(f"{about} {seconds:.3f} | {times} | {measured.mib:,.0f} | {same} | |")
    return made


HEAD = [
    "| px | batch | way | seconds | × plain | × plain by work | peak, MiB | largest difference of "
    "the map, or why not | × plain on a GPU |",
    "|---:|---:|---|---:|---:|---:|---:|---|---:|",
]


def summary(all_found: dict[tuple[int, int], dict[str, Measured]]) -> str:
    """The small table: one picture, × plain and peak for each size, ways that worked."""
    runs = {size: found for (size, batch), found in all_found.items() if batch == 1}
    columns = " | ".join(f"{size} px: time | memory above the model" for size in runs)
    lines = [f"| one picture | {columns} |", "|---|" + "---:|---:|" * len(runs)]
    for way in WAYS:
        cells = []
        for found in runs.values():
            measured = found[way]
            if measured.failed:
                cells.append("fails | ")
                continue
            times = measured.times(found[PLAIN])
            cells.append(f"{times:.2f} × | {measured.mib:,.0f} MiB")
        if any(not cell.startswith("fails") for cell in cells):
            lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def available_gib() -> float:
    """How much memory nobody needs now."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) / 2**20


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 518, 1022])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--memory", type=float, default=available_gib() * 0.8, help="GiB for one child's look"
    )
    parser.add_argument("--patience", type=float, default=900, help="seconds for one look")
    parser.add_argument(
        "--beside", default="idle machine", help="what else the machine did, for the page"
    )
    parser.add_argument("--write", action="store_true", help="update the documentation")
    given = parser.parse_args()
    all_found, lines = {}, list(HEAD)
    print("\n".join(HEAD))
    for size in given.sizes:
        for batch in given.batches:
            found = measure(size, batch, given.rounds, given.memory, given.patience)
            all_found[size, batch] = found
            lines += rows(found, size, batch)
            print("\n".join(rows(found, size, batch)), flush=True)
    if given.write:
        packages = ("torch", "timm", "transformers", "fast-vit-rollout", "torchcam")
        command = f"`python {shlex.join(['benchmarks/peers.py', *sys.argv[1:]])}`"
        how = f"{given.beside}; {given.rounds} rounds, medians; {command}"
        about = f"{machine(*packages)}; {how}"
        rewrite(ROOT / "docs" / "benchmarks.md", "peers", "\n".join([about, "", *lines]))
        rewrite(ROOT / "README.md", "peers", summary(all_found))


if __name__ == "__main__":
    main()
