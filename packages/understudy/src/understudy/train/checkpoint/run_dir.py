"""The run directory: paths of a run's files, written so that no kill leaves a torn one.

config.yaml            every setting, resolved
order.json             decisions for the whole run: order, dataset fingerprint, normalization,
                       policy, settings
frames.parquet         the frames of the order, and those reserved for validation
                       (`train/data/frames_file.py`)
frames-0f….parquet     those of an update of the data (`train/data/updates.py`)
metrics.jsonl          figures of the run, one JSON object a line (`train/track/metrics_file.py`)
substitutions-0.jsonl  samples that rank 0 replaced because they could not be read, if any
checkpoints/           step-00001000/ … and best-00000500/, the weights of the best validation
                       (`checkpoint.py`)
policy/                the exported policy, for a robot
rollouts/              results of rollouts (`background_rollouts.py`)
validation/            loss sums of each episode, step-00001000.npz …
                       (`train/validation/episode_sums.py`)
imagined.png           imagined futures of the latest validation (`train/validation/imagined.py`)
report.html            the report
policy_code.py         code of a policy that is not in a package (`policies/own_code`)
policy_code/           its local modules, if any
STOP                   a file that stops the run like a signal (`signals.py`); the run removes it
"""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict  # pydantic reads typing's from Python 3.12 on

from understudy.config.train import TrainConfig
from understudy.policies.own_code.sources import CODE, MODULES
from understudy.policies.own_code.types import pin_missing, write_code
from understudy.train.checkpoint import checksums
from understudy.train.paths import find_moved
from understudy.train.track import metrics_file
from understudy_base import DRAFT_SUFFIX, ConfigError, UnderstudyError, write_bytes, write_text
from understudy_client import Contract
from understudy_data.hub.download import pull
from understudy_data.hub.ids import HubId
from understudy_kit import dump_yaml, read_file, validate

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 5
"""Version of a run directory; another one is refused. Format 1 had no version, and a single
process; format 2 had a contract without normalization, and other digests of returns and metadata;
format 3 did not hold its episodes; format 4 had settings that are gone, `peak_check` and
`loader.colors`.
"""

LOCK = ".lock"
"""Name of the file that a training process keeps locked."""


class RunInUseError(UnderstudyError, OSError):
    """Another process trains this run, or a host that disappeared still holds its lock. A later
    attempt may succeed.
    """


class Scale(TypedDict):
    """Offset and spread of each head and dimension."""

    offset: list[list[float]]
    spread: list[list[float]]


Normalization = TypedDict(
    "Normalization",
    {
        "heads": list[str],
        "delta": list[list[bool]],
        "dims": dict[str, list[int]],
        "action": Scale,
        "observation.state": Scale,
    },
    total=False,
)


class Source(TypedDict):
    """One source of the data."""

    name: str


class Record(TypedDict):
    """Content of order.json, next to its checksum."""

    format: int
    order: dict[str, Any]
    dataset: dict[str, Any]
    normalisation: Normalization
    policy: dict[str, Any]
    settings: dict[str, Any]
    files: dict[str, Any]
    frames: NotRequired[str]
    sources: NotRequired[list[Source]]
    versions: NotRequired[list[dict[str, str]]]


RECORDED = Record.__required_keys__
"""Keys of order.json that every run has."""


class RunDir:
    """Paths of one run."""

    def __init__(self, root: Path) -> None:
        """Take the folder of the run."""
        self.root = root
        self.config = root / "config.yaml"
        """Settings of the run."""
        self.order = root / "order.json"
        """Decisions for the whole run."""
        self.frames = root / "frames.parquet"
        """Frames of the order, and those reserved for validation."""
        self.metrics = root / "metrics.jsonl"
        """Figures of the run."""
        self.checkpoints = root / "checkpoints"
        self.policy = root / "policy"
        """Folder of the exported policy."""
        self.rollouts = root / "rollouts"
        self.validation = root / "validation"
        """Folder of the losses of validation episodes."""
        self.imagined = root / "imagined.png"
        """Imagined futures of the latest validation."""
        self.report = root / "report.html"
        self.stop = root / "STOP"
        """File that asks the run to stop."""

    def substitutions(self, rank: int) -> Path:
        """Samples that a rank replaced."""
        return self.root / f"substitutions-{rank}.jsonl"

    def episode_losses(self, step: int) -> Path:
        """Loss sums of each episode in the validation of a step."""
        return self.validation / f"step-{step:08d}.npz"

    def read_record(self) -> dict[str, Any]:
        """Read order.json.

        Raises:
            ConfigError: the file is missing, damaged, or of another version.
        """
        try:
            content = json.loads(self.order.read_text(encoding="utf-8"))
            version = content.get("format", FORMAT)
            if version == FORMAT:
                _check_types(content)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"{self.order}: cannot be read ({error}); restore it, or start a new run"
            ) from error
        if version != FORMAT:
            raise ConfigError(
                f"{self.root}: a run of format {version}, this version of understudy resumes "
                f"format {FORMAT}: resume it with the version that started it, or start a new run"
            )
        if not checksums.is_intact(content):
            raise ConfigError(
                f"{self.order}: was changed since the run started (its checksum differs); restore "
                "it, or start a new run"
            )
        return dict(content)

    def records(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl, of one kind if given; none if there is no file.

        Raises:
            ConfigError: a line before the last is not a record; names file and line.
        """
        return metrics_file.read(self.metrics, kind)

    def verdict(self) -> metrics_file.Verdict | None:
        """Return training and validation loss at the latest validation; None without one."""
        return metrics_file.read_verdict(self.metrics)

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints, ascending."""
        from understudy.train.checkpoint import checkpoint

        return checkpoint.list_steps(self.checkpoints)

    def read_tensors(self, step: int) -> "dict[str, Tensor]":
        """Read all tensors of the checkpoint of a step, by name."""
        from understudy.train.checkpoint import checkpoint

        return checkpoint.read_tensors(self.checkpoints / f"step-{step:08d}")

    def describe_policy(self) -> str | None:
        """Describe the step of the policy that the run has exported, next to the best one; None: it
        is unknown, or no run.
        """
        from understudy.train.checkpoint.checkpoint import describe_choice

        try:
            contract = json.loads((self.policy / Contract.FILE).read_text(encoding="utf-8"))
            step = contract["provenance"]["step"]
            metric = self.settings().checkpoint.keep_best
            return describe_choice(self.checkpoints / f"step-{int(step):08d}", metric)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def require_policy(self) -> Path:
        """Return the folder of the exported policy.

        Raises:
            ConfigError: there is no run, or it has exported none yet.
        """
        if not self.policy.is_dir():
            self.settings()
            raise ConfigError(
                f"{self.policy}: no policy here; the end of the run writes it: `understudy resume "
                f"{self.root}`"
            )
        return self.policy

    def settings(self) -> TrainConfig:
        """Return the run's settings, with the present places of the run and of its data.

        Raises:
            ConfigError: there is no run, or one of another version (whose settings might mean
                something else).
        """
        if not self.config.is_file():
            if (self.root / "meta" / "info.json").is_file():
                raise ConfigError(
                    f"{self.root}: this is a dataset; give the folder of a run, the --output-dir "
                    "of its `train`"
                )
            near = "" if self.root.exists() else HubId.near_path(str(self.root))
            fix = f"`understudy train --output-dir {self.root}` starts one"
            if near:
                fix = f"did you mean {near}?"
            raise ConfigError(f"{self.root}: no run here (no config.yaml); {fix}")
        self.read_record()
        content = _read_config(self.config)
        return self.located(read_settings(content, self.config), content)

    def located(self, stored: TrainConfig, content: Mapping[str, Any] | None = None) -> TrainConfig:
        """Return settings of this run with its present folder, and the present paths of its data.

        `content` is that of config.yaml where the caller has read it.
        """
        if content is None:
            content = _read_config(self.config)
        began = str(content.get("output_dir", ""))
        return replace(find_moved(stored, self.root, began), output_dir=str(self.root))

    def refuse_existing(self) -> None:
        """Raise ConfigError if there is a run already, or files that a new run would overwrite."""
        if self.config.exists():
            raise ConfigError(
                f"{self.root}: there is a run already; `understudy resume {self.root}` continues "
                "it, another --output-dir starts a new one"
            )
        if (self.root / "meta" / "info.json").is_file():
            raise ConfigError(
                f"{self.root}: this is a dataset, and a run would mix with it; use another "
                "--output-dir"
            )
        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(
                f"{self.root}: is a file, and a run is a folder; use another --output-dir"
            )
        others = (
            self.root / CODE,
            self.root / MODULES,
            self.policy,
            self.rollouts,
            self.validation,
            self.imagined,
            self.report,
        )
        taken = [path for path in others if path.exists()]
        taken += [
            path
            for path in (self.metrics,)
            if path.exists() and (path.is_dir() or path.stat().st_size)
        ]
        taken += [
            path
            for path in (self.checkpoints,)
            if path.exists() and (path.is_file() or any(path.iterdir()))
        ]
        if self.order.exists():
            try:
                self.read_record()  # left by a kill before config.yaml was written
            except ConfigError:
                taken.append(self.order)
        elif self.frames.exists():
            taken.append(self.frames)
        if taken:
            raise ConfigError(
                f"{taken[0]}: exists, and a new run would overwrite it; use another --output-dir, "
                "or move it away"
            )

    def begin(self, config: TrainConfig, record: Mapping[str, Any], frames: bytes = b"") -> None:
        """Write the files that make this folder a run. config.yaml comes last: if it exists, the
        rest is complete.

        Args:
            config: the settings.
            record: content of order.json: the keys of `RECORDED` except the format.
            frames: content of frames.parquet.

        Raises:
            ConfigError: there is a run already.
        """
        self.refuse_existing()
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        write_code(config.policy.type, self.root)
        facts = {"format": FORMAT, **record, "frames": hashlib.sha256(frames).hexdigest()}
        write_text(self.order, json.dumps(checksums.add_seal(facts), indent=2))
        write_bytes(self.frames, frames)  # behind order.json: without it, the file is not of a run
        self.write_settings(config)

    def write_settings(self, config: TrainConfig) -> None:
        """Write config.yaml. Its `output_dir` is absolute, so that data that moved with the run is
        found.
        """
        write_text(self.config, dump_yaml(replace(config, output_dir=os.path.abspath(self.root))))

    def withdraw(self) -> None:
        """Remove the files of `begin` and of the steps since: the run has no checkpoint to continue
        from.

        `begin` has refused a folder with rollouts, so they are this run's. With results of rollouts
        everything stays: `resume` starts again and reuses them.
        """
        if any(self.rollouts.glob("step-*.json")):
            return
        for path in (
            self.config,
            self.frames,
            self.order,
            self.metrics,
            self.imagined,
            self.root / CODE,
        ):
            path.unlink(missing_ok=True)
        for folder in (
            self.root / MODULES,
            self.rollouts,
            self.validation,
            *self.checkpoints.glob("best-*"),
        ):
            shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            self.checkpoints.rmdir()  # only if it is empty

    def lock(self) -> IO[str]:
        """Lock the run for this process. The lock is released when the process ends, in any way.

        Raises:
            RunInUseError: another process holds it; two writers would damage the run.
            ConfigError: the path is a file.
        """
        import fcntl

        if self.root.exists() and not self.root.is_dir():
            raise ConfigError(
                f"{self.root}: is a file, and a run is a folder; use another --output-dir"
            )
        self.root.mkdir(parents=True, exist_ok=True)
        lock = (self.root / LOCK).open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RunInUseError(
                f"{self.root}: another process is training this run; stop it first"
            ) from None
        # of a process that was killed while it wrote
        for leftover in self.root.glob(f".*{DRAFT_SUFFIX}"):
            leftover.unlink(missing_ok=True)
        return lock

    def remove_empty(self) -> None:
        """Remove the folder if it has the lock alone, which the caller must hold: a refused start
        leaves nothing.
        """
        with suppress(OSError):
            if os.listdir(self.root) == [LOCK]:
                (self.root / LOCK).unlink()
                self.root.rmdir()

    def is_active(self) -> bool:
        """Whether a process of this host holds the lock. Asks the kernel's table, since a trial
        takes the lock.
        """
        try:
            status = (self.root / LOCK).stat()
            lines = Path("/proc/locks").read_text(encoding="utf-8").splitlines()
        except OSError:
            return False
        place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        return any("FLOCK" in line and place in line.split() for line in lines)


_parsed: dict[str, tuple[tuple[int, ...], bytes]] = {}  # pickled content of the latest file


def _read_config(path: Path) -> dict[str, Any]:
    """Read a config.yaml, unchecked. The latest one is parsed again only after it changed.

    That of thousands of sources takes seconds, and a resumed run asks for it several times.
    """
    try:
        stat = path.stat()
    except OSError:
        return read_file(path)  # raises
    state = stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
    name = os.path.abspath(path)
    if name not in _parsed or _parsed[name][0] != state:
        content = pickle.dumps(read_file(path))
        _parsed.clear()
        _parsed[name] = state, content
    copy: dict[str, Any] = pickle.loads(_parsed[name][1])
    return copy


def read_settings(content: Mapping[str, Any], where: object) -> TrainConfig:
    """Return the settings that a run has stored.

    Args:
        content: the stored mapping, unchecked.
        where: its file, for messages.
    """
    policy = content.get("policy")
    if isinstance(policy, Mapping) and pin_missing(str(policy.get("type", ""))):
        raise ConfigError(
            f"{where}: policy.type: {policy['type']}: a run stores code with its checksum; restore "
            "the file"
        )
    return validate(TrainConfig, content, where=where, fresh=False)


def _check_types(record: Mapping[str, Any]) -> None:
    """Raise ValueError where a part of order.json is missing, or has another type than was
    written.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        TypeAdapter(Record).validate_python(record, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def resumed_settings(run: str) -> TrainConfig:
    """Return the settings of the run in folder `run`, from which `resume` starts.

    A run on the hub, hf://OWNER/NAME, is first fetched into the folder NAME. Later calls continue
    the run there.

    Raises:
        ConfigError: there is no run, it cannot be fetched, or NAME is another folder.
    """
    address = HubId.parse(run) or HubId.of_model(run)
    if address is not None:
        return RunDir(pull(address, Path(address.name.partition("/")[2]).absolute())).settings()
    return RunDir(Path(run)).settings()
