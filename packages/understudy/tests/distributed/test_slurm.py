"""The sbatch script on a SLURM of two virtual hosts: one training over both, stopped, requeued,
carried on, done.
"""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from understudy.testing.docs import SOURCES
from understudy.testing.runs import series, tiny_config, tiny_dataset
from understudy.testing.slurm import cluster, missing, wait_for
from understudy.train.checkpoint.run_dir import RunDir
from understudy_kit import dump_yaml

SCRIPT = Path(__file__).parents[4] / "scripts" / "slurm" / "train.sbatch"
STEPS = 300


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_job_that_is_stopped_goes_back_into_the_queue_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if absent := missing():
        pytest.skip(f"no SLURM here ({', '.join(absent)}): apt-get install slurm-wlm munge")
    binaries = tmp_path / "bin"
    binaries.mkdir()
    command = binaries / "understudy"  # as a person's environment has it
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m understudy "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # no name server knows the virtual hosts
    monkeypatch.setenv("RANKS_PER_NODE", "1")
    run = tmp_path / "run"
    file = tmp_path / "c.yaml"
    config = tiny_config(
        tiny_dataset(tmp_path / "dataset"),
        run,
        val={"every": 0},
        log={"report": False},
        checkpoint={"every": 10_000},
    )
    file.write_text(dump_yaml(config))
    log = tmp_path / "job.log"
    with cluster() as slurm:
        asked = ["--parsable", "--nodes=2", f"--output={log}", SCRIPT, run, file, "--steps", STEPS]
        job = slurm.call("sbatch", *asked).strip()

        def logs() -> str:
            return "\n".join([log.read_text() if log.exists() else "", slurm.logs()])

        wait_for(lambda: len(series(run)) >= 3, 200, logs)
        # as --signal=USR1@120 does two minutes before the time limit
        slurm.call("scancel", "--signal=USR1", job)
        wait_for(lambda: slurm.job(job)["JobState"] in ("COMPLETED", "FAILED"), 300, logs)
        end = slurm.job(job)
    said = log.read_text()
    assert (end["JobState"], end["ExitCode"], end["Restarts"]) == ("COMPLETED", "0:0", "1"), said
    assert said.count("back into the queue") == 1
    stopped = int(said.split("stopped at step ")[1].split()[0])
    assert 3 <= stopped < STEPS
    assert f"resume: from step-{stopped:08d}" in said
    assert [record["step"] for record in series(run)] == list(range(1, STEPS + 1))
    (last,) = RunDir(run).checkpoints.glob(f"*{STEPS}")
    assert json.loads((last / "state.json").read_text())["world"] == 2
    assert signal.SIGUSR1.name not in said  # no process died of it
