"""A dataset's root (a folder or any fsspec URL) and the files below it.

All bytes of a dataset pass through here. A local root is read through the operating system, any
other through `remote_source.py`, which fetches each byte once per host. Errors of file systems and
libraries become DatasetErrors.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from understudy_base import (
    DataAccessError,
    DatasetError,
    LfsPointerError,
    MissingFileError,
    absolute_path,
    restore_credentials,
    strip_credentials,
    summarize,
)
from understudy_data.storage.byte_source import ByteSource, LocalSource, as_file
from understudy_data.storage.dataset_version import (
    DatasetVersion,
    LocalCheck,
    changed_at,
    folder_of,
    local_stat,
    publication_folder,
    publication_name,
    publication_of,
)
from understudy_data.storage.parquet_faults import RESTORE, check_values, explain_parquet_error

if TYPE_CHECKING:  # not imported for local roots
    from understudy_data.storage.remote_options import RemoteOptions
    from understudy_data.storage.remote_source import RemoteFiles

_BUFFER = 1 << 16  # bytes per read; a smaller remote file is fetched completely when it is opened
_ROWS_AT_ONCE = 1024  # rows of a parquet file
_ALLOW = "change its owner or mode"
# start of a pointer, and its largest size in bytes
_LFS = b"version https://git-lfs"
_MAX_POINTER = 1024


class Files:
    """The files of one dataset. Pickles as its root, pinned to one version of a remote dataset.

    Attributes:
        root: Absolute folder, or the URL without credentials (`credentials.py`).
        publication: Folder of the publication that is read (`edit/publish.py`); "" for any other
            dataset.

    Args:
        root: Path, `PATH@NUMBER` of one publication, `file://` URL, or any URL that fsspec knows
            (`memory://`, `https://`, `s3://`, `hf://`).
        options: Options for reading a remote root.
    """

    def __init__(self, root: str | os.PathLike[str], options: RemoteOptions | None = None) -> None:
        text = os.fspath(root)
        if text.startswith("file://"):
            text = unquote(urlsplit(text).path)
        self.is_local = "://" not in text
        if self.is_local:
            folder = absolute_path(text)
            self.root = publication_folder(folder) or folder
        else:
            self.root = strip_credentials(text).rstrip("/")
        self.publication = publication_of(self.root) if self.is_local else ""
        self._made = time.time()
        self._version: DatasetVersion | None = None
        self._check: LocalCheck | None = None
        self._address = self.root if self.is_local else restore_credentials(text)
        self.options = options
        self._pin = ""
        self._listings: dict[str, list[tuple[str, bool]]] | None = None
        self._reset()

    def _reset(self) -> None:
        self._remote_files: RemoteFiles | None = None
        self._lock = threading.Lock()
        _alive.add(self)

    def _current_pin(self) -> str:
        return self._pin if self._remote_files is None else self._remote_files.store.pin

    def __getstate__(self) -> tuple[object, ...]:
        return (
            self.root,
            self._address,
            self.options,
            self._current_pin(),
            self.publication,
            self._version,
        )

    def __setstate__(
        self, state: tuple[str, str, RemoteOptions | None, str, str, DatasetVersion | None]
    ) -> None:
        root, address, options, pin, publication, version = state
        self.__init__(root, options)  # type: ignore[misc]
        self._address = address
        self._pin = pin
        self.publication = publication
        self._keep_to(version)

    def pin_version(self, paths: Sequence[str]) -> None:
        """Read from now on the version of the dataset that these files of `meta/` have
        (`dataset_version.py`).
        """
        if not self.is_local:
            self._version = self.remote_files.pin_version(paths)
        elif not self.publication:  # which never changes
            marks = {path: local_stat(self.where(path)) for path in paths}
            changed = max((changed_at(self.where(path)) for path in paths), default=0.0)
            self._keep_to(DatasetVersion(marks, self._made, folder_of(self.root), changed))

    def _keep_to(self, version: DatasetVersion | None) -> None:
        self._version = version
        if version is not None and self.is_local:
            self._check = LocalCheck(version, self.root)

    @property
    def version_read(self) -> str:
        """The version of the dataset that is read, for records: a commit, a publication, or
        versions of meta files.
        """
        if self.publication:
            return f"publication {os.path.basename(self.publication)}"
        if not self.is_local and self.remote_files.commit:
            return f"commit {self.remote_files.commit}"
        marks = self._version.marks if self._version is not None else {}
        return ", ".join(
            f"{path} {mark.tag}" for path, mark in sorted(marks.items()) if mark is not None
        )

    @cached_property
    def place(self) -> str:
        """The root; that of a local dataset without links."""
        return os.path.realpath(self.root) if self.is_local else self.root

    is_compared = False
    """Whether the ranks of a run compared the episodes that they read. Then the dataset may grow
    while they start.
    """

    @property
    def shared_version(self) -> str:
        """The same as `version_read`, but equal for a copy on another host: of a local dataset
        sizes of meta files.
        """
        if not self.is_local or self.publication:
            return self.version_read
        marks = self._version.marks if self._version is not None else {}
        return ", ".join(
            f"{path} {mark.size}" for path, mark in sorted(marks.items()) if mark is not None
        )

    @property
    def version_address(self) -> str:
        """Address of the version of `version_read`, where a later opening gets the same; "" where
        there is none.
        """
        if self.publication:
            folder, number = os.path.split(self.publication)
            return f"{os.path.dirname(folder)}/{publication_name(self.publication)}@{number}"
        return "" if self.is_local else self.remote_files.pinned_address

    def _place(self, path: str) -> str:
        """Return the path of a local file or folder; one of a publication has it for good."""
        if self.publication:
            kept = f"{os.path.dirname(self.publication)}/files/{path}"
            if os.path.isfile(kept):
                return kept
            if os.path.exists(self.publication):
                return f"{self.publication}/{path}"
        return self.where(path)

    def confirm(self, path: str) -> None:
        """Check that a local file belongs to the version of the dataset that is read; of a remote
        one `version` does.

        Raises:
            SourceError: The dataset was replaced, or this file was.
        """
        if self._check is not None and (stat := local_stat(self.where(path))) is not None:
            self._check.confirm(path, stat)

    @property
    def cache(self) -> str:
        """Folder of the host's cache; "" for its default."""
        return self.options.cache if self.options is not None else ""

    def where(self, path: str) -> str:
        """Return the full name of a file, for messages."""
        return f"{self.root}/{path}" if path else self.root

    @property
    def remote_files(self) -> RemoteFiles:
        """The remote root, opened on first use. It belongs to this process."""
        with self._lock:
            if self._remote_files is None:
                from understudy_data.storage.remote_options import RemoteOptions
                from understudy_data.storage.remote_source import RemoteFiles

                options = self.options or RemoteOptions()
                self._remote_files = RemoteFiles(
                    self._address, self.root, options, self._pin, self._version
                )
            return self._remote_files

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading and seeking; raises DatasetError."""
        where = self.where(path)
        if not self.is_local:
            return as_file(self._prefetch_file(path), _BUFFER)
        place = self._place(path)
        try:
            if os.path.exists(place) and not os.path.isfile(place) and not os.path.isdir(place):
                raise DatasetError(
                    "neither a file nor a folder", where=where, fix=RESTORE
                )  # opening a pipe would block
            file = open(place, "rb")  # noqa: SIM115  # the caller closes it
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError("this file is not there", where=where, fix=RESTORE) from error
        except IsADirectoryError as error:
            raise DatasetError("this is a folder, not a file", where=where, fix=RESTORE) from error
        except PermissionError as error:
            raise DatasetError("no permission to read it", where=where, fix=_ALLOW) from error
        except DatasetError:
            raise
        except Exception as error:
            raise DatasetError(
                f"cannot be opened: {summarize(error)}", where=where, fix=RESTORE
            ) from error
        try:
            self.confirm(path)
        except BaseException:
            file.close()
            raise
        return file

    def prefetch(self, path: str) -> None:
        """Open a remote file and start to fetch all of it."""
        self._prefetch_file(path).close()

    def _prefetch_file(self, path: str) -> ByteSource:
        """Open a remote file that will be read completely, and fetch its parts in parallel."""
        from understudy_data.storage.remote_source import RemoteSource

        source = RemoteSource(self, path)
        if source.size > _BUFFER:
            source.prefetch_all()
        return source

    def look_ahead(self, paths: Sequence[str], folders: Sequence[str]) -> None:
        """Start to ask a server for files and folders that are looked at soon, beside each other.
        Returns at once.
        """
        if self.is_local:
            return
        remote = self.remote_files
        jobs = [partial(_look, remote.meet, path) for path in paths]
        remote.fetcher.submit(
            [*jobs, *(partial(_look, remote.store.entries, folder) for folder in folders)]
        )

    def source(self, path: str) -> ByteSource:
        """Open a file for reading by position, pinned to its current version; raises
        DatasetError.
        """
        if not self.is_local:
            from understudy_data.storage.remote_source import RemoteSource

            return RemoteSource(self, path)
        try:
            source = LocalSource(self._place(path))
        except DatasetError:
            # raises a clearer error for a missing file, a folder or a forbidden one
            self.open(path).close()
            raise
        self.confirm(path)
        return source

    @contextmanager
    def opening(self, path: str) -> Iterator[ByteSource]:
        """Open a file as `source` does, and check behind the block that it is of the version that
        is read.

        The block reads how the file is built, and hands out none of its bytes. So requests of
        several blocks share a question for the version, and none of them waits for it ahead of its
        bytes.

        Raises:
            DatasetError: As `source` and the block do. Where another version was put in its place,
                it tells so.
        """
        if self.is_local:
            yield self.source(path)
            return
        from understudy_data.storage.remote_source import RemoteSource

        try:
            yield RemoteSource(self, path, is_confirmed=False)
        except DatasetError:
            self.remote_files.confirm(path)
            raise
        self.remote_files.confirm(path)

    def version(self, path: str) -> str:
        """Return text that changes with the file: its size and times, or the etag or revision of a
        remote file.

        Raises:
            DatasetError: The file is missing or cannot be accessed.
        """
        if not self.is_local:
            remote = self.remote_files.stat(path)
            return f"{remote.size} {remote.tag}"
        try:
            stat = os.stat(self._place(path))
        except OSError as error:
            self.open(path).close()  # raises a clearer error if it can
            raise DatasetError(
                f"its status cannot be read: {summarize(error)}", where=self.where(path), fix=_ALLOW
            ) from error
        # ctime: the mtime can be set back
        return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"

    def state(self, path: str) -> tuple[int, ...]:
        """Return size, times and inode of a local file; () where there is none.

        Unlike `version` it differs for another file of equal size and times. A network file system
        may change the inode of a file that nobody touched.
        """
        try:
            stat = os.stat(self._place(path))
        except OSError:
            return ()
        return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino

    @property
    def latency(self) -> float:
        """Ninth decile of the seconds that recent fetches of a span took; 0 for a local root or
        before the first.
        """
        return 0.0 if self._remote_files is None else self._remote_files.latency

    def close(self) -> None:
        """Stop prefetching and join its threads. Files can still be read."""
        if self._remote_files is not None:
            self._remote_files.close()

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        with (
            as_dataset_error(self.where(path), "cannot be read", RESTORE),
            self.open(path) as handle,
        ):
            data = handle.read()
        if data.startswith(_LFS):
            self.check_not_pointer(path)
        return data

    def exists(self, path: str) -> bool:
        """Return whether a file or folder exists (plain HTTP knows no folders).

        Raises:
            DatasetError: Access is denied or the server gives no answer; neither proves absence.
        """
        if not self.is_local:
            folder, _, name = path.rpartition("/")
            entries = self.entries(folder)
            if entries is not None:
                return any(name == entry for entry, _ in entries)
            try:
                self.remote_files.stat(path)
            except MissingFileError:
                return False
            return True
        try:
            os.stat(self._place(path))
            return True
        except PermissionError as error:
            raise DatasetError(
                "no permission to look there", where=self.where(path), fix=_ALLOW
            ) from error
        except OSError:  # opening the file raises a clearer error
            return False

    def keep_listings(self) -> None:
        """List each local folder once until `drop_listings`: several checks of one opening look
        into the same ones.
        """
        self._listings = {}

    def drop_listings(self) -> None:
        """List folders anew from now on."""
        self._listings = None

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """Return (name, is a folder) of each entry of a folder, sorted by name, without broken
        links.

        Returns:
            [] for a missing folder; None if the file system cannot list folders (plain HTTP).

        Raises:
            DatasetError: Access is denied or listing fails.
        """
        if not self.is_local:
            return self.remote_files.store.entries(folder)
        kept = self._listings
        if kept is None:
            return self._list(folder)
        if folder not in kept:
            kept[folder] = self._list(folder)
        return kept[folder]

    def _list(self, folder: str) -> list[tuple[str, bool]]:
        try:
            with os.scandir(self._place(folder)) as scan:
                entries = [
                    entry for entry in scan if not entry.is_symlink() or os.path.exists(entry.path)
                ]
                return sorted((entry.name, entry.is_dir()) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError as error:
            raise DatasetError(
                "no permission to look into it", where=self.where(folder), fix=_ALLOW
            ) from error
        except OSError as error:
            raise DatasetError(
                f"this folder cannot be listed: {summarize(error)}", where=self.where(folder)
            ) from error

    def is_pointer(self, path: str) -> bool:
        """Return whether a file is a git LFS pointer instead of the file itself."""
        if self.is_local and not len(_LFS) < (self.state(path) or (0,))[0] < _MAX_POINTER:
            return False  # without opening it
        try:
            source = self.source(path)
            return len(_LFS) < source.size < _MAX_POINTER and source.read(0, len(_LFS)) == _LFS
        except DatasetError:
            return False

    def check_not_pointer(self, path: str) -> None:
        """Raise LfsPointerError for a git LFS pointer; call it before raising a reader's error."""
        if self.is_pointer(path):
            fix = f"run `git lfs pull` in {self.root}"
            raise LfsPointerError(
                "a git LFS pointer, not the file itself", where=self.where(path), fix=fix
            )

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        """Open a parquet file, verifying its page checksums if it has any.

        Raises:
            DatasetError: Any error inside the block.
        """
        with self.explained(path), self.open(path) as handle:
            try:
                # A local file is read as it is decoded; of one on a server whole columns are
                # fetched at once.
                local: dict[str, Any] = (
                    {"pre_buffer": False, "buffer_size": _BUFFER} if self.is_local else {}
                )
                opened = pq.ParquetFile(handle, page_checksum_verification=True, **local)
            except Exception:
                self.check_not_pointer(path)
                raise
            yield opened

    def table(
        self, path: str, columns: list[str] | None = None, group: int | None = None
    ) -> pa.Table:
        """Read a parquet file.

        Args:
            path: The file.
            columns: Columns to read; those that the file lacks are left out. None reads all.
            group: Row group to read; None reads all.
        """
        with self.parquet(path) as file:
            names = file.schema_arrow.names
            present = names if columns is None else [name for name in columns if name in names]
            groups = range(file.metadata.num_row_groups) if group is None else [group]
            # In parts: Arrow decodes a column of a row group in several times the memory of its
            # values.
            parts = list(file.iter_batches(_ROWS_AT_ONCE, list(groups), present, use_threads=False))
            if parts:
                schema = parts[0].schema
            else:
                schema = pa.schema([file.schema_arrow.field(name) for name in present])
            table = pa.Table.from_batches(parts, schema).select(present)
            check_values(table, self.where(path))
            return table

    @contextmanager
    def explained(self, path: str) -> Iterator[None]:
        """Turn any error inside the block into a DatasetError that names its cause."""
        try:
            yield
        except DataAccessError:
            raise
        except Exception as error:
            source = None
            with suppress(DatasetError):
                source = self.source(path)
            try:
                explained = explain_parquet_error(error, source, self.where(path))
            finally:
                if source is not None:
                    source.close()
            raise explained from error


def _look(ask: Callable[[str], object], path: str, stop: threading.Event) -> None:
    ask(path)


@contextmanager
def as_dataset_error(where: object, problem: str, fix: str) -> Iterator[None]:
    """Turn any error inside the block into a DatasetError: parsers of broken files raise
    undocumented types.
    """
    try:
        yield
    except DataAccessError:
        raise
    except Exception as error:
        raise DatasetError(f"{problem}: {summarize(error)}", where=where, fix=fix) from error


@contextmanager
def with_location(where: object) -> Iterator[None]:
    """Replace the location of a DatasetError by a more specific one, such as file and episode."""
    try:
        yield
    except DataAccessError as error:
        raise error.replaced(where=where) from error


_alive: weakref.WeakSet[Files] = weakref.WeakSet()


def _after_fork() -> None:
    for files in list(_alive):  # threads, connections and locks belong to the parent
        files._pin = files._current_pin()
        files._reset()


os.register_at_fork(after_in_child=_after_fork)
