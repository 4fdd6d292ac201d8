"""`train`, `resume` and `validate` as a person calls them: the run itself, and then its report."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy.config.declare import Ge, Positional

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig


def train(config: "TrainConfig") -> int:
    """Start a run; write its report when it ends or is stopped."""
    return _run("train", config)


def resume(config: "TrainConfig") -> int:
    """Carry a run on; write its report when it ends or is stopped."""
    return _run("resume", config)


def _run(verb: str, config: "TrainConfig") -> int:
    from understudy.distributed.signals import Stopped, stop_signals
    from understudy.extras import is_installed

    report = config.log.report and _speaks()
    if report and not is_installed("report"):
        print("note: matplotlib is not installed, so no report.html: pip install 'understudy[report]'", file=sys.stderr)
        report = False
    try:
        with stop_signals(at_once=True):  # importing torch takes seconds
            from understudy.train import run

        code = run.train(config) if verb == "train" else run.resume(config)
    except Stopped as asked:
        print(f"stopped by {asked} before anything was begun", file=sys.stderr)
        return 75
    policy = Path(config.output_dir, "policy")
    if code == 0 and _speaks() and policy.is_dir():
        print(f"policy: {policy}")
    if report and Path(config.output_dir, "config.yaml").exists():
        from understudy.report.run.page import write_report

        print(f"report: {write_report(Path(config.output_dir))}")
    return code


def _speaks() -> bool:
    """Whether this process is the one of its run that writes and prints."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class ValidateConfig:
    """Held-out loss per norm head, source and task of a checkpoint; the run itself found the same at that step."""

    run: Positional[str] = ""
    """Run directory."""
    checkpoint: Annotated[int, Ge(0)] | Literal["latest", "best"] = "latest"
    """Step of the checkpoint, or which one; `best` is that by the run's `keep_best`, else by the loss."""
    per_dim: bool = False
    """Also tell the action's loss by dimension."""
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        return [] if self.run else ["run: required, the directory of a run"]


def validate(config: ValidateConfig) -> None:
    """Print the tables."""
    import json

    from understudy.report.run.tables import told
    from understudy.train.checkpoint.run_dir import RunDir
    from understudy.train.run import evaluate_checkpoint
    from understudy.train.track.metrics_file import finite

    result = finite(evaluate_checkpoint(Path(config.run), config.checkpoint, per_dim=config.per_dim))
    if _speaks():
        mode = RunDir(Path(config.run)).settings().val_mode()
        print(json.dumps(result, ensure_ascii=False) if config.json else told(result, mode))
