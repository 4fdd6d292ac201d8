"""Comparison of runs: intervals by hand and from published tables, paired differences, success of the same tasks."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.report.compare.intervals import loss_interval, paired_difference, success_difference, t_quantile
from understudy.report.compare.page import compare_runs
from understudy.report.compare.results import success_rates
from understudy.report.compare.runs import read_runs
from understudy.rollout.intervals import Z95, wilson_interval
from understudy.rollout.result import PROMPT
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track import metrics_file
from understudy.train.validation.episode_sums import EpisodeSums


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (29, 2.0452), (120, 1.9799)],
)
def test_t_quantile_is_that_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(degrees) == pytest.approx(quantile, abs=6e-5)


def test_t_quantile_approaches_the_normal_one() -> None:
    assert t_quantile(2000) == pytest.approx(Z95, abs=1.3e-3)
    assert t_quantile(10**9) == pytest.approx(Z95, abs=1e-12)


def test_loss_interval_counts_episodes() -> None:
    """Three episodes have two degrees of freedom."""
    low, high = loss_interval(2.0, 0.5, 3) or (0, 0)
    assert (low, high) == pytest.approx((2 - 4.302653 * 0.5, 2 + 4.302653 * 0.5), abs=1e-6)
    assert loss_interval(2.0, None, 1) is None
    assert loss_interval(None, 0.5, 3) is None


def test_success_difference_is_newcombes_example() -> None:
    """56/70 - 48/80, method 10 of Newcombe (1998), table II."""
    difference, interval = success_difference((56, 70), (48, 80))
    assert difference == pytest.approx(0.2)
    assert interval == pytest.approx((0.0524, 0.3339), abs=5e-5)
    swapped, other = success_difference((48, 80), (56, 70))
    assert (swapped, *other) == pytest.approx((-0.2, -interval[1], -interval[0]))


def test_success_difference_of_equal_extremes_is_no_point() -> None:
    """Ten of ten against ten of ten: the textbook interval has no width."""
    difference, (low, high) = success_difference((10, 10), (10, 10))
    assert difference == 0
    assert low < -0.2 < 0.2 < high
    with pytest.raises(ValueError, match="0"):
        success_difference((0, 0), (1, 2))
    assert not math.isnan(low)


# -- paired differences by hand, and of the files of a run ----------


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


# -- success of rollouts: intervals and differences of the same tasks ----------


def result(seed: int, **tasks: tuple[int, int]) -> dict[str, Any]:
    def rate(successes: int, episodes: int) -> dict[str, int]:
        return {"successes": successes, "episodes": episodes}

    total = [sum(column) for column in zip(*tasks.values())]
    rates = {task: rate(*counts) for task, counts in tasks.items()}
    return {"world": "tabletop", "seed": seed, "swap_text": False, "success": rate(*total), "tasks": rates}


@pytest.fixture
def roots(compared: Path, tmp_path: Path) -> list[Path]:
    for name in "ab":
        shutil.copytree(compared, tmp_path / name)
        (tmp_path / name / "rollouts").mkdir()
    return [tmp_path / name for name in "ab"]


def write(root: Path, *results: dict[str, Any]) -> None:
    for each in results:
        (root / f"rollouts/seed{each['seed']}.json").write_text(json.dumps(each))


def test_success_of_seeds_is_pooled_and_compared_by_task(roots: list[Path]) -> None:
    write(roots[0], result(0, lift=(20, 30), push=(5, 10)), result(1, lift=(36, 40), push=(5, 10)))
    write(roots[1], result(0, lift=(48, 80), push=(1, 10)))
    (entry,) = success_rates(read_runs(roots))
    assert list(entry["tasks"]) == ["lift", "push", "all"]
    lift = entry["tasks"]["lift"]
    assert (lift["rates"]["A"]["successes"], lift["rates"]["A"]["episodes"]) == (56, 70)
    assert (lift["rates"]["A"]["low"], lift["rates"]["A"]["high"]) == wilson_interval(56, 70)
    assert lift["differences"]["B"]["interval"] == pytest.approx((0.0524, 0.3339), abs=5e-5)
    everything = entry["tasks"]["all"]
    assert everything["differences"]["B"]["difference"] == pytest.approx(66 / 90 - 49 / 90)
    assert entry["notes"] == ["seed: A 0 and 1, B 0"]


def test_success_under_other_conditions_is_named_and_not_subtracted(roots: list[Path]) -> None:
    conditions = {"action steps": "4", "mujoco": "3.3.0"}
    write(roots[0], result(0, lift=(3, 4)) | {"protocol": conditions})
    write(roots[1], result(7, lift=(4, 4)) | {"protocol": conditions | {"mujoco": "3.8.1"}})
    (entry,) = success_rates(read_runs(roots))
    assert entry["not comparable"] == {"B": ["mujoco"]}
    assert [task["differences"] for task in entry["tasks"].values()] == [{}, {}]
    assert entry["tasks"]["all"]["rates"]["B"]["successes"] == 4
    assert entry["notes"] == ["seed: A 0, B 7", "mujoco: A 3.3.0, B 3.8.1"]
    write(roots[1], result(7, lift=(4, 4)) | {"protocol": conditions})
    (entry,) = success_rates(read_runs(roots))
    assert entry["not comparable"] == {}, "a seed draws other scenes of the same distribution"
    assert entry["tasks"]["all"]["differences"]["B"]["difference"] == pytest.approx(-0.25)


def test_other_metadata_in_prompts_is_named_and_compared(roots: list[Path]) -> None:
    conditions = {"action steps": "4"}
    write(roots[0], result(0, lift=(3, 4)) | {"protocol": conditions | {PROMPT: "quality: 5"}})
    write(roots[1], result(0, lift=(4, 4)) | {"protocol": conditions})
    (entry,) = success_rates(read_runs(roots))
    assert entry["notes"] == [f"{PROMPT}: A quality: 5, B none"]
    assert entry["not comparable"] == {}


def test_success_over_other_tasks_is_not_subtracted(roots: list[Path]) -> None:
    write(roots[0], result(0, lift=(3, 4)))
    write(roots[1], result(0, lift=(3, 4), push=(4, 4)))
    (entry,) = success_rates(read_runs(roots))
    assert entry["tasks"]["lift"]["differences"]["B"]["difference"] == 0
    assert entry["tasks"]["push"]["differences"] == {}
    assert entry["tasks"]["all"]["differences"] == {}
    assert entry["tasks"]["all"]["rates"]["B"]["episodes"] == 8
