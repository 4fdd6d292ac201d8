"""`Viewer`: the resources of episodes against the true content of small datasets of both
formats.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import Feature
from understudy_data.testing.datasets import Spec, Truth, identity, picture, write_dataset
from understudy_tools.report.view.episodes import curve
from understudy_tools.report.view.sheets import Layout
from understudy_tools.report.view.viewer import Source, UnknownResource, Viewer, export_episodes

TOP = "observation.images.top"
IDS = (2, 5, 6)


def make(root: Path, version: str, **changes: Any) -> tuple[Catalog, Truth]:
    truth = write_dataset(
        root, Spec(version=version, lengths=(6, 9, 70), ids=IDS, rich=True, **changes)
    )
    return Catalog.open(root), truth


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    """A dataset that no test changes."""
    return make(tmp_path_factory.mktemp("view") / "set", "v3.0")[0]


def viewer_of(catalog: Catalog, **changes: Any) -> Viewer:
    return Viewer([Source(catalog.name, catalog, **changes)], "title")


def read_json(viewer: Viewer, name: str, **query: str) -> Any:
    return json.loads(viewer.read(name, query).content)


def frames_of(
    viewer: Viewer, episode: int, camera: int, layout: dict[str, Any], length: int
) -> list[np.ndarray]:
    """Frames uint8 (H, W, 3) cut from the sheets of a camera."""
    frames = []
    per_sheet = layout["columns"] * layout["rows"]
    for number in range(-(-length // per_sheet)):
        resource = viewer.read(f"0/{episode}/camera-{camera}-{number}.png")
        assert resource.kind == "image/png"
        sheet = np.asarray(Image.open(io.BytesIO(resource.content)))
        for place in range(min(per_sheet, length - number * per_sheet)):
            y = (place // layout["columns"]) * layout["height"]
            x = (place % layout["columns"]) * layout["width"]
            frames.append(sheet[y : y + layout["height"], x : x + layout["width"]])
    return frames


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_viewer_shows_the_images_and_values_of_each_frame(version: str, tmp_path: Path) -> None:
    """Also of episodes that share a video, and of images stored in rows."""
    catalog, truth = make(tmp_path, version, images=("observation.images.stored",))
    viewer = viewer_of(catalog)
    for place, (episode, length) in enumerate(zip(IDS, (6, 9, 70))):
        content = read_json(viewer, f"0/{episode}/episode.json")
        assert (content["id"], content["length"], content["errors"]) == (episode, length, {})
        for camera, own in enumerate(content["cameras"]):
            frames = frames_of(viewer, episode, camera, own["layout"], length)
            shown = [identity(frame.transpose(2, 0, 1)) for frame in frames]
            assert shown == [(camera, place, frame) for frame in range(length)], own["key"]
        assert np.array_equal(frames[0], picture(1, place, 0))  # stored as PNG, shown without loss
        curves = {each["key"]: each for each in content["curves"]}
        assert list(curves)[:2] == ["observation.state", "action"]
        assert curves["observation.state"]["names"] == ["a", "b", "c"]
        for key in ("observation.state", "action", "next.reward", "matrix"):
            expected = truth.rows[episode][key].reshape(length, -1).T
            np.testing.assert_allclose(curves[key]["low"], expected, rtol=1e-6)
        lanes = {lane["name"]: lane["entries"] for lane in content["lanes"]}
        texts = [text for start, stop, text in lanes["task"] for _ in range(start, stop)]
        assert texts == truth.tasks[episode]
        assert [entry[2] for entry in lanes["note"]] == truth.rows[episode]["note"]


def test_viewer_lists_episodes_in_pages_by_query(plain: Catalog) -> None:
    viewer = viewer_of(plain)

    def ids(query: str, page: str = "0") -> list[int]:
        return [
            one["id"]
            for one in read_json(viewer, "episodes.json", query=query, page=page)["episodes"]
        ]

    assert ids("") == list(IDS)
    assert ids("5") == [5]
    assert ids("3-6") == [5, 6]
    assert ids("PUSH") == [5]  # episodes 2 and 6 have one other task each
    assert ids("push 2") == []
    assert ids("", page="1") == []
    assert ids("", page="x") == list(IDS)


def test_viewer_has_pages_of_100_episodes(tmp_path: Path) -> None:
    write_dataset(tmp_path, Spec(lengths=(1,) * 130, cameras=(), per_data_file=130))
    viewer = viewer_of(Catalog.open(tmp_path))
    found = [read_json(viewer, "episodes.json", page=page) for page in "012"]
    assert [one["total"] for one in found] == [130] * 3
    assert [one["id"] for page in found for one in page["episodes"]] == list(range(130))
    assert [len(page["episodes"]) for page in found] == [100, 30, 0]


@pytest.mark.parametrize(
    "name",
    [
        "0/3/episode.json",
        "1/2/episode.json",
        "0/02/episode.json",
        "0/2/camera-1-0.png",
        "0/2/camera-0-1.png",
        "0/2/rows-1.json",
        "0/6/episode.json",
        "../meta/info.json",
        "view.html",
        "0/99999999999999999999/episode.json",
        "view.js\n",
    ],
)
def test_viewer_has_no_other_resources(name: str, plain: Catalog) -> None:
    viewer = viewer_of(plain, rows=np.asarray([0, 1]))
    with pytest.raises(UnknownResource):
        viewer.read(name)


def test_viewer_shows_keep_ranges_and_findings(tmp_path: Path) -> None:
    catalog, _ = make(tmp_path / "set", "v3.0", nan_row=True)
    viewer = viewer_of(catalog, keep_ranges={"5": [[1, 3], [6, 20]]})
    lanes = read_json(viewer, "0/5/episode.json")["lanes"]
    assert [entry[:2] for entry in lanes[-1]["entries"]] == [[1, 3], [6, 9]]
    assert read_json(viewer, "0/2/episode.json")["lanes"][-1]["entries"] == []
    assert read_json(viewer, "0/5/findings.json") == {"known": False, "episode": [], "general": []}
    assert read_json(viewer, "check.json")[0]["episodes"] > 0
    found = read_json(viewer, "0/5/findings.json")
    assert found["known"]
    assert "values.finite" in {one["rule"] for one in found["episode"]}


def test_viewer_reads_findings_of_this_dataset_only(plain: Catalog, tmp_path: Path) -> None:
    place = {"episodes": [5, 6], "column": "action", "dimension": "1", "frame": 4}
    finding = {
        "rule": "values.jump",
        "severity": "warning",
        "message": "jumps",
        "place": place,
        "fix": "look",
    }
    content = {"episodes": 3, "frames": 85, "findings": [finding]}
    path = tmp_path / "findings.json"
    path.write_text(json.dumps(content))
    viewer = viewer_of(plain, findings=str(path))
    [own] = read_json(viewer, "0/5/findings.json")["episode"]
    assert (own["rule"], own["frame"], own["where"]) == ("values.jump", 4, "action[1]")
    [other] = read_json(viewer, "0/6/findings.json")["episode"]
    assert other["frame"] is None  # the frame is that of the first episode
    path.write_text(json.dumps(content | {"frames": 84}))
    with refused(84, 85, where="findings.json", fix="check"):
        viewer_of(plain, findings=str(path))
    path.write_text('{"findings": [{"place": 1}]}')
    with refused(where="findings.json", fix="--json"):
        viewer_of(plain, findings=str(path))


def test_viewer_shows_the_rest_of_a_broken_episode(tmp_path: Path) -> None:
    catalog, _ = make(tmp_path, "v2.1", cameras=(TOP, "observation.images.side"))
    (tmp_path / f"videos/chunk-001/{TOP}/episode_000002.mp4").write_bytes(b"no video")
    content = read_json(viewer_of(catalog), "0/2/episode.json")
    assert [bool(camera["error"]) for camera in content["cameras"]] == [True, False]
    assert content["curves"]
    (tmp_path / "data/chunk-001/episode_000002.parquet").unlink()
    content = read_json(viewer_of(catalog), "0/2/episode.json")
    assert (content["curves"], len(content["errors"])) == ([], 1)
    assert not content["cameras"][1]["error"]


def test_page_takes_names_as_text(plain: Catalog) -> None:
    page = Viewer([Source("</script><b>{{ setup }}", plain)], "<b>{{ setup }}").page()
    assert page.count("<b>") == 0
    assert page.count('"sources"') == 1


def test_curve_of_a_long_episode_keeps_extremes() -> None:
    values = np.zeros((5001, 2), np.float32)
    values[1234, 0], values[4999, 1], values[7, 1] = 9, -3, np.nan
    found = curve(Feature("action", "float32", (2,)), values)
    assert (found["bucket"], len(found["low"][0])) == (3, 1667)
    assert found["high"][0][1234 // 3] == 9
    assert found["low"][1][4999 // 3] == -3
    assert (max(found["high"][0]), min(found["low"][0]), found["low"][1][7 // 3]) == (9, 0, 0)


def test_curve_has_no_number_where_none_is_finite() -> None:
    values = np.asarray([[1.5], [np.nan], [np.inf]])
    found = curve(Feature("reward", "float64", (1,)), values)
    assert (found["low"], found["high"]) == ([[1.5, None, None]], None)


@pytest.mark.parametrize(("height", "width"), [(64, 64), (480, 640), (2160, 3840), (3, 5000)])
def test_layout_reduces_large_frames(height: int, width: int) -> None:
    layout = Layout.of_frames(height, width)
    assert max(layout.width, layout.height) == min(640, max(height, width))
    assert 1 <= layout.frames * layout.width * layout.height <= 1 << 22
    assert (layout.extension == "png") == (width <= 128)
    assert layout.count(layout.frames + 1) == 2


def test_export_refuses_a_folder_with_content(plain: Catalog, tmp_path: Path) -> None:
    out = tmp_path / "page"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with refused(kind=ConfigError):
        export_episodes(viewer_of(plain), [(0, 5)], out)
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


def test_export_of_an_unreadable_episode_leaves_nothing(plain: Catalog, tmp_path: Path) -> None:
    out = tmp_path / "page"
    with pytest.raises(UnknownResource):
        export_episodes(viewer_of(plain), [(0, 5), (0, 77)], out)
    assert not out.exists()
