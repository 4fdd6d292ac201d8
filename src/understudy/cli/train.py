"""`understudy train` and `understudy resume`: run a training, or continue one, then write its report."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig


def train(config: "TrainConfig") -> int:
    """Start a run; write its report when it ends or stops. Returns the exit code."""
    return run_and_report("train", config)


def resume(config: "TrainConfig") -> int:
    """Continue a run; write its report when it ends or stops. Returns the exit code."""
    return run_and_report("resume", config)


def run_and_report(command: str, config: "TrainConfig") -> int:
    """Train or resume, then write the report on rank 0. Returns the exit code.

    Args:
        command: "train" or "resume".
        config: The settings of the run.
    """
    from understudy.distributed.signals import Stopped, stop_signals

    report = config.log.report and is_rank_0()
    try:
        with stop_signals(at_once=True):  # importing torch takes seconds
            from understudy.train import run

        code = run.train(config) if command == "train" else run.resume(config)
    except Stopped as signal:
        print(f"stopped by {signal} before training began", file=sys.stderr)
        return 75
    policy = Path(config.output_dir, "policy")
    if code == 0 and is_rank_0() and policy.is_dir():
        print(f"policy: {policy}")
    if report and Path(config.output_dir, "config.yaml").exists():
        from understudy.report.run.page import write_report

        print(f"report: {write_report(Path(config.output_dir), predict=False)}")
    return code


def is_rank_0() -> bool:
    """Whether this process is the one that prints and writes for its run."""
    return os.environ.get("RANK", "0") == "0"
