"""Runs of a value function: validation by group, resume, its refusals, labels without meaning; and
advantages.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.config.rollout import Play
from understudy.config.train import TrainConfig
from understudy.policies.inference import load_policy
from understudy.testing.runs import tiny_config
from understudy.train import run
from understudy.train.audit import audit_run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import first_batch
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.testing.outcomes import write_outcomes
from understudy_kit import override
from understudy_robot.rollout.play import rollout_saved_policy
from understudy_zoo.score import n_step_advantages
from understudy_zoo.value.config import ValueSettings

EPISODES = 40
SUCCESS = [bool(won) for won in np.random.default_rng(3).permutation(EPISODES) % 2]


def settings(data: Path, out: Path, steps: int = 60, **changes: Any) -> TrainConfig:
    policy = ValueSettings(width=32, bins=21, text_bytes=16, **changes)
    fast: dict[str, Any] = {
        "optim": {"lr": 1e-2, "ema": {"decay": 0.0}},
        "augment": {"text_dropout": 0.0, "shift": 0},
    }
    fast |= {
        "val": {"every": steps},
        "checkpoint": {"every": steps},
        "steps": steps,
        "batch_size": 16,
    }
    return replace(tiny_config(data, out, **fast), policy=policy)


def last_validation(out: Path) -> dict[str, Any]:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "val"][-1]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("value") / "outcomes"
    write_outcomes(root, [6] * EPISODES, SUCCESS)
    return root


def test_value_function_learns_the_outcome(outcomes: Path, tmp_path: Path) -> None:
    assert run.train(settings(outcomes, tmp_path / "run")) == 0
    validation = last_validation(tmp_path / "run")
    assert set(validation["terms"]) == {"value", "l1", "accuracy"}
    assert validation["terms"]["accuracy"]["loss"] > 0.98
    assert validation["terms"]["l1"]["loss"] < 0.1
    assert validation["loss"] == validation["terms"]["value"]["loss"]
    assert set(validation["tasks"]) == {"task 0", "task 1"}
    assert all(set(group["terms"]) == {"value", "l1", "accuracy"} for group in validation["groups"])
    # the figures of a validation are no elements of the loss
    assert validation["elements"] == validation["samples"]
    with refused(kind=ValueError):
        load_policy(tmp_path / "run")
    with refused("score", kind=ConfigError):
        rollout_saved_policy(
            tmp_path / "run/policy", settings(outcomes, tmp_path / "run").data, None, Play()
        )


def test_accuracy_on_shuffled_outcomes_is_that_of_chance(tmp_path: Path) -> None:
    """Negative control: the state has nothing to do with the outcomes."""
    shuffled = [SUCCESS[number] for number in np.random.default_rng(1).permutation(EPISODES)]
    write_outcomes(tmp_path / "data", [6] * EPISODES, shuffled, shown=0)
    assert run.train(settings(tmp_path / "data", tmp_path / "run")) == 0
    accuracy = last_validation(tmp_path / "run")["terms"]["accuracy"]["loss"]
    # 12 validation episodes: three standard errors are 0.43, learned ones have 1
    assert abs(accuracy - 0.5) < 0.3


def test_episodes_without_an_outcome_train_nothing(outcomes: Path, tmp_path: Path) -> None:
    write_outcomes(
        tmp_path / "cut", [4] * 6, [True, False, True, False, True, False], truncated=[True] * 6
    )
    config = settings(tmp_path / "cut", tmp_path / "run", 2)
    only_cut = override(config, data={"val_fraction": 0.0, "episodes": (1, 3, 5)}, val={"every": 0})
    with refused(where="cut", fix="--metadata"):
        run.train(only_cut)


def test_account_of_a_value_function_has_no_samples_without_a_return(tmp_path: Path) -> None:
    write_outcomes(
        tmp_path / "cut", [4] * 6, [True] * 3 + [False] * 3, truncated=[False] * 3 + [True] * 3
    )
    config = override(
        settings(tmp_path / "cut", tmp_path / "run", 4),
        data={"val_fraction": 0.0},
        val={"every": 0},
    )
    assert run.train(config) == 0
    result, counts = audit_run(tmp_path / "run", "latest", ())
    samples = dict(zip(counts.table()["episode"].tolist(), counts.table()["samples"].tolist()))
    assert all((samples[episode] > 0) == (episode < 3) for episode in range(6))
    assert result["samples"] + result["not_trained"] == 4 * config.batch_size
    assert result["not_trained"] > 0


def test_value_functions_load_one_action_per_sample(outcomes: Path, tmp_path: Path) -> None:
    config = override(
        settings(outcomes, tmp_path / "run", 2), data={"chunk_size": None}, val={"every": 0}
    )
    assert run.train(config) == 0
    found = RunDir(tmp_path / "run").settings()
    batch, _ = first_batch(found)
    assert (found.data.chunk_size, batch["action"].shape[1]) == (1, 1)


def test_rollouts_of_a_value_function_are_refused(outcomes: Path, tmp_path: Path) -> None:
    config = override(settings(outcomes, tmp_path / "run"), rollout={"every": 10})
    assert any("rollout.every" in line and "value" in line for line in config.problems())
    config = override(settings(outcomes, tmp_path / "run"), checkpoint={"keep_best": "open_loop"})
    with refused("open_loop", kind=ConfigError):
        run.train(config)


def test_futures_of_a_value_function_are_refused_as_a_setting(
    outcomes: Path, tmp_path: Path
) -> None:
    with refused("policy", "future", kind=ConfigError):
        run.train(override(settings(outcomes, tmp_path / "run"), mode="joint"))
    assert not (tmp_path / "run/order.json").exists()


def test_resume_of_a_value_function_is_exact(outcomes: Path, tmp_path: Path) -> None:
    whole = override(settings(outcomes, tmp_path / "whole", 8), checkpoint={"every": 4})
    run.train(whole)
    run.train(
        override(whole, output_dir=str(tmp_path / "half"), steps=4, schedule={"decay_steps": 8})
    )
    run.resume(override(whole, output_dir=str(tmp_path / "half"), schedule={"decay_steps": 8}))
    files = [
        (tmp_path / name / "policy/model.safetensors").read_bytes() for name in ("whole", "half")
    ]
    assert files[0] == files[1]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("steps", [1, 3, 50])
@pytest.mark.parametrize("length", [1, 2, 8])
def test_advantages_are_those_of_the_steps(terminal: bool, steps: int, length: int) -> None:
    rng = np.random.default_rng(length)
    values = rng.normal(size=length)
    rewards = rng.normal(size=length)
    discount = 0.8
    computed = n_step_advantages(values, rewards, terminal, steps, discount)
    for t in range(length):
        total = 0.0
        k = 0
        # a cut episode has no step behind its last frame
        while k < steps and t + k < length - (not terminal):
            total = total + discount**k * rewards[t + k]
            k = k + 1
        following = 0.0 if t + k == length else values[t + k]
        assert computed[t] == pytest.approx(total + discount**k * following - values[t])
    if not terminal:
        assert computed[-1] == 0
