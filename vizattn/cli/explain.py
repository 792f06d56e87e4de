"""``vizattn explain``: where a model looks in a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vizattn.cli.console import Size, Weights, model_of, out


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
            model=model_of(model, weights, size),
            method=method,
            settings=given,
            at=_pixel(at),
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
