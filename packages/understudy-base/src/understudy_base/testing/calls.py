"""Log of flushes and renames of files, in the sequence of the system calls."""

import os
from pathlib import Path

import pytest


def recorded_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """Log ("fsync", file or folder) and ("rename", new name) from now on, in sequence."""
    calls: list[tuple[str, Path]] = []
    fsync = os.fsync
    rename = os.rename
    replace = os.replace

    def flushed(handle: int) -> None:
        number = handle if isinstance(handle, int) else handle.fileno()
        calls.append(("fsync", Path(os.readlink(f"/proc/self/fd/{number}"))))
        fsync(handle)

    def renamed(plain: object):  # type: ignore[no-untyped-def]
        def call(old: str, new: str, **more: object) -> None:
            plain(old, new, **more)  # type: ignore[operator]
            calls.append(("rename", Path(new)))

        return call

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed(rename))
    monkeypatch.setattr(os, "replace", renamed(replace))
    return calls
