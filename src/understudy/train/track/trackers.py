"""Where a run's figures go: metrics.jsonl always, and on request TensorBoard, Weights & Biases, Trackio; one `log`.

metrics.jsonl is the truth, the others mirror it. A resumed run goes back to its checkpoint: metrics.jsonl is cut there,
and each mirror is brought to the same place before anything new is written:

    tensorboard   written anew from metrics.jsonl below RUN/tensorboard (with the times of the old events)
    wandb         online: carries on the run of the same id behind the last step that its server has. Offline: a new
                  offline folder with everything so far, the old ones removed; so one folder is the whole run
    trackio       carries on the run of the same name behind the last step that its storage has

So no step is missing in any, however the process ended before, and none is there twice. A step that wandb or Trackio
had received and the run then computed again keeps its first value: they cannot be cut. (On the same number of processes
both are equal bit for bit.) A mirror that fails while training is told once and left behind; the next resume brings it
up to date.
"""

import json
import math
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from understudy.atomic import write_text
from understudy.config.schema import plain
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track import metrics_file

PROJECT = "understudy"
Values = dict[str, float]


class Mirror(Protocol):
    """A tracker. Steps come in ascending order, each once."""

    has: int
    """The highest step that is there already, and will not be written again; 0: nothing."""

    def write(self, step: int, values: Values) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Log:
    """`log(step, record)` for everything that a run measures.

    Args:
        step: where the run goes on from; what was written of later steps is dropped.
        writes: False on all ranks but one: everything here is then a word in the wind.
    Raises:
        ConfigError: a tracker is not installed or refuses to begin; says what to install.
    """

    def __init__(self, run: RunDir, config: TrainConfig, step: int, writes: bool = True) -> None:
        self._file: metrics_file.MetricsFile | None = None
        self._mirrors: dict[str, Mirror] = {}
        self._row: tuple[int, Values] = (0, {})  # of the latest step, which may still grow
        if not writes:
            return
        metrics_file.truncate(run.metrics, step)
        if known := metrics_file.read(run.metrics, "train") if step else []:
            lacks = f"ends at step {known[-1]['step']}" if known[-1]["step"] < step else ""
        else:
            lacks = "is not there or empty" if step else ""
        if lacks:
            what = "what was measured before is lost for tables, curves and trackers, the training does not notice"
            print(f"{run.metrics}: {lacks}, and the run goes on from step {step}: {what}", file=sys.stderr)
        self._file = metrics_file.MetricsFile(run.metrics)
        try:
            for name in config.trackers:
                self._mirrors[name] = _opened(name, run, config)
        except BaseException:
            self.close()
            raise
        if self._mirrors:
            for record in metrics_file.read(run.metrics):
                self._collect(record.get("at", record["step"]), record)
            self._everywhere(lambda mirror: mirror.flush())

    @property
    def has(self) -> int:
        """The highest step that any tracker has already, and takes no more figures of."""
        return max((mirror.has for mirror in self._mirrors.values()), default=0)

    def log(self, step: int, record: Mapping[str, Any]) -> None:
        """Write one record (`kind` and figures, `metrics_file.py` says which) of `step`, never lower than the one
        before.

        What is known only now of an earlier step names that one itself; the trackers get it with those of `step`.
        """
        if self._file is not None:
            self._file.write([{"kind": record["kind"], "step": step, **record}])
            if self._mirrors:
                self._collect(step, record)

    def log_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """`log` of records that name their `step`."""
        for record in records:
            self.log(record["step"], record)

    def hold_back(self) -> None:
        """The latest step's figures are still to be completed, when the run goes on: the mirrors get them then."""
        self._row = (self._row[0], {})

    def sync(self) -> None:
        """Make metrics.jsonl durable, and hand the mirrors what they have been given."""
        if self._file is not None:
            self._file.sync()
            self._everywhere(lambda mirror: mirror.flush())

    def close(self) -> None:
        """Write what is left and end the mirrors."""
        self._hand_out()
        self._everywhere(lambda mirror: mirror.close())
        self._mirrors = {}
        if self._file is not None:
            self._file.close()
            self._file = None

    def _collect(self, step: int, record: Mapping[str, Any]) -> None:
        """Mirrors get one row a step, when no more can come for it: a row is there whole, or not."""
        if step != self._row[0]:
            self._hand_out()
            self._row = (step, {})
        self._row[1].update(flat(record))

    def _hand_out(self) -> None:
        step, values = self._row
        self._row = (step, {})
        if values:
            self._everywhere(lambda mirror: mirror.write(step, values) if step > mirror.has else None)

    def _everywhere(self, do: Callable[[Mirror], None]) -> None:
        for name, mirror in list(self._mirrors.items()):
            try:
                do(mirror)
            except Exception as error:  # a tracker's trouble is not the training's
                del self._mirrors[name]
                print(
                    f"{name}: {type(error).__name__}: {error}; it gets nothing more until this run is resumed "
                    "(metrics.jsonl has everything)",
                    file=sys.stderr,
                )


def flat(record: Mapping[str, Any]) -> Values:
    """A record's finite numbers as trackers want them: {"train/loss": ..., "val/tasks/pick up/loss": ...}."""
    values: Values = {}

    def walk(prefix: str, item: Any) -> None:
        if isinstance(item, Mapping):
            for key, inner in item.items():
                walk(f"{prefix}/{key}", inner)
        elif isinstance(item, int | float) and math.isfinite(item):
            values[prefix] = float(item)

    # Where a tracker gets figures with those of a later step, they say of which step they are.
    own = ("kind", "at") if "at" in record else ("kind", "step")
    walk(str(record["kind"]), {key: item for key, item in record.items() if key not in own})
    return values


def _opened(name: str, run: RunDir, config: TrainConfig) -> Mirror:
    kinds: dict[str, Callable[[RunDir, TrainConfig], Mirror]] = {
        "tensorboard": TensorBoard,
        "wandb": WeightsAndBiases,
        "trackio": Trackio,
    }
    try:
        return kinds[name](run, config)
    except ImportError as error:
        raise ConfigError(f"trackers: {name} is not installed ({error}): pip install 'understudy[{name}]'") from error
    except Exception as error:
        raise ConfigError(f"trackers: {name} cannot begin: {type(error).__name__}: {error}") from error


def run_id(run: RunDir) -> str:
    """What the services know this run by: made once and kept in RUN/trackers.json, however the folder is renamed."""
    path = run.root / "trackers.json"
    if not path.exists():
        write_text(path, json.dumps({"id": secrets.token_hex(8), "name": run.root.name}) + "\n")
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged; remove it to begin anew there") from error


class TensorBoard:
    """Event files below RUN/tensorboard: `tensorboard --logdir` shows them."""

    has = 0

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = Event, Summary
        folder = run.root / "tensorboard"
        self._old = sorted(folder.glob("events.*")) if folder.is_dir() else []
        self._times = _times(self._old)  # when a step was computed is known to its old event alone
        self._writer = EventFileWriter(str(folder))

    def write(self, step: int, values: Values) -> None:
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=v) for tag, v in values.items()])
        at = self._times.get(step, time.time())
        self._writer.add_event(self._event(wall_time=at, step=step, summary=summary))

    def flush(self) -> None:
        self._writer.flush()
        while self._old:  # what they held is in the new file, as far as it still holds
            self._old.pop().unlink(missing_ok=True)
        self._times = {}

    def close(self) -> None:
        self.flush()
        self._writer.close()


def _times(files: list[Path]) -> dict[int, float]:
    """Step -> wall time of the events in these files; a torn end is left out."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return {event.step: event.wall_time for file in files for event in EventFileLoader(str(file)).Load()}


class WeightsAndBiases:
    """A run of https://wandb.ai; WANDB_MODE=offline writes below RUN/wandb only, for `wandb sync`."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        import wandb

        # Syncing a second offline folder of one id would replace what the first had brought.
        self._old = list((run.root / "wandb").glob(f"offline-run-*-{run_id(run)}"))
        self._run = wandb.init(
            project=PROJECT,
            id=run_id(run),
            name=run.root.name,
            dir=str(run.root),
            resume="allow",
            config=plain(config),
            settings=wandb.Settings(console="off"),
        )
        self.has = max(0, self._run.starting_step - 1)

    def write(self, step: int, values: Values) -> None:
        self._run.log(values, step=step)

    def flush(self) -> None:
        """wandb sends by itself."""
        while self._old:
            shutil.rmtree(self._old.pop(), ignore_errors=True)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """A run of Trackio: local by default, or where TRACKIO_SPACE_ID or TRACKIO_SERVER_URL point."""

    def __init__(self, run: RunDir, config: TrainConfig) -> None:
        import trackio

        self._run = trackio.init(
            project=PROJECT,
            name=f"{run.root.name}-{run_id(run)}",
            resume="allow",
            config=plain(config),
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        self.has = max(0, self._run._next_step - 1)  # the one place where a run says what its storage holds

    def write(self, step: int, values: Values) -> None:
        self._run.log(values, step=step)

    def flush(self) -> None:
        """Trackio writes by itself, twice a second."""

    def close(self) -> None:
        self._run.finish()
