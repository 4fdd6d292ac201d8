"""Idle frames: each dimension of the action against its own speed, whatever its unit."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.testing.datasets import Spec, edit_column, edit_json, write_dataset
from understudy_kit import main
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.row_facts import IdleCounter, read_rows


def episodes(unit: float = 1.0) -> list[np.ndarray]:
    """Four episodes of 60 frames, of which one dimension rests for 20 and both rest for 10; and one
    of a frame.
    """
    found = []
    for seed in range(4):
        steps = np.random.default_rng(seed).uniform(0.5, 1, (60, 2))
        steps[10:30, 0] = 0.001
        steps[20:30, 1] = 0.002
        found.append(np.cumsum(steps, axis=0) * [1.0, unit])
    return [*found, np.zeros((1, 2))]


def idle(of: list[np.ndarray]) -> list[int]:
    counter = IdleCounter(np.zeros(of[0].shape[1], bool))
    for row, values in enumerate(of):
        counter.add(row, values)
    return counter.result(len(of) + 1)[0].tolist()


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_idle_frames_do_not_depend_on_units(unit: float) -> None:
    assert idle(episodes(unit)) == [10, 10, 10, 10, 0, 0]


def test_idle_frames_of_a_large_dataset_are_measured_on_its_first_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path / "set", Spec("v2.1", lengths=(60,) * 4, cameras=()))
    fast = episodes()
    fast[2] = fast[2] * 100  # faster than the speed that is known by then
    for values, path in zip(fast, sorted((tmp_path / "set/data").rglob("episode_*.parquet"))):
        edit_column(path, "action", lambda old, values=values: values.astype(np.float32).tolist())
        edit_column(path, "observation.state", lambda old: [[0.0] * 3] * len(old))
    assert read_rows(Catalog.open(tmp_path / "set")).idle[2] == 10
    monkeypatch.setattr("understudy_tools.check.row_facts.KNOWN", 60)
    assert read_rows(Catalog.open(tmp_path / "set")).idle.tolist() == [10, 10, 0, 10]


def test_a_robot_that_never_moves_is_idle() -> None:
    assert idle([np.ones((5, 2)), np.ones((3, 2))]) == [4, 2, 0]
    assert idle([np.array([[0.0], [np.nan], [np.inf], [np.inf], [1.0], [1.0]])]) == [1, 0]


def recording(root: Path, action: str, seen: bool, unit: float = 1.0) -> Path:
    """Two episodes of 60 frames: a command of 0.3 in frames 0 to 19 and 40 to 59, and none between;
    with its place.
    """
    features = {"action": {"dtype": "float32", "shape": (2,), "names": [f"{action}_x", "gripper"]}}
    features |= (
        {"observation.state": {"dtype": "float32", "shape": (1,), "names": ["x"]}} if seen else {}
    )
    with EpisodeWriter(root, fps=20, features=features) as writer:
        for _ in range(2):
            x = 0.0
            for frame in range(60):
                command = 0.0 if 20 <= frame < 40 else 0.3 * unit
                row = {"action": np.array([command, 1.0], np.float32)}
                writer.add_frame(
                    row | ({"observation.state": np.array([x], np.float32)} if seen else {}),
                    task="go",
                )
                x += command
            writer.save_episode()
    return root


def kept(root: Path, out: Path) -> tuple[dict[str, list[list[int]]], float]:
    """Ranges that `understudy ranges` keeps, and the share of idle frames that it prints."""
    with redirect_stdout(StringIO()) as printed:
        assert main(["ranges", str(root), "--output", str(out), "--min-idle", "5", "--json"]) == 0
    return json.loads(out.read_text()), json.loads(printed.getvalue())["idle_share"]


@pytest.mark.parametrize("unit", [1.0, 1e-4])
@pytest.mark.parametrize(
    ("action", "seen"), [("target", True), ("delta", True), ("delta", False), ("vel", False)]
)
def test_a_robot_that_moves_by_constant_differences_is_not_idle(
    action: str, seen: bool, unit: float, tmp_path: Path
) -> None:
    root = recording(tmp_path / "set", action, seen, unit)
    ranges, share = kept(root, tmp_path / "keep.json")
    assert check_dataset(root, "rows").idle_share == pytest.approx(share)
    # Frame 20 still changes: its command, or its state by the command before.
    assert share == pytest.approx(19 / 59)
    assert ranges == {"0": [[0, 26], [40, 60]], "1": [[0, 26], [40, 60]]}


def test_constant_actions_without_a_state_or_a_name_are_idle(tmp_path: Path) -> None:
    assert check_dataset(
        recording(tmp_path / "set", "target", False), "rows"
    ).idle_share == pytest.approx(57 / 59)
    edit_json(tmp_path / "set/meta/info.json", lambda info: info.update(control_mode="ee_delta"))
    assert check_dataset(tmp_path / "set", "rows").idle_share == pytest.approx(19 / 59)


def test_check_and_ranges_agree_on_idle_frames(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(12, 9, 14, 11), cameras=()))
    _, share = kept(tmp_path / "set", tmp_path / "keep.json")
    assert check_dataset(tmp_path / "set", "rows").idle_share == pytest.approx(share)


@pytest.mark.long
@pytest.mark.parametrize("name", ["g1_v21", "gr1_sim_v20"])
def test_check_and_ranges_agree_on_real_recordings(
    name: str, real_data: Path, tmp_path: Path
) -> None:
    with redirect_stdout(StringIO()) as printed:
        assert (
            main(
                ["ranges", str(real_data / name), "--output", str(tmp_path / "keep.json"), "--json"]
            )
            == 0
        )
    facts = json.loads(printed.getvalue())
    assert facts["frames_kept"] == facts["frames"]
    report = check_dataset(real_data / name, "rows")
    assert report.idle_share == pytest.approx(facts["idle_share"])
    assert not [one for one in report.findings if one.severity == "error"]
