"""kill -9: whatever the instant, a resumed run ends as the run that was never stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from understudy.config.train import ScheduleConfig
from understudy.distributed.torch_release import has_gradient_sum
from understudy.testing.runs import same_run, series, tiny_config
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy_base.testing.refusals import refused
from understudy_kit import dump_yaml

SOAK = Path(__file__).parents[4] / "lab/benchmarks" / "soak_trainer.py"
PI05 = ("--policy", "pi05", "--lora", 4, "--lora-base", "bfloat16")


def soak(*options: object) -> tuple[int, dict[str, Any]]:
    """lab/benchmarks/soak_trainer.py in short: its exit code and its report."""
    done = subprocess.run(
        [sys.executable, SOAK, "--json", *map(str, options)], stdout=subprocess.PIPE, text=True
    )
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "kind",
    [
        2,
        pytest.param(
            3,
            marks=[
                pytest.mark.long,
                pytest.mark.skipif(
                    not has_gradient_sum(), reason="torch < 2.8: FSDP2 cannot sum gradients"
                ),
            ],
        ),
    ],
    ids=["one process", "two that share the weights"],
)
def test_run_is_identical_after_three_kills(kind: int) -> None:
    """The run saves beside the training, and is killed once inside a save, once after a random time
    and once before a random change of the disk; of two processes, one is killed.
    """
    code, report = soak("--kills", 3, "--per-run", 3, "--kinds", kind)
    assert (code, report["wrong"], report["kills"]) == (0, [], 3)
    assert report["finished"] == 1
    assert report["in_saves"] >= 1


@pytest.mark.long
def test_pi05_run_is_identical_after_two_kills() -> None:
    """With adapters on bfloat16 matrices, and the losses of flow, response and FAST tokens."""
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    pytest.importorskip("tokenizers", reason="needs the extra pi05")
    code, told = soak(*PI05, "--kills", 2, "--per-run", 2, "--kinds", 2)
    assert (code, told["wrong"], told["kills"]) == (0, [], 2)
    assert told["finished"] == 1


@pytest.mark.long
def test_kill_test_detects_torn_checkpoints() -> None:
    """The negative control of the test above: the same kills, without the protocol."""
    code, told = soak("--kills", 10, "--per-run", 4, "--kinds", 1, "--torn")
    assert code == 1
    assert "torn" in told["wrong"][0]


@pytest.mark.long
def test_command_survives_sigterm_and_sigkill(
    data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As a scheduler and as a power cut do it, at an instant that the run does not choose. The run
    has far more steps than it takes until it is stopped, however late that is; in the end it is
    given as many as it needs.
    """
    # the learning rate does not depend on the number of steps
    schedule = ScheduleConfig("constant", warmup_steps=3)
    often = {
        "log": {"every": 1},
        "checkpoint": {"every": 10},
        "val": {"every": 0},
        "schedule": schedule,
    }
    config = tiny_config(data, tmp_path / "r", steps=20_000, **often)
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    command = [sys.executable, "-m", "understudy"]

    def started(*arguments: object, after: int) -> "subprocess.Popen[bytes]":
        """The command, once the run has logged `after` steps."""
        process = subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.DEVNULL)
        request.addfinalizer(process.kill)  # where the test fails; one that has ended does not mind
        while process.poll() is None and len(series(tmp_path / "r")) < after:
            time.sleep(0.01)
        assert process.poll() is None, f"{arguments} ended before step {after}"
        return process

    process = started("train", tmp_path / "config.yaml", after=15)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == run.STOPPED
    reached = checkpoint.list_steps(tmp_path / "r/checkpoints")[-1]
    assert reached >= 15
    process = started("resume", tmp_path / "r", after=reached + 12)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    steps = checkpoint.list_steps(tmp_path / "r/checkpoints")[-1] + 10
    assert run.resume(replace(RunDir(tmp_path / "r").settings(), steps=steps)) == run.DONE
    run.train(
        tiny_config(
            data, tmp_path / "whole", steps=steps, **often | {"checkpoint": {"every": steps}}
        )
    )
    same_run(tmp_path / "whole", tmp_path / "r")


COMPILER = """#!/bin/sh
for word; do
  if grep -qs kernel "$word"; then mkdir "$0.asked" 2> /dev/null && kill -TERM $PPID; exit 1; fi
done
exec g++ "$@"
"""
"""Stops the run at its first kernel, and fails from then on: the signal went to the process group.
"""


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_signal_to_the_process_group_stops_a_compiling_run(data: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        dump_yaml(tiny_config(data, tmp_path / "r", compile=True))
    )
    (compiler := tmp_path / "c++").write_text(COMPILER)
    compiler.chmod(0o755)
    command = [sys.executable, "-m", "understudy", "train", tmp_path / "config.yaml"]
    environment = {
        **os.environ,
        "CXX": str(compiler),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (tmp_path / "c++.asked").exists()
    assert (done.returncode, "Traceback" in done.stderr) == (run.STOPPED, False), done.stderr


def test_train_refuses_a_run_in_progress(data: Path, tmp_path: Path) -> None:
    from understudy.train.checkpoint.run_dir import RunInUseError

    run.train(tiny_config(data, tmp_path / "r", steps=1, val={"every": 0}))
    held = RunDir(tmp_path / "r").lock()
    try:
        with refused(tmp_path / "r", kind=RunInUseError):
            run.resume(RunDir(tmp_path / "r").settings())
    finally:
        held.close()
    assert os.path.exists(tmp_path / "r/.lock")
