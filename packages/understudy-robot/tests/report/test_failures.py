"""Failed episodes of rollouts, in files of the program: each fact with its number, episode and
step.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.testing.runs import SHORT, trained_run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track.metrics_file import MetricsFile
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client.testing.arm import arm_contract, arm_observations
from understudy_robot.cli.why import WhyConfig, why
from understudy_robot.contracts.trace import TraceWriter, diagnose
from understudy_robot.report.failures import OVERFIT, Reason, failure_reasons, read_episodes
from understudy_robot.report.why import findings
from understudy_robot.rollout.files import write_result
from understudy_robot.rollout.result import Episode, RolloutResult

STEPS = 64
CHUNK = 8
EPISODES = 30
STATE = "joints"


def played(
    folder: Path, failed: set[int], change: Callable[[int, np.ndarray], np.ndarray] | None = None
) -> Path:
    """Write the result and the trace of a rollout; `change` alters the states [T, 7] of an
    episode.
    """
    folder.mkdir(parents=True, exist_ok=True)
    episodes = tuple(
        Episode(n, n, "a", "a", None if n in failed else "a", STEPS if n in failed else STEPS // 2)
        for n in range(EPISODES)
    )
    trace = write_result(
        RolloutResult("world", 0, {}, False, episodes, {}, 10.0), folder
    ).with_suffix(".jsonl")
    writer = TraceWriter(trace, replace(arm_contract(), provenance={"step": 100}), "arm")
    for episode in range(EPISODES):
        seen = arm_observations(STEPS // CHUNK, episode)
        states = np.stack([observation[STATE] for observation in seen])
        states = states if change is None else change(episode, states)
        for number, state in enumerate(states):
            writer.add(
                "environment 0",
                number * CHUNK,
                {STATE: state},
                np.zeros((CHUNK, 7)),
                episode=episode,
            )
    writer.close()
    return trace


def reasons(trace: Path, run: Path | None = None) -> dict[str, Reason]:
    episodes = read_episodes(trace)
    assert episodes is not None
    found = failure_reasons(episodes, diagnose(trace), RunDir(run) if run is not None else None)
    assert all(len(reason.text.splitlines()) == 1 for reason in found)
    return {reason.kind: reason for reason in found}


FAILED = set(range(EPISODES)) - {3, 11, 20}


def test_failures_are_counted_and_successes_have_none(tmp_path: Path) -> None:
    reason = reasons(played(tmp_path / "bad", FAILED))["failed"]
    assert (reason.value, reason.successes, reason.episode, reason.step) == (27, 3, 0, STEPS)
    assert reasons(played(tmp_path / "good", set())) == {}


def test_the_first_state_outside_training_is_named(tmp_path: Path) -> None:
    def leave(episode: int, states: np.ndarray) -> np.ndarray:
        return states + 50.0 * ((np.arange(len(states)) >= 5)[:, None] & (episode in FAILED - {0}))

    found = reasons(played(tmp_path / "some", FAILED, leave))
    reason = found["outside training"]
    assert (reason.value, reason.successes, reason.episode, reason.step) == (26, 0, 1, 5 * CHUNK)
    # successful episodes, too
    everywhere = played(tmp_path / "all", FAILED, lambda _, states: states + 50.0)
    assert "outside training" not in reasons(everywhere)
    assert "outside training" not in reasons(played(tmp_path / "sound", FAILED))
    assert reasons(played(tmp_path / "well", set(), leave)) == {}


def test_episodes_that_stand_still_are_named(tmp_path: Path) -> None:
    def stop(episode: int, states: np.ndarray) -> np.ndarray:
        stopped = np.minimum(np.arange(len(states)), 3 if episode in FAILED else len(states))
        return states[stopped]

    reason = reasons(played(tmp_path / "stuck", FAILED, stop))["stands still"]
    assert (reason.value, reason.successes, reason.episode, reason.step) == (27, 0, 0, 3 * CHUNK)
    assert "stands still" not in reasons(played(tmp_path / "moving", FAILED))


def test_outcomes_name_errors_other_tasks_and_the_task_that_fails(tmp_path: Path) -> None:
    told = ["a" if n % 2 else "b" for n in range(EPISODES)]
    episodes = [Episode(n, n, told[n], told[n], "a", 10 + n) for n in range(EPISODES)]
    episodes[5] = replace(episodes[5], taken=None, error="the chunk holds nan")
    trace = played(tmp_path, set())
    diagnosis = diagnose(trace)
    found = {reason.kind: reason for reason in failure_reasons(episodes, diagnosis)}
    assert (found["error"].value, found["error"].episode, found["error"].step) == (1, 5, 15)
    assert (found["other task"].value, found["other task"].episode, found["other task"].step) == (
        15,
        0,
        10,
    )
    assert (found["task"].value, found["task"].successes, found["task"].episode) == (15, 0, 0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("failures") / "run", **SHORT)


def with_losses(run: Path, training: float, validation: dict[int, float]) -> None:
    (run / "metrics.jsonl").unlink(missing_ok=True)
    file = MetricsFile(run / "metrics.jsonl")
    last = max(validation)
    records: list[dict[str, Any]] = [
        {"kind": "train", "step": step, "loss": training} for step in range(1, last + 1)
    ]
    records += [{"kind": "val", "step": step, "loss": loss} for step, loss in validation.items()]
    file.write(sorted(records, key=lambda record: record["step"]))
    file.close()


def test_an_overfitted_run_is_named_first_with_its_ratio(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = played(trained / "rollouts", FAILED)
    with_losses(trained, 0.03, {50: 2.0, 100: 3.3})
    found = reasons(trace, trained)
    assert list(found)[:3] == ["overfit", "not the best", "failed"]
    assert found["overfit"].value == pytest.approx(110)
    assert found["overfit"].step == found["not the best"].step == 100
    assert found["not the best"].value == pytest.approx(1.65)
    why(WhyConfig(paths=(str(trained),)))
    printed = capsys.readouterr().out.splitlines()
    texts = [reason.text for reason in found.values()]
    assert [line for line in printed if line in texts] == texts
    assert printed[:-1] == findings(diagnose(trace), list(found.values()))
    assert [text for text in texts if text[:20] not in Path(printed[-1]).read_text()] == []
    (trained / "order.json").rename(trained / "order.lost")  # a page is still useful
    assert list(reasons(trace, trained)) == list(found)
    (trained / "order.lost").rename(trained / "order.json")
    # generalizes, and the last is the best
    with_losses(trained, 1.0, {50: OVERFIT - 0.1, 100: OVERFIT - 0.1})
    assert not {"overfit", "not the best"} & set(reasons(trace, trained))


def test_a_successful_rollout_of_an_overfitted_run_has_no_reason(
    trained: Path, tmp_path: Path
) -> None:
    with_losses(trained, 0.03, {50: 2.0, 100: 3.3})
    assert reasons(played(tmp_path, set()), trained) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"episodes": 3}', '{"episodes": [{}]}', '{"episodes": [[]]}']
)
def test_a_file_that_is_no_result_is_refused(content: str, tmp_path: Path) -> None:
    trace = played(tmp_path, FAILED)
    path = trace.with_suffix(".json")
    stored = json.loads(path.read_text())
    path.write_text(content)
    with refused("world-seed0.json", kind=ConfigError):
        why(WhyConfig(paths=(str(trace),)))
    for wrong in ({"told": 3}, {"taken": []}, {"steps": None}, {"episode": [1]}):
        path.write_text(json.dumps({"episodes": [stored["episodes"][0] | wrong]}))
        with refused("world-seed0.json", kind=ConfigError):
            why(WhyConfig(paths=(str(trace),)))
    path.unlink()
    assert read_episodes(trace) is None
