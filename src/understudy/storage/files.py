"""Every byte of a dataset comes through here: one root (a folder, or any fsspec URL), paths relative to it.

A local root uses the operating system directly; any other goes through `remote/`, which fetches each byte once per
host. Whatever a file system or a library says about a broken file leaves here as one `DatasetError`.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from understudy import addresses
from understudy.errors import DatasetError, LfsPointerError, MissingFileError
from understudy.storage.source import ByteSource, LocalSource, as_file

if TYPE_CHECKING:  # nothing of it is loaded for a folder of this machine
    from understudy.storage.options import RemoteOptions
    from understudy.storage.remote import RemoteFiles

_BUFFER = 1 << 16  # of a file elsewhere; smaller ones come whole when they are opened
_RESTORE = "restore the file or download the dataset again"
_ALLOW = "change its owner or mode"
_LFS, _POINTER = b"version https://git-lfs", 1024  # how a pointer begins, and bytes that it is at most


class Files:
    """The files of one dataset. Pickles as its root, with what pins it to one version of what lies there.

    Attributes:
        root: the folder (absolute), or the URL without its credentials (`addresses.py`).

    Args:
        root: a path, `file://` URL, or any URL fsspec knows (`memory://`, `https://`, `s3://`, `hf://`).
        options: how a root that is not on this machine is read.
    """

    def __init__(self, root: str | os.PathLike[str], options: RemoteOptions | None = None) -> None:
        text = os.fspath(root)
        if text.startswith("file://"):
            text = unquote(urlsplit(text).path)
        self.is_local = "://" not in text
        self.root = (
            os.path.abspath(os.path.expanduser(text))
            if self.is_local
            else addresses.strip_credentials(text).rstrip("/")
        )
        self._address = self.root if self.is_local else addresses.restore_credentials(text)
        self.options = options
        self._pin = ""
        self._forget()

    def _forget(self) -> None:
        self._remote_files: RemoteFiles | None = None
        self._lock = threading.Lock()
        _alive.add(self)

    def _now(self) -> str:
        """What pins the root to one version of what lies there."""
        return self._pin if self._remote_files is None else self._remote_files.store.pin

    def __getstate__(self) -> tuple[object, ...]:
        return self.root, self._address, self.options, self._now()

    def __setstate__(self, state: tuple[str, str, RemoteOptions | None, str]) -> None:
        root, address, options, pin = state
        self.__init__(root, options)  # type: ignore[misc]
        self._address, self._pin = address, pin

    def where(self, path: str) -> str:
        """The full name of a file, for people."""
        return f"{self.root}/{path}" if path else self.root

    @property
    def remote_files(self) -> RemoteFiles:
        """The root, where it is not on this machine; of this process alone."""
        with self._lock:
            if self._remote_files is None:
                from understudy.storage.options import RemoteOptions
                from understudy.storage.remote import RemoteFiles

                self._remote_files = RemoteFiles(self._address, self.root, self.options or RemoteOptions(), self._pin)
            return self._remote_files

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading at any place. Raises DatasetError naming it when that cannot be."""
        where = self.where(path)
        if not self.is_local:
            return as_file(self._whole(path), _BUFFER)
        try:
            if os.path.exists(where) and not os.path.isfile(where) and not os.path.isdir(where):
                raise DatasetError("neither a file nor a folder", where=where, fix=_RESTORE)  # a pipe would wait
            return open(where, "rb")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError("this file is not there", where=where, fix=_RESTORE) from error
        except IsADirectoryError as error:
            raise DatasetError("a folder lies where a file should be", where=where, fix=_RESTORE) from error
        except PermissionError as error:
            raise DatasetError("no permission to read it", where=where, fix=_ALLOW) from error
        except DatasetError:
            raise
        except Exception as error:
            raise DatasetError(f"cannot be opened: {_short(error)}", where=where, fix=_RESTORE) from error

    def _whole(self, path: str) -> ByteSource:
        """A file of a root elsewhere that will be read whole: it comes in parts, several at a time."""
        from understudy.storage.remote import RemoteSource

        source = RemoteSource(self, path)
        if source.size > _BUFFER:
            source.prefetch_all()
        return source

    def source(self, path: str) -> ByteSource:
        """A file to read by place, pinned to what it is now. Raises DatasetError where it cannot be opened."""
        if not self.is_local:
            from understudy.storage.remote import RemoteSource

            return RemoteSource(self, path)
        self.open(path).close()  # says what is wrong with a folder or a forbidden file, in plain words
        return LocalSource(self.where(path))

    def version(self, path: str) -> str:
        """What a file no longer says of itself once it has changed: size and times of change, elsewhere its etag or
        revision. Raises DatasetError where it is not there."""
        if not self.is_local:
            there = self.remote_files.stat(path)
            return f"{there.size} {there.tag}"
        try:
            stat = os.stat(self.where(path))
        except OSError as error:
            self.open(path).close()  # says what is wrong
            raise DatasetError(f"cannot be looked at: {_short(error)}", where=self.where(path), fix=_ALLOW) from error
        return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"  # the last: written again with its old time

    @property
    def latency(self) -> float:
        """Seconds from asking for a span of a file to having it, as lately measured (nine of ten took no longer); 0 on
        this machine, and before anything was fetched."""
        return 0.0 if self._remote_files is None else self._remote_files.latency.seconds

    def close(self) -> None:
        """Stop fetching ahead and leave no thread behind. Reading may go on."""
        if self._remote_files is not None:
            self._remote_files.close()

    def read(self, path: str) -> bytes:
        """The whole content of a small file."""
        with as_dataset_error(self.where(path), "cannot be read", _RESTORE), self.open(path) as handle:
            data = handle.read()
        if data.startswith(_LFS):
            self.check_not_pointer(path)
        return data

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name is there (plain HTTP knows no folders). Raises DatasetError where that
        cannot be found out: forbidden, or no answer, is not the same as nothing there."""
        if not self.is_local:
            folder, _, name = path.rpartition("/")
            listed = self.entries(folder)
            if listed is not None:
                return any(name == entry for entry, _ in listed)
            try:
                self.remote_files.stat(path)
            except MissingFileError:
                return False
            return True
        try:
            os.stat(self.where(path))
            return True
        except PermissionError as error:
            raise DatasetError("no permission to look there", where=self.where(path), fix=_ALLOW) from error
        except OSError:  # opening the file will say what is wrong
            return False

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """(name, is a folder) of each entry, sorted by name, without links that lead nowhere; [] where there is no such
        folder; None where the file system cannot list (plain HTTP), so that absence is not mistaken for an answer."""
        if self.is_local:
            try:
                with os.scandir(self.where(folder)) as found:
                    there = [entry for entry in found if not entry.is_symlink() or os.path.exists(entry.path)]
                    return sorted((entry.name, entry.is_dir()) for entry in there)
            except (FileNotFoundError, NotADirectoryError):
                return []
            except PermissionError as error:
                raise DatasetError("no permission to look into it", where=self.where(folder), fix=_ALLOW) from error
            except OSError as error:
                raise DatasetError(
                    f"this folder cannot be listed: {_short(error)}", where=self.where(folder)
                ) from error
        return self.remote_files.store.entries(folder)

    def is_pointer(self, path: str) -> bool:
        """Whether a file is what git LFS leaves where the file itself was not downloaded."""
        try:
            source = self.source(path)
            return len(_LFS) < source.size < _POINTER and source.read(0, len(_LFS)) == _LFS
        except DatasetError:
            return False

    def check_not_pointer(self, path: str) -> None:
        """Raise LfsPointer where `is_pointer`: said in place of what a reader makes of it."""
        if self.is_pointer(path):
            fix = f"run `git lfs pull` in {self.root}"
            raise LfsPointerError("a git LFS pointer, not the file itself", where=self.where(path), fix=fix)

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        """An open parquet file; page checksums are verified where the writer left them. DatasetError on anything odd
        that happens inside the `with`."""
        with as_dataset_error(self.where(path), "not a readable parquet file", _RESTORE), self.open(path) as handle:
            try:
                opened = pq.ParquetFile(handle, page_checksum_verification=True)
            except Exception:
                self.check_not_pointer(path)
                raise
            yield opened

    def table(self, path: str, columns: list[str] | None = None, group: int | None = None) -> pa.Table:
        """The named columns of a parquet file, those of them that it has, or of one row group; all by default."""
        with self.parquet(path) as file:
            names = file.schema_arrow.names
            have = names if columns is None else [name for name in columns if name in names]
            groups = range(file.metadata.num_row_groups) if group is None else [group]
            table = file.read_row_groups(list(groups), columns=have, use_threads=False).select(have)
            table.validate(full=True)  # offsets and text: nothing behind this checks them again
            return table


@contextmanager
def as_dataset_error(where: object, what: str, fix: str) -> Iterator[None]:
    """Turn whatever a library raises on a broken file into one DatasetError: such libraries promise no error type."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"{what}: {_short(error)}", where=where, fix=fix) from error


@contextmanager
def with_location(where: object) -> Iterator[None]:
    """Let a DatasetError say more of where it is (which episode, too)."""
    try:
        yield
    except DatasetError as error:
        raise type(error)(error.what, where=where, fix=error.fix) from error


def _short(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


_alive: weakref.WeakSet[Files] = weakref.WeakSet()


def _after_fork() -> None:
    for files in list(_alive):  # threads, connections and locks are the parent's
        files._pin = files._now()
        files._forget()


os.register_at_fork(after_in_child=_after_fork)
