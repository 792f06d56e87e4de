"""``vizattn methods``: what there is to ask with."""

from __future__ import annotations

from vizattn.cli.console import out


def methods() -> None:
    """List the methods, their settings and where they come from."""
    from rich.table import Table

    from vizattn.methods import METHODS, settings

    for name, method in METHODS.items():
        out.print(f"[bold]{name}[/bold]  {method.title}")
        out.print(method.about, markup=False, soft_wrap=False)
        out.print(method.formula, markup=False, soft_wrap=False)
        out.print(method.paper, style="dim", markup=False)
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for setting in settings(method):
            default = "" if setting.default is None else f"default {setting.default}"
            table.add_row(f"  --{setting.name.replace('_', '-')}", default, setting.help)
        out.print(table, soft_wrap=False)
        out.print()
