"""Which pictures somebody means, and under which names what is seen in them is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path, PurePosixPath

from vizattn.errors import ImageError
from vizattn.files import plain_name

# What is taken for a picture in folders and patterns; whatever is named outright is tried.
PICTURES = frozenset(
    {".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)

_WILD = frozenset("*?[")


@dataclass(frozen=True)
class Source:
    """One picture of many.

    Attributes:
        path: Where it is.
        name: Its name below what was asked for, sub-folders first.
        stem: How the names of its files begin; no two in one folder are alike.
    """

    path: Path
    name: str
    stem: str

    @property
    def folder(self) -> PurePosixPath:
        """The sub-folder, to be kept where its files are written."""
        return PurePosixPath(self.name).parent


def are_many(words: Sequence[str]) -> bool:
    """Whether these words name a folder, a pattern or several files, rather than one picture."""
    return len(words) > 1 or any(Path(word).is_dir() or _is_pattern(word) for word in words)


def find_sources(words: Iterable[str], without: Iterable[Path] = ()) -> list[Source]:
    """The pictures that these words name, each once, in order of their names.

    Args:
        words: Folders, which are searched with all that is in them, patterns such as
            ``shots/**/*.jpg``, and files.
        without: Files that are none of them, and folders all of whose files are none.

    Raises:
        ImageError: There is no such file or folder, or no picture in it.
    """
    refused = {path.resolve() for path in without}
    found: dict[Path, Path] = {}
    for word in words:
        root, paths = _search(word)
        kept = [path for path in paths if refused.isdisjoint(_upwards(path.resolve()))]
        if not kept:
            raise ImageError(
                f"there is no picture in {word!r}. Folders are searched for "
                f"{', '.join(sorted(suffix[1:] for suffix in PICTURES))}; is the path right?"
            )
        found |= {path: root for path in kept if path not in found}
    names = _names(found)
    return _named({path: names[path] for path in sorted(names, key=names.__getitem__)})


def _search(word: str) -> tuple[Path, list[Path]]:
    """Files, and the folder that their names start at."""
    path = Path(word)
    if path.is_dir():
        return path, list(_pictures_in(path))
    if path.exists() or not _is_pattern(word):
        if not path.exists():
            raise ImageError(f"there is no file or folder {word!r}. Is the path right?")
        return path.parent, [path]
    root = _before_pattern(path)
    matching = root.glob(str(path.relative_to(root)))
    return root, [each for each in matching if each.is_file() and _is_one(each)]


def _before_pattern(path: Path) -> Path:
    """The folder that a pattern starts at."""
    return Path(*takewhile(lambda part: not _is_pattern(part), path.parts))


def _is_pattern(word: str) -> bool:
    return not _WILD.isdisjoint(word)


def _is_one(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")


def _pictures_in(folder: Path) -> Iterable[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for name in files if _is_one(path := Path(where, name)))


def _upwards(path: Path) -> set[Path]:
    return {path, *path.parents}


def _names(found: dict[Path, Path]) -> dict[Path, str]:
    """Names below the folder that was asked for; below what all have in common for several."""
    roots = {root.resolve() for root in found.values()}
    if len(roots) == 1:
        return {path: path.relative_to(root).as_posix() for path, root in found.items()}
    common = Path(os.path.commonpath(roots))
    return {path: path.resolve().relative_to(common).as_posix() for path in found}


def _named(names: dict[Path, str]) -> list[Source]:
    """Sources whose stems differ, also where a file system takes capitals for small letters.

    Files of one folder that differ in their ending alone keep it in their stems.
    """
    places = {path: f"{PurePosixPath(name).parent}/".casefold() for path, name in names.items()}
    short = {path: plain_name(PurePosixPath(name).stem) for path, name in names.items()}
    often = Counter(places[path] + short[path].casefold() for path in names)
    taken: set[str] = set()
    sources = []
    for path, name in names.items():
        is_alone = often[places[path] + short[path].casefold()] == 1
        stem = short[path] if is_alone else plain_name(PurePosixPath(name).name)
        numbered = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
        stem = next(each for each in numbered if places[path] + each.casefold() not in taken)
        taken.add(places[path] + stem.casefold())
        sources.append(Source(path, name, stem))
    return sources
