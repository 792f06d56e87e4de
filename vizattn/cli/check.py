"""``vizattn check``: what of a model's attention is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vizattn.cli.console import Size, Weights, out

if TYPE_CHECKING:
    from vizattn.audit import Audit


def check(
    model: Annotated[str, typer.Argument(help="Model by name.")] = "vizattn/dinov2-small",
    weights: Weights = "pretrained",
    size: Size = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Say which attention calls of a model are seen, of which kind, how exactly, and which are not.

    One forward pass on noise is watched. Exits with 1 when something was missed, when watching
    changed the output, or when rows times values are not what the model went on with.
    """
    import json

    from vizattn.audit import audit, noise
    from vizattn.models import load_model

    with out.status("Loading the model", spinner="dots") as status:
        loaded = load_model(model, weights=weights, size=size)
        status.update("Watching one forward pass")
        pixels, _ = loaded.transform(noise())
        report = audit(loaded, pixels)
    if as_json:
        out.print_json(json.dumps(report.as_dict()))
    else:
        _print_audit(report)
    raise typer.Exit(0 if report.passed else 1)


def _print_audit(report: Audit) -> None:
    """A row per run of like calls, then what was missed, then the verdict."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    wide = out.width >= 110
    table.add_column("module", overflow="fold")
    if wide:
        table.add_column("class", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    for name in ("heads", "queries×keys", "grid", "row error", "value error"):
        table.add_column(name, justify="right", no_wrap=True)
    for call in report.calls:
        where = f"{call.grid[0]}×{call.grid[1]}" if call.grid else "none"
        number = f" #{call.call + 1}" if call.call else ""
        kind = f"{call.windows} windows" if call.windows > 1 else call.kind
        kind = kind if call.exact else f"{kind}, mixed"
        error = "not seen" if call.value_error is None else f"{call.value_error:.0e}"
        table.add_row(
            f"{call.module}{number}", *([call.module_type] if wide else []), kind, str(call.heads),
            f"{call.queries}×{call.keys}", where, f"{call.row_error:.0e}", error,
        )  # fmt: skip
    reasons = {call.reason: call.module for call in report.calls if call.reason}
    out.print(table, soft_wrap=False)
    for reason, module in reasons.items():
        out.print(f"not on the picture, such as {module}: {reason}", markup=False)
    for module, reason in report.missed:
        out.print(f"missed {module}: {reason}", style="red", markup=False)
    for note in report.notes:
        out.print(f"Note: {note}.", markup=False)
    out.print(f"{report.model}: {report.verdict}", style="bold", markup=False)
