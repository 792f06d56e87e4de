"""How far the map on show can be trusted: judged while the page asks how far it has come.

A judgement takes seconds to a minute, and calls of the viewer are short. So one call starts it and
gets a name for it, and further calls with that name say how far it is, what came out, or stop it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from vizattn.errors import VizattnError
from vizattn.evaluation.covering import Curve
from vizattn.evaluation.trust import Trust
from vizattn.evaluation.trust import trust as judge
from vizattn.explain import Explanation
from vizattn.ui.ask import Answer, answered
from vizattn.ui.kept import MODEL, Kept
from vizattn.ui.save import as_shown

MOST_JOBS = 16

_log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Somebody pressed stop."""


@dataclass
class _Job:
    """A judgement under way.

    Attributes:
        shown: What is judged.
        name: How the page asks for it.
        state: What the page gets when it asks.
        stop: Set when nobody wants it any more.
    """

    shown: Explanation
    name: str = field(default_factory=lambda: uuid4().hex)
    state: Answer = field(default_factory=lambda: {"word": "trustWaiting"})
    stop: Event = field(default_factory=Event)

    def work(self) -> None:
        """Judge, one model at a time, whoever asks."""
        try:
            with MODEL:
                self._tell(0, 1)
                self.state = {
                    "trust": _described(judge(self.shown, self.shown.heatmap, self._tell))
                }
        except _Stopped:
            self.state = {"stopped": True}
        except VizattnError as error:
            self.state = {"text": str(error)}
        except Exception:  # a fault of ours: the visitor keeps the page, we keep the traceback
            _log.exception("a map could not be judged")
            self.state = {"word": "fault"}

    def _tell(self, done: int, total: int) -> None:
        if self.stop.is_set():
            raise _Stopped
        self.state = {"done": done / total}


_JOBS: OrderedDict[str, _Job] = OrderedDict()


@answered
def trust(kept: Kept, asked: Answer) -> Answer:
    """Start to judge the map on show, or say how far that is; a name that is gone has expired.

    ``asked``: ``id``; with ``job`` and perhaps ``stop`` of one that was started, and else what
    ``save`` takes to know which map is on show.
    """
    if asked.get("job") is not None:
        job = _JOBS.get(str(asked["job"]))
        if job is None:
            return {"word": "expired"}
        if asked.get("stop") is True:
            job.stop.set()
        return job.state
    job = _Job(as_shown(kept, asked))
    _JOBS[job.name] = job
    while len(_JOBS) > MOST_JOBS:
        _JOBS.popitem(last=False)[1].stop.set()
    Thread(target=job.work, name="trust", daemon=True).start()
    return {"job": job.name}


def _described(found: Trust) -> dict[str, Any]:
    return {
        "target": found.target,
        "answer": found.answer,
        "verdict": found.verdict,
        "shares": found.deletion.shares,
        "deletion": _pair(found.deletion, found.random_deletion),
        "insertion": _pair(found.insertion, found.random_insertion),
    }


def _pair(ours: Curve, chance: Curve) -> dict[str, Any]:
    return {
        "ours": ours.answers, "random": chance.answers,
        "area": ours.area, "randomArea": chance.area,
    }  # fmt: skip
