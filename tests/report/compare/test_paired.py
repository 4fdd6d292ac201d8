"""Paired differences by hand, and of the files of a run."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from understudy.report.compare.intervals import paired_difference
from understudy.report.compare.page import compare_runs
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track import metrics_file
from understudy.train.validation.episode_sums import EpisodeSums


def sums(values: list[float], counts: list[float] | None = None, digest: str = "same") -> EpisodeSums:
    """One term `flow`, an episode a value; the last episode is of the source `b`."""
    count = len(values)
    return EpisodeSums(
        names=("a", "b"),
        source=np.array([0] * (count - 1) + [1]),
        episode=np.arange(count),
        samples=np.ones(count, int),
        sums={"flow": np.array(values)},
        counts={"flow": np.array(counts or [1.0] * count)},
        weights={"flow": 1.0},
        digest=digest,
    )


def test_paired_difference_by_hand() -> None:
    """Losses 3 and 2. The residuals (-2, -1, 3)/3 and (-2, 0, 2)/3 differ by (0, -1, 1)/3: se^2 = 3/2 * 2/9 = 1/3."""
    difference, interval = paired_difference(sums([1, 2, 6]), sums([0, 2, 4])) or (0, None)
    assert difference == pytest.approx(1)
    half = 4.302653 * 3**-0.5
    assert interval == pytest.approx([1 - half, 1 + half], abs=1e-6)


def test_paired_difference_of_a_constant_has_no_width() -> None:
    """The same hard episodes in both runs, one of them worse by 1 per element."""
    one, other = sums([2, 40, 9], [1, 2, 3]), sums([1, 38, 6], [1, 2, 3])
    assert paired_difference(one, other) == (pytest.approx(1), pytest.approx([1, 1]))


def test_paired_difference_of_a_source_or_an_episode() -> None:
    one, other = sums([1, 2, 6]), sums([0, 2, 4])
    assert paired_difference(one, other, "a") is not None
    assert paired_difference(one, other, "b") == (2, None)
    assert one.loss("a") == 1.5
    assert paired_difference(one, other, "c") is None


def test_paired_difference_needs_the_same_samples_and_terms() -> None:
    one = sums([1, 2, 6])
    assert paired_difference(one, sums([0, 2, 4], digest="other")) is None
    assert paired_difference(one, replace(one, weights={"flow": 2.0})) is None


def test_a_run_keeps_the_sums_of_its_validations(compared: Path) -> None:
    records = metrics_file.read(RunDir(compared).metrics, "val")
    assert len(records) == 2
    for record in records:
        found = EpisodeSums.read(RunDir(compared).episode_losses(record["step"]))
        assert found is not None
        assert found.loss() == pytest.approx(record["loss"], rel=1e-12)
        assert (len(found.episode), found.samples.sum()) == (record["episodes"], record["samples"])
        assert found.losses().min() < record["loss"] < found.losses().max()


def test_runs_that_validated_the_same_samples_are_paired(compared: Path, tmp_path: Path) -> None:
    """A file that is damaged, or of another validation of the step, gives no interval."""
    roots = [tmp_path / name for name in ("one", "two", "damaged", "stale")]
    for root in roots:
        shutil.copytree(compared, root)
    last = metrics_file.read(RunDir(compared).metrics, "val")[-1]
    RunDir(roots[2]).episode_losses(last["step"]).write_bytes(b"PK")
    lines = (roots[3] / "metrics.jsonl").read_text().splitlines()
    changed = [json.loads(line) for line in lines]
    changed[-1 - [line["kind"] for line in reversed(changed)].index("val")]["loss"] += 1.0
    (roots[3] / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    (group,) = compare_runs(roots)["validation"]
    assert group["differences"]["B"]["last"] == {"difference": 0.0, "interval": [0.0, 0.0]}
    assert group["differences"]["C"]["last"] == {"difference": 0.0, "interval": None}
    assert group["differences"]["D"]["last"]["difference"] == pytest.approx(-1)
    assert group["differences"]["D"]["last"]["interval"] is None
