"""A training of two processes from the command line: stopped by a signal, hit by a kill, carried on
under torchrun.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.train.checkpoint.run_dir import RunDir
from understudy_kit import dump_yaml

pytestmark = pytest.mark.long

STEPS = 20_000  # far more than are taken until a run is stopped, however late that is
UNDERSTUDY = ("-m", "understudy")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class Command:
    """Python with these arguments, its output in a file; `end` waits for it."""

    def __init__(self, log: Path, *arguments: object) -> None:
        self.log = log
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)], stdout=file, stderr=file, env=environment
            )

    def end(self) -> tuple[int, str]:
        return self.process.wait(240), self.log.read_text()

    def rank(self, number: int) -> int:
        """Process id of that rank."""
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        told = f"RANK={number}".encode()
        (found,) = [
            int(pid)
            for pid in children
            if told in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        ]
        return found

    def wait_for_step(self, run: Path, step: int) -> None:
        until = time.monotonic() + 240
        while not any(record["step"] >= step for record in series(run)):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def begun() -> Iterator[list[Command]]:
    commands: list[Command] = []
    yield commands
    for command in commands:
        if command.process.poll() is None:
            command.process.kill()  # its ranks follow it
            command.process.wait()


def last_step(run: Path) -> int:
    return max((record["step"] for record in series(run)), default=0)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds ranks in /proc")
def test_two_processes_stopped_killed_and_resumed(tmp_path: Path, begun: list[Command]) -> None:
    run = tmp_path / "run"
    file = tmp_path / "c.yaml"
    config = tiny_config(
        tiny_dataset(tmp_path / "dataset"),
        run,
        steps=STEPS,
        val={"every": 0},
        log={"report": False},
    )
    file.write_text(dump_yaml(config))

    def command(*arguments: object) -> Command:
        begun.append(Command(tmp_path / f"{len(begun)}.log", *arguments))
        return begun[-1]

    stopped = command(*UNDERSTUDY, "train", file, "--launch", 2)
    stopped.wait_for_step(run, 3)
    stopped.process.send_signal(signal.SIGTERM)
    code, said = stopped.end()
    assert code == 75, said
    assert said.count("stopped at step") == 1  # by rank 0 alone
    assert said.count("2 processes on cpu") == 1
    step = last_step(run)
    assert (RunDir(run).checkpoints / f"step-{step:08d}" / "state.json").is_file()

    killed = command(*UNDERSTUDY, "resume", run, "--launch", 2)
    killed.wait_for_step(run, step + 3)
    os.kill(killed.rank(1), signal.SIGKILL)
    code, said = killed.end()
    assert code == 1, said
    assert "understudy resume: rank 1 of 2 was killed by SIGKILL" in said
    assert f"resume: from step-{step:08d}" in said

    steps = last_step(run) + 10
    finished = command(*TORCHRUN, *UNDERSTUDY, "resume", run, "--steps", steps)
    code, said = finished.end()
    assert code == 0, said
    assert said.count("resume: from step-") == 1
    assert [record["step"] for record in series(run)] == list(range(1, steps + 1))
    state = json.loads((RunDir(run).checkpoints / f"step-{steps:08d}" / "state.json").read_text())
    assert (state["world"], state["position"]) == (2, steps * config.batch_size)
    assert (RunDir(run).policy / "model.safetensors").is_file()


def test_accelerate_launch_starts_the_same_run(tmp_path: Path, begun: list[Command]) -> None:
    pytest.importorskip("accelerate")
    config = tiny_config(
        tiny_dataset(tmp_path / "data"), tmp_path / "run", micro_batch_size=2, steps=3
    )
    (tmp_path / "c.yaml").write_text(dump_yaml(config))
    launch = (
        "-m",
        "accelerate.commands.launch",
        "--multi_gpu",
        "--num_processes",
        "2",
        "--main_process_port",
        "0",
    )
    train = (*UNDERSTUDY, "train", tmp_path / "c.yaml", "--device", "cpu", "--output-dir")
    for name, words in (
        ("one", ()),
        ("two", launch),
        ("refused", (*launch, "--mixed_precision", "bf16")),
    ):
        begun.append(Command(tmp_path / name, *words, *train, tmp_path / "runs" / name))
        code, text = begun[-1].end()
        assert (code == 0) == (name != "refused"), text
        assert ("2 processes" in text) == (name == "two")
        assert ("--precision bf16" in text) == (name == "refused")
    losses = [
        [record["loss"] for record in series(tmp_path / "runs" / name)] for name in ("one", "two")
    ]
    assert losses[0] == losses[1]
    assert not (tmp_path / "runs" / "refused").exists()
