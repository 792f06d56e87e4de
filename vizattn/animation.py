"""Films through the layers: what a frame shows, and how frames become a GIF or an MP4."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vizattn.drawing import (
    FAINT,
    INK,
    QUIET,
    Look,
    Panel,
    add_axes,
    draw_bar,
    draw_panel,
    off_map,
    resized,
    write,
)
from vizattn.errors import MissingPackage
from vizattn.overlay import blends, colour_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Longer side of the picture in pixels: small enough to be sent around. Smaller pictures are
# enlarged, and narrow ones stand in the middle, because words need the room.
SIDE = 640

# A layer is looked at for this long, the last one twice as long.
SECONDS = 0.7

# Frames of a video repeat each picture: some players drop a video with fewer frames per second.
_RATE = 10

# Colours of a GIF's palette that are those of the colour map, and those of paper and ink.
_KEPT = 32
_GREYS = 64
_EDGES = np.array([[0, 0, 0], [255, 255, 255]], dtype=np.uint8)

Frames = Sequence[UInt8[np.ndarray, "height width 3"]]


def film_frame(
    panel: Panel, image: Image.Image, *, title: str, step: int, n_steps: int, look: Look
) -> UInt8[np.ndarray, "height width 3"]:
    """One frame of a film through the layers: RGB, with even sides as video wants them.

    Args:
        panel: The map of this step; its label says which.
        image: The original picture.
        title: What the whole film shows.
        step: Number of this step, from 0.
        n_steps: How many there are.
        look: How the maps are coloured; its ``top`` is that of all frames.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    small = resized(image, SIDE)
    dpi, edge = 100.0, 16
    width, height = SIDE + 2 * edge, _even(small.height + 2 * edge + 124)
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    inch = edge / dpi
    write(figure, inch, height / dpi - inch - 0.15, title, size=9, colour=QUIET)
    write(figure, inch, height / dpi - inch - 0.40, panel.caption, size=12, weight="bold")
    right = width / dpi - inch
    write(
        figure,
        right,
        height / dpi - inch - 0.40,
        off_map(panel.heat),
        size=9,
        colour=QUIET,
        right=True,
    )
    left = (width - small.width) / 2 / dpi
    lower = (height - edge - 52 - small.height) / dpi
    axis = add_axes(figure, left, lower, small.width / dpi, small.height / dpi)
    draw_panel(axis, panel, image, small, look)
    _progress(figure, (inch, lower - 0.1), right - inch, step, n_steps)
    draw_bar(figure, look, inch)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]  # matplotlib is typed in part
    pixels: np.ndarray = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return pixels[..., :3].copy()


def _progress(
    figure: Figure, corner: tuple[float, float], wide: float, step: int, n_steps: int
) -> None:
    """A short line for every step, those until now in ink."""
    axis = add_axes(figure, *corner, wide, 0.035)
    axis.set(xlim=(0, n_steps), ylim=(0, 1))
    gap = min(0.25, 0.04 * n_steps / wide)
    for number in range(n_steps):
        colour = INK if number <= step else FAINT
        left = number * (n_steps - 1 + gap) / max(1, n_steps - 1) if n_steps > 1 else 0
        axis.broken_barh([(left, 1 - gap)], (0, 1), facecolors=colour)


def require_video() -> None:
    """Say how videos can be had where they cannot.

    Raises:
        MissingPackage: imageio-ffmpeg is not installed.
    """
    if find_spec("imageio_ffmpeg") is None:
        raise MissingPackage("an MP4", "imageio-ffmpeg", "vizattn[video]")


def write_gif(
    frames: Frames,
    path: Path,
    colours: UInt8[np.ndarray, "colour 3"],
    seconds: float = SECONDS,
) -> None:
    """Write an endless GIF, all of whose frames have one palette, so that nothing flickers.

    Args:
        frames: All of one size.
        path: Where to.
        colours: The colour map. A part of the palette is kept for it; a palette made from the
            frames alone would drop the rare colours, which are those of the strongest patches.
        seconds: How long each frame stays; the last one stays twice as long.
    """
    palette = _palette(frames, np.concatenate([_evenly(colours, _KEPT), _EDGES]))
    first, *others = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
        for frame in frames
    ]
    shown = [round(1000 * seconds)] * len(others) + [round(2000 * seconds)]
    first.save(path, save_all=True, append_images=others, duration=shown, loop=0, disposal=1)


def _evenly(colours: UInt8[np.ndarray, "colour 3"], count: int) -> UInt8[np.ndarray, "kept 3"]:
    kept: np.ndarray = colours[np.linspace(0, len(colours) - 1, count).round().astype(int)]
    return kept


def _palette(frames: Frames, kept: UInt8[np.ndarray, "kept 3"]) -> Image.Image:
    """The kept colours, and those that suit all frames together best.

    A colour counts by the root of how often it is there: as often as it is, and a photograph's
    greys take everything.
    """
    pixels = np.concatenate([frame[::2, ::2].reshape(-1, 3) for frame in frames])
    found, counts = np.unique(pixels >> 2, axis=0, return_counts=True)
    weighed = np.repeat(found << 2 | found >> 4, np.ceil(np.sqrt(counts)).astype(int), axis=0)
    together = Image.fromarray(weighed.reshape(1, -1, 3).astype(np.uint8))
    suited = together.quantize(256 - len(kept), method=Image.Quantize.MEDIANCUT, kmeans=1)
    colours = (suited.getpalette() or [])[: 3 * (256 - len(kept))]
    image = Image.new("P", (1, 1))
    image.putpalette([*kept.flatten().tolist(), *colours])
    return image


def palette_for(colours: str, opacity: float) -> UInt8[np.ndarray, "256 3"]:
    """Colours for overlays on grey pictures, without having seen one of them."""
    greys = np.repeat(np.linspace(0, 255, _GREYS).round().astype(np.uint8)[:, None], 3, axis=1)
    kept = np.concatenate([_evenly(colour_table(colours), _KEPT), greys])
    found = (_palette([blends(colours, opacity)], kept).getpalette() or [])[: 3 * 256]
    return np.array(found + [0] * (3 * 256 - len(found)), dtype=np.uint8).reshape(256, 3)


def write_mp4(frames: Frames, path: Path, seconds: float = SECONDS) -> None:
    """Write an H.264 video that browsers and phones play.

    Args:
        frames: All of one size, with even sides.
        path: Where to.
        seconds: How long each frame stays; the last one stays twice as long.

    Raises:
        MissingPackage: imageio-ffmpeg is not installed.
    """
    require_video()
    import imageio_ffmpeg

    height, width = frames[0].shape[:2]
    writer = imageio_ffmpeg.write_frames(
        str(path),
        (width, height),
        fps=_RATE,
        codec="libx264",
        pix_fmt_out="yuv420p",
        macro_block_size=2,
        ffmpeg_log_level="error",
        output_params=["-crf", "18", "-preset", "medium", "-movflags", "+faststart"],
        quality=None,
    )
    writer.send(None)
    try:
        for number, frame in enumerate(frames):
            last = number == len(frames) - 1
            for _ in range(round(_RATE * seconds * (2 if last else 1))):
                writer.send(np.ascontiguousarray(frame))
    finally:
        writer.close()


def _even(pixels: int) -> int:
    return pixels + pixels % 2
