"""Files of a run, read for a comparison, and its speed. Nothing is locked or written: an active run continues."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from understudy.config.schema import differences
from understudy.config.train import TrainConfig
from understudy.errors import CheckpointError, ConfigError
from understudy.records import Record
from understudy.report.run.rollouts import read_results
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir, read_settings
from understudy.train.track import metrics_file

TRAIN = ("loss", "grad_norm", "lr")
SPEED = ("samples_per_s", "wait", "tokens_per_s", "valid_share", "seconds", "gpu_bytes", "host_bytes")


@dataclass(frozen=True)
class Run:
    """One run of a comparison."""

    letter: str
    """A, B, …: its name in tables."""
    name: str
    """The last two parts of its path, more where another run has the same."""
    root: Path
    config: TrainConfig
    """Settings, the latest where it was resumed with others."""
    changed: dict[str, tuple[Any, Any]]
    """Dotted path -> (at the start, now) of the settings that a resume changed."""
    record: dict[str, Any]
    """Content of order.json."""
    versions: dict[str, str]
    """Versions of the latest checkpoint; empty without one."""
    state: str
    step: int
    """Steps that are logged."""
    train: dict[str, np.ndarray]
    """`step` int64 (N,) and `TRAIN` float64 (N,), NaN where a value was not finite."""
    speed: dict[str, np.ndarray]
    """`step` int64 (M,) and `SPEED` float64 (M,), NaN where a log has no such value."""
    skipped: int
    """Steps whose gradient was not finite."""
    val: list[dict[str, Any]]
    """Records of the validations, oldest first."""
    rollout: list[dict[str, Any]]
    """Records of the rollouts during training, by step."""
    results: list[dict[str, Any]]
    """Results of `understudy rollout`."""
    positions: np.ndarray
    """int64 (K, 2): step and number of consumed samples of each checkpoint, ascending."""

    def samples_at(self, steps: np.ndarray) -> np.ndarray:
        """Return the number of samples consumed after each step, float64 (N,).

        Exact for a constant batch size. Otherwise linear between checkpoints, which are exact.
        """
        positions = np.concatenate([[[0, 0]], self.positions])
        last_step, last_samples = positions[-1]
        after = last_samples + (steps - last_step) * self.config.batch_size
        return np.where(steps > last_step, after, np.interp(steps, positions[:, 0], positions[:, 1]))

    def seconds_at(self, steps: np.ndarray) -> np.ndarray:
        """Return the training time up to each step in seconds, float64 (N,); NaN without a log of the speed.

        The seconds of all processes of the run are added; steps that a kill lost are not in them.
        """
        if not len(self.speed["step"]):
            return np.full(len(steps), np.nan)
        logged, seconds = self.speed["step"], self.speed["seconds"]
        ends = np.flatnonzero(np.diff(seconds) < 0)  # the last log of each process but the last
        total = seconds + np.concatenate([[0.0], np.cumsum(np.isin(np.arange(len(seconds) - 1), ends) * seconds[:-1])])
        return np.interp(steps, np.concatenate([[0], logged]), np.concatenate([[0.0], total]))


def read_runs(roots: Sequence[Path]) -> list[Run]:
    """Read one or more runs.

    Raises:
        ConfigError: A folder is not a run, or is named twice.
    """
    real = [root.resolve() for root in roots]
    for root, count in Counter(real).items():
        if count > 1:
            raise ConfigError(f"run: {root} is named {count} times; name each run once")
    return [_read(root, letter, name) for root, letter, name in zip(roots, _letters(), _names(real))]


def _read(root: Path, letter: str, name: str) -> Run:
    files = RunDir(root)
    config = files.settings()
    record = files.read_record()
    train: dict[str, list[Any]] = {key: [] for key in ("step", *TRAIN)}
    speed: dict[str, list[Any]] = {key: [] for key in ("step", *SPEED)}
    others: dict[str, list[dict[str, Any]]] = {"val": [], "rollout": []}
    skipped = 0
    for line in metrics_file.iterate(files.metrics):
        table = {"train": train, "speed": speed}.get(line["kind"])
        if table is not None:
            for key, values in table.items():
                values.append(line.get(key))
            skipped += line.get("skipped", 0)
        elif line["kind"] in others:
            others[line["kind"]].append(line)
    tables = [{key: _array(key, values) for key, values in table.items()} for table in (train, speed)]
    step = int(tables[0]["step"][-1]) if train["step"] else 0
    states = _checkpoints(files.checkpoints)
    started = read_settings(record["settings"], files.order)
    return Run(
        letter=letter,
        name=name,
        root=root,
        config=config,
        changed={path: pair for path, pair in differences(started, config).items() if path != "output_dir"},
        record=record,
        versions=dict(states[-1].get("versions", {})) if states else {},
        state=_state(files, step >= config.steps),
        step=step,
        train=tables[0],
        speed=tables[1],
        skipped=skipped,
        val=others["val"],
        rollout=sorted(others["rollout"], key=lambda line: line["step"]),
        results=read_results(files.rollouts),
        positions=np.array([[s["step"], s["position"]] for s in states], np.int64).reshape(-1, 2),
    )


def _array(key: str, values: Sequence[Any]) -> np.ndarray:
    if key == "step":
        return np.array(values, np.int64)
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _checkpoints(folder: Path) -> list[Record]:
    """States of the complete checkpoints that can be read, by step."""
    states = []
    for path in sorted(folder.glob("step-*")) if folder.is_dir() else []:
        if path.name.endswith(".tmp"):
            continue
        with suppress(CheckpointError, OSError, KeyError):  # a comparison is useful for a damaged run, too
            state = checkpoint.read_state(path)
            states.append(
                {name: state[name] for name in ("step", "position")} | {"versions": state.get("versions", {})}
            )
    return sorted(states, key=lambda state: state["step"])


def _state(files: RunDir, complete: bool) -> str:
    if files.is_active():
        return "running"
    return "complete" if complete else "not complete: stopped, or running on another host"


def _letters() -> list[str]:
    capitals = [chr(ord("A") + i) for i in range(26)]
    return capitals + [first + second for first in capitals for second in capitals]


def _names(roots: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths, two parts or more, that differ from each other."""
    for parts in range(2, max(len(root.parts) for root in roots) + 1):
        names = ["/".join(root.parts[-parts:]) for root in roots]
        if len(set(names)) == len(names):
            break
    return [name.replace("//", "/") for name in names]


def speeds(runs: Sequence[Run]) -> dict[str, dict[str, float | None]]:
    """Return figures by letter; None where a run has not logged one.

    `samples_per_s`, `tokens_per_s`, `valid_share` and `wait` are medians over the logs, `seconds` the training time,
    `gpu_bytes` and `host_bytes` the largest logged values (of rank 0), `skipped` the steps whose gradient was not
    finite, `loss` the mean of the last 100 finite training losses.
    """
    return {run.letter: _figures(run) for run in runs}


def _figures(run: Run) -> dict[str, float | None]:
    medians = ("samples_per_s", "tokens_per_s", "valid_share", "wait")
    figures: dict[str, float | None] = {name: _over(np.median, run.speed[name]) for name in medians}
    figures |= {name: _over(np.max, run.speed[name]) for name in ("gpu_bytes", "host_bytes")}
    last = run.speed["step"][-1:]
    figures["seconds"] = float(run.seconds_at(last)[0]) if len(last) else None
    losses = run.train["loss"]
    figures["loss"] = _over(np.mean, losses[np.isfinite(losses)][-100:])
    return figures | {"steps": run.step, "skipped": run.skipped}


def _over(reduce: Any, values: np.ndarray) -> float | None:
    finite = values[np.isfinite(values)]
    return float(reduce(finite)) if len(finite) else None
