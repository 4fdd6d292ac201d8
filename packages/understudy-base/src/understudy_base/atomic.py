"""Files and folders replaced in one step: a reader, or a kill at any instant, finds the old content
or the new one.

A draft is written next to its target under a hidden name, flushed to the disk and renamed. An error
removes the draft; only a kill leaves one behind.
"""

import errno
import fcntl
import glob
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from understudy_base.errors import ConfigError

DRAFT_SUFFIX = ".understudy-new"
"""End of the name of every file draft."""
_WORK_SUFFIX = ".understudy"
"""End of the name of every folder in which a folder is replaced."""


def refuse_existing(path: str | Path, setting: str, overwrite: bool | None = False) -> None:
    """Check that an output is new; the one rule of all commands. An empty folder is new.

    A page or folder that a command writes again by its purpose, such as the report.html of a run,
    needs no check.

    Args:
        path: File or folder that will be written.
        setting: Name of the setting that names it.
        overwrite: The setting `overwrite`; None: the command never replaces anything.

    Raises:
        ConfigError: Something is there, and `overwrite` is not True.
    """
    if not is_taken(path) or overwrite:
        return
    fix = "name another one"
    if overwrite is not None:
        fix += ", or replace it with --overwrite"
    raise ConfigError(f"{setting}: {path} exists; {fix}")


def is_taken(path: str | Path) -> bool:
    """Return whether something is at `path` that an output would replace; an empty folder is
    nothing.
    """
    if os.path.isdir(path) and not os.path.islink(path):
        return bool(os.listdir(path))
    return os.path.lexists(path)


def write_text(path: Path, text: str, *, durable: bool = True, is_new: bool = False) -> None:
    """Replace a file by `text` in UTF-8; see `replace_file`."""
    write_bytes(path, text.encode(), durable=durable, is_new=is_new)


def write_bytes(path: Path, data: bytes, *, durable: bool = True, is_new: bool = False) -> None:
    """Replace a file by `data`; see `replace_file`."""
    with replace_file(path, durable=durable, is_new=is_new) as draft:
        draft.write_bytes(data)


@contextmanager
def replace_file(path: Path, *, durable: bool = True, is_new: bool = False) -> Iterator[Path]:
    """Replace `path` by the file that the block writes to the yielded draft.

    Args:
        path: The file to replace or create. Its folder must exist.
        durable: Flush the file and its folder, so that both survive a power cut. This waits for the
            disk.
        is_new: Replace nothing: of two processes that write it at the same time, one fails.

    Raises:
        FileExistsError: `is_new`, and something is at `path` now; it is not touched.
        OSError: Nothing is replaced and no draft is left; the error names `path`.
    """
    draft = draft_path(path)
    try:
        with path_in_errors(path):
            yield draft
            if durable:
                sync(draft)
            if is_new:
                _place(draft, path)
            else:
                os.replace(draft, path)
    except BaseException:
        with suppress(OSError):  # the first error is the one to raise
            draft.unlink()
        raise
    if durable:
        sync(path.parent)


def _place(draft: Path, path: Path) -> None:
    """Rename `draft` to `path`, where nothing is. Raises FileExistsError."""
    try:
        os.link(draft, path)  # unlike a rename it replaces nothing
    except FileExistsError:
        raise FileExistsError(
            errno.EEXIST, "was written by another process meanwhile", str(path)
        ) from None
    except OSError as error:  # a file system without hard links
        if os.path.lexists(path):
            raise FileExistsError(
                errno.EEXIST, "was written by another process meanwhile", str(path)
            ) from error
        os.replace(draft, path)
    else:
        draft.unlink()


def draft_path(path: Path) -> Path:
    """Return an unused hidden name next to `path` for a draft of it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{DRAFT_SUFFIX}")


@contextmanager
def path_in_errors(path: Path) -> Iterator[None]:
    """Name `path` in an OSError that names no file, or only a draft of it."""
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        is_draft = name.endswith(DRAFT_SUFFIX) or f"{_WORK_SUFFIX}/new" in name
        if error.errno is None or (name and not is_draft):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries (renames, new files), to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Replace folder `target` by the one that the block fills; parents are created.

        .NAME-x7k2q1.understudy/new    the folder that is yielded
        .NAME-x7k2q1.understudy/old    the earlier folder, between the two renames

    The working folder has a unique name and is locked. A kill between the two renames leaves both
    folders complete; `recover_folder`, which is called first, then finishes the replacement. Only
    files are flushed, not subfolders.

    Raises:
        OSError: `target` is as before and nothing is left next to it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work, lock = _work_folder(target)
    new = work / "new"
    old = work / "old"
    try:
        new.mkdir()
        yield new
        for path in (*new.iterdir(), new):
            sync(path)
        if target.exists():
            os.rename(target, old)
        try:
            os.rename(new, target)
        except OSError:
            if old.exists():
                os.rename(old, target)
            raise
        sync(target.parent)
    finally:
        # If the earlier folder could not be put back, it stays for the next call.
        if target.exists() or not old.exists():
            shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def create_folder(target: Path, work: Path | None = None) -> Iterator[Path]:
    """Create folder `target` from the one that the block fills, in one step; parents are created.

    All files and subfolders are flushed first. A kill at any instant leaves either nothing at
    `target` or all of it, and perhaps the hidden working folder of `replace_folder`, which the next
    call with this target removes.

    Args:
        target: The folder.
        work: Working folder in place of a hidden one, on the file system of `target`. An error
            leaves it as it is, and the next call continues in it; success removes it.

    Raises:
        BeingWritten: Another process is creating `target` now.
        FileExistsError: `target` exists and is not an empty folder, before or after the block; it
            is not touched.
        OSError: Nothing is created and nothing is left next to it; the error names `target` and no
            draft.
    """
    taken = FileExistsError(errno.EEXIST, "exists already", str(target))
    if is_taken(target):
        raise taken
    target.parent.mkdir(parents=True, exist_ok=True)
    is_kept = work is not None
    if work is None:
        work, lock = _work_folder(target, alone=True)
    else:
        work.mkdir(parents=True, exist_ok=True)
        if os.stat(work).st_dev != os.stat(target.parent).st_dev:
            raise OSError(errno.EXDEV, f"is on another file system than {target}", str(work))
        lock = _lock(work)
        if lock is None and _is_held(work):
            raise BeingWritten(errno.EEXIST, "another process is writing it", str(target))
    new = work / "new"
    try:
        new.mkdir(exist_ok=is_kept)
        with path_in_errors(target):
            yield new
        for folder, _, names in os.walk(new, topdown=False):
            for name in (*names, ""):
                sync(Path(folder, name))
        if is_taken(target):
            raise taken
        try:
            os.rename(new, target)  # refuses a folder with content that appeared at this instant
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise taken from error
            raise
        sync(target.parent)
        is_kept = False
    finally:
        if not is_kept:
            shutil.rmtree(work, ignore_errors=True)
        if lock is not None:
            os.close(lock)


class BeingWritten(FileExistsError):
    """Another process is creating the folder."""


@contextmanager
def hold_folder(folder: Path, waits: bool = False) -> Iterator[None]:
    """Lock a folder during the block; where there are no locks, do nothing.

    Args:
        folder: The folder.
        waits: Wait for another process that holds it.

    Raises:
        BeingWritten: another process holds the lock, or has just removed the folder.
    """
    try:
        lock = _lock(folder, waits)
    except FileNotFoundError:
        raise BeingWritten(
            errno.EEXIST, "another process has just finished it", str(folder)
        ) from None
    try:
        if lock is None:
            is_busy = _is_held(folder)
        else:
            is_busy = not os.fstat(lock).st_nlink
        if is_busy:
            raise BeingWritten(errno.EEXIST, "another process is writing it", str(folder))
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _work_folder(target: Path, alone: bool = False) -> tuple[Path, int | None]:
    """Make and lock a working folder next to `target`, after a recovery; one process at a time does
    so.

    Raises:
        BeingWritten: another process has one, and this one is to be `alone`.
    """
    parent = os.open(target.parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # where there are no locks
            fcntl.flock(parent, fcntl.LOCK_EX)
        if recover_folder(target) and alone:
            raise BeingWritten(errno.EEXIST, "another process is writing it", str(target))
        work = Path(
            tempfile.mkdtemp(prefix=f".{target.name}-", suffix=_WORK_SUFFIX, dir=target.parent)
        )
        return work, _lock(work)
    finally:
        os.close(parent)


def recover_folder(target: Path) -> bool:
    """Finish replacements of `target` that a kill cut between the two renames; remove unfinished
    ones.

    Returns:
        Whether another process is writing `target` now.
    """
    is_busy = False
    for work in sorted(target.parent.glob(f".{glob.escape(target.name)}-*{_WORK_SUFFIX}")):
        unique = work.name.removeprefix(f".{target.name}-").removesuffix(_WORK_SUFFIX)
        if "-" in unique or work.is_symlink() or not work.is_dir():
            continue  # belongs to a longer name, or is not a working folder
        try:
            names = {path.name for path in work.iterdir() if not path.name.endswith(DRAFT_SUFFIX)}
            if not names <= {"new", "old"}:
                continue  # not ours
            lock = _lock(work)
        except FileNotFoundError:
            continue  # its process has just ended
        if lock is None:  # another process is writing
            is_busy = is_busy or _is_held(work)
            continue
        try:
            if not target.exists() and (work / "old").is_dir():
                kept = work / "new" if (work / "new").is_dir() else work / "old"
                os.rename(kept, target)
                sync(target.parent)
            shutil.rmtree(work, ignore_errors=True)
        finally:
            os.close(lock)
    return is_busy


def _is_held(folder: Path) -> bool:
    """Return whether a process holds the lock of `folder`; False where locks are missing."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EAGAIN, errno.EACCES)
    finally:
        os.close(handle)
    return False


def _lock(folder: Path, waits: bool = False) -> int | None:
    """Lock `folder` until the returned handle is closed; None if another process holds it or locks
    are missing.
    """
    operation = fcntl.LOCK_EX
    if not waits:
        operation |= fcntl.LOCK_NB
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, operation)
    except OSError:
        os.close(handle)
        return None
    return handle
