"""The command line: the same words as the library and the page. One command, one file.

Nothing heavy is imported before a command runs, so ``vizattn --help`` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from vizattn.cli import check, explain, judge, methods, serve, survey
from vizattn.cli.console import errors, out
from vizattn.errors import VizattnError

app = typer.Typer(
    help="See where every layer and head of a vision transformer looks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

# Settings of methods are flags of their own, which nobody can list before the method is known.
_ANY_FLAG = {"allow_extra_args": True, "ignore_unknown_options": True}

app.command(context_settings=_ANY_FLAG)(explain.explain)
app.command()(methods.methods)
app.command()(check.check)
app.command()(judge.judge)
app.command()(survey.survey)
app.command("app")(serve.serve)


def main() -> None:
    """Run the command line; errors of vizattn are one sentence, without a traceback."""
    try:
        app()
    except VizattnError as error:
        errors.print(f"vizattn: {error}", markup=False)
        sys.exit(1)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        from vizattn import __version__

        out.print(f"vizattn {__version__}")
        raise typer.Exit
