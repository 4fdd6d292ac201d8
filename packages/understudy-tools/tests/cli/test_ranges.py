"""`understudy ranges`: the file keeps exactly the frames that the rule finds."""

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base.testing.refusals import absent, warned
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.servers import RangeServer, folder
from understudy_kit import main
from understudy_tools import motion
from understudy_tools.motion import IdleRule, non_idle_ranges

DATA = os.environ.get("UNDERSTUDY_TEST_DATA")
STATE = "observation.state"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(
        tmp_path / "d",
        Spec(
            lengths=(40, 0, 9, 33, 60), ids=(0, 1, 4, 5, 8), cameras=(), recorded_as=True, rich=True
        ),
    )
    for file in (tmp_path / "d" / "data").glob("chunk-*/*.parquet"):
        table = pq.read_table(file)
        stands = [
            still(e, f)
            for e, f in zip(*(table[k].to_pylist() for k in ("episode_index", "frame_index")))
        ]
        at = table.column_names.index(STATE)
        values = np.where(
            np.asarray(stands)[:, None], 0.0, np.asarray(table[STATE].to_pylist()) + 9
        ).astype(np.float32)
        values[:, 1] *= np.arange(len(values)) % 4 > 0
        table = table.set_column(
            at, table.schema.field(STATE), pa.array(values.tolist(), table.schema.field(STATE).type)
        )
        pq.write_table(table, file)
    return tmp_path / "d"


def still(episode: int, frame: int) -> bool:
    """Whether the robot is still: in some frames of each episode, and always in the one of nine
    frames.
    """
    return episode == 4 or (frame + episode) % 17 < 6


def kept_frames(data: EpisodeArrays) -> set[tuple[int, int]]:
    return {(e, f) for e, start, stop in data.segments.tolist() for f in range(start, stop)}


def expected(
    root: Path | str, key: str, rule: IdleRule, dims: list[int] | None = None
) -> set[tuple[int, int]]:
    """By the samples of the dataset, one episode after the other."""
    data = EpisodeArrays(root, keys=[key])
    want = set()
    for episode in np.unique(data.segments[:, 0]).tolist():
        length = int(data.catalog.episodes.lengths[data.catalog.episodes.row_of(episode)])
        values = data.batch(np.full(length, episode), np.arange(length))[key].reshape(length, -1)
        ranges = non_idle_ranges(values[:, dims] if dims else values, rule)
        want |= {(episode, frame) for start, stop in ranges for frame in range(start, stop)}
    return want


RULE = ("--min-idle", "2", "--min-moving", "4", "--cut-last", "1")


@pytest.mark.parametrize(
    ("flags", "dims", "rule"),
    [
        ((), None, IdleRule(0.4, True, 2, 4, 1)),
        (("--preset", "droid"), None, IdleRule(0.4, True, 2, 4, 1, settled=False)),
        (("--dims", "1"), [1], IdleRule(0.4, True, 2, 4, 1)),
        (("--no-difference",), None, IdleRule(0.4, False, 2, 4, 1)),
        (("--name-by", "episode"), None, IdleRule(0.4, True, 2, 4, 1)),
    ],
)
def test_ranges_keeps_the_frames_of_the_rule(  # type: ignore[no-untyped-def]
    root: Path, tmp_path: Path, flags, dims, rule, capsys
) -> None:
    out = tmp_path / "keep.json"
    assert (
        main(
            [
                "ranges",
                str(root),
                "--output",
                str(out),
                "--keys",
                STATE,
                "--threshold",
                "0.4",
                *RULE,
                *flags,
            ]
        )
        == 0
    )
    content = json.loads(out.read_text())
    droid = "--name-by" not in flags
    assert next(iter(content)) == ("gs://lab/day-0--/data/run-0.h5" if droid else "0")
    assert len(content) == 4  # the episode without frames has no key
    want = expected(root, STATE, rule, dims)
    data = EpisodeArrays(root, keep_ranges=out, keep_rule="start")
    assert kept_frames(data) == want
    assert want
    assert len(want) < 142
    report = data.keep_report
    assert report is not None
    assert (report.matched, report.unmatched, report.unnamed, report.samples) == (
        4,
        (),
        0,
        len(want),
    )
    assert f"{len(want):,} of 142 frames kept" in capsys.readouterr().out


@pytest.mark.parametrize("rule", [[], ["--threshold", "0.5"]])
def test_ranges_are_equal_for_any_number_of_processes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: list[str]
) -> None:
    monkeypatch.setattr(motion, "PART_ROWS", 40)
    for name, flags in (("one", []), ("two", ["--workers", "2", "--work", str(tmp_path / "work")])):
        assert (
            main(
                [
                    "ranges",
                    str(root),
                    "--output",
                    str(tmp_path / name),
                    "--warn-above",
                    "1",
                    *rule,
                    *flags,
                ]
            )
            == 0
        )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    # shares of speeds need a pass before
    assert len(list((tmp_path / "work").glob("*.part"))) == (3 if rule else 6)


def test_ranges_names_episodes_by_id_if_they_share_texts(tmp_path: Path) -> None:
    write_dataset(
        tmp_path / "d", Spec(version="v2.1", lengths=(20, 30), cameras=(), recorded_as=True)
    )
    path = tmp_path / "d/meta/episodes.jsonl"
    path.write_text(path.read_text().replace("day-1", "day-0").replace("run-1", "run-0"))
    assert main(["ranges", str(tmp_path / "d"), "--output", str(tmp_path / "keep.json")]) == 0
    assert list(json.loads((tmp_path / "keep.json").read_text())) == ["0", "1"]


def test_ranges_of_a_remote_dataset(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images are not read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = ("--keys", STATE, "--threshold", "0.4", *RULE)
    with RangeServer(folder(root, "/d")) as server:
        assert (
            main(["ranges", f"{server.url}/d", "--output", str(tmp_path / "far.json"), *flags]) == 0
        )
    assert main(["ranges", str(root), "--output", str(tmp_path / "near.json"), *flags]) == 0
    assert (tmp_path / "far.json").read_text() == (tmp_path / "near.json").read_text()


def test_ranges_refuses_wrong_settings(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.json"
    there.write_text("mine")
    out = str(tmp_path / "keep.json")
    for flags, message in (
        (["--output", str(there)], " exists; name another"),
        ([], "output: required"),
        (["--output", str(tmp_path / "no" / "keep.json")], "is no folder"),
        (["--output", out, "--keys", "actoin"], "unknown column"),
        (["--output", out, "--keys", "observation.note"], "is string|unknown column"),
        (
            ["--output", out, "--keys", "action", "--dims", "2"],
            "dims: 2 exceeds the 2 dimensions of action",
        ),
        (["--output", out, "--dims", "0"], "dims: name their column"),
        (
            ["--output", out, "--preset", "droid", "--threshold", "1e9"],
            "no frame of 142 would be kept",
        ),
        (["--output", out, "--threshold", "0"], "threshold"),
    ):
        assert main(["ranges", str(root), *flags]) == 2, flags
        error = capsys.readouterr().err
        assert any(words in error for words in message.split("|")), error
    assert there.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["there.json"]
    write_dataset(tmp_path / "plain", Spec(cameras=()))
    assert main(["ranges", str(tmp_path / "plain"), "--output", out, "--name-by", "droid"]) == 2
    assert "recording_folderpath" in capsys.readouterr().err


def test_check_reports_keep_ranges(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = tmp_path / "keep.json"
    keep.write_text(json.dumps({"gs://lab/day-0--/data/run-0.h5": [[0, 20]], "x--y": [[0, 9]]}))
    words = ["check", str(root), "--depth", "metadata", "--keep-ranges", str(keep)]
    assert main([*words, "--page", str(tmp_path / "page.html"), "--shown", "0"]) == 0
    assert (
        "1 of 2 keys match an episode of this dataset, 1 of its 4 episodes have a key"
        in capsys.readouterr().out
    )
    assert (
        "keys match no episode of this dataset: &#39;x--y&#39;"
        in (tmp_path / "page.html").read_text()
    )
    for flags, samples in (
        ([], 20),
        (["--keep-rule", "window"], 20),
        (["--keep-rule", "window", "--chunk-size", "16"], 5),
        (["--keep-rule", "start", "--chunk-size", "16"], 20),
    ):
        assert main([*words, "--json", *flags]) == 0
        facts = json.loads(capsys.readouterr().out)["contents"]["keep_ranges"]
        assert (facts["in_ranges"], facts["frames"], facts["unmatched"]) == (20, 142, ["x--y"])
        assert facts["samples"] == samples
    assert main(["check", str(root), "--chunk-size", "16", "--json"]) == 2
    assert "--keep-ranges" in capsys.readouterr().err


def write_rows(
    root: Path, columns: Mapping[str, Callable[[np.ndarray], tuple[np.ndarray, ...]]]
) -> None:
    """Overwrite numeric columns by functions of the frame number, one array per dimension, and 0 in
    further ones.
    """
    for file in (root / "data").glob("chunk-*/*.parquet"):
        table = pq.read_table(file)
        frame = np.asarray(table["frame_index"].to_pylist())
        for key, function in columns.items():
            field = table.schema.field(key)
            values = np.stack(function(frame), 1).astype(np.float32)
            values = np.pad(values, ((0, 0), (0, len(table[key][0]) - values.shape[1])))
            table = table.set_column(
                table.column_names.index(key), field, pa.array(values.tolist(), field.type)
            )
        pq.write_table(table, file)


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(
    ("seen", "unit"), [(True, 1), (False, 1), (True, 1e-5), (False, 1e-5), (True, 1e4)]
)
def test_ranges_keeps_a_grasp_with_a_still_arm(
    version: str, seen: bool, unit: float, tmp_path: Path
) -> None:
    """The arm (dimension 0) waits while the gripper closes: the state shows it for 20 frames, or
    only the command does, in one frame. A later wait, in which nothing moves, is left out. The
    gripper's unit is not the arm's.
    """
    root = tmp_path / "d"
    lengths = (60, 50)
    write_dataset(root, Spec(version=version, lengths=lengths, cameras=(), fps=10))

    def arm(frame: np.ndarray) -> np.ndarray:
        return np.minimum(frame, 10) + np.maximum(frame - 30, 0) - np.maximum(frame - 35, 0)

    def gripper(frame: np.ndarray) -> np.ndarray:
        return unit * np.clip(frame - 10, 0, 20) / 20 if seen else np.zeros(len(frame))

    write_rows(
        root, {STATE: lambda f: (arm(f), gripper(f)), "action": lambda f: (arm(f), unit * (f > 10))}
    )
    out = tmp_path / "keep.json"
    assert main(["ranges", str(root), "--output", str(out)]) == 0
    # Commanded to close at frame 11; a second later, at 22, all has been still for 10 frames. The
    # arm moves until 35.
    first = [[0, 46]] if seen else [[0, 22], [31, 46]]
    assert json.loads(out.read_text()) == {"0": first, "1": first}


def test_ranges_print_json_of_a_dimension_that_never_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its threshold is null: JSON has no infinity."""
    root = tmp_path / "d"
    write_dataset(root, Spec(lengths=(60,), cameras=(), fps=10))

    def wait(frames: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.maximum(frames - 30, 0),)

    write_rows(root, {STATE: wait, "action": wait})
    assert main(["ranges", str(root), "--output", str(tmp_path / "keep.json"), "--json"]) == 0
    text = capsys.readouterr().out
    assert isinstance(json.loads(text), dict)
    assert "null" in text
    assert "Infinity" not in text


def test_ranges_names_the_episodes_that_lose_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "d"
    write_dataset(root, Spec(lengths=(15, 60, 24), ids=(0, 3, 4), cameras=(), fps=10))
    write_rows(root, dict.fromkeys((STATE, "action"), lambda f: (np.minimum(f, 9),)))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert (
            main(["ranges", str(root), "--output", str(tmp_path / "a.json"), "--warn-above", "1"])
            == 0
        )
        text = capsys.readouterr().out
        assert not seen
    # The first second of the pause from frame 10 on stays: frame 20 is the first that is left out.
    assert "2 of 3 episodes lose frames" in text
    assert "episode 3: 40 of 60 frames left out (66.7%)" in text
    assert "episode 4: 4 of 24 frames left out (16.7%)" in text
    flags = ["--output", str(tmp_path / "b.json"), "--json"]
    with warned("3 (67%)", "30%") as named:
        assert main(["ranges", str(root), *flags]) == 0
    assert any(not absent(str(warning.message), "44.4%") for warning in named), (
        "the share of the dataset"
    )
    assert json.loads(capsys.readouterr().out)["cut"] == [[3, 60, 20], [4, 24, 20]]


def test_ranges_keeps_all_of_the_demonstration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mujoco", reason="the extra `demo` is not installed")
    root = tmp_path / "table"
    out = tmp_path / "keep.json"
    assert (
        main(
            [
                "record",
                "--output-dir",
                str(root),
                "--episodes",
                "4",
                "--image-size",
                "16",
                "--codec",
                "libx264",
            ]
        )
        == 0
    )
    assert main(["ranges", str(root), "--output", str(out), "--preset", "droid"]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    frames = Catalog.open(root).episodes.frames
    assert "no frame is in a pause" in error
    assert f"of {frames:,} frames" in error
    assert not out.exists()
    assert main(["ranges", str(root), "--output", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["frames_kept"], facts["frames_in_pauses"], facts["episodes_without"]) == (
        frames,
        0,
        0,
    )
    data = EpisodeArrays(root, keep_ranges=out, keep_rule="window")
    assert len(data) == frames
    closing = data.batch(*frames_of(data))["action"][:, -1]
    episode = frames_of(data)[0]
    grasps = np.flatnonzero((np.diff(closing) != 0) & (np.diff(episode) == 0))
    assert set(episode[grasps].tolist()) == set(episode.tolist()), "each episode has a grasp"


def frames_of(data: EpisodeArrays) -> tuple[np.ndarray, np.ndarray]:
    """Episode and number of each kept frame."""
    kept = sorted(kept_frames(data))
    return np.array([episode for episode, _ in kept]), np.array([frame for _, frame in kept])


@pytest.mark.skipif(DATA is None, reason="UNDERSTUDY_TEST_DATA names no folder of real datasets")
@pytest.mark.parametrize("name", ["g1_v30", "g1_v21", "gr1_sim_v20"])
def test_ranges_of_real_recordings(name: str, tmp_path: Path) -> None:
    root = f"{DATA}/{name}"
    out = tmp_path / "keep.json"
    assert (
        main(["ranges", root, "--output", str(out), "--preset", "droid", "--threshold", "0.01"])
        == 0
    )
    data = EpisodeArrays(root, keep_ranges=out, keep_rule="start", keys=["action"])
    assert kept_frames(data) == expected(root, "action", replace(IdleRule.droid(), threshold=0.01))
    assert 0 < len(data) < Catalog.open(root).episodes.frames
    out.unlink()
    assert main(["ranges", root, "--output", str(out)]) == 0
    assert len(EpisodeArrays(root, keep_ranges=out)) == Catalog.open(root).episodes.frames
