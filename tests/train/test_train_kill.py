"""kill -9: whatever the instant, a resumed run ends as the run that was never stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.runs import same_run, series, tiny_config, tiny_dataset
from understudy.train import checkpoint, run
from understudy.train.rundir import RunDir
from understudy.train.settings import dump_yaml

KILLED = Path(__file__).parents[1] / "support" / "killed.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("kill") / "dataset")


@pytest.mark.slow
def test_killed_before_any_change_of_the_disk(data: Path, tmp_path: Path) -> None:
    """Real processes, killed inside saving, pruning, logging and exporting; some are killed again while resuming."""
    count = 9
    done = subprocess.run(
        [sys.executable, KILLED, data, tmp_path, "3", str(count)],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["changes"] > 40
    assert len(told["points"]) == count
    for number in range(count):
        same_run(tmp_path / "whole", tmp_path / f"killed-{number}")
        assert not list((tmp_path / f"killed-{number}/checkpoints").glob("*.tmp"))


@pytest.mark.slow
def test_the_command_stopped_by_sigterm_then_by_sigkill(data: Path, tmp_path: Path) -> None:
    """As a scheduler and as a power cut do it, at an instant that the run does not choose."""
    config = tiny_config(data, tmp_path / "r", steps=160, log_every=1, checkpoint_every=10, val_every=0)
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    command = [sys.executable, "-m", "understudy"]

    def started(*arguments: object, after: int) -> "subprocess.Popen[bytes]":
        """The command, once the run has logged `after` steps."""
        process = subprocess.Popen([*command, *map(str, arguments)], stdout=subprocess.DEVNULL)
        while process.poll() is None and len(series(tmp_path / "r")) < after:
            time.sleep(0.01)
        assert process.poll() is None, f"{arguments} ended before step {after}"
        return process

    process = started("train", tmp_path / "config.yaml", after=15)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == run.STOPPED
    reached = checkpoint.steps(tmp_path / "r/checkpoints")[-1]
    assert reached >= 15
    process = started("resume", tmp_path / "r", after=reached + 12)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert checkpoint.steps(tmp_path / "r/checkpoints")[-1] < 160
    assert run.resume(RunDir(tmp_path / "r").settings()) == run.DONE
    whole = tiny_config(data, tmp_path / "whole", steps=160, checkpoint_every=160, val_every=0)
    run.train(whole)
    same_run(tmp_path / "whole", tmp_path / "r")


def test_two_processes_do_not_train_one_run(data: Path, tmp_path: Path) -> None:
    from understudy.train.settings import ConfigError

    run.train(tiny_config(data, tmp_path / "r", steps=1, val_every=0))
    held = RunDir(tmp_path / "r").lock()
    try:
        with pytest.raises(ConfigError, match="another process"):
            run.resume(RunDir(tmp_path / "r").settings())
    finally:
        held.close()
    assert os.path.exists(tmp_path / "r/.lock")
