"""The command line: the same words as the library and the page.

Nothing heavy is imported before a command runs, so ``vizattn --help`` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vizattn.errors import VizattnError

if TYPE_CHECKING:
    from vizattn.audit import Audit
    from vizattn.models import VisionModel

Weights = Annotated[
    str,
    typer.Option(
        metavar="pretrained|random|FILE",
        help="Random weights show how things work, without asking a hub; or a file of weights.",
    ),
]
Size = Annotated[int | None, typer.Option(help="Side of the input, in pixels.")]

app = typer.Typer(
    help="See where every layer and head of a vision transformer looks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
out = Console(highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command line; errors of vizattn are one sentence, without a traceback."""
    try:
        app()
    except VizattnError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"vizattn: {error}", markup=False
        )
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from vizattn import __version__

        out.print(f"vizattn {__version__}")
        raise typer.Exit


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def explain(
    context: typer.Context,
    picture: Annotated[Path, typer.Argument(help="The picture to look at.")],
    model: Annotated[str, typer.Option(help="Model by name.")] = "vizattn/dinov2-small",
    weights: Weights = "pretrained",
    size: Size = None,
    method: Annotated[str, typer.Option(help="Method by name; see `vizattn methods`.")] = "raw",
    layer: Annotated[
        int | None, typer.Option(help="Layer, from 1, or from -1 backwards.", show_default="last")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="Head, from 1.", show_default="all heads together")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="X,Y", help="Ask from the patch under this pixel of the picture."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|INDEX",
            help="Class that a method with gradients explains.",
            show_default="the top class, or the embedding of a model without classes",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write to.")] = Path(),
    colours: Annotated[str, typer.Option(help="Colour map of the overlay.")] = "viridis",
    opacity: Annotated[float, typer.Option(help="Opacity of the top colour, 0 to 1.")] = 0.85,
    smooth: Annotated[bool, typer.Option(help="Interpolate between patches.")] = False,
    format: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="What to write: png, npz, pdf, svg, gif, mp4, json, py, with commas between.",
        ),
    ] = "png,npz",
) -> None:
    """Write where a model looks in a picture: an overlay as PNG, the true numbers as NPZ.

    More with --format: pdf and svg are figures of all heads of the layer, gif and mp4 films through
    the layers, json the manifest, py the Python lines that make the same view.

    Every setting of the method is a flag of its own, such as --residual 0.6 for rollout;
    `vizattn methods` lists them.
    """
    from vizattn.explain import explain as look
    from vizattn.export import check_formats, save_explanation

    formats = check_formats(name.strip() for name in format.split(","))
    given = _flags(context.args) | {
        key: value for key, value in {"layer": layer, "head": head}.items() if value is not None
    }
    with out.status("Looking", spinner="dots") as status:
        explanation = look(
            picture,
            model=_model(model, weights, size),
            method=method,
            settings=given,
            at=_pixel(at),
            target=target,
            progress=lambda _, words: status.update(words),
        )
    for note in explanation.record.notes:
        out.print(f"Note: {note}.", markup=False)
    out.print(explanation.heatmap.sentence, markup=False)
    if explanation.heatmap.is_nearly_flat:
        out.print("The map is nearly flat: what a stretched scale shows is noise.", markup=False)
    options: dict[str, Any] = {"colours": colours, "opacity": opacity, "smooth": smooth}
    for path in save_explanation(explanation, output, formats=formats, **options):
        out.print(f"wrote {path}", markup=False)


@app.command()
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


@app.command()
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


@app.command("app")
def serve(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 7860,
) -> None:
    """Open the page in a browser, served from this machine alone."""
    from vizattn.ui.page import launch

    launch(port=port)


def _model(name: str, weights: str, size: int | None) -> str | VisionModel:
    """The name alone, where it says everything: explain keeps models by their names."""
    if weights == "pretrained" and size is None:
        return name
    from vizattn.models import load_model

    return load_model(name, weights=weights, size=size)


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


def _flags(words: list[str]) -> dict[str, str]:
    """``--residual 0.6`` and ``--residual=0.6`` as names and values of settings."""
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise typer.BadParameter(f"got {word!r}; settings are written --name value.")
        name, equals, value = word[2:].partition("=")
        value = value if equals else next(rest, "")
        if not value:
            raise typer.BadParameter(f"--{name} needs a value.")
        given[name.replace("-", "_")] = value
    return given


def _pixel(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"got {text!r}; a pixel is X,Y from the picture's upper left corner, such as 412,230."
        ) from None
    return x, y
