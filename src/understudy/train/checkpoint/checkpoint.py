"""Checkpoints that are whole or not there: the directory protocol around torch's distributed checkpoint format (DCP).

    every rank   its shards into step-00001000.tmp/ (DCP's files), fsync, agree
    rank 0       look whether all of it is there, state.json, fsync files and folder, rename to step-00001000/, fsync
                 the parent, tell the others

Never overwrite; the latest is the highest complete one; prune only when a newer one is durable. A name without `.tmp`
is therefore a promise. Whatever goes wrong, on whichever rank, is one CheckpointError on all of them, and earlier
checkpoints are as they were.

The tensors are named and float32, DTensors or plain (the same on every rank), and loaded in place, which is also how
they move to another number of ranks or another mesh. state.json holds the step and the checksum of each file; what is
not as it was written is refused.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from understudy.atomic import sync, write_text
from understudy.errors import CheckpointError
from understudy.train.checkpoint import seal
from understudy.train.checkpoint.index import INDEX, IndexReader, read_index

FORMAT = 2
"""Version of what a checkpoint holds; another one is refused, never guessed at. 1 had no settings in its state."""


KINDS: dict[str, type] = {"step": int, "position": int, "batch": int, "world": int, "settings": dict, "versions": dict}
"""What values of a state are, if they are there."""

UNJUDGED, LATER = "unjudged", "judged.json"
"""In the state: whether the step's validation was cut short; and the file that has its figures once it was made."""

NAME = re.compile(r"step-(\d{8}|[1-9]\d{8,})(\.tmp)?", re.ASCII)
"""Of the folders that are written here; any other one is someone else's and stays."""


def save(
    folder: Path,
    step: int,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    group: dist.ProcessGroup | None = None,
) -> Path:
    """Write checkpoint `step` below `folder` and return its path; one that is there already is left as it is.

    Args:
        group: whose ranks call this together, each with its shards; of a backend that moves CPU tensors. None: this
            process is alone.
    Raises:
        CheckpointError: on every rank: disk full, no permission …; what was half written is removed again if possible.
    """
    import torch.distributed.checkpoint as dcp

    final = folder / f"step-{step:08d}"
    unfinished = _unfinished(final)

    def undo() -> None:
        if _first(group):
            _remove(unfinished)

    with _told(f"{final}: cannot be saved", on_failure=undo):
        if not agreed(group, lambda: _make_room(final, unfinished)):
            return final
        writer = _writer(unfinished)
        dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
        files = {name: own for part in gathered(group, writer.sums) for name, own in part.items()}
        agreed(group, lambda: _promise(unfinished, final, {"format": FORMAT, "step": step, **state}, files))
    return final


def load(path: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Fill `tensors` in place from checkpoint `path`; returns its state. `group` as in `save`.

    Raises:
        CheckpointError: another format, a file that is not what was written, a missing tensor, another shape or dtype,
            unreadable files; on all ranks. Names the checkpoint before this one.
    """
    import torch.distributed.checkpoint as dcp

    state = read_state(path)
    with _told(f"{path}: cannot be loaded", instead=path):
        if seal.FILES in state:
            rank, world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
            found = gathered(group, seal.damaged(path, state[seal.FILES], slice(rank, None, world)))
            if wrong := [line for line in found if line]:
                raise CheckpointError(wrong[0])
        elif _first(group):
            warnings.warn(f"{path} was written without checksums: damage to it would not be noticed", stacklevel=2)
        stored = _contents(path)  # DCP would print a traceback before it fails
        for name, tensor in tensors.items():
            if name not in stored:
                raise ValueError(f"{name} is not in the checkpoint")
            if (kept := stored[name].properties.dtype) != tensor.dtype:
                raise ValueError(f"{name} is {kept} in the checkpoint and {tensor.dtype} here")  # DCP would cast
        # A copy of the mapping: DCP replaces entries that are not tensors, and all of ours are.
        dcp.load(dict(tensors), storage_reader=IndexReader(path), process_group=group, no_dist=group is None)
    return state


def read_tensors(path: Path, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a checkpoint whose names begin with `prefix`, whole, on the CPU; raises as `load` does."""
    with _told(f"{path}: cannot be loaded", instead=path):
        tensors = {
            name: torch.empty(item.size, dtype=item.properties.dtype)
            for name, item in _contents(path).items()
            if name.startswith(prefix)
        }
    load(path, tensors)
    return tensors


def tensor_names(path: Path) -> list[str]:
    """Names of the tensors of a checkpoint; raises as `load` does."""
    with _told(f"{path}: cannot be loaded", instead=path):
        return list(_contents(path))


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a checkpoint.

    Raises:
        CheckpointError: it is not one of ours, of another format, not what was written, or of another step than the
            folder's name says.
    """
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = state["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: state.json cannot be read: {error}; {_before(path)}") from error
    if version != FORMAT:
        raise CheckpointError(
            f"{path}: checkpoint format {version}, this version of understudy reads {FORMAT}: "
            "carry on with the version that wrote it, or start a new run"
        )
    if not seal.unbroken(state):
        raise CheckpointError(f"{path}: state.json is not what was written (its checksum differs); {_before(path)}")
    for name, kind in KINDS.items():
        if type(value := state.get(name, kind())) is not kind:
            raise CheckpointError(f"{path}: state.json says {name}: {value!r}; {_before(path)}")
    if (found := NAME.fullmatch(path.name)) and state.get("step") != int(found[1]):
        what = f"{path}: state.json says that this is step {state.get('step')}; the folder was renamed"
        raise CheckpointError(f"{what}: give it back its name, or {_before(path)}")
    return dict(state)


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(found[1]) for name in names if (found := NAME.fullmatch(name)) and not found[2])


def latest(folder: Path) -> Path | None:
    """The highest complete checkpoint."""
    found = steps(folder)
    return folder / f"step-{found[-1]:08d}" if found else None


def best(folder: Path, metric: str) -> Path | None:
    """The complete checkpoint with the lowest finite `metric` of its validation (the earliest of equals), if any."""
    found: list[tuple[float, Path]] = []
    for step in steps(folder):
        path = folder / f"step-{step:08d}"
        try:
            value = judged(path).get(metric)
        except CheckpointError:  # an older one that is damaged must not stop the run
            continue
        if isinstance(value, int | float) and isfinite(value):  # nothing is lower than NaN
            found.append((value, path))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def judged(path: Path) -> dict[str, Any]:
    """The figures of a checkpoint's validation; none where there was none. Raises as `read_state` does."""
    state = read_state(path)
    if not state.get(UNJUDGED):
        return dict(state.get("judged", {}))
    try:
        return dict(json.loads((path / LATER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):  # it is still to come
        return {}


def judge(path: Path, figures: Mapping[str, Any]) -> None:
    """Leave the figures of a validation with the checkpoint behind which it was cut short."""
    write_text(path / LATER, json.dumps(figures))


def prune(folder: Path, keep: int, best_by: str | None = None) -> None:
    """Remove what a kill left unfinished and all but the `keep` highest; call it once the newest is durable.

    The best one by validation metric `best_by`, if given, stays as well.
    """
    spared = best(folder, best_by) if best_by else None
    for step in steps(folder)[:-keep]:
        old = folder / f"step-{step:08d}"
        if old != spared:
            old.rename(old.with_name(old.name + ".tmp"))  # first take the promise back: half removed is not complete
    for leftover in folder.glob("step-*.tmp"):
        if NAME.fullmatch(leftover.name):
            _remove(leftover)


# -- inside -------------------------------------------------------------------------------------------------------


def _unfinished(final: Path) -> Path:
    """Where a checkpoint is written before it is one."""
    return final.with_name(final.name + ".tmp")


def _writer(unfinished: Path) -> Any:
    """DCP's writer, which fsyncs its files, and sums up what it wrote in `sums`; a write that fails says why.

    torch's zip writer, when the system refuses a write, says that its own offsets are wrong; only the context of that
    error knows of the full disk, and contexts are lost on the way to the other ranks.
    """
    from torch.distributed.checkpoint import FileSystemWriter

    class Writer(FileSystemWriter):
        sums: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

        def write_data(self, *args: Any) -> Any:
            try:
                written = super().write_data(*args)
                self.sums = seal.sums(unfinished, {result.storage_data.relative_path for result in written.wait()})
                return written
            except RuntimeError as error:
                cause: BaseException | None = error
                while cause is not None and not isinstance(cause, OSError):
                    cause = cause.__context__
                raise cause or error from None

    return Writer(unfinished)


def _make_room(final: Path, unfinished: Path) -> bool:
    """False where there is a complete one already; else what an earlier attempt left is gone."""
    if final.exists():
        return False
    _remove(unfinished)
    unfinished.mkdir(parents=True)
    return True


def _promise(unfinished: Path, final: Path, state: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """Everything is written: make it durable and give it its name.

    Raises ValueError when a file that another rank wrote is not here: DCP makes missing folders, so a rank with another
    disk than this one's, or a folder that was removed and made anew, would otherwise go unnoticed.
    """
    for name, size in _files(unfinished).items():
        file = unfinished / name
        if not file.is_file() or file.stat().st_size < size:
            raise ValueError(
                f"{file} is not there, or not whole: the run directory was changed meanwhile, or not all ranks see the "
                "same one (it must lie on a file system that all nodes share)"
            )
    files = {**files, **seal.sums(unfinished, [INDEX])}
    with (unfinished / "state.json").open("w", encoding="utf-8") as file_:
        json.dump(seal.sealed({**state, seal.FILES: files}), file_, indent=2)
        file_.flush()
        os.fsync(file_.fileno())
    sync(unfinished)
    unfinished.rename(final)
    sync(final.parent)


def _contents(path: Path) -> dict[str, Any]:
    """Name -> size and dtype (`TensorStorageMetadata`) of each tensor in there."""
    return dict(read_index(path).state_dict_metadata)


def _files(path: Path) -> dict[str, int]:
    """File name -> least size in bytes of each file that the tensors lie in."""
    sizes: dict[str, int] = {}
    for piece in (read_index(path).storage_data or {}).values():
        sizes[piece.relative_path] = max(sizes.get(piece.relative_path, 0), piece.offset + piece.length)
    return sizes


def _first(group: dist.ProcessGroup | None) -> bool:
    return group is None or dist.get_rank(group) == 0


def agreed(group: dist.ProcessGroup | None, work: Callable[[], Any]) -> Any:
    """Rank 0 does `work`; all get its result, or raise its failure."""
    if group is None:
        return work()
    outcome: list[Any] = [None, None]
    if _first(group):
        try:
            outcome[0] = work()
        except (OSError, ValueError) as error:
            outcome[1] = _cause(error)
    dist.broadcast_object_list(outcome, group=group, group_src=0)
    if outcome[1] is not None:
        raise CheckpointError(outcome[1])
    return outcome[0]


def gathered(group: dist.ProcessGroup | None, own: Any) -> list[Any]:
    """What each rank has, by rank, on all of them."""
    if group is None:
        return [own]
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found


def _before(path: Path) -> str:
    """How to do without checkpoint `path`."""
    name = NAME.fullmatch(path.name)
    earlier = [step for step in steps(path.parent) if name is not None and step < int(name[1])]
    if not earlier:
        return "there is no earlier checkpoint: start a new run"
    return f"move this folder away to go on from the checkpoint before it, step {earlier[-1]}"


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _told(what: str, on_failure: Callable[[], None] = lambda: None, instead: Path | None = None) -> Iterator[None]:
    """DCP's errors (no Exceptions) and the system's as a CheckpointError; DCP's single-process warning is silenced.

    instead: the checkpoint without which things may go on; the error says how.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as error:
        on_failure()
        told = f"{what}: {_cause(error)}"
        raise CheckpointError(f"{told}; {_before(instead)}" if instead else told) from error


def _cause(error: BaseException) -> str:
    """The first failure inside DCP's envelope, in one line; of several ranks, which one."""
    rank = ""
    failures = getattr(error, "failures", {})
    for number, (inner, _) in failures.items():
        error, rank = inner, f"rank {number}: " if number else ""
        break
    if isinstance(error, CheckpointError):
        return str(error)
    return rank + " ".join(f"{type(error).__name__}: {error}".split())
