"""Files and folders replaced in one step, on disks that fill up, under kills and in folders without
write access.
"""

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from understudy_base.atomic import (
    DRAFT_SUFFIX,
    BeingWritten,
    create_folder,
    draft_path,
    hold_folder,
    replace_file,
    replace_folder,
    write_bytes,
    write_text,
)
from understudy_base.testing.calls import recorded_calls
from understudy_base.testing.refusals import refused


def raise_error(number: int) -> Callable[..., Any]:
    def call(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("broken", "number"), [("fsync", errno.ENOSPC), ("replace", errno.EIO), ("open", errno.EROFS)]
)
def test_write_text_that_fails_leaves_the_old_file_and_no_draft(
    broken: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "order.json"
    write_text(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(Path if broken == "open" else os, broken, raise_error(number))
        with pytest.raises(OSError) as caught:
            write_text(path, "new")
    assert (caught.value.errno, caught.value.filename) == (number, str(path))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_write_text_that_is_killed_leaves_the_old_file(at: str, tmp_path: Path) -> None:
    path = tmp_path / "order.json"
    write_text(path, "old")
    child = os.fork()
    if child == 0:
        setattr(os, at, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        write_text(path, "new")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert path.read_text() == "old"
    drafts = [entry.name for entry in tmp_path.iterdir() if entry != path]
    assert [name.startswith(".order.json.") and name.endswith(DRAFT_SUFFIX) for name in drafts] == [
        True
    ]


def test_replace_file_drops_the_draft_of_a_block_that_raises(tmp_path: Path) -> None:
    def interrupt() -> None:
        with replace_file(tmp_path / "f") as draft:
            draft.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert list(tmp_path.iterdir()) == []


def test_write_bytes_flushes_the_file_before_its_name_and_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = recorded_calls(monkeypatch)
    write_bytes(tmp_path / "f", b"x")
    assert [call for call, _ in calls] == ["fsync", "rename", "fsync"]
    assert calls[1:] == [("rename", tmp_path / "f"), ("fsync", tmp_path)]
    calls.clear()
    write_bytes(tmp_path / "f", b"y", durable=False)
    assert calls == [("rename", tmp_path / "f")]
    assert (tmp_path / "f").read_bytes() == b"y"


def test_draft_path_lies_beside_its_target(tmp_path: Path) -> None:
    draft = draft_path(tmp_path / "data")
    assert draft.parent == tmp_path
    assert draft.name.startswith(".data.")


@pytest.mark.parametrize("broken", ["fsync", "rename"])
def test_replace_folder_that_fails_leaves_the_old_folder(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "policy"
    with replace_folder(target) as folder:
        (folder / "a").write_text("old")
    monkeypatch.setattr(os, broken, raise_error(errno.ENOSPC))
    with refused(28, kind=OSError), replace_folder(target) as folder:
        (folder / "a").write_text("new")
    assert (target / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_create_folder_fills_an_empty_folder_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with create_folder(tmp_path / "out") as draft:
        (draft / "file").write_text("content")
    assert (tmp_path / "out" / "file").read_text() == "content"
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("out", "link"):
        with pytest.raises(FileExistsError), create_folder(tmp_path / name):
            raise AssertionError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "out"]


def test_create_folder_names_the_folder_and_no_draft_in_errors(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space") as caught,
        create_folder(tmp_path / "out") as draft,
    ):
        raise OSError(28, "No space left on device", str(draft / "videos" / "a.mp4"))
    assert caught.value.filename == str(tmp_path / "out")
    with pytest.raises(FileNotFoundError) as caught, create_folder(tmp_path / "out"):
        (tmp_path / "source").read_bytes()
    assert caught.value.filename == str(tmp_path / "source")
    assert list(tmp_path.iterdir()) == []


def write_twice(path: Path) -> None:
    with replace_file(path, is_new=True) as draft:
        draft.write_text("second")
        write_text(path, "first", is_new=True)


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_new_file_replaces_none_that_appeared_meanwhile(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "order.parquet"
    if not links:
        monkeypatch.setattr(os, "link", raise_error(errno.EPERM))
    with pytest.raises(FileExistsError) as caught:
        write_twice(path)
    assert caught.value.filename == str(path)
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_that_waits_for_a_folder_gets_it(tmp_path: Path) -> None:
    taken = threading.Event()
    passed = []

    def second() -> None:
        taken.wait()
        with hold_folder(tmp_path, waits=True):
            passed.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with hold_folder(tmp_path):
        taken.set()
        with pytest.raises(BeingWritten), hold_folder(tmp_path):
            pass
        passed.append("first")
    thread.join()
    assert passed == ["first", "second"]
