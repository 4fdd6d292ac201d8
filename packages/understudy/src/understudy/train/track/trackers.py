"""Log of a run's metrics: metrics.jsonl always, and on request TensorBoard, Weights & Biases,
Trackio.

metrics.jsonl is the reference, trackers mirror it. A resumed run returns to its checkpoint:
metrics.jsonl is truncated there, and each tracker is brought to the same step before anything new
is written:

    tensorboard   rewritten from metrics.jsonl below RUN/tensorboard (with the times of the old
                  events)
    wandb         online: continues the run of the same id after the last step on the server.
                  Offline: a new offline folder with everything so far replaces the old ones, so
                  that one folder is the whole run
    trackio       continues the run of the same name after the last step in its storage

No step is missing or duplicated in any of them, however the process ended. A step that wandb or
Trackio had received before the run computed it again keeps its first value, since they cannot be
truncated. (On the same number of processes both are equal bit for bit.) A tracker that fails during
training is logged once and dropped; the next resume brings it up to date.
"""

import json
import logging
import math
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from understudy.train.track import metrics_file
from understudy_base import ConfigError, Record, write_text

PROJECT = "understudy"
"""Project name in wandb and Trackio."""
Values = dict[str, float]

logger = logging.getLogger(__name__)


def run_id(root: Path) -> str:
    """Return the run's id in the services, made once and stored in RUN/trackers.json, so the folder
    may be renamed.
    """
    path = root / "trackers.json"
    if not path.exists():
        write_text(path, json.dumps({"id": secrets.token_hex(8), "name": root.name}) + "\n")
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged; remove it to start a new run there") from error


class TensorBoard:
    """Event files below RUN/tensorboard: `tensorboard --logdir` shows them."""

    last_step = 0

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = Event
        self._summary = Summary
        folder = root / "tensorboard"
        self._old = sorted(folder.glob("events.*")) if folder.is_dir() else []
        self._times = _times(self._old)  # only the old events have the time of each step
        self._writer = EventFileWriter(str(folder))

    def write(self, step: int, values: Values) -> None:
        """Add one row."""
        summary = self._summary(
            value=[self._summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
        )
        wall_time = self._times.get(step, time.time())
        self._writer.add_event(self._event(wall_time=wall_time, step=step, summary=summary))

    def flush(self) -> None:
        """Hand over the rows so far, then remove the replaced files."""
        self._writer.flush()
        while self._old:  # the new file has their valid events
            self._old.pop().unlink(missing_ok=True)
        self._times = {}

    def close(self) -> None:
        """Finish."""
        self.flush()
        self._writer.close()


def _times(files: list[Path]) -> dict[int, float]:
    """Step -> wall time of the events in these files, without a torn end."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    times = {}
    for file in files:
        for event in EventFileLoader(str(file)).Load():
            times[event.step] = event.wall_time
    return times


class ServiceRun:
    """A run of a service that continues after the last step in its storage."""

    def __init__(self, run: Any, next_step: int, old: Iterable[Path] = ()) -> None:
        """Take a run and its next step; `old`: offline folders that it replaces."""
        self._run = run
        self._old = list(old)
        self.last_step = max(0, next_step - 1)

    def write(self, step: int, values: Values) -> None:
        """Add one row."""
        self._run.log(values, step=step)

    def flush(self) -> None:
        """Remove the replaced folders; services send by themselves."""
        while self._old:
            shutil.rmtree(self._old.pop(), ignore_errors=True)

    def close(self) -> None:
        """Finish."""
        self._run.finish()


def open_wandb(root: Path, settings: dict[str, Any]) -> ServiceRun:
    """Open a run of https://wandb.ai; WANDB_MODE=offline writes below RUN/wandb only, for
    `wandb sync`.
    """
    import wandb

    old = list((root / "wandb").glob(f"offline-run-*-{run_id(root)}"))
    run = wandb.init(
        project=PROJECT,
        id=run_id(root),
        name=root.name,
        dir=str(root),
        resume="allow",
        config=settings,
        settings=wandb.Settings(console="off"),
    )
    # Syncing a second offline folder with the same id would replace the first one's data.
    return ServiceRun(run, run.starting_step, old)


def open_trackio(root: Path, settings: dict[str, Any]) -> ServiceRun:
    """Open a run of Trackio: local by default, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL
    point.
    """
    import trackio

    run = trackio.init(
        project=PROJECT,
        name=f"{root.name}-{run_id(root)}",
        resume="allow",
        config=settings,
        embed=False,
        auto_log_cpu=False,
        auto_log_gpu=False,
    )
    return ServiceRun(run, run._next_step)  # the only access to the last step in its storage


Tracker = TensorBoard | ServiceRun
"""Destination of metrics. Steps come in ascending order, each once; `last_step` is the highest in
its storage.
"""
TRACKERS: dict[str, Callable[[Path, dict[str, Any]], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": open_wandb,
    "trackio": open_trackio,
}


class MetricsLog:
    """Log of all figures that a run measures.

    Args:
        root: the run directory.
        trackers: names of `TRACKERS`.
        settings: those of the run, which services show.
        step: step at which the run resumes; records of later steps are removed.
        writes: False on all ranks but one: all calls then do nothing.

    Raises:
        ConfigError: a tracker is not installed (names the package) or cannot start.
    """

    def __init__(
        self,
        root: Path,
        trackers: Sequence[str],
        settings: dict[str, Any],
        step: int,
        writes: bool = True,
    ) -> None:
        self._file: metrics_file.MetricsFile | None = None
        self._trackers: dict[str, Tracker] = {}
        # of the latest step, which may still get more figures
        self._row: tuple[int, Values] = (0, {})
        self.lowest: tuple[float, int] | None = None
        """Lowest validation loss so far and its step."""
        if not writes:
            return
        path = root / metrics_file.NAME
        metrics_file.truncate(path, step)
        records = metrics_file.read(path, "train") if step else []
        if records:
            gap = f"ends at step {records[-1]['step']}" if records[-1]["step"] < step else ""
        else:
            gap = "is missing or empty" if step else ""
        if gap:
            logger.warning(
                "%s: %s, and the run resumes at step %s: earlier figures are lost for tables, "
                "curves and trackers, training is not affected",
                path,
                gap,
                step,
            )
        self._file = metrics_file.MetricsFile(path)
        validations = metrics_file.read(path, "val") if step else []
        for record in validations:
            self._note_validation(record["step"], record)
        try:
            for name in trackers:
                with _tracker_errors(name):
                    self._trackers[name] = TRACKERS[name](root, settings)
        except BaseException:
            self.close()
            raise
        if self._trackers:
            for record in metrics_file.read(path):
                self._collect(record.get("at", record["step"]), record)
            self._for_each_tracker(lambda tracker: tracker.flush())

    @property
    def last_step(self) -> int:
        """Highest step that any tracker has in its storage and does not accept again."""
        return max((tracker.last_step for tracker in self._trackers.values()), default=0)

    def log(self, step: int, record: Record) -> None:
        """Log one record (`kind` and figures, see `metrics_file.py`) of `step`, in ascending order.

        A record about an earlier step has that step itself; the trackers get it with the figures of
        `step`.
        """
        if self._file is not None:
            self._file.write([{"kind": record["kind"], "step": step, **record}])
            if record["kind"] == "val":
                self._note_validation(step, record)
            if self._trackers:
                self._collect(step, record)

    def log_all(self, records: Iterable[Record]) -> None:
        """Log records that have a `step`."""
        for record in records:
            self.log(record["step"], record)

    def discard_row(self) -> None:
        """Withhold the latest step from the trackers: its figures are completed after the run is
        resumed.
        """
        self._row = (self._row[0], {})

    def sync(self) -> None:
        """Make metrics.jsonl durable, and flush the trackers."""
        if self._file is not None:
            self._file.sync()
            self._for_each_tracker(lambda tracker: tracker.flush())

    def close(self) -> None:
        """Write the last row and close the trackers."""
        self._write_row()
        self._for_each_tracker(lambda tracker: tracker.close())
        self._trackers = {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _note_validation(self, step: int, record: Record) -> None:
        loss = record["loss"]
        if (
            loss is not None
            and math.isfinite(loss)
            and (self.lowest is None or loss < self.lowest[0])
        ):
            self.lowest = (loss, step)

    def _collect(self, step: int, record: Record) -> None:
        """Add figures to the row of a step. Trackers get a row once it is complete."""
        if step != self._row[0]:
            self._write_row()
            self._row = (step, {})
        self._row[1].update(flatten(record))

    def _write_row(self) -> None:
        step, values = self._row
        self._row = (step, {})

        def write(tracker: Tracker) -> None:
            if step > tracker.last_step:
                tracker.write(step, values)

        if values:
            self._for_each_tracker(write)

    def _for_each_tracker(self, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except Exception as error:  # a failing tracker must not stop the training
                del self._trackers[name]
                logger.warning(
                    "%s: %s: %s; it gets no more figures until this run is resumed (metrics.jsonl "
                    "has all of them)",
                    name,
                    type(error).__name__,
                    error,
                )


def flatten(record: Record) -> Values:
    """Flatten the finite numbers of a record for trackers: {"train/loss": ..., "val/tasks/pick
    up/loss": ...}.

    Of lists the groups and the intervals of flow time are flattened, by their names and limits.
    """
    values: Values = {}

    def walk(prefix: str, item: Any) -> None:
        if isinstance(item, Mapping):
            for key, inner in item.items():
                walk(f"{prefix}/{key}", inner)
        elif isinstance(item, list):
            for entry in item:
                if isinstance(entry, Mapping):
                    walk(
                        f"{prefix}/{_label(entry)}",
                        {k: v for k, v in entry.items() if k not in ("from", "to")},
                    )
        elif isinstance(item, int | float) and math.isfinite(item):
            values[prefix] = float(item)

    # Figures that a tracker gets with those of a later step include their own step.
    hidden = ("kind", "at") if "at" in record else ("kind", "step")
    walk(str(record["kind"]), {key: item for key, item in record.items() if key not in hidden})
    return values


def check_trackers(names: Iterable[str]) -> None:
    """Check that the trackers of a new run are installed, and that wandb has a login, before any
    data is read.

    Raises:
        ConfigError: a tracker is not installed (names the package) or cannot start.
    """
    for name in names:
        with _tracker_errors(name):
            package = import_module(name)
            if name == "wandb" and package.setup().settings.mode not in (
                "offline",
                "dryrun",
                "disabled",
            ):
                package.login()


def _label(entry: Record) -> str:
    """Name an entry of a list: its head, source and task, or its terms and its interval of flow
    time.
    """
    if "from" in entry:
        terms = ["+".join(entry["terms"])] if "terms" in entry else []
        return "/".join([*terms, f"{entry['from']:.4g}-{entry['to']:.4g}"])
    return "/".join(str(entry[kind]) for kind in ("head", "source", "task") if kind in entry)


@contextmanager
def _tracker_errors(name: str) -> Iterator[None]:
    """Raise errors of a tracker as ConfigError."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"log.trackers: {name} is not installed ({error}): pip install 'understudy[{name}]'"
        ) from error
    except Exception as error:
        raise ConfigError(
            f"log.trackers: {name} cannot start: {type(error).__name__}: {error}"
        ) from error
