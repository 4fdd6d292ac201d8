"""Contents of a dataset in the report of `check`, its text and its page; a broken dataset is never
a traceback.
"""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_data.testing.datasets import Spec, edit_json, rate_episodes, write_dataset
from understudy_kit.cli import main
from understudy_tools.check.contents import format_report
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Report
from understudy_tools.report.check_page import check_page

TOP = "observation.images.top"


def contents(root: Path, depth: Any = "sample") -> dict[str, Any]:
    report = check_dataset(root, depth).to_json()
    json.dumps(report, allow_nan=False)  # plain values only
    return dict(report["contents"])


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
def test_contents_of_a_dataset(tmp_path: Path, version: str) -> None:
    truth = write_dataset(
        tmp_path / "d",
        Spec(
            version=version,
            lengths=(6, 9, 4),
            gop=3,
            b_frames=1,
            cameras=(TOP, "observation.images.hand"),
        ),
    )
    facts = contents(tmp_path / "d")
    assert (facts["fps"], facts["duration"], facts["lengths"]) == (
        10,
        1.9,
        {"min": 4, "median": 6.0, "max": 9},
    )
    video = facts["videos"][TOP]
    assert (video["codec"], video["pixels"], video["gop"], video["b_frames"]) == (
        "h264",
        "yuv420p",
        3,
        True,
    )
    assert (video["width"], video["height"], video["frames"]) == (64, 64, 19)
    size = sum(
        path.stat().st_size for path in (tmp_path / "d/videos").rglob("*.mp4") if TOP in str(path)
    )
    assert (video["bytes"], video["bytes_per_frame"]) == (size, size / 19)
    actions = np.concatenate([rows["action"] for rows in truth.rows.values()])
    np.testing.assert_allclose(facts["columns"]["action"]["min"], actions.min(0))
    assert facts["columns"]["observation.state"]["constant"] == [2]
    by_task = {
        t: sum(t in tasks for tasks in truth.tasks.values())
        for t in {x for y in truth.tasks.values() for x in y}
    }
    assert {t["task"]: t["episodes"] for t in facts["tasks"] if t["episodes"]} == by_task


def test_contents_need_no_video_of_an_empty_episode(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(0, 5, 0), per_video_file=1))
    report = check_dataset(tmp_path / "d")
    assert report.contents["videos"][TOP]["b_frames"] is False
    assert (report.contents["videos"][TOP]["files"], report.read["videos"]) == (1, 1)
    assert not any(finding.rule.startswith(("files", "videos")) for finding in report.findings)


def test_each_depth_reads_no_more_than_it_says(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec())
    reads = {
        depth: check_dataset(tmp_path / "d", depth).read for depth in ("metadata", "rows", "sample")
    }
    assert [set(read) for read in reads.values()] == [
        set(),
        {"data_files", "rows"},
        {"data_files", "rows", "videos", "images"},
    ]
    report = check_dataset(tmp_path / "d")
    assert f"{report.read['images']} images of {report.frames}" in format_report(report)
    facts = contents(tmp_path / "d", "metadata")
    assert (facts["columns"], facts["videos"], len(facts["features"]) > 2) == ({}, {}, True)


def test_columns_that_are_declared_and_missing_are_named(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec())
    for key, dtype, shape in [("note", "string", [1]), ("png", "image", [8, 8, 3])]:
        entry = {"dtype": dtype, "shape": shape, "names": None}
        edit_json(
            tmp_path / "d/meta/info.json",
            lambda info, k=key, e=entry: info["features"].update({k: e}),
        )
    findings = check_dataset(tmp_path / "d", "rows").findings
    assert {"note", "png"} <= {
        finding.place.column for finding in findings if finding.rule == "files.columns"
    }


def replace_by_folder(path: Path, root: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, tuple[str, Any]] = {
    "no video": ("videos/**/*.mp4", lambda path, root: path.unlink()),
    "torn video": ("videos/**/*.mp4", lambda path, root: path.write_bytes(path.read_bytes()[:300])),
    "another video": (
        "videos/**/*.mp4",
        lambda path, root: path.write_bytes(sorted(root.glob("videos/**/*.mp4"))[-1].read_bytes()),
    ),
    "no rows": ("data/chunk-*/file-*.parquet", lambda path, root: path.unlink()),
    "torn rows": (
        "data/chunk-*/file-*.parquet",
        lambda path, root: path.write_bytes(path.read_bytes()[:200]),
    ),
    "a folder": ("videos/**/*.mp4", replace_by_folder),
    "wrong length": ("meta/stats.json", lambda path, root: path.write_text("[")),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_broken_file_is_reported_and_the_rest_shown(
    tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4, 5, 7)))
    pattern, damage = DAMAGES[what]
    damage(min((tmp_path / "d").glob(pattern)), tmp_path / "d")
    code = main.main(
        ["check", str(tmp_path / "d"), "--page", str(tmp_path / "p.html"), "--shown", "1"]
    )
    printed = capsys.readouterr()
    assert code == (0 if what == "wrong length" else 1), printed.out
    assert "Traceback" not in printed.err
    checked((tmp_path / "p.html").read_text())


def test_pages_replace_pages_on_request_and_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(5, 6)))
    target = tmp_path / "check.html"
    target.write_text("<html>a page of the user's")
    call = ["check", str(tmp_path / "d"), "--page", str(target)]
    assert [main.main(call), main.main([*call, "--overwrite"])] == [2, 2]
    assert str(target) in capsys.readouterr().err
    assert target.read_text() == "<html>a page of the user's"
    target.unlink()
    assert [main.main(call), main.main(call)] == [0, 2]
    assert "--overwrite" in capsys.readouterr().err
    assert main.main([*call, "--overwrite"]) == 0


def page(root: Path, shown: int, **change: Any) -> tuple[str, Report]:
    report = check_dataset(root, **change)
    return check_page(report, shown), report


def test_page_shows_every_camera_and_column(tmp_path: Path) -> None:
    spec = Spec(lengths=(6, 9, 4), cameras=(TOP,), images=("observation.images.still",), rich=True)
    write_dataset(tmp_path / "d", spec)
    edit_json(
        tmp_path / "d/meta/info.json",
        lambda info: info.update(robot_type="<script>alert(1)</script>"),
    )
    html, report = page(tmp_path / "d", 2)
    counts = checked(html)
    named = {
        e
        for finding in report.findings
        if finding.severity != "note"
        for e in finding.place.episodes[:2]
    }
    images = {0: 6, 1: 8, 2: 4}  # of each episode: at most 8
    # Episodes with findings, two others, and the first and last frames of all three: of both
    # cameras.
    assert counts["img"] == 2 * (sum(images[e] for e in named) + 6 + 4) + 2 * 2 * 3
    assert html.count("each on its own scale") >= 2
    assert "<script>alert" not in html
    assert "&lt;script&gt;" in html
    assert "lift the red block" in html


def test_check_writes_a_page_on_request_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec())
    monkeypatch.chdir(tmp_path)
    assert main.main(["check", "d", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 19
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_contents_of_real_recordings(real_data: Path) -> None:
    facts = contents(real_data / "gr1_sim_v20")
    video = facts["videos"]["observation.images.ego_view"]
    assert (video["codec"], video["gop"], video["b_frames"], video["frames"]) == (
        "h264",
        250,
        True,
        2096,
    )
    assert len(facts["columns"]["action"]["constant"]) == 25


def test_undeclared_columns_are_named(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(extra=True, foreign=False))
    html, report = page(tmp_path / "d", 0)
    assert report.contents["undeclared"] == {"battery": "double", "operator": "string"}
    assert "battery" in format_report(report)
    checked(html)


def test_check_accepts_path_and_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", Spec(version="v2.1", foreign=False))
    (tmp_path / "d/videos").rename(tmp_path / "d/video")
    edit_json(tmp_path / "d/meta/info.json", lambda info: info.update(codebase_version="v9"))
    assert main.main(["check", str(tmp_path / "d"), "--json"]) == 1
    path = "video/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    capsys.readouterr()
    assert (
        main.main(
            ["check", str(tmp_path / "d"), "--json", "--version", "v2.1", "--video-path", path]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["contents"]["videos"][TOP]["files_read"] == 3


def test_check_lists_the_metadata_that_conditions_use(tmp_path: Path) -> None:
    root = tmp_path / "rated"
    write_dataset(root, Spec(lengths=(3, 2) * 6, cameras=()))
    quality = [0.5 * number for number in range(11)] + [None]
    operators = [f"operator <{number % 10}>" for number in range(12)]
    empty: list[float | None] = [None] * 11 + [float("nan")]
    rate_episodes(
        root, success=[True, False, True] * 4, quality=quality, operator=operators, empty=empty
    )
    html, report = page(root, 0)
    metadata = report.contents["metadata"]
    assert metadata["success"] == {"missing": 0, "distinct": 2, "values": [[False, 4], [True, 8]]}
    assert metadata["quality"] == {"missing": 1, "distinct": 11, "min": 0.0, "max": 5.0}
    assert metadata["empty"] == {"missing": 12, "distinct": 0, "values": []}
    assert (metadata["operator"]["distinct"], len(metadata["operator"]["values"])) == (10, 8)
    assert metadata["operator"]["values"][0] == ["operator <0>", 2]
    lines = format_report(report).splitlines()
    assert any(re.fullmatch(r" *success +false \(4\), true \(8\)", line) for line in lines)
    assert any(re.fullmatch(r" *quality +0 to 5, missing in 1", line) for line in lines)
    assert "operator &lt;0&gt;" in html
    assert "operator <0>" not in html
    assert report.idle_share == 0  # every action of these rows moves
    write_dataset(tmp_path / "plain", Spec(lengths=(4, 3), cameras=()))
    assert contents(tmp_path / "plain")["metadata"] == {}
