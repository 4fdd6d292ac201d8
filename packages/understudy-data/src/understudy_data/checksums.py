"""SHA-256 of the files of a folder, stored next to them, so that a reader of a whole file notices a
changed bit.

The file `understudy.sha256` has a line "<64 digits>  <path>" for each file;
`sha256sum -c understudy.sha256` checks them by hand. Texts for people (README.md) have no line:
users and the hub edit them, and no program reads them. A file without a line is not compared, so a
user who changes a file on purpose removes its line.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from understudy_base import UnderstudyError

FILE = "understudy.sha256"
FOR_PEOPLE = "README.md"
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>[^\n\r\\]+)", re.ASCII)


class ChecksumError(UnderstudyError, ValueError):
    """A file is not the one that was written.

    Attributes:
        path: The file.
        expected: Its SHA-256 when it was written; "" where the list of checksums itself is damaged.
        actual: Its SHA-256 now; "" where it is missing.
    """

    def __init__(self, path: Path, expected: str, actual: str) -> None:
        self.path = path
        self.expected = expected
        self.actual = actual
        if actual:
            differ = f"its sha256 is {actual}, and was {expected}"
        else:
            differ = f"it is missing; its sha256 was {expected}"
        edited = f"if you changed it yourself, remove its line from {FILE}"
        if not expected:
            differ = "it is no list of checksums"
            edited = "remove it if you changed it yourself"
        super().__init__(
            f"{path} was changed after it was written ({differ}); copy, export or pull it again, "
            f"or, {edited}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (ChecksumError, (self.path, self.expected, self.actual))


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, sha256: Callable[[Path], str] = file_sha256) -> None:
    """Write the checksums of all files below a folder; `sha256` as in `check_checksums`."""
    files = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    for name in (FILE, FOR_PEOPLE):
        files.pop(name, None)
    lines = [f"{sha256(path)}  {name}\n" for name, path in sorted(files.items())]
    (folder / FILE).write_text("".join(lines), encoding="utf-8")


def check_checksums(folder: Path) -> None:
    """Compare the files of a folder with their checksums; one without `understudy.sha256` is not
    compared.

    Raises:
        ChecksumError: a file is missing or was changed. OSError: it cannot be read.
    """
    for name, expected in _read(folder / FILE).items():
        path = folder / name
        actual = file_sha256(path) if path.is_file() else ""
        if actual != expected:
            raise ChecksumError(path, expected, actual)


@dataclass(frozen=True)
class Checksums:
    """Checksums of the files of a folder.

    Attributes:
        folder: the folder.
    """

    folder: Path

    FILE: ClassVar[str] = FILE
    """Name of the file that holds them."""

    @staticmethod
    def sha256_of(path: Path) -> str:
        """Return the SHA-256 of a file in hexadecimal digits."""
        return file_sha256(path)

    def write(self, sha256: Callable[[Path], str] = file_sha256) -> None:
        """Write them (`write_checksums`); `sha256` computes that of a file."""
        write_checksums(self.folder, sha256)

    def check(self) -> None:
        """Compare the files with them (`check_checksums`).

        Raises:
            ChecksumError: a file is missing or was changed. OSError: it cannot be read.
        """
        check_checksums(self.folder)


def _read(path: Path) -> dict[str, str]:
    """SHA-256 by path in the folder; empty without a file."""
    if not path.is_file():
        return {}
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ChecksumError(path, "", file_sha256(path)) from error
    if lines.pop():
        raise ChecksumError(path, "", file_sha256(path))
    digests = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or not _is_inside(match["name"]):
            raise ChecksumError(path, "", file_sha256(path))
        digests[match["name"]] = match["digest"]
    return digests


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts
