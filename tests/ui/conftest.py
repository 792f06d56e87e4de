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
        page.wait_for_selector(".va-viewer .empty h2:not(:empty)")
        page.wait_for_selector(".va-picker .thumbs button")
        return page

    return open_it


@pytest.fixture
def show(new_page):
    """Show a payload in the viewer alone; options are those of a browser context."""

    def show_it(payload, **options):
        from vizattn.ui import canvas

        page = new_page(**options)
        script = HOST.replace("PAYLOAD", _script_json(payload)).replace(
            "PROGRAM", _script_json(canvas.program(canvas.VIEWER_SCRIPTS, colours=True))
        )
        template = (ROOT / "vizattn/ui/canvas/canvas.html").read_text(encoding="utf-8")
        page.set_content(
            "<!doctype html><meta name=viewport content='width=device-width,initial-scale=1'>"
            f"<style>body {{ margin: 0 }} {canvas.styles()}</style>"
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
        maps = np.asarray(maps, dtype=np.float64)
        layers, heads, rows, cols = maps.shape
        top = maps.max(axis=(2, 3))
        halves = maps / np.where(top > 0, top, 1)[:, :, None, None]
        if prefix_mass is None:
            rest = np.maximum(0, 1 - maps.sum(axis=(2, 3)))
            prefix_mass = rest[:, :, None].repeat(len(prefix), 2) / max(1, len(prefix))
        left, above, width, height = frame or (0, 0, *size)
        return {
            "v": 1,
            "id": words.get("id", "first"),
            "picture": {"name": words.get("name", "dots.png"), "width": size[0], "height": size[1]},
            "frame": {"left": left, "top": above, "width": width, "height": height},
            "input": {"width": cols * 14, "height": rows * 14, "patch": 14},
            "model": {"name": "tiny", "label": words.get("label", "Tiny ViT"), "notes": []},
            "method": {
                "name": "any",
                "title": words.get("title", "Some method"),
                "per_head": words.get("per_head", True),
                "class_agnostic": True,
                "settings": {},
            },
            "query": words.get("query", {"kind": "class"}),
            "layers": layers,
            "heads": heads,
            "tokens": rows * cols + len(prefix),
            "grid": {"rows": rows, "cols": cols, "prefix": list(prefix)},
            "top": top.tolist(),
            "prefix_mass": np.asarray(prefix_mass).tolist(),
            "files": {
                "maps": _inline(halves.astype("<f2").tobytes(), "application/octet-stream"),
                "picture": _inline(_grey_png(size), "image/png"),
            },
        }

    return make


def _inline(data, kind):
    return {"url": f"data:{kind};base64,{base64.b64encode(data).decode()}"}


def _grey_png(size):
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", size, (120, 130, 140)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def photos():
    """The example pictures of the project."""
    from vizattn.ui.page import examples

    found = examples()
    assert len(found) == 4
    return found
