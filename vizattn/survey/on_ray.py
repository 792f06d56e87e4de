"""The same survey on a Ray cluster: a model for each actor, a part for each task.

Ray starts an actor again that was lost, and gives its part to it or to another. A part is renamed
into its place as the last thing, under a name that follows from its pictures, so that work that is
done twice leaves one file, and work that was not finished leaves none.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vizattn.errors import MissingPackage, SurveyError, VizattnError
from vizattn.many.prepare import Failed
from vizattn.many.sources import Source
from vizattn.survey.look import Progress, Surveyor

if TYPE_CHECKING:
    from vizattn.survey.run import Work

# Where Ray keeps what passes between processes: the model once, and room for what is small.
_STORE = 200 * 2**20

_QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def need_ray() -> None:
    """Say at once what is missing.

    Raises:
        MissingPackage: Ray Data is not installed.
    """
    try:
        import ray.data  # noqa: F401
    except ImportError:
        raise MissingPackage("--engine ray", "Ray", "vizattn[ray]") from None


class PartActor:
    """A model of its own, in a process of its own, that makes one part after the other."""

    def __init__(self, surveyor: Any) -> None:
        import ray

        self._surveyor: Surveyor = ray.get(surveyor[0])

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Make a part for each row of ``sources``; say how many pictures it took and which not."""
        done: dict[str, list[Any]] = {"n_pictures": [], "failed": [], "refused": []}
        for rows in batch["sources"]:
            sources = [Source(Path(path), name, stem) for path, name, stem in rows]
            failed, refused = self._look(sources)
            done["n_pictures"].append(len(sources))
            done["failed"].append(failed)
            done["refused"].append(refused)
        return done

    def _look(self, sources: list[Source]) -> tuple[list[tuple[str, str]], str]:
        try:
            failed = self._surveyor.look(sources)
        except VizattnError as error:  # not to be tried again by Ray: the answer would be the same
            return [], str(error)
        return [(each.source.name, each.sentence) for each in failed], ""


def on_ray(work: Work, workers: int | None, progress: Progress) -> list[Failed]:
    """Every part by whichever actor is free.

    Runs on the cluster that ``RAY_ADDRESS`` names, or that the caller is connected to; else on
    this machine alone, reachable from nowhere else. The pictures and the folder have to be where
    all machines of the cluster find them.

    Raises:
        SurveyError: The first picture says that none can be looked at, or the cluster is lost.
    """
    sources = {source.name: source for chunk in work.chunks for source in chunk}
    failed: list[Failed] = []
    n_done = 0
    with _cluster(work, workers):
        for row in _rows(work, workers):
            if row["refused"]:
                raise SurveyError(row["refused"])
            n_done += row["n_pictures"]
            failed += [Failed(sources[name], SurveyError(words)) for name, words in row["failed"]]
            progress(n_done)
    return failed


@contextmanager
def _cluster(work: Work, workers: int | None) -> Iterator[None]:
    """Connected to a cluster; to one of our own, that is gone afterwards, where there is none."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray's own logs say it all the same
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    import ray

    if ray.is_initialized():
        yield
        return
    address = os.environ.get("RAY_ADDRESS")
    try:
        ray.init(**({} if address else _alone(work, workers)), **_QUIET)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = f"no cluster answers at RAY_ADDRESS={address}" if address else "Ray did not start"
        raise SurveyError(f"{where}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _alone(work: Work, workers: int | None) -> dict[str, Any]:
    tensors = work.asked.model.module.state_dict().values()
    return {
        "address": "local",
        "num_cpus": workers or os.cpu_count() or 1,
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "object_store_memory": _STORE + 2 * sum(tensor.nbytes for tensor in tensors),
    }


def _rows(work: Work, workers: int | None) -> Iterator[dict[str, Any]]:
    """What each part says when it is done, as they are done."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    surveyor = Surveyor(work.asked, work.folder.resolve(), work.key)
    parts = [
        [(str(each.path.resolve()), each.name, each.stem) for each in chunk]
        for chunk in work.chunks
    ]
    size = min(len(parts), workers or int(ray.cluster_resources().get("CPU", 1)))
    data = ray.data.from_items(
        [{"sources": part} for part in parts], override_num_blocks=len(parts)
    )
    done = data.map_batches(
        PartActor,
        fn_constructor_args=([ray.put(surveyor)],),  # in a list: as it is, each would copy it
        batch_size=1,
        compute=ActorPoolStrategy(size=size),
        num_cpus=1,
    )
    try:
        yield from done.iter_rows()
    except ray.exceptions.RayError as error:
        raise SurveyError(
            f"Ray gave up: {str(error).strip().splitlines()[-1]} Parts that are there are whole, "
            f"and the same command goes on from there."
        ) from error
