"""A folder of a bucket to write into: files with their versions, each request repeated as reads
are.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from understudy_base import DataAccessError, strip_credentials
from understudy_data.storage.remote_options import RemoteOptions, call_with_retries
from understudy_data.storage.remote_store import call_driver, open_fs, version_of

T = TypeVar("T")


class RemoteFolder:
    """Files below an address of any file system that fsspec writes.

    Each method raises DatasetError where permission is missing, or the deadline has passed.

    Args:
        address: URL of the folder.
        options: options for access, and deadlines.
    """

    def __init__(self, address: str, options: RemoteOptions) -> None:
        self._address = address
        self._options = options

    def __str__(self) -> str:
        return strip_credentials(self._address).rstrip("/")

    def list(self) -> dict[str, str]:
        """Return the version of each file, by its path in the folder."""
        return self._try("", _list_files)

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        self._try(name, lambda fs, path: fs.pipe_file(path, content))

    def upload(self, name: str, local: str) -> str:
        """Copy a file of this machine; return its version in the folder."""
        return self._try(name, lambda fs, path: _upload(fs, local, path))

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._try(name, lambda fs, path: fs.rm_file(path))

    def _try(self, name: str, act: Callable[[Any, str], T]) -> T:
        """Return `act(file system, path in it)`, repeated as reads are."""
        fs, base = open_fs(self._address, dict(self._options.storage_options))
        where, path = (f"{folder}/{name}".rstrip("/") for folder in (self, base))
        try:
            return call_with_retries(
                lambda: call_driver(lambda: act(fs, path)),
                where,
                self._options.retry,
                threading.Event(),
            )
        except DataAccessError as error:
            fix = (
                "check address, connection and credentials (to list, read, write and delete); "
                "then run this again"
            )
            raise error.replaced(where=where, fix=fix) from error


def _upload(fs: Any, local: str, full: str) -> str:
    fs.put_file(local, full)
    return version_of(fs.info(full))


def _list_files(fs: Any, base: str) -> dict[str, str]:
    fs.invalidate_cache()
    files = fs.find(base, detail=True)
    return {path.removeprefix(f"{base}/"): version_of(facts) for path, facts in files.items()}
