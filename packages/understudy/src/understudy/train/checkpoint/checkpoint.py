"""Checkpoints that are complete or absent: a directory protocol around torch's distributed
checkpoint format (DCP).

    every rank   writes its shards into step-00001000.tmp/ (DCP's files), fsync, agree
    rank 0       checks that all files are there, writes state.json, fsync files and folder, renames
                 to step-00001000/, fsync the parent, notifies the others

A checkpoint is never overwritten. The latest is the highest complete one, and older ones are pruned
only when a newer one is durable. A name without `.tmp` is therefore a promise. Any failure, on any
rank, is one CheckpointError on all of them, and earlier checkpoints are unchanged.

The tensors are named, DTensors or plain (the same on every rank). They are loaded in place, also on
another number of ranks or another mesh. state.json has the step and the checksum of each file; a
changed file is refused. Tensors that never change in a run are written once (`tensor_files.py`).

best-00000500/ is the same with the weights to export alone, without moments: the best validation of
a run (`keep_best`), which no run resumes from.
"""

import json
import logging
import re
import shutil
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from understudy.config.train import CheckpointConfig
from understudy.train.checkpoint import checkpoint, checksums, tensor_files
from understudy.train.checkpoint.tensor_files import FROZEN, INDEX, PREFIX
from understudy_base import Record, UnderstudyError, sync, write_text

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
BEST_NAME = re.compile(NAME.pattern.replace("step", "best"), re.ASCII)
"""Names of folders with the weights of the best validation."""
TRAINED = "trained"
"""Key of the state of such a folder: names of the weights that are trained, whose moments it lacks.
"""


class CheckpointError(UnderstudyError, OSError):
    """A checkpoint cannot be written or read; earlier ones are untouched."""


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Record,
    group: dist.ProcessGroup | None = None,
    frozen: Collection[str] = (),
    earlier: Path | None = None,
    kind: Literal["step", "best"] = "step",
) -> Path:
    """Write checkpoint `step` below `folder` and return its path; an existing one is left
    unchanged.

    Args:
        folder: the folder of all checkpoints.
        step: number of steps.
        tensors: this rank's shards, by name.
        state: content of state.json.
        group: ranks that call this together, of a backend that moves CPU tensors. None: a single
            process.
        frozen: names of the tensors that never change in a run.
        earlier: a checkpoint of the run with the same values of these, whose files are linked;
            None: they are written.
        kind: "best" for the weights of the best validation alone.

    Raises:
        CheckpointError: on every rank: disk full, no permission …; an incomplete checkpoint is
            removed if possible.
    """
    final = folder / f"{kind}-{step:08d}"
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
                    f"{PREFIX}{name}": sums
                    for name, sums in _write(unfinished / FROZEN, frozen_tensors, group).items()
                }
        files |= _write(
            unfinished,
            {name: tensor for name, tensor in tensors.items() if name not in frozen_tensors},
            group,
        )
        run_on_rank_0(
            group,
            lambda: publish(unfinished, final, {"format": FORMAT, "step": step, **state}, files),
        )
    return final


def load(
    path: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """Load checkpoint `path` into `tensors` in place; returns its state. `group` as in `save`.

    Raises:
        CheckpointError: on all ranks: another format, a changed or unreadable file, a missing
            tensor, another shape or dtype. Names the checkpoint before this one.
    """
    state = read_state(path)
    _check_files(path, state, group)
    with _as_checkpoint_error(f"{path}: cannot be loaded", instead=path):
        stored = tensor_files.read_contents(path)  # DCP would print a traceback before it fails
        for name, tensor in tensors.items():
            if name not in stored:
                raise ValueError(f"{name} is not in the checkpoint")
            if (dtype := stored[name].properties.dtype) != tensor.dtype:
                # DCP would cast
                raise ValueError(f"{name} is {dtype} in the checkpoint and {tensor.dtype} here")
        tensor_files.read(path, tensors, group)
    return state


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """Read the tensors of a checkpoint whose names start with `prefix`, whole, on the CPU; raises
    as `load` does.
    """
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
    """Read name -> `TensorStorageMetadata`, after the checksums of the indexes; raises as `load`
    does.
    """
    files = read_state(path).get(checksums.FILES, {})
    indexes = {name: entry for name, entry in files.items() if name.rpartition("/")[2] == INDEX}
    if damage := checksums.find_damage(path, indexes):
        raise CheckpointError(
            f"{path}: cannot be loaded: {' '.join(damage)}; {_suggest_earlier(path, damage[0])}"
        )
    with _as_checkpoint_error(f"{path}: cannot be loaded", instead=path):
        return tensor_files.read_contents(path)


def read_state(path: Path) -> dict[str, Any]:
    """Read state.json of a checkpoint.

    Raises:
        CheckpointError: the file is not a state, has another format, was changed, or belongs to
            another step than the folder's name.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = state["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path}: state.json cannot be read: {error}; {_suggest_earlier(path)}"
        ) from error
    if version != FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {version}, this version of understudy reads {FORMAT}: "
            "resume with the version that wrote it, or start a new run"
        )
    if not checksums.is_intact(state):
        raise CheckpointError(
            f"{path}: state.json was changed (its checksum differs); {_suggest_earlier(path)}"
        )
    for name, kind in KINDS.items():
        if type(value := state.get(name, kind())) is not kind:
            raise CheckpointError(
                f"{path}: state.json has {name}: {value!r}; {_suggest_earlier(path)}"
            )
    if (match := NAME.fullmatch(path.name) or BEST_NAME.fullmatch(path.name)) and state.get(
        "step"
    ) != int(match[1]):
        mismatch = f"{path}: state.json belongs to step {state.get('step')}; the folder was renamed"
        raise CheckpointError(f"{mismatch}: restore its name, or {_suggest_earlier(path)}")
    return dict(state)


def list_steps(folder: Path) -> list[int]:
    """List the steps of the complete checkpoints, ascending."""
    return _list_steps(folder, NAME)


def list_best(folder: Path) -> list[int]:
    """List the steps of the folders with the weights of a best validation alone, ascending."""
    return _list_steps(folder, BEST_NAME)


def _list_steps(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    steps = []
    for name in names:
        match = pattern.fullmatch(name)
        if match and not match[2]:
            steps.append(int(match[1]))
    return sorted(steps)


def find_latest(folder: Path) -> Path | None:
    """Return the highest complete checkpoint, if any."""
    steps = list_steps(folder)
    return folder / f"step-{steps[-1]:08d}" if steps else None


def find_best(folder: Path, metric: str, last: float = inf) -> Path | None:
    """Return the complete checkpoint, or weights alone, with the lowest finite validation `metric`,
    if any.

    Of equals the earliest, and weights alone: the complete checkpoint of their step need not be
    kept.

    Args:
        folder: the folder of all checkpoints.
        metric: name of the figure.
        last: highest step to consider.
    """
    candidates: list[tuple[float, int, Path]] = []
    paths = [(step, folder / f"best-{step:08d}") for step in list_best(folder)]
    paths += [(step, folder / f"step-{step:08d}") for step in list_steps(folder)]
    for step, path in paths:
        if step > last:
            continue
        try:
            value = read_metrics(path).get(metric)
        except CheckpointError:  # a damaged older one must not stop the run
            continue
        if isinstance(value, int | float) and isfinite(value):  # nothing is lower than NaN
            candidates.append((value, step, path))
    return min(candidates, key=lambda entry: entry[:2])[2] if candidates else None


def read_metrics(path: Path) -> dict[str, Any]:
    """Read the figures of a checkpoint's validation; empty if there was none. Raises as
    `read_state` does.
    """
    state = read_state(path)
    if not state.get(PENDING):
        return dict(state.get("judged", {}))
    try:
        return dict(json.loads((path / LATER_METRICS).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # still to be made
        return {}


def describe_choice(path: Path, metric: str) -> str:
    """Describe a checkpoint next to the best one: its step, the validation of both, and how to take
    the best.

    Args:
        path: the checkpoint.
        metric: name of the figure that chooses the best one ("none": loss).
    """
    name = "loss" if metric == "none" else metric
    step = int(path.name.rpartition("-")[2])
    best = find_best(path.parent, name)
    try:
        here = read_metrics(path).get(name)
        lowest = None if best is None else read_metrics(best)[name]
    except CheckpointError:
        return f"step {step:,}"
    figure = "not validated" if here is None else f"validation {name} {here:.4g}"
    if best is None:
        return f"step {step:,}, {figure}"
    best_step = int(best.name.rpartition("-")[2])
    if best_step == step:
        return f"step {step:,}, {figure}, the lowest of the run's checkpoints"
    return (
        f"step {step:,}, {figure}; the lowest is {lowest:.4g} at step {best_step:,}: "
        f"understudy export {path.parent.parent} --checkpoint best"
    )


def write_metrics(path: Path, metrics: Record) -> None:
    """Add the figures of an interrupted validation to its checkpoint."""
    write_text(path / LATER_METRICS, json.dumps(metrics))


def prune(folder: Path, keep_last: int, best_by: str | None = None) -> None:
    """Remove incomplete checkpoints and all but the `keep_last` highest; call it once the newest is
    durable.

    Args:
        folder: the folder of all checkpoints.
        keep_last: number of checkpoints to keep.
        best_by: validation metric whose best weights are kept as well, and those that were the best
            at the latest checkpoint: a run that resumes from it has them again.
    """
    steps = list_steps(folder)
    latest = steps[-1] if steps else -1
    kept = [find_best(folder, best_by, last) for last in (inf, latest)] if best_by else []
    old = [folder / f"step-{step:08d}" for step in steps[:-keep_last]]
    if best_by:
        old += [folder / f"best-{step:08d}" for step in list_best(folder)]
    for path in old:
        if path not in kept:
            _withdraw(path)
    for leftover in folder.glob("*.tmp"):
        if NAME.fullmatch(leftover.name) or BEST_NAME.fullmatch(leftover.name):
            _remove(leftover)


def forget_later(folder: Path) -> None:
    """Remove the best weights of steps behind the latest checkpoint: the run makes these steps
    again.
    """
    latest = (list_steps(folder) or [0])[-1]
    for step in list_best(folder):
        if step > latest:
            _withdraw(folder / f"best-{step:08d}")


def _withdraw(path: Path) -> None:
    """Take the name first: a partly removed folder is not complete."""
    path.rename(path.with_name(path.name + ".tmp"))


# -- inside ----------------------------------------------------------------------------------------


def unfinished_path(final: Path) -> Path:
    """Folder in which a checkpoint is written."""
    return final.with_name(final.name + ".tmp")


def _link_frozen(
    earlier: Path | None, unfinished: Path, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Return the checksums of the linked files of frozen tensors; empty if they are to be
    written.
    """
    try:
        files = read_state(earlier).get(checksums.FILES, {}) if earlier is not None else {}
    except CheckpointError:  # it was removed or damaged since
        return {}
    return {} if earlier is None else tensor_files.link_frozen(earlier, files, unfinished, tensors)


def _write(
    folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None
) -> dict[str, Any]:
    """Write tensors; returns the checksums of the files of all ranks, without the index."""
    checksums: dict[str, Any] = {}
    for of_rank in gather(group, tensor_files.write(folder, tensors, group)):
        checksums |= of_rank
    return checksums


def _check_files(path: Path, state: Record, group: dist.ProcessGroup | None) -> None:
    """Compare the files of a checkpoint with their checksums, each file on one rank. Raises as
    `load` does.
    """
    rank, world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    with _as_checkpoint_error(f"{path}: cannot be loaded", instead=path):
        damages = gather(
            group,
            checksums.find_damage(path, state.get(checksums.FILES, {}), slice(rank, None, world)),
        )
    for name, damage in filter(None, damages):
        raise CheckpointError(
            f"{path}: cannot be loaded: {name} {damage}; {_suggest_earlier(path, name)}"
        )


def _prepare_folder(final: Path, unfinished: Path) -> bool:
    """Remove an incomplete attempt; returns False if there is a complete checkpoint."""
    if final.exists():
        return False
    _remove(unfinished)
    unfinished.mkdir(parents=True)
    return True


def publish(unfinished: Path, final: Path, state: Record, files: Record) -> None:
    """Make a written checkpoint durable and give it its final name.

    Raises ValueError if a file of another rank is missing: DCP creates missing folders, so a rank
    on another disk, or a folder that was removed meanwhile, would otherwise go unnoticed.
    """
    indexes = tensor_files.read_indexes(unfinished)
    for name, size in tensor_files.file_sizes(indexes).items():
        file = unfinished / name
        if not file.is_file() or file.stat().st_size < size:
            raise ValueError(
                f"{file} is missing or incomplete: the run directory was changed meanwhile, or not "
                "all ranks see the same one (it must be on a file system that all nodes share)"
            )
    names = [f"{prefix}{INDEX}" for prefix in indexes]
    files = {
        **files,
        **checksums.checksum_files(unfinished, [name for name in names if name not in files]),
    }
    if (unfinished / FROZEN).is_dir():
        sync(unfinished / FROZEN)
    write_text(
        unfinished / "state.json",
        json.dumps(checksums.add_seal({**state, checksums.FILES: files}), indent=2),
    )
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
    """Describe how to resume without checkpoint `path`, of which the file `damaged` may belong to
    others as well.
    """
    name = NAME.fullmatch(path.name)
    before = [step for step in list_steps(path.parent) if name is not None and step < int(name[1])]
    earlier = [
        step
        for step in before
        if not tensor_files.is_shared(path, path.parent / f"step-{step:08d}", damaged)
    ]
    if before and not earlier:
        again = (
            "a new run with the same settings and processes writes the same one at its first "
            "checkpoint"
        )
        return (
            "the earlier checkpoints share this file: restore it from a copy, or start a new "
            f"run ({again})"
        )
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
        if instead:
            message += f"; {_suggest_earlier(instead, shared)}"
        raise CheckpointError(message) from error


def _cause(error: BaseException) -> str:
    """First failure inside DCP's error, in one line, with its rank if there are several."""
    rank = ""
    failures = getattr(error, "failures", {})
    for number, (inner, _) in failures.items():
        error = inner
        rank = f"rank {number}: " if number else ""
        break
    if isinstance(error, CheckpointError):
        return str(error)
    return rank + " ".join(f"{type(error).__name__}: {error}".split())


logger = logging.getLogger(__name__)


class Best(NamedTuple):
    """Weights of the best validation, without moments."""

    tensors: Mapping[str, Tensor]
    """This rank's shards of the weights to export, by name."""
    state: Record
    """Content of state.json."""


class _Part(NamedTuple):
    """One folder to write."""

    kind: Literal["step", "best"]
    tensors: Mapping[str, Tensor]
    state: Record


class Saver:
    """Writes and prunes the checkpoints of a run. All ranks make it, and call it, together.

    Args:
        folder: folder of the checkpoints.
        keep_last: number of latest checkpoints to keep.
        best_by: validation metric whose best weights are kept as well.
        background: write from a copy, in a thread.
    """

    def __init__(
        self, folder: Path, *, keep_last: int, best_by: str | None = None, background: bool = False
    ) -> None:
        self._folder = folder
        self._keep_last = keep_last
        self._best_by = best_by
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._background = background
        self._best = inf
        if best_by is not None:
            self._best = checkpoint.run_on_rank_0(self.group, lambda: _read_best(folder, best_by))
        self._stagers: dict[str, Any] = {}
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._latest: Path | None = None  # the checkpoint that was loaded or saved last

    @classmethod
    def of_run(cls, folder: Path, config: CheckpointConfig) -> "Saver":
        """Make the saver of a run from its settings."""
        best_by = config.keep_best if config.keep_best != "none" else None
        return cls(
            folder, keep_last=config.keep_last, best_by=best_by, background=config.async_save
        )

    @property
    def failed(self) -> bool:
        """Whether this rank knows that the save in flight failed."""
        return self._error is not None

    def improves(self, metrics: Record) -> bool:
        """Return whether a validation, the same on all ranks, is better than that of every
        checkpoint so far.
        """
        return self._best_by is not None and metrics.get(self._best_by, inf) < self._best

    def record_metrics(self, path: Path, metrics: Record) -> None:
        """Add the figures of a validation to a checkpoint that was saved before it; all ranks call
        this together.
        """
        self.wait()
        checkpoint.run_on_rank_0(self.group, lambda: checkpoint.write_metrics(path, metrics))
        if self._best_by is not None:
            self._best = min(self._best, metrics.get(self._best_by, inf))

    def load(self, path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Call `checkpoint.load` on this saver's group."""
        state = checkpoint.load(path, tensors, self.group)
        self._latest = path
        return state

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Record,
        frozen: Collection[str] = (),
        best: Best | None = None,
    ) -> None:
        """Save checkpoint `step`, then prune; in the background, return when the tensors are
        copied.

        Args:
            step: number of steps.
            tensors: this rank's shards, by name.
            state: content of state.json.
            frozen: names of the tensors that never change in the run. They are not copied, and
                written once.
            best: some of `tensors`, where they are those of the best validation so far; see
                `save_best`.

        Raises:
            CheckpointError: this save failed or, in the background, the one before; on every rank.
        """
        self.wait()
        if self._best_by is not None:
            self._best = min(self._best, state.get("judged", {}).get(self._best_by, inf))
        if self._background:
            staged = self._stage("step", tensors, frozen)
            parts = [_Part("step", staged, dict(state))]
            if best is not None:
                parts.append(
                    _Part("best", {name: staged[name] for name in best.tensors}, dict(best.state))
                )
            self._start(step, parts, frozen)
            return
        self._write(step, _Part("step", tensors, state), frozen)
        if best is not None:
            self.save_best(step, best, frozen)

    def save_best(self, step: int, best: Best, frozen: Collection[str] = ()) -> None:
        """Save the weights of the best validation so far in the background, then prune.

        Args:
            step: number of steps.
            best: the weights and their state.
            frozen: see `save`.

        Raises:
            CheckpointError: the save before this one failed; on every rank.
        """
        self.wait()
        if self._best_by is not None:
            self._best = min(self._best, best.state.get("judged", {}).get(self._best_by, inf))
        staged = self._stage("best", best.tensors, frozen)
        self._start(step, [_Part("best", staged, dict(best.state))], frozen)

    def _start(self, step: int, parts: Sequence[_Part], frozen: Collection[str]) -> None:
        """Write copies in a thread."""

        def work() -> None:
            try:
                for part in parts:
                    self._write(step, part, frozen)
            except CheckpointError as error:
                self._error = error
            except BaseException as error:  # otherwise the run would continue without checkpoints
                self._error = CheckpointError(
                    f"step {step}: cannot be saved: {type(error).__name__}: {error}"
                )

        self._thread = threading.Thread(target=work, name="understudy-saver", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until no save is in flight. Raises CheckpointError, on every rank, if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error = self._error
            self._error = None
            raise error

    def close(self) -> None:
        """Wait until no save is in flight, without raising its error: for cleanup after another
        failure.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def prune(self) -> None:
        """Remove old and incomplete checkpoints; a failure is only logged.

        The newest checkpoint is safe at this point, and a failure on rank 0 alone must not separate
        the ranks.
        """
        if self.group is None or dist.get_rank(self.group) == 0:
            try:
                checkpoint.prune(self._folder, self._keep_last, self._best_by)
            except OSError as error:
                logger.warning("%s: old checkpoints cannot be removed: %s", self._folder, error)

    def _write(self, step: int, part: _Part, frozen: Collection[str]) -> None:
        arguments = (
            self._folder,
            step,
            part.tensors,
            part.state,
            self.group,
            frozen,
            self._latest,
            part.kind,
        )
        path = checkpoint.save(*arguments)
        if part.kind == "step":
            self._latest = path
        self.prune()

    def _stage(
        self, kind: str, tensors: Mapping[str, Tensor], frozen: Collection[str]
    ) -> dict[str, Tensor]:
        """Copy the tensors that change to the host."""
        copied = self._copy(
            {name: tensor for name, tensor in tensors.items() if name not in frozen}, kind
        )
        return copied | {name: tensor for name, tensor in tensors.items() if name in frozen}

    def _copy(self, tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
        """Copy tensors to the host; DTensors keep their shards. Host memory of a kind is
        recycled.
        """
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        if kind not in self._stagers:
            self._stagers[kind] = BlockingAsyncStager(
                cache_staged_state_dict=torch.cuda.is_available()
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return dict(self._stagers[kind].stage(dict(tensors)))


def _read_best(folder: Path, metric: str) -> float:
    checkpoint.forget_later(folder)
    path = checkpoint.find_best(folder, metric)
    return inf if path is None else float(checkpoint.read_metrics(path)[metric])
