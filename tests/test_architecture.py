"""Arrows point down: a room imports from rooms below it, and from nobody else."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "vizattn"

# Every room and its floor. A new room is written down here, or these tests fail.
FLOORS = {
    "errors": 0,
    "attention": 1, "grid": 1, "frame": 1, "positions": 1, "calls": 1, "running": 1,
    "windows": 1, "operations": 1, "masks": 1, "maxflow": 1, "progress": 1,
    "places": 2, "heatmap": 2, "vit": 2, "images": 2, "preprocess": 2, "recorder": 2,
    "sliding": 2, "graph": 2, "digits": 2, "outputs": 2, "targets": 3, "operands": 2,
    "propagation": 2, "blocks": 1, "files": 1, "tails": 2,
    "layers": 3, "models": 3, "layouts": 3, "motions": 3,
    "gate": 3, "positive": 4, "token_statistics": 4, "record": 4, "tracer": 4,
    "methods": 5, "observation": 5,
    "capture": 6, "tracked": 6, "shares": 6,
    "overlay": 7, "batch": 7, "audit": 7, "rows": 7, "statistics": 7, "features": 7,
    "readouts": 7, "landmarks": 7, "passes": 7, "attribution": 7, "predictions": 7,
    "likeness": 8, "gradients": 9,
    "drawing": 8,
    "figures": 9, "animation": 9, "explain": 10,
    "recipe": 11, "viewer": 11,
    "export": 12,
    "many": 13, "evaluation": 14, "survey": 14,
    "ui": 15, "html": 15,
    "cli": 16,
    "__main__": 17,
}  # fmt: skip

# Rooms on one floor that look into each other, and why.
NEIGHBOURS = {
    ("html", "ui"): "a file of its own is the page's viewer with its data inside",
    ("ui", "html"): "the page saves such files",
    ("record", "html"): "a record shows itself in a notebook and as a file",
    ("explain", "html"): "so does an explanation",
    ("explain", "viewer"): "as the view that it is",
}

# What may be imported at the top of a module, room by room; everything else waits for its use.
HEAVY = {"timm", "transformers", "gradio", "matplotlib", "torchvision", "pyarrow", "ray"}


def room_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(tree, *, top_only=False):
    nodes = tree.body if top_only else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def upward(path, source):
    """Imports in ``source`` that do not point down, as readable arrows."""
    here = room_of(path)
    for name in imports(ast.parse(source)):
        parts = name.split(".")
        if parts[0] != "vizattn" or len(parts) < 2 or parts[1] == here:
            continue
        there = parts[1]
        if FLOORS[there] >= FLOORS[here] and (here, there) not in NEIGHBOURS:
            yield f"{here} -> {there}"


MODULES = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_down(path):
    assert room_of(path) in FLOORS, "a new room: give it a floor"
    assert list(upward(path, path.read_text())) == []


def test_an_arrow_that_points_up_is_seen():
    assert list(upward(PACKAGE / "grid.py", "from vizattn.capture import capture")) == [
        "grid -> capture"
    ]
    inside = "def f():\n    import vizattn.ui.page"
    assert list(upward(PACKAGE / "methods" / "raw.py", inside)) == ["methods -> ui"]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_are_imported_where_they_are_used(path):
    if room_of(path) == "ui":
        return  # the page is gradio
    at_top = {name.split(".")[0] for name in imports(ast.parse(path.read_text()), top_only=True)}
    assert not at_top & HEAVY


def test_methods_know_no_models_and_the_page_knows_no_method():
    from vizattn.methods import METHODS

    for path in PACKAGE.rglob("methods/*.py"):
        assert not any("models" in name for name in imports(ast.parse(path.read_text())))
    for path in (PACKAGE / "ui").rglob("*.py"):
        words = {
            node.value for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }  # fmt: skip
        assert not words & set(METHODS), path


def test_nothing_pickled_evaluated_or_remote_is_in_the_package():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            called = getattr(getattr(node, "func", None), "id", None)
            assert called not in {"eval", "exec", "compile", "__import__"}, path
            names = {getattr(node, "id", None), getattr(node, "attr", None)}
            names |= {getattr(node, "arg", None), getattr(node, "module", None)}
            assert not names & {"pickle", "trust_remote_code"}, path


def test_each_file_is_one_sitting():
    long = {
        str(path.relative_to(PACKAGE)): len(path.read_text().splitlines())
        for path in MODULES
        if len(path.read_text().splitlines()) > 330
    }
    assert long == {}
