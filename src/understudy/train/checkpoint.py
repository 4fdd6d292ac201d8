"""Checkpoints that are whole or not there: the directory protocol around torch's distributed checkpoint format (DCP).

    write step-00001000.tmp/ (DCP's files, then state.json), fsync files and folder, rename to step-00001000/, fsync
    the parent; never overwrite; the latest is the highest complete one; prune only when a newer one is durable.

A name without `.tmp` is therefore a promise. The tensors are named (`optim.named_tensors`), float32, and loaded in
place, which is also how DCP re-shards them onto another mesh. DCP's `.metadata` is a pickle: load only runs you trust.
"""

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from understudy.train.rundir import sync_folder

FORMAT = 1
"""Version of what a checkpoint holds; another one is refused, never guessed at."""


class CheckpointError(OSError):
    """A checkpoint could not be written or read; earlier ones are untouched."""


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
    """Write checkpoint `step` below `folder` and return its path; one that is there already is left as it is.

    Raises:
        CheckpointError: disk full, no permission …; what was half written is removed again if possible.
    """
    import torch.distributed.checkpoint as dcp

    final = folder / f"step-{step:08d}"
    if final.exists():
        return final
    unfinished = final.with_name(final.name + ".tmp")
    with _told(f"{final}: cannot be saved", remove=unfinished):
        shutil.rmtree(unfinished, ignore_errors=True)
        dcp.save(dict(tensors), checkpoint_id=unfinished, no_dist=True)  # fsyncs its files
        with (unfinished / "state.json").open("w", encoding="utf-8") as file:
            json.dump({"format": FORMAT, "step": step, **state}, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(unfinished)
        unfinished.rename(final)
        sync_folder(folder)
    return final


def load(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Fill `tensors` in place from checkpoint `path`; returns its state.

    Raises:
        CheckpointError: another format, a missing tensor, another shape, unreadable files.
    """
    import torch.distributed.checkpoint as dcp

    state = read_state(path)
    with _told(f"{path}: cannot be loaded (removing this folder lets the run go on from an earlier one)"):
        _contents(path)  # DCP would print a traceback before it fails
        # A copy of the mapping: DCP replaces entries that are not tensors, and all of ours are.
        dcp.load(dict(tensors), checkpoint_id=path, no_dist=True)
    return state


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint by name, without a model to fill; raises as `load` does."""
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    with _told(f"{path}: cannot be loaded"):
        kept = _contents(path).items()
    tensors = {
        name: torch.empty(item.size, dtype=item.properties.dtype)
        for name, item in kept
        if isinstance(item, TensorStorageMetadata)
    }
    load(path, tensors)
    return tensors


def _contents(path: Path) -> dict[str, Any]:
    """What DCP says is in there, by name. Raises ValueError when it cannot be read."""
    from torch.distributed.checkpoint import FileSystemReader

    try:
        return FileSystemReader(path).read_metadata().state_dict_metadata
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f".metadata: {_cause(error)}") from error


def read_state(path: Path) -> dict[str, Any]:
    """state.json of a checkpoint. Raises CheckpointError when it is not one of ours or of another format."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        version = state["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: state.json cannot be read: {error}") from error
    if version != FORMAT:
        raise CheckpointError(f"{path}: format {version}, this version of understudy reads {FORMAT}")
    return dict(state)


def steps(folder: Path) -> list[int]:
    """Steps of the complete checkpoints, ascending."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdigit())


def latest(folder: Path) -> Path | None:
    """The highest complete checkpoint."""
    found = steps(folder)
    return folder / f"step-{found[-1]:08d}" if found else None


def prune(folder: Path, keep: int) -> None:
    """Remove what a kill left unfinished and all but the `keep` highest; call it once the newest is durable."""
    for step in steps(folder)[:-keep]:
        old = folder / f"step-{step:08d}"
        old.rename(old.with_name(old.name + ".tmp"))  # first take the promise back: a half removed one is not complete
    for leftover in folder.glob("step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _told(what: str, remove: Path | None = None) -> Iterator[None]:
    """DCP's errors (no Exceptions) and the system's as a CheckpointError; DCP's single-process warning is silenced."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            yield
    except (CheckpointException, OSError, RuntimeError, ValueError, KeyError) as error:
        if remove is not None:
            shutil.rmtree(remove, ignore_errors=True)
        raise CheckpointError(f"{what}: {_cause(error)}") from error


def _cause(error: BaseException) -> str:
    """The first failure inside DCP's envelope, in one line."""
    for inner, _ in getattr(error, "failures", {}).values():
        error = inner
        break
    return " ".join(f"{type(error).__name__}: {error}".split())
