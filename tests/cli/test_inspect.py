"""`understudy inspect`: facts, findings and page; a defect of the dataset is never a traceback."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.datasets import Spec, edit_json, rate_episodes, write_dataset
from understudy.cli import main
from understudy.data.format.catalog import Catalog
from understudy.data.format.features import Feature
from understudy.report.dataset.examine import examine
from understudy.report.dataset.page import page
from understudy.report.dataset.recorded_claims import constant
from understudy.report.dataset.text import format_facts

TOP = "observation.images.top"


def facts(root: Path, limit: int = 100) -> dict[str, Any]:
    found = examine(Catalog.open(root), limit)
    json.dumps(found, allow_nan=False)  # plain values only
    return found


class Balanced(HTMLParser):
    """Fails on a tag that is closed in the wrong place; counts tags."""

    VOID = ("meta", "img", "br", "path", "use", "rect", "circle", "line", "stop")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def checked(html: str) -> dict[str, int]:
    """Check that a page is balanced and self-contained; returns its tags."""
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", html)
    assert not re.search(r"url\((?!#)", html)
    assert "@import" not in html
    return parser.counts


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_examine_finds_the_facts(tmp_path: Path, version: str) -> None:
    truth = write_dataset(
        tmp_path / "d",
        Spec(version=version, lengths=(6, 9, 4), gop=3, b_frames=1, cameras=(TOP, "observation.images.hand")),
    )
    found = facts(tmp_path / "d")
    assert (found["format"], found["episodes"], found["frames"], found["fps"]) == (version, 3, 19, 10)
    assert found["lengths"] == {"min": 4, "median": 6.0, "max": 9}
    assert found["rows"]["episodes_read"] == 3
    video = found["videos"][TOP]
    assert (video["codec"], video["pixels"], video["gop"], video["b_frames"]) == ("h264", "yuv420p", 3, True)
    assert (video["width"], video["height"], video["pictures"]) == (64, 64, 19)
    size = sum(path.stat().st_size for path in (tmp_path / "d/videos").rglob("*.mp4") if TOP in str(path))
    assert video["bytes"] == size
    actions = np.concatenate([rows["action"] for rows in truth.rows.values()])
    np.testing.assert_allclose(found["rows"]["columns"]["action"]["min"], actions.min(0))
    assert found["rows"]["columns"]["observation.state"]["constant"] == [2]
    by_task = {
        t: sum(t in tasks for tasks in truth.tasks.values()) for t in {x for y in truth.tasks.values() for x in y}
    }
    assert {t["task"]: t["episodes"] for t in found["tasks"] if t["episodes"]} == by_task


def test_examine_needs_no_video_of_an_empty_episode(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(0, 5, 0), per_video_file=1))
    found = facts(tmp_path / "d")
    assert (found["videos"][TOP]["files"], found["rows"]["episodes_read"]) == (1, 1)
    assert not any("cannot be opened" in line for line in found["wrong"])


def test_examine_finds_no_b_frames(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(gop=12))
    assert facts(tmp_path / "d")["videos"][TOP]["b_frames"] is False


def test_examine_names_defects_of_a_readable_dataset(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(nan_row=True, late_timestamps=True))
    edit_json(tmp_path / "d/meta/info.json", lambda i: i["features"][TOP]["info"].update({"video.codec": "av1"}))
    edit_json(tmp_path / "d/meta/info.json", lambda i: i.update(total_frames=999))
    lines = "\n".join(facts(tmp_path / "d")["wrong"])
    for line in (
        "observation.state: not finite in 3 of the rows",
        "timestamps start up to 0.100 s away from 0",
        "info.json declares codec av1, the files are h264",
        "total_frames is 999",
        "observation.state: constant in dimensions 2",
    ):
        assert line in lines
    assert lines.count("observation.state: ") == len([x for x in lines.splitlines() if "observation.state: " in x])


def test_examine_names_missing_text_and_image_columns(tmp_path: Path) -> None:
    """A column of text or images that is declared but missing."""
    write_dataset(tmp_path / "d", Spec())
    for key, dtype, shape in [("note", "string", [1]), ("png", "image", [8, 8, 3])]:
        entry = {"dtype": dtype, "shape": shape, "names": None}
        edit_json(tmp_path / "d/meta/info.json", lambda info, k=key, e=entry: info["features"].update({k: e}))
    lines = "\n".join(facts(tmp_path / "d")["wrong"])
    assert "there is no column 'note'" in lines
    assert "there is no column 'png'" in lines


def damage(root: Path, what: str) -> None:
    data, video = sorted((root / "data").rglob("file-*.parquet")), sorted((root / "videos").rglob("*.mp4"))
    data = [path for path in data if ".cache" not in str(path)]
    match what:
        case "no video":
            video[0].unlink()
        case "torn video":
            video[0].write_bytes(video[0].read_bytes()[:300])
        case "another video":
            video[0].write_bytes(video[-1].read_bytes())
        case "no rows":
            data[0].unlink()
        case "torn rows":
            data[0].write_bytes(data[0].read_bytes()[:200])
        case "a folder":
            video[0].unlink()
            video[0].mkdir()
        case "wrong length":
            (root / "meta/stats.json").write_text("[")


@pytest.mark.parametrize(
    "what", ["no video", "torn video", "another video", "no rows", "torn rows", "a folder", "wrong length"]
)
def test_inspect_reports_a_broken_file_and_shows_the_rest(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4, 5, 7)))
    damage(tmp_path / "d", what)
    assert main.main(["inspect", str(tmp_path / "d"), "--page", str(tmp_path / "p.html"), "--shown", "1"]) == 0
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    assert "  none" not in printed.out.splitlines()
    checked((tmp_path / "p.html").read_text())


def test_inspect_reports_broken_metadata_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", Spec())
    (tmp_path / "d/meta/info.json").write_text("{")
    assert main.main(["inspect", str(tmp_path / "d")]) == main.WRONG_INPUT
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "info.json" in error


@pytest.mark.parametrize("command", ["inspect", "profile"])
def test_pages_replace_pages_on_request_and_no_other_file(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(5, 6)))
    target = tmp_path / "profile.html"
    target.write_text("<html>a page of the user's")
    call = ["inspect", str(tmp_path / "d"), "--page", str(target)]
    if command == "profile":
        call = ["profile", "--data.root", str(tmp_path / "d"), "--output-dir", str(tmp_path)]
    assert [main.main(call), main.main([*call, "--overwrite"])] == [2, 2]
    assert str(target) in capsys.readouterr().err
    assert target.read_text() == "<html>a page of the user's"
    if command == "inspect":
        target.unlink()
        assert [main.main(call), main.main(call)] == [0, 2]
        assert "--overwrite" in capsys.readouterr().err
        assert main.main([*call, "--overwrite"]) == 0
    else:
        target.rename(tmp_path / "profile.json")
        assert [main.main(call), main.main([*call, "--overwrite"])] == [2, 2]
        assert (tmp_path / "profile.json").read_text() == "<html>a page of the user's"


def test_page_shows_every_camera_and_column(tmp_path: Path) -> None:
    spec = Spec(lengths=(6, 9, 4), cameras=(TOP,), images=("observation.images.still",), rich=True)
    write_dataset(tmp_path / "d", spec)
    edit_json(tmp_path / "d/meta/info.json", lambda info: info.update(robot_type="<script>alert(1)</script>"))
    catalog = Catalog.open(tmp_path / "d")
    html = page(catalog, examine(catalog, 100), shown=2)
    counts = checked(html)
    assert counts["img"] == 2 * (6 + 4) + 2 * 2 * 3  # two episodes, then the first and last frames of all three
    assert counts["svg"] >= 2 * 2 + 1
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "lift the red block" in html


def test_page_opens_no_more_episodes_than_the_limit(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(3,) * 9, per_video_file=1))
    catalog = Catalog.open(tmp_path / "d")
    html = page(catalog, examine(catalog, 2), shown=1, limit=2)
    assert "over 2 of 9 episodes" in html
    assert checked(html)["img"] == 3 + 2 * 2  # an episode of three frames, first and last ones of two


def test_examine_reports_its_limit(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(3,) * 9, per_video_file=1))
    found = facts(tmp_path / "d", limit=4)
    assert found["rows"]["episodes_read"] == 4
    assert (found["videos"][TOP]["files_read"], found["videos"][TOP]["files"]) == (4, 9)
    assert "4 of 9 episodes read" in format_facts(found)
    assert "4 of 9 files read" in format_facts(found)


def test_inspect_json_writes_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec())
    monkeypatch.chdir(tmp_path)
    assert main.main(["inspect", "d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 19
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    assert main.main(["inspect", "d"]) == 0
    assert (tmp_path / "d-inspect.html").exists()


def test_examine_real_recordings(real_data: Path) -> None:
    found = facts(real_data / "gr1_sim_v20")
    video = found["videos"]["observation.images.ego_view"]
    assert (video["codec"], video["gop"], video["b_frames"], video["pictures"]) == ("h264", 250, True, 2096)
    assert found["rows"]["columns"]["action"]["constant"].__len__() == 25
    assert any("timestamps start up to 0.050 s" in line for line in found["wrong"])
    assert facts(real_data / "g1_v30")["wrong"] == []


@pytest.mark.parametrize("version", ["v2.0", "v3.0"])
def test_examine_checks_recorded_statistics(tmp_path: Path, version: str) -> None:
    """The statistics wrongly have a constant action, and a state between 5 and 6."""
    write_dataset(tmp_path / "d", Spec(version=version, foreign=False))

    def lie(stats: dict[str, Any]) -> None:
        stats["action"]["std"] = [0.0, 0.0]
        stats["observation.state"] |= {"min": [5.0, 5.0, 1.0], "max": [6.0, 6.0, 1.0]}

    edit_json(tmp_path / "d/meta/stats.json", lie)
    wrong = facts(tmp_path / "d")["wrong"]
    assert not any("are constant" in line for line in wrong)
    [action, state] = sorted(line for line in wrong if "recorded statistics" in line or "recorded range" in line)
    assert action.startswith("action: dimensions 0, 1 constant")
    assert state.startswith("observation.state: ")
    assert state.endswith("dimensions a, b")
    assert "observation.state: constant in dimensions 2 (c)" in wrong
    edit_json(tmp_path / "d/meta/stats.json", lambda stats: stats.clear())
    assert not any("recorded" in line for line in facts(tmp_path / "d")["wrong"])


def test_examine_reads_images_in_an_array_column(tmp_path: Path) -> None:
    """Recorded statistics have constant channels; the pixels are not constant."""
    key, seed = "observation.rgb", np.random.default_rng(0)
    write_dataset(tmp_path / "d", Spec(lengths=(4, 5), per_data_file=2, foreign=False))
    [file] = (tmp_path / "d/data").rglob("*.parquet")
    table = pq.read_table(file)
    pixels = seed.integers(0, 255, (len(table), 12, 16, 3), np.uint8)
    pixels[..., 2] = 7
    pq.write_table(table.append_column(key, pa.array(pixels.tolist(), pa.list_(pa.list_(pa.list_(pa.uint8()))))), file)
    entry = {"dtype": "uint8", "shape": [12, 16, 3], "names": ["height", "width", "channel"]}
    edit_json(tmp_path / "d/meta/info.json", lambda info: info["features"].update({key: entry}))
    flat = {"mean": [[[7.0]]] * 3, "std": [[[0.0]]] * 3, "min": [[[7.0]]] * 3, "max": [[[7.0]]] * 3, "count": [9]}
    edit_json(tmp_path / "d/meta/stats.json", lambda stats: stats.update({key: flat}))
    found = facts(tmp_path / "d")
    lines = [line for line in found["wrong"] if line.startswith(f"{key}: ")]
    assert found["features"][key]["camera"]
    assert f"{key}: constant in dimensions 2" in lines
    assert any("dimensions 0, 1 constant in the recorded statistics" in line for line in lines)
    assert not any("are constant" in line for line in lines)
    assert key not in found["rows"]["columns"]  # hundreds of numbers


def test_examine_names_undeclared_columns(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(extra=True, foreign=False))
    found = facts(tmp_path / "d")
    assert found["undeclared"] == {"battery": "double", "operator": "string"}
    assert "battery" in format_facts(found)
    checked(page(Catalog.open(tmp_path / "d"), found, 1))


def test_inspect_accepts_path_and_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", Spec(version="v2.1", foreign=False))
    (tmp_path / "d/videos").rename(tmp_path / "d/video")
    edit_json(tmp_path / "d/meta/info.json", lambda info: info.update(codebase_version="v9"))
    assert main.main(["inspect", str(tmp_path / "d"), "--json"]) == 2
    path = "video/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    capsys.readouterr()
    assert main.main(["inspect", str(tmp_path / "d"), "--json", "--version", "v2.1", "--video-path", path]) == 0
    assert json.loads(capsys.readouterr().out)["videos"][TOP]["files_read"] == 3


def test_constant_names_many_dimensions_as_ranges() -> None:
    low, high = np.zeros(40), np.zeros(40)
    high[[3, 20, 21]] = 1
    catalog: Any = SimpleNamespace(features={"action": Feature("action", "float32", (40,))})
    assert constant(catalog, "action", low, high).endswith("constant in 37 of 40 dimensions, 0 to 2, 4 to 19, 22 to 39")


def test_inspect_lists_the_metadata_that_conditions_use(tmp_path: Path) -> None:
    root = tmp_path / "rated"
    write_dataset(root, Spec(lengths=(3, 2) * 6, cameras=()))
    quality = [0.5 * number for number in range(11)] + [None]
    operators = [f"operator <{number % 10}>" for number in range(12)]
    empty: list[float | None] = [None] * 11 + [float("nan")]
    rate_episodes(root, success=[True, False, True] * 4, quality=quality, operator=operators, empty=empty)
    found = facts(root)
    own = found["metadata"]
    assert own["success"] == {"missing": 0, "distinct": 2, "values": [[False, 4], [True, 8]]}
    assert own["quality"] == {"missing": 1, "distinct": 11, "min": 0.0, "max": 5.0}
    assert own["empty"] == {"missing": 12, "distinct": 0, "values": []}
    assert (own["operator"]["distinct"], len(own["operator"]["values"])) == (10, 8)
    assert own["operator"]["values"][0] == ["operator <0>", 2]
    lines = format_facts(found).splitlines()
    assert any(re.fullmatch(r" *success +false \(4\), true \(8\)", line) for line in lines)
    assert any(re.fullmatch(r" *quality +0 to 5, missing in 1", line) for line in lines)
    html = page(Catalog.open(root), found, 0)
    assert "operator &lt;0&gt;" in html
    assert "operator <0>" not in html
    assert found["rows"]["idle_share"] == 0  # every action of these rows moves
    assert facts_of_plain(tmp_path)["metadata"] == {}


def facts_of_plain(folder: Path) -> dict[str, Any]:
    """Facts about a dataset without metadata of episodes, at rest."""
    root = folder / "plain"
    write_dataset(root, Spec(lengths=(4, 3), cameras=()))
    return facts(root)
