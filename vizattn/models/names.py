"""Unknown names are met with near ones."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from vizattn.errors import ModelError, UnknownName


def unknown(source: str, name: str, known: Iterable[str], what: str = "models") -> UnknownName:
    """The error for a name that a library does not have; its few nearest ones are offered.

    Libraries have hundreds of names, so unlike elsewhere they are counted and not listed.
    """
    names = sorted(known)
    folded = {name.lower(): name for name in names}
    near = [folded[low] for low in get_close_matches(name.lower(), list(folded), n=3)]
    error = UnknownName("model", f"{source}/{name}", ())
    offer = " Did you mean " + " or ".join(f"'{source}/{other}'" for other in near) + "?"
    count = f" {source} has {len(names)} {what}."
    error.args = (f"no model named '{source}/{name}'.{offer if near else ''}{count}",)
    return error


def unknown_tag(full_name: str, tag: str, tags: Iterable[str]) -> ModelError:
    """The error for weights that a known model does not have; those it has are listed."""
    known = sorted(tags)
    if not known:
        return ModelError(f"{full_name} has no pretrained weights, so there is no tag {tag!r}.")
    return ModelError(f"{full_name} has no weights {tag!r}. It has: {', '.join(known)}.")
