"""How quickly the page answers, measured in a real browser against the running app.

    python benchmarks/page.py [--picture rocket.jpg]

Prints one line for each number: what was measured, its median and its 95th percentile. The times of
a draw are of its script alone; "to paint" waits for the second animation frame after the input.
Chromium draws without a graphics card here.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-proxy-server", "--enable-precise-memory-info"]

TO_PAINT = """async act => {
  const run = new Function(act), times = [];
  for (let turn = 0; turn < 40; turn++) {
    const start = performance.now();
    run();
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    times.push(performance.now() - start);
  }
  return times;
}"""
STAGE = "document.querySelector('[data-part=stage]')"
KEY = (
    f"{STAGE}.dispatchEvent(new KeyboardEvent('keydown', "
    "{key: Math.random() < 0.5 ? 'ArrowLeft' : 'ArrowRight', bubbles: true}))"
)
HOVER = """
const picture = document.querySelector('[data-part=picture]');
const box = picture.getBoundingClientRect();
picture.dispatchEvent(new PointerEvent('pointermove', {pointerType: 'mouse', bubbles: true,
  clientX: box.left + Math.random() * box.width, clientY: box.top + Math.random() * box.height}));
"""
FRAMES = """async () => {
  const times = [];
  let last = performance.now();
  const end = last + 3000;
  while (last < end) {
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    times.push(now - last);
    last = now;
  }
  return times;
}"""


@contextmanager
def app() -> Iterator[str]:
    """The app on a free port; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as uploads:
        environment = os.environ | {"GRADIO_SERVER_PORT": str(port), "GRADIO_TEMP_DIR": uploads}
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "app.py"], cwd=ROOT, env=environment, stdout=quiet, stderr=quiet
        )
        address = f"http://127.0.0.1:{port}/"
        try:
            wait_until_up(address)
            yield address
        finally:
            process.terminate()
            process.wait(timeout=10)


def wait_until_up(address: str) -> None:
    """Return when the app answers.

    Raises:
        TimeoutError: It does not within a minute and a half.
    """
    end = time.monotonic() + 90
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError("the app did not start within 90 seconds.")


def say(what: str, times: list[float], unit: str = "ms") -> None:
    """One line: median and 95th percentile."""
    middle, high = statistics.median(times), float(np.percentile(times, 95))
    print(f"{what:58} {middle:8.1f} {unit:4} p95 {high:8.1f} {unit}")


def draws(page: Page, act: str) -> tuple[list[float], list[float]]:
    """Times to paint of 40 inputs, and of the draws that they caused."""
    page.evaluate("__vizattn.draws.length = 0")
    painted = page.evaluate(TO_PAINT, act)
    return painted, page.evaluate("__vizattn.draws")


def measure_start(page: Page, address: str) -> None:
    """The first page: bytes that travel, and seconds until a view is on show."""
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(length(answer)))
    start = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(".va-viewer[data-state=open]")
    say("first page until the example is on show", [1000 * (time.perf_counter() - start)])
    page.wait_for_load_state("networkidle")
    print(f"{'first page, bytes as they travel':58} {sum(sizes) / 1e3:8.0f} kB")


def length(answer: Any) -> int:
    """Bytes of an answer as they travelled; 0 where the browser does not say."""
    try:
        return int(answer.request.sizes()["responseBodySize"])
    except Exception:  # the page moved on
        return 0


def look_at(page: Page, picture: str) -> None:
    """Run the model on an example."""
    page.click(f'.va-picker [data-value="{picture}"]')
    page.click("#vizattn-run")
    page.wait_for_selector('.va-status[data-kind="done"]')
    page.wait_for_timeout(1500)  # the other layers are decoded meanwhile
    grid = page.evaluate("(({rows, columns}) => `${rows} × ${columns}`)(__vizattn.map().place)")
    print(f"\n{picture}: {grid} patches")


def measure_view(page: Page) -> None:
    """Layers, heads, hover, wall and play; none of them may ask the server for anything."""
    sizes: list[float] = []
    page.on("response", lambda got: "rows_" in got.url and sizes.append(length(got)))
    start = time.perf_counter()
    page.evaluate(f"() => {{ {HOVER} }}")
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")
    say("first patch of a layer, q and k fetched", [1000 * (time.perf_counter() - start)])
    page.wait_for_timeout(300)
    print(f"{'queries and keys of a layer':58} {sum(sizes) / 1e6:8.2f} MB")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    painted, drawn = draws(page, HOVER)
    say("hover: all heads answer, whole view redrawn", drawn)
    say("hover to paint", painted)
    row = page.evaluate("__vizattn.timeRows(200)")
    say("one row of one head", row)
    page.keyboard.press("Escape")
    page.evaluate("__vizattn.state.pointed = null")
    painted, drawn = draws(page, KEY)
    say("layer change, draw", drawn)
    say("layer change to paint", painted)
    measure_play(page)
    print(f"{'requests during all of these':58} {len(asked):8}")
    measure_memory(page)


def measure_rows(page: Page, grid: str) -> None:
    """Rows of one head, and hovers with every head's row, of the view on show."""
    page.evaluate(f"() => {{ {HOVER} }}")
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")
    page.wait_for_timeout(300)
    say(f"{grid}: one row of one head", page.evaluate("__vizattn.timeRows(200)"))
    painted, drawn = draws(page, HOVER)
    say(f"{grid}: hover, all heads answer, whole view redrawn", drawn)
    say(f"{grid}: hover to paint", painted)


def measure_rollout(page: Page) -> None:
    """From pointing at a patch until the server's rollout is on show."""
    page.click("#vizattn-method input")
    page.click('#vizattn-method [role="option"] >> nth=1')
    page.click("#vizattn-run")
    page.wait_for_function("document.querySelector('.summary').innerText.includes('ollout')")
    page.wait_for_timeout(1500)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        with page.expect_response(lambda answer: "component_server" in answer.url):
            page.evaluate(f"() => {{ {HOVER} }}")
        page.wait_for_function(
            "(({kind, late}) => kind === 'patch' && !late)(__vizattn.resolved())", polling=5
        )
        times.append(1000 * (time.perf_counter() - start))
    say("rollout from a patch, the first time", times[:1])
    say("rollout from a patch, later", times[1:])


def measure_large(page: Page, folder: Path) -> None:
    """A file of its own with 73 × 73 patches, opened from disk."""
    from vizattn import explain, load_model

    model = load_model("vizattn/dinov2-small", size=1022)
    square = Image.open(ROOT / "assets/examples/astronaut.jpg").resize((1022, 1022))
    path = explain(square, model=model).to_html(folder / "large.html", layers=[11])
    page.goto(path.as_uri())
    page.wait_for_selector(".va-viewer[data-state=open]")
    page.wait_for_timeout(3000)
    measure_rows(page, "73 × 73")


def measure_play(page: Page) -> None:
    """Animation frames while the layers play."""
    page.focus('[data-part="stage"]')
    page.keyboard.press("Home")
    page.keyboard.press(" ")
    times = page.evaluate(FRAMES)
    page.keyboard.press("End")
    print(f"{'frames per second while playing':58} {1000 / statistics.mean(times):8.1f}")


def measure_memory(page: Page) -> None:
    """The script's memory before and after 200 hovers."""
    before = page.evaluate("performance.memory.usedJSHeapSize")
    page.evaluate(TO_PAINT.replace("turn < 40", "turn < 200"), HOVER)
    after = page.evaluate("performance.memory.usedJSHeapSize")
    print(f"{'memory before and after 200 hovers':58} {before / 1e6:8.1f} {after / 1e6:8.1f} MB")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", default="astronaut.jpg", help="name of an example")
    picture = parser.parse_args().picture
    path = os.environ.get("VIZATTN_CHROMIUM") or shutil.which("chromium")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with app() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        print(f"Chromium {browser.version}")
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(60_000)
        measure_start(page, address)
        look_at(page, picture)
        measure_view(page)
        measure_rollout(page)
        with tempfile.TemporaryDirectory() as folder:
            # such a file lets nobody evaluate scripts, which is how things are measured here
            measure_large(browser.new_page(bypass_csp=True), Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
