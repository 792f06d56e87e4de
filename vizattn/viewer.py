"""What the browser's canvas needs of an explanation: a small JSON value and files beside it.

Numbers travel as files, not inside the value: float16 of each map over its own maximum, with the
maxima in the value, so that a browser has the true numbers to three digits in a few hundred kB.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from vizattn.explain import Explanation

# Longer side of the picture that travels; the numbers do not depend on it.
PICTURE_SIDE = 1600

FORMAT = 1


def write_view(explanation: Explanation, folder: Path) -> dict[str, Any]:
    """Write the files of a view and return the value that names them.

    Args:
        explanation: What to show.
        folder: Where to write; it is made when it is not there.

    Returns:
        JSON values; ``files`` holds the paths of ``maps`` (little-endian float16,
        ``[layer, map, row, col]``, each map divided by its ``top``) and ``picture``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = explanation.record
    layers = explanation.method.by_layer(record, explanation.at)
    relevance = torch.stack([maps.relevance for maps in layers if maps.tokens.grid == record.grid])
    maps = record.grid.to_map(relevance)
    top = maps.amax(dim=(-2, -1))
    return {
        "v": FORMAT,
        "id": uuid4().hex,
        **_words(explanation),
        "layers": maps.shape[0],
        "heads": maps.shape[1],
        "tokens": record.grid.n_tokens,
        "top": _plain(top),
        "prefix_mass": _plain(record.grid.prefix_of(relevance)),
        "files": {
            "maps": str(_write_maps(maps, top, folder / "maps.bin")),
            "picture": str(_write_picture(explanation.image, folder / "picture.jpg")),
        },
    }


def _words(explanation: Explanation) -> dict[str, Any]:
    record, method, image = explanation.record, explanation.method, explanation.image
    height, width = record.input_size
    grid = record.grid
    return {
        "picture": {"name": explanation.name, "width": image.width, "height": image.height},
        "frame": asdict(record.frame),
        "input": {"width": width, "height": height, "patch": width // grid.cols},
        "model": {
            "name": record.model,
            "label": explanation.model.label or record.model,
            "notes": list(record.notes),
        },
        "method": {
            "name": method.name,
            "title": method.title,
            "per_head": method.per_head,
            "class_agnostic": method.class_agnostic,
            "settings": asdict(method),
        },
        "query": explanation.heatmap.made["query"],
        "grid": {"rows": grid.rows, "cols": grid.cols, "prefix": list(grid.roles)},
    }


def _write_maps(maps: Float[Tensor, "layer map row col"], top: Tensor, path: Path) -> Path:
    tiny = torch.finfo(torch.float32).tiny  # an all-zero map stays zero
    unit = maps / rearrange(top, "layer map -> layer map 1 1").clamp_min(tiny)
    path.write_bytes(unit.numpy().astype("<f2").tobytes())
    return path


def _write_picture(image: Image.Image, path: Path) -> Path:
    image = image.copy()
    image.thumbnail((PICTURE_SIDE, PICTURE_SIDE), Image.Resampling.LANCZOS)
    image.save(path, quality=92)
    return path


def _plain(values: Tensor) -> Any:
    """Nested lists of numbers with seven digits: what a float32 holds."""
    return np.vectorize(lambda x: float(f"{x:.7g}"), otypes=[float])(values.numpy()).tolist()
