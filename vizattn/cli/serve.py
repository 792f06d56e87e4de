"""``vizattn app``: the page in a browser."""

from __future__ import annotations

from typing import Annotated

import typer


def serve(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 7860,
) -> None:
    """Open the page in a browser, served from this machine alone."""
    from vizattn.ui.page import launch

    launch(port=port)
