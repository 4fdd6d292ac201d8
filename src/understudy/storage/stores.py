"""Where bytes come from: one small protocol, and its form for whatever fsspec can open.

A store answers once or says why not (`Transient` where it may pass); it never tries again, keeps nothing and knows no
other process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from understudy.addresses import CREDENTIALS_HINT, strip_credentials
from understudy.errors import DatasetError, MissingFileError, SourceError
from understudy.storage.retry import RetryPolicy, TransientError
from understudy.storage.source import CHANGED, RESTART
from understudy.storage.timeouts import call_with_timeout

_LISTED = 900.0  # seconds for one listing; a thousand entries take about a tenth of one
_TAGS = ("etag", "sha256", "md5hash", "contentmd5", "md5", "crc32c", "checksum", "xethash", "generation", "versionid")
_EXTRA = {"s3": "s3", "s3a": "s3", "hf": "hub"}  # what brings the driver of a protocol
_TIMES = ("lastmodified", "mtime", "modified", "updated", "created", "creationtime")


@dataclass(frozen=True)
class Stat:
    """One version of a file: its size in bytes, a tag that no other version has, and when it was written (seconds since
    1970 by the server's clock, 0 when unsaid)."""

    size: int
    tag: str
    modified: float = field(default=0.0, compare=False)


class Store(Protocol):
    """The files under one root, by path relative to it. Safe in threads."""

    @property
    def pin(self) -> str:
        """What must travel with a pickle so that all its copies read the same version; "" for nothing."""

    def name(self, path: str) -> str:
        """What tells this file from all others of the world, whatever credentials it is read with."""

    def stat(self, path: str, known: Stat | None, retry: RetryPolicy, stop: threading.Event) -> tuple[Stat, bytes]:
        """What the file is now, and its first bytes where they came along. `known`: what it was, which saves them.

        Raises:
            DatasetError: it is not there, is forbidden, or does not say what version it is. Transient: may pass.
        """

    def get(self, path: str, stat: Stat, offset: int, size: int, retry: RetryPolicy, stop: threading.Event) -> bytes:
        """At least one and at most `size` bytes from `offset`, surely of the version `stat`.

        Raises:
            DatasetError: it is another version now, or as above. Transient: may pass.
        """

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        """See `Files.entries`."""

    def abort(self) -> None:
        """End transfers under way as soon as that can be done."""


class FsspecStore:
    """Any file system of fsspec, by `cat_file`. Its answers carry no version, so that is asked for after each of them:
    what came before an unchanged version is of that version."""

    pin = ""

    def __init__(self, root: str, options: dict[str, Any]) -> None:
        self._root, self._options = root, options
        self._open()

    def _open(self) -> tuple[Any, str]:
        """The file system and the root in it. fsspec keeps them, apart for each process."""
        return open_fs(self._root, self._options)

    def _full(self, path: str) -> tuple[Any, str]:
        fs, base = self._open()
        return fs, f"{base.rstrip('/')}/{path}" if path else base

    def name(self, path: str) -> str:
        return f"{strip_credentials(self._root).rstrip('/')}/{path}"

    def stat(self, path: str, known: Stat | None, retry: RetryPolicy, stop: threading.Event) -> tuple[Stat, bytes]:
        fs, full = self._full(path)
        fs.invalidate_cache(fs._parent(full))
        info = call_driver(lambda: fs.info(full))
        if info.get("type") == "directory":
            raise DatasetError("a folder lies where a file should be", fix="restore the file")
        return Stat(size_of(info), _version(info)), b""

    def get(self, path: str, stat: Stat, offset: int, size: int, retry: RetryPolicy, stop: threading.Event) -> bytes:
        fs, full = self._full(path)
        data = call_driver(lambda: _cat(fs, full, offset, offset + size, retry))
        if self.stat(path, None, retry, stop)[0] != stat:
            raise SourceError(CHANGED, fix=RESTART)
        if not data or len(data) > size:
            raise TransientError(f"{len(data)} bytes came where {size} were asked", tries=4)
        return bytes(data)

    def entries(self, folder: str) -> list[tuple[str, bool]] | None:
        fs, full = self._full(folder)
        return list_folder(fs, full)

    def abort(self) -> None:
        return None


def open_fs(root: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path of the root in it. Raises DatasetError where there is no driver."""
    from fsspec.core import url_to_fs

    try:
        fs, base = url_to_fs(root, **options)
    except ImportError as error:
        protocol = root.partition("://")[0]
        fix = f"pip install 'understudy[{_EXTRA[protocol]}]'" if protocol in _EXTRA else "install that package"
        raise DatasetError(f"no driver for {protocol}:// is installed: {short(error)}", where=root, fix=fix) from error
    except Exception as error:
        what = f"this address cannot be opened: {short(error)}"
        raise DatasetError(what, where=root, fix="check the URL and that its fsspec driver is installed") from error
    return fs, base


def list_folder(fs: Any, full: str) -> list[tuple[str, bool]] | None:
    """(name, is a folder) of each entry of a folder, sorted; [] where there is none; None where listing fails."""
    try:
        found = _ls(fs, full)
    except FileNotFoundError:
        return []
    except Exception:
        return None
    return sorted((PurePosixPath(str(e["name"]).rstrip("/")).name, e.get("type") == "directory") for e in found)


def _ls(fs: Any, full: str) -> Any:
    if not fs.async_impl:
        return call_with_timeout(_LISTED, lambda: fs.ls(full, detail=True))
    from fsspec.asyn import sync  # `ls` of these file systems waits for ever; this ends

    return sync(fs.loop, fs._ls, full, detail=True, timeout=_LISTED)


def short(error: BaseException) -> str:
    """One line of an error, for people."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def call_driver(act: Callable[[], Any]) -> Any:
    """What a driver gives; its failures may pass unless they say that they will not.

    Raises:
        DatasetError: will not. Transient: may.
    """
    try:
        return act()
    except (DatasetError, TransientError):
        raise
    except FileNotFoundError as error:
        raise status_error(404) from error
    except IsADirectoryError as error:
        raise DatasetError("a folder lies where a file should be", fix="restore the file") from error
    except PermissionError as error:
        raise SourceError(f"no permission to read it: {short(error)}", fix="give credentials that may") from error
    except (ImportError, ValueError, TypeError, NotImplementedError) as error:
        raise DatasetError(f"cannot be read: {short(error)}", fix="check the address and its options") from error
    except Exception as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403, 404, 410):
            raise status_error(status) from error
        raise TransientError(f"cannot be read ({short(error)})") from error


def status_error(status: int, hides: bool = False) -> DatasetError:
    """What an HTTP status says that will not pass. `hides`: what is not there looks forbidden (see `web.Site`)."""
    if status in (404, 410):
        return MissingFileError("this file is not there", fix="check the address, or restore the file")
    if status == 403 and hides:
        fix = "check the address, restore the file, or give credentials that may read it"
        return MissingFileError("this file is not there, or may not be read (403)", fix=fix)
    if status in (401, 403):
        fix = f"check the address, or give credentials that may: {CREDENTIALS_HINT}"
        return SourceError(f"no permission to read it ({status})", fix=fix)
    return SourceError(f"the server answers {status}", fix="check the address")


def _cat(fs: Any, full: str, start: int, end: int, retry: RetryPolicy) -> Any:
    if not fs.async_impl:
        return fs.cat_file(full, start=start, end=end)
    from fsspec.asyn import sync  # cat_file of these file systems waits for ever; this ends

    limit = retry.deadline + (end - start) / retry.min_rate
    return sync(fs.loop, fs._cat_file, full, start=start, end=end, timeout=limit)


def size_of(info: dict[str, Any]) -> int:
    size = info.get("size")
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise DatasetError("its file system does not say how many bytes it has", fix="copy the dataset to disk")
    return size


def _version(info: dict[str, Any]) -> str:
    """The best that a file system says about which version a file is."""
    plain = {key.lower().replace("_", "").replace("-", ""): value for key, value in info.items()}
    for name in (*_TAGS, *_TIMES):
        if plain.get(name) not in (None, "", 0):
            return f"{name} {plain[name]} size {size_of(info)}"
    what = "its file system says neither a checksum nor a time of change, so a change could not be noticed"
    raise DatasetError(what, fix="copy the dataset to disk")
