"""The learning rate over the steps of a run."""

import math

import pytest

from understudy.config.train import ScheduleConfig
from understudy.optim.lr_schedule import lr_factor


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_warm_up_is_a_line_from_its_first_step(kind: str) -> None:
    schedule = ScheduleConfig(kind=kind, warmup_steps=4)  # type: ignore[arg-type]
    assert [lr_factor(step, schedule, 20) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert lr_factor(4, schedule, 20) == 1.0


def test_decay_is_a_cosine_or_a_line_to_its_end_and_constant_behind() -> None:
    cosine = ScheduleConfig(warmup_steps=10, final_lr_ratio=0.2)
    line = ScheduleConfig(kind="linear", warmup_steps=10, final_lr_ratio=0.2, decay_steps=30)
    for step in range(10, 50):
        done = (step - 10) / 40
        expected = 0.2 + 0.8 * (1 + math.cos(math.pi * done)) / 2
        assert lr_factor(step, cosine, 50) == pytest.approx(expected, rel=1e-12)
        expected = max(0.2, 1 - 0.8 * (step - 10) / 20)
        assert lr_factor(step, line, 50) == pytest.approx(expected, rel=1e-12)
    assert lr_factor(50, cosine, 50) == lr_factor(10**6, cosine, 50) == pytest.approx(0.2)
    constant = ScheduleConfig(kind="constant", warmup_steps=0, final_lr_ratio=0.2)
    assert {lr_factor(step, constant, 50) for step in range(60)} == {1.0}


def test_second_warm_up_leads_from_zero_to_the_curve() -> None:
    schedule = ScheduleConfig(warmup_steps=4, warmup_from=20, decay_steps=40)
    curve = ScheduleConfig(warmup_steps=4, decay_steps=40)
    for step in range(40):
        rise = min(1.0, (step - 19) / 4) if step >= 20 else 1.0
        expected = rise * lr_factor(step, curve, 40)
        assert lr_factor(step, schedule, 40) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("steps", "warm_up"), [(5, 0), (100, 10), (999, 99), (10_000, 100)])
def test_default_warm_up_is_a_tenth_of_a_short_run(steps: int, warm_up: int) -> None:
    schedule = ScheduleConfig()
    factors = [lr_factor(step, schedule, steps) for step in range(steps)]
    assert factors.index(max(factors)) == max(0, warm_up - 1)
