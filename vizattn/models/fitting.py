"""Fit the tensors of a file to a module: find the prefix, load, and account for every key.

A key may be named differently in only one way: a prefix that one side has and the other lacks
(``module.``, ``backbone.``, ``teacher.backbone.``, ``visual.trunk.`` ...). The prefix is not
guessed from a list; it is the one under which most keys agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from vizattn.errors import ModelError
from vizattn.models.checkpoint import State, read_entries

# Builds the module with so many classes, or with its own number for None.
Build = Callable[[int | None], nn.Module]
# A library's own translation of foreign formats.
Convert = Callable[[State, nn.Module], State]


@dataclass(frozen=True)
class CheckpointReport:
    """How the tensors of a file fitted a module.

    Attributes:
        file: Name of the file.
        entry: The dictionary in it that was used, by the way to it; empty for the file itself.
        matched: How many of the module's tensors came from the file.
        total: How many tensors the module has.
        missing: Keys of the module that the file lacks; all of them belong to the head.
        unexpected: Keys of the file that the module has no place for.
        n_classes: Number of classes of the file's head, ``None`` when it has none.
    """

    file: str
    entry: str
    matched: int
    total: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    n_classes: int | None

    @property
    def sentence(self) -> str:
        """The same in words, for a note."""
        entry = f", entry {self.entry!r}" if self.entry else ""
        parts = [f"weights from {self.file}{entry}: {self.matched} of {self.total} tensors matched"]
        if self.n_classes is not None:
            parts.append(f"{self.n_classes} classes")
        if self.missing:
            parts.append(f"missing, left random: {_some(self.missing)}")
        if self.unexpected:
            parts.append(f"not used: {_some(self.unexpected)}")
        return "; ".join(parts)


@dataclass(frozen=True)
class _Fit:
    """One entry of a file, renamed to suit a module."""

    entry: str
    state: State
    misshapen: tuple[str, ...]
    matched: int
    unused: tuple[str, ...]


def load_checkpoint(
    path: Path,
    build: Build,
    heads: Callable[[nn.Module], Iterable[str]],
    convert: Convert,
    *,
    can_be_headless: bool = False,
) -> tuple[nn.Module, CheckpointReport]:
    """Build a module and fill it from a file, with as many classes as the file's head has.

    Args:
        path: Safetensors, or a torch file of tensors.
        build: Makes the module for a number of classes.
        heads: Names of the module's classifiers, which may be missing or of another size.
        convert: The library's own translation, tried where keys do not fit as they are.
        can_be_headless: ``build(0)`` makes a module that returns features.

    Raises:
        ModelError: The file cannot be read, or a tensor outside the head is missing or misshapen.
    """
    entries = read_entries(path)
    module = build(None)
    names = tuple(heads(module))
    fit = _best_fit(entries, module, convert)
    n_classes = _count_classes(fit.state, names)
    is_headless = n_classes is None and can_be_headless and any(names)
    if is_headless or any(_is_of(names, key) for key in fit.misshapen):
        module = build(n_classes or 0)
        fit = _best_fit(entries, module, convert)
    return module, _load(path, module, fit, names, n_classes)


def _load(
    path: Path, module: nn.Module, fit: _Fit, names: tuple[str, ...], n_classes: int | None
) -> CheckpointReport:
    ours = module.state_dict()
    # Tables of indices are made with the module itself: without them nothing is lost.
    missing = tuple(k for k, t in ours.items() if k not in fit.state and t.is_floating_point())
    lost = [key for key in (*missing, *fit.misshapen) if not _is_of(names, key)]
    if lost:
        raise ModelError(_incomplete(path, module, fit, lost))
    usable = {key: tensor for key, tensor in fit.state.items() if key not in fit.misshapen}
    module.load_state_dict(usable, strict=False)
    left = (*missing, *fit.misshapen)
    return CheckpointReport(
        path.name, fit.entry, fit.matched, len(ours), left, fit.unused, n_classes
    )


def _incomplete(path: Path, module: nn.Module, fit: _Fit, lost: list[str]) -> str:
    ours = module.state_dict()
    shapes = [
        f"{key} is {tuple(fit.state[key].shape)} and not {tuple(ours[key].shape)}"
        for key in fit.misshapen
        if key in lost
    ]
    missing = [key for key in lost if key not in fit.misshapen]
    parts = [f"missing are {_some(missing)}"] if missing else []
    parts += ["; ".join(shapes[:3])] if shapes else []
    return (
        f"{path.name} does not fill {type(module).__name__}: {fit.matched} of {len(ours)} tensors "
        f"match; {'; '.join(parts)}. Is it a checkpoint of another architecture or size?"
    )


def _best_fit(entries: dict[str, State], module: nn.Module, convert: Convert) -> _Fit:
    """The entry and the renaming under which most keys agree, first ones first."""
    best = max(
        (_fit(entry, state, module) for entry, state in entries.items()),
        key=lambda fit: fit.matched,
    )
    if best.matched == len(module.state_dict()):
        return best
    for entry, state in entries.items():
        for form in (state, _fit(entry, state, module).state):
            try:
                converted = convert(dict(form), module)
            except Exception:  # made for other files than this one
                continue
            fit = _fit(entry, converted, module)
            best = fit if fit.matched > best.matched else best
    return best


def _fit(entry: str, state: State, module: nn.Module) -> _Fit:
    """One entry under the module's own names, as far as one prefix can tell."""
    ours = module.state_dict()
    taken, given = _prefixes(set(state), set(ours))
    names = {key: given + key.removeprefix(taken) for key in state if key.startswith(taken)}
    parts = {name.partition(".")[0] for name in names.values()}
    # Such as a head beside ``backbone.``; but never another tower's part of the same name.
    as_they_are = {key for key in state if given or key.partition(".")[0] not in parts}
    names |= {key: key for key in as_they_are & ours.keys()}
    fitting = {name: state[key] for key, name in names.items() if name in ours}
    misshapen = tuple(key for key in fitting if fitting[key].shape != ours[key].shape)
    unused = tuple(key for key in state if names.get(key) not in ours)
    return _Fit(entry, fitting, misshapen, len(fitting) - len(misshapen), unused)


def _prefixes(theirs: set[str], ours: set[str]) -> tuple[str, str]:
    """The prefix to take away from their keys, and the one to give them."""
    counts: Counter[tuple[str, str]] = Counter()
    for key in sorted(theirs):
        counts.update((prefix, "") for prefix, rest in _splits(key) if rest in ours)
    for key in sorted(ours):
        counts.update(("", prefix) for prefix, rest in _splits(key) if prefix and rest in theirs)
    if not counts:
        return "", ""
    return max(counts, key=lambda pair: (counts[pair], -len(pair[0]) - len(pair[1])))


def _splits(key: str) -> Iterator[tuple[str, str]]:
    yield "", key
    parts = key.split(".")
    for cut in range(1, len(parts)):
        yield ".".join(parts[:cut]) + ".", ".".join(parts[cut:])


def _count_classes(state: State, names: tuple[str, ...]) -> int | None:
    for name in names:
        weight = state.get(f"{name}.weight")
        if weight is not None:
            return int(weight.shape[0])
    return None


def _is_of(names: tuple[str, ...], key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _some(keys: Iterable[str], n: int = 5) -> str:
    keys = list(keys)
    more = f" and {len(keys) - n} more" if len(keys) > n else ""
    return ", ".join(keys[:n]) + more
