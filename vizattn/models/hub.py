"""Weights from the network: whether there is one, and what to say when there is not.

The libraries fetch, cache and show their own progress bars. Left alone without a network, they
try again for up to a minute; here one short question decides beforehand, and without an answer
only their caches are asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request as Question
from urllib.request import urlopen

from vizattn.errors import ModelError, VizattnError

# Seconds to wait for an answer, names of hosts included.
PATIENCE = 3.0

# The hub's client has one offline mode for the whole process; two loads must not mix theirs up.
_ONE_AT_A_TIME = RLock()


@contextmanager
def hugging_face(name: str) -> Iterator[bool]:
    """Fetch from the Hugging Face hub or its cache inside this block; whether the hub answers.

    Raises:
        ModelError: Something is not in the cache and the hub cannot be reached, or the hub
            refuses it.
    """
    is_reachable = _hub_answers()
    with _ONE_AT_A_TIME:
        yield from _fetching(name, is_reachable)


def _fetching(name: str, is_reachable: bool) -> Iterator[bool]:
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or not is_reachable
    try:
        yield is_reachable
    except VizattnError:
        raise
    except Exception as error:  # each library has its own way to say that a file is not there
        host = constants.ENDPOINT.partition("://")[2]
        raise _refusal(name, f"the Hugging Face hub ({host})", is_reachable, error) from error
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def torch_hub(name: str, url: str, *, is_cached: bool) -> Iterator[None]:
    """Fetch from PyTorch's server or its cache inside this block; errors as above."""
    is_reachable = is_cached or _url_answers(url)
    host = url.split("/")[2]
    tried = f"PyTorch's server ({host})"
    if not is_reachable:
        raise _refusal(name, tried, is_reachable, None)
    try:
        yield
    except OSError as error:
        raise _refusal(name, tried, _url_answers(url), error) from error


def is_in_cache(repository: str) -> bool:
    """Whether anything of a repository was ever fetched to this machine."""
    from huggingface_hub import constants

    return (Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}").is_dir()


def need(package: str, extra: str) -> Any:
    """An optional library.

    Raises:
        ModelError: It is not installed; how to install it is said.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise ModelError(
            f"{package} is not installed, and models named {extra}/... come from it: "
            f"pip install 'vizattn[{extra}]'."
        ) from error


def _refusal(name: str, tried: str, is_reachable: bool, error: Exception | None) -> ModelError:
    if is_reachable:
        return ModelError(f"{tried} was reached, but {name!r} could not be loaded: {error}")
    why = f" ({type(error).__name__})" if error else ""
    return ModelError(
        f"the weights of {name!r} could not be fetched: {tried} cannot be reached from here, and "
        f"its cache on this machine does not hold them{why}. Without a network, use the embedded "
        f"model 'vizattn/dinov2-small', weights=PATH for a file of your own, or weights='random' "
        f"to see how things work."
    )


def _hub_answers() -> bool:
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in _YES:
        return False
    return _in_time(lambda: get_session().head(constants.ENDPOINT, timeout=PATIENCE))


def _url_answers(url: str) -> bool:
    def ask() -> object:
        try:
            return urlopen(Question(url, method="HEAD"), timeout=PATIENCE)
        except HTTPError as answer:  # it is there, whatever it says
            return answer

    return _in_time(ask)


def _in_time(ask: Callable[[], object]) -> bool:
    """Whether a question is answered at all; looking up a name has no time limit of its own."""
    answered = Event()

    def wait() -> None:
        with suppress(Exception):  # no route, no name, no certificate
            ask()
            answered.set()

    asking = Thread(target=wait, daemon=True)  # nobody waits for it, not even at exit
    asking.start()
    asking.join(PATIENCE)
    return answered.is_set()


_YES = {"1", "ON", "YES", "TRUE"}
