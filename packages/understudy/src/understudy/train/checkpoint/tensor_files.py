"""Files of tensors in the folder of a checkpoint, in torch's distributed checkpoint format (DCP).

    step-00001000/            tensors that change from step to step
    step-00001000/frozen/     tensors that never change in a run, if any

The files in `frozen` are on disk once: a checkpoint hard-links them from the one before. So every
checkpoint is complete, a copy of its folder as well, and the removal of one leaves the files of the
others. Where links are impossible, the tensors are written again.
"""

import io
import os
import pickle
import stat
from collections import OrderedDict
from collections.abc import Mapping
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint import FileSystemReader, metadata

from understudy.train.checkpoint import checksums
from understudy_base import Record

FROZEN = "frozen"
"""Folder of the tensors that never change."""
PREFIX = f"{FROZEN}/"
"""Start of the names of its files in state.json."""


class FrozenIndexError(ValueError):
    """The index of the frozen tensors cannot be read; other checkpoints may share the file."""


def read_indexes(path: Path) -> dict[str, metadata.Metadata]:
    """Read the index of each folder of a checkpoint, by the start of the names of its files: "" or
    `PREFIX`.

    Raises:
        ValueError: see `read_index`.
    """
    indexes = {"": read_index(path)}
    if (path / FROZEN).is_dir():
        try:
            indexes[PREFIX] = read_index(path / FROZEN)
        except ValueError as error:
            raise FrozenIndexError(f"{PREFIX}{error}") from error
    return indexes


def read_contents(path: Path) -> dict[str, Any]:
    """Read name -> size and dtype (`TensorStorageMetadata`) of each tensor; raises as
    `read_indexes` does.
    """
    contents: dict[str, Any] = {}
    for index in read_indexes(path).values():
        contents |= index.state_dict_metadata
    return contents


def file_sizes(indexes: Mapping[str, metadata.Metadata]) -> dict[str, int]:
    """Return the minimum size in bytes of each file with tensors, by name, from `read_indexes`."""
    sizes: dict[str, int] = {}
    for prefix, index in indexes.items():
        for piece in (index.storage_data or {}).values():
            name = prefix + piece.relative_path
            sizes[name] = max(sizes.get(name, 0), piece.offset + piece.length)
    return sizes


def write(
    folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None
) -> dict[str, Any]:
    """Write this rank's shards of tensors, all ranks of `group` together; None: a single process.

    Returns:
        Checksums of the files of this rank, by name. The index is not among them.
    """
    import torch.distributed.checkpoint as dcp

    writer = _writer(folder)
    # A copy of the mapping: DCP replaces entries that are not tensors, and all of ours are.
    dcp.save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    return dict(writer.sums)


def read(path: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> None:
    """Read tensors of a checkpoint in place, by name, all ranks of `group` together; None: a single
    process.
    """
    import torch.distributed.checkpoint as dcp

    for prefix, index in read_indexes(path).items():
        stored = {
            name: tensor for name, tensor in tensors.items() if name in index.state_dict_metadata
        }
        if stored:
            dcp.load(
                stored,
                storage_reader=IndexReader(path / prefix),
                process_group=group,
                no_dist=group is None,
            )


def link_frozen(
    earlier: Path, files: Mapping[str, Record], unfinished: Path, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Link the frozen tensors of an earlier checkpoint into an unfinished one.

    Args:
        earlier: a complete checkpoint of the same run.
        files: checksums of its files.
        unfinished: folder of the new checkpoint.
        tensors: the frozen tensors, by name.

    Returns:
        Checksums of the linked files. Empty, with nothing linked: the earlier checkpoint lacks some
        of these tensors or has them in another shape or dtype, a file has another size than was
        written, or links are impossible.
    """
    source = earlier / FROZEN
    target = unfinished / FROZEN
    frozen_files = {name: dict(sums) for name, sums in files.items() if name.startswith(PREFIX)}
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    try:
        stored: dict[str, Any] = {}
        if frozen_files:
            stored = dict(read_index(source).state_dict_metadata)
        there = {name: (tuple(item.size), item.properties.dtype) for name, item in stored.items()}
        if there != shapes or not all(
            _is_own_file(earlier / name, sums["bytes"]) for name, sums in frozen_files.items()
        ):
            return {}
        target.mkdir()
        for name in frozen_files:
            os.link(earlier / name, unfinished / name)
    except (OSError, ValueError):
        if target.is_dir():
            for linked in target.iterdir():
                linked.unlink()
        return {}
    return frozen_files


def _is_own_file(path: Path, size: int) -> bool:
    """Return whether a file of this size is in its folder: a link to a symbolic one depends on
    another folder.
    """
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def is_shared(first: Path, second: Path, name: str) -> bool:
    """Return whether a file of two checkpoints is the same one on disk."""
    try:
        return os.path.samefile(first / name, second / name)
    except OSError:
        return False


def _writer(folder: Path) -> Any:
    """DCP's writer, which fsyncs its files, with checksums in `sums` and the cause of a failed
    write as its error.

    When the system refuses a write, torch's zip writer reports wrong offsets. Only the context of
    that error has the full disk, and contexts are lost on the way to the other ranks.
    """
    from torch.distributed.checkpoint import FileSystemWriter

    class Writer(FileSystemWriter):
        sums: dict[str, Any] = {}  # noqa: RUF012 - replaced, never changed

        def write_data(self, *args: Any) -> Any:
            try:
                written = super().write_data(*args)
                self.sums = checksums.checksum_files(
                    folder, {result.storage_data.relative_path for result in written.wait()}
                )
                return written
            except RuntimeError as error:
                cause: BaseException | None = error
                while cause is not None and not isinstance(cause, OSError):
                    cause = cause.__context__
                raise cause or error from None

    return Writer(folder)


INDEX = ".metadata"

CLASSES: dict[str, tuple[str, ...]] = {
    "torch.distributed.checkpoint.metadata": (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),  # a layout by its name
    "torch": ("Size",),
}
"""Module -> names that an index may use, in every version of torch from 2.7 on."""


def _member(of: type[Enum], name: str) -> Enum:
    """Return a member of an Enum by its name; other attributes are refused."""
    if isinstance(of, type) and issubclass(of, Enum):
        return of[name]
    raise pickle.UnpicklingError("it asks for an attribute, which does not belong in a checkpoint")


class _Unpickler(pickle._Unpickler):
    """Unpickler in Python: its memo takes no more memory than its entries, and states are
    checked.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        """Set the state of an object; that of a class or of an Enum's member would change this
        process.
        """
        target = self.stack[-2]  # type: ignore[attr-defined]  # mypy's stubs leave the stack out
        if isinstance(target, type | Enum) or type(target).__name__ not in CLASSES.get(
            type(target).__module__, ()
        ):
            raise pickle.UnpicklingError(
                f"it sets the state of {target!r:.80}, which does not belong in a checkpoint"
            )
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build
    del dispatch[pickle.BYTEARRAY8[0]]  # it would take any number of bytes

    def find_class(self, module: str, name: str) -> Any:
        if name in CLASSES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(
            value := getattr(torch, name, None), torch.dtype | torch.layout
        ):
            return value
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return PurePosixPath  # the original path, which is not used
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) in (("builtins", "getattr"), ("__builtin__", "getattr")):
            return _member  # some versions of Python pickle a member of an Enum this way
        raise pickle.UnpicklingError(
            f"it names {module}.{name}, which does not belong in a checkpoint"
        )


def read_index(path: Path) -> metadata.Metadata:
    """Read the index of the checkpoint in folder `path`.

    Raises:
        ValueError: it cannot be read, or contains anything but tensors and files of this
            checkpoint.
    """
    try:
        index = _Unpickler(io.BytesIO((path / INDEX).read_bytes())).load()
        if not isinstance(index, metadata.Metadata):
            raise pickle.UnpicklingError(f"it contains a {type(index).__name__}")
        for name, item in index.state_dict_metadata.items():
            if not isinstance(item, metadata.TensorStorageMetadata):
                raise pickle.UnpicklingError(f"{name} is not a tensor")
        for piece in (index.storage_data or {}).values():
            if Path(piece.relative_path).name != piece.relative_path:
                raise pickle.UnpicklingError(f"it names the file {piece.relative_path!r}")
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(
            f"{INDEX}: {' '.join(f'{type(error).__name__}: {error}'.split())}"
        ) from error
    return index


class IndexReader(FileSystemReader):
    """DCP's reader of a folder, with `read_index`."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        """Read the index; called by DCP."""
        index = read_index(Path(self.path))
        if index.storage_meta is None:
            index.storage_meta = metadata.StorageMeta()
        index.storage_meta.load_id = self.load_id
        return index
