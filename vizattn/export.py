"""Write what is shown to files: pictures, the true numbers, figures, films, and how it was made.

Every format shows the same numbers. Where several maps stand side by side or follow each other,
all of them have one colour scale, and the file says which.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from PIL import Image

from vizattn.animation import film_frame, require_video, write_gif, write_mp4
from vizattn.drawing import Look, Panel, asked_patch
from vizattn.errors import UnknownName
from vizattn.explain import Explanation
from vizattn.figures import plot_maps
from vizattn.files import plain_name, written_whole
from vizattn.heatmap import Heatmap
from vizattn.methods.base import LayerMaps
from vizattn.methods.fusion import fuse
from vizattn.methods.query import Asker, Query
from vizattn.overlay import TOP_PERCENTILE, colour_table, overlay, top_of
from vizattn.recipe import python_lines
from vizattn.targets import name_of

# Dots per inch of the maps inside a PDF or SVG; lines and letters have no dots.
_FIGURE_DPI = 200

# Of 9: a third of the time that 6 takes, for files that are a twelfth larger.
_PNG_EFFORT = 3

# matplotlib takes these from settings of the whole process while it writes a file.
_TYPOGRAPHY: Any = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "vizattn"}
_ONE_AT_A_TIME = Lock()


def save_explanation(
    explanation: Explanation,
    folder: str | Path,
    *,
    formats: Iterable[str] = ("png", "npz"),
    colours: str = "viridis",
    opacity: float = 0.85,
    smooth: bool = False,
    stem: str | None = None,
) -> list[Path]:
    """Write a view to files, one for each format; a file is there when it is whole.

    ``png`` is the overlay at the original's size, ``npz`` the true numbers with grid, frame and
    manifest, ``pdf`` and ``svg`` a figure of all heads of the layer (of all layers, for a method
    without heads) with a colour bar, ``gif`` and ``mp4`` a film through the layers on one scale,
    ``json`` the manifest, ``py`` the Python lines that make the same view.

    Args:
        explanation: What to write.
        folder: Where to; it is made when it is not there. Files of the same name are replaced.
        formats: Names in ``FORMATS``.
        colours: Colour map of the overlay.
        opacity: Opacity of its top colour, in [0, 1].
        smooth: Interpolate between patch centres in the overlay; numbers are never smoothed.
        stem: How file names begin; as the picture's does when left out.

    Returns:
        The paths written, in the order of the formats.

    Raises:
        UnknownName: There is no such format.
        MissingPackage: A format needs a package that is not installed; nothing is written then.
    """
    chosen = check_formats(formats)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    view = _View(explanation, {"colours": colours, "opacity": opacity, "smooth": smooth})
    paths = []
    for name in chosen:
        path = folder / f"{file_stem(explanation, stem)}.{name}"
        with written_whole(path) as part:
            FORMATS[name](view, part)
        paths.append(path)
    return paths


def check_formats(formats: Iterable[str]) -> tuple[str, ...]:
    """The formats, each once, when all of them can be written here.

    Raises:
        UnknownName: There is no such format.
        MissingPackage: A format needs a package that is not installed.
    """
    chosen = tuple(dict.fromkeys(formats))
    for name in chosen:
        if name not in FORMATS:
            raise UnknownName("format", name, FORMATS)
        if name == "mp4":
            require_video()
    return chosen


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
        "nearly_flat": heat.is_nearly_flat,
        "predictions": [asdict(each) for each in explanation.predictions],
        "at": _plain(explanation.at),
        "sentence": heat.sentence,
        "versions": explanation.versions,
        **heat.made,
    }


def _plain(at: Asker | None) -> str | list[float] | None:
    return at if at is None or isinstance(at, str) else [float(part) for part in at]


def file_stem(explanation: Explanation, stem: str | None = None) -> str:
    """A file name that says picture, method and settings, with nothing a shell could trip over."""
    changed = [
        f"{key}{value + 1 if key in ('layer', 'head') and value >= 0 else value}"
        for key, value in explanation.heatmap.made["settings"].items()
        if value is not None and value != _default(explanation, key)
    ]
    asked = explanation.heatmap.made["query"]
    who = [explanation.at] if isinstance(explanation.at, str) else []
    if asked["kind"] == "patch":
        who = [f"r{asked['row'] + 1}c{asked['col'] + 1}"]
    named = name_of(explanation.target)
    target = [] if named is None else [f"target-{named}"]
    first = Path(explanation.name).stem if stem is None else stem
    return plain_name("_".join([first, explanation.method.name, *changed, *who, *target]))


@dataclass(frozen=True)
class _View:
    """An explanation and how it is coloured; what several formats need is made once."""

    explanation: Explanation
    overlay: dict[str, Any] = field(default_factory=dict)

    @property
    def look(self) -> Look:
        method = self.explanation.method
        if not method.is_share:
            return Look(unit=f"{method.title} per patch", scale=1.0, **self.overlay)
        return Look(unit=f"{method.title} per patch, %", **self.overlay)

    @property
    def manifest(self) -> dict[str, Any]:
        heat = self.explanation.heatmap
        scale = self.overlay | {
            "top_percentile": TOP_PERCENTILE,
            "top": top_of(heat.values),
            "signed": heat.is_signed,
        }
        return describe(self.explanation) | {"overlay": scale}

    @cached_property
    def maps(self) -> list[LayerMaps]:
        """The maps of all layers."""
        return self.explanation.method.by_layer(self.explanation.record, self.explanation.at)

    @property
    def asks(self) -> str:
        """What is shown of whom, such as ``Raw attention of the class token``."""
        method, record = self.explanation.method, self.explanation.record
        title = method.title if method.title.isupper() else method.title.lower()
        if method.has_query:
            words = Query.of(record, method.asked(record), self.explanation.at).words
            shown = f"{title} of {words}"
        else:
            shown = method.subject or f"{title} for {record.target}"
        model = self.explanation.model.label or record.model
        notes = "".join(f" ({note.partition(':')[0]})" for note in record.notes)
        return f"{model}{notes}: {shown}"

    def panels(self) -> tuple[str, list[Panel]]:
        """All heads of the layer shown, or all layers of a method without heads."""
        method, record = self.explanation.method, self.explanation.record
        if not method.per_head:
            return self.asks, [
                self._panel(each, 0, f"layer {each.layer + 1}") for each in self.maps
            ]
        shown = method.asked(record)
        layer = next(each for each in self.maps if record[each.layer] is shown)
        heads = range(len(layer.relevance))
        title = f"{self.asks}, layer {layer.layer + 1}"
        return title, [self._panel(layer, head, f"head {head + 1}") for head in heads]

    @cached_property
    def film(self) -> tuple[Look, list[Panel]]:
        """The chosen head, or all heads together, layer by layer, and the scale of all frames."""
        panels = [panel for each in self.maps if (panel := self._step(each)) is not None]
        look = self.look
        if len({panel.heat.grid for panel in panels}) > 1:
            # one patch of a coarse grid gets more than one of a fine grid when all get alike
            panels = [replace(panel, heat=_lift(panel.heat)) for panel in panels]
            look = replace(look, unit=f"{self.explanation.method.title}, times uniform", scale=1.0)
        return look.over([panel.heat for panel in panels]), panels

    @cached_property
    def frames(self) -> list[np.ndarray]:
        """The film, drawn."""
        look, panels = self.film
        image, n_steps = self.explanation.image, len(panels)
        return [
            film_frame(panel, image, title=self.asks, step=step, n_steps=n_steps, look=look)
            for step, panel in enumerate(panels)
        ]

    def _step(self, maps: LayerMaps) -> Panel | None:
        """One step of the film; layers that lack the chosen head have none."""
        head, n_heads = getattr(self.explanation.method, "head", None), len(maps.relevance)
        label = f"Layer {maps.layer + 1} of {len(self.explanation.record)}"
        if not self.explanation.method.per_head:
            return self._panel(maps, 0, label)
        if head is None:
            how = getattr(self.explanation.method, "fusion", "mean")
            together = replace(maps, relevance=fuse(maps.relevance, how).unsqueeze(0))
            return self._panel(together, 0, f"{label}, {how} of {n_heads} heads")
        if not -n_heads <= head < n_heads:
            return None
        return self._panel(maps, head, f"{label}, head {range(n_heads)[head] + 1}")

    def _panel(self, maps: LayerMaps, number: int, label: str) -> Panel:
        tokens = maps.tokens
        heat = Heatmap.from_relevance(maps.relevance[number], tokens.grid, tokens.frame)
        queries = self.explanation.record[maps.layer].queries
        box = None if queries is None else asked_patch(queries, self.explanation.at)
        return Panel(heat, label, box)


def _lift(heat: Heatmap) -> Heatmap:
    """How many times what each token would get if all got alike."""
    return replace(heat, values=heat.values * heat.grid.n_tokens)


def _write_png(view: _View, path: Path) -> None:
    pixels = overlay(view.explanation.image, view.explanation.heatmap, **view.overlay)
    Image.fromarray(pixels).save(path, compress_level=_PNG_EFFORT)


def _write_npz(view: _View, path: Path) -> None:
    heat = view.explanation.heatmap
    np.savez(
        path,
        allow_pickle=False,
        values=heat.values.numpy(),
        prefix_mass=heat.prefix_mass.numpy(),
        prefix=np.array(heat.grid.roles, dtype=str),
        grid=np.array([heat.grid.rows, heat.grid.cols, heat.grid.prefix]),
        frame=np.array([heat.frame.left, heat.frame.top, heat.frame.width, heat.frame.height]),
        model=np.array(view.explanation.record.model),
        versions=np.array(json.dumps(view.explanation.versions)),
        manifest=np.array(json.dumps(view.manifest)),
    )


def _write_json(view: _View, path: Path) -> None:
    text = json.dumps(view.manifest, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def _write_lines(view: _View, path: Path) -> None:
    path.write_text(python_lines(view.explanation, **view.overlay), encoding="utf-8")


def _write_figure(view: _View, path: Path) -> None:
    from matplotlib import rc_context

    title, panels = view.panels()
    figure = plot_maps(panels, view.explanation.image, title=title, look=view.look)
    dated = "CreationDate" if path.suffix == ".pdf" else "Date"  # without: same view, same bytes
    metadata = {"Creator": f"vizattn {view.explanation.versions['vizattn']}", dated: None}
    with _ONE_AT_A_TIME, rc_context(_TYPOGRAPHY):
        figure.savefig(path, dpi=_FIGURE_DPI, metadata=metadata)


def _write_gif(view: _View, path: Path) -> None:
    write_gif(view.frames, path, colour_table(view.film[0].colour_map))


def _write_mp4(view: _View, path: Path) -> None:
    write_mp4(view.frames, path)


# What a view can be written as, and how.
FORMATS: dict[str, Callable[[_View, Path], None]] = {
    "png": _write_png,
    "npz": _write_npz,
    "pdf": _write_figure,
    "svg": _write_figure,
    "gif": _write_gif,
    "mp4": _write_mp4,
    "json": _write_json,
    "py": _write_lines,
}


def _default(explanation: Explanation, key: str) -> object:
    return type(explanation.method).__dataclass_fields__[key].default
