"""Success of rollouts: intervals and differences of the same tasks."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from understudy.report.compare.results import success_rates
from understudy.report.compare.runs import read_runs
from understudy.rollout.result import wilson_interval


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


def test_success_over_other_tasks_is_not_subtracted(roots: list[Path]) -> None:
    write(roots[0], result(0, lift=(3, 4)))
    write(roots[1], result(0, lift=(3, 4), push=(4, 4)))
    (entry,) = success_rates(read_runs(roots))
    assert entry["tasks"]["lift"]["differences"]["B"]["difference"] == 0
    assert entry["tasks"]["push"]["differences"] == {}
    assert entry["tasks"]["all"]["differences"] == {}
    assert entry["tasks"]["all"]["rates"]["B"]["episodes"] == 8
