"""Throughput, waiting, memory and time of several runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy.report.compare.runs import Run


def speeds(runs: Sequence[Run]) -> dict[str, dict[str, float | None]]:
    """Return figures by letter; None where a run has not logged one.

    `samples_per_s`, `tokens_per_s`, `valid_share` and `wait` are medians over the logs, `seconds` the training time,
    `gpu_bytes` and `host_bytes` the largest logged values (of rank 0), `skipped` the steps whose gradient was not
    finite, `loss` the mean of the last 100 finite training losses.
    """
    return {run.letter: _figures(run) for run in runs}


def _figures(run: Run) -> dict[str, float | None]:
    medians = ("samples_per_s", "tokens_per_s", "valid_share", "wait")
    found: dict[str, float | None] = {name: _over(np.median, run.speed[name]) for name in medians}
    found |= {name: _over(np.max, run.speed[name]) for name in ("gpu_bytes", "host_bytes")}
    last = run.speed["step"][-1:]
    found["seconds"] = float(run.seconds_at(last)[0]) if len(last) else None
    losses = run.train["loss"]
    found["loss"] = _over(np.mean, losses[np.isfinite(losses)][-100:])
    return found | {"steps": run.step, "skipped": run.skipped}


def _over(reduce: Any, values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(reduce(known)) if len(known) else None
