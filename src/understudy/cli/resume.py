"""`understudy resume RUN`: continue a run at the exact next sample, then write its report."""

from typing import TYPE_CHECKING

from understudy.cli.train import run_and_report

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig


def resume(config: "TrainConfig") -> int:
    """Continue a run; write its report when it ends or stops. Returns the exit code."""
    return run_and_report("resume", config)
