"""Settings of a method: dataclass fields that say how to ask a person for them.

One declaration serves the library, the command line and the page. People count layers and heads
from 1; the fields hold Python indices, from 0 or backwards from -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal

from vizattn.errors import MethodError, UnknownName

Kind = Literal["number", "integer", "choice", "index"]


@dataclass(frozen=True)
class Setting:
    """What a page or a command line needs to know about one setting.

    Attributes:
        name: The field's name, also the flag's.
        label: Two or three words for a form.
        help: One sentence.
        default: What it is when nobody says anything.
        kind: ``number``, ``integer``, ``choice`` of words, or ``index`` (counted from 1 by people).
        minimum: Smallest value allowed.
        maximum: Largest value allowed, ``None`` when the record decides.
        step: A sensible step between values.
        choices: The words of a ``choice``.
        on_page: Whether the page asks for it; the viewer itself chooses layers and heads.
    """

    name: str
    label: str
    help: str
    default: Any
    kind: Kind
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    choices: tuple[str, ...] = ()
    on_page: bool = True

    def check(self, value: Any) -> None:
        """Refuse a value that the setting does not take, with a sentence that says what it takes.

        Raises:
            MethodError: Wrong type, out of range, or not one of the choices.
        """
        if self.kind == "choice":
            if value not in self.choices:
                raise MethodError(
                    f"{self.name} is one of {', '.join(self.choices)}; got {value!r}."
                )
            return
        if value is None and self.default is None:
            return
        whole = self.kind in ("integer", "index")
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            kind = "a whole number" if whole else "a number"
            raise MethodError(f"{self.name} is {kind}; got {value!r}.")
        if self.kind == "index":
            return  # the record knows how many there are
        low, high = self.minimum, self.maximum
        if (low is not None and value < low) or (high is not None and value > high):
            span = f"at least {low:g}" if high is None else f"from {low:g} to {high:g}"
            raise MethodError(f"{self.name} is {span}; got {value!r}.")

    def parse(self, text: Any) -> Any:
        """A value as a person gives it, as the field holds it."""
        if self.kind == "choice" or text is None:
            return text
        try:
            number = float(text)
        except (TypeError, ValueError):
            raise MethodError(f"{self.name} is a number; got {text!r}.") from None
        if self.kind == "number":
            return number
        if number != int(number):
            raise MethodError(f"{self.name} is a whole number; got {text!r}.")
        if self.kind == "index":
            if number == 0:
                raise MethodError(f"{self.name} counts from 1 (or from -1 backwards); got 0.")
            return int(number) - 1 if number > 0 else int(number)
        return int(number)


def setting(default: Any, *, label: str, help: str, kind: Kind, **more: Any) -> Any:
    """A dataclass field that is a setting; the keywords are those of ``Setting``."""
    return field(default=default, metadata={"label": label, "help": help, "kind": kind, **more})


def settings(method: type) -> list[Setting]:
    """The settings of a method, in the order in which they are declared."""
    return [
        Setting(name=f.name, default=None if f.default is MISSING else f.default, **f.metadata)
        for f in fields(method)
    ]


def parse_settings(method: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as people give them (text, counted from 1), as the method's fields hold them.

    Raises:
        UnknownName: The method has no setting of this name; the near ones are offered.
        MethodError: A value is of the wrong kind.
    """
    known = {s.name: s for s in settings(method)}
    for name in given:
        if name not in known:
            raise UnknownName("setting", name, known)
    return {name: known[name].parse(value) for name, value in given.items()}
