"""What the browser's canvas needs of an explanation: a small JSON value and files beside it.

Numbers travel as files, not inside the value: float16 of each map over its own maximum, with the
maxima in the value, so that a browser has the true numbers to three digits in a few hundred kB.
Every layer says where its maps lie, because layers may differ in their grids and in their heads.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vizattn.explain import Explanation
from vizattn.frame import Frame
from vizattn.layers import Attention
from vizattn.methods import Asker, Method
from vizattn.methods.base import LayerMaps
from vizattn.methods.query import Query
from vizattn.places import Tokens
from vizattn.record import AttentionRecord
from vizattn.rows import patches_ask, rows_size
from vizattn.targets import PATCH, asked_by_name, pixel_of

# Longer side of the picture that travels; the numbers do not depend on it.
PICTURE_SIDE = 1600

FORMAT = 2


@dataclass(frozen=True)
class View:
    """What is shown: one picture, what was captured of it, and how it is read.

    Attributes:
        image: The original picture, upright, RGB.
        name: Its name, for people.
        record: The captured attention.
        method: The method with its settings.
        label: The model's name, for people.
        at: The pixel that is asked from; ``None`` for the model's own query.
        aimed: The pixel whose patch is explained, where one is.
    """

    image: Image.Image
    name: str
    record: AttentionRecord
    method: Method
    label: str
    at: Asker | None = None
    aimed: tuple[float, float] | None = None

    @classmethod
    def of(cls, explanation: Explanation) -> View:
        """The view of an explanation."""
        label = explanation.model.label or explanation.record.model
        kind, asked = asked_by_name(explanation.target)
        return cls(
            explanation.image,
            explanation.name,
            explanation.record,
            explanation.method,
            label,
            explanation.at,
            pixel_of(asked) if kind == PATCH else None,
        )


def write_view(shown: View | Explanation, folder: Path) -> dict[str, Any]:
    """Write the files of a view and return the value that names them.

    Args:
        shown: What to show.
        folder: Where to write; it is made when it is not there.

    Returns:
        JSON values; ``files`` holds the paths of ``maps`` (little-endian float16, layer after
        layer from its ``offset``, ``[map, row, col]``, each map divided by its ``top``) and
        ``picture``.
    """
    view = View.of(shown) if isinstance(shown, Explanation) else shown
    folder.mkdir(parents=True, exist_ok=True)
    layers, maps = pack_maps(view, view.at)
    (folder / "maps.bin").write_bytes(maps)
    return {
        "v": FORMAT,
        "id": uuid4().hex,
        **_words(view),
        "layers": layers,
        "undrawn": _undrawn(view.record, view.method, {layer["layer"] for layer in layers}),
        "files": {
            "maps": str(folder / "maps.bin"),
            "picture": str(_write_picture(view.image, folder / "picture.jpg")),
        },
    }


def pack_maps(view: View, at: Asker | None) -> tuple[list[dict[str, Any]], bytes]:
    """The maps of all layers for one question: what is said of each layer, and the numbers.

    Args:
        view: What is shown.
        at: The pixel to ask from; ``None`` for the model's own query.
    """
    described, packed, offset = [], [], 0
    for maps in view.method.by_layer(view.record, at):
        layer = _layer(view, maps, at)
        halves, top = _halves(maps)
        described.append(layer | {"top": _plain(top), "offset": offset})
        packed.append(halves)
        offset += len(halves) // 2
    return described, b"".join(packed)


def _words(view: View) -> dict[str, Any]:
    record, method, image = view.record, view.method, view.image
    height, width = record.input_size
    return {
        "picture": {"name": view.name, "width": image.width, "height": image.height},
        "frame": asdict(record.frame),
        "input": {"width": width, "height": height},
        "aimed": None if view.aimed is None else list(view.aimed),
        "model": {"name": record.model, "label": view.label, "notes": list(record.notes)},
        "method": {
            "name": method.name,
            "title": method.title,
            "about": method.about,
            "formula": method.formula,
            "paper": method.paper,
            "per_head": method.per_head,
            "class_agnostic": method.class_agnostic,
            "has_query": method.has_query,
            "subject": method.subject,
            "target": record.target,
            "settings": asdict(method),
        },
    }


def _layer(view: View, maps: LayerMaps, at: Asker | None) -> dict[str, Any]:
    """One layer in words and plain numbers: what it is, what asks in it, and where its maps lie."""
    layer = view.record[maps.layer]
    query = Query.of(view.record, layer, at)
    assert layer.queries is not None
    return {
        "layer": maps.layer,
        "name": layer.name,
        "kind": layer.kind,
        "exact": layer.is_exact,
        "query": query.made,
        "asks": query.words,
        "maps": len(maps.relevance),
        **_place(maps.tokens),
        "tokens": maps.tokens.grid.n_tokens,
        "queries": _place(layer.queries) | {"patches": patches_ask(layer)},
        # rows from q and k are those of a head: of a method that joins layers, the server knows
        "rows": {"bytes": rows_size(layer)} if view.method.has_rows else None,
        "prefix_mass": _plain(maps.tokens.grid.prefix_of(maps.relevance)),
    }


def _place(tokens: Tokens) -> dict[str, Any]:
    grid = tokens.grid
    return {
        "grid": {"rows": grid.rows, "cols": grid.cols, "prefix": list(grid.roles)},
        "frame": _frame(tokens.frame),
    }


def _frame(frame: Frame) -> dict[str, float]:
    return {side: float(value) for side, value in asdict(frame).items()}


def _undrawn(record: AttentionRecord, method: Method, shown: set[int]) -> list[dict[str, Any]]:
    return [
        {"layer": index, "name": layer.name, "kind": layer.kind, "reason": _why(layer)}
        for index, layer in enumerate(record)
        if index not in shown and (layer.reason or method.has_query)
    ]


def _why(layer: Attention) -> str:
    return layer.reason or "the method leaves it out"


def _halves(maps: LayerMaps) -> tuple[bytes, Float[Tensor, " map"]]:
    """Each map over its own largest size, as float16, and those sizes."""
    laid = maps.tokens.grid.to_map(maps.relevance)
    top = laid.abs().amax(dim=(-2, -1))
    tiny = torch.finfo(torch.float32).tiny  # an all-zero map stays zero
    unit = laid / top.clamp_min(tiny)[:, None, None]
    return unit.numpy().astype("<f2").tobytes(), top


def _write_picture(image: Image.Image, path: Path) -> Path:
    image = image.copy()
    image.thumbnail((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.LANCZOS)
    image.save(path, quality=92)
    return path


def _plain(values: Tensor) -> Any:
    """Nested lists of numbers with seven digits: what a float32 holds."""
    if not values.numel():
        return values.tolist()
    return np.vectorize(lambda x: float(f"{x:.7g}"), otypes=[float])(values.numpy()).tolist()
