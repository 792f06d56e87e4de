"""What is done already: a line of JSON for every picture whose files are all there.

A line is added after the files are whole, so that whatever stops the work, it goes on from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vizattn.many.sources import Source

NAME = "vizattn.jsonl"


class Journal:
    """The journal of an output folder, for those who ask one thing.

    Attributes:
        path: The file.
    """

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self.path = folder / NAME
        words = json.dumps(asked, sort_keys=True, default=str)
        self._asked = hashlib.sha256(words.encode()).hexdigest()[:16]
        self._done: dict[tuple[str, str], dict[str, Any]] = {}
        self._last: dict[str, dict[str, Any]] = {}  # by file: the line of who wrote it last
        self._start = "" if _is_whole(self.path) else "\n"
        for line in _read(self.path):
            self._note(line)

    def written(self) -> Iterator[Path]:
        """Every file that was ever written here, whatever was asked."""
        return (self.path.parent / name for name in self._last)

    def has(self, source: Source) -> bool:
        """Whether the same was asked of this very picture, and all of its files are there."""
        line = self._done.get((source.name, self._asked))
        if line is None or any(line.get(key) != value for key, value in self._about(source)):
            return False
        names = line["files"]
        is_last = all(self._last[name] is line for name in names)
        return is_last and all((self.path.parent / name).is_file() for name in names)

    def add(self, source: Source, files: Iterable[Path]) -> None:
        """Note that these are the files of a picture, and whole."""
        names = [path.relative_to(self.path.parent).as_posix() for path in files]
        line = {"picture": source.name, **dict(self._about(source)), "files": names}
        self._note(line)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(self._start + json.dumps(line) + "\n")
        self._start = ""

    def _note(self, line: dict[str, Any]) -> None:
        self._done[line["picture"], line["asked"]] = line
        self._last |= dict.fromkeys(line["files"], line)

    def _about(self, source: Source) -> Iterator[tuple[str, Any]]:
        state = source.path.stat()
        yield "asked", self._asked
        yield "stem", source.stem
        yield "bytes", state.st_size
        yield "changed", state.st_mtime_ns


def _is_whole(path: Path) -> bool:
    """Whether the last line came to its end."""
    return not path.is_file() or path.read_bytes()[-1:] in (b"", b"\n")


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines that are whole; the last one may have been cut short."""
    if not path.is_file():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and {"picture", "asked", "files"} <= line.keys():
            yield line
