"""Files of results: values come back with their types and bits, whole files alone count, and no code runs."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.datasets import Spec, write_dataset
from understudy.check.row_facts import RowFacts
from understudy.cli.main import main
from understudy.data.stats.running import ImageStatistics, Moments
from understudy.errors import DatasetError, MissingFileError, SourceError
from understudy.part_files import is_result, read_result, storable, write_result
from understudy.video.shown import Shown


class Command:
    """What a stranger would pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def forged(content: bytes) -> bytes:
    return b"understudy result 1\n" + hashlib.sha256(b"a.part\0" + content).digest() + content


DAMAGE: dict[str, Callable[[bytes, Path], bytes]] = {
    "code": lambda data, ran: pickle.dumps(Command(ran)),
    "code behind a checksum": lambda data, ran: data[:51] + pickle.dumps(Command(ran)),
    "code behind a right checksum": lambda data, ran: forged(pickle.dumps(Command(ran))),
    "cut": lambda data, ran: data[: len(data) // 2],
    "cut at its end": lambda data, ran: data[:-1],
    "empty": lambda data, ran: b"",
    "short": lambda data, ran: data[:10],
    "longer": lambda data, ran: data + b"\0",
    "a bit": lambda data, ran: data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
    "a bit of the checksum": lambda data, ran: data[:30] + bytes([data[30] ^ 1]) + data[31:],
    "another format": lambda data, ran: data.replace(b"result 1", b"result 0", 1),
}

PLAIN: list[Any] = [
    None,
    True,
    -3,
    1 << 63,
    -(1 << 63),
    1 << 50_000,
    0.1,
    -0.0,
    float("inf"),
    5e-324,
    "a \udcff \u20ac\n",
    b"\x00\xff",
    [],
    ["list", 1],
    (1, (2, [3])),
    {1, 2},
    {("camera", 3): {"a": None}, 4: b""},
    Counter({5: 2}),
    Path("a/b"),
    Shown(aspect=(4, 3), crop=b"abc"),
]
ARRAYS = [
    np.arange(6, dtype=">f4").reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(12.0)[::2],
    np.zeros((0, 3), bool),
    np.array(2.5),
    np.array(["a", "bcd"]),
    np.array([1, 2], "M8[us]"),
    np.array([np.nan, -np.nan, np.inf], np.float16),
]


def restored(value: Any, folder: Path) -> Any:
    write_result(folder / "value", value)
    assert is_result(folder / "value")
    return read_result(folder / "value")


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_values_come_back(value: Any, tmp_path: Path) -> None:
    result = restored(value, tmp_path)
    assert type(result) is type(value)
    assert repr(result) == repr(value) if isinstance(value, float) else result == value


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_arrays_come_back_with_their_bits_and_can_be_changed(array: np.ndarray, tmp_path: Path) -> None:
    first, second = restored([array, array], tmp_path)
    for result in (first, second):
        assert (result.dtype, result.shape) == (array.dtype, array.shape)
        assert result.tobytes() == array.tobytes()
        assert result.flags.f_contiguous == np.array(array, order="K").flags.f_contiguous
        assert result.flags.writeable


@pytest.mark.parametrize("value", [np.float32(0.1), np.int64(-1), np.bool_(True), np.str_("a")])
def test_numbers_of_numpy_keep_their_type(value: Any, tmp_path: Path) -> None:
    result = restored({"a": value}, tmp_path)["a"]
    assert (type(result), result) == (type(value), value)


@pytest.mark.parametrize(
    "error",
    [
        DatasetError("is cut", where="data/a.parquet", fix="repair it"),
        MissingFileError("is missing", where=Path("a")),
        SourceError("no answer", transient=True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_data_come_back(error: DatasetError, tmp_path: Path) -> None:
    result = restored(error, tmp_path)
    assert (type(result), str(result), result.fields()) == (type(error), str(error), error.fields())


def test_objects_come_back(tmp_path: Path) -> None:
    statistics = ImageStatistics(first=3)
    statistics.add(np.full((4, 4, 3), 7, np.uint8))
    facts = RowFacts(2)
    facts.absent["action", 1] = 4
    facts.unreadable.append((1, "", DatasetError("is cut")))
    moments = Moments(*(np.full(2, number) for number in range(5)))
    found, same, others = restored([statistics, moments, facts], tmp_path)
    assert {name: value.tolist() for name, value in found.result().items()} == {
        name: value.tolist() for name, value in statistics.result().items()
    }
    assert [value.tolist() for value in vars(same).values()] == [value.tolist() for value in vars(moments).values()]
    assert others.absent == facts.absent
    assert others.unreadable[0][2].what == "is cut"
    assert vars(others).keys() == vars(facts).keys()


@pytest.mark.parametrize(
    "value",
    [Command(Path()), np.array([None]), print, ValueError("a"), [{"a": os}]],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_result(tmp_path / "a", value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_none(name: str, tmp_path: Path) -> None:
    path, ran = tmp_path / "a.part", tmp_path / "ran"
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


def test_a_file_of_another_class_is_none(tmp_path: Path) -> None:
    point = storable(make_dataclass("Point", ["x"]))
    write_result(tmp_path / "a", point(1))
    assert is_result(tmp_path / "a")
    storable(make_dataclass("Point", ["x", "y"]))
    assert not is_result(tmp_path / "a")
    script = f"from understudy.part_files import *; raise SystemExit(is_result(Path({str(tmp_path / 'a')!r})))"
    subprocess.run([sys.executable, "-c", script], check=True)  # which knows no such class


def test_other_kinds_of_files_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "c").symlink_to("/dev/zero")
    assert [is_result(tmp_path / name) for name in "abcd"] == [False] * 4


@pytest.mark.parametrize("name", ["code", "cut", "empty", "a bit"])
def test_check_computes_a_damaged_part_anew(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4), cameras=()))
    words = ["check", str(tmp_path / "d"), "--depth", "all", "--work", str(tmp_path / "parts"), "--json"]
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
