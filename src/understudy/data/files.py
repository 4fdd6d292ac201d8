"""Every byte of a dataset comes through here: one root (a folder, or any fsspec URL), paths relative to it.

A local root uses the operating system directly; any other root goes through fsspec. Whatever a file system or a
library says about a broken file leaves here as one `DatasetError`. Not here: caches, retries, byte ranges, or what a
file means.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from understudy.data.errors import DatasetError
from understudy.data.sources import ByteSource, LocalSource

_RESTORE = "restore the file or download the dataset again"
_ALLOW = "change its owner or mode"


class Files:
    """The files of one dataset. Pickles as its root alone.

    Args:
        root: a path, `file://` URL, or any URL fsspec knows (`memory://`, `https://`, `s3://`, `hf://`).
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        text = os.fspath(root)
        if text.startswith("file://"):
            text = unquote(urlsplit(text).path)
        self.is_local = "://" not in text
        self.root = os.path.abspath(os.path.expanduser(text)) if self.is_local else text.rstrip("/")
        self._fs: Any = None
        self._base = ""

    def __getstate__(self) -> str:
        return self.root

    def __setstate__(self, root: str) -> None:
        self.__init__(root)  # type: ignore[misc]

    def where(self, path: str) -> str:
        """The full name of a file, for people."""
        return f"{self.root}/{path}" if path else self.root

    def _remote(self, path: str) -> tuple[Any, str]:
        if self._fs is None:
            from fsspec.core import url_to_fs

            with guard(
                self.root, "this address cannot be opened", "check the URL and that its fsspec driver is installed"
            ):
                self._fs, self._base = url_to_fs(self.root)
        return self._fs, f"{self._base.rstrip('/')}/{path}" if path else self._base

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading at any place. Raises DatasetError naming it when that cannot be."""
        where = self.where(path)
        try:
            if self.is_local:
                if os.path.exists(where) and not os.path.isfile(where) and not os.path.isdir(where):
                    raise DatasetError("neither a file nor a folder", where=where, fix=_RESTORE)  # a pipe would wait
                return open(where, "rb")
            fs, full = self._remote(path)
            handle: BinaryIO = fs.open(full, "rb")
            return handle
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatasetError("this file is not there", where=where, fix=_RESTORE) from error
        except IsADirectoryError as error:
            raise DatasetError("a folder lies where a file should be", where=where, fix=_RESTORE) from error
        except PermissionError as error:
            raise DatasetError("no permission to read it", where=where, fix=_ALLOW) from error
        except DatasetError:
            raise
        except Exception as error:
            raise DatasetError(f"cannot be opened: {_short(error)}", where=where, fix=_RESTORE) from error

    def source(self, path: str) -> ByteSource:
        """A file to read by place, pinned to what it is now. Raises DatasetError where it cannot be opened."""
        self.open(path).close()  # says what is wrong with a folder or a forbidden file, in plain words
        if self.is_local:
            return LocalSource(self.where(path))
        raise DatasetError("videos are read from a local folder only", where=self.where(path), fix="copy it to disk")

    @property
    def latency(self) -> float:
        """Seconds from asking for a span to having it, measured; 0 on this machine."""
        return 0.0

    def read(self, path: str) -> bytes:
        """The whole content of a small file."""
        with guard(self.where(path), "cannot be read", _RESTORE), self.open(path) as handle:
            return handle.read()

    def exists(self, path: str) -> bool:
        """Whether a file or folder of that name is there (False where that cannot be found out). Raises DatasetError
        where looking is forbidden, which is not the same as nothing there."""
        try:
            if self.is_local:
                os.stat(self.where(path))
                return True
            fs, full = self._remote(path)
            return bool(fs.exists(full))
        except PermissionError as error:
            raise DatasetError("no permission to look there", where=self.where(path), fix=_ALLOW) from error
        except Exception:  # opening the file will say what is wrong
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
        fs, full = self._remote(folder)
        try:
            found = fs.ls(full, detail=True)
        except FileNotFoundError:
            return None if _cannot_list(fs) else []
        except Exception:
            return None
        named = [(PurePosixPath(str(e["name"]).rstrip("/")).name, e.get("type") == "directory") for e in found]
        return sorted(named)

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        """An open parquet file; page checksums are verified where the writer left them. DatasetError on anything odd
        that happens inside the `with`."""
        with guard(self.where(path), "not a readable parquet file", _RESTORE), self.open(path) as handle:
            yield pq.ParquetFile(handle, page_checksum_verification=True)

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
def guard(where: object, what: str, fix: str) -> Iterator[None]:
    """Turn whatever a library raises on a broken file into one DatasetError: such libraries promise no error type."""
    try:
        yield
    except DatasetError:
        raise
    except Exception as error:
        raise DatasetError(f"{what}: {_short(error)}", where=where, fix=fix) from error


@contextmanager
def renamed(where: object) -> Iterator[None]:
    """Let a DatasetError say more of where it is (which episode, too)."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(error.what, where=where, fix=error.fix) from error


def _short(error: BaseException) -> str:
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _cannot_list(fs: Any) -> bool:
    protocol = fs.protocol if isinstance(fs.protocol, (tuple, list)) else (fs.protocol,)
    return "http" in protocol or "https" in protocol
