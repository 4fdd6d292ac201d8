"""Train one run with Ray Train on the hosts of a Ray cluster, and resume it after every failure.

    python recipes/ray/train.py RUN CONFIG.yaml --workers 32 [--min-workers 8] [--setting value ...]

Ray places one worker per GPU and joins them in a process group, which the run takes as its own. RUN
is in a folder that all hosts share. Exit codes: 0 complete, 75 stopped with a checkpoint, 2 wrong
settings or data, 1 a failure.
"""

import argparse
import os
import sys
import threading
from pathlib import Path
from typing import Any

import ray
import ray.train
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer

from understudy.cli.runs import run_and_report
from understudy.config.train import TrainConfig
from understudy.policies.own_code.trusted import NAMED
from understudy.policies.own_code.types import GIVEN
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.paths import resolve_paths
from understudy_base import (
    ConfigError,
    DataAccessError,
    UnderstudyError,
    is_wrong_input,
    show_log,
)
from understudy_kit import plain, validate
from understudy_kit.cli.main import read_settings

STOPPED, WRONG_INPUT, FAILED = 75, 2, 1


def train_worker(content: dict[str, Any]) -> tuple[int, str]:
    """Run on each worker: train, or resume if RUN exists. Returns the exit code and a message.

    The settings come as plain values: their class may be of a policy's file, which a worker imports
    for itself.

    Raises:
        RankError: another worker disappeared. Ray then restarts all workers, as after any other
            error.
        Preempted: a host will be taken away, and the run has saved a checkpoint.
    """
    show_log()
    try:
        config = validate(TrainConfig, content, fresh=False)
    except ConfigError as error:
        return WRONG_INPUT, str(error)
    run = RunDir(Path(config.output_dir))
    # Rank 0 decides: the view of a shared folder may differ between hosts for seconds.
    command = broadcast_from_rank_zero("resume" if run.config.exists() else "train")
    with StopBeforePreemption(run) as preemption:
        try:
            code = run_and_report(command, run.settings() if command == "resume" else config)
        except (ConfigError, DataAccessError) as error:
            if not is_wrong_input(error):
                raise  # an outage: a restart may help
            return WRONG_INPUT, str(error)
    if code == STOPPED and preemption.seen:
        raise Preempted(f"{run.root}: saved a checkpoint, because Ray drains a host of this run")
    return code, ""


class Preempted(UnderstudyError, OSError):
    """The run has stopped with a checkpoint before its host disappears; a restart resumes it."""


class StopBeforePreemption:
    """Stop the run with a checkpoint as soon as Ray drains one of its hosts.

    Signals do not reach the training, since Ray runs it beside the main thread of a worker. The
    file RUN/STOP does.
    """

    def __init__(self, run: RunDir) -> None:
        self.run, self.seen = run, False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        is_first = ray.train.get_context().get_world_rank() == 0
        while not self._ended.wait(5.0):
            # Every worker asks equally often: Ray answers when all of them have.
            self.seen = self.seen or ray.train.get_preemption_info() is not None
            if self.seen and is_first and not self._ended.is_set():
                self.run.stop.touch()

    def __enter__(self) -> "StopBeforePreemption":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()


def main() -> int:
    """Check the settings, start the workers and wait for the run; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("run", type=Path, help="folder of the run, on storage that all hosts share")
    parser.add_argument("config", help="settings file")
    parser.add_argument(
        "--workers", type=int, required=True, help="number of processes, one per GPU"
    )
    parser.add_argument(
        "--min-workers", type=int, help="continue with fewer, down to this, if hosts are missing"
    )
    parser.add_argument(
        "--max-failures", type=int, default=100, help="restarts before the run is given up"
    )
    ours, settings = parser.parse_known_args()
    if not Path(ours.config).is_file():
        parser.error(
            f"{ours.config}: no settings file; it is the second argument, after the folder of the "
            "run"
        )
    run = ours.run.absolute()
    try:
        # Workers have another working directory.
        config = resolve_paths(
            read_settings("train", [ours.config, "--output-dir", str(run), *settings])
        )
    except ConfigError as error:
        print(error, file=sys.stderr)
        return WRONG_INPUT
    # Code of a policy of your own is imported only where it is named by hand: the workers get these
    # names, too.
    named = {name: os.environ[name] for name in (NAMED, GIVEN) if name in os.environ}
    content = plain(config)
    ray.init(ignore_reinit_error=True, runtime_env={"env_vars": named})
    use_gpu = config.device == "cuda" or (
        config.device == "auto" and ray.cluster_resources().get("GPU", 0) > 0
    )
    trainer = TorchTrainer(
        # no `train_loop_config`: Ray would publish the settings in its dashboard
        lambda: train_worker(content),
        torch_config=TorchConfig(
            "cpu:gloo,cuda:nccl" if use_gpu else "gloo", timeout_s=int(config.parallel.timeout)
        ),
        scaling_config=ray.train.ScalingConfig(
            num_workers=(ours.min_workers, ours.workers) if ours.min_workers else ours.workers,
            use_gpu=use_gpu,
        ),
        run_config=ray.train.RunConfig(
            name=run.name,
            storage_path=str(run.parent / ".ray"),  # Ray's own records; the run needs none of them
            failure_config=ray.train.FailureConfig(max_failures=ours.max_failures),
        ),
    )
    try:
        result = trainer.fit()
    except ray.train.TrainingFailedError as error:
        print(error, file=sys.stderr)
        return FAILED
    code, message = result.return_value
    if message:
        print(message, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
