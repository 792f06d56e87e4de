"""The running app with the real embedded model, as a visitor's browser meets it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

pytestmark = pytest.mark.ui

OPEN = ".va-viewer[data-state=open]"
EVIL = "<img src=x onerror=alert(1)>${7*7}.png"


def text(page, part):
    return page.inner_text(f'.va-viewer [data-part="{part}"]')


def status(page):
    return page.inner_text(".va-status")


def run(page):
    """Press Run and wait until it says how it went and what it brought is on show."""
    page.evaluate(
        "document.dispatchEvent(new CustomEvent('vizattn:status', {detail: {kind: 'idle'}}))"
    )
    page.click("#vizattn-run")
    wait_until_shown(page)


def wait_until_shown(page):
    page.wait_for_selector('.va-status:is([data-kind="done"], [data-kind="error"])')
    page.wait_for_function(
        "(({ shows }) => !shows || shows === __vizattn.shown())"
        "(document.querySelector('.va-status').dataset)"
    )


def show_first(page):
    run(page)
    page.wait_for_selector(OPEN)


def upload(page, path, name=None):
    """Give the page a picture of one's own."""
    page.set_input_files(
        '#vizattn-own input[type="file"]',
        {"name": name or path.name, "mimeType": "image/png", "buffer": path.read_bytes()},
    )
    page.wait_for_selector('.va-picker [data-part="own"].chosen')


def fingerprint(page):
    return page.evaluate("document.querySelector('[data-part=overlay]').toDataURL()")


def choose_method(page, at):
    page.click("#vizattn-method input")
    page.click(f'#vizattn-method [role="option"] >> nth={at}')


@pytest.fixture
def photo(tmp_path, photos):
    """A photo that is none of the examples."""
    path = tmp_path / "mirrored.png"
    Image.open(photos[1]).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path)
    return path


def test_on_the_first_visit_an_example_is_on_show_before_any_model_has_run(open_app):
    page = open_app()
    assert status(page) == ""
    assert text(page, "summary") == "chelsea.jpg · DINOv2 ViT-S/14 · Raw attention"
    assert (
        text(page, "sentence") == "Layer 12, mean of all heads — what the class token attends to."
    )
    assert not any("rows_" in url for url in page.requests)
    box = page.locator('[data-part="photo"]').bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_function("__vizattn.resolved().kind === 'patch'")
    assert text(page, "sentence").endswith("what the patch at row 13, column 19 attends to.")


@pytest.mark.slow
def test_what_was_made_beforehand_is_what_the_model_makes_now(photos):
    import numpy as np

    from vizattn.explain import explain
    from vizattn.ui.first import FIRST, first_payload
    from vizattn.viewer import View, pack_maps

    payload = first_payload()
    kept = np.fromfile(payload["files"]["maps"], "<f2").astype(float)
    layers, maps = pack_maps(View.of(explain(photos[0], **FIRST)), None)
    fresh = np.frombuffer(maps, "<f2").astype(float)
    for old, new in zip(payload["layers"], layers, strict=True):
        np.testing.assert_allclose(old["top"], new["top"], rtol=0.02)
    assert np.abs(kept - fresh).mean() < 1e-3


def test_an_uploaded_photo_is_shown_and_layers_and_heads_change_without_a_request(
    open_app, app, photo
):
    page = open_app()
    upload(page, photo)
    show_first(page)
    assert text(page, "summary") == "mirrored.png · DINOv2 ViT-S/14 · Raw attention"
    assert text(page, "note") == "512×512 → 518×518 px, 37×37 patches, nothing cropped"
    page.focus('[data-part="stage"]')
    asked, seen = len(page.requests), {fingerprint(page)}
    for key in ["ArrowLeft", "ArrowLeft", "ArrowDown", "ArrowDown", "s"]:
        page.keyboard.press(key)
        seen.add(fingerprint(page))
    for name, value in [("colours", "magma"), ("range", "model"), ("base", "off")]:
        page.click(f'[data-choice="{name}"] [data-value="{value}"]')
        seen.add(fingerprint(page))
    assert len(seen) == 9
    assert page.requests[asked:] == []
    outside = [url for url in page.requests if not url.startswith((app, "data:", "blob:"))]
    assert outside == []


def test_after_a_run_the_arrow_keys_work_at_once(open_app):
    page = open_app()
    show_first(page)
    page.keyboard.press("ArrowLeft")
    assert text(page, "sentence").startswith("Layer 11, ")


def test_a_run_without_a_server_says_so_and_the_view_stays(open_app):
    page = open_app()
    show_first(page)
    before = fingerprint(page)
    page.context.set_offline(True)
    page.click("#vizattn-run")
    page.wait_for_selector('.va-status[data-kind="error"]')
    assert status(page).startswith("The connection to the server was lost")
    assert fingerprint(page) == before


def test_a_picture_named_like_markup_shows_its_name_literally(open_app, photo):
    page = open_app()
    dialogs = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    upload(page, photo, EVIL)
    show_first(page)
    assert text(page, "summary").startswith(EVIL)
    assert page.get_attribute('[data-part="photo"]', "alt") == f"The picture {EVIL}"
    assert dialogs == []


def test_a_broken_file_is_a_sentence_and_the_view_stays(open_app, tmp_path):
    page = open_app()
    show_first(page)
    before = fingerprint(page)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture at all")
    upload(page, broken)
    run(page)
    assert status(page).startswith("'broken.png' is not a picture that can be read here.")
    assert fingerprint(page) == before
    assert text(page, "summary").startswith("chelsea.jpg")
    page.click(".va-picker .thumbs button >> nth=1")
    run(page)
    page.wait_for_function("document.querySelector('.summary').innerText.startsWith('astronaut')")


def test_an_unknown_model_is_a_sentence(open_app):
    page = open_app()
    page.fill("#vizattn-model input", "nowhere/nothing")
    page.keyboard.press("Enter")
    run(page)
    assert "no model named 'nowhere/nothing'" in status(page)
    assert "Traceback" not in page.content()


def test_the_settings_of_the_chosen_method_are_asked_and_used(open_app):
    page = open_app()
    assert not page.is_visible(".va-settings label")
    choose_method(page, 1)
    page.wait_for_selector(".va-settings label")
    show_first(page)
    assert not page.is_visible(".va-viewer .heads")
    before = fingerprint(page)
    page.fill(".va-settings input >> nth=0", "0.9")
    run(page)
    page.wait_for_function(
        "before => document.querySelector('[data-part=overlay]').toDataURL() !== before",
        arg=before,
    )
    page.fill(".va-settings input >> nth=0", "7")
    assert page.get_attribute(".va-settings input >> nth=0", "aria-invalid") == "true"


def test_two_visitors_see_their_own_pictures(open_app):
    one, other = open_app(), open_app()
    other.click(".va-picker .thumbs button >> nth=2")
    one.click("#vizattn-run")
    other.click("#vizattn-run")
    for page in (one, other):
        wait_until_shown(page)
    assert text(one, "summary").startswith("chelsea.jpg")
    assert text(other, "summary").startswith("coffee.jpg")
    assert fingerprint(one) != fingerprint(other)


def test_language_and_theme_change_the_whole_page_at_once_and_are_kept(open_app):
    page = open_app(color_scheme="light")
    page.click('.va-header [data-value="ko"]')
    assert page.inner_text("#vizattn-run") == "실행"
    assert page.inner_text("#vizattn-model [data-testid=block-info]") == "모델"
    assert page.get_attribute("html", "lang") == "ko"
    page.click('.va-header [data-part="theme"]')
    ground = "getComputedStyle(document.querySelector('.va-viewer')).backgroundColor"
    assert page.evaluate(ground) == "rgb(16, 18, 20)"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 18, 20)"
    page.reload()
    page.wait_for_function("document.querySelector('#vizattn-run')?.innerText === '실행'")
    assert page.evaluate(ground) == "rgb(16, 18, 20)"


def test_a_korean_browser_is_greeted_in_korean(open_app):
    page = open_app(locale="ko-KR")
    page.wait_for_function("document.querySelector('#vizattn-run').innerText === '실행'")
    assert text(page, "sentence") == "레이어 12, 모든 헤드의 평균 — 클래스 토큰이 보는 곳."
    page.wait_for_function(
        "document.querySelector('#vizattn-method input').value === '원래 어텐션'"
    )
    choose_method(page, 1)
    page.wait_for_selector(".va-settings label")
    assert page.input_value("#vizattn-method input") == "어텐션 롤아웃"
    run(page)
    page.wait_for_function("document.querySelector('.summary').innerText.includes('롤아웃')")


def test_on_a_phone_the_viewer_comes_first_and_nothing_scrolls_sideways(open_app):
    page = open_app(
        viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True,
        device_scale_factor=3,
    )  # fmt: skip
    page.tap("#vizattn-run")
    page.wait_for_selector(OPEN)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    tops = {
        part: page.locator(f"#vizattn-{part}").bounding_box()["y"]
        for part in ("header", "viewer", "bar")
    }
    assert tops["header"] < tops["viewer"] < tops["bar"]
    page.wait_for_function("document.querySelector('.va-viewer').getBoundingClientRect().top > -5")
    page.tap('[data-part="change"]')
    page.wait_for_function(
        "document.querySelector('#vizattn-run').getBoundingClientRect().top < innerHeight"
    )


def test_help_opens_and_closes_by_key_and_button(open_app):
    page = open_app()
    page.click('.va-header [data-part="help"]')
    assert page.is_visible('dialog[data-part="help"]')
    page.keyboard.press("Escape")
    assert not page.is_visible('dialog[data-part="help"]')


def test_a_picture_can_be_pasted_anywhere(open_app, photo):
    page = open_app()
    page.evaluate(
        """bytes => { const transfer = new DataTransfer();
        transfer.items.add(new File([new Uint8Array(bytes)], 'pasted.png', {type: 'image/png'}));
        document.body.dispatchEvent(
          new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true})); }""",
        list(photo.read_bytes()),
    )
    page.wait_for_selector('.va-picker [data-part="own"].chosen')
    show_first(page)
    assert text(page, "summary").startswith("pasted.png")


def test_a_program_gets_the_same_answer_and_errors_as_sentences(app, photos):
    from gradio_client import Client, handle_file
    from gradio_client.exceptions import AppError

    client = Client(app, verbose=False)
    settings = {"residual": 0.25}
    answer = client.predict(
        image=handle_file(photos[0]), model="vizattn/dinov2-small", method="rollout",
        settings=settings, api_name="/explain",
    )  # fmt: skip
    assert answer["layers"][-1]["grid"] == {"rows": 25, "cols": 37, "prefix": ["class"]}
    assert answer["method"]["settings"]["residual"] == 0.25
    assert answer["picture"]["name"] == "chelsea.jpg"
    with pytest.raises(AppError, match="Did you mean 'rollout'"):
        client.predict(
            image=handle_file(photos[0]), model="vizattn/dinov2-small", method="rolout",
            settings={}, api_name="/explain",
        )  # fmt: skip


def test_only_uploaded_files_are_read(app, photos):
    """A visitor's browser could name any path of the server."""
    for meta in ({"_type": "gradio.FileData"}, {}):
        picture = {"path": str(Path(photos[0]).resolve()), "meta": meta}
        answer = _call(app, [picture, "vizattn/dinov2-small", "raw", {}, None])
        assert "event: complete" not in answer
        assert "error" in answer


def _call(app, data):
    request = urllib.request.Request(
        f"{app}gradio_api/call/explain",
        json.dumps({"data": data}).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request) as answer:
            event = json.load(answer)["event_id"]
        with urllib.request.urlopen(f"{app}gradio_api/call/explain/{event}") as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return f"error {error.code}"


def test_making_the_page_writes_no_file_beside_its_modules():
    from vizattn.ui import page

    page.build()
    folder = Path(page.__file__).parent
    assert list(folder.rglob("*.pyi")) == []


def test_the_menu_saves_numbers_and_a_file_of_its_own(open_app, tmp_path):
    import numpy as np

    page = open_app()
    for name, at in [("npz", 2), ("html", 9)]:
        page.click('[data-part="export"]')
        with page.expect_download() as waiting:
            page.click(f'.popup [role="menuitem"] >> nth={at}')
        waiting.value.save_as(tmp_path / f"saved.{name}")
    with np.load(tmp_path / "saved.npz") as saved:
        assert saved["values"].shape == (25, 37)
    assert "<!doctype html>" in (tmp_path / "saved.html").read_text()[:20]
    page.click('[data-part="asks"] button >> text="Mean of patches"')
    page.wait_for_function("__vizattn.resolved().kind === 'mean'")
    page.click('[data-part="export"]')
    with page.expect_download() as waiting:
        page.click('.popup [role="menuitem"] >> nth=7')
    said = json.loads(Path(waiting.value.path()).read_text())
    assert said["query"] == {"kind": "mean"}
    assert "what the mean of the patches attends to" in said["sentence"]


def test_output_tokens_are_shown_beside_the_attention_with_the_same_pointer(open_app):
    page = open_app()
    page.click('[role="tab"][data-value="compare"]')
    choice = '.pane >> nth=1 >> [data-pane="head"]'
    said = page.locator('.pane >> nth=1 >> [data-pane="detail"]')
    page.select_option(choice, "lengths")
    page.wait_for_function(
        "document.querySelectorAll('[data-pane=detail]')[1].innerText.startsWith('Longest')"
    )
    box = page.locator('.pane >> nth=0 >> [data-pane="picture"]').bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = page.locator('.pane >> nth=1 >> [data-pane="tip"]')
    tip.wait_for()
    assert tip.inner_text().startswith("13, 19 · ")
    page.select_option(choice, "colours")
    assert said.inner_text().startswith("The principal components with ")


@pytest.mark.slow
def test_rows_of_the_browser_are_those_of_python_in_all_layers_of_the_embedded_model(
    open_app, photos
):
    import numpy as np

    from vizattn.explain import explain

    record = explain(photos[0]).record
    page = open_app()
    apart = []
    for layer, patch in [(layer, patch) for layer in range(12) for patch in (0, 460, 777)]:
        grid = record[layer].queries.grid
        row, col = divmod(patch, grid.cols)
        page.evaluate(
            "([layer, x, y]) => { const {state} = __vizattn; state.layer = layer;"
            " state.pins = [{x, y}]; window.dispatchEvent(new Event('resize')); }",
            [layer + 1, (col + 0.5) * 451 / grid.cols, (row + 0.5) * 300 / grid.rows],
        )
        page.wait_for_function("__vizattn.resolved().kind === 'patch'")
        true = record[layer].rows(grid.patch_index(row, col))[:, 0].numpy()
        for head in range(6):
            found = page.evaluate(
                "([layer, head]) => { const {prefix, values} = __vizattn.mapOf(layer, head);"
                " return [...prefix, ...values]; }",
                [layer + 1, head + 1],
            )
            apart.append(0.5 * np.abs(np.array(found) - true[head]).sum())
    assert np.mean(apart) <= 0.002
    assert max(apart) <= 0.02
