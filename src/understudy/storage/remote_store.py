"""The interface `Store` to remote files, and its implementation for any fsspec file system.

A store tries once and raises TransientError if another attempt may succeed. It does not retry, caches nothing and knows
no other process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from understudy.credentials import CREDENTIALS_HINT, strip_credentials
from understudy.errors import DatasetError, MissingFileError, SourceError, summarize
from understudy.storage.byte_source import CHANGED, RESTART
from understudy.storage.retry import RetryPolicy, TransientError
from understudy.storage.timeouts import call_with_timeout

_LIST_TIMEOUT = 900.0  # seconds; a thousand entries take about 0.1
_TAGS = ("etag", "sha256", "md5hash", "contentmd5", "md5", "crc32c", "checksum", "xethash", "generation", "versionid")
_EXTRA = {"s3": "s3", "s3a": "s3", "hf": "hub"}  # protocol -> extra that installs its driver
_TIMES = ("lastmodified", "mtime", "modified", "updated", "created", "creationtime")


@dataclass(frozen=True)
class Stat:
    """One version of a file.

    Attributes:
        size: Size in bytes.
        tag: Unique among all versions.
        modified: Modification time in seconds since 1970 by the server's clock; 0 if unknown.
    """

    size: int
    tag: str
    modified: float = field(default=0.0, compare=False)


class Store(Protocol):
    """The files under one root, by relative path. Safe in threads."""

    @property
    def pin(self) -> str:
        """State that a pickle carries so that all copies read the same version; "" for none."""

    def name(self, path: str) -> str:
        """Return a globally unique name of a file, free of credentials."""

    def stat(self, path: str, known: Stat | None, retry: RetryPolicy, stop: threading.Event) -> tuple[Stat, bytes]:
        """Return the current version of a file, and its first bytes if the response carried them.

        Args:
            path: The file.
            known: An earlier version; if it is still current, no bytes are sent.
            retry: Deadlines of the request.
            stop: Ends the request when it is set.

        Raises:
            DatasetError: The file is missing or forbidden, or its version is unknown.
            TransientError: Another attempt may succeed.
        """

    def get(self, path: str, stat: Stat, offset: int, size: int, retry: RetryPolicy, stop: threading.Event) -> bytes:
        """Return 1 to `size` bytes from `offset` of the version `stat`.

        Raises:
            DatasetError: The file has another version now, or as `stat` raises.
            TransientError: Another attempt may succeed.
        """

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """List a folder; see `Files.entries`."""

    def abort(self) -> None:
        """End transfers under way, if that is possible."""


class FsspecStore:
    """Any fsspec file system, read by `cat_file`; see `Store`.

    Its responses carry no version. The version is therefore requested after each read: if it has not changed, the bytes
    belong to it.
    """

    pin = ""

    def __init__(self, root: str, options: dict[str, Any]) -> None:
        self._root, self._options = root, options
        self._open()

    def _open(self) -> tuple[Any, str]:
        """Return the file system and the path of the root; fsspec caches both per process."""
        return open_fs(self._root, self._options)

    def _full(self, path: str) -> tuple[Any, str]:
        fs, base = self._open()
        return fs, f"{base.rstrip('/')}/{path}" if path else base

    def name(self, path: str) -> str:
        """See `Store.name`."""
        return f"{strip_credentials(self._root).rstrip('/')}/{path}"

    def stat(self, path: str, known: Stat | None, retry: RetryPolicy, stop: threading.Event) -> tuple[Stat, bytes]:
        """See `Store.stat`."""
        fs, full = self._full(path)
        fs.invalidate_cache(fs._parent(full))
        info = call_driver(lambda: fs.info(full))
        if info.get("type") == "directory":
            raise DatasetError("this is a folder, not a file", fix="restore the file")
        return Stat(size_of(info), _version(info)), b""

    def get(self, path: str, stat: Stat, offset: int, size: int, retry: RetryPolicy, stop: threading.Event) -> bytes:
        """See `Store.get`."""
        fs, full = self._full(path)
        data = call_driver(lambda: _cat(fs, full, offset, offset + size, retry))
        if self.stat(path, None, retry, stop)[0] != stat:
            raise SourceError(CHANGED, fix=RESTART)
        if not data or len(data) > size:
            raise TransientError(f"{len(data)} bytes were sent instead of {size}", tries=4)
        return bytes(data)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""
        fs, full = self._full(folder)
        return list_folder(fs, full)

    def abort(self) -> None:
        """Do nothing: fsspec cannot interrupt a transfer."""


def open_fs(root: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path in it; DatasetError if its driver is missing."""
    from fsspec.core import url_to_fs

    try:
        fs, base = url_to_fs(root, **options)
    except ImportError as error:
        protocol = root.partition("://")[0]
        fix = f"pip install 'understudy[{_EXTRA[protocol]}]'" if protocol in _EXTRA else "install that package"
        raise DatasetError(
            f"no driver for {protocol}:// is installed: {summarize(error)}", where=root, fix=fix
        ) from error
    except Exception as error:
        what = f"this address cannot be opened: {summarize(error)}"
        raise DatasetError(what, where=root, fix="check the URL and that its fsspec driver is installed") from error
    return fs, base


def list_folder(fs: Any, full: str) -> list[tuple[str, bool]] | None:
    """Return (name, is a folder) of each entry, sorted; [] for a missing folder; None if listing fails."""
    try:
        entries = _ls(fs, full)
    except FileNotFoundError:
        return []
    except Exception:
        return None
    return sorted((PurePosixPath(str(e["name"]).rstrip("/")).name, e.get("type") == "directory") for e in entries)


def _ls(fs: Any, full: str) -> Any:
    if not fs.async_impl:
        return call_with_timeout(_LIST_TIMEOUT, lambda: fs.ls(full, detail=True))
    from fsspec.asyn import sync  # unlike their `ls`, this has a timeout

    return sync(fs.loop, fs._ls, full, detail=True, timeout=_LIST_TIMEOUT)


def call_driver(act: Callable[[], Any]) -> Any:
    """Return `act()`, a call of a file system's driver, with its errors translated.

    Raises:
        DatasetError: Another attempt would fail, too.
        TransientError: All other errors.
    """
    try:
        return act()
    except (DatasetError, TransientError):
        raise
    except FileNotFoundError as error:
        raise status_error(404) from error
    except IsADirectoryError as error:
        raise DatasetError("this is a folder, not a file", fix="restore the file") from error
    except PermissionError as error:
        raise SourceError(f"no permission to read it: {summarize(error)}", fix="give credentials that may") from error
    except (ImportError, ValueError, TypeError, NotImplementedError) as error:
        raise DatasetError(f"cannot be read: {summarize(error)}", fix="check the address and its options") from error
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404, 410):
            raise status_error(status) from error
        raise TransientError(f"cannot be read ({summarize(error)})") from error


def status_error(status: int, hides: bool = False) -> DatasetError:
    """Return the error for an HTTP status that another attempt would meet again.

    Args:
        status: The status.
        hides: Whether the server answers 403 for a missing file (see `web.WebBackend`).
    """
    if status in (404, 410):
        return MissingFileError("this file is not there", fix="check the address, or restore the file")
    if status == 403 and hides:
        fix = "check the address, restore the file, or give credentials that may read it"
        return MissingFileError("this file is not there, or access is denied (403)", fix=fix)
    if status in (401, 403):
        fix = f"check the address, or give credentials that may: {CREDENTIALS_HINT}"
        return SourceError(f"no permission to read it ({status})", fix=fix)
    return SourceError(f"the server answers {status}", fix="check the address")


def _cat(fs: Any, full: str, start: int, end: int, retry: RetryPolicy) -> Any:
    if not fs.async_impl:
        return fs.cat_file(full, start=start, end=end)
    from fsspec.asyn import sync  # unlike their `cat_file`, this has a timeout

    limit = retry.deadline + (end - start) / retry.min_rate
    return sync(fs.loop, fs._cat_file, full, start=start, end=end, timeout=limit)


def size_of(info: dict[str, Any]) -> int:
    """Return the size in bytes from fsspec's facts about a file; DatasetError if it is missing."""
    size = info.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise DatasetError("its file system does not say how many bytes it has", fix="copy the dataset to disk")
    return size


def _version(info: dict[str, Any]) -> str:
    """Return the most specific version that a file system gives: a checksum, else a modification time."""
    plain = {key.lower().replace("_", "").replace("-", ""): value for key, value in info.items()}
    for name in (*_TAGS, *_TIMES):
        if plain.get(name) not in (None, "", 0):
            return f"{name} {plain[name]} size {size_of(info)}"
    what = "its file system gives neither a checksum nor a time of change, so a change could not be noticed"
    raise DatasetError(what, fix="copy the dataset to disk")
