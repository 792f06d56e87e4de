"""What was captured of one picture: every attention call of a forward pass, first layer first."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, overload
from zipfile import BadZipFile

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vizattn.errors import OutOfRange, RecordError
from vizattn.frame import Frame
from vizattn.grid import TokenGrid
from vizattn.layers import Attention, DenseAttention, LayerAttention
from vizattn.places import Tokens


@dataclass(frozen=True)
class AttentionRecord(Sequence[Attention]):
    """All attention of one picture in one forward pass; a sequence of layers, first layer first.

    Attributes:
        layers: The calls, in the order in which the model made them.
        frame: Which part of the original picture the model saw, in its pixels.
        input_size: Height and width of the model's input, in pixels.
        model: Name of the model.
        output: What the model returned for this picture, bit-identical to a plain forward pass.
        notes: What a reader of the maps has to know, such as random weights.
        target: What gradients were asked of, for a sentence; empty when none were.
        pixels: What the model saw, ``[3, height, width]``, where gradients by it were asked for.
        input_gradients: Derivatives of the target by the pixels, by the rule they were made with:
            ``plain``, or a rule of relevance propagation (``propagation``).
        readouts: The layers once more, as if the model had been read out after each: their ``g`` is
            the derivative of that reading. Of a model with a pooling head, the head's own attention
            to the tokens after each layer. By the word that they were asked for with: ``readouts``
            of the mean of all tokens, ``readouts:own`` of those that the model reads at the end.
        extras: What else was asked for, by the word it was asked with (``capture_gradients``).
    """

    layers: tuple[Attention, ...]
    frame: Frame
    input_size: tuple[int, int]
    model: str = "model"
    output: Tensor | None = None
    notes: tuple[str, ...] = field(default=())
    target: str = ""
    pixels: Float[Tensor, "3 height width"] | None = None
    input_gradients: Mapping[str, Tensor] = field(default_factory=dict)
    readouts: Mapping[str, tuple[Attention, ...]] = field(default_factory=dict)
    extras: Mapping[str, Tensor] = field(default_factory=dict)

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
        tokens = sorted({layer.n_queries for layer in self.drawable}, reverse=True)
        mib = sum(layer.bytes for layer in self.layers) / 2**20
        return (
            f"AttentionRecord({self.model}: {len(self)} layers × "
            f"{'/'.join(map(str, heads))} heads, {'/'.join(map(str, tokens))} tokens, "
            f"{mib:.1f} MiB)"
        )

    @property
    def drawable(self) -> tuple[Attention, ...]:
        """The layers whose rows can be laid over the picture, first layer first."""
        return tuple(layer for layer in self.layers if layer.is_drawable)

    @property
    def grid(self) -> TokenGrid:
        """The grid of the last layer that can be laid over the picture: that of its keys.

        Raises:
            RecordError: No layer can be; the reasons are named.
        """
        if not self.drawable:
            reasons = sorted({f"{layer.name}: {layer.reason}" for layer in self.layers})
            raise RecordError(f"no layer can be laid over the picture: {'; '.join(reasons)}.")
        keys = self.drawable[-1].keys
        assert keys is not None
        return keys.grid

    def save(self, path: str | Path) -> Path:
        """Write everything to one ``.npz`` file: plain arrays and JSON, no pickle.

        Returns:
            The path written, with ``.npz`` added where it was missing.
        """
        path = Path(path)
        path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
        arrays: dict[str, np.ndarray] = {"meta": np.array(json.dumps(self._meta()))}
        arrays |= _layer_arrays("layer", self.layers)
        for kind, layers in self.readouts.items():
            arrays |= _layer_arrays(kind, layers)
        if self.output is not None:
            arrays["output"] = _to_array(self.output)
        arrays |= {f"input.{name}": _to_array(x) for name, x in self.input_gradients.items()}
        arrays |= {f"extra.{name}": _to_array(x) for name, x in self.extras.items()}
        if self.pixels is not None:
            arrays["pixels"] = _to_array(self.pixels)
        np.savez(path, allow_pickle=False, **arrays)
        return path

    def to_html(self, path: str | Path, image: Any = None, **options: Any) -> Path:
        """Write one HTML file that shows this record, from disk and without a network.

        Args:
            path: The file to write.
            image: The picture that was looked at; without it the maps lie on plain grey.
            options: Further arguments of ``vizattn.html.write_html``.

        Returns:
            The path written.
        """
        from vizattn.html import write_html

        return write_html(path, self, image, **options)

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
            "frame": asdict(self.frame),
            "input_size": self.input_size,
            "model": self.model,
            "notes": self.notes,
            "target": self.target,
            "layers": [_layer_meta(layer) for layer in self.layers],
            "readouts": {
                kind: [_layer_meta(layer) for layer in layers]
                for kind, layers in self.readouts.items()
            },
        }

    @classmethod
    def _from_arrays(cls, arrays: dict[str, np.ndarray]) -> AttentionRecord:
        meta = json.loads(str(arrays["meta"]))
        return cls(
            _layers_from("layer", meta["layers"], arrays),
            Frame(**meta["frame"]),
            (meta["input_size"][0], meta["input_size"][1]),
            meta["model"],
            torch.from_numpy(arrays["output"]) if "output" in arrays else None,
            tuple(meta["notes"]),
            meta.get("target", ""),
            torch.from_numpy(arrays["pixels"]) if "pixels" in arrays else None,
            _tensors_from("input", arrays),
            {
                kind: _layers_from(kind, layers, arrays)
                for kind, layers in meta.get("readouts", {}).items()
            },
            _tensors_from("extra", arrays),
        )


def _tensors_from(kind: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """The tensors whose names begin with a kind, by what follows it."""
    return {
        name.removeprefix(f"{kind}."): torch.from_numpy(array)
        for name, array in arrays.items()
        if name.startswith(f"{kind}.")
    }


def _layer_arrays(kind: str, layers: Sequence[Attention]) -> dict[str, np.ndarray]:
    """The tensors of some layers, by kind, number and name."""
    arrays: dict[str, np.ndarray] = {}
    for index, layer in enumerate(layers):
        for name in layer.tensors:
            tensor = getattr(layer, name)
            if tensor is not None:
                arrays[f"{kind}{index:03d}.{name}"] = _to_array(tensor)
        for side in ("queries", "keys"):
            tokens = getattr(layer, side)
            if tokens is not None and tokens.index is not None:
                arrays[f"{kind}{index:03d}.{side}.index"] = _to_array(tokens.index)
    return arrays


def _layers_from(
    kind: str, metas: Sequence[dict[str, Any]], arrays: Mapping[str, np.ndarray]
) -> tuple[Attention, ...]:
    layers: list[Attention] = []
    for index, settings in enumerate(metas):
        form = DenseAttention if settings.pop("form") == "dense" else LayerAttention
        prefix = f"{kind}{index:03d}."
        kept: dict[str, Any] = dict.fromkeys(form.tensors) | {
            name.removeprefix(prefix): torch.from_numpy(array)
            for name, array in arrays.items()
            if name.startswith(prefix)
        }
        for side in ("queries", "keys"):
            settings[side] = _tokens_from(settings[side], kept.pop(f"{side}.index", None))
        layers.append(form(**settings, **kept))
    return tuple(layers)


def _layer_meta(layer: Attention) -> dict[str, Any]:
    plain = {f.name: getattr(layer, f.name) for f in fields(layer) if f.name not in layer.tensors}
    form = "dense" if isinstance(layer, DenseAttention) else "qk"
    sides = {side: _tokens_meta(plain[side]) for side in ("queries", "keys")}
    return {"form": form, **plain, **sides}


def _tokens_meta(tokens: Tokens | None) -> dict[str, Any] | None:
    """Grid and frame; the index is an array of its own."""
    if tokens is None:
        return None
    return {"grid": asdict(tokens.grid), "frame": asdict(tokens.frame)}


def _tokens_from(meta: dict[str, Any] | None, index: Tensor | None) -> Tokens | None:
    if meta is None:
        return None
    grid = dict(meta["grid"], roles=tuple(meta["grid"]["roles"]))
    return Tokens(TokenGrid(**grid), Frame(**meta["frame"]), index)


def _to_array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # numpy has no bfloat16; float32 holds it exactly
        tensor = tensor.float()
    return np.asarray(tensor.numpy())
