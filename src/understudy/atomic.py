"""Files that are replaced in one step: a reader, or a kill at any instant, finds the old content or the new one."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAFT_SUFFIX = ".understudy-new"
"""How the name of a file ends until it is whole."""


def write_text(path: Path, text: str) -> None:
    """Replace a file by `text` so that a reader, or a kill at any instant, finds the old one or the new one."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}{DRAFT_SUFFIX}")
    with path_in_errors(path):
        try:
            with new.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync(path.parent)


@contextmanager
def path_in_errors(path: Path) -> Iterator[None]:
    """The system's error about an open file, which names none, as one about `path`."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and not str(error.filename).endswith(DRAFT_SUFFIX)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Make a file's content, or the entries of a folder (a rename, a new file), durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
