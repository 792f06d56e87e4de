"""Every error that vizattn raises on purpose.

A message is a sentence for a person: what came, what was expected, and the likely cause.
Each class also inherits the builtin that a caller would expect to catch.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class VizattnError(Exception):
    """The root: catch this one to catch all of them."""


class GridError(VizattnError, ValueError):
    """Tokens and patches do not fit together."""


class FrameError(VizattnError, ValueError):
    """A pixel or a patch lies outside the part of the picture that the model saw."""


class ImageError(VizattnError, ValueError):
    """A picture cannot be opened or is not one that the model takes."""


class MaskError(VizattnError, ValueError):
    """A mask does not fit the patches."""


class CaptureError(VizattnError, RuntimeError):
    """Attention could not be recorded completely and truthfully."""


class RecordError(VizattnError, ValueError):
    """A record lacks what was asked of it, or its file is damaged."""


class OutOfRange(VizattnError, IndexError):
    """A layer, head or token that the record does not have."""

    def __init__(self, kind: str, index: int, count: int) -> None:
        number = (
            f"{kind} {index + 1} (index {index})" if index >= 0 else f"{kind} with index {index}"
        )
        super().__init__(
            f"there is no {number}: there are {count}, with indices from 0 to {count - 1}, "
            f"or from -1 backwards."
        )


class TargetError(VizattnError, ValueError):
    """What a gradient was asked of is not there."""


class MethodError(VizattnError, ValueError):
    """A method is not defined for this record, or one of its settings is out of range."""


class EvaluationError(VizattnError, ValueError):
    """Maps cannot be judged with what was given."""


class ModelError(VizattnError, RuntimeError):
    """A model or its weights cannot be had."""


class SurveyError(VizattnError, RuntimeError):
    """A survey cannot go on: its folder, its parts or its workers."""


class UnknownName(VizattnError, LookupError):
    """A name that is not in one of the registries."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"no {kind} named {name!r}.{hint} Known: {', '.join(names)}.")


class MissingPackage(VizattnError, ImportError):
    """Something needs a package that is not installed."""

    def __init__(self, what: str, package: str, install: str) -> None:
        super().__init__(
            f"{what} needs {package}, which is not installed: pip install '{install}'."
        )
