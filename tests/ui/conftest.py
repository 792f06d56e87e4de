"""A browser, the running app, and the viewer alone in a page without a server."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
]
PATIENCE = 60_000  # milliseconds that a busy machine may take for a run

# Gradio's calls of js_on_load, replayed: no server, no Gradio.
HOST = """
const watchers = [];
window.props = {value: PAYLOAD};
window.update = value => { props.value = value; watchers.forEach(watcher => watcher()); };
new Function("element", "trigger", "props", "server", "upload", "watch", PROGRAM)(
  document.getElementById("host"), () => {}, props, {}, null, (_, act) => watchers.push(act));
"""


@pytest.fixture(scope="session")
def browser():
    """Chromium; where there is none, CI fails and a person's machine skips."""
    path = os.environ.get("VIZATTN_CHROMIUM") or shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        reason = "the page's tests need playwright and a Chromium (VIZATTN_CHROMIUM names one)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def new_page(browser):
    """Open pages in contexts of their own; a script error on any of them fails the test."""
    contexts, errors = [], []

    def new(**options):
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    yield new
    for context in contexts:
        context.close()
    assert errors == []


@pytest.fixture(scope="session")
def app(tmp_path_factory):
    """The app as people start it, on a free port of this machine; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("app") / "log.txt"
    environment = os.environ | {
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_TEMP_DIR": str(tmp_path_factory.mktemp("uploads")),
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    address = f"http://127.0.0.1:{port}/"
    try:
        _wait_until_up(address, process, log)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=10)


def _wait_until_up(address, process, log):
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the app did not start:\n{log.read_text()}")


@pytest.fixture
def open_app(app, new_page):
    """Open the app; ``page.requests`` collects what the page asks for from then on."""

    def open_it(**options):
        page = new_page(**options)
        page.requests = []
        page.on("request", lambda request: page.requests.append(request.url))
        page.goto(app)
        page.wait_for_selector(".va-viewer[data-state=open]")
        page.wait_for_selector(".va-picker .thumbs button")
        return page

    return open_it


@pytest.fixture
def show(new_page):
    """Show a payload in the viewer alone; options are those of a browser context."""

    def show_it(payload, *, hash="", **options):
        from vizattn.ui import program

        page = new_page(**options)
        script = HOST.replace("PAYLOAD", _script_json(payload)).replace(
            "PROGRAM", _script_json(program.program(program.VIEWER_SCRIPTS, colours=True))
        )
        template = (ROOT / "vizattn/ui/canvas/canvas.html").read_text(encoding="utf-8")
        if hash:
            page.goto(f"about:blank#{hash}")
        page.set_content(
            "<!doctype html><meta name=viewport content='width=device-width,initial-scale=1'>"
            f"<style>body {{ margin: 0 }} {program.styles()}</style>"
            f"<div id=host>{template}</div><script>{script}</script>"
        )
        if payload is not None:
            page.wait_for_selector(".va-viewer[data-state=open]")
        return page

    return show_it


def _script_json(value):
    return json.dumps(value).replace("</", "<\\/")


@pytest.fixture(scope="session")
def make_payload():
    """A payload from true maps ``[layer][head][row][col]``, its files inside it."""

    def make(maps, *, prefix=("class",), prefix_mass=None, size=(60, 40), frame=None, **words):
        maps = [np.asarray(layer, dtype=np.float64) for layer in maps]
        layers, halves, offset = [], b"", 0
        for number, layer in enumerate(maps):
            top = np.abs(layer).max(axis=(1, 2))
            unit = layer / np.where(top > 0, top, 1)[:, None, None]
            mass = _rest(layer, prefix) if prefix_mass is None else prefix_mass[number]
            place = _place(layer, prefix, size, frame)
            layers.append(
                {
                    "layer": number, "name": f"blocks.{number}.attn", "kind": "self", "exact": True,
                    "query": words.get("query", {"kind": "class"}), "asks": "the class token",
                    "maps": len(layer), **place, "tokens": layer[0].size + len(prefix),
                    "queries": place | {"patches": True}, "rows": {"bytes": None},
                    "prefix_mass": np.asarray(mass).tolist(), "top": top.tolist(), "offset": offset,
                }
            )  # fmt: skip
            halves += unit.astype("<f2").tobytes()
            offset += layer.size
        rows, cols = maps[-1].shape[1:]
        return {
            "v": 2,
            "id": words.get("id", "first"),
            "picture": {"name": words.get("name", "dots.png"), "width": size[0], "height": size[1]},
            "frame": _place(maps[-1], prefix, size, frame)["frame"],
            "input": {"width": cols * 14, "height": rows * 14},
            "model": {"name": "tiny", "label": words.get("label", "Tiny ViT"), "notes": []},
            "method": {
                "name": "any", "title": words.get("title", "Some method"), "about": "What it is.",
                "formula": "m = r A\nr: who asks",
                "paper": "Somebody 2020", "per_head": words.get("per_head", True),
                "class_agnostic": True, "settings": {},
            },
            "layers": layers,
            "undrawn": [],
            "files": {
                "maps": _inline(halves, "application/octet-stream"),
                "picture": _inline(_grey_png(size), "image/png"),
            },
        }  # fmt: skip

    return make


def _rest(layer, prefix):
    """What the patches of each head leave to 1, shared among the prefix tokens."""
    rest = np.maximum(0, 1 - layer.sum(axis=(1, 2)))
    return rest[:, None].repeat(len(prefix), 1) / max(1, len(prefix))


def _place(layer, prefix, size, frame):
    left, top, width, height = frame or (0, 0, *size)
    return {
        "grid": {"rows": layer.shape[1], "cols": layer.shape[2], "prefix": list(prefix)},
        "frame": {"left": left, "top": top, "width": width, "height": height},
    }


@pytest.fixture(scope="session")
def show_record(tmp_path_factory):
    """The payload of a captured record with the rows of every layer inside it, as a page has it."""

    def make(record, method=None, at=None, size=None, with_rows=True):
        from vizattn.methods import RawAttention
        from vizattn.rows import write_rows
        from vizattn.viewer import View, write_view

        folder = tmp_path_factory.mktemp("view")
        picture = _grey_image(size or record.input_size[::-1])
        view = View(picture, "grey.png", record, method or RawAttention(), "Tiny", at)
        payload = write_view(view, folder)
        if with_rows:
            for layer in payload["layers"]:
                path = folder / f"rows{layer['layer']}.bin"
                layer["rows"] = write_rows(record[layer["layer"]], path) | _file(path)
        payload["files"] = {name: _file(Path(path)) for name, path in payload["files"].items()}
        return payload

    return make


def _file(path):
    kind = "image/jpeg" if path.suffix == ".jpg" else "application/octet-stream"
    return _inline(path.read_bytes(), kind)


def _inline(data, kind):
    return {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


def _grey_image(size):
    from PIL import Image

    return Image.new("RGB", size, (120, 130, 140))


def _grey_png(size):
    buffer = io.BytesIO()
    _grey_image(size).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def photos():
    """The example pictures of the project."""
    from vizattn.ui.run import examples

    found = examples()
    assert len(found) == 6
    return found
