"""What the viewer may ask of the server, without a browser: ids, limits, and refusals in words."""

from __future__ import annotations

import base64

import numpy as np
import pytest


@pytest.fixture
def kept(record, tiny_timm, tmp_path, monkeypatch):
    """A view on a shelf of its own, and how to keep more of them."""
    from PIL import Image

    from vizattn.explain import Explanation
    from vizattn.methods import RawAttention, Rollout
    from vizattn.models import wrap_model
    from vizattn.ui import ask, kept
    from vizattn.viewer import write_view

    monkeypatch.setattr(ask, "SHELF", kept.Shelf(most_views=2))

    def keep(method="raw"):
        recipe = {"raw": RawAttention, "rollout": Rollout}[method]()
        heat, model = recipe.heatmap(record), wrap_model(tiny_timm)
        image = Image.new("RGB", (64, 64))
        view = Explanation(image, "grey.png", record, recipe, model, None, heat)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        payload = write_view(view, folder)
        ask.keep(view, payload, folder)
        return payload, folder

    return keep


def test_the_rows_of_a_layer_are_written_once_and_found_again(kept):
    from vizattn.ui.ask import rows

    payload, folder = kept()
    first = rows({"id": payload["id"], "layer": 1})["rows"]
    written = (folder / "rows_1.bin").stat().st_mtime_ns
    assert rows({"id": payload["id"], "layer": 1})["rows"] == first
    assert (folder / "rows_1.bin").stat().st_mtime_ns == written
    assert first["path"] == str(folder / "rows_1.bin")


@pytest.mark.parametrize("layer", [-5, 99, "2; rm", None, float("nan"), [1], 1e300])
def test_a_layer_that_is_not_there_is_moved_to_the_nearest(kept, layer):
    from vizattn.ui.ask import rows

    payload, folder = kept()
    assert rows({"id": payload["id"], "layer": layer})["rows"]["path"].startswith(str(folder))


@pytest.mark.parametrize("asked", [{}, None, [], {"id": "x"}, {"id": None}, {"id": {"a": 1}}])
def test_an_unknown_id_has_expired(kept, asked):
    from vizattn.ui.ask import ask, rows

    kept()
    assert rows(asked) == ask(asked) == {"word": "expired"}


def test_the_view_used_longest_ago_leaves_with_its_files(kept):
    from vizattn.ui.ask import rows

    (first, first_folder), (second, _) = kept(), kept()
    rows({"id": first["id"], "layer": 0})
    kept()
    assert rows({"id": second["id"], "layer": 0}) == {"word": "expired"}
    assert first_folder.is_dir()
    assert "rows" in rows({"id": first["id"], "layer": 0})


def test_from_a_pixel_the_maps_of_all_layers_come_as_the_method_makes_them(kept, record):
    from vizattn.methods import Rollout
    from vizattn.ui.ask import ask

    payload, _ = kept("rollout")
    answer = ask({"id": payload["id"], "x": 40, "y": 20})
    halves = np.frombuffer(base64.b64decode(answer["maps"]), "<f2")
    last = answer["layers"][-1]
    found = halves[last["offset"] :].astype(float) * last["top"][0]
    true = Rollout().heatmap(record, at=(40, 20)).values.flatten().numpy()
    np.testing.assert_allclose(found, true, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("place", [(-10, 0), (1e9, 1e9), (None, "x"), (float("inf"), 3)])
def test_a_place_outside_of_what_the_model_saw_is_moved_to_its_edge(kept, place):
    from vizattn.ui.ask import ask

    payload, _ = kept("rollout")
    assert "maps" in ask({"id": payload["id"], "x": place[0], "y": place[1]})


def test_a_fault_of_ours_is_a_word_and_goes_to_the_log(kept, monkeypatch, caplog):
    from vizattn.ui import ask

    payload, _ = kept()

    def fault(*_):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(ask, "write_rows", fault)
    assert ask.rows({"id": payload["id"], "layer": 0}) == {"word": "fault"}
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("name", ["png", "npz", "pdf", "svg", "gif", "json", "py", "html"])
def test_the_view_on_show_is_saved_in_every_format(kept, name):
    from pathlib import Path

    from vizattn.ui.save import save

    payload, folder = kept()
    asked = {"id": payload["id"], "format": name, "layer": 0, "head": 1, "x": 40, "y": 20}
    answer = save(asked | {"colours": "magma", "opacity": 0.5, "smooth": True})
    path = Path(answer["path"])
    assert path.parent == folder
    assert path.suffix == f".{name}"
    assert path.stat().st_size > 100


def test_saved_numbers_are_those_of_the_layer_head_and_patch_on_show(kept, record):
    from vizattn.ui.save import save

    payload, _ = kept()
    asked = {"id": payload["id"], "format": "npz", "layer": 0, "head": 1, "x": 40, "y": 20}
    with np.load(save(asked)["path"]) as saved:
        values = saved["values"]
    grid = record[0].keys.grid
    true = record[0].rows(grid.patch_index(1, 2))[1, 0]
    np.testing.assert_allclose(values.ravel(), true[grid.prefix :], rtol=1e-5)


def test_saved_numbers_are_those_of_the_tokens_that_ask(kept, record):
    from vizattn.ui.save import save

    payload, _ = kept()
    grid = record[0].keys.grid
    for who, query in [("class", grid.cls), ("mean", grid.mean)]:
        asked = {"id": payload["id"], "format": "npz", "layer": 0, "head": 1, "ask": who}
        path = save(asked)["path"]
        assert path.endswith(f"_{who}.npz")
        with np.load(path) as saved:
            true = record[0].attend(query)[1]
            np.testing.assert_allclose(saved["values"].ravel(), true[grid.prefix :], rtol=1e-5)


@pytest.mark.parametrize("name", ["exe", None, "../x", {"a": 1}])
def test_a_format_that_there_is_not_is_a_sentence(kept, name):
    from vizattn.ui.save import save

    payload, _ = kept()
    assert "no format named" in save({"id": payload["id"], "format": name})["text"]


def test_a_map_is_judged_in_steps_and_stops_when_nobody_wants_it(kept, monkeypatch):
    import time

    from vizattn.errors import VizattnError
    from vizattn.ui import trust

    payload, _ = kept()
    shown = {"id": payload["id"], "layer": 1}
    told = []

    def judge(explanation, heat, tell):
        assert heat is explanation.heatmap
        for done in range(400):
            tell(done, 400)
            told.append(done)
            time.sleep(0.005)
        raise VizattnError("so far.")

    def ended(job):
        while True:
            answer = trust.trust({"id": payload["id"], "job": job})
            if "done" not in answer and answer.get("word") != "trustWaiting":
                return answer
            time.sleep(0.01)

    monkeypatch.setattr(trust, "judge", judge)
    first = trust.trust(shown)["job"]
    trust.trust({"id": payload["id"], "job": first, "stop": True})
    assert ended(first) == {"stopped": True}
    assert len(told) < 400
    assert ended(trust.trust(shown)["job"]) == {"text": "so far."}
    assert trust.trust({"id": payload["id"], "job": "gone"}) == {"word": "expired"}
