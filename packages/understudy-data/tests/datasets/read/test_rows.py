"""Rows: columns in numpy from any storage, episodes found in files, faults named, memory
bounded.
"""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import MissingFileError
from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.read.columns import to_numpy
from understudy_data.datasets.read.rows import Rows
from understudy_data.testing.datasets import Spec, Truth, edit_json, write_dataset

SPEC = Spec(lengths=(5, 3, 7, 4), ids=(0, 2, 3, 5), cameras=(), rich=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Truth]]:
    root = tmp_path_factory.mktemp("rows")
    return {
        v: (root / v, write_dataset(root / v, Spec(**{**vars(SPEC), "version": v})))
        for v in ("v2.1", "v3.0")
    }


@pytest.fixture
def copy(written: dict[str, tuple[Path, Truth]], tmp_path: Path) -> Callable[[str], Path]:
    def make(version: str) -> Path:
        shutil.copytree(written[version][0], tmp_path / version)
        return tmp_path / version

    return make


def change(path: Path, how: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(how(pq.read_table(path)), path)


def rows_of(root: Path, keys: tuple[str, ...] = ("action",), cache: int = 1 << 20) -> Rows:
    return Rows(Catalog.open(root), keys, cache)


def take(rows: Rows, keys: tuple[str, ...] = ("action", "index")) -> dict[str, Any]:
    """The first frame of every episode."""
    table = rows.catalog.episodes
    first = np.zeros(len(table), np.int64)
    return rows.take(np.arange(len(table)), dict.fromkeys(keys, first))


# Columns


@given(
    shape=st.lists(st.integers(1, 3), min_size=0, max_size=3),
    rows=st.integers(0, 5),
    dtype=st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bool"]),
    stored=st.sampled_from(["float32", "float64", "int64", "bool"]),
    fixed=st.lists(st.booleans(), min_size=3, max_size=3),
    chunks=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_rows_columns_of_any_storage(
    shape: list[int], rows: int, dtype: str, stored: str, fixed: list[bool], chunks: int, seed: int
) -> None:
    """Lists, fixed lists, large chunks, nested as deep as they come: the declared dtype and shape,
    the same values.
    """
    values = np.random.default_rng(seed).integers(0, 2, size=(rows, *shape)).astype(stored)
    array = pa.array(values.reshape(-1))
    for depth in range(len(shape), 0, -1):
        count = int(np.prod(values.shape[:depth]))
        offsets = pa.array(np.arange(count + 1) * shape[depth - 1], pa.int32())
        array = (
            pa.FixedSizeListArray.from_arrays(array, shape[depth - 1])
            if fixed[depth - 1]
            else pa.ListArray.from_arrays(offsets, array)
        )
    cuts = [rows * i // chunks for i in range(chunks + 1)]
    column = pa.chunked_array([array.slice(a, b - a) for a, b in pairwise(cuts)], array.type)
    feature = Feature("x", dtype, tuple(shape) or (1,))
    got = to_numpy(column, feature, "file", "x")
    want = feature.value_shape
    assert got.dtype == np.dtype(dtype)
    assert got.shape == (rows, *want)
    assert np.array_equal(got, values.reshape(rows, *want).astype(dtype))
    if rows:  # no declaration: as stored
        assert np.array_equal(to_numpy(column, None, "file", "x"), values)


@pytest.mark.parametrize(
    ("values", "dtype", "shape", "words"),
    [
        (pa.array([1.5, 2.0]), "int64", (1,), ["float64", "int64"]),
        (pa.array([300]), "uint8", (1,), ["int64", "uint8"]),
        (pa.array([2]), "bool", (1,), ["int64", "bool"]),
        (pa.array([float("nan")]), "int64", (1,), ["float64", "int64"]),
        (pa.array([1.0, None]), "float32", (1,), ["1 nulls", "row 1"]),
        (pa.array([None, None]), "float32", (1,), ["2 nulls", "row 0"]),
        (pa.array([[1.0], None]), "float32", (1,), ["1 nulls", "row 1"]),
        (pa.array([[1.0, 2.0], [3.0, None]]), "float32", (2,), ["1 nulls", "row 1"]),
        (pa.array([[1.0, 2.0], [3.0]]), "float32", (2,), ["2 values", "row 1"]),
        (pa.array([[1.0, 2.0]]), "float32", (3,), [(2,), (3,)]),
        (pa.array([1.0]), "float32", (3,), [(), (3,)]),
        (pa.array([[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]), "float32", (3, 2), [(2, 3), (3, 2)]),
        (pa.array(["1.0"]), "float32", (1,), ["string"]),
        (pa.array([{"a": 1}]), "float32", (1,), ["struct<a: int64>"]),
    ],
)
def test_rows_columns_that_are_refused(
    values: pa.Array, dtype: str, shape: tuple[int, ...], words: list[Any]
) -> None:
    with refused("'the.key'", *words, where="some/file"):
        to_numpy(
            pa.chunked_array([values]), Feature("the.key", dtype, shape), "some/file", "the.key"
        )


def test_rows_flat_storage_of_an_array() -> None:
    got = to_numpy(
        pa.chunked_array([pa.array([[1.0, 2.0, 3.0, 4.0]])]),
        Feature("x", "float32", (2, 2)),
        "file",
        "x",
    )
    assert got.tolist() == [[[1.0, 2.0], [3.0, 4.0]]]


# Files


def test_rows_of_several_files_come_in_the_requested_order(
    written: dict[str, tuple[Path, Truth]],
) -> None:
    catalog = Catalog.open(written["v3.0"][0])
    keys = [key for key, feature in catalog.features.items() if not feature.is_camera]
    reader = Rows(catalog, keys, 1 << 20)
    rows = np.array([3, 0, 2, 0, 1])
    frames = np.array([1, 4, 6, 0, 2])
    assert len(np.unique(catalog.episodes.data_file[rows])) > 1
    wanted = dict.fromkeys(keys, frames) | {
        "timestamp": np.stack([frames, np.zeros_like(frames)], axis=1)
    }
    together = reader.take(rows, wanted)
    assert list(together) == list(wanted)
    for place in range(len(rows)):
        alone = reader.take(
            rows[place : place + 1], {key: of[place : place + 1] for key, of in wanted.items()}
        )
        for key, values in alone.items():
            assert np.array_equal(np.asarray(together[key][place]), np.asarray(values[0]))


def test_rows_budget_of_loaded_files(written: dict[str, tuple[Path, Truth]]) -> None:
    rows = rows_of(written["v2.1"][0], cache=0)
    take(rows)
    assert len(rows.files) == 1  # the one in use
    one = rows.files.used
    rows = rows_of(written["v2.1"][0], cache=3 * one)
    take(rows)
    assert 1 < len(rows.files) < 4
    rows = rows_of(written["v2.1"][0])
    take(rows)
    assert len(rows.files) == 4


def test_rows_a_file_is_read_once_for_two_threads(
    written: dict[str, tuple[Path, Truth]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(written["v3.0"][0])
    read = Rows.read_file
    reads = list[int]()
    other = threading.Thread(target=take, args=(rows,))

    def reading(self: Rows, file: int) -> Any:
        reads.append(file)
        if len(reads) == 1:
            other.start()  # and finds the file under way
            other.join(0.2)
        return read(self, file)

    monkeypatch.setattr(Rows, "read_file", reading)
    take(rows)
    other.join()
    assert sorted(reads) == sorted(set(reads))


def test_rows_a_waiting_thread_reads_the_file_that_another_could_not(
    written: dict[str, tuple[Path, Truth]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(written["v3.0"][0])
    read = Rows.read_file
    reads = list[int]()
    with ThreadPoolExecutor(1) as pool:
        others: list[Future[dict[str, Any]]] = []

        def failing(self: Rows, file: int) -> Any:
            reads.append(file)
            if len(reads) == 1:
                others.append(pool.submit(take, rows))
                wait(others, 0.2)
                raise InterruptedError
            return read(self, file)

        monkeypatch.setattr(Rows, "read_file", failing)
        with pytest.raises(InterruptedError):
            take(rows)
        assert set(others[0].result(30)) == {"action", "index"}
    assert reads[:2] == [reads[0]] * 2


def test_rows_of_other_episodes_in_a_file_are_left_alone(copy: Callable[[str], Path]) -> None:
    """An episode that only the metadata has lost does not move the others."""
    root = copy("v3.0")
    change(root / "meta/episodes/chunk-000/file-000.parquet", lambda table: table.slice(1))
    edit_json(root / "meta/info.json", lambda info: info.update(total_episodes=3))
    rows = rows_of(root, ("note",))
    assert take(rows, ("note",))["note"] == [f"episode {e}, frame 0 é" for e in (2, 3, 5)]


def test_rows_order_of_columns_and_of_episodes_in_a_file(copy: Callable[[str], Path]) -> None:
    root = copy("v3.0")

    def turn(table: pa.Table) -> pa.Table:
        later = table.slice(5)
        earlier = table.slice(0, 5)
        return pa.concat_tables([later, earlier]).select(sorted(table.column_names, reverse=True))

    change(root / "data/chunk-000/file-000.parquet", turn)
    got = take(rows_of(root, ("note",)), ("note", "index"))
    assert got["note"] == [f"episode {e}, frame 0 é" for e in (0, 2, 3, 5)]
    assert got["index"].tolist() == [0, 5, 8, 15]


def test_rows_a_copied_file_keeps_its_name(copy: Callable[[str], Path]) -> None:
    """v2 without videos: the name of a file decides the episode of its rows, and a column that
    differs is reported.
    """
    root = copy("v2.1")
    shutil.rmtree(root / "videos")
    shutil.copy(
        root / "data/chunk-000/episode_000000.parquet",
        root / "data/chunk-001/episode_000002.parquet",
    )
    change(root / "data/chunk-001/episode_000002.parquet", lambda table: table.slice(0, 3))
    rows = rows_of(root, ("note",))
    with warned("episode_000002.parquet (episode 2)", "episode 0", "episode_index"):
        got = take(rows, ("note", "episode_index"))
    assert got["note"][1] == "episode 0, frame 0 é"
    assert got["episode_index"].tolist() == [0, 2, 3, 5]


def test_rows_notes_frame_index_with_offset(copy: Callable[[str], Path]) -> None:
    root = copy("v2.1")

    def shift(table: pa.Table) -> pa.Table:
        at = table.column_names.index("frame_index")
        return table.set_column(at, "frame_index", pa.array(np.arange(len(table)) * 2 + 7))

    change(root / "data/chunk-001/episode_000003.parquet", shift)
    rows = rows_of(root)
    with warned("episode_000003.parquet (episode 3)", "frame_index"):
        assert take(rows, ("frame_index",))["frame_index"].tolist() == [0, 0, 0, 0]


FAULTS: list[tuple[str, str, Callable[[pa.Table], pa.Table], list[Any]]] = [
    (
        "v2.1",
        "data/chunk-001/episode_000002.parquet",
        lambda t: t.slice(1),
        ["episode 2", "length 3", "2 rows"],
    ),
    (
        "v3.0",
        "data/chunk-000/file-000.parquet",
        lambda t: t.slice(1),
        ["episode 0", "length 5", "4 rows"],
    ),
    (
        "v3.0",
        "data/chunk-000/file-000.parquet",
        lambda t: t.slice(5),
        ["episode 0", "length 5", "0 rows"],
    ),
    ("v3.0", "data/chunk-000/file-000.parquet", lambda t: t.slice(0, 0), ["episode 0", "0 rows"]),
    (
        "v3.0",
        "data/chunk-000/file-000.parquet",
        lambda t: t.slice(1).drop_columns(["episode_index"]),
        ["episodes 0 to 2", "episode_index", "7 rows", 8],
    ),
    (
        "v3.0",
        "data/chunk-000/file-000.parquet",
        lambda t: pa.concat_tables([t, t]),
        ["episode 0", "contiguous"],
    ),
    (
        "v3.0",
        "data/chunk-000/file-001.parquet",
        lambda t: t.drop_columns(["action"]),
        ["episodes 3 to 5", "'action'"],
    ),
    (
        "v2.1",
        "data/chunk-000/episode_000000.parquet",
        lambda t: t.take([4, 3, 2, 1, 0]),
        ["episode 0", "frame_index"],
    ),
    (
        "v2.1",
        "data/chunk-000/episode_000000.parquet",
        lambda t: t.set_column(
            t.column_names.index("task_index"), "task_index", pa.array([9] * len(t))
        ),
        ["episode 0", "task_index 9"],
    ),
    (
        "v2.1",
        "data/chunk-000/episode_000000.parquet",
        lambda t: t.set_column(t.column_names.index("action"), "action", pa.nulls(len(t))),
        ["episode 0", "'action'", "5 nulls"],
    ),
    (
        "v2.1",
        "data/chunk-000/episode_000000.parquet",
        lambda t: t.set_column(t.column_names.index("index"), "index", pa.array([[1, 2]] * len(t))),
        ["episode 0", "'index'"],
    ),
]


@pytest.mark.parametrize(("version", "name", "how", "words"), FAULTS)
def test_rows_files_that_are_refused(
    copy: Callable[[str], Path],
    version: str,
    name: str,
    how: Callable[[pa.Table], pa.Table],
    words: list[Any],
) -> None:
    root = copy(version)
    change(root / name, how)
    episode, *values = words
    with refused(*values, where=f"{Path(name).name} ({episode})"):
        take(rows_of(root))


def test_rows_a_bad_episode_leaves_the_others_of_its_file(copy: Callable[[str], Path]) -> None:
    root = copy("v3.0")
    change(root / "data/chunk-000/file-000.parquet", lambda table: table.slice(1))
    rows = rows_of(root, ("note",))
    zero = np.zeros(1, np.int64)
    assert rows.take(np.asarray([1]), {"note": zero})["note"] == ["episode 2, frame 0 é"]
    with refused("episode 0", "length 5", "4 rows", where="(episode 0)"):
        rows.take(np.asarray([0]), {"note": zero})


@pytest.mark.parametrize("said", [6, 8])
def test_rows_refuses_wrong_lengths(copy: Callable[[str], Path], said: int) -> None:
    root = copy("v2.1")
    lines = (root / "meta/episodes.jsonl").read_text().replace('"length": 7', f'"length": {said}')
    (root / "meta/episodes.jsonl").write_text(lines)
    with refused(f"length {said}", "7 rows", where="episode_000003.parquet (episode 3)"):
        take(rows_of(root))


def test_rows_index_columns_that_are_not_declared(copy: Callable[[str], Path]) -> None:
    """They come in the usual dtypes, however they are stored."""
    root = copy("v3.0")
    keys = ("index", "episode_index", "frame_index", "task_index", "timestamp")
    edit_json(root / "meta/info.json", lambda info: [info["features"].pop(key) for key in keys])

    def doubles(table: pa.Table) -> pa.Table:
        return table.cast(
            pa.schema(
                [pa.field(f.name, pa.float64()) if f.name in keys else f for f in table.schema]
            )
        )

    for path in root.glob("data/chunk-*/*.parquet"):
        change(path, doubles)
    got = take(rows_of(root), keys)
    assert [str(got[key].dtype) for key in keys] == ["int64"] * 4 + ["float32"]
    assert got["index"].tolist() == [0, 5, 8, 15]


def test_rows_missing_file(copy: Callable[[str], Path]) -> None:
    root = copy("v3.0")
    (root / "data/chunk-000/file-001.parquet").unlink()
    with refused(where="file-001.parquet (episodes 3 to 5)", kind=MissingFileError):
        take(rows_of(root))


def test_rows_a_flipped_value_is_noticed_by_its_checksum(copy: Callable[[str], Path]) -> None:
    """The file stays a valid one with another number in it; only the checksum of the page
    differs.
    """
    root = copy("v2.1")
    path = root / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    value = table["next.reward"][3].as_py()
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    for checked in (True, False):
        pq.write_table(table, path, write_page_checksum=checked, **options)
        damaged = bytearray(path.read_bytes())
        at = damaged.index(np.float32(value).tobytes())
        damaged[at] ^= 1
        path.write_bytes(damaged)
        rows = rows_of(root, ("next.reward",))
        if checked:
            with refused(where="episode_000000.parquet (episode 0)"):
                take(rows, ("next.reward",))
        else:  # the control: without checksums nothing can notice
            got = rows.take(np.zeros(1, np.int64), {"next.reward": np.full(1, 3)})["next.reward"]
            assert got[0] != np.float32(value)


def test_rows_no_copy_is_written(
    written: dict[str, tuple[Path, Truth]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading leaves no file behind, in the dataset or where caches are usually put."""
    root = written["v3.0"][0]
    before = sorted((p, p.stat().st_mtime_ns) for p in root.rglob("*"))
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    take(rows_of(root))
    assert list(tmp_path.iterdir()) == []
    assert sorted((p, p.stat().st_mtime_ns) for p in root.rglob("*")) == before
