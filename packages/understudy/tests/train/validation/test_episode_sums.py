"""Ranking of the episodes of a validation, and their file, by hand."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.episode_sums import EpisodeSums, read_validated


def sums(values: list[float], counts: list[float]) -> EpisodeSums:
    """One term `flow`, an episode a value: 10, 11, … of one source."""
    number = len(values)
    return EpisodeSums(
        names=("a",),
        source=np.zeros(number, int),
        episode=np.arange(10, 10 + number),
        samples=np.ones(number, int),
        sums={"flow": np.array(values)},
        counts={"flow": np.array(counts)},
        weights={"flow": 2.0},
        digest="",
    )


def test_largest_ranks_means_not_sums() -> None:
    found = sums([6.0, 5.0, 8.0, 5.0], [3, 1, 8, 1])  # means 2, 5, 1, 5
    assert found.largest(3).tolist() == [1, 3, 0]
    assert found.largest(9).tolist() == [1, 3, 0, 2]
    assert found.largest(0).tolist() == []


def test_largest_starts_with_losses_that_are_not_finite_and_omits_empty_episodes() -> None:
    found = sums([6.0, 0.0, float("nan"), float("inf")], [1, 0, 1, 1])
    assert found.largest(9).tolist() == [2, 3, 0]


def test_read_validated_takes_the_latest_file_of_a_logged_validation(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    old = sums([6.0, 5.0], [3, 1])
    stale = sums([1.0, 1.0], [1, 1])
    old.write(run.episode_losses(5))
    stale.write(run.episode_losses(10))
    val = [{"step": 5, "loss": 2 * 11 / 4}, {"step": 10, "loss": 0.125}, {"step": 15, "loss": 1.0}]
    step, found = read_validated(run, val) or (0, stale)
    assert step == 5
    assert found.sums["flow"].tolist() == [6.0, 5.0]
    assert read_validated(run, val[1:]) is None
    replace(stale, sums={"flow": np.array([float("nan"), 1.0])}).write(run.episode_losses(10))
    assert (read_validated(run, json.loads('[{"step": 10, "loss": null}]')) or (0,))[0] == 10


def test_digest_is_of_names_frames_and_weights() -> None:
    two: dict[str, Any] = {
        "names": ("a",),
        "source": np.zeros(2),
        "episode": np.arange(2),
        "frame": np.zeros(2),
    }
    changes: list[dict[str, Any]] = [
        {},
        {"names": ("b",)},
        {"frame": np.arange(2)},
        {"weight": np.array([1.0, 2.0])},
    ]
    samples: list[Any] = [
        SimpleNamespace(**{"weight": np.ones(2)} | two | change) for change in changes
    ]
    assert len({EpisodeSums.from_samples({}, {}, held).digest for held in samples}) == len(samples)
