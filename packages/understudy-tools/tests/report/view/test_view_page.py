"""The page of `understudy view` in a real browser: from the server and exported."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, identity, write_dataset
from understudy_kit.testing import browser
from understudy_tools.report.view.server import ViewServer
from understudy_tools.report.view.viewer import Source, Viewer, export_episodes

CAMERAS = ("observation.images.top", "observation.images.side")
PIXELS = """shown => {
    const copy = document.createElement("canvas");
    Object.assign(copy, { width: shown.width, height: shown.height });
    // without a warning on the console
    const context = copy.getContext("2d", { willReadFrequently: true });
    context.drawImage(shown, 0, 0);
    return [...context.getImageData(0, 0, copy.width, copy.height).data];
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser.browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Viewer:
    """Two episodes in one video per camera; the second one has two sheets of images."""
    root = tmp_path_factory.mktemp("view") / "set"
    write_dataset(root, Spec(lengths=(6, 70), cameras=CAMERAS, rich=True))
    return Viewer([Source("set", Catalog.open(root), keep_ranges={"1": [[2, 9]]})], "set", predict)


def predict(source: int, episode: int, length: int) -> dict[str, Any]:
    """Predicted actions frame / 2 and -frame, but none of the last frame."""
    actions = np.arange(length)[:, None] * np.asarray([0.5, -1.0])
    actions[-1] = np.nan
    return {
        "chunk": 8,
        "starts": list(range(0, length, 8)),
        "actions": actions,
        "mae": [0.25, 2.0],
        "unreadable": 1,
    }


@contextmanager
def opened(
    chromium: Any, viewer: Viewer, fragment: str = "", refuses: bool = True
) -> Iterator[Any]:
    """The page from a server. If it `refuses`, the test fails for anything on the console."""
    with ViewServer(viewer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        tab = chromium.new_page(viewport={"width": 1200, "height": 900})
        messages: list[str] = []
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        try:
            tab.goto(server.url + fragment)
            yield tab
        finally:
            tab.close()
            server.shutdown()
            thread.join()
        assert not refuses or messages == []


def shown(tab: Any, frame: int) -> list[tuple[int, int, int]]:
    """(camera, episode, frame) that the pixels of each camera show, once the page shows `frame`."""
    found = []
    for number in range(len(CAMERAS)):
        canvas = tab.locator(".film canvas").nth(number)
        tab.locator(f".film:nth-child({number + 1}) canvas[data-frame='{frame}']").wait_for()
        pixels = np.asarray(canvas.evaluate(PIXELS), np.uint8).reshape(64, 64, 4)[..., :3]
        found.append(identity(pixels.transpose(2, 0, 1)))
    return found


@pytest.mark.long
def test_keys_step_and_play_all_cameras_to_the_exact_frame(chromium: Any, viewer: Viewer) -> None:
    with opened(chromium, viewer, "#0/1/62") as tab:
        assert shown(tab, 62) == [(0, 1, 62), (1, 1, 62)]
        steps = [
            ("ArrowRight", 63),
            ("ArrowRight", 64),
            ("Shift+ArrowLeft", 54),
            ("End", 69),
            ("ArrowRight", 69),
        ]
        for key, frame in [*steps, ("Home", 0), ("ArrowLeft", 0), ("Shift+ArrowRight", 10)]:
            tab.keyboard.press(key)
            assert shown(tab, frame) == [(0, 1, frame), (1, 1, frame)]
            cursor = tab.locator(".area .cursor:not(.hover)").first.evaluate(
                "one => parseFloat(one.style.left)"
            )
            assert cursor == pytest.approx((frame + 0.5) / 70 * 100, abs=1e-3)
        values = tab.locator(".joint .legend button", has_text="action").locator("output")
        tab.locator("#curves .predicted", has_text="every 8 frames; 1 ").wait_for()
        assert [text.split(" → ")[1] for text in values.all_inner_texts()] == ["5, 0.25", "-10, 2"]
        assert tab.locator(".lane", has_text="keep").locator("p span").inner_text() == "left out"
        tab.keyboard.press("Shift+ArrowRight")
        tab.locator("#speed").select_option("4")
        tab.locator("#task").click()
        tab.keyboard.press("Space")
        tab.locator("#play[aria-pressed='true']").wait_for()
        tab.locator("#play[aria-pressed='false']").wait_for()  # at the end
        assert shown(tab, 69) == [(0, 1, 69), (1, 1, 69)]
        tab.keyboard.press("[")
        tab.locator("#episode", has_text="Episode 0").wait_for()
        assert shown(tab, 0) == [(0, 0, 0), (1, 0, 0)]


def test_images_stand_beside_the_curves_where_there_is_room(chromium: Any, viewer: Viewer) -> None:
    with opened(chromium, viewer, "#0/1/62") as tab:
        shown(tab, 62)
        films = tab.locator("#films").bounding_box()
        joint = tab.locator(".joint").first.bounding_box()
        assert films["x"] + films["width"] <= joint["x"]
        assert abs(films["y"] - joint["y"]) < 100
        tab.set_viewport_size({"width": 390, "height": 844})
        assert tab.evaluate("document.documentElement.scrollWidth") == 390
        tab.locator(".joint").last.scroll_into_view_if_needed()
        top = tab.locator("#films").bounding_box()["y"]
        assert 0 <= top < 844, "the images stay while the curves are scrolled"


@pytest.mark.long
def test_search_legend_check_and_a_lost_server(chromium: Any, viewer: Viewer) -> None:
    with opened(chromium, viewer, refuses=False) as tab:  # the browser reports a failed request
        shown(tab, 0)
        tab.keyboard.press("/")
        tab.keyboard.type("1")
        tab.locator("#count", has_text="1 episode").wait_for()
        tab.keyboard.press("Enter")
        tab.locator("#episode", has_text="Episode 1").wait_for()
        still = tab.locator(".still tr", has_text="state").locator("td")
        assert still.all_text_contents()[-3:] == ["c", "observation.state", "1"]
        joint = tab.locator("[data-name='a']")
        button = joint.locator(".legend button", has_text="state")
        lines = joint.locator("svg path.line")
        count = lines.count()
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert lines.count() == count - 1
        tab.get_by_role("button", name="check the rows").click()
        tab.get_by_text("about this episode").or_(
            tab.locator("#findings li").first
        ).first.wait_for()
        tab.get_by_role("searchbox").fill("")
        tab.locator("#count", has_text="2 episodes").wait_for()
        tab.locator("#title").click()
        tab.context.set_offline(True)
        tab.keyboard.press("[")
        tab.locator("#trouble:not([hidden])").wait_for()
        tab.context.set_offline(False)
        tab.keyboard.press("[")
        tab.locator("#episode", has_text="Episode 0").wait_for()
        assert tab.locator("#trouble").is_hidden()


@pytest.mark.parametrize(
    ("width", "scheme"), [(1200, "light"), pytest.param(390, "dark", marks=pytest.mark.long)]
)
def test_exported_page_is_readable_without_a_server(
    viewer: Viewer, chromium: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    export_episodes(viewer, [(0, 1), (0, 0)], tmp_path / "page")
    page = tmp_path / "page/index.html"
    assert browser.faults(chromium, page, width, scheme, ready=".film canvas[data-frame='0']") == []
