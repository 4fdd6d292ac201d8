"""Recorded statistics that normalize values to far ones: the measure of a training's start."""

import json
from pathlib import Path

import numpy as np
import pytest

from understudy import EpisodeWriter
from understudy.config.train import TrainConfig
from understudy.train.data import given_figures
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import choose_normalization
from understudy_kit import override
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding

ACTION = "action"
STATE = "observation.state"
NAMES = ["shoulder", "elbow", "gripper"]


def recorded(root: Path, closed: float = 0.0) -> Path:
    """Two joints, and a gripper that is 0.02 times as noisy and closed (at 1) in a share of the
    rows.
    """
    rng = np.random.default_rng(3)
    features = {key: {"dtype": "float32", "shape": (3,), "names": NAMES} for key in (STATE, ACTION)}
    with EpisodeWriter(root, fps=10, features=features, robot_type="arm") as writer:
        for _ in range(4):
            for frame in range(200):
                row = rng.normal(size=3)
                row[2] = 1.0 if frame < 200 * closed else 0.02 * row[2]
                writer.add_frame({key: row.astype(np.float32) for key in features}, "move")
            writer.save_episode()
    return root


def change(root: Path, key: str, dim: int, **figures: float) -> None:
    path = root / "meta/stats.json"
    stats = json.loads(path.read_text())
    for name, value in figures.items():
        stats[key][name][dim] = value
    path.write_text(json.dumps(stats))


def far(root: Path) -> list[Finding]:
    return [
        finding
        for finding in check_dataset(root, "rows").findings
        if finding.rule == "statistics.far"
    ]


@pytest.mark.parametrize(
    ("mode", "figures"),
    [
        ("quantile", {"q01": -0.04, "q99": 0.04}),
        ("mean_std", {"std": 0.01}),
        ("mean_std", {"mean": 57.3}),
        ("min_max", {"min": -0.01, "max": 0.01, "q01": -0.01, "q99": 0.01}),
    ],
)
def test_check_names_the_dimensions_that_a_training_names(
    tmp_path: Path, mode: str, figures: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = recorded(tmp_path / "set")
    change(root, ACTION, 1, **figures)
    (finding,) = far(root)
    assert finding.severity == "warning"
    assert (finding.place.column, finding.place.dimension) == (ACTION, "elbow")
    assert mode in finding.message
    named: list[str] = []
    monkeypatch.setattr(
        given_figures.logger, "warning", lambda text, *values: named.append(text % values)
    )
    data = {
        "root": str(root),
        "val_fraction": 0.0,
        "control_mode": "joint",
        "stats": "recorded",
        "normalize": mode,
    }
    config = override(TrainConfig(), data=data).with_policy_defaults()
    monkeypatch.setattr(given_figures, "_mend", lambda settled, *_: settled)
    monkeypatch.setattr(given_figures, "ABSURD", np.inf)
    choose_normalization(config, open_data(config))
    (line,) = [line for line in named if "action[1] (elbow)" in line]
    assert "(elbow)" in finding.message
    assert "observation.state" not in line


@pytest.mark.parametrize("closed", [0.0, 0.005, 0.015, 0.3])
def test_figures_of_the_rows_are_silent_also_where_the_rows_are_rare(
    tmp_path: Path, closed: float
) -> None:
    assert not far(recorded(tmp_path / "set", closed))


def test_statistics_without_the_figures_of_a_mode_are_judged_by_the_others(tmp_path: Path) -> None:
    root = recorded(tmp_path / "set")
    path = root / "meta/stats.json"
    stats = json.loads(path.read_text())
    for key in (ACTION, STATE):
        del stats[key]["q01"]
    stats[STATE]["std"] = [figure / 57.3 for figure in stats[STATE]["std"]]
    path.write_text(json.dumps(stats))
    (finding,) = far(root)
    assert finding.place.column == STATE
    assert finding.measured == len(NAMES)
