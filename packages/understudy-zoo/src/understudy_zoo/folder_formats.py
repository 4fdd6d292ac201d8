"""A policy as a folder of another tool. Entry points `TYPE.TOOL` of the group `FOLDERS` name the
tools of a type.

The description of a folder needs no weights, so a policy that the tool cannot hold is refused
before any is read.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from understudy import Normalizer
from understudy_base import (
    ACTION,
    STATE,
    ConfigError,
    Record,
    create_folder,
    find_entry_points,
    sync,
)
from understudy_data import Checksums
from understudy_zoo.graph import FILES, GRAPHS

FOLDERS = "understudy.folders"
"""Group of entry points `TYPE.TOOL`: functions (config, normalization, metadata of the robot,
number of its norm head, dtype) -> `ForeignFolder`.
"""
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ForeignFolder:
    """Content of a folder of another tool."""

    files: Mapping[str, bytes]
    """Content by path in the folder, apart from the weights."""
    keys: Callable[[str], Sequence[str]]
    """Parameter -> its keys in the file of weights."""
    zeros: Mapping[str, Sequence[int]]
    """Keys that the tool requires and no network reads -> shape; they are written as zeros."""
    notes: Sequence[str]
    """Facts of the policy that the tool's files do not hold, one line each."""


class RobotMap(NamedTuple):
    """(x - offset) / spread of one key of one robot; a constant dimension has the spread 0."""

    offset: np.ndarray
    """float64 [dim]."""
    spread: np.ndarray
    """float64 [dim]."""

    @property
    def constant(self) -> list[int]:
        """Dimensions with the spread 0."""
        return [int(dim) for dim in np.flatnonzero(self.spread == 0)]


class Robot(NamedTuple):
    """The normalization of one robot."""

    maps: dict[str, RobotMap]
    """By key, `action` and `observation.state`."""
    delta: tuple[int, ...]
    """Action dimensions that are differences to the state."""

    @classmethod
    def from_head(cls, config: Any, normalization: Record, head: int) -> "Robot":
        """Read a head of a normalization.

        Args:
            config: a `PolicyConfig`.
            normalization: see `policies/common/normalizer.py`.
            head: position of the head.

        Raises:
            ValueError: the normalization does not fit the config.
        """
        read = Normalizer(normalization, config.widths)
        maps = {}
        for key, affine in ((ACTION, read.action), (STATE, read.state)):
            if affine is not None:
                width = read.dims[key][head]
                maps[key] = RobotMap(
                    *(
                        array[head, :width].double().numpy()
                        for array in (affine.offset, affine.spread)
                    ),
                )
        delta: tuple[int, ...] = ()
        if read.delta is not None:
            delta = tuple(int(dim) for dim in read.delta[head].nonzero().flatten())
        return cls(maps, delta)

    def width(self, key: str) -> int:
        """Return the robot's number of dimensions of a key."""
        return len(self.maps[key].offset)


def describe_folder(
    tool: str,
    config: Any,
    normalization: Record,
    metadata: Record,
    head: str = "",
    dtype: str = "fp32",
) -> ForeignFolder:
    """Describe a policy in the format of another tool.

    Args:
        tool: of an entry point `TYPE.TOOL`, TYPE that of the policy.
        config: a `PolicyConfig`.
        normalization: see `policies/common/normalizer.py`.
        metadata: facts about the robots.
        head: norm head of the robot; "" for the only one.
        dtype: dtype of the stored weights, `fp32` or `bf16`.

    Raises:
        ConfigError: this type of policy, or this one, has no equal there; or `head` names none of
            several.
    """
    points = find_entry_points(FOLDERS)
    name = f"{config.type}.{tool}"
    if name not in points:
        own = f"{config.type}."
        formats = {other.removeprefix(own) for other in points if other.startswith(own)}
        graphs = FILES if config.type in find_entry_points(GRAPHS) else ()
        names = ", ".join(sorted({*formats, *graphs, "understudy"}))
        raise ConfigError(f"format: {tool}: a policy of type {config.type} has the formats {names}")
    heads = list(normalization.get("heads", [""]))
    if head not in heads:
        if head or len(heads) > 1:
            shown = head or "none given"
            raise ConfigError(
                f"head: {shown}: a {tool} folder holds one robot; give one of {', '.join(heads)}"
            )
        head = heads[0]
    folder: ForeignFolder = points[name].load()(
        config,
        normalization,
        dict(metadata.get("heads", {}).get(head, {})),
        heads.index(head),
        dtype,
    )
    return folder


def save_folder(
    directory: str | Path, folder: ForeignFolder, weights: Mapping[str, Tensor]
) -> None:
    """Write a new folder next to `directory`, flush it to the disk, then rename it.

    Args:
        directory: a path at which nothing exists.
        folder: its content.
        weights: the policy's state dict.

    Raises:
        FileExistsError: `directory` exists; it is not changed. OSError: the folder cannot be
            written.
    """
    target = Path(directory).resolve()
    check_absent(target)
    tensors: dict[str, Tensor] = {}
    for name, weight in weights.items():
        plain = weight.detach().cpu().contiguous()
        for number, key in enumerate(folder.keys(name)):
            tensors[key] = plain.clone() if number else plain  # safetensors refuses shared memory
    dtype = next(iter(tensors.values())).dtype
    tensors |= {key: torch.zeros(*shape, dtype=dtype) for key, shape in folder.zeros.items()}
    with create_folder(target) as fresh:
        for name, content in folder.files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            for place in (path, path.parent):
                sync(place)
        try:
            save_file(tensors, fresh / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:  # its name for a full disk
            raise OSError(f"{target / WEIGHTS} cannot be written: {error}") from error
        (fresh / WEIGHTS).chmod(0o666 & ~_umask(fresh))
        Checksums(fresh).write()
        check_absent(target)  # again: writing took a while


def check_absent(directory: str | Path) -> None:
    """Raise FileExistsError if a file or folder exists at the path."""
    if os.path.lexists(directory):
        raise FileExistsError(
            f"{directory} exists, and a folder of another tool is never replaced: name a new one"
        )


def _umask(folder: Path) -> int:
    """Return the permission bits that new files lack; the process's own value cannot be read
    without a change of it.
    """
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    return ~mode & 0o666
