"""`understudy score RUN DATA OUT`: values, advantages and their sign as columns of a new
dataset.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from understudy_base import (
    DRAFT_SUFFIX,
    BeingWritten,
    DatasetError,
    Progress,
    Record,
    available_cores,
    hold_folder,
    load_entry_point,
)
from understudy_data import Workers
from understudy_kit import Ge, Interval, Positional, WorkersConfig

if TYPE_CHECKING:
    import numpy as np

    from understudy_data import Catalog, Feature
    from understudy_zoo.score import ValueFunction

VALUE = "value"
ADVANTAGE = "advantage"
POSITIVE = "advantage_is_positive"
DTYPES = {VALUE: "float32", ADVANTAGE: "float32", POSITIVE: "bool"}
"""Columns that are written, with their dtypes."""


class Copy(Protocol):
    """A copy of a dataset with new columns (`cli/copies.py`)."""

    def __init__(self, catalog: "Catalog", data: str, out: Path) -> None: ...

    @staticmethod
    def problems(paths: Sequence[str], command: str) -> list[str]:
        """List errors of the arguments SRC OUT of a command."""

    @property
    def features(self) -> "Mapping[str, Feature]":
        """Features of the copy, without new ones."""

    @property
    def work(self) -> int:
        """Frames that `write` counts."""

    def digest(self) -> str:
        """Return a digest of the dataset's files."""

    def check(self) -> None:
        """Raise DatasetError where the folder has been taken since."""

    def write(
        self,
        features: "Mapping[str, Feature]",
        columns: "Mapping[str, Mapping[int, np.ndarray]]",
        origin: Record,
        workers: Workers,
        count: Callable[[int], None],
    ) -> None:
        """Write the copy with new columns, column -> table row -> numbers."""


def copy_type() -> type[Copy]:
    """Return the class of copies, of the distribution of `understudy edit`.

    Raises:
        MissingExtraError: it is not installed.
    """
    kind: type[Copy] = load_entry_point(
        "understudy.writers", "copy", "the writer of datasets", "tools"
    )
    return kind


@dataclass(frozen=True)
class ScoreConfig(WorkersConfig):
    """Write a dataset with the value and the advantage of each frame, by the value function of a
    run.

    The output is LeRobot v3.0 with the episodes of DATA and three more columns: `value`,
    `advantage`, and `advantage_is_positive` for the frames with the largest advantages of each
    task. Video packets are copied. A killed command continues where it was, and its output is equal
    to that of one that was not killed.
    """

    paths: Positional[tuple[str, ...]] = ()
    """Run directory of a value function (`policy.type` `value` or `value_pi05`), dataset to read (a
    folder or URL), and folder to write: a new or an empty one.
    """
    num_steps: Annotated[int, Ge(1)] = 50
    """Steps of the advantage: their rewards, and the value of the frame that follows them, minus
    the frame's own.
    """
    positive: Annotated[float, Interval(gt=0, lt=1)] = 0.3
    """Share of the frames of each task whose advantage is positive: those above this upper
    quantile.
    """
    interventions: str = ""
    """Feature with one number per frame that is not 0 where a human corrected the robot. Such
    frames are always positive.
    """
    source: str = ""
    """Source of the run's data whose keys and norm head the dataset has; the default is the only
    one.
    """
    device: str = "cpu"
    """Device of the arithmetic."""
    num_threads: Annotated[int, Ge(1)] | None = None
    """Threads of a process that read frames; the default is one per core."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        if len(self.paths) != 3:
            return [
                "paths: required, a run, a dataset and a new folder: understudy score RUN DATA OUT"
            ]
        errors = copy_type().problems(self.paths[1:], "score RUN") + self.worker_problems()
        if self.ray and self.device != "cpu":
            errors.append(
                f"device: {self.device}: tasks of a Ray cluster have one core each; give --device "
                "cpu"
            )
        return errors


def score(config: ScoreConfig) -> None:
    """Compute the values, write the output and print a summary."""
    from understudy_data import open_episodes
    from understudy_zoo.score import ComputeValues, compute_values, open_value_function

    run = Path(config.paths[0])
    data = config.paths[1]
    out = Path(config.paths[2])
    threads = config.num_threads or max(1, available_cores() // (config.workers or 1))
    catalog = open_episodes(data)
    copy = copy_type()(catalog, data, out)
    if taken := [key for key in DTYPES if key in copy.features]:
        fix = (
            "write a dataset without them first: understudy edit SRC OUT --drop-features "
            f"{' '.join(taken)}"
        )
        raise DatasetError(f"has {', '.join(taken)}", where=catalog.root, fix=fix)
    feature = copy.features.get(config.interventions)
    if config.interventions and (
        feature is None or feature.is_text or tuple(feature.shape) != (1,)
    ):
        problem = (
            f"interventions is {config.interventions!r}, which is not a feature with one "
            "number per frame"
        )
        raise DatasetError(
            problem, where=catalog.root, fix="name such a feature; `understudy check` lists them"
        )
    opened = run, data, config.source, config.device
    function = open_value_function(*opened)
    origin = describe(config, function, catalog.tasks, copy.digest())
    pieces = out.with_name(f".{out.name}.values")
    pieces.mkdir(parents=True, exist_ok=True)
    try:
        with hold_folder(pieces):
            copy.check()  # another command may have written it since
            work = ComputeValues(
                opened, threads, json.dumps(origin["values"], ensure_ascii=False), function
            )
            with Workers(config.workers or 1, config.ray, pieces) as workers:
                values = compute_values(work, len(function.dataset), workers)
            columns, summary = score_episodes(config, function, values)
            written = {"score": origin | {"tasks": summary}}
            pool = Workers(config.processes(copy.work), config.ray, config.work)
            with pool as workers, Progress(copy.work, "write", "frame") as bar:
                copy.write(_features(), columns, written, workers, bar.update)
            for path in (*pieces.glob("*.part"), *pieces.glob(f".*{DRAFT_SUFFIX}")):
                path.unlink()
            with suppress(OSError):  # has other files
                pieces.rmdir()
    except BeingWritten as error:
        fix = "wait for its end, or name another folder"
        raise DatasetError("another process is writing it", where=out, fix=fix) from error
    if config.json:
        print(
            json.dumps(
                {"root": str(out), "frames": len(values), "tasks": summary}, ensure_ascii=False
            )
        )
        return
    print(f"{out}: {len(values):,} frames with {', '.join(DTYPES)}")
    for task, figures in summary.items():
        share = f"{figures['positive']:.1%} of {figures['frames']:,} frames"
        print(
            f"  {task}: value {figures['value']:.4g}, {share} positive: advantage above "
            f"{figures['threshold']:.4g}"
        )


def describe(
    config: ScoreConfig, function: "ValueFunction", tasks: Sequence[str], digest: str
) -> dict[str, Any]:
    """Return the origin of the columns for meta/edit.json.

    Args:
        config: the settings.
        function: the value function.
        tasks: texts of the dataset's tasks.
        digest: of the dataset's files.

    Returns:
        `values`, all that the values depend on, and the settings of the advantage.
    """
    import av
    import torch

    from understudy_base import __version__

    causes = {
        "policy": dict(function.checksums),
        "data": digest,
        "tasks": hashlib.sha256("\0".join(tasks).encode()).hexdigest(),
        "source": dict(function.source),
        "device": config.device,
        "versions": {"understudy": __version__, "torch": torch.__version__, "av": av.__version__},
    }
    outcomes = function.dataset.returns.digest if function.dataset.returns is not None else ""
    return {
        "values": causes,
        "returns": dict(function.policy.config.return_target()),
        "outcomes": outcomes,
        **{name: getattr(config, name) for name in ("num_steps", "positive", "interventions")},
    }


def score_episodes(
    config: ScoreConfig, function: "ValueFunction", values: "np.ndarray"
) -> tuple[dict[str, dict[int, "np.ndarray"]], dict[str, dict[str, float]]]:
    """Compute the columns of each episode, and figures of each task.

    Args:
        config: the settings.
        function: the value function and the dataset.
        values: float32 (N,), of all frames.

    Returns:
        Column -> table row -> numbers (T, 1); and task -> frames, mean value, threshold, and share
        of positive frames.
    """
    import numpy as np

    from understudy_data import Rows
    from understudy_zoo.score import n_step_advantages

    catalog = function.dataset.catalog
    returns = function.dataset.returns
    assert returns is not None
    interventions = [config.interventions] if config.interventions else []
    reader = Rows(catalog, ["task_index", *interventions, *returns.columns], 1 << 28)
    rows = [
        catalog.episodes.row_of(episode) for episode in function.dataset.segments[:, 0].tolist()
    ]
    lengths = [int(catalog.episodes.lengths[row]) for row in rows]
    of_episode = np.split(values, np.cumsum(lengths)[:-1])
    advantages = []
    tasks = []
    helped = []
    for row, length, episode_values in zip(rows, lengths, of_episode, strict=True):
        rewards, is_terminal = returns.rewards(row, reader)
        discount = returns.target.discount
        if not np.isfinite(episode_values).all():
            episode = int(catalog.episodes.ids[row])
            problem = (
                f"the value of frame {int(np.isfinite(episode_values).argmin())} of episode "
                f"{episode} is not finite"
            )
            fix = (
                "look for such states: understudy check; or leave it out: understudy edit "
                f"--exclude-episodes {episode}"
            )
            raise DatasetError(problem, where=catalog.root, fix=fix)
        advantages.append(
            n_step_advantages(episode_values, rewards, is_terminal, config.num_steps, discount)
        )
        tasks.append(reader.span(row, "task_index", 0, length)[:, 0])
        changed = np.zeros(length)
        if config.interventions:
            changed = reader.span(row, config.interventions, 0, length)[:, 0]
        helped.append(changed != 0)
    task = np.concatenate(tasks)
    advantage = np.concatenate(advantages)
    positive = np.concatenate(helped)
    summary = {}
    for number in np.unique(task).tolist():
        of_task = task == number
        threshold = float(np.quantile(advantage[of_task], 1 - config.positive))
        positive[of_task] |= advantage[of_task] > threshold
        means = {"value": float(values[of_task].mean(dtype=np.float64)), "threshold": threshold}
        share = {"positive": float(positive[of_task].mean()), "frames": int(of_task.sum())}
        summary[catalog.tasks[number]] = means | share
    numbers = {VALUE: values, ADVANTAGE: advantage, POSITIVE: positive}
    stops = np.cumsum(lengths)[:-1]
    columns = {
        key: dict(zip(rows, np.split(of_frames.astype(DTYPES[key])[:, None], stops)))
        for key, of_frames in numbers.items()
    }
    return columns, summary


def _features() -> dict[str, "Feature"]:
    from understudy_data import check_features

    return check_features(
        {key: {"dtype": dtype, "shape": (1,), "names": [key]} for key, dtype in DTYPES.items()}
    )
