"""recipes/ray: a run in Ray Train resumes at the exact next sample after a kill, a lost host and a
drained one.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from understudy.config.train import ParallelConfig, ScheduleConfig, TrainConfig
from understudy.testing.runs import same_run, series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy_kit import dump_yaml

pytest.importorskip("ray.train", reason="needs Ray (nox -s ray)")

RECIPE = Path(__file__).parents[2] / "recipes/ray/train.py"
STEPS = 120
EVERY = 25
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def settings(data: Path, out: Path, **changes: Any) -> TrainConfig:
    """A run whose bits do not depend on the number of processes, slow enough to be killed in the
    middle.
    """
    return tiny_config(
        data,
        out,
        device="cpu",
        steps=STEPS,
        micro_batch_size=2,
        schedule=ScheduleConfig("constant", warmup_steps=3),
        parallel=ParallelConfig(timeout=120),
        log={"every": 1, "report": False},
        checkpoint={"every": EVERY},
        val={"every": 50},
        **changes,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one process, never stopped."""
    root = tmp_path_factory.mktemp("ray")
    assert run.train(settings(tiny_dataset(root / "dataset"), root / "whole")) == run.DONE
    return root / "whole"


@pytest.fixture(scope="module")
def first_host() -> Iterator[Any]:
    """A Ray cluster with a host of one CPU: its processes, on this machine."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        yield made
        made.shutdown()


@pytest.fixture
def cluster(first_host: Any) -> Iterator[Any]:
    """A cluster of two hosts, of one CPU each."""
    node = first_host.add_node(num_cpus=1)
    first_host.wait_for_nodes()
    yield first_host
    if node in first_host.list_all_nodes():
        first_host.remove_node(node)


@pytest.fixture
def train(cluster: Any) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Start the recipe's command for a config; its output goes to the file `out` beside the run."""
    with ExitStack() as stack:

        def start(config: TrainConfig, *options: str) -> "subprocess.Popen[bytes]":
            folder = Path(config.output_dir).parent
            (folder / "config.yaml").write_text(dump_yaml(config))
            out = stack.enter_context((folder / "out").open("wb"))
            command = [
                sys.executable,
                str(RECIPE),
                config.output_dir,
                str(folder / "config.yaml"),
                "--workers",
                "2",
            ]
            env = {**os.environ, "RAY_ADDRESS": cluster.address}
            process = subprocess.Popen(
                [*command, *options], env=env, stdout=out, stderr=subprocess.STDOUT, cwd=folder
            )
            stack.callback(process.wait)
            stack.callback(process.kill)  # Ray ends the workers of a driver that is gone
            return process

        yield start


def wait_for(process: "subprocess.Popen[bytes]", root: Path, step: int) -> None:
    """Wait until the run has logged a step."""
    while not series(root) or series(root)[-1]["step"] < step:
        assert process.poll() is None, (root.parent / "out").read_text()
        time.sleep(0.05)


def finish(process: "subprocess.Popen[bytes]", root: Path) -> tuple[int, str, list[int]]:
    """Wait for the end; returns the exit code, the output and the steps from which the run
    resumed.
    """
    code = process.wait()
    out = (root.parent / "out").read_text()
    return (
        code,
        out,
        list(dict.fromkeys(int(step) for step in re.findall(r"resume: from step-(\d+)", out))),
    )


def processes(root: Path) -> tuple[int, int]:
    """Process of rank 0, which holds the lock of the run, and of the other rank."""
    inode = (root / ".lock").stat().st_ino
    [first] = {
        int(line.split()[4])
        for line in Path("/proc/locks").read_text().splitlines()
        if f":{inode} " in line
    }
    started = {}
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended since
            if b"RayTrainWorker" in (path / "cmdline").read_bytes():
                started[int(path.name)] = int(
                    (path / "stat").read_text().rpartition(")")[2].split()[19]
                )
    started.pop(first)
    # those of an earlier start may still be there
    return first, max(started, key=lambda pid: started[pid])


def test_run_is_identical_after_each_worker_was_killed(
    train: Callable[..., Any], whole: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    process = train(settings(whole.parent / "dataset", root))
    for rank, step in ((1, 30), (0, 55)):
        wait_for(process, root, step)
        os.kill(processes(root)[rank], signal.SIGKILL)
    code, out, resumed = finish(process, root)
    assert code == 0, out
    assert len(resumed) == 2, out
    same_run(whole, root)


def test_run_is_identical_after_a_host_is_lost_and_its_worker_left_out(
    cluster: Any, train: Callable[..., Any], whole: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    process = train(settings(whole.parent / "dataset", root), "--min-workers", "1")
    wait_for(process, root, 30)
    cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
    code, out, resumed = finish(process, root)
    assert code == 0, out
    assert len(resumed) == 1, out
    assert "1 process on cpu" in out
    same_run(whole, root)


def test_drained_host_loses_no_step(
    cluster: Any, train: Callable[..., Any], whole: Path, tmp_path: Path
) -> None:
    root = tmp_path / "run"
    process = train(settings(whole.parent / "dataset", root), "--min-workers", "1")
    wait_for(process, root, 30)
    node = cluster.list_all_nodes()[1].node_id
    drain = [
        Path(sys.executable).with_name("ray"),
        "drain-node",
        "--address",
        cluster.address,
        "--node-id",
        node,
    ]
    drain += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "spot"]
    subprocess.run([*drain, "--deadline-remaining-seconds", "120"], check=True)
    code, out, resumed = finish(process, root)
    assert code == 0, out
    [step] = resumed
    assert step % EVERY != 0, out  # a checkpoint of its own
    same_run(whole, root)


def test_exit_codes_without_a_restart(
    train: Callable[..., Any], whole: Path, tmp_path: Path
) -> None:
    """A stop by file ends with 75, data that cannot be used with 2. A relative path is that of the
    driver's folder.
    """
    (tmp_path / "stopped").mkdir()
    root = tmp_path / "stopped/run"
    process = train(settings(Path(os.path.relpath(whole.parent / "dataset", root.parent)), root))
    wait_for(process, root, 5)
    (root / "STOP").touch()
    code, out, resumed = finish(process, root)
    assert (code, resumed) == (75, []), out
    assert checkpoint.find_latest(RunDir(root).checkpoints) is not None
    code, out, resumed = finish(train(settings(whole.parent / "dataset", root)), root)
    assert code == 0, out
    assert len(resumed) == 1, out
    same_run(whole, root)
    (tmp_path / "wrong").mkdir()
    root = tmp_path / "wrong/run"
    code, out, _ = finish(train(settings(tmp_path / "missing", root)), root)
    assert code == 2, out
    assert str(tmp_path / "missing") in out
    assert not root.joinpath("config.yaml").exists()
