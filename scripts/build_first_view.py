"""Make what the page shows before any model has run: the first example, looked at beforehand.

    python scripts/build_first_view.py

Writes ``assets/precomputed``: the viewer's payload as JSON and the maps beside it. The photo is
the example itself. Queries and keys are not kept: when somebody first points at a patch, the
server looks at the example once.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from vizattn.explain import explain
from vizattn.statistics import layer_statistics
from vizattn.ui.first import FIRST, FOLDER, ID
from vizattn.ui.run import examples
from vizattn.viewer import View, write_view

ASSETS = Path(__file__).parent.parent / "assets"


def main() -> None:
    """Look at the first example and write what is shown of it."""
    explanation = explain(examples()[0], **FIRST)
    target = ASSETS / FOLDER
    target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        payload = write_view(View.of(explanation), Path(folder))
        (target / "maps.bin").write_bytes(Path(payload["files"]["maps"]).read_bytes())
    record = explanation.record
    for layer in payload["layers"]:
        numbers = layer_statistics(record, record[layer["layer"]]).plain()
        layer["statistics"] = {name: numbers[name] for name in ("distance", "sink_share")}
    payload |= {
        "id": ID,
        "asked": {"picture": explanation.name, "settings": {}, **FIRST},
        "files": {"maps": "maps.bin", "picture": f"../examples/{explanation.name}"},
    }
    (target / "view.json").write_text(json.dumps(payload, separators=(",", ":")) + "\n")
    size = sum(path.stat().st_size for path in target.iterdir())
    print(f"{target}: {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
