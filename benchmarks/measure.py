"""What the benchmarks share: a process's own memory, the machine in words, tables in pages."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).parent.parent


def held_mib(field: str = "VmRSS") -> float:
    """A figure of this process in MiB, as Linux counts it: ``VmRSS`` now, ``VmHWM`` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def give_back() -> None:
    """Free what nobody holds, down to the pages: else a look would reuse them and seem to be free.

    Loading a model leaves some hundred MiB of them behind.
    """
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def restart_peak() -> None:
    """Let the peak of this process start again from what it holds now."""
    Path("/proc/self/clear_refs").write_text("5")


def machine(*packages: str) -> str:
    """The machine and the versions of packages, for the line above a table."""
    versions = ", ".join(f"{name} {_version(name)}" for name in packages)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = {line.partition(": ")[2] for line in lines if line.startswith("model name")}
    cores = f"{os.cpu_count()} cores ({'; '.join(sorted(models)) or platform.machine()})"
    return f"{cores}, {versions}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def rewrite(page: Path, name: str, made: str) -> None:
    """Put what was made between ``<!-- name -->`` and ``<!-- end -->`` of a page.

    Raises:
        ValueError: The page has no such place.
    """
    text, count = re.subn(
        rf"(?s)<!-- {name} -->.*?<!-- end -->",
        lambda _: f"<!-- {name} -->\n{made}\n<!-- end -->",
        page.read_text(),
    )
    if count != 1:
        raise ValueError(f"{page.name} has {count} places named {name}; there has to be one.")
    page.write_text(text)
