"""Results of parts in a folder: only whole files that this user wrote count, and no code of others runs."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.datasets import Spec, write_dataset
from understudy import parts as sealed_results
from understudy.cli.main import main
from understudy.parts import is_result, read_result, write_result


class Command:
    """What a stranger would pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def other_user(path: Path, value: Any) -> None:
    """Write a file with the key of another user."""
    key, sealed_results._key = sealed_results._key, lambda: b"k" * 32  # type: ignore[assignment]
    try:
        write_result(path, value)
    finally:
        sealed_results._key = key


DAMAGE: dict[str, Callable[[bytes, Path], bytes]] = {
    "code": lambda data, ran: pickle.dumps(Command(ran)),
    "code behind a seal": lambda data, ran: data[:32] + pickle.dumps(Command(ran)),
    "cut": lambda data, ran: data[: len(data) // 2],
    "cut at its end": lambda data, ran: data[:-1],
    "empty": lambda data, ran: b"",
    "short": lambda data, ran: data[:10],
    "longer": lambda data, ran: data + b"\0",
    "a bit": lambda data, ran: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_result_is_none(name: str, tmp_path: Path) -> None:
    path, ran = tmp_path / "a.part", tmp_path / "ran"
    write_result(path, {"a": [1.5, None]})
    assert read_result(path) == {"a": [1.5, None]}
    path.write_bytes(DAMAGE[name](path.read_bytes(), ran))
    assert not is_result(path)
    assert not ran.exists()


def test_a_result_of_another_user_and_other_kinds_of_files_are_none(tmp_path: Path) -> None:
    other_user(tmp_path / "a", Command(tmp_path / "ran"))
    os.mkfifo(tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "d").symlink_to("/dev/zero")
    assert [is_result(tmp_path / name) for name in "abcde"] == [False] * 5
    assert not (tmp_path / "ran").exists()


def test_the_key_is_of_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    new = sealed_results._key.__wrapped__
    assert new() == new()
    path = tmp_path / "understudy/results.key"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # another user may have read it
    assert new() != new()
    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # no folder: a key of this process
    assert new() != new()


@pytest.mark.parametrize("name", ["code", "cut", "empty", "a bit"])
def test_check_computes_a_damaged_part_anew(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4), cameras=()))
    words = ["check", str(tmp_path / "d"), "--depth", "all", "--work", str(tmp_path / "parts"), "--json"]
    code = main(words)
    expected = json.loads(capsys.readouterr().out)["findings"]
    parts = sorted((tmp_path / "parts").glob("*.part"))
    before = {path: path.read_bytes() for path in parts}
    assert before
    for path, data in before.items():
        path.write_bytes(DAMAGE[name](data, tmp_path / "ran"))
    assert main(words) == code
    assert json.loads(capsys.readouterr().out)["findings"] == expected
    assert not (tmp_path / "ran").exists()
    assert all(is_result(path) for path in parts)
