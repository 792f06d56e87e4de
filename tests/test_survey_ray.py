"""The same survey on a local Ray of two workers, one of which is killed half-way."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from samples import dot_image

from vizattn.many.sources import find_sources
from vizattn.models import wrap_model
from vizattn.preprocess import Preprocess
from vizattn.survey.look import Asked
from vizattn.survey.parts import read_parts
from vizattn.survey.run import survey

ray = pytest.importorskip("ray", reason="pip install -e '.[ray]' to run the survey on Ray")


class Deadly:
    """Preprocessing that kills its own process once, in the middle of a part."""

    def __init__(self, preprocess, killed):
        self.preprocess, self.killed = preprocess, killed

    def __call__(self, image):
        if image.size == (65, 64) and not self.killed.exists():
            self.killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return self.preprocess(image)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_worker_that_is_killed_half_way_loses_nothing_and_does_nothing_twice(
    tiny_timm, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, Path(__file__).parents[:2])))
    pictures = tmp_path / "in"
    pictures.mkdir()
    for number in range(16):
        width = 65 if number == 9 else 64
        dot_image(width, 64, 10 + 3 * number, 30).save(pictures / f"{number:02}.png")
    (pictures / "bad.png").write_bytes(b"no picture")
    sources = find_sources([str(pictures)])
    preprocess, killed = Preprocess(64, 64, mode="squash"), tmp_path / "killed"
    tiny = wrap_model(tiny_timm, Deadly(preprocess, killed), name="tiny")
    done = []
    outcome = survey(
        sources, tmp_path / "ray", Asked(tiny, batch=2), engine="ray", workers=2,
        progress=done.append,
    )  # fmt: skip
    assert not ray.is_initialized()
    assert int(killed.read_text()) != os.getpid()
    assert (outcome.looked_at, outcome.skipped) == (16, 0)
    assert [each.source.name for each in outcome.failed] == ["bad.png"]
    assert done[-1] == 17
    held = [name for part in read_parts(tmp_path / "ray") for name, *_ in part.pictures]
    assert sorted(held) == [f"{number:02}.png" for number in range(16)]
    assert not list((tmp_path / "ray").glob(".*"))

    alone = survey(sources, tmp_path / "local", Asked(wrap_model(tiny_timm, preprocess)))
    for name, moments in alone.summary.moments.items():
        found = outcome.summary.moments[name]
        np.testing.assert_array_equal(found.count, moments.count)
        np.testing.assert_allclose(found.mean, moments.mean, rtol=0, atol=1e-6, err_msg=name)
        spread = found.deviation, moments.deviation
        np.testing.assert_allclose(*spread, rtol=0, atol=1e-6, err_msg=name)
    written = json.loads((tmp_path / "ray" / "survey.json").read_text())
    assert written["pictures"] == 16
