"""Write what is shown to files: the picture, the true numbers, and how they were made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vizattn.explain import Explanation
from vizattn.overlay import TOP_PERCENTILE, overlay


def save_explanation(
    explanation: Explanation,
    folder: str | Path,
    *,
    colours: str = "viridis",
    opacity: float = 0.85,
    smooth: bool = False,
) -> list[Path]:
    """Write the overlay at the original's size as PNG and the true numbers as NPZ.

    Args:
        explanation: What to write.
        folder: Where to; it is made when it is not there. Files of the same name are replaced.
        colours: Colour map of the overlay.
        opacity: Opacity of its top colour, in [0, 1].
        smooth: Interpolate between patch centres in the overlay; numbers are never smoothed.

    Returns:
        The paths written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    stem = file_stem(explanation)
    picture, numbers = folder / f"{stem}.png", folder / f"{stem}.npz"
    pixels = overlay(
        explanation.image, explanation.heatmap, colours=colours, opacity=opacity, smooth=smooth
    )
    Image.fromarray(pixels).save(picture)
    scale = {"colours": colours, "opacity": opacity, "smooth": smooth}
    manifest = describe(explanation) | {"overlay": scale | {"top_percentile": TOP_PERCENTILE}}
    np.savez(
        numbers,
        allow_pickle=False,
        values=explanation.heatmap.values.numpy(),
        prefix_mass=explanation.heatmap.prefix_mass.numpy(),
        manifest=np.array(json.dumps(manifest)),
    )
    return [picture, numbers]


def describe(explanation: Explanation) -> dict[str, Any]:
    """Everything needed to make the same map again, as plain JSON values."""
    heat, record = explanation.heatmap, explanation.record
    low, high = heat.range
    return {
        "picture": explanation.name,
        "picture_size": list(explanation.image.size),
        "frame": [heat.frame.left, heat.frame.top, heat.frame.width, heat.frame.height],
        "input_size": list(record.input_size),
        "grid": {"rows": heat.grid.rows, "cols": heat.grid.cols, "prefix": list(heat.grid.roles)},
        "range": [low, high],
        "sentence": heat.sentence,
        "versions": explanation.versions,
        **heat.made,
    }


def file_stem(explanation: Explanation) -> str:
    """A file name that says picture, method and settings, with nothing a shell could trip over."""
    changed = [
        f"{key}{value + 1 if key in ('layer', 'head') and value >= 0 else value}"
        for key, value in explanation.heatmap.made["settings"].items()
        if value is not None and value != _default(explanation, key)
    ]
    asked = explanation.heatmap.made["query"]
    place = [f"r{asked['row'] + 1}c{asked['col'] + 1}"] if asked["kind"] == "patch" else []
    words = [Path(explanation.name).stem, explanation.method.name, *changed, *place]
    return re.sub(r"[^\w.-]+", "-", "_".join(words)).strip("-.") or "picture"


def _default(explanation: Explanation, key: str) -> object:
    return type(explanation.method).__dataclass_fields__[key].default
