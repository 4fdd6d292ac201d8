"""Files that a block opens."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_counting: list[tuple[str, list[str]]] = []


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _counting and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        for folder, paths in _counting:
            if path.startswith(folder):
                paths.append(os.path.relpath(path, folder))


_is_installed = False


@contextmanager
def opened_below(folder: Path) -> Iterator[list[str]]:
    """Yield the list of the files below a folder that are opened in the block, in sequence."""
    global _is_installed
    if not _is_installed:
        sys.addaudithook(_note)
        _is_installed = True
    entry = (os.path.join(os.path.abspath(folder), ""), list[str]())
    _counting.append(entry)
    try:
        yield entry[1]
    finally:
        _counting.remove(entry)
