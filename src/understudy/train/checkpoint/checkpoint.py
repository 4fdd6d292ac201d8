"""Checkpoints that are complete or absent: a directory protocol around torch's distributed checkpoint format (DCP).

    every rank   writes its shards into step-00001000.tmp/ (DCP's files), fsync, agree
    rank 0       checks that all files are there, writes state.json, fsync files and folder, renames to step-00001000/,
                 fsync the parent, notifies the others

A checkpoint is never overwritten. The latest is the highest complete one, and older ones are pruned only when a newer
one is durable. A name without `.tmp` is therefore a promise. Any failure, on any rank, is one CheckpointError on all of
them, and earlier checkpoints are unchanged.

The tensors are named, DTensors or plain (the same on every rank). They are loaded in place, also on another number of
ranks or another mesh. state.json has the step and the checksum of each file; a changed file is refused. Tensors that
never change in a run are written once (`tensor_files.py`).
"""

import json
import logging
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from understudy.atomic import sync, write_text
from understudy.config.train import CheckpointConfig
from understudy.errors import CheckpointError
from understudy.records import Record
from understudy.train.checkpoint import checkpoint, checksums, tensor_files
from understudy.train.checkpoint.tensor_files import FROZEN, INDEX, PREFIX

FORMAT = 2
"""Version of the format; another one is refused. Format 1 had no settings in its state."""


KINDS: dict[str, type] = {
    "step": int,
    "position": int,
    "batch": int,
    "world": int,
    "settings": dict,
    "versions": dict,
    "starts": list,
}
"""Types of the values of a state, if present."""

PENDING = "unjudged"
"""Key of a state: the validation of this step was interrupted."""
LATER_METRICS = "judged.json"
"""File of the figures of an interrupted validation, once it was made."""

NAME = re.compile(r"step-(\d{8}|[1-9]\d{8,})(\.tmp)?", re.ASCII)
"""Names of checkpoint folders; other folders are never removed."""


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Record,
    group: dist.ProcessGroup | None = None,
    frozen: Collection[str] = (),
    earlier: Path | None = None,
) -> Path:
    """Write checkpoint `step` below `folder` and return its path; an existing one is left unchanged.

    Args:
        folder: the folder of all checkpoints.
        step: number of steps.
        tensors: this rank's shards, by name.
        state: content of state.json.
        group: ranks that call this together, of a backend that moves CPU tensors. None: a single process.
        frozen: names of the tensors that never change in a run.
        earlier: a checkpoint of the run with the same values of these, whose files are linked; None: they are written.

    Raises:
        CheckpointError: on every rank: disk full, no permission …; an incomplete checkpoint is removed if possible.
    """
    final = folder / f"step-{step:08d}"
    unfinished = unfinished_path(final)

    def undo() -> None:
        if _is_rank_0(group):
            _remove(unfinished)

    with _as_checkpoint_error(f"{final}: cannot be saved", on_failure=undo):
        if not run_on_rank_0(group, lambda: _prepare_folder(final, unfinished)):
            return final
        frozen_tensors = {name: tensor for name, tensor in tensors.items() if name in frozen}
        files: dict[str, Any] = {}
        if frozen_tensors:
            files |= run_on_rank_0(group, lambda: _link_frozen(earlier, unfinished, frozen_tensors))
            if not files:
                files |= {
                    f"{PREFIX}{name}": sums for name, sums in _write(unfinished / FROZEN, frozen_tensors, group).items()
                }
        files |= _write(
            unfinished, {name: tensor for name, tensor in tensors.items() if name not in frozen_tensors}, group
        )
        run_on_rank_0(group, lambda: publish(unfinished, final, {"format": FORMAT, "step": step, **state}, files))
    return final


def load(path: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Load checkpoint `path` into `tensors` in place; returns its state. `group` as in `save`.

    Raises:
        CheckpointError: on all ranks: another format, a changed or unreadable file, a missing tensor, another shape or
            dtype. Names the checkpoint before this one.
    """
    state = read_state(path)
    _check_files(path, state, group)
    with _as_checkpoint_error(f"{path}: cannot be loaded", instead=path):
        stored = tensor_files.read_contents(path)  # DCP would print a traceback before it fails
        for name, tensor in tensors.items():
            if name not in stored:
                raise ValueError(f"{name} is not in the checkpoint")
            if (dtype := stored[name].properties.dtype) != tensor.dtype:
                raise ValueError(f"{name} is {dtype} in the checkpoint and {tensor.dtype} here")  # DCP would cast
        tensor_files.read(path, tensors, group)
    return state


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Read the tensors of a checkpoint whose names start with `prefix`, whole, on the CPU; raises as `load` does."""
    tensors = {
        name: torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in _read_contents(path).items()
        if name.startswith(prefix)
    }
    load(path, tensors)
    return tensors


def tensor_names(path: Path) -> list[str]:
    """List the names of the tensors of a checkpoint; raises as `load` does."""
    return list(_read_contents(path))


def tensor_dtypes(path: Path) -> dict[str, torch.dtype]:
    """Return the dtypes of the tensors of a checkpoint, by name; raises as `load` does."""
    return {name: item.properties.dtype for name, item in _read_contents(path).items()}


def _read_contents(path: Path) -> dict[str, Any]:
    """Read name -> `TensorStorageMetadata`, after the checksums of the indexes; raises as `load` does."""
    files = read_state(path).get(checksums.FILES, {})
    indexes = {name: entry for name, entry in files.items() if name.rpartition("/")[2] == INDEX}
    if damage := checksums.find_damage(path, indexes):
        raise CheckpointError(f"{path}: cannot be loaded: {' '.join(damage)}; {_suggest_earlier(path, damage[0])}")
    with _as_checkpoint_error(f"{path}: cannot be loaded", instead=path):
        return tensor_files.read_contents(path)


def read_state(path: Path) -> dict[str, Any]:
    """Read state.json of a checkpoint.

    Raises:
        CheckpointError: the file is not a state, has another format, was changed, or belongs to another step than the
            folder's name.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = state["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: state.json cannot be read: {error}; {_suggest_earlier(path)}") from error
    if version != FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {version}, this version of understudy reads {FORMAT}: "
            "resume with the version that wrote it, or start a new run"
        )
    if not checksums.is_intact(state):
        raise CheckpointError(f"{path}: state.json was changed (its checksum differs); {_suggest_earlier(path)}")
    for name, kind in KINDS.items():
        if type(value := state.get(name, kind())) is not kind:
            raise CheckpointError(f"{path}: state.json has {name}: {value!r}; {_suggest_earlier(path)}")
    if (match := NAME.fullmatch(path.name)) and state.get("step") != int(match[1]):
        mismatch = f"{path}: state.json belongs to step {state.get('step')}; the folder was renamed"
        raise CheckpointError(f"{mismatch}: restore its name, or {_suggest_earlier(path)}")
    return dict(state)


def list_steps(folder: Path) -> list[int]:
    """List the steps of the complete checkpoints, ascending."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := NAME.fullmatch(name)) and not match[2])


def find_latest(folder: Path) -> Path | None:
    """Return the highest complete checkpoint, if any."""
    steps = list_steps(folder)
    return folder / f"step-{steps[-1]:08d}" if steps else None


def find_best(folder: Path, metric: str) -> Path | None:
    """Return the complete checkpoint with the lowest finite validation `metric` (the earliest of equals), if any."""
    candidates: list[tuple[float, Path]] = []
    for step in list_steps(folder):
        path = folder / f"step-{step:08d}"
        try:
            value = read_metrics(path).get(metric)
        except CheckpointError:  # a damaged older one must not stop the run
            continue
        if isinstance(value, int | float) and isfinite(value):  # nothing is lower than NaN
            candidates.append((value, path))
    return min(candidates, key=lambda pair: pair[0])[1] if candidates else None


def read_metrics(path: Path) -> dict[str, Any]:
    """Read the figures of a checkpoint's validation; empty if there was none. Raises as `read_state` does."""
    state = read_state(path)
    if not state.get(PENDING):
        return dict(state.get("judged", {}))
    try:
        return dict(json.loads((path / LATER_METRICS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # still to be made
        return {}


def write_metrics(path: Path, metrics: Record) -> None:
    """Add the figures of an interrupted validation to its checkpoint."""
    write_text(path / LATER_METRICS, json.dumps(metrics))


def prune(folder: Path, keep_last: int, best_by: str | None = None) -> None:
    """Remove incomplete checkpoints and all but the `keep_last` highest; call it once the newest is durable.

    Args:
        folder: the folder of all checkpoints.
        keep_last: number of checkpoints to keep.
        best_by: validation metric whose best checkpoint is kept as well.
    """
    best = find_best(folder, best_by) if best_by else None
    for step in list_steps(folder)[:-keep_last]:
        old = folder / f"step-{step:08d}"
        if old != best:
            old.rename(
                old.with_name(old.name + ".tmp")
            )  # withdraw the name first: a partly removed folder is not complete
    for leftover in folder.glob("step-*.tmp"):
        if NAME.fullmatch(leftover.name):
            _remove(leftover)


# -- inside -------------------------------------------------------------------------------------------------------


def unfinished_path(final: Path) -> Path:
    """Folder in which a checkpoint is written."""
    return final.with_name(final.name + ".tmp")


def _link_frozen(earlier: Path | None, unfinished: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the checksums of the linked files of frozen tensors; empty if they are to be written."""
    try:
        files = read_state(earlier).get(checksums.FILES, {}) if earlier is not None else {}
    except CheckpointError:  # it was removed or damaged since
        return {}
    return {} if earlier is None else tensor_files.link_frozen(earlier, files, unfinished, tensors)


def _write(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> dict[str, Any]:
    """Write tensors; returns the checksums of the files of all ranks, without the index."""
    return {
        name: sums for part in gather(group, tensor_files.write(folder, tensors, group)) for name, sums in part.items()
    }


def _check_files(path: Path, state: Record, group: dist.ProcessGroup | None) -> None:
    """Compare the files of a checkpoint with their checksums, each file on one rank. Raises as `load` does."""
    rank, world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    with _as_checkpoint_error(f"{path}: cannot be loaded", instead=path):
        damages = gather(group, checksums.find_damage(path, state.get(checksums.FILES, {}), slice(rank, None, world)))
    for name, damage in filter(None, damages):
        raise CheckpointError(f"{path}: cannot be loaded: {name} {damage}; {_suggest_earlier(path, name)}")


def _prepare_folder(final: Path, unfinished: Path) -> bool:
    """Remove an incomplete attempt; returns False if there is a complete checkpoint."""
    if final.exists():
        return False
    _remove(unfinished)
    unfinished.mkdir(parents=True)
    return True


def publish(unfinished: Path, final: Path, state: Record, files: Record) -> None:
    """Make a written checkpoint durable and give it its final name.

    Raises ValueError if a file of another rank is missing: DCP creates missing folders, so a rank on another disk, or a
    folder that was removed meanwhile, would otherwise go unnoticed.
    """
    for name, size in tensor_files.read_sizes(unfinished).items():
        file = unfinished / name
        if not file.is_file() or file.stat().st_size < size:
            raise ValueError(
                f"{file} is missing or incomplete: the run directory was changed meanwhile, or not all ranks see the "
                "same one (it must be on a file system that all nodes share)"
            )
    indexes = [f"{prefix}{INDEX}" for prefix in tensor_files.read_indexes(unfinished)]
    files = {**files, **checksums.checksum_files(unfinished, [name for name in indexes if name not in files])}
    if (unfinished / FROZEN).is_dir():
        sync(unfinished / FROZEN)
    write_text(unfinished / "state.json", json.dumps(checksums.add_seal({**state, checksums.FILES: files}), indent=2))
    unfinished.rename(final)
    sync(final.parent)


def _is_rank_0(group: dist.ProcessGroup | None) -> bool:
    return group is None or dist.get_rank(group) == 0


def run_on_rank_0(group: dist.ProcessGroup | None, work: Callable[[], Any]) -> Any:
    """Do `work` on rank 0; return its result on all ranks, or raise its failure."""
    if group is None:
        return work()
    outcome: list[Any] = [None, None]
    if _is_rank_0(group):
        try:
            outcome[0] = work()
        except (OSError, ValueError) as error:
            outcome[1] = _cause(error)
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    if outcome[1] is not None:
        raise CheckpointError(outcome[1])
    return outcome[0]


def gather(group: dist.ProcessGroup | None, value: Any) -> list[Any]:
    """Gather a value of each rank, by rank, on all of them."""
    if group is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, value, group=group)
    return values


def _suggest_earlier(path: Path, damaged: str = "") -> str:
    """Describe how to resume without checkpoint `path`, of which the file `damaged` may belong to others as well."""
    name = NAME.fullmatch(path.name)
    before = [step for step in list_steps(path.parent) if name is not None and step < int(name[1])]
    earlier = [step for step in before if not tensor_files.is_shared(path, path.parent / f"step-{step:08d}", damaged)]
    if before and not earlier:
        again = "a new run with the same settings and processes writes the same one at its first checkpoint"
        return f"the earlier checkpoints share this file: restore it from a copy, or start a new run ({again})"
    if not earlier:
        return "there is no earlier checkpoint: start a new run"
    return f"move this folder away to resume from the checkpoint before it, step {earlier[-1]}"


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _as_checkpoint_error(
    action: str, on_failure: Callable[[], None] = lambda: None, instead: Path | None = None
) -> Iterator[None]:
    """Raise errors of DCP (which are not Exceptions) and of the system as CheckpointError.

    DCP's warning about a single process is silenced.

    Args:
        action: the failed operation.
        on_failure: called before the error is raised.
        instead: the checkpoint to do without; the message suggests how.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as error:
        on_failure()
        message = f"{action}: {_cause(error)}"
        shared = f"{PREFIX}{INDEX}" if isinstance(error, tensor_files.FrozenIndexError) else ""
        raise CheckpointError(f"{message}; {_suggest_earlier(instead, shared)}" if instead else message) from error


def _cause(error: BaseException) -> str:
    """First failure inside DCP's error, in one line, with its rank if there are several."""
    rank = ""
    failures = getattr(error, "failures", {})
    for number, (inner, _) in failures.items():
        error, rank = inner, f"rank {number}: " if number else ""
        break
    if isinstance(error, CheckpointError):
        return str(error)
    return rank + " ".join(f"{type(error).__name__}: {error}".split())


logger = logging.getLogger(__name__)


class Saver:
    """Writes and prunes the checkpoints of a run. All ranks make it, and call it, together.

    Args:
        folder: folder of the checkpoints.
        keep_last: number of latest checkpoints to keep.
        best_by: validation metric whose best checkpoint is kept as well.
        background: write from a copy, in a thread.
    """

    def __init__(self, folder: Path, *, keep_last: int, best_by: str | None = None, background: bool = False) -> None:
        self._folder, self._keep_last, self._best_by = folder, keep_last, best_by
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._background = background
        self._best = (
            inf if best_by is None else checkpoint.run_on_rank_0(self.group, lambda: _read_best(folder, best_by))
        )
        self._stager: Any = None
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._latest: Path | None = None  # the checkpoint that was loaded or saved last

    @classmethod
    def of_run(cls, folder: Path, config: CheckpointConfig) -> "Saver":
        """Make the saver of a run from its settings."""
        best_by = config.keep_best if config.keep_best != "none" else None
        return cls(folder, keep_last=config.keep_last, best_by=best_by, background=config.async_save)

    @property
    def failed(self) -> bool:
        """Whether this rank knows that the save in flight failed."""
        return self._error is not None

    def improves(self, metrics: Record) -> bool:
        """Return whether a validation, the same on all ranks, is better than that of every checkpoint so far."""
        return self._best_by is not None and metrics.get(self._best_by, inf) < self._best

    def record_metrics(self, path: Path, metrics: Record) -> None:
        """Add the figures of a validation to a checkpoint that was saved before it; all ranks call this together."""
        checkpoint.run_on_rank_0(self.group, lambda: checkpoint.write_metrics(path, metrics))
        if self._best_by is not None:
            self._best = min(self._best, metrics.get(self._best_by, inf))

    def load(self, path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Call `checkpoint.load` on this saver's group."""
        state = checkpoint.load(path, tensors, self.group)
        self._latest = path
        return state

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Record, frozen: Collection[str] = ()) -> None:
        """Save checkpoint `step`, then prune; in the background, return when the tensors are copied.

        Args:
            step: number of steps.
            tensors: this rank's shards, by name.
            state: content of state.json.
            frozen: names of the tensors that never change in the run. They are not copied, and written once.

        Raises:
            CheckpointError: this save failed or, in the background, the one before; on every rank.
        """
        self.wait()
        if self._best_by is not None:
            self._best = min(self._best, state.get("judged", {}).get(self._best_by, inf))
        if not self._background:
            self._write(step, tensors, state, frozen)
            return

        frozen_tensors = {name: tensor for name, tensor in tensors.items() if name in frozen}
        staged = (
            self._copy({name: tensor for name, tensor in tensors.items() if name not in frozen_tensors})
            | frozen_tensors
        )
        saved = dict(state)

        def work() -> None:
            try:
                self._write(step, staged, saved, frozen)
            except CheckpointError as error:
                self._error = error
            except BaseException as error:  # otherwise the run would continue without checkpoints
                self._error = CheckpointError(f"step {step}: cannot be saved: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=work, name="understudy-saver", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until no save is in flight. Raises CheckpointError, on every rank, if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Wait until no save is in flight, without raising its error: for cleanup after another failure."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def prune(self) -> None:
        """Remove old and incomplete checkpoints; a failure is only logged.

        The newest checkpoint is safe at this point, and a failure on rank 0 alone must not separate the ranks.
        """
        if self.group is None or dist.get_rank(self.group) == 0:
            try:
                checkpoint.prune(self._folder, self._keep_last, self._best_by)
            except OSError as error:
                logger.warning("%s: old checkpoints cannot be removed: %s", self._folder, error)

    def _write(self, step: int, tensors: Mapping[str, Tensor], state: Record, frozen: Collection[str]) -> None:
        self._latest = checkpoint.save(self._folder, step, tensors, state, self.group, frozen, self._latest)
        self.prune()

    def _copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy the tensors to the host; DTensors keep their shards. Host memory is recycled."""
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        if self._stager is None:
            self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return dict(self._stager.stage(dict(tensors)))


def _read_best(folder: Path, metric: str) -> float:
    path = checkpoint.find_best(folder, metric)
    return inf if path is None else float(checkpoint.read_metrics(path)[metric])
