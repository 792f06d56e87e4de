"""Checks every annotated shape and type of vizattn while the tests run."""

import pkgutil
from pathlib import Path

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# An int is welcome where a float is asked for, as everywhere in Python's type hints.
check = beartype(conf=BeartypeConf(is_pep484_tower=True))

# These pass single operations on, thousands in each forward pass, and name no shapes: checks there
# took half of the time of the tests and mypy does the same.
PLUMBING = {"gate", "motions", "recorder", "running", "tracer"}


def install() -> None:
    """Check vizattn from here on; it must not have been imported yet."""
    package = Path(__file__).parents[1] / "vizattn"
    rooms = [room.name for room in pkgutil.iter_modules([str(package)])]
    install_import_hook(
        [f"vizattn.{room}" for room in rooms if room not in PLUMBING], "shape_checker.check"
    )
