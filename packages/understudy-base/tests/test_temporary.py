"""Temporary folders: removed by the next process if theirs was killed, and never those of
others.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_base.temporary import PREFIX

OWNER = """
import multiprocessing, os, signal, sys
from multiprocessing import forkserver
from understudy_base.temporary import temporary_folder, use_for_sockets
kind, number = sys.argv[1], int(sys.argv[2])
def stop():
    print("ready", flush=True)
    if number:
        sys.stdin.read()
if kind == "block":
    with temporary_folder() as folder:
        (folder / "file").touch()
        stop()
else:
    use_for_sockets()
    multiprocessing.get_context("forkserver")
    forkserver.ensure_running()
    stop()
    if number == signal.SIGKILL:
        os.kill(forkserver._forkserver._forkserver_pid, number)
        os.kill(os.getpid(), number)
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR of this test: `tmp_path` is too long for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        yield Path(folder)


def start(kind: str, number: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", OWNER, kind, str(int(number))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(kind: str, process: "subprocess.Popen[str]") -> None:
    if kind == "block":
        process.kill()
    process.communicate()  # the end of its input lets the other kill its fork server and itself
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["block", "sockets"])
def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(
    temporary: Path, kind: str
) -> None:
    alive = start("block", signal.SIGTERM)
    killed = None
    (held,) = temporary.iterdir()
    killed = start(kind, signal.SIGKILL)
    kill(kind, killed)
    (left,) = set(temporary.iterdir()) - {held}
    unmarked = temporary / f"{PREFIX}settings"
    link = temporary / f"{PREFIX}linked__"
    other = temporary / "pymp-of_other"
    unmarked.mkdir()
    other.mkdir()
    link.symlink_to(held)
    start(kind, 0).communicate()
    assert not left.exists()
    assert set(temporary.iterdir()) == {held, unmarked, link, other}
    alive.communicate()
    assert not held.exists()
