"""Order files: written whole or not at all, read in parts, refused where they were changed or are
not well-defined.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.order_file import GROUP, KEY, OrderFile, Samples, _seal, write_order_file

FACTS = {
    "datasets": [{"name": "a", "lengths": ""}, {"name": "b", "lengths": ""}],
    "start": 12,
    "batch": 4,
}


def block(first: int, rows: int) -> Samples:
    position = np.arange(first, first + rows)
    weight = np.ones(rows, np.float32)
    return Samples(
        position // 4,
        position,
        (position % 2).astype(np.int32),
        position % 2,
        position % 7,
        position,
        weight,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_order_file(tmp_path / "order.parquet", [block(12, 8), block(20, 4), block(24, 12)], FACTS)
    return tmp_path / "order.parquet"


def test_order_file_is_read_back_at_any_positions(path: Path) -> None:
    file = pickle.loads(pickle.dumps(OrderFile(path)))
    assert (file.start, file.stop, file.batch_size, file.names) == (12, 36, 4, ("a", "b"))
    positions = np.array([35, 12, 21, 12, 20], np.uint64)
    assert file.locate(positions).tolist() == [[1, 0, 1, 0, 0], [0, 5, 0, 5, 6], positions.tolist()]
    assert [len(part.step) for part in file.blocks()] == [8, 4, 12]
    assert pq.read_table(path).column("dataset").to_pylist()[:3] == ["a", "b", "a"]
    with refused(36, where="order.parquet", fix="12 to 35"):
        file.locate(np.array([36], np.uint64))


def test_order_file_is_not_overwritten(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ConfigError):
        write_order_file(path, [block(12, 8)], FACTS)
    assert path.read_bytes() == before


def test_killed_export_leaves_no_order_file(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from test_order_file import FACTS, block, write_order_file
def blocks():
    yield block(12, 8)
    os.kill(os.getpid(), signal.SIGKILL)
write_order_file(Path({str(tmp_path / "order.parquet")!r}), blocks(), FACTS)
"""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])
    }
    assert (
        subprocess.run([sys.executable, "-c", program], env=environment).returncode
        == -signal.SIGKILL
    )
    assert list(tmp_path.glob("[!.]*")) == []


def rewritten(path: Path, change: Any) -> Path:
    """A copy whose rows or facts were changed by other tools, which keep the metadata."""
    table = pq.read_table(path)
    columns = {name: table[name] for name in table.column_names}
    facts = json.loads(pq.read_metadata(path).metadata[KEY])
    change(columns, facts)
    other = path.with_name("other.parquet")
    changed = pa.table(columns).replace_schema_metadata({KEY: json.dumps(facts)})
    with pq.ParquetWriter(other, changed.schema) as writer:
        for start, rows in ((0, 8), (8, 4), (12, 12)):
            writer.write_table(changed.slice(start, rows))
    return other


def test_changed_rows_and_facts_are_refused(path: Path) -> None:
    def frame(columns: dict[str, Any], facts: dict[str, Any]) -> None:
        values = columns["frame"].to_numpy().copy()
        values[9] += 1
        columns["frame"] = pa.array(values)

    def batch(columns: dict[str, Any], facts: dict[str, Any]) -> None:
        facts["batch"] = 2

    same = OrderFile(rewritten(path, lambda *_: None))
    assert same.locate(np.arange(12, 36, dtype=np.uint64))[2].tolist() == list(range(12, 36))
    changed = OrderFile(rewritten(path, frame))
    assert changed.locate(np.array([12], np.uint64))[2] == 12
    with refused("changed", where="other.parquet", fix="export"):
        changed.locate(np.array([21], np.uint64))
    with refused("changed", where="other.parquet", fix="export"):
        OrderFile(rewritten(path, batch))


@pytest.mark.parametrize(
    "facts", [b"garbage", b"\xff", b'{"a": 1}', b"3", b'{"seal": "x", "digests": 3}']
)
def test_damaged_facts_are_refused(path: Path, facts: bytes) -> None:
    pq.write_table(
        pq.read_table(path).replace_schema_metadata({KEY: facts}), path.with_name("other.parquet")
    )
    with refused("changed", where="other.parquet", fix="export"):
        OrderFile(path.with_name("other.parquet"))


def foreign(path: Path, rows: int = 10, group: int = 4, **columns: Any) -> Path:
    table = {
        "episode_index": np.zeros(rows, np.int32),
        "frame_index": np.arange(rows),
        "loss": np.ones(rows),
    } | columns
    pq.write_table(pa.table(table), path, row_group_size=group)
    return path


def test_files_of_other_tools_are_orders(tmp_path: Path) -> None:
    file = OrderFile(foreign(tmp_path / "plain.parquet"))
    assert (file.start, file.stop, file.batch_size, file.names, file.facts) == (
        0,
        10,
        None,
        ("",),
        {},
    )
    assert file.locate(np.array([9, 3], np.uint64)).tolist() == [[0, 0], [0, 0], [9, 3]]
    named: dict[str, Any] = {"dataset": ["b"] * 5 + ["a"] * 5, "step": np.arange(10) // 3 + 7}
    file = OrderFile(foreign(tmp_path / "named.parquet", **named))
    assert (file.batch_size, file.names, file.digest) == (
        3,
        ("b", "a"),
        OrderFile(tmp_path / "named.parquet").digest,
    )
    assert file.locate(np.array([4, 5], np.uint64))[0].tolist() == [0, 1]


SECONDS = np.arange(10).astype("datetime64[s]")


@pytest.mark.parametrize("name", ["episode_index", "frame_index", "step", "weight"])
@pytest.mark.parametrize(
    "values", [np.arange(10) > 4, SECONDS, SECONDS - SECONDS[0], [str(i) for i in range(10)]]
)
def test_other_types_than_numbers_are_refused_by_column(
    tmp_path: Path, name: str, values: Any
) -> None:
    file = foreign(tmp_path / "order.parquet", **{name: values})
    kind = pq.read_schema(file).field(name).type
    with refused(name.removesuffix("_index"), kind, where="order.parquet", fix="integers"):
        OrderFile(file)


@pytest.mark.parametrize("name", ["step", "position", "rank", "episode", "frame", "weight"])
def test_booleans_in_an_exported_file_are_refused(path: Path, name: str) -> None:
    """Of 0 and 1 alone, whose digest is that of the numbers."""

    def change(columns: dict[str, Any], facts: dict[str, Any]) -> None:
        columns[name] = columns[name].cast(pa.int64()).cast(pa.bool_())

    with refused(name, "bool", where="other.parquet", fix="integers"):
        OrderFile(rewritten(path, change)).read(0)


def wrong() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "steps", {"step": np.array([0, 0, 0, 1, 1, 3, 3, 3, 4, 4])}
    yield "steps", {"step": np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 0])}
    yield "steps", {"step": np.arange(10)[::-1] // 2}
    yield "numbers", {"frame_index": pa.array([None, *range(9)])}
    yield "numbers", {"frame_index": np.arange(10) + 0.5}
    yield "numbers", {"frame_index": np.arange(10) - 1}
    yield "numbers", {"episode_index": np.arange(10) << 30}
    yield "numbers", {"weight": np.where(np.arange(10) == 5, np.nan, 1.0)}
    yield "schema", {"episode": np.arange(10)}  # beside `episode_index`
    yield "nulls", {"dataset": pa.array([None] * 10, pa.string())}


@pytest.mark.parametrize(("what", "columns"), list(wrong()))
def test_files_that_are_not_well_defined_are_refused(
    tmp_path: Path, what: str, columns: dict[str, Any]
) -> None:
    with refused(what, where="wrong.parquet", fix=""):
        OrderFile(foreign(tmp_path / "wrong.parquet", **columns))


def test_first_step_may_be_several_row_groups(tmp_path: Path) -> None:
    for rows, size in ((10, 7), (7, 7)):
        steps = np.arange(rows) // 7 + 3
        assert (
            OrderFile(foreign(tmp_path / "steps.parquet", rows, group=2, step=steps)).batch_size
            == size
        )


@pytest.mark.parametrize("group", [1, 2, 3, 9])
@pytest.mark.parametrize(
    ("sizes", "size"), [((4, 4, 2), 4), ((4, 2, 4), None), ((2, 4), None), ((3, 3, 3), 3)]
)
def test_steps_of_several_sizes_have_no_batch_size(
    tmp_path: Path, sizes: tuple[int, ...], size: int | None, group: int
) -> None:
    steps = np.repeat(np.arange(len(sizes)), sizes)
    file = OrderFile(foreign(tmp_path / "steps.parquet", len(steps), group=group, step=steps))
    assert file.batch_size == size
    assert np.concatenate([block.step for block in file.blocks()]).tolist() == steps.tolist()


def test_file_that_shrinks_under_a_reader_is_refused(tmp_path: Path) -> None:
    """A mapped one would end the process."""
    path = foreign(
        tmp_path / "order.parquet", 40_000, group=20_000, frame_index=np.arange(40_000) % 977
    )
    program = f"""
import os
from understudy_data.order_file import OrderFile
file = OrderFile({str(path)!r})
os.truncate(file.path, 100)
try:
    file.read(1)
except ValueError as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["DatasetError"], done


def test_files_of_other_tools_are_refused_once_they_change(tmp_path: Path) -> None:
    file = OrderFile(foreign(tmp_path / "plain.parquet"))
    sent = pickle.dumps(file)
    foreign(tmp_path / "other.parquet", frame_index=np.arange(10)[::-1])
    os.replace(tmp_path / "other.parquet", tmp_path / "plain.parquet")
    with refused("changed", where="plain.parquet"):
        file.locate(np.array([3], np.uint64))
    with refused("changed", where="plain.parquet"):
        pickle.loads(sent)


def test_empty_row_groups_are_refused(tmp_path: Path) -> None:
    part = pa.table({"episode": np.zeros(3, int), "frame": np.arange(3)})
    with pq.ParquetWriter(tmp_path / "gap.parquet", part.schema) as writer:
        for table in (part, part[:0], part):
            writer.write_table(table)
    with refused("0 rows", where="gap.parquet"):
        OrderFile(tmp_path / "gap.parquet")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no parquet")
    pq.write_table(pa.table({"episode": [0]}), tmp_path / "lacking.parquet")
    pq.write_table(
        pa.table({"episode": pa.array([], pa.int64()), "frame": pa.array([], pa.int64())}),
        tmp_path / "no.parquet",
    )
    for name, what in (
        ("text", "parquet"),
        ("lacking", "frame"),
        ("no", 0),
        ("missing", "directory"),
    ):
        with refused(what, where=f"{name}.parquet", fix="") as caught:
            OrderFile(tmp_path / f"{name}.parquet")
        assert str(caught.value).count(f"{name}.parquet") == 1
    assert GROUP <= 1 << 20


WRONG_FACTS: list[tuple[str, Any]] = [
    *(("start", value) for value in ("x", -1, True, 1.5, None, [1])),
    *(("batch", value) for value in ("x", 0, -4, True, 2.5, [4])),
    *(
        ("datasets", value)
        for value in ([5], [{}], [], "a", {"name": "a"}, [{"name": 1, "lengths": ""}])
    ),
    *(("datasets", value) for value in ([{"name": "a", "lengths": None}], [{"name": "a"}], None)),
]


@pytest.mark.parametrize(("fact", "value"), WRONG_FACTS)
def test_sealed_facts_of_other_types_are_refused_by_name(path: Path, fact: str, value: Any) -> None:
    def change(columns: dict[str, Any], facts: dict[str, Any]) -> None:
        facts[fact] = value
        facts["seal"] = _seal(facts)

    with refused(fact, where="other.parquet", fix="export"):
        OrderFile(rewritten(path, change))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["dictionary", "text", "bytes"])
def test_columns_that_no_order_has_are_not_read(tmp_path: Path, kind: str) -> None:
    """As the images in LeRobot's data files."""
    count = 1 << 18
    indices = pa.array(np.zeros(count, np.int32))
    note: Any = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 16384]))
    if kind != "dictionary":
        note = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 4000])).cast(pa.string())
    if kind == "bytes":
        note = note.cast(pa.binary())
    numbers = {"episode_index": np.zeros(count, np.int32), "frame_index": np.arange(count)}
    pq.write_table(
        pa.table(numbers | {"note": note}), tmp_path / "order.parquet", store_schema=False
    )
    read = list[Any]()
    original = pq.ParquetFile.read_row_group
    with pytest.MonkeyPatch.context() as patch:

        def noted(file: Any, group: int, columns: Any = None) -> Any:
            read.append(columns)
            return original(file, group, columns)

        patch.setattr(pq.ParquetFile, "read_row_group", noted)
        file = OrderFile(tmp_path / "order.parquet")
    assert read
    assert all(columns == ["episode_index", "frame_index"] for columns in read), read
    assert file.stop == count


def test_names_of_datasets_are_never_written_out_row_by_row(tmp_path: Path) -> None:
    """A name of 1,000 letters in each of 262,144 rows, in a file of some kilobytes."""
    count = 1 << 18
    names = pa.DictionaryArray.from_arrays(
        pa.array(np.arange(count, dtype=np.int32) % 2), pa.array(["b" * 1000, "a"])
    )
    numbers = {"episode": np.zeros(count, np.int64), "frame": np.arange(count)}
    pq.write_table(
        pa.table(numbers | {"dataset": names}), tmp_path / "order.parquet", store_schema=False
    )
    program = f"""
import resource
from understudy_data.order_file import OrderFile
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
file = OrderFile({str(tmp_path / "order.parquet")!r})
assert file.names == ("b" * 1000, "a")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert int(done.stdout or 999) < 150, done


def test_declared_sizes_of_columns_are_bounded(tmp_path: Path) -> None:
    names = ["x" * (1 << 16) + str(number) for number in range(64)]
    table = pa.table({"episode": np.zeros(64, int), "frame": np.arange(64), "dataset": names})
    pq.write_table(table, tmp_path / "order.parquet")
    with refused("dataset", 64, where="order.parquet", fix="shorter"):
        OrderFile(tmp_path / "order.parquet")


def test_order_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "order.parquet")
    for place in (tmp_path / "order.parquet", Path("/dev/zero"), tmp_path):
        with refused("file", where=place.name, fix="parquet"):
            OrderFile(place)
