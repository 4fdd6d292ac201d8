"""The kind of a folder (a policy, a run or a dataset), and the files of it that the hub gets."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from understudy import checksums
from understudy.atomic import DRAFT_SUFFIX
from understudy.errors import ConfigError
from understudy.hub.ids import near_path

Kind = Literal["policy", "run", "dataset"]
_MARKS: dict[Kind, tuple[str, ...]] = {
    "run": ("config.yaml", "order.json", "checkpoints"),
    "dataset": ("meta/info.json",),
    "policy": ("config.json", "model.safetensors"),
}

_OF_THIS_MACHINE = ("wandb",)
"""Folders of a run with names of the user and of the machine; no later process needs them."""


@dataclass(frozen=True)
class Content:
    """Content of a folder for the hub.

    Attributes:
        kind: "policy", "run" or "dataset".
        files: paths of its files, relative to it, sorted. Hidden files and drafts are left out.
        step: step of the checkpoint of a run; -1 for another kind.
        tag: format of a dataset, by which LeRobot finds it; "" for another kind.
    """

    kind: Kind
    files: tuple[Path, ...]
    step: int = -1
    tag: str = ""

    @property
    def size(self) -> int:
        """Number of files."""
        return len(self.files)


def folder_kind(folder: Path) -> Kind | None:
    """Return the kind of a folder; None for a folder that is neither a policy nor a run nor a dataset."""
    for kind, names in _MARKS.items():
        if all((folder / name).exists() for name in names):
            return kind
    return None


def read_content(folder: Path, checkpoint: int | str = "latest") -> Content:
    """List the files of a folder for the hub.

    Args:
        folder: a policy, a run or a dataset.
        checkpoint: of a run: step of the checkpoint, "latest" or "best". Its other checkpoints are left out.

    Raises:
        ConfigError: the folder is none of these, the run has no such checkpoint, info.json is no JSON object, or a file
            of a policy is not the one that was written, which no load accepts.
        OSError: a folder or a file in it cannot be read.
    """
    kind = folder_kind(folder)
    if kind is None:
        what = "holds no policy, run or dataset" if folder.is_dir() else "there is no such folder"
        if not folder.exists() and (near := near_path(str(folder))):
            what += f"; did you mean {near}?"
        raise ConfigError(f"path: {folder}: {what}; name the folder of one, such as RUN/policy, RUN or a dataset")
    files = _visible(folder)
    for path in files:
        if path.name == checksums.FILE:
            try:
                checksums.check_checksums(folder / path.parent)
            except checksums.ChecksumError as error:
                raise ConfigError(f"path: {error}") from error
    if kind == "dataset":
        return Content(kind, files, tag=_format(folder / "meta" / "info.json"))
    if kind == "policy":
        return Content(kind, files)
    from understudy.train.checkpoint.export import find_checkpoint
    from understudy.train.checkpoint.run_dir import RunDir

    run = RunDir(folder)
    metric = run.settings().checkpoint.keep_best
    chosen = find_checkpoint(run.checkpoints, checkpoint, metric).relative_to(folder)
    outside = [path for path in files if path.parts[0] not in (chosen.parts[0], run.stop.name, *_OF_THIS_MACHINE)]
    # A checkpoint is published as it is: its list of tensors is the file `.metadata`.
    inside = [path.relative_to(folder) for path in (folder / chosen).rglob("*") if path.is_file()]
    return Content(kind, tuple(sorted(outside + inside)), step=int(chosen.name.rpartition("-")[2]))


def _format(info: Path) -> str:
    try:
        return str(json.loads(info.read_bytes()).get("codebase_version", ""))
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"path: {info}: is no JSON object ({error}); repair it before it is published") from error


def _visible(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path.relative_to(folder) for path in _files(folder, frozenset())))


def _files(folder: Path, outer: frozenset[Path]) -> Iterator[Path]:
    """Yield the files below a folder, also those behind links: videos may be on another disk."""
    here = folder.resolve()
    if here in outer:
        raise ConfigError(f"path: {folder}: links to the folder that it is in; remove this link")
    for entry in os.scandir(folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files(Path(entry.path), outer | {here})
        elif entry.is_file() and not entry.name.endswith(DRAFT_SUFFIX):
            yield Path(entry.path)
        elif entry.is_symlink():
            raise ConfigError(f"path: {entry.path}: links to a file that is not there; restore it, or remove the link")
