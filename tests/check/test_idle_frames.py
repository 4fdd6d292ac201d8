"""Idle frames: each dimension of the action against its own speed, whatever its unit."""

from pathlib import Path

import numpy as np
import pytest

from support.datasets import Spec, write_dataset
from understudy.check.idle_frames import IdleCounter
from understudy.check.run import check_dataset
from understudy.data.format.catalog import Catalog
from understudy.data.selection.motion import episode_values, motion_thresholds


def episodes(unit: float = 1.0) -> list[np.ndarray]:
    """Four episodes of 60 frames, of which one dimension rests for 20 and both rest for 10; and one of a frame."""
    found = []
    for seed in range(4):
        steps = np.random.default_rng(seed).uniform(0.5, 1, (60, 2))
        steps[10:30, 0] = 0.001
        steps[20:30, 1] = 0.002
        found.append(np.cumsum(steps, axis=0) * [1.0, unit])
    return [*found, np.zeros((1, 2))]


def idle(of: list[np.ndarray]) -> list[int]:
    counter = IdleCounter()
    for row, values in enumerate(of):
        counter.add(row, values)
    return counter.result(len(of) + 1).tolist()


@pytest.mark.parametrize("unit", [1.0, 1e-6, 1e6])
def test_idle_frames_do_not_depend_on_units(unit: float) -> None:
    assert idle(episodes(unit)) == [10, 10, 10, 10, 0, 0]


def test_idle_frames_of_a_large_dataset_are_measured_on_its_first_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.check.idle_frames.KNOWN", 60)
    fast = episodes()
    fast[2] = fast[2] * 100  # faster than the speed that is known by then
    assert idle(fast) == [10, 10, 0, 10, 0, 0]
    monkeypatch.undo()
    assert idle(fast)[2] == 10


def test_a_robot_that_never_moves_is_idle() -> None:
    assert idle([np.ones((5, 2)), np.ones((3, 2))]) == [4, 2, 0]
    assert idle([np.array([[0.0], [np.nan], [np.inf], [np.inf], [1.0], [1.0]])]) == [1, 0]


def test_check_and_ranges_agree_on_motion(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec(lengths=(12, 9, 14, 11), cameras=()))
    catalog = Catalog.open(root)
    threshold = motion_thresholds(catalog, ["action"], share=0.05)
    steps = [np.abs(np.diff(values.astype(np.float64), axis=0)) for _, values in episode_values(catalog, ["action"])]
    wanted = sum(int((own < threshold).all(axis=1).sum()) for own in steps) / sum(map(len, steps))
    assert check_dataset(root, "none").idle_share == pytest.approx(wanted)
