"""Files of mapped arrays: every value comes back, another program can read them, and a damaged one is never taken."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from understudy.order.frame_numbering import Finder
from understudy.storage import table_file
from understudy.storage.table_file import open_table, write_table


def same(one: Any, two: Any) -> bool:
    """Whether two tables are equal, with the types of all their parts."""
    if type(two) is table_file.Mapped or isinstance(one, np.ndarray):
        return bool(one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes())
    if isinstance(one, (pa.Array, pa.ChunkedArray)):
        return bool(one.to_pylist() == two.to_pylist() and one.type == two.type)
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if hasattr(one, "__dict__"):
        return same(vars(one), vars(two))
    return bool(one == two or (one != one and two != two))


TABLES = {
    "numbers": [
        np.arange(5),
        np.array([[1, np.nan], [2, 3]], np.float32),
        np.zeros((0, 3), np.int16),
        np.array(7, np.uint8),
    ],
    "odd numbers": [np.array([True, False]), np.array([1 + 2j]), np.array(["ab", "c"]), np.arange(3, dtype=">i4")],
    "halves": {
        "half": np.array([1, 2], np.float16),
        "wide": np.array([1.5], np.longdouble),
        "time": np.array([3], "M8[ns]"),
    },
    "order of axes": (np.asfortranarray(np.arange(6).reshape(2, 3)), np.arange(10)[::3]),
    "plain": {"a": None, 3: True, "b": (1, 2.5, float("nan"), float("inf"), "text"), "c": [], ("x", 1): {}},
    "scalars": (np.int64(3), np.float32(0.1), np.bool_(True)),
    "text": {"t": pa.array(["one", "", "drei ö"]), "s": pa.chunked_array([[{"a": [1]}], [{"a": []}]])},
    "class": [Finder(np.arange(3), np.zeros(0, np.int32), 2)],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_comes_back_with_types_and_values(name: str, tmp_path: Path) -> None:
    write_table(tmp_path / "table", TABLES[name])
    for verify in (True, False):
        table, whole, stat = open_table(tmp_path / "table", verify)
        assert same(TABLES[name], table)
        assert len(whole) == stat.st_size


def test_arrays_are_parts_of_the_mapped_file(tmp_path: Path) -> None:
    write_table(tmp_path / "table", (np.arange(1000), "text"))
    (array, _), whole, _ = open_table(tmp_path / "table")
    assert np.shares_memory(array, whole)
    assert not array.flags.writeable


def test_another_program_reads_the_numbers(tmp_path: Path) -> None:
    write_table(tmp_path / "table", {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4)})
    batch = pa.ipc.open_file(str(tmp_path / "table")).get_batch(0)
    assert [column[0].as_py() for column in batch.columns] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]


def test_no_damaged_byte_changes_a_value(tmp_path: Path) -> None:
    """Each byte of a file is changed, and the file is cut at each place: equal values, or ValueError."""
    path, table = tmp_path / "table", {"a": np.arange(40), "t": pa.array(["x", "yz"]), "n": 3}
    write_table(path, table)
    whole = path.read_bytes()
    refused = 0
    damaged = [whole[:place] + bytes([whole[place] ^ 0x21]) + whole[place + 1 :] for place in range(len(whole))]
    for content in [*damaged, *(whole[:size] for size in range(0, len(whole), 7))]:
        path.write_bytes(content)
        try:
            read = open_table(path)[0]
        except ValueError:
            refused += 1
        else:
            assert same(table, read)
    assert refused > len(whole) // 2


@dataclass
class Elsewhere:
    """A class that is not of the package."""

    value: int = 0


@pytest.mark.parametrize("value", [Elsewhere(), object(), np.array([object()]), {1, 2}, lambda: 0])
def test_other_objects_are_refused(value: object, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_table(tmp_path / "table", [value])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "named",
    [
        {"class": "os:system", "fields": []},
        {"class": f"{__name__}:Elsewhere", "fields": [["value", 3]]},
        {"class": "understudy.order.frame_numbering:make_finder", "fields": []},
        {"class": "understudy.order.frame_numbering:Finder", "fields": [["ends", 3]]},
        {"class": "understudy.no_such:Finder", "fields": []},
        {"array": 3},
    ],
)
def test_a_file_names_no_code(named: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_file, "_pack", lambda *_: named)
    write_table(tmp_path / "table", 0)
    with pytest.raises(ValueError, match=r"."):
        open_table(tmp_path / "table")


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "table", json.loads("[1]"))
    monkeypatch.setattr(table_file, "FORMAT", table_file.FORMAT + 1)
    with pytest.raises(ValueError, match=r"."):
        open_table(tmp_path / "table")
