"""Rollouts on the way: each that is due is played once, whatever is killed, and the training does
not notice.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.config.rollout import RolloutEvery
from understudy.config.train import ParallelConfig, TrainConfig
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy.testing.resumed import watched
from understudy.testing.runs import same_run, series, tiny_config
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.checkpoint import Saver
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.run_hooks import check_rollout_settings
from understudy.train.track import metrics_file
from understudy.train.track.trackers import MetricsLog
from understudy_base import ConfigError
from understudy_base.optional_packages import is_installed
from understudy_base.testing.refusals import refused
from understudy_kit import plain, validate, wilson_interval
from understudy_robot import background_rollouts
from understudy_robot.background_rollouts import check_rollouts
from understudy_robot.rollout.play import rollout_saved_policy
from understudy_robot.testing import player

pytest.importorskip("mujoco", reason="the extra `demo` is not installed")

STEPS = (5, 10, 12)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes of the tabletop."""
    from understudy_robot.cli.record import RecordConfig, record

    root = tmp_path_factory.mktemp("rollouts") / "dataset"
    record(RecordConfig(output_dir=str(root), episodes=6, image_size=16, codec="libx264"))
    return root


def settings(data: Path, out: Path, every: int = 5, **changes: Any) -> TrainConfig:
    """Twelve steps, checkpoints at 4, 8 and 12."""
    rollout = RolloutEvery(
        every=every,
        tasks=("red", "blue"),
        episodes=2,
        num_envs=2,
        image_size=16,
        sampling_steps=2,
        action_steps=3,
    )
    return tiny_config(
        data,
        out,
        **{
            "rollout": rollout,
            "log": {"every": 1},
            "micro_batch_size": 2,
            "device": "cpu",
            **changes,
        },
    )


@pytest.fixture(scope="module")
def without(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that plays nothing and was never stopped."""
    out = tmp_path_factory.mktemp("without") / "r"
    run.train(settings(data, out, every=0))
    return out


def acting(config: TrainConfig, how: str) -> None:
    """From here on `understudy_robot.testing.player` plays, as `how` says."""
    play = {name: value for name, value in plain(config.rollout).items() if name != "every"}
    background_rollouts.WORKER_COMMAND = (
        sys.executable,
        "-S",
        "-E",
        player.__file__,
        json.dumps(play),
        how,
    )  # type: ignore[assignment]


@pytest.fixture
def act(monkeypatch: pytest.MonkeyPatch) -> Callable[[TrainConfig, str], None]:
    # to be put back
    monkeypatch.setattr(background_rollouts, "WORKER_COMMAND", background_rollouts.WORKER_COMMAND)
    return acting


def times(out: Path) -> list[int]:
    """Which steps were played, in sequence."""
    return [int(line) for line in (out / "played").read_text().split()]


def whole(out: Path, without: Path, steps: tuple[int, ...] = STEPS) -> None:
    """Assert that the training noticed nothing, and that each step has its file, and its line
    once.
    """
    same_run(without, out)
    lines = series(out, "rollout")
    assert sorted(line["step"] for line in lines) == list(steps)
    for line in lines:
        result = json.loads((out / f"rollouts/step-{line['step']:08d}.json").read_text())
        assert {
            key: line[key] for key in ("world", "protocol", "success", "tasks")
        } == background_rollouts.summarize(result)
        assert line["step"] <= line["at"] <= 12
    assert list((out / "rollouts/due").iterdir()) == []


# -- played episodes -------------------------------------------------------------------------------


@pytest.mark.long
def test_rollouts_run_beside_training(data: Path, without: Path, tmp_path: Path) -> None:
    """Real players. The result of the last weights equals a rollout of the run's policy."""
    config = settings(data, tmp_path / "r", every=11)
    assert run.train(config) == run.DONE
    whole(tmp_path / "r", without, (11, 12))
    last = json.loads((tmp_path / "r/rollouts/step-00000012.json").read_text())
    assert (
        last["weights"]
        == hashlib.sha256((tmp_path / "r/policy/model.safetensors").read_bytes()).hexdigest()
    )
    again = rollout_saved_policy(tmp_path / "r/policy", config.data, None, config.rollout).to_json()
    assert {key: last[key] for key in again} == again
    assert list(last["tasks"]) == ["pick up the red block", "pick up the blue block"]
    rate = series(tmp_path / "r", "rollout")[-1]["success"]
    assert (rate["low"], rate["high"]) == wilson_interval(rate["successes"], 2)
    # A player exits when its run is gone.
    shutil.copytree(tmp_path / "r/policy", tmp_path / "r/rollouts/due/step-00000099")
    alone = subprocess.Popen(
        [*background_rollouts.WORKER_COMMAND, tmp_path / "r", "99"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert alone.stdin is not None
    alone.stdin.close()
    assert alone.wait() == 1
    assert not (tmp_path / "r/rollouts/step-00000099.json").exists()


@pytest.mark.long
def test_rollouts_get_whole_weights_of_sharded_ranks(
    data: Path, without: Path, tmp_path: Path
) -> None:
    config = settings(data, tmp_path / "r", parallel=ParallelConfig(dp_shard=2))
    assert in_ranks(2, with_player, config, "plays") == [run.DONE, run.DONE]
    whole(tmp_path / "r", without)
    result = json.loads((tmp_path / "r/rollouts/step-00000012.json").read_text())
    assert (
        result["weights"]
        == hashlib.sha256((without / "policy/model.safetensors").read_bytes()).hexdigest()
    )


def with_player(config: TrainConfig, how: str) -> int:
    acting(config, how)
    return run.train(config)


# -- failures --------------------------------------------------------------------------------------


def when_playing(out: Path, number: int) -> Callable[[], object]:
    """Send ourselves a signal as soon as the player of step 5 has begun."""

    def wait_and_send() -> None:
        until = time.monotonic() + 240
        while not (out / "player-5").exists() and time.monotonic() < until:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    return wait_and_send


def killed(config: TrainConfig, how: str, step: int) -> None:
    acting(config, how)
    with watched(
        Path(config.output_dir), {step: when_playing(Path(config.output_dir), signal.SIGKILL)}
    ):
        run.train(config)


def gone(process: int, patience: float = 240.0) -> bool:
    until = time.monotonic() + patience
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(process, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.short("7")
@pytest.mark.parametrize("step", [7, 12])  # behind the checkpoints of steps 4 and 8
def test_rollouts_of_a_killed_run_are_made_on_resume(
    data: Path, without: Path, tmp_path: Path, act: Any, step: int
) -> None:
    """At step 7 it goes back to 4, so that step 5 is due again; at 12 to 8, and step 5 still
    waits.
    """
    config = settings(data, tmp_path / "r")
    assert outcomes_in_ranks(1, killed, config, "hangs", step)[0] == ("died", -signal.SIGKILL)
    assert times(tmp_path / "r") == [5]
    assert gone(int((tmp_path / "r/player-5").read_text())), "a player outlived its training"
    assert series(tmp_path / "r", "rollout") == []
    act(config, "plays")
    assert run.resume(config) == run.DONE
    assert times(tmp_path / "r") == [5, 5, 10, 12]
    whole(tmp_path / "r", without)


def killed_behind_a_checkpoint(config: TrainConfig) -> None:
    acting(config, "hangs")
    plain_save = Saver.save

    def save(self: Saver, *arguments: Any) -> None:
        plain_save(self, *arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    Saver.save = save  # type: ignore[method-assign]
    run.train(config)


@pytest.mark.long
def test_rollout_weights_are_queued_before_the_checkpoint(
    data: Path, without: Path, tmp_path: Path, act: Any
) -> None:
    """Or a run that resumes behind it would never play them."""
    config = settings(data, tmp_path / "r", every=4)
    assert outcomes_in_ranks(1, killed_behind_a_checkpoint, config)[0] == ("died", -signal.SIGKILL)
    assert checkpoint.list_steps(tmp_path / "r/checkpoints") == [4]
    act(config, "plays")
    assert run.resume(config) == run.DONE
    whole(tmp_path / "r", without, (4, 8, 12))


def back_to_nothing(out: Path) -> None:
    for step in checkpoint.list_steps(out / "checkpoints"):
        shutil.rmtree(out / f"checkpoints/step-{step:08d}")


@pytest.mark.long
def test_rollout_results_are_reused_for_the_same_weights(
    data: Path, without: Path, tmp_path: Path, act: Any
) -> None:
    config = settings(data, tmp_path / "r")
    act(config, "plays")
    run.train(config)
    back_to_nothing(tmp_path / "r")
    act(config, "fails")  # no player is asked
    assert run.resume(config) == run.DONE
    whole(tmp_path / "r", without)
    assert times(tmp_path / "r") == [5, 10, 12]
    # Results of other weights, or played otherwise, do not.
    back_to_nothing(tmp_path / "r")
    odd = tmp_path / "r/rollouts/step-00000005.json"
    odd.write_text(json.dumps(json.loads(odd.read_text()) | {"weights": "others"}))
    act(config, "plays")
    assert run.resume(config) == run.DONE
    assert times(tmp_path / "r") == [5, 10, 12, 5]
    whole(tmp_path / "r", without)
    back_to_nothing(tmp_path / "r")
    other = replace(config, rollout=replace(config.rollout, seed=1))
    act(other, "plays")
    assert run.resume(other) == run.DONE
    assert times(tmp_path / "r")[4:] == [5, 10, 12]
    assert not list((tmp_path / "r/rollouts/earlier").iterdir())


@pytest.mark.long
def test_rollout_records_are_complete_after_a_kill(
    data: Path, without: Path, tmp_path: Path, act: Any
) -> None:
    """The file of a result is there and its line is not, or its weights have not been let go of."""
    config = settings(data, tmp_path / "r")
    act(config, "plays")
    run.train(config)
    lines = (tmp_path / "r/metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not ('"rollout"' in line and '"step": 10' in line)]
    assert len(kept) == len(lines) - 1
    (tmp_path / "r/metrics.jsonl").write_text("".join(kept))
    shutil.copytree(tmp_path / "r/policy", tmp_path / "r/rollouts/due/step-00000012")
    act(config, "fails")
    assert run.resume(config) == run.DONE
    assert times(tmp_path / "r") == [5, 10, 12]
    whole(tmp_path / "r", without)


FAILURES = {
    "fails": ("(exit code 3):\n  | the door is stuck", 3),
    "nonsense": ("step 10 failed (step-00000010.json is not a result)", 1),
}


@pytest.mark.long
@pytest.mark.parametrize("how", FAILURES)
def test_failed_rollout_is_logged_and_retried(
    data: Path,
    without: Path,
    tmp_path: Path,
    act: Any,
    capsys: pytest.CaptureFixture[str],
    how: str,
) -> None:
    config = settings(data, tmp_path / "r")
    act(config, how)
    assert run.train(config) == run.DONE
    text, count = FAILURES[how]
    logged = capsys.readouterr().err
    assert logged.count(text) == count
    assert "failed for step 5, 10, 12; understudy resume" in logged
    same_run(without, tmp_path / "r")
    assert series(tmp_path / "r", "rollout") == []
    act(config, "plays")
    assert run.resume(config) == run.DONE
    assert times(tmp_path / "r") == [5, 10, 12] * 2
    whole(tmp_path / "r", without)


def test_rollout_failures_do_not_stop_training(
    data: Path,
    without: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = settings(data, tmp_path / "r")
    plain_save = FlowPolicy.save

    def save(self: FlowPolicy, directory: Path, *rest: Any) -> None:
        if Path(directory).name == "step-00000010":
            raise OSError("the disk is full")
        plain_save(self, directory, *rest)

    monkeypatch.setattr(FlowPolicy, "save", save)
    monkeypatch.setattr(background_rollouts, "WORKER_COMMAND", (str(tmp_path / "nobody"),))
    assert run.train(config) == run.DONE
    told = capsys.readouterr().err
    assert "the weights of step 10 cannot be queued and are skipped: the disk is full" in told
    assert "step 5 failed (cannot be started)" in told
    assert "failed for step 5, 12" in told
    same_run(without, tmp_path / "r")


@pytest.mark.long
def test_signal_ends_the_rollout_worker(
    data: Path, without: Path, tmp_path: Path, act: Any
) -> None:
    config = settings(data, tmp_path / "r")
    act(config, "hangs")
    with watched(tmp_path / "r", {7: when_playing(tmp_path / "r", signal.SIGTERM)}):
        assert run.train(config) == run.STOPPED
    assert gone(int((tmp_path / "r/player-5").read_text()))
    assert (tmp_path / "r/rollouts/due/step-00000005").is_dir()
    plain_look = background_rollouts.BackgroundRollouts.poll
    looks = []

    def poll(
        self: background_rollouts.BackgroundRollouts, log: MetricsLog, step: int, last: bool = False
    ) -> bool:
        looks.extend([step] if last else [])
        if len(looks) == 2:
            (tmp_path / "r/STOP").touch()
        return plain_look(self, log, step, last)

    background_rollouts.BackgroundRollouts.poll = poll  # type: ignore[method-assign]
    try:
        # all steps are done, the policy is there, the wait was cut
        assert run.resume(config) == run.STOPPED
    finally:
        background_rollouts.BackgroundRollouts.poll = plain_look  # type: ignore[method-assign]
    same_run(without, tmp_path / "r")
    assert not (tmp_path / "r/STOP").exists()
    act(config, "plays")
    assert run.resume(config) == run.DONE
    whole(tmp_path / "r", without)


def test_impossible_rollouts_are_refused_before_training(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = settings(data, tmp_path / "r")
    caplog.set_level("INFO", "understudy")
    for wrong, named in (
        ({"tasks": ("pink",)}, ("rollout.tasks", "'pink'")),
        (
            {"env": "metaworld", "state": "joints"},
            ("front" if is_installed("sim") else "metaworld",),
        ),
        ({"state": "observation.joints"}, ("rollout.state", "tabletop", "'observation.joints'")),
        ({"device": "fpga"}, ("rollout.device", "'fpga'")),
        ({"source": "left"}, ("rollout.source", "'left'", "dataset")),
    ):
        with refused(*named, kind=ConfigError):
            run.train(replace(config, rollout=replace(config.rollout, **wrong)))
        assert not (tmp_path / "r/config.yaml").exists()
    assert "parameters" not in caplog.text  # no table before the checks
    assert replace(config, rollout=replace(config.rollout, action_steps=4)).problems() == [
        "rollout.action_steps: 4: the policy predicts 3 actions (data.chunk_size)"
    ]
    # nothing is played
    assert replace(config, rollout=RolloutEvery(action_steps=4)).problems() == []
    for mode, count in (
        ("inverse_dynamics", 1),
        ("forward_dynamics", 1),
        ("joint", 0),
        ("policy", 0),
    ):
        found = replace(config, mode=mode).problems()
        assert [line.startswith("rollout.every: 5: mode ") for line in found] == [True] * count


@pytest.mark.parametrize(("stored", "steps", "fits"), [(12, 10, True), (3, 6, False)])
def test_action_steps_fit_the_chunk_of_the_weights(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: int, steps: int, fits: bool
) -> None:
    """Without `data.chunk_size` the weights decide the chunk, which no rule between the settings
    knows.
    """
    from understudy.policies.pi05.config import Pi05Settings

    monkeypatch.setattr(Pi05Settings, "stored_chunk", lambda self: stored)
    config = settings(data, tmp_path / "r")
    config = replace(
        config,
        data=replace(config.data, chunk_size=None),
        policy=Pi05Settings(size="tiny", weights=str(tmp_path)),
        rollout=replace(config.rollout, action_steps=steps),
    )
    assert config.problems() == []
    full = config.with_policy_defaults()
    assert (full.problems() == []) == fits
    if fits:
        check_rollout_settings(full)
        return
    with refused("rollout.action_steps", 6, 3, kind=ConfigError):
        check_rollouts(full, {})
    with refused("rollout.action_steps", 6, 3, kind=ConfigError):
        run.train(config)
    assert not (tmp_path / "r").exists()


@pytest.mark.long
def test_rollouts_can_be_disabled_and_enabled(
    data: Path, without: Path, tmp_path: Path, act: Any
) -> None:
    config = settings(data, tmp_path / "r")
    act(config, "hangs")
    with watched(tmp_path / "r", {11: when_playing(tmp_path / "r", signal.SIGTERM)}):
        assert run.train(config) == run.STOPPED
    off = replace(config, rollout=replace(config.rollout, every=0))
    assert run.resume(off) == run.DONE
    assert times(tmp_path / "r") == [5]
    act(config, "plays")
    assert run.resume(config) == run.DONE
    whole(tmp_path / "r", without, (5, 10))


# -- lines and trackers ----------------------------------------------------------------------------


def line(step: int, at: int) -> dict[str, Any]:
    rate = {"successes": 1, "episodes": 2}
    return {
        "kind": "rollout",
        "step": step,
        "at": at,
        **background_rollouts.summarize(
            {"world": "w", "protocol": {}, "success": rate, "tasks": {}}
        ),
    }


def test_truncate_keeps_late_rollout_records(tmp_path: Path) -> None:
    """Of weights before that step it stays true, of those behind it does not."""
    train = [{"kind": "train", "step": step, "loss": 1.0} for step in range(1, 9)]
    (tmp_path / "m").write_text(
        "".join(json.dumps(r) + "\n" for r in [*train[:7], line(3, 7), train[7], line(6, 8)])
    )
    metrics_file.truncate(tmp_path / "m", 5)
    assert metrics_file.read(tmp_path / "m") == [*train[:5], line(3, 5)]


class Told:
    """A log whose trackers have steps up to `last_step` from before the run went back."""

    last_step = 9

    def __init__(self) -> None:
        self.lines: list[tuple[int, int]] = []

    def log(self, step: int, record: dict[str, Any]) -> None:
        self.lines.append((step, record["step"]))


def test_rollout_results_are_logged_one_per_new_step(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    rate = {"successes": 1, "episodes": 2}
    for step in (2, 4, 6, 7):
        result = {"world": "w", "protocol": {}, "success": rate, "tasks": {}}
        (tmp_path / f"rollouts/step-{step:08d}.json").write_text(json.dumps(result))
    config = validate(TrainConfig, {"data": {"root": "d"}})
    found = background_rollouts.BackgroundRollouts(RunDir(tmp_path), config, {}, 6, first=True)
    log = Told()
    for step, last in ((7, False), (9, False), (10, False), (10, False), (11, False), (11, True)):
        found.poll(log, step, last)  # type: ignore[arg-type]
    assert log.lines == [(10, 2), (11, 4), (11, 6)]  # steps behind 6 have not been reached again
    assert not background_rollouts.BackgroundRollouts(
        RunDir(tmp_path), config, {}, 6, first=False
    ).poll(log, 12)  # type: ignore[arg-type]


def test_trackers_get_rollouts_at_the_logged_step(tmp_path: Path) -> None:
    from understudy.testing.tracked import in_tensorboard

    pytest.importorskip("tensorboard", reason="pip install 'understudy[tensorboard]'")
    there = RunDir(tmp_path)
    log = MetricsLog(there.root, ["tensorboard"], {}, 0)
    for step in range(1, 9):
        log.log(step, {"kind": "train", "loss": 1.0})
        if step == 7:
            log.log(step, line(3, 7))
    log.close()
    wanted = {"rollout/step": 3.0, "rollout/success/rate": 0.5, "rollout/success/successes": 1.0}
    assert wanted.items() <= in_tensorboard(tmp_path)[7].items()
    log = MetricsLog(there.root, ["tensorboard"], {}, 5)
    log.log(6, {"kind": "train", "loss": 1.0})
    log.close()
    rows = in_tensorboard(tmp_path)
    assert sorted(rows) == [1, 2, 3, 4, 5, 6]
    assert wanted.items() <= rows[5].items()
