"""Faults of sensor files are named by rule and place, and sound sensors of any clock raise no
alarm.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding
from understudy_tools.testing.sensors import IMU, Samples, add_sensor, jittered

LENGTHS = (30, 24, 36, 28, 30)  # frames at 10 fps
EACH = "sensors/imu/{episode_index}.parquet"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sensors") / "set"
    write_dataset(root, Spec(lengths=LENGTHS, cameras=()))
    return root


def regular(rate: float = 100) -> Samples:
    """Samples of a clock with 2 % of jitter."""
    rng = np.random.default_rng(4)
    found = {}
    for episode, length in enumerate(LENGTHS):
        times = np.arange(0, length / 10, 1 / rate)
        times = times + rng.uniform(0, 0.02 / rate, len(times))
        found[episode] = times, rng.normal(size=(len(times), 2)).astype(np.float32)
    return found


def findings(
    root: Path, samples: Samples, change: Callable[[Path], Any] | None = None, **entry: Any
) -> list[Finding]:
    """Findings about the sensor."""
    add_sensor(root, samples, group=100, **entry)
    if change is not None:
        change(root)
    report = check_dataset(root, "rows")
    json.dumps(report.to_json(), allow_nan=False)
    return [finding for finding in report.findings if finding.rule.startswith("sensors.")]


def only(found: list[Finding]) -> tuple[str, str, tuple[int, ...]]:
    """Rule, severity and episodes of the one finding, which names the sensor and a remedy."""
    assert len(found) == 1, found
    assert found[0].place.column == IMU
    assert found[0].fix
    return found[0].rule, found[0].severity, found[0].place.episodes


def touch() -> Samples:
    """A switch that closes in some episodes alone."""
    found = regular(20)
    for episode, (_, values) in found.items():
        values[:] = 0
        values[10 : 10 + 5 * (episode % 3), 0] = 1
    return found


def bursts() -> Samples:
    """Samples that come in groups."""
    found = {}
    for episode, length in enumerate(LENGTHS):
        times = (np.arange(0, length / 10, 0.2)[:, None] + np.arange(4) * 0.01).reshape(-1)
        found[episode] = times, np.random.default_rng(episode).normal(size=(len(times), 2))
    return found


@pytest.mark.parametrize(
    "samples",
    [
        regular(),
        regular(3),
        jittered(LENGTHS, 200),
        jittered(LENGTHS, 7, seed=3),
        touch(),
        bursts(),
    ],
    ids=["regular", "slow", "random", "slow and random", "switch", "bursts"],
)
def test_sound_sensors_raise_no_alarm(root: Path, samples: Samples) -> None:
    assert findings(root, samples) == []
    assert findings(root, samples, path=EACH) == []


def test_check_counts_sensor_files(root: Path) -> None:
    add_sensor(root, regular(), path=EACH)
    assert check_dataset(root, "rows").read["sensor_files"] == len(LENGTHS)


def test_missing_and_broken_sensor_files(root: Path) -> None:
    samples = regular()
    found = findings(root, samples, lambda root: (root / "sensors/imu.parquet").unlink())
    assert only(found) == ("sensors.file", "error", ())
    assert found[0].place.file == "sensors/imu.parquet"
    found = findings(
        root, samples, lambda root: (root / "sensors/imu/2.parquet").unlink(), path=EACH
    )
    assert only(found) == ("sensors.file", "error", (2,))
    found = findings(
        root, samples, lambda root: (root / "sensors/imu/3.parquet").write_bytes(b"PAR1"), path=EACH
    )
    assert only(found) == ("sensors.file", "error", (3,))


def test_samples_of_other_and_of_no_episodes(root: Path) -> None:
    samples = regular()
    assert only(findings(root, samples | {9: samples[0]})) == ("sensors.episode", "error", ())
    del samples[1]
    assert only(findings(root, samples)) == ("sensors.episode", "warning", (1,))


def planted(
    change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]], episode: int = 2
) -> Samples:
    samples = regular()
    samples[episode] = change(*samples[episode])
    return samples


def backwards(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    times[150:] -= 0.3
    return np.append(times, times[-1] + np.arange(1, 30) / 100), np.concatenate(
        [values, values[:29]]
    )


def stuck(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values[:, 1] = 0.5
    return times, values


def nan(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values[77, 0] = np.nan
    return times, values


def infinite(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values[77:79, 0] = np.inf
    times[90:92] = np.inf
    return times, values


def gap(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keep = np.r_[0:100, 104 : len(times)]
    return times[keep], values[keep]


@pytest.mark.parametrize(
    ("change", "rule", "severity"),
    [
        (backwards, "sensors.order", "error"),
        (gap, "sensors.gap", "warning"),
        (lambda times, values: (times[:200], values[:200]), "sensors.extent", "warning"),
        (lambda times, values: (times[120:], values[120:]), "sensors.extent", "warning"),
        (stuck, "sensors.constant", "warning"),
        (nan, "sensors.finite", "error"),
        (infinite, "sensors.finite", "error"),
    ],
    ids=["backwards", "gap", "short", "late", "constant", "nan", "infinite"],
)
def test_faults_of_one_episode(root: Path, change: Any, rule: str, severity: str) -> None:
    found = findings(root, planted(change))
    assert only(found) == (rule, severity, (2,))
    if rule == "sensors.constant":
        assert found[0].place.dimension == "1"
    assert only(findings(root, planted(change), path=EACH))[:2] == (rule, severity)


def test_a_sensor_that_never_changes(root: Path) -> None:
    samples = {
        episode: (times, np.ones_like(values)) for episode, (times, values) in regular().items()
    }
    assert only(findings(root, samples)) == (
        "sensors.constant",
        "warning",
        tuple(range(len(LENGTHS))),
    )
