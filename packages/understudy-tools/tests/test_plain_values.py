"""Plain values in files of both kinds: they come back with types and bits, and a file makes no
class known.
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as of_numpy

from understudy_base import DatasetError, MissingFileError, SourceError
from understudy_data import plain_values
from understudy_data.datasets.format.episode_table import FileTable
from understudy_data.datasets.stats.running import ImageStatistics, Moments
from understudy_data.plain_values import is_result, read_result, restore, storable, write_result
from understudy_data.storage.table_file import Mapped, open_table, write_table
from understudy_data.video.shown import Shown
from understudy_tools.check.row_facts import RowFacts


def as_result(value: Any, path: Path) -> Any:
    write_result(path, value)
    assert is_result(path)
    return read_result(path)


def as_table(value: Any, path: Path) -> Any:
    write_table(path, value)
    found, whole, stat = open_table(path)
    assert same(found, open_table(path, verify=False)[0])
    assert len(whole) == stat.st_size
    return found


CONTAINERS: dict[str, Callable[[Any, Path], Any]] = {"result": as_result, "table": as_table}
both = pytest.mark.parametrize("stored", CONTAINERS.values(), ids=CONTAINERS)


def same(one: Any, two: Any) -> bool:
    """Return whether two values are equal, with the types and bits of all their parts."""
    if type(one) is not type(two):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        facts = [
            (part.dtype, part.shape, part.flags.fnc, part.tobytes())
            for part in map(np.asarray, (one, two))
        ]
        return facts[0] == facts[1]
    if isinstance(one, dict):
        return same(list(one), list(two)) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, pa.ChunkedArray):
        return bool(one.type == two.type and one.to_pylist() == two.to_pylist())
    if isinstance(one, DatasetError):
        return str(one) == str(two) and same(one.fields(), two.fields())
    if type(one).__module__.startswith("understudy"):
        return same(vars(one), vars(two))
    return repr(one) == repr(two) if isinstance(one, float) else bool(one == two)


TEXTS = st.text(st.characters(codec=None))
NUMBERS = (
    of_numpy.scalar_dtypes() | of_numpy.byte_string_dtypes() | of_numpy.unicode_string_dtypes()
)
ARRAYS = of_numpy.arrays(
    NUMBERS, of_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS | st.binary(),
    lambda parts: st.tuples(parts, parts),
    max_leaves=3,
)
ERRORS = st.builds(DatasetError, TEXTS, where=st.none() | TEXTS, fix=TEXTS)
ERRORS |= st.builds(SourceError, TEXTS, where=st.just(Path("a")), transient=st.booleans())
LEAVES = (
    (
        KEYS
        | st.floats()
        | st.integers(1 << 62, 1 << 70)
        | ARRAYS
        | ARRAYS.map(np.asfortranarray)
        | ERRORS
    )
    | of_numpy.arrays(NUMBERS, 3).map(lambda array: array[1])
    | st.sets(KEYS, max_size=3)
    | st.dictionaries(KEYS, st.integers(), max_size=3).map(Counter)
    | st.sampled_from([Path("a/b"), Path("/")])
    | st.builds(Shown, aspect=st.tuples(st.integers(), st.integers()), crop=st.binary())
)
VALUES = st.recursive(
    LEAVES,
    lambda parts: (
        st.lists(parts, max_size=4)
        | st.lists(parts, max_size=4).map(tuple)
        | st.dictionaries(KEYS, parts, max_size=4)
        | st.builds(FileTable, parts, parts, parts, parts)
    ),
    max_leaves=12,
)


@both
@given(value=VALUES)
def test_every_value_comes_back_with_types_and_bits(
    stored: Callable[[Any, Path], Any], value: Any
) -> None:
    with TemporaryDirectory() as folder:
        assert same(value, stored(value, Path(folder, "a")))


@both
def test_odd_values_come_back(stored: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    odd: list[Any] = [
        [1 << 63, -(1 << 63), 1 << 50_000, -0.0, float("inf"), 5e-324, "a \udcff \u20ac\n"],
        [
            np.array([1 + 2j]),
            np.array([1.5], np.longdouble),
            np.array([-np.nan, np.inf], np.float16),
        ],
        [
            np.arange(3, dtype=">i4"),
            np.array(["ab", "c"]),
            np.array([1], "M8[us]"),
            np.arange(10)[::3],
        ],
        [
            np.asfortranarray(np.arange(6).reshape(2, 3)),
            np.zeros((0, 3), bool),
            np.array(7, np.uint8),
        ],
        [np.int64(-1), np.float32(0.1), np.bool_(True), np.str_("a"), np.datetime64(3, "s")],
        MissingFileError("is missing", where=Path("a")),
        {"the same": [array := np.arange(3), array]},
    ]
    assert same(odd, stored(odd, tmp_path / "a"))


@both
def test_objects_come_back(stored: Callable[[Any, Path], Any], tmp_path: Path) -> None:
    statistics = ImageStatistics(first=3)
    statistics.add(np.full((4, 4, 3), 7, np.uint8))
    facts = RowFacts(2)
    facts.absent["action", 1] = 4
    facts.unreadable.append((1, "", DatasetError("is cut")))
    moments = Moments(*(np.full(2, number) for number in range(5)))
    found, equal, others = stored([statistics, moments, facts], tmp_path / "a")
    assert same(statistics.result(), found.result())
    assert same([moments, facts], [equal, others])


def test_arrays_of_a_result_can_be_changed(tmp_path: Path) -> None:
    first, second = as_result([np.arange(3)] * 2, tmp_path / "a")
    first[0] = 5
    assert second.tolist() == [0, 1, 2]


def test_arrays_of_a_table_are_parts_of_the_mapped_file(tmp_path: Path) -> None:
    write_table(tmp_path / "a", (np.arange(1000).reshape(2, -1), "text"))
    (array, _), whole, _ = open_table(tmp_path / "a")
    assert type(whole) is Mapped
    assert np.shares_memory(array, whole)
    assert not array.flags.writeable


def test_arrow_columns_come_back_in_tables(tmp_path: Path) -> None:
    texts = pa.chunked_array([["one", ""], ["drei ö"]])
    columns = {"t": texts, "s": pa.chunked_array([[{"a": [1]}], [{"a": []}]]), "p": texts[1:2]}
    assert same(columns, as_table(columns, tmp_path / "a"))


@dataclass
class Unregistered:
    """A class that is not registered."""

    value: int = 0


class Fraction(float):
    """A subclass of a plain value."""


@both
@pytest.mark.parametrize(
    "value",
    [
        Unregistered(),
        object(),
        np.array([object()]),
        np.zeros(1, "i4,i4"),
        print,
        ValueError("a"),
        os,
        Fraction(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_refused(
    stored: Callable[[Any, Path], Any], value: object, tmp_path: Path
) -> None:
    with pytest.raises(TypeError):
        stored([{"a": value}], tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@both
def test_an_unregistered_class_is_refused_by_name(
    stored: Callable[[Any, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = FileTable("a", np.arange(2), np.arange(2))
    path = tmp_path / "a"
    stored(value, path)
    name = f"{FileTable.__module__}.FileTable"
    monkeypatch.delitem(plain_values._NAMED, name)
    with pytest.raises(ValueError, match=name):
        restore(plain_values.flatten(value)[0], [])
    assert not is_result(path)
    with pytest.raises(ValueError, match=name if stored is as_table else r"."):
        open_table(path)


@pytest.mark.parametrize(
    "structure",
    [
        ["os.system", "true"],
        ["understudy_data.order.frame_numbering.make_finder", ["dict"]],
        ["understudy_data.datasets.format.episode_table.FileTable", ["dict", "template", "a"]],
        ["understudy_data.datasets.format.episode_table.FileTable", 3],
        ["DatasetError", ["dict", "who", "a"]],
        ["array", "<i8", [1], "C", 3],
        ["array", "<i8", [9], "C", 0],
        ["array", "O", [1], "C", 0],
        ["dict", 1],
        ["dict", ["list"], 1],
        ["int", "x"],
        ["bytes", "x"],
        ["tuple"],
        [["list"]],
        [],
    ],
)
def test_other_structures_are_refused(structure: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        restore(structure, [np.zeros(8, np.uint8)])


def test_a_class_with_other_fields_is_refused() -> None:
    structure, _ = plain_values.flatten(storable(make_dataclass("Point", ["x"]))(1))
    assert restore(structure, []).x == 1
    storable(make_dataclass("Point", ["x", "y"]))
    with pytest.raises(ValueError, match="Point"):
        restore(structure, [])
