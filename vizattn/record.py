"""What was captured of one picture: every attention call of a forward pass, first layer first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, overload
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from vizattn.errors import OutOfRange, RecordError
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.layers import Attention, DenseAttention, LayerAttention, Place


@dataclass(frozen=True)
class AttentionRecord(Sequence[Attention]):
    """All attention of one picture in one forward pass; a sequence of layers, first layer first.

    Attributes:
        layers: The calls, in the order in which the model made them.
        grid: Where the tokens sit on the picture.
        frame: Which part of the original picture the model saw, in its pixels.
        input_size: Height and width of the model's input, in pixels.
        model: Name of the model.
        output: What the model returned for this picture, bit-identical to a plain forward pass.
        notes: What a reader of the maps has to know, such as random weights.
    """

    layers: tuple[Attention, ...]
    grid: TokenGrid
    frame: Frame
    input_size: tuple[int, int]
    model: str = "model"
    output: Tensor | None = None
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Attention]:
        return iter(self.layers)

    @overload
    def __getitem__(self, index: int) -> Attention: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Attention]: ...
    def __getitem__(self, index: int | slice) -> Attention | Sequence[Attention]:
        if isinstance(index, slice):
            return self.layers[index]
        if not -len(self) <= index < len(self):
            raise OutOfRange("layer", index, len(self))
        return self.layers[index]

    def __repr__(self) -> str:
        heads = sorted({layer.n_heads for layer in self.layers})
        mib = sum(layer.bytes for layer in self.layers) / 2**20
        return (
            f"AttentionRecord({self.model}: {len(self)} layers × "
            f"{'/'.join(map(str, heads))} heads, {self.grid.n_tokens} tokens "
            f"({self.grid.prefix} prefix + {self.grid.rows}×{self.grid.cols}), {mib:.1f} MiB)"
        )

    def at(self, x: float, y: float) -> tuple[int, int]:
        """Row and column, from 0, of the patch under a pixel of the original picture."""
        return self.frame.patch_at(x, y, self.grid.rows, self.grid.cols)

    def save(self, path: str | Path) -> Path:
        """Write everything to one ``.npz`` file: plain arrays and JSON, no pickle.

        Returns:
            The path written, with ``.npz`` added where it was missing.
        """
        path = Path(path)
        path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
        arrays: dict[str, np.ndarray] = {"meta": np.array(json.dumps(self._meta()))}
        for index, layer in enumerate(self.layers):
            for name in layer.tensors:
                tensor = getattr(layer, name)
                if tensor is not None:
                    arrays[f"layer{index:03d}.{name}"] = _to_array(tensor)
        if self.output is not None:
            arrays["output"] = _to_array(self.output)
        np.savez(path, allow_pickle=False, **arrays)
        return path

    @classmethod
    def load(cls, path: str | Path) -> AttentionRecord:
        """Read what ``save`` wrote.

        Raises:
            RecordError: The file is missing, is no record, or was cut short.
        """
        try:
            # opened here, because numpy leaves a file open that turns out to be no archive
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return cls._from_arrays(dict(arrays))
        except FileNotFoundError:
            raise RecordError(f"there is no file {Path(path).name!r}. Is the path right?") from None
        except (KeyError, ValueError, TypeError, OSError, EOFError, BadZipFile) as error:
            raise RecordError(
                f"{Path(path).name!r} is not a record that vizattn wrote, or it is damaged: {error}"
            ) from error

    def _meta(self) -> dict[str, Any]:
        return {
            "version": 1,
            "grid": asdict(self.grid),
            "frame": asdict(self.frame),
            "input_size": self.input_size,
            "model": self.model,
            "notes": self.notes,
            "layers": [_layer_meta(layer) for layer in self.layers],
        }

    @classmethod
    def _from_arrays(cls, arrays: dict[str, np.ndarray]) -> AttentionRecord:
        meta = json.loads(str(arrays["meta"]))
        grid = TokenGrid(**dict(meta["grid"], roles=tuple(meta["grid"]["roles"])))
        place = Place(grid, Frame(**meta["frame"]))
        layers = []
        for index, settings in enumerate(meta["layers"]):
            form = DenseAttention if settings.pop("form") == "dense" else LayerAttention
            tensors: dict[str, Any] = {
                name: torch.from_numpy(arrays[f"layer{index:03d}.{name}"])
                for name in form.tensors
                if f"layer{index:03d}.{name}" in arrays
            }
            layers.append(form(**settings, place=place, **tensors))
        return cls(
            tuple(layers),
            place.grid,
            place.frame,
            (meta["input_size"][0], meta["input_size"][1]),
            meta["model"],
            torch.from_numpy(arrays["output"]) if "output" in arrays else None,
            tuple(meta["notes"]),
        )


def _layer_meta(layer: Attention) -> dict[str, Any]:
    shared = ("place", *layer.tensors)  # the place is the record's own
    plain = [f.name for f in fields(layer) if f.name not in shared]
    form = "dense" if isinstance(layer, DenseAttention) else "qk"
    return {"form": form, **{name: getattr(layer, name) for name in plain}}


def _to_array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16; float32 holds it exactly
        tensor = tensor.float()
    return np.asarray(tensor.numpy())
