"""A folder that is replaced whole: the new one is written beside it, flushed, and takes its name.

    .NAME-x7k2q1.understudy/new    while it is written
    .NAME-x7k2q1.understudy/old    the earlier folder, for the moment between two renames

The name of the working folder is unique, and whoever writes there holds a lock on it. A kill between the two renames
leaves both folders whole: the next call finds them and brings `new` to its name. Nothing else is ever removed. Not
here: which folders may be replaced (`pretrained.py`).
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from understudy.atomic import sync

SUFFIX = ".understudy"


@contextmanager
def replacement(target: Path) -> Iterator[Path]:
    """A fresh folder to write to; at the end it is flushed and takes the place of `target`.

    An error inside, or while it is renamed, leaves `target` as it was and nothing beside it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    recover(target)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=SUFFIX, dir=target.parent))
    fresh, old = work / "new", work / "old"
    held = _lock(work)
    try:
        fresh.mkdir()
        yield fresh
        for path in (*fresh.iterdir(), fresh):
            sync(path)
        if target.exists():
            os.rename(target, old)
        try:
            os.rename(fresh, target)
        except OSError:
            if old.exists():
                os.rename(old, target)
            raise
        sync(target.parent)
    finally:
        # An earlier folder that could not be put back stays where the next call finds it.
        if target.exists() or not old.exists():
            shutil.rmtree(work, ignore_errors=True)
        if held is not None:
            os.close(held)


def recover(target: Path) -> None:
    """Bring back what a kill left between the two renames, and remove what it left half written."""
    for work in sorted(target.parent.glob(f".{_literal(target.name)}-*{SUFFIX}")):
        unique = work.name.removeprefix(f".{target.name}-").removesuffix(SUFFIX)
        if (
            "-" in unique
            or work.is_symlink()
            or not work.is_dir()
            or not {p.name for p in work.iterdir()} <= {"new", "old"}
        ):
            continue  # of another folder's name, or not made here
        if (held := _lock(work)) is None:
            continue  # someone is writing there
        try:
            if not target.exists() and (work / "old").is_dir() and (work / "new").is_dir():
                os.rename(work / "new", target)
                sync(target.parent)
            elif not target.exists() and (work / "old").is_dir():
                os.rename(work / "old", target)
            shutil.rmtree(work, ignore_errors=True)
        finally:
            os.close(held)


def _lock(folder: Path) -> int | None:
    """Hold `folder` until the handle is closed; None where another process does, or the file system has no locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _literal(name: str) -> str:
    """`name` for a glob pattern."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
