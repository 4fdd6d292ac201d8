"""The run directory: where a run's files lie, and how they are written so that no kill leaves a torn one.

config.yaml     every setting, resolved
order.json      what was decided when the run began: order, dataset's fingerprint, normalisation, policy, settings
metrics.jsonl   what was measured, one JSON object a line (`train/track/metrics_file.py`)
substitutions-0.jsonl  what rank 0 delivered instead of samples that cannot be read; if there were any
checkpoints/    step-00001000/ … (`checkpoint.py`)
policy/         what a robot loads
rollouts/       what came of playing it, and of playing weights on the way (`train/background_rollouts.py`)
report.html     what a person reads
STOP            if someone makes it: stop as at a signal (`distributed/signals.py`); the run removes it
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from understudy.atomic import DRAFT_SUFFIX, write_text
from understudy.config.schema import dump_yaml, read_file, validate
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.train.checkpoint import seal

FORMAT = 2
"""Version of a run directory; another one is refused. 1 did not say its version, and had a single process."""

FROZEN = {"format", "order", "dataset", "normalisation", "policy", "settings"}


@dataclass(frozen=True)
class RunDir:
    """Paths of one run."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def order(self) -> Path:
        return self.root / "order.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    def substitutions(self, rank: int) -> Path:
        return self.root / f"substitutions-{rank}.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def policy(self) -> Path:
        return self.root / "policy"

    @property
    def rollouts(self) -> Path:
        return self.root / "rollouts"

    @property
    def report(self) -> Path:
        return self.root / "report.html"

    @property
    def stop(self) -> Path:
        return self.root / "STOP"

    def frozen(self) -> dict[str, Any]:
        """order.json. Raises ConfigError when it is not there any more, damaged, or of another version."""
        try:
            content = json.loads(self.order.read_text(encoding="utf-8"))
            old = {"order", "dataset", "normalisation", "settings"} <= set(content)
            version = content.get("format", 1 if old else FORMAT)
            if version == FORMAT and (missing := FROZEN - set(content)):
                raise ValueError(f"it lacks {', '.join(sorted(missing))}")
            if version == FORMAT and (odd := _odd(content)):
                raise ValueError(f"its {odd} is none")
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{self.order}: cannot be read ({error}); put it back, or start a new run") from error
        if version != FORMAT:
            raise ConfigError(
                f"{self.root}: a run of format {version}, this version of understudy carries on format {FORMAT}: "
                "carry on with the version that began it, or start a new run"
            )
        if not seal.unbroken(content):
            raise ConfigError(
                f"{self.order}: is not what the run began with (its checksum differs); put it back, or start a new run"
            )
        return dict(content)

    def settings(self) -> TrainConfig:
        """The run's settings, with `out` where the run lies now.

        Raises ConfigError when there is no run, or one of another version (whose settings might mean something else).
        """
        if not self.config.is_file():
            if (self.root / "meta" / "info.json").is_file():
                raise ConfigError(f"{self.root}: this is a dataset; give the folder of a run, the --out of its `train`")
            raise ConfigError(
                f"{self.root}: no run here (no config.yaml); `understudy train --out {self.root}` starts one"
            )
        self.frozen()
        stored = as_begun(read_file(self.config))
        return replace(validate(TrainConfig, stored, where=self.config, fresh=False), out=str(self.root))

    def refuse_existing(self) -> None:
        """Raise ConfigError when there is a run already, or what a new run would write over."""
        if self.config.exists():
            raise ConfigError(
                f"{self.root}: there is a run already; `understudy resume {self.root}` carries it on, "
                "another --out starts a new one"
            )
        if (self.root / "meta" / "info.json").is_file():
            raise ConfigError(f"{self.root}: this is a dataset, and a run would be mixed with it; name another --out")
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"{self.root}: is a file, and a run is a folder; name another --out")
        taken = [path for path in (self.policy, self.rollouts, self.report) if path.exists()]
        taken += [path for path in (self.metrics,) if path.exists() and (path.is_dir() or path.stat().st_size)]
        taken += [path for path in (self.checkpoints,) if path.exists() and (path.is_file() or any(path.iterdir()))]
        if self.order.exists():
            try:
                self.frozen()  # a kill before config.yaml left it
            except ConfigError:
                taken.append(self.order)
        if taken:
            raise ConfigError(
                f"{taken[0]}: is there, and a new run would write over it; name another --out, or move it away"
            )

    def begin(self, config: TrainConfig, frozen: Mapping[str, Any]) -> None:
        """Write what makes this folder a run. config.yaml comes last: where it stands, the rest is complete.

        Args:
            frozen: for order.json, what `FROZEN` names but the format.
        Raises:
            ConfigError: there is a run already.
        """
        self.refuse_existing()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        write_text(self.order, json.dumps(seal.sealed({"format": FORMAT, **frozen}), indent=2))
        write_text(self.config, dump_yaml(config))

    def withdraw(self) -> None:
        """Let the folder be no run again: what it was begun with cannot be used, and nothing has been saved."""
        for path in (self.config, self.order, self.metrics):
            path.unlink(missing_ok=True)

    def lock(self) -> IO[str]:
        """Hold the run for this process; the lock goes with the process, however it ends.

        Raises ConfigError when another process holds it: two writers would tear the run apart.
        """
        import fcntl

        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(f"{self.root}: is a file, and a run is a folder; name another")
        self.root.mkdir(parents=True, exist_ok=True)
        held = (self.root / ".lock").open("a")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            raise ConfigError(f"{self.root}: another process is training this run; stop it first") from None
        for leftover in self.root.glob(f".*{DRAFT_SUFFIX}"):  # of a process that was killed while it wrote
            leftover.unlink(missing_ok=True)
        return held


def as_begun(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Stored settings, unchecked, with what the version did that wrote them where it had no setting for that."""
    return {"val_frames": 0, **settings}


def _odd(frozen: Mapping[str, Any]) -> str:
    """What in order.json is of another kind than was written; "" where nothing is."""
    for name in sorted(FROZEN - {"format"}):
        if not isinstance(frozen[name], dict):
            return name
    for source in frozen.get("sources", []):
        if not (isinstance(source, dict) and isinstance(source.get("name"), str)):
            return "source"
    units = frozen["normalisation"]
    heads = units.get("heads", [])
    if not isinstance(heads, list) or not all(isinstance(head, str) for head in heads):
        return "list of heads"
    tables = [units.get("delta", [])]
    for name in units.keys() - {"heads", "delta", "dims"}:
        if not isinstance(units[name], dict):
            return "normalisation"
        tables += [units[name].get("offset"), units[name].get("spread")]
    for table in tables:
        if not isinstance(table, list) or not all(isinstance(row, list) for row in table):
            return "normalisation"
        if not all(isinstance(value, int | float) for row in table for value in row):
            return "normalisation"
    dims = units.get("dims", {})
    plain = isinstance(dims, dict) and all(isinstance(own, list) for own in dims.values())
    if not plain or not all(type(dim) is int for own in dims.values() for dim in own):
        return "list of dimensions"
    return ""


def resumed_settings(run: str) -> TrainConfig:
    """Settings of the run in folder `run`, as `resume` starts from."""
    return RunDir(Path(run)).settings()
