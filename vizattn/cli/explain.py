"""``vizattn explain``: where a model looks in a picture, in many, or in a video."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vizattn.cli.console import Size, Weights, model_of, out

if TYPE_CHECKING:
    from vizattn.many.run import Asked


def explain(
    pictures: Annotated[
        list[str],
        typer.Argument(
            metavar="PICTURE|FOLDER|PATTERN|VIDEO...",
            help="What to look at; folders are searched with all that is in them.",
        ),
    ],
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
        typer.Option(
            metavar="X,Y|NAME",
            help="Who asks: the patch under this pixel of the picture, or class, register or mean.",
            show_default="as the model itself asks",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|INDEX|patch:X,Y",
            help="Class that a method with gradients explains; for a model without classes, the "
            "patch under a pixel, to which its embedding is compared.",
            show_default="the top class, or the embedding of a model without classes",
        ),
    ] = None,
    target_image: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Another picture to compare with, for a model without classes."
        ),
    ] = None,
    target_text: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="A text to compare with, such as 'a cat', for CLIP and SigLIP."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write to.")] = Path(),
    colours: Annotated[str, typer.Option(help="Colour map of the overlay.")] = "viridis",
    opacity: Annotated[float, typer.Option(help="Opacity of the top colour, 0 to 1.")] = 0.85,
    smooth: Annotated[bool, typer.Option(help="Interpolate between patches.")] = False,
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="What to write, with commas between: png, npz, pdf, svg, gif, mp4, json, py; "
            "of a video mp4, gif, npz.",
            show_default="png,npz; of a video mp4",
        ),
    ] = None,
    again: Annotated[bool, typer.Option(help="Of many pictures: also what is there.")] = False,
    batch: Annotated[
        int | None,
        typer.Option(help="Pictures in one pass of the model.", min=1, show_default="by size"),
    ] = None,
) -> None:
    """Write where a model looks in a picture: an overlay as PNG, the true numbers as NPZ.

    Of a folder, of a pattern in quotes or of several files, every picture is written, sub-folders
    kept. What is there already is not done again, so that the same command goes on where it was
    stopped; vizattn.jsonl in the output folder says what is there.

    A video becomes a video, and so does a GIF that moves: every frame with its own map, all of them
    on one scale.

    More with --format: pdf and svg are figures of all heads of the layer, gif and mp4 films through
    the layers, json the manifest, py the Python lines that make the same view.

    Every setting of the method is a flag of its own, such as --residual 0.6 for rollout;
    `vizattn methods` lists them.
    """
    words, flags = _flags(pictures)
    given = flags | {
        key: value for key, value in {"layer": layer, "head": head}.items() if value is not None
    }
    look: dict[str, Any] = {"colours": colours, "opacity": opacity, "smooth": smooth}
    aim = _target(target, target_image, target_text)
    request = _Request((model, weights, size), method, given, at, aim, look, format)
    from vizattn.many.frames import is_video
    from vizattn.many.sources import are_many

    videos = [Path(word) for word in words if is_video(Path(word))]
    if len(videos) == len(words):
        request.look_at_films(videos, output, again=again, batch=batch)
    elif are_many(words):
        request.look_at_many(words, output, again=again, batch=batch)
    else:
        request.look_at_one(words[0], output)


@dataclass(frozen=True)
class _Request:
    """What was asked on the command line, of whatever it is asked."""

    model: tuple[str, str, int | None]
    method: str
    settings: dict[str, Any]
    at: str | None
    target: str | None
    look: dict[str, Any]
    format: str | None

    def look_at_one(self, picture: str, output: Path) -> None:
        """One picture: says what is shown, and the files."""
        from vizattn.cli.progress import looking
        from vizattn.explain import explain as look
        from vizattn.export import check_formats, save_explanation
        from vizattn.predictions import in_words

        formats = check_formats(self.formats("png,npz"))
        with looking("Looking") as progress:
            explanation = look(
                picture,
                model=model_of(*self.model),
                method=self.method,
                settings=self.settings,
                at=_asker(self.at),
                target=self.target,
                progress=progress,
            )
        for note in explanation.record.notes:
            out.print(f"Note: {note}.", markup=False)
        if explanation.predictions:
            out.print(f"Top classes: {in_words(explanation.predictions)}.", markup=False)
        heat = explanation.heatmap
        out.print(heat.sentence, markup=False)
        if heat.is_nearly_flat:
            out.print(
                "The map is nearly flat: what a stretched scale shows is noise.", markup=False
            )
        for path in save_explanation(explanation, output, formats=formats, **self.look):
            out.print(f"wrote {path}", markup=False)

    def look_at_many(
        self, words: list[str], output: Path, *, again: bool, batch: int | None
    ) -> None:
        """Every picture that the words name."""
        from vizattn.cli.many import explain_pictures
        from vizattn.export import check_formats

        asked = self.asked(check_formats(self.formats("png,npz")))
        explain_pictures(words, output, asked, again=again, batch=batch)

    def look_at_films(
        self, videos: list[Path], output: Path, *, again: bool, batch: int | None
    ) -> None:
        """Every frame of the videos."""
        from vizattn.cli.many import explain_films

        asked = self.asked(tuple(dict.fromkeys(self.formats("mp4"))))
        explain_films(videos, output, asked, again=again, batch=batch)

    def asked(self, formats: tuple[str, ...]) -> Asked:
        """The same, with names made into things: cheap checks first, then the model is loaded."""
        from vizattn.explain import model_named, recipe_of
        from vizattn.likeness import settled
        from vizattn.many.run import Asked

        method, at = recipe_of(self.method, self.settings), _asker(self.at)
        with out.status("Loading the model", spinner="dots"):
            model = model_of(*self.model)
            loaded = model_named(model) if isinstance(model, str) else model
        # a text or another picture is the same for every picture, and looked at once
        target = self.target if method.class_agnostic else settled(self.target, loaded)
        return Asked(loaded, method, at, target, formats, self.look, self.model[1])

    def formats(self, default: str) -> Iterable[str]:
        """Names of formats as they were typed."""
        return (name.strip() for name in (self.format or default).split(","))


def _flags(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Pictures; and ``--residual 0.6`` and ``--residual=0.6`` as names and values of settings."""
    pictures: list[str] = []
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            pictures.append(word)
            continue
        name, equals, value = word[2:].partition("=")
        value = value if equals else next(rest, "")
        if not value:
            raise typer.BadParameter(f"--{name} needs a value.")
        given[name.replace("-", "_")] = value
    if not pictures:
        raise typer.BadParameter("no picture was named.")
    return pictures, given


def _target(name: str | None, image: Path | None, text: str | None) -> str | None:
    """The one target that was named, by its name."""
    picture = None if image is None else f"picture:{image}"
    words = None if text is None else f"text:{text}"
    given = [each for each in (name, picture, words) if each is not None]
    if len(given) > 1:
        raise typer.BadParameter(
            "--target, --target-image and --target-text each name what is explained; give one."
        )
    return given[0] if given else None


def _asker(text: str | None) -> tuple[float, float] | str | None:
    """``412,230`` as a pixel; a word as a kind of token."""
    if text is None or text.isidentifier():
        return text
    try:
        x, y = (float(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"got {text!r}; it is a pixel, X,Y from the picture's upper left corner, such as "
            f"412,230, or a kind of token: class, register or mean."
        ) from None
    return x, y
