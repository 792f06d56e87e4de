"""Part files: the rows of some pictures, and in the footer all that the whole needs of them.

A part is written under a name of its own and then renamed, so that it is there whole or not at all.
Its name follows from the pictures in it: who does the same work twice writes the same file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from vizattn.errors import MissingPackage, SurveyError
from vizattn.many.sources import Source
from vizattn.survey.moments import Moments
from vizattn.survey.notes import together
from vizattn.survey.numbers import PictureNumbers

# In the footer of every part.
_FOOTER = b"vizattn"

LIKENESS = "likeness"

# Name, bytes, and when it was changed: whether a picture is still the one that was looked at.
Identity = tuple[str, int, int]


@dataclass(frozen=True)
class Part:
    """What is known of the pictures of one part file.

    Attributes:
        path: The file.
        asked: What was asked of its pictures, as plain values.
        pictures: Whose rows it holds.
        layers: What there is to know of each layer.
        input_sizes: Height and width of the model's input, and for how many pictures.
        moments: Of every number ``[layer, head]`` and of likeness ``[layer, head, head]``.
    """

    path: Path
    asked: dict[str, Any]
    pictures: tuple[Identity, ...]
    layers: tuple[dict[str, Any], ...]
    input_sizes: dict[str, int]
    moments: Mapping[str, Moments]


@dataclass(frozen=True)
class Seen:
    """One picture's numbers, on their way into a part.

    Attributes:
        identity: Which picture.
        input_size: Height and width that the model saw it with.
        numbers: The numbers.
    """

    identity: Identity
    input_size: tuple[int, int]
    numbers: PictureNumbers


def identity(source: Source) -> Identity:
    """Which picture this is, and in which state."""
    state = source.path.stat()
    return source.name, state.st_size, state.st_mtime_ns


def need_pyarrow() -> None:
    """Say at once what is missing.

    Raises:
        MissingPackage: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise MissingPackage("a survey", "pyarrow", "vizattn[survey]") from None


def write_part(folder: Path, asked: Mapping[str, Any], seen: Sequence[Seen]) -> Path:
    """Write the rows of some pictures, whole or not at all.

    Args:
        folder: Where to.
        asked: What was asked of them.
        seen: The pictures, one at least, all with the same layers.

    Raises:
        SurveyError: It cannot be written.
    """
    from pyarrow import parquet

    footer = json.dumps(_footer(asked, seen))
    table = _table(seen)
    path = folder / f"pictures-{_name(asked, seen)}.parquet"
    unfinished = folder / f".{path.name}.{uuid4().hex}.tmp"
    try:
        with parquet.ParquetWriter(unfinished, table.schema, compression="zstd") as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({_FOOTER: footer})
        unfinished.replace(path)
    except OSError as error:
        raise SurveyError(f"{path} cannot be written: {error.strerror or error}.") from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def read_parts(folder: Path) -> Iterator[Part]:
    """The footers of all parts that are there, in order of their names.

    Raises:
        SurveyError: A file is none of ours, or damaged.
    """
    for path in sorted(folder.glob("pictures-*.parquet")):
        yield read_part(path)


def read_part(path: Path) -> Part:
    """The footer of one part.

    Raises:
        SurveyError: The file is none of ours, or damaged.
    """
    from pyarrow import ArrowException, parquet

    try:
        footer = json.loads(parquet.read_metadata(path).metadata[_FOOTER])
        return Part(
            path, footer["asked"], tuple((*each,) for each in footer["pictures"]),
            tuple(footer["layers"]), footer["input_sizes"],
            {name: Moments.read(plain) for name, plain in footer["moments"].items()},
        )  # fmt: skip
    except (ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise SurveyError(
            f"{path} is no part of a survey, or it is damaged. Move it away, and the same command "
            f"looks at its pictures again."
        ) from error


def remove_unfinished(folder: Path) -> None:
    """Clear away what a run that was killed had begun to write."""
    for path in folder.glob(".pictures-*.parquet.*.tmp"):
        path.unlink(missing_ok=True)


def _name(asked: Mapping[str, Any], seen: Sequence[Seen]) -> str:
    words = json.dumps([asked, sorted(each.identity for each in seen)], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _footer(asked: Mapping[str, Any], seen: Sequence[Seen]) -> dict[str, Any]:
    sizes = [f"{height}×{width}" for height, width in (each.input_size for each in seen)]
    moments = {name: Moments.of(values) for name, values in _arrays(seen).items()}
    return {
        "asked": asked,
        "pictures": [each.identity for each in seen],
        "layers": together([note.plain() for note in each.numbers.layers] for each in seen),
        "input_sizes": {size: sizes.count(size) for size in dict.fromkeys(sizes)},
        "moments": {name: each.plain() for name, each in moments.items()},
    }


def _arrays(seen: Sequence[Seen]) -> dict[str, np.ndarray]:
    """All numbers with the pictures along the first axis."""
    names = dict.fromkeys(name for each in seen for name in each.numbers.numbers)
    nothing = np.full_like(seen[0].numbers.numbers["mean_entropy"], np.nan)
    arrays = {
        name: np.stack([each.numbers.numbers.get(name, nothing) for each in seen]) for name in names
    }
    return arrays | {LIKENESS: np.stack([each.numbers.likeness for each in seen])}


def _table(seen: Sequence[Seen]) -> Any:
    """A row for each picture, layer and head, pictures in their order; layers and heads from 1."""
    import pyarrow

    notes = seen[0].numbers.layers
    arrays = _arrays(seen)
    likeness = arrays.pop(LIKENESS)
    tokens = np.stack([each.numbers.sink_token for each in seen])
    heads = np.array([note.n_heads for note in notes])
    there = np.arange(tokens.shape[-1]) < heads[:, None]
    layer, head = np.nonzero(there)
    names = pyarrow.array([each.identity[0] for each in seen])
    picture = np.repeat(np.arange(len(seen), dtype=np.int32), len(layer))
    module = np.tile(layer.astype(np.int32), len(seen))
    columns: dict[str, Any] = {
        "picture": pyarrow.DictionaryArray.from_arrays(picture, names),
        "layer": np.tile((layer + 1).astype(np.int16), len(seen)),
        "head": np.tile((head + 1).astype(np.int16), len(seen)),
        "module": pyarrow.DictionaryArray.from_arrays(module, [note.name for note in notes]),
    }
    for name, values in arrays.items():
        flat = values[:, there].astype(np.float32).ravel()
        columns[name] = pyarrow.array(flat, mask=np.isnan(flat))
    number = tokens[:, there].astype(np.int32).ravel()
    columns["sink_token"] = pyarrow.array(number, mask=number < 0)
    columns[LIKENESS] = _lists(likeness[:, there], np.tile(heads[layer], len(seen)))
    return pyarrow.table(columns)


def _lists(likeness: np.ndarray, lengths: np.ndarray) -> Any:
    """For each row, its likeness to each head of its layer."""
    import pyarrow

    rows = likeness.reshape(-1, likeness.shape[-1])
    flat = rows[np.arange(rows.shape[-1]) < lengths[:, None]].astype(np.float32)
    values = pyarrow.array(flat, mask=np.isnan(flat))
    offsets = np.concatenate([[0], lengths.cumsum()]).astype(np.int32)
    return pyarrow.ListArray.from_arrays(offsets, values)
