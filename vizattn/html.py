"""One HTML file: the page's own viewer with its data inside, for a browser without a network.

The file holds every map, and q and k of as many layers as fit, the last layers first, so that
pointing at a patch works there. It asks for nothing: its own policy forbids it to.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image

from vizattn.errors import OutOfRange
from vizattn.images import ImageSource, open_image
from vizattn.methods import Asker, Method, RawAttention
from vizattn.record import AttentionRecord
from vizattn.rows import rows_size, write_rows
from vizattn.ui.program import HEADER_SCRIPTS, VIEWER_SCRIPTS, program, read, styles
from vizattn.viewer import View, write_view

# What a file may weigh, queries and keys included: it has to travel by mail.
LARGEST = 7_500_000

# Base64 makes four letters of three bytes.
_GROWTH = 4 / 3

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src data:">
<title>{title}</title>
<style>{styles}
body {{ margin: 0; background: #fbfbfa; }}
body.dark {{ background: #101214; }}</style>
</head>
<body class="va-alone">
<div id="header">{header}</div>
<main id="viewer">{viewer}</main>
<script>
if (matchMedia("(prefers-color-scheme: dark)").matches) document.body.classList.add("dark");
const start = (id, value, act) => act(
  document.getElementById(id), () => {{}}, {{ value }}, {{}}, null, () => {{}});
start("header", null, function (element, trigger, props, server, upload, watch) {{
{header_program}
}});
start("viewer", {payload}, function (element, trigger, props, server, upload, watch) {{
{viewer_program}
}});
</script>
</body>
</html>
"""


def write_html(
    path: str | Path,
    record: AttentionRecord,
    image: ImageSource | None = None,
    *,
    method: Method | None = None,
    at: Asker | None = None,
    layers: Iterable[int] | None = None,
    name: str | None = None,
    label: str | None = None,
) -> Path:
    """Write one HTML file that shows a record as the page does, from disk and without a network.

    Args:
        path: The file to write; ``.html`` is added where it is missing.
        record: What was captured.
        image: The picture that was looked at; without it the maps lie on plain grey.
        method: How to read the record; raw attention by default.
        at: Ask from the patch under this pixel of the picture.
        layers: Layers whose patches can be pointed at, by index; by default the last ones that
            keep the file under 7.5 MB. Maps of all layers are always there.
        name: How to name the picture; its file name by default.
        label: How to name the model.

    Returns:
        The path written.

    Raises:
        OutOfRange: The record has no such layer.
    """
    path = Path(path)
    path = path if path.suffix in (".html", ".htm") else path.with_name(path.name + ".html")
    named = Path(image).name if isinstance(image, str | Path) else "picture"
    view = View(
        _ground(record) if image is None else open_image(image),
        name or named,
        record,
        method or RawAttention(),
        label or record.model,
        at,
    )
    path.write_text(html_of(view, layers), encoding="utf-8")
    return path


def html_of(view: View, layers: Iterable[int] | None = None, largest: int = LARGEST) -> str:
    """The text of the file.

    Args:
        view: What is shown.
        layers: As for ``write_html``.
        largest: Bytes that the file may have when ``layers`` is left out.
    """
    with TemporaryDirectory() as folder:
        payload = _inlined(view, Path(folder), layers, largest)
    return _PAGE.format(
        title=html.escape(f"{view.name} · {view.label} · vizattn"),
        styles=styles(),
        header=read("header.html"),
        viewer=read("canvas.html"),
        header_program=program(HEADER_SCRIPTS),
        viewer_program=program(VIEWER_SCRIPTS, colours=True),
        payload=_script_json(payload),
    )


def framed(view: View, largest: int = 4_000_000) -> str:
    """The file in a frame, for a notebook: shut off from the page around it."""
    text = html.escape(html_of(view, largest=largest), quote=True)
    return (
        f'<iframe title="vizattn" sandbox="allow-scripts allow-downloads" srcdoc="{text}" '
        f'style="width:100%;height:900px;border:0"></iframe>'
    )


def _inlined(
    view: View, folder: Path, layers: Iterable[int] | None, largest: int
) -> dict[str, Any]:
    """The payload with its files, and the rows of some layers, inside."""
    payload = write_view(view, folder)
    payload["files"] = {part: _data(Path(file)) for part, file in payload["files"].items()}
    shown = [layer["layer"] for layer in payload["layers"]] if view.method.has_rows else []
    spent = sum(len(file["url"]) for file in payload["files"].values()) + 400_000
    chosen = (
        _that_fit(view.record, shown, largest - spent)
        if layers is None
        else {_index(view.record, layer) for layer in layers}
    )
    for layer in payload["layers"]:
        path = folder / f"rows_{layer['layer']}.bin"
        has_rows = layer["layer"] in chosen and layer["rows"] is not None
        layer["rows"] = (
            write_rows(view.record[layer["layer"]], path) | _data(path) if has_rows else None
        )
        if layer["rows"] is not None:
            layer["rows"]["bytes"] = path.stat().st_size
    payload["inside"] = sorted(chosen & set(shown))
    return payload


def _that_fit(record: AttentionRecord, shown: list[int], room: float) -> set[int]:
    """The last layers whose queries and keys fit into so many letters."""
    chosen = set()
    for layer in reversed(shown):
        size = rows_size(record[layer])
        if size is None or size * _GROWTH > room:
            break
        room -= size * _GROWTH
        chosen.add(layer)
    return chosen


def _index(record: AttentionRecord, layer: int) -> int:
    if not -len(record) <= layer < len(record):
        raise OutOfRange("layer", layer, len(record))
    return layer % len(record)


def _ground(record: AttentionRecord) -> Image.Image:
    """Plain grey where the picture would lie."""
    frame = record.frame
    size = round(frame.left + frame.width), round(frame.top + frame.height)
    return Image.new("RGB", size, (128, 128, 128))


def _data(path: Path) -> dict[str, str]:
    kind = "image/jpeg" if path.suffix == ".jpg" else "application/octet-stream"
    return {"url": f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"}


def _script_json(value: Any) -> str:
    """JSON that cannot end the script it stands in, whatever a picture is called."""
    return (
        json.dumps(value, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    )
