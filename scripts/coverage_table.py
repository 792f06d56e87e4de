"""What a sweep found, as a page for people and a file for machines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import timm
import torch
from coverage_check import TOLERANCE
from coverage_models import SHORTEN_ABOVE, Architecture

Result = dict[str, Any]

_HEAD = """# Every vision transformer of timm, and what capture sees of it

Made by `python scripts/coverage.py` on {day} with timm {timm}, torch {torch} on a CPU, in float32.

{n} architectures of timm take a softmax over places. A class counts when its own source takes a
softmax and a module of it ran in the forward pass; vizattn is not asked for that. Weights are
drawn so that attention is far from uniform, because with a fresh model's nearly uniform attention
a wrong scale or a forgotten mask would not show; in {gentle} architectures they were drawn again,
gentler, because scores in the hundreds leave float32 itself no better than {tolerance:g}. Above
{shorten:.0f} million parameters repeated blocks were left out ({left_out} architectures), and most
inputs are smaller than the default and not square. `coverage.json` has the numbers of every
architecture.

* **identical**: the output with capture is, bit for bit, that of a plain forward pass, both when
  places are found out and when they are known.
* **modules**: softmax modules whose attention was captured, of those that ran.
* **exact**: the softmax itself multiplied the values, rows sum to 1, and weights times values are
  what the fused kernel returned, to {tolerance:g} of its largest number.
* **mixed**: heads are mixed or gates put on after the softmax; both matrices are kept.
* **drawn**: calls whose tokens have a place on the picture, of all calls.
"""


def write_documents(results: list[Result], architectures: list[Architecture], folder: Path) -> None:
    """Write ``coverage.md`` and ``coverage.json``."""
    folder.mkdir(exist_ok=True)
    wanted = {each.name for each in architectures}
    results = sorted((r for r in results if r["name"] in wanted), key=lambda r: r["name"])
    done = [r for r in results if "error" not in r]
    text = _HEAD.format(
        day=date.today().isoformat(), timm=timm.__version__, torch=torch.__version__,
        n=len(architectures), shorten=SHORTEN_ABOVE / 1e6, tolerance=TOLERANCE,
        left_out=sum(r["blocks_left_out"] > 0 for r in done),
        gentle=sum(r["sharpness"] < 1 for r in done),
    )  # fmt: skip
    sections = [text, _totals(done, architectures), _table(done, architectures), _reasons(done)]
    sections.append(_troubles(results))
    (folder / "coverage.md").write_text("\n".join(sections).rstrip() + "\n")
    (folder / "coverage.json").write_text(_json(results))


def is_exact(result: Result) -> bool:
    """Whether everything about a result is as it should be, and nothing is mixed."""
    return (
        result["mixed"] == 0
        and not result["missing"]
        and not result["unrecorded"]
        and result["row_error"] <= TOLERANCE
        and result["value_error_relative"] <= TOLERANCE
    )


def _is_identical(result: Result) -> bool:
    return bool(result["identical_traced"] and result["identical_again"])


def _totals(done: list[Result], architectures: list[Architecture]) -> str:
    n = len(architectures)
    mixed = [r for r in done if r["mixed"]]
    labelled = sum(r["mixed"] == r["both_matrices"] for r in mixed)
    lines = [
        f"**{sum(map(_is_identical, done))} of {n} bit-identical**",
        f"**{_sum(done, 'found'):,} of {_sum(done, 'expected'):,} modules captured**",
        f"**{sum(map(is_exact, done))} exact, {len(mixed)} mixed** "
        f"(both matrices kept in all calls of {labelled} of them)",
        f"**{_sum(done, 'drawn'):,} of {_sum(done, 'calls'):,} calls have a place on the picture**",
    ]
    return "".join(f"* {line}\n" for line in lines)


def _table(done: list[Result], architectures: list[Architecture]) -> str:
    total = Counter(each.family for each in architectures)
    head = "| family | run | identical | modules | exact | mixed | row error | value error | drawn "
    rows = [head + "| kinds of call |", "|---|---|---|---|---|---|---|---|---|---|"]
    for family in sorted(total):
        of = [r for r in done if r["family"] == family]
        kinds = _add(r["kinds"] for r in of)
        rows.append(
            f"| {family} | {len(of)}/{total[family]} | {sum(map(_is_identical, of))} "
            f"| {_sum(of, 'found')}/{_sum(of, 'expected')} | {sum(map(is_exact, of))} "
            f"| {sum(r['mixed'] > 0 for r in of)} | {_largest(of, 'row_error')} "
            f"| {_largest(of, 'value_error_relative')} | {_sum(of, 'drawn')}/{_sum(of, 'calls')} "
            f"| {', '.join(f'{kind} {n}' for kind, n in kinds.most_common())} |"
        )
    return "\n".join(rows) + "\n"


def _reasons(done: list[Result]) -> str:
    """Why some calls are not drawn: class, clause, calls, families."""
    counts = _add(r["reasons"] for r in done)
    rows = ["## Not drawn, and why\n", "| calls | class: reason | families |", "|---|---|---|"]
    for reason, count in counts.most_common():
        families = sorted({r["family"] for r in done if reason in r["reasons"]})
        rows.append(f"| {count} | {reason} | {', '.join(families)} |")
    return "\n".join(rows) + "\n"


def _troubles(results: list[Result]) -> str:
    """What did not go as it should, one line each."""
    lines = []
    for result in results:
        faults = [result["error"]] if "error" in result else _faults(result)
        lines += [f"* `{result['name']}`: {'; '.join(faults)}"] if faults else []
    return "## Faults\n\n" + ("\n".join(lines) or "None.") + "\n"


def _faults(result: Result) -> list[str]:
    faults = [] if _is_identical(result) else ["the output differs"]
    if result["missing"]:
        faults.append(f"missing {', '.join(result['missing'][:3])}")
    if result["unrecorded"]:
        faults.append(f"not recorded {result['unrecorded'][0]}")
    if result["furthest"] > 1:
        faults.append(f"a grid begins {result['furthest']} cells from the edge")
    if result["mixed"] != result["both_matrices"]:
        alone = result["mixed"] - result["both_matrices"]
        faults.append(f"{alone} mixed calls with one matrix")
    if max(result["row_error"], result["value_error_relative"]) > TOLERANCE:
        errors = result["row_error"], result["value_error_relative"]
        faults.append(f"row error {errors[0]:.1e}, value error {errors[1]:.1e}")
    return faults


def _json(results: list[Result]) -> str:
    lines = ",\n".join(json.dumps(r, sort_keys=True) for r in results)
    return f"[\n{lines}\n]\n"


def _sum(results: list[Result], key: str) -> int:
    return sum(r[key] for r in results)


def _largest(results: list[Result], key: str) -> str:
    return f"{max((r[key] for r in results), default=0.0):.1e}"


def _add(counts: Iterable[dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total
