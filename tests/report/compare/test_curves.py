"""Thinned curves keep their peaks and stay small."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.pages import blocks_of, charts_of, html_of
from understudy.report.compare import runs
from understudy.report.compare.page import render_curves
from understudy.report.curves import POINTS, thin


def test_thin_keeps_extremes_and_leaves_out_what_is_not_finite() -> None:
    values = np.ones(100_000)
    values[77_123], values[5], values[6] = 50.0, -3.0, np.nan
    curve = thin(np.arange(1, 100_001), values)
    assert len(curve["step"]) == POINTS
    assert (max(curve["high"]), min(curve["low"])) == (50.0, -3.0)
    assert curve["step"][-1] == 100_000
    at = curve["high"].index(50.0)
    assert curve["step"][at - 1] < 77_124 <= curve["step"][at]


def test_thin_of_a_short_curve_has_every_value() -> None:
    curve = thin(np.array([1, 2, 3]), np.array([1.0, 5.0, 3.0]))
    assert curve["step"] == [1, 2, 3]
    assert curve["low"] == curve["high"] == [1.0, 5.0, 3.0]
    assert curve["value"] == [3.0, 3.0, 4.0]  # a moving mean over three
    assert thin(np.array([1]), np.array([np.nan]))["step"] == []


@pytest.fixture
def run(compared: Path) -> runs.Run:
    return runs.read_runs([compared])[0]


@pytest.mark.long
def test_page_of_four_runs_of_a_million_steps_is_small(run: runs.Run) -> None:
    steps = np.arange(1, 1_000_001)
    noise = np.random.default_rng(0).random(len(steps))
    logs = steps[::10]
    many = [
        replace(
            run,
            letter=letter,
            train={"step": steps, "loss": noise, "grad_norm": noise, "lr": noise},
            speed={"step": logs, **dict.fromkeys(runs.SPEED, noise[::10]), "seconds": logs / 7},
        )
        for letter in "ABCD"
    ]
    page = html_of(*render_curves(many, dict.fromkeys("ABCD", "#123456")))
    assert len(page) < 1_000_000
    line = charts_of(page)[0]["lines"][3]
    assert (line["name"], len(line["value"]), [len(axis) for axis in line["x"]]) == ("D", POINTS, [POINTS] * 3)


def test_time_adds_processes_and_samples_follow_the_checkpoints(run: runs.Run) -> None:
    """The second process starts at zero seconds; the batch was 4 until step 10, then 8."""
    speed = {"step": np.array([5, 10, 15, 20]), "seconds": np.array([5.0, 12.0, 3.0, 6.0])}
    resumed = replace(
        run,
        speed={**run.speed, **speed},
        positions=np.array([[10, 40], [20, 120]]),
        config=replace(run.config, batch_size=8),
    )
    assert resumed.seconds_at(np.array([5, 10, 15, 20])).tolist() == [5, 12, 15, 18]
    assert resumed.samples_at(np.array([0, 5, 10, 15, 20, 25])).tolist() == [0, 20, 40, 80, 120, 160]
    assert np.isnan(replace(run, speed={key: np.array([]) for key in run.speed}).seconds_at(np.array([1]))).all()


def test_curves_leave_out_a_run_without_values(run: runs.Run) -> None:
    empty = replace(run, letter="B", train={key: values[:0] for key, values in run.train.items()}, val=[])
    drawn = list(blocks_of("chart", render_curves([run, empty], {"A": "#123456", "B": "#654321"})))
    lines = {chart["label"]: [line["name"] for line in chart["lines"]] for chart in drawn}
    assert lines["Training loss"] == ["A"]
    assert "Success of rollouts" not in lines
    [hours] = [chart["lines"][0]["x"][2] for chart in drawn if chart["label"] == "Training loss"]
    assert hours == pytest.approx(run.seconds_at(run.train["step"]) / 3600, rel=1e-4)
