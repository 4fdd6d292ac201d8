"""Files of tensors in the folder of a checkpoint, in torch's distributed checkpoint format (DCP).

    step-00001000/            tensors that change from step to step
    step-00001000/frozen/     tensors that never change in a run, if any

The files in `frozen` are on disk once: a checkpoint hard-links them from the one before. So every checkpoint is
complete, a copy of its folder as well, and the removal of one leaves the files of the others. Where links are
impossible, the tensors are written again.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch import distributed as dist
from torch.distributed.checkpoint import metadata

from understudy.train.checkpoint import checksums
from understudy.train.checkpoint.index import IndexReader, read_index

FROZEN = "frozen"
"""Folder of the tensors that never change."""
PREFIX = f"{FROZEN}/"
"""Start of the names of its files in state.json."""


class FrozenIndexError(ValueError):
    """The index of the frozen tensors cannot be read; other checkpoints may share the file."""


def read_indexes(path: Path) -> dict[str, metadata.Metadata]:
    """Read the index of each folder of a checkpoint, by the start of the names of its files: "" or `PREFIX`.

    Raises:
        ValueError: see `read_index`.
    """
    found = {"": read_index(path)}
    if (path / FROZEN).is_dir():
        try:
            found[PREFIX] = read_index(path / FROZEN)
        except ValueError as error:
            raise FrozenIndexError(f"{PREFIX}{error}") from error
    return found


def read_contents(path: Path) -> dict[str, Any]:
    """Read name -> size and dtype (`TensorStorageMetadata`) of each tensor; raises as `read_indexes` does."""
    return {name: item for index in read_indexes(path).values() for name, item in index.state_dict_metadata.items()}


def read_sizes(path: Path) -> dict[str, int]:
    """Read the minimum size in bytes of each file with tensors, by name; raises as `read_indexes` does."""
    sizes: dict[str, int] = {}
    for prefix, index in read_indexes(path).items():
        for piece in (index.storage_data or {}).values():
            name = prefix + piece.relative_path
            sizes[name] = max(sizes.get(name, 0), piece.offset + piece.length)
    return sizes


def write(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None) -> dict[str, Any]:
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
    """Read tensors of a checkpoint in place, by name, all ranks of `group` together; None: a single process."""
    import torch.distributed.checkpoint as dcp

    for prefix, index in read_indexes(path).items():
        own = {name: tensor for name, tensor in tensors.items() if name in index.state_dict_metadata}
        if own:
            dcp.load(own, storage_reader=IndexReader(path / prefix), process_group=group, no_dist=group is None)


def link_frozen(
    earlier: Path, files: Mapping[str, Mapping[str, Any]], unfinished: Path, tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Link the frozen tensors of an earlier checkpoint into an unfinished one.

    Args:
        earlier: a complete checkpoint of the same run.
        files: checksums of its files.
        unfinished: folder of the new checkpoint.
        tensors: the frozen tensors, by name.

    Returns:
        Checksums of the linked files. Empty, with nothing linked: the earlier checkpoint lacks some of these tensors or
        has them in another shape or dtype, a file has another size than was written, or links are impossible.
    """
    source, target = earlier / FROZEN, unfinished / FROZEN
    own = {name: dict(sums) for name, sums in files.items() if name.startswith(PREFIX)}
    wanted = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    try:
        stored: dict[str, Any] = dict(read_index(source).state_dict_metadata) if own else {}
        there = {name: (tuple(item.size), item.properties.dtype) for name, item in stored.items()}
        if there != wanted or not all(_is_own_file(earlier / name, sums["bytes"]) for name, sums in own.items()):
            return {}
        target.mkdir()
        for name in own:
            os.link(earlier / name, unfinished / name)
    except (OSError, ValueError):
        for linked in target.iterdir() if target.is_dir() else ():
            linked.unlink()
        return {}
    return own


def _is_own_file(path: Path, size: int) -> bool:
    """Return whether a file of this size is in its folder: a link to a symbolic one depends on another folder."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def is_shared(one: Path, two: Path, name: str) -> bool:
    """Return whether a file of two checkpoints is the same one on disk."""
    try:
        return os.path.samefile(one / name, two / name)
    except OSError:
        return False


def _writer(folder: Path) -> Any:
    """DCP's writer, which fsyncs its files, with checksums in `sums` and the cause of a failed write as its error.

    When the system refuses a write, torch's zip writer reports wrong offsets. Only the context of that error has the
    full disk, and contexts are lost on the way to the other ranks.
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
