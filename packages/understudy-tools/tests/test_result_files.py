"""Files of results: whole files alone count, and no code runs."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import DatasetError
from understudy_data.plain_values import is_result, read_result, write_result
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.video.shown import Shown
from understudy_kit import main


class Command:
    """What a stranger would pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def forged(content: bytes) -> bytes:
    return b"understudy result 2\n" + hashlib.sha256(b"a.part\0" + content).digest() + content


DAMAGE: dict[str, Callable[[bytes, Path], bytes]] = {
    "code": lambda data, ran: pickle.dumps(Command(ran)),
    "code behind a checksum": lambda data, ran: data[:52] + pickle.dumps(Command(ran)),
    "code behind a right checksum": lambda data, ran: forged(pickle.dumps(Command(ran))),
    "cut": lambda data, ran: data[: len(data) // 2],
    "cut at its end": lambda data, ran: data[:-1],
    "empty": lambda data, ran: b"",
    "short": lambda data, ran: data[:10],
    "longer": lambda data, ran: data + b"\0",
    "a bit": lambda data, ran: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "a bit of the checksum": lambda data, ran: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "another format": lambda data, ran: data.replace(b"result 2", b"result 1", 1),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_none(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.part"
    ran = tmp_path / "ran"
    write_result(path, {"a": [1.5, None], "b": np.arange(9)})
    assert is_result(path)
    path.write_bytes(DAMAGE[name](path.read_bytes(), ran))
    assert not is_result(path)
    with pytest.raises(DatasetError):
        read_result(path)
    assert not ran.exists()


def test_a_file_under_another_name_is_none(tmp_path: Path) -> None:
    write_result(tmp_path / "a.part", 1)
    (tmp_path / "a.part").rename(tmp_path / "b.part")
    assert not is_result(tmp_path / "b.part")


def test_a_file_of_an_unknown_class_is_none(tmp_path: Path) -> None:
    write_result(tmp_path / "a", Shown(aspect=(4, 3), crop=b""))
    assert is_result(tmp_path / "a")
    script = (
        "from understudy_data.plain_values import *; raise "
        f"SystemExit(is_result(Path({str(tmp_path / 'a')!r})))"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_other_kinds_of_files_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "c").symlink_to("/dev/zero")
    assert [is_result(tmp_path / name) for name in "abcd"] == [False] * 4


@pytest.mark.parametrize("name", ["code", "cut", "empty", "a bit"])
def test_check_computes_a_damaged_part_anew(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4), cameras=()))
    words = [
        "check",
        str(tmp_path / "d"),
        "--depth",
        "all",
        "--work",
        str(tmp_path / "parts"),
        "--json",
    ]
    code = main(words)
    expected = json.loads(capsys.readouterr().out)["findings"]
    before = {path: path.read_bytes() for path in (tmp_path / "parts").glob("*.part")}
    assert before
    for path, data in before.items():
        path.write_bytes(DAMAGE[name](data, tmp_path / "ran"))
    assert main(words) == code
    assert json.loads(capsys.readouterr().out)["findings"] == expected
    assert not (tmp_path / "ran").exists()
    assert {path: path.read_bytes() for path in before} == before
