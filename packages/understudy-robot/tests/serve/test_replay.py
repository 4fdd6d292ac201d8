"""A replayed episode gives the actions of open-loop validation; a difference is placed, and its
size is reported.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")

from understudy.testing.runs import trained_run
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import main
from understudy_robot.cli.replay import ReplayConfig, replay
from understudy_robot.contracts.trace import diagnose


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    short = {"steps": 2, "checkpoint": {"every": 2}, "val": {"every": 0}}
    return trained_run(tmp_path_factory.mktemp("replay") / "run", **short)


def result(
    capsys: pytest.CaptureFixture[str], folder: Path, *words: str, code: int = 0
) -> dict[str, object]:
    capsys.readouterr()
    assert main(["replay", str(folder), "--json", *words]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_replayed_episode_is_that_of_validation_to_the_bit(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = result(capsys, trained, "--contract", "strict")
    assert (found["equal"], found["parts_at"], found["mismatches"]) == (True, None, [])
    assert found["chunks"] == -(-int(str(found["frames"])) // 3)  # one at each third frame


def test_a_replayed_trace_has_the_recorded_actions(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chunks = result(capsys, trained, "--trace", str(tmp_path / "trace.jsonl"))["chunks"]
    diagnosis = diagnose(tmp_path / "trace.jsonl")
    assert len(diagnosis.steps) == chunks
    errors = np.concatenate(list(diagnosis.errors.values()))
    assert np.isfinite(errors).all()
    assert errors.size


def test_a_difference_is_placed(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The served policy moves its second dimension by 0.5 in the second of three steps of each
    chunk.
    """
    import understudy as us
    from understudy.train.run import open_checkpoint
    from understudy_robot.cli.replay import replay_episode

    robot = us.load_policy(trained, contract="off")
    original = robot.policy.act

    def act(*arguments: object, **settings: object) -> object:
        actions = original(*arguments, **settings)  # type: ignore[arg-type]
        actions[:, 1, 1] += 0.5
        return actions

    robot.policy.act = act  # type: ignore[method-assign, assignment]
    with open_checkpoint(trained) as (state, validation):
        found = replay_episode(
            state, validation, robot, 0, ReplayConfig(run=str(trained), contract="off")
        )
        names = validation.action_names(0)
    assert (found.equal, found.parts_at, found.difference[1]) == (False, 1, names[1])
    assert np.isclose(found.difference[0], 0.5, rtol=1e-5)


def test_episodes_outside_of_validation_are_refused(trained: Path) -> None:
    with refused("episode", 9999, kind=ConfigError):
        replay(ReplayConfig(run=str(trained), episode=9999))


def test_a_chunk_that_is_not_finite_is_placed(trained: Path) -> None:
    import understudy as us
    from understudy.train.run import open_checkpoint
    from understudy_client import RemoteError
    from understudy_robot.cli.replay import replay_episode

    robot = us.load_policy(trained, contract="off")
    original = robot.policy.act
    robot.policy.act = lambda *arguments, **settings: (  # type: ignore[method-assign]
        original(*arguments, **settings) / 0
    )
    config = ReplayConfig(run=str(trained), contract="off")
    with (
        open_checkpoint(trained) as (state, validation),
        refused("step", "action", kind=RemoteError),
    ):
        replay_episode(state, validation, robot, 0, config)


@pytest.mark.parametrize("command", ["replay", "rollout"])
def test_a_folder_that_is_no_run_is_not_to_be_resumed(
    command: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path / "nothing", tmp_path):
        assert main([command, str(folder)]) == 2
        error = capsys.readouterr().err
        assert str(folder) in error
        assert "resume" not in error
    unfinished = tmp_path / "run"
    shutil.copytree(trained, unfinished)
    shutil.rmtree(unfinished / "policy")
    assert main([command, str(unfinished)]) == 2
    assert f"understudy resume {unfinished}" in capsys.readouterr().err
