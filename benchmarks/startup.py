"""How long it takes until something can be done, in fresh processes on this machine.

    python benchmarks/startup.py [--rounds 5]

Prints medians: what ``import vizattn`` adds to bare Python, ``vizattn --help``, how long the page
takes to answer beyond the import of torch and gradio alone, and the first run of the embedded model
beside a warm one.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "assets/examples/rocket.jpg"


def seconds(words: list[str], rounds: int) -> float:
    """Median seconds of a command from its start to its end."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
        return time.perf_counter() - start

    return median(once, rounds)


def median(once: Callable[[], float], rounds: int) -> float:
    """The median of several times; the first, which fills the disk's cache, is left out."""
    return statistics.median([once() for _ in range(rounds + 1)][1:])


@contextmanager
def app() -> Iterator[tuple[str, float]]:
    """The app on a free port: its address, and the seconds until the page answered."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    with tempfile.TemporaryDirectory() as uploads:
        quiet = subprocess.DEVNULL
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "app.py"], cwd=ROOT, stdout=quiet, stderr=quiet,
            env=os.environ | {"GRADIO_SERVER_PORT": str(port), "GRADIO_TEMP_DIR": uploads},
        )  # fmt: skip
        try:
            wait_for(address, start + 120)
            yield address, time.perf_counter() - start
        finally:
            process.terminate()
            process.wait()


def wait_for(address: str, end: float) -> None:
    """Until the page is there."""
    while time.perf_counter() < end:
        try:
            with urllib.request.urlopen(address, timeout=5) as page:
                page.read()
                return
        except OSError:
            time.sleep(0.01)
    raise SystemExit("the app did not start within two minutes")


def first_and_warm(rounds: int) -> tuple[float, float]:
    """Seconds of a program's first run on a picture nobody has looked at, and of later ones."""
    from gradio_client import Client, handle_file

    with app() as (address, _):
        client = Client(address, verbose=False)
        time.sleep(3)  # a person needs longer to choose a picture

        def run() -> float:
            start = time.perf_counter()
            client.predict(
                handle_file(PICTURE), "vizattn/dinov2-small", "raw", {}, api_name="/explain"
            )
            return time.perf_counter() - start

        return run(), statistics.median(run() for _ in range(rounds))


def main() -> None:
    """Print one line for each number."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    bare = seconds(["-c", "pass"], rounds)
    print(f"import vizattn       {seconds(['-c', 'import vizattn'], rounds) - bare:6.3f} s more")
    print(f"vizattn --help       {seconds(['-m', 'vizattn', '--help'], rounds):6.3f} s")
    needed = seconds(["-c", "import torch, gradio"], rounds)

    def answer() -> float:
        with app() as (_, taken):
            return taken

    taken = median(answer, rounds)
    print(f"page answers         {taken:6.3f} s, {taken - needed:.3f} s over torch and gradio")
    first, warm = first_and_warm(rounds)
    print(f"first run            {first:6.3f} s, {first / warm:.2f} x a warm one ({warm:.3f} s)")


if __name__ == "__main__":
    main()
