"""Files that are whole or not there, with names that nothing trips over."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Another name to write to, beside the file's own, which it gets when it is whole."""
    part = path.with_name(f".part-{path.name}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def plain_name(words: str) -> str:
    """A file name with nothing a shell could trip over."""
    return re.sub(r"[^\w.-]+", "-", words).strip("-.") or "picture"
