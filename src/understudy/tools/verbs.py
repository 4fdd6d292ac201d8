"""`train`, `resume` and `validate` as a person calls them: the run itself, and then its report.

Not here: how a run trains (`train/run.py`), what the report shows (`report.py`).
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

if TYPE_CHECKING:
    from understudy.train.config import TrainConfig


def train(config: "TrainConfig") -> int:
    """Start a run; write its report when it ends or is stopped."""
    return _run("train", config)


def resume(config: "TrainConfig") -> int:
    """Carry a run on; write its report when it ends or is stopped."""
    return _run("resume", config)


def _run(verb: str, config: "TrainConfig") -> int:
    from understudy.train.signals import Stopped, stop_signals

    try:
        with stop_signals(at_once=True):  # importing torch takes seconds
            from understudy.train import run

        code = run.train(config) if verb == "train" else run.resume(config)
    except Stopped as asked:
        print(f"stopped by {asked} before anything was begun", file=sys.stderr)
        return 75
    if config.report and _speaks() and Path(config.out, "config.yaml").exists():
        from understudy.tools.report import write_report

        print(f"report: {write_report(Path(config.out))}")
    return code


def _speaks() -> bool:
    """Whether this process is the one of its run that writes and prints."""
    return os.environ.get("RANK", "0") == "0"


@dataclass(frozen=True)
class ValidateConfig:
    """Held-out loss per task of a run's latest checkpoint; the run's own validation at that step gave the same."""

    run: Positional[str] = ""
    """Run directory."""
    json: bool = False
    """Print one JSON object."""

    def problems(self) -> list[str]:
        return [] if self.run else ["run: required, the directory of a run"]


def validate(config: ValidateConfig) -> None:
    """Print the table."""
    import json

    from understudy.train.run import judge

    result = judge(Path(config.run))
    if not _speaks():
        return
    if config.json:
        print(json.dumps(result, ensure_ascii=False))
        return
    width = max(len(task) for task in [*result["tasks"], "all samples"])
    print(f"step {result['step']}, held-out loss")
    for task, entry in result["tasks"].items():
        print(f"  {task:<{width}}  {entry['loss']:.5f}  {entry['samples']} samples")
    print(f"  {'all samples':<{width}}  {result['loss']:.5f}")
    print(f"  {'mean of tasks':<{width}}  {result['macro']:.5f}")
