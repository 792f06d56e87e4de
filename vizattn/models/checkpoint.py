"""Read tensors from a file, and from a file only tensors.

Safetensors are read as they are. Files of ``torch.save`` are read with ``weights_only=True``:
tensors and plain containers, no code of the file's own. Training scripts nest what they save
(``{"model": ..., "optimizer": ...}``, ``{"teacher": ..., "student": ...}``): every dictionary of
tensors inside is an entry, named by the way to it.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vizattn.errors import ModelError

State = dict[str, Tensor]

# Entries to be preferred where several fit as well: what was averaged over training is what
# papers evaluate. DINO's teacher is such an average.
_AVERAGED = ("ema", "teacher")
_DEPTH = 4


def read_entries(path: Path) -> dict[str, State]:
    """Every dictionary of tensors in a file, by the way to it; the preferred ones first.

    Raises:
        ModelError: The file cannot be read as tensors, or holds none.
    """
    entries = dict(_entries(_read(path)))
    if not entries:
        raise ModelError(f"{path.name} holds no tensors by name; a state dict was expected.")
    return dict(sorted(entries.items(), key=lambda entry: not _is_averaged(entry[0])))


def _read(path: Path) -> Any:
    if path.is_dir():
        return _read_folder(path)
    try:
        if _is_safetensors(path):
            from safetensors.torch import load_file

            return load_file(path)
        # Scripts keep their arguments beside the weights: a plain container, without code.
        with torch.serialization.safe_globals([Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors have many ways to say "not such a file"
        raise ModelError(
            f"{path.name} could not be read as safetensors or as a torch file that holds tensors "
            f"only ({type(error).__name__}: {_first_line(error)}). Files that hold whole objects "
            f"could run code, and are not opened: save model.state_dict() instead."
        ) from error


def _read_folder(folder: Path) -> State:
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise ModelError(f"the folder {folder.name} holds no .safetensors files.")
    return {key: tensor for shard in shards for key, tensor in _read(shard).items()}


def _is_safetensors(path: Path) -> bool:
    """By content, so that the name does not matter: eight bytes of length, then JSON."""
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _entries(value: Any, way: tuple[str, ...] = ()) -> Iterator[tuple[str, State]]:
    if not isinstance(value, Mapping) or len(way) > _DEPTH:
        return
    state = {key: item for key, item in value.items() if isinstance(item, Tensor)}
    if state and all(isinstance(key, str) for key in state):
        yield ".".join(way), state
    for key, item in value.items():
        if isinstance(key, str) and key != "optimizer":
            yield from _entries(item, (*way, key))


def _is_averaged(entry: str) -> bool:
    return any(word in entry.lower() for word in _AVERAGED)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
