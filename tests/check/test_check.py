"""`check_dataset` and `understudy check`: findings as values, exit codes, JSON, and facts against
plain loops.
"""

import json
import re
import shutil
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pytest

from understudy.config.data import DataConfig
from understudy.config.train import TrainConfig
from understudy.train.data.sources import open_source
from understudy_base import DatasetError, SourceError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.testing.datasets import Spec, edit_column, edit_json, write_dataset
from understudy_data.testing.servers import RangeServer, folder
from understudy_kit.cli import main
from understudy_tools.check.column_facts import Column, FrameStride
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import RULES, Finding, Place, list_ids, sort_findings


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("check")
    for version in ("v2.0", "v2.1", "v3.0"):
        write_dataset(root / version, Spec(version=version, lengths=(6, 9, 4, 7), ids=(), gop=3))
    return {version: root / version for version in ("v2.0", "v2.1", "v3.0")}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_check_finds_nothing_wrong_in_each_format(sets: dict[str, Path], version: str) -> None:
    report = check_dataset(sets[version], "all")
    assert [finding for finding in report.findings if finding.severity != "note"] == []
    assert report.is_sound
    assert report.read["rows"] == report.frames == 26
    assert report.read["images"] == 26 * len(Catalog.open(sets[version]).camera_keys)  # each once


def test_check_command_exits_with_the_result(
    sets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["check", str(sets["v2.1"]), "--depth", "rows", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True
    shutil.copytree(sets["v2.1"], tmp_path / "set")
    next((tmp_path / "set/data").rglob("episode_000002.parquet")).unlink()
    assert main.main(["check", str(tmp_path / "set"), "--json", "--depth", "rows"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["bad_episodes"] == [2]
    [finding] = [one for one in result["findings"] if one["severity"] == "error"]
    assert finding["rule"] == "files.missing"
    assert finding["place"]["episodes"] == [2]
    assert finding["fix"]
    assert main.main(["check", str(tmp_path / "set"), "--depth", "rows"]) == 1
    assert "files.missing" in capsys.readouterr().out
    assert main.main(["check", str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize("fault", ["lost video", "gray", "no action", "matrix action"])
def test_check_names_the_flag_that_a_training_asks_for(fault: str, tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(version="v2.1", lengths=(6, 9), gop=3, foreign=False))
    lost = Catalog.open(tmp_path / "set").camera_keys[0]
    if fault == "lost video":
        shutil.rmtree(next((tmp_path / "set/videos").rglob(lost)))
    changes = {
        "gray": lambda features: features[lost].update(shape=[*features[lost]["shape"][:2], 1]),
        "no action": lambda features: features.update({"action.joints": features.pop("action")}),
        "matrix action": lambda features: features["action"].update(shape=[2, 3]),
    }
    if change := changes.get(fault):
        edit_json(tmp_path / "set/meta/info.json", lambda info: change(info["features"]))
    catalog = Catalog.open(tmp_path / "set")
    rule = "files.camera" if fault == "lost video" else "metadata.training"
    [finding] = [
        one for one in check_dataset(tmp_path / "set", "rows").findings if one.rule == rule
    ]
    refused = pytest.raises(DatasetError)
    with refused as error:
        config = TrainConfig(data=DataConfig(root=str(tmp_path / "set")))
        source = open_source(config.data.mixed()[0], catalog)
        source.split("set", config, source.cameras, {})
    [flag] = re.findall(r"--data\.\w+", finding.fix)
    assert flag in (error.value.fix or "")
    if flag == "--data.cameras":
        [cameras] = re.findall(r"--data\.cameras (.*)", finding.fix)
        assert cameras in (error.value.fix or "")
        assert lost not in cameras
        kept = tuple(cameras.split()) if cameras != "none" else ()
        source = open_source(config.data.mixed()[0], catalog, cameras.split())
        source.split("set", config, kept, {})


def test_check_reports_unreadable_metadata_and_raises_without_any(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(sets["v3.0"], tmp_path / "set")
    edit_json(tmp_path / "set/meta/info.json", lambda info: info.update(fps=-3))
    report = check_dataset(tmp_path / "set")
    assert [(one.rule, one.severity) for one in report.findings] == [
        ("metadata.unreadable", "error")
    ]
    with pytest.raises(DatasetError):
        check_dataset(tmp_path / "nowhere")


def test_check_names_a_missing_task_list_and_a_timestamp_that_is_no_number(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(sets["v3.0"], tmp_path / "set")
    (tmp_path / "set/meta/tasks.parquet").unlink()
    [finding] = check_dataset(tmp_path / "set").findings
    assert (finding.rule, finding.severity, finding.place.file) == (
        "metadata.unreadable",
        "error",
        "meta/tasks.parquet",
    )
    shutil.copytree(sets["v2.1"], tmp_path / "other")
    path = next((tmp_path / "other/data").rglob("episode_000001.parquet"))
    edit_column(path, "timestamp", lambda times: [*times[:3], np.nan, *times[4:]])
    errors = [
        one for one in check_dataset(tmp_path / "other", "rows").findings if one.severity == "error"
    ]
    assert [(one.rule, one.place.episodes) for one in errors] == [("clock.order", (1,))]


def test_an_unreadable_column_is_no_fault_of_the_images(
    sets: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(sets["v2.1"], tmp_path / "set")
    path = next((tmp_path / "set/data").rglob("episode_000001.parquet"))
    edit_column(path, "action", lambda values: [["a", "b"]] * len(values), pa.list_(pa.string()))
    errors = [one for one in check_dataset(tmp_path / "set").findings if one.severity == "error"]
    assert [(one.rule, one.place.episodes) for one in errors] == [("files.unreadable", (1,))]


def test_each_rule_is_registered() -> None:
    with pytest.raises(ValueError, match="RULES"):
        Finding("no.rule", "error", "")
    findings = []
    for rule in RULES:
        findings += [Finding(rule, "note", ""), Finding(rule, "error", "")]
    assert [one.severity for one in sort_findings(findings)][: len(RULES)] == ["error"] * len(RULES)
    assert str(Place((3, 4, 5, 9), "action", "grip")) == "action[grip], episodes 3-5, 9"
    assert list_ids(range(0, 40, 2), 3) == "0, 2, 4, ... (20 in all)"


def test_column_summary_equals_plain_loops() -> None:
    """Also with gaps between episodes, values that are not finite, and blocks smaller than an
    episode.
    """
    rng = np.random.default_rng(0)
    lengths = np.array([1, 7, 2, 40, 3])
    starts = np.array([2, 3, 12, 14, 60])
    values = rng.integers(0, 4, (70, 3)).astype(np.float32)
    values[20, 1] = np.nan
    of_row = np.array([7, 40, 2, 0, 1, 3])
    column = Column("x", ["a", "b", "c"], np.arange(6), FrameStride(of_row))
    column.add(np.array([4, 0, 2, 1, 5]), values, starts, lengths)
    for row, start, length in zip([4, 0, 2, 1, 5], starts, lengths, strict=True):
        own = values[start : start + length].astype(np.float64)
        assert column.bad[row] == (~np.isfinite(own)).any(1).sum()
        for at in np.argwhere(~np.isfinite(own)):
            own[at[0], at[1]] = own[at[0] - 1, at[1]]
        step = np.abs(np.diff(own, axis=0)) if length > 1 else np.zeros((1, 3))
        second = np.abs(np.diff(own, n=2, axis=0)) if length > 2 else np.zeros((1, 3))
        expected = {
            "low": own.min(0),
            "high": own.max(0),
            "mean": own.mean(0),
            "m2": own.var(0) * length,
        }
        expected |= {
            "step": step.max(0),
            "path": step.sum(0),
            "jerk": second.mean(0),
            "first": own[0],
        }
        expected |= {"at_low": (own == own.min(0)).sum(0), "at_high": (own == own.max(0)).sum(0)}
        for name, value in expected.items():
            np.testing.assert_allclose(getattr(column, name)[row], value, atol=1e-9, err_msg=name)
    assert np.isnan(column.mean[3]).all()
    assert len(column.sample) == 53


def test_skip_bad_writes_a_list_and_page_shows_it(
    sets: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sets["v2.1"], tmp_path / "set")
    next((tmp_path / "set/data").rglob("episode_000003.parquet")).write_bytes(b"not parquet")
    path = next((tmp_path / "set/data").rglob("episode_000001.parquet"))
    edit_column(path, "action", lambda values: [[np.nan, 0.0]] * len(values))
    bad = tmp_path / "bad.json"
    page = tmp_path / "page.html"
    arguments = [
        "check",
        str(tmp_path / "set"),
        "--skip-bad",
        str(bad),
        "--page",
        str(page),
        "--limit",
        "1",
    ]
    assert main.main(arguments) == 1
    content = json.loads(bad.read_text())
    assert content["bad_episodes"] == [1, 3]
    assert content["rules"] == {"1": ["values.finite"], "3": ["files.unreadable"]}
    assert "files.unreadable" in page.read_text()
    worst = page.read_text().partition(">Episodes of findings</h2>")[2].partition("<h2")[0]
    assert "<h3>episode 1 · " in worst
    assert "<img" in worst
    assert "2 bad episodes" in capsys.readouterr().out


def test_a_start_time_is_an_error_only_if_the_video_contradicts_it(tmp_path: Path) -> None:
    """A file with a gap in its times: the recorded second and the frames before the episode may
    both be right.
    """
    write_dataset(tmp_path / "set", Spec(lengths=(6, 9, 4, 7), per_video_file=2, foreign=False))
    for path in sorted((tmp_path / "set/meta/episodes").rglob("*.parquet")):
        edit_column(
            path,
            "videos/observation.images.top/from_timestamp",
            lambda times: times + 0.2 * (times > 0),
        )
    by_images = {
        images: [
            one.severity
            for one in check_dataset(tmp_path / "set", images).findings
            if one.rule == "videos.start"
        ]
        for images in ("rows", "sample")
    }
    # unread, it might hold episodes that are not listed
    assert by_images == {"rows": [], "sample": ["error"]}
    videos = sorted((tmp_path / "set/videos").rglob("*.mp4"))
    for path, first in zip(videos, (6, 4), strict=True):
        _delay(path, first, 2)
    assert [
        one for one in check_dataset(tmp_path / "set").findings if one.rule == "videos.start"
    ] == []


def _delay(path: Path, first: int, frames: int) -> None:
    """Show a video's frames from number `first` on some frames later, by copying its packets."""
    target = path.with_suffix(".new.mp4")
    with av.open(str(path)) as source, av.open(str(target), "w") as out:
        stream = source.streams.video[0]
        copy = out.add_stream_from_template(stream)
        ticks = (
            round(float(1 / stream.average_rate / stream.time_base)) if stream.average_rate else 0
        )
        for number, packet in enumerate(packet for packet in source.demux(stream) if packet.size):
            if number >= first:
                packet.pts += frames * ticks
                packet.dts += frames * ticks
            packet.stream = copy
            out.mux(packet)
    target.replace(path)


@pytest.mark.parametrize("part", ["/data/", "stats.json"])
def test_an_outage_is_no_finding(tmp_path: Path, part: str) -> None:
    """Otherwise `--skip-bad` would leave sound episodes out of every later training."""
    write_dataset(tmp_path / "d", Spec(version="v3.0", lengths=(5, 6), gop=3))
    patience = RetryPolicy(deadline=0.1, initial_backoff=0.01, max_backoff=0.02)
    with RangeServer(folder(tmp_path / "d", "/set")) as server:
        server.fault = lambda number, asked: "500" if part in asked.path else ""
        remote = RemoteOptions(cache=str(tmp_path / "cache"), retry=patience)
        with refused(500, where="", kind=SourceError) as caught:
            check_dataset(f"{server.url}/set", "rows", remote=remote)
    assert caught.value.transient
