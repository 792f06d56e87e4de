"""What the benchmarks print: bars, tables and failures, without measuring anything."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """A benchmark by its name; they find each other as scripts do."""
    monkeypatch.syspath_prepend(FOLDER)

    def load(name):
        spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    load("measure")
    return load


def test_a_table_goes_where_its_page_has_a_place_for_it(benchmark, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- peers -->\nold\n<!-- end -->\nb\n<!-- other -->\n<!-- end -->\n")
    benchmark("measure").rewrite(page, "peers", r"| \d |")
    expected = "a\n<!-- peers -->\n| \\d |\n<!-- end -->\nb\n<!-- other -->\n<!-- end -->\n"
    assert page.read_text() == expected
    with pytest.raises(ValueError, match="has 0 places named none"):
        benchmark("measure").rewrite(page, "none", "")


def test_every_way_has_its_place_and_a_failure_its_own_words(benchmark):
    peers, ways = benchmark("peers"), benchmark("ways")
    assert len(peers.WAYS) == len(ways.PREPARE)
    failed = ways.failure(ValueError("a | b\nc"))["failed"]
    assert failed == "ValueError: a \\| b"
    found = {way: peers.Measured(failed=failed) for way in peers.WAYS}
    found[peers.PLAIN] = peers.Measured([1.0, 3.0, 2.0], [4.0], 10)
    found[peers.ROWS] = peers.Measured([3.0], [2.0], 1234.4, np.array([[[0.5, 0.25]]]))
    like = "timm AttentionExtract, unfused"
    found[like] = peers.Measured([2.0], [4.0], 20, np.array([[[0.5, 0.251]]]))
    rows = {row.split(" | ")[2]: row for row in peers.rows(found, 224, 8)}
    assert rows[peers.ROWS].endswith("| 3.000 | 1.50 | 0.50 | 1,234 |  | |")
    assert rows[like].endswith("| 2.000 | 1.00 | 1.00 | 20 | 2.0e-03 | |")
    assert rows[peers.ROLLOUT].endswith("| – | – | – | – | ValueError: a \\| b | |")
    assert f"| {peers.ROWS} | 1.50 × | 1,234 MiB |" in peers.summary({(224, 1): found})
    assert peers.ROLLOUT not in peers.summary({(224, 1): found})  # nothing of it worked


def test_a_map_of_another_shape_is_named_and_not_compared(benchmark):
    said = benchmark("peers").agreement(np.zeros((1, 3, 3)), np.ones((1, 4, 4)))
    assert said == "1×3×3 values for 1×4×4"


def test_bars_are_held_or_missed(benchmark):
    bench = benchmark("rollout")

    def row(way, times, extra):
        return bench.Row(bench.GLOBAL, 1022, way, 1.0, times, times, extra, 100)

    lines = bench.bars([row(bench.PLAIN, 1, 0), row(bench.ROWS, 1.04, 50)])
    assert [line.split(":")[0] for line in lines] == ["- held", "- held"]
    lines = bench.bars([row(bench.ROLLOUT, 1.66, 250)])
    assert [line.split(":")[0] for line in lines] == ["- MISSED", "- MISSED"]


def test_weights_go_over_to_transformers_whole_or_not_at_all(benchmark, monkeypatch):
    ways = benchmark("ways")
    module = timm.create_model(
        "vit_small_patch14_dinov2", img_size=56, depth=2, embed_dim=24, num_heads=2,
        dynamic_img_size=True,
    ).eval()  # fmt: skip
    for name, parameter in module.named_parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.5) if "ls" in name else None
    model = ways.dinov2_of(module, 84, "eager")
    assert len(model(torch.zeros(1, 3, 84, 84), output_attentions=True).attentions) == 2
    renamed = ways._renamed
    monkeypatch.setattr(
        ways, "_renamed", lambda state: {n: 0.9 * x for n, x in renamed(state).items()}
    )
    with pytest.raises(RuntimeError, match="the weights do not fit"):
        ways.dinov2_of(module, 84, "eager")


@pytest.mark.parametrize(
    ("code", "patience", "answer"),
    [
        ("print('{\"seconds\": 1}', flush=True); input()", 20, {"seconds": 1}),
        ("import os; os.kill(os.getpid(), 9)", 20, {"failed": "was killed, for want of memory"}),
        ("raise SystemExit(3)", 20, {"failed": "ended with 3"}),
        ("import time; time.sleep(60)", 0.2, {"failed": "took longer than 0.2 s"}),
    ],
)
def test_a_child_that_answers_no_more_is_a_failure_in_words(benchmark, code, patience, answer):
    child = object.__new__(benchmark("peers").Child)
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    child._process = subprocess.Popen([sys.executable, "-S", "-c", code], text=True, **pipes)
    assert child.look(patience) == answer
    child.end()
    assert child._process.returncode is not None
