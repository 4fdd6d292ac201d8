"""The user's list of code that was named by hand: `trusted_code` in the user's own folder for
settings.

A line holds the digest and the path of one file. Code of an equal digest at another path is not
trusted: it may read other files beside itself. The list has mode 0600, and a list that another user
owns or may write is not believed.
"""

import fcntl
import json
import logging
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

LIST = "trusted_code"
"""Name of the list in `folder()`."""
NAMED = "UNDERSTUDY_POLICY_NAMED"
"""Environment variable: code that this process named by hand, for the processes that it starts."""

logger = logging.getLogger(__name__)
_warned: set[str] = set()


def folder() -> Path | None:
    """Return the user's folder for settings; None where there is no home. A relative path is none
    of the user's own.
    """
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "understudy"
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(os.getuid()).pw_dir
        except KeyError:
            return None
    return Path(home) / ".config" / "understudy" if os.path.isabs(home) else None


def is_named_now(digest: str, path: Path) -> bool:
    """Return whether this process, or one that started it, named the code by hand."""
    return _line(digest, path) in os.environ.get(NAMED, "").split("\n")


def is_trusted(digest: str, path: Path) -> bool:
    """Return whether this user has named the code by hand, now or before."""
    return is_named_now(digest, path) or _line(digest, path) in _read()


def named_places(digest: str) -> list[Path]:
    """Return the paths at which this user has named code of a digest by hand, now or before."""
    places = []
    for line in sorted({*os.environ.get(NAMED, "").split("\n"), *_read()}):
        with suppress(ValueError):
            entry = json.loads(line)
            if (
                isinstance(entry, dict)
                and entry.get("sha256") == digest
                and isinstance(entry.get("path"), str)
            ):
                places.append(Path(entry["path"]))
    return places


def trust(digest: str, path: Path) -> None:
    """Trust code that the user names by hand: in this process, in those that it starts, and by the
    list later on.

    A list that cannot be written is named in a warning: later commands need the file by hand.
    """
    line = _line(digest, path)
    if not is_named_now(digest, path):
        os.environ[NAMED] = "\n".join(filter(None, [os.environ.get(NAMED, ""), line]))
    if line in _read():
        return
    place = folder()
    try:
        if place is None:
            raise OSError(0, "there is no home folder; set HOME or XDG_CONFIG_HOME")
        _append(place, line)
    except OSError as error:
        _warn_once(
            f"{path} is trusted by this command alone: {place or 'the list'} cannot be written "
            f"({error.strerror}). Later commands, and those on other machines or in a queue, need "
            f"--policy-code {path}, or UNDERSTUDY_POLICY_CODE={path} in their environment"
        )


def _line(digest: str, path: Path) -> str:
    return json.dumps({"sha256": digest, "path": os.fspath(path)})


def _append(place: Path, line: str) -> None:
    """Add a line to the list: one write under a lock, so that processes at once lose none of their
    lines.
    """
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    number = os.open(place / LIST, flags, 0o600)
    try:
        _check_owner(os.fstat(number))
        with suppress(OSError):  # a file system without locks: the write below is still one piece
            fcntl.flock(number, fcntl.LOCK_EX)
        size = os.fstat(number).st_size
        is_cut = size > 0 and os.pread(number, 1, size - 1) != b"\n"  # a full disk cut a line off
        data = f"{chr(10) * is_cut}{line}\n".encode()
        if os.write(number, data) != len(data):
            raise OSError(0, "the disk is full")
        os.fsync(number)
    finally:
        os.close(number)


def _read() -> set[str]:
    """Lines of the list; none where it is missing, or belongs to somebody else."""
    place = folder()
    if place is None:
        return set()
    try:
        number = os.open(place / LIST, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return set()
    with os.fdopen(number, "rb") as file:
        try:
            _check_owner(os.fstat(number))
            content = file.read()
        except OSError as error:
            _warn_once(f"{place / LIST} is not read: {error.strerror}")
            return set()
    return set(content.decode("utf-8", "replace").splitlines())


def _check_owner(facts: os.stat_result) -> None:
    """Raise OSError where somebody else may have written the list."""
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(0, "it is no plain file")
    if facts.st_uid not in (os.geteuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise OSError(0, "another user may write it; remove it, or `chmod 600` it")


def _warn_once(text: str) -> None:
    if text not in _warned:
        _warned.add(text)
        logger.warning("%s", text)
