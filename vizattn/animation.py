"""Frames as a GIF or an MP4. Frames are arrays; what is on them is decided elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vizattn.errors import MissingPackage

# A layer is looked at for this long, the last one twice as long.
SECONDS = 0.7

# Frames of a video repeat each picture: some players drop a video with fewer frames per second.
_RATE = 10

# Colours of a GIF's palette that are those of the colour map, and those of paper and ink.
_KEPT = 32
_EDGES = np.array([[0, 0, 0], [255, 255, 255]], dtype=np.uint8)

Frames = Sequence[UInt8[np.ndarray, "height width 3"]]


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
    palette = _palette(frames, np.concatenate([colours[:: len(colours) // _KEPT], _EDGES]))
    first, *others = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
        for frame in frames
    ]
    shown = [round(1000 * seconds)] * len(others) + [round(2000 * seconds)]
    first.save(path, save_all=True, append_images=others, duration=shown, loop=0, disposal=1)


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
