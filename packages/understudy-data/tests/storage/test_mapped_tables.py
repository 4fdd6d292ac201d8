"""Tables of large datasets: one mapped file per host, never a wrong one, and private tables where
none can be.
"""

import errno
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy_base import DRAFT_SUFFIX
from understudy_base.testing.refusals import warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format import layouts
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import EpisodeTable
from understudy_data.storage import mapped_tables, table_file
from understudy_data.testing import mapped_child
from understudy_data.testing.caches import own_cache
from understudy_data.testing.datasets import Spec, edit_json, write_dataset

LENGTHS = (6, 9, 4, 7)
CAMERAS = ("observation.images.top", "observation.images.wrist")


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files; a table of two rows counts as large."""
    return own_cache(tmp_path, monkeypatch) / "tables"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", Spec(lengths=LENGTHS, cameras=CAMERAS))
    return tmp_path / "set"


def files(folder: Path) -> list[str]:
    return (
        sorted(path.name for path in folder.iterdir() if path.suffix == "")
        if folder.is_dir()
        else []
    )


def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> EpisodeTable:
        raise AssertionError("it was read again")

    monkeypatch.setattr(layouts, "read_episodes", read)


def arrays_of(value: Any) -> dict[str, np.ndarray]:
    """All arrays of an episode table, by path."""
    if isinstance(value, np.ndarray):
        return {"": value}
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return {
        f"{key}.{name}": array
        for key, one in inner.items()
        for name, array in arrays_of(one).items()
    }


def same_table(one: EpisodeTable, two: EpisodeTable) -> None:
    first = arrays_of(one)
    second = arrays_of(two)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        assert np.array_equal(array, second[name]), name
    assert one.own_files == two.own_files
    assert one.data.template == two.data.template
    assert {k: (v.files.key, v.files.template) for k, v in one.videos.items()} == {
        k: (v.files.key, v.files.template) for k, v in two.videos.items()
    }


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_second_catalog_maps_the_table_of_the_first(
    version: str, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / version
    write_dataset(root, Spec(version=version, lengths=LENGTHS, cameras=CAMERAS, drift_s=0.2))
    if version == "v2.1":
        edit_json(root / "meta/info.json", lambda info: info.update(chunks_size="many"))
    with monkeypatch.context() as plain:
        plain.setattr(mapped_tables, "MIN_ROWS", 1000)
        private = Catalog.open(root)
        assert files(tables) == []
    first = Catalog.open(root)
    assert len(files(tables)) == 1
    unreadable(monkeypatch)
    second = Catalog.open(root)
    for catalog in (first, second):
        same_table(private.episodes, catalog.episodes)
        assert catalog.oddities == private.oddities
        assert not catalog.episodes.lengths.flags.writeable
    assert private.oddities, "these are kept, too"
    assert set(files(tables)) <= mapped_child.maps(tables)


def test_other_process_maps_the_table(root: Path, tables: Path) -> None:
    Catalog.open(root)
    there = files(tables)
    script = [sys.executable, mapped_child.__file__, str(root), str(tables)]
    said = subprocess.run(
        script, capture_output=True, text=True, timeout=120, check=True
    ).stdout.split()
    assert said == [*map(str, LENGTHS), *there]


def test_mapped_table_gives_the_same_samples(
    root: Path, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = {"action": [-0.1, 0, 0.1]}
    shared = EpisodeDataset(root, windows, exclude_episodes=[1])
    assert len(files(tables)) == 2
    monkeypatch.setattr(mapped_tables, "MIN_ROWS", 1000)
    plain = EpisodeDataset(root, windows, exclude_episodes=[1])
    assert len(shared) == len(plain)
    for index in range(len(plain)):
        one = shared[index]
        two = plain[index]
        assert one.keys() == two.keys()
        assert all(
            torch.equal(one[k], two[k]) if torch.is_tensor(one[k]) else one[k] == two[k]
            for k in one
        )


def test_changed_dataset_gets_a_new_table(root: Path, tables: Path, tmp_path: Path) -> None:
    before = Catalog.open(root).episodes
    write_dataset(tmp_path / "other", Spec(lengths=(6, 9, 7, 4), cameras=CAMERAS))
    for path in (tmp_path / "other/meta").rglob("*.parquet"):
        place = root / "meta" / path.relative_to(tmp_path / "other/meta")
        times = place.stat().st_atime_ns, place.stat().st_mtime_ns
        place.write_bytes(path.read_bytes())
        os.utime(place, ns=times)  # as a tool that sets times back
    assert Catalog.open(root).episodes.lengths.tolist() == [6, 9, 7, 4]
    assert before.lengths.tolist() == list(LENGTHS), "a mapped table stays"
    edit_json(
        root / "meta/info.json",
        lambda info: info.update(data_path=info["data_path"][:-8] + "x.parquet"),
    )
    assert Catalog.open(root).episodes.data.template.endswith("x.parquet")


def test_kill_while_writing_leaves_no_table(
    root: Path, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for function in ("fsync", "replace"):
        child = os.fork()
        if child == 0:
            setattr(os, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            Catalog.open(root)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert files(tables) == []
    drafts = list(tables.glob(f".*{DRAFT_SUFFIX}"))
    assert len(drafts) == 2
    for draft in drafts:
        os.utime(draft, (time.time() - 1e5,) * 2)
    assert Catalog.open(root).episodes.lengths.tolist() == list(LENGTHS)
    assert len(files(tables)) == 1
    assert list(tables.glob(f".*{DRAFT_SUFFIX}")) == []


@pytest.mark.parametrize("place", [0, 30, 60, None])
def test_damaged_table_is_replaced(place: int | None, root: Path, tables: Path) -> None:
    Catalog.open(root)
    (path,) = (tables / name for name in files(tables))
    whole = bytearray(path.read_bytes())
    for damaged in (bytes(whole[: len(whole) // 2]), b"", bytes(whole) + b"x"):
        path.write_bytes(damaged)
        assert Catalog.open(root).episodes.lengths.tolist() == list(LENGTHS)
        assert path.read_bytes() == whole
    lengths = whole.index(np.array(LENGTHS, np.int64).tobytes())
    whole[lengths if place is None else place] ^= 1
    path.unlink()
    path.write_bytes(whole)
    assert Catalog.open(root).episodes.lengths.tolist() == list(LENGTHS)


def test_unwritable_folder_gives_private_tables(
    root: Path, tables: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with warned(os.strerror(errno.ENOSPC), "understudy/tables"):
            assert Catalog.open(root).episodes.lengths.tolist() == list(LENGTHS)
        assert [path for path in tables.iterdir() if path.suffix != ".lock"] == []
    with monkeypatch.context() as user, warnings.catch_warnings():
        warnings.simplefilter("error")
        user.setattr(os, "geteuid", lambda: 12345)  # not the owner of the folders
        assert Catalog.open(root).episodes.lengths.tolist() == list(LENGTHS)
    assert files(tables) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    assert Catalog.open(root).episodes.lengths.tolist() == list(LENGTHS)


@pytest.mark.parametrize(
    "made_before", [False, True], ids=["new folder", "folder that its group can write"]
)
def test_a_table_is_found_again_with_the_umask_of_a_group(made_before: bool, tables: Path) -> None:
    made = []

    def make() -> tuple[dict[str, np.ndarray], bool]:
        made.append(0)
        return {"a": np.arange(9)}, True

    mask = os.umask(0o002)
    try:
        if made_before:
            tables.mkdir(parents=True, mode=0o775)
        for _ in range(3):
            found = mapped_tables.once_per_host("ab" * 20, make)
            assert mapped_tables.is_mapped(found["a"])
    finally:
        os.umask(mask)
    assert len(made) == 1
    assert len(files(tables)) == 1


def test_a_table_that_others_can_write_is_made_again(tables: Path) -> None:
    made = []

    def make() -> tuple[dict[str, np.ndarray], bool]:
        made.append(np.arange(9))
        return {"a": made[-1]}, True

    def read() -> int:
        assert mapped_tables.once_per_host("ab" * 20, make)["a"].tolist() == list(range(9))
        return len(made)

    assert (read(), read()) == (1, 1)
    for mode, count in ((0o666, 2), (0o620, 3), (0o644, 3)):
        (path,) = map(tables.joinpath, files(tables))
        path.chmod(mode)
        assert read() == count


def test_least_recently_used_tables_are_removed(
    tmp_path: Path, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tables, "BUDGET", 20_000)
    kept = []
    for number in range(4):
        kept.append(mapped_tables.share_arrays({"a": np.full(1000, number)})["a"])
        (newest,) = (
            path
            for path in map(tables.joinpath, files(tables))
            if path.stat().st_mtime > time.time() - 60
        )
        os.utime(newest, (time.time() - 1000 + number,) * 2)
    assert 1 <= len(files(tables)) <= 2
    assert [int(one[0]) for one in kept] == [0, 1, 2, 3], "a mapped table stays"


def test_pickle_for_a_child_process_refers_to_the_file(root: Path, tables: Path) -> None:
    data = EpisodeDataset(root, keys=["action"])
    mine = set(files(tables))
    assert len(mine) == 2
    whole = pickle.dumps(data)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=mapped_child.answer, args=(theirs, data, tables))
    process.start()
    assert ours.poll(120)
    found, lengths, segments, _ = ours.recv()
    process.join()
    assert found == mine
    assert lengths.tolist() == list(LENGTHS)
    assert np.array_equal(segments, data.segments)
    for path in tables.iterdir():
        path.unlink()
    again = pickle.loads(whole)
    assert np.array_equal(again.segments, data.segments)
    same_table(again.catalog.episodes, data.catalog.episodes)
    assert torch.equal(again[5]["action"], data[5]["action"])


def double(array: np.ndarray, factor: int = 2) -> np.ndarray:
    return array * factor


def test_derived_tables_follow_their_inputs(tables: Path) -> None:
    made: list[int] = []

    def derived(array: np.ndarray, factor: int = 2) -> np.ndarray:
        def make() -> np.ndarray:
            made.append(factor)
            return double(array, factor)

        result = mapped_tables.share(make, array, factor)
        assert result.tolist() == (array * factor).tolist()
        return result

    numbers = np.arange(9)
    first = derived(numbers)
    assert derived(numbers.copy()) is not first
    assert made == [2], "equal content is the same input"
    derived(numbers, 3)
    derived(numbers + 1)
    derived(numbers.astype(np.int32))
    assert made == [2, 3, 2, 2]
    second = derived(first)
    assert derived(derived(numbers)).tolist() == second.tolist()
    assert len(made) == 5, "a mapped input is known by its place"
    derived(first[1:])
    derived(first[::2])
    derived(second)
    assert len(made) == 8, "another place is another input"
    with pytest.raises(TypeError):
        mapped_tables.share(lambda: 0, numbers, object())


def test_small_and_quick_results_have_no_file(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tables, "_LARGE", 1000)
    monkeypatch.setattr(mapped_tables, "_SLOW", 100.0)
    assert mapped_tables.share(lambda: 7, np.arange(9)) == 7
    assert list(tables.iterdir()) == []
    monkeypatch.setattr(mapped_tables, "_SLOW", -1.0)
    assert mapped_tables.share(lambda: 7, np.arange(9)) == 7
    assert len(files(tables)) == 1


def test_large_file_is_compared_with_its_checksums_once(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_tables, "_CHECKED_ONCE", 1000)
    summed: list[int] = []
    checksum = table_file.zlib.crc32

    def crc32(data: Any) -> int:
        summed.append(memoryview(data).nbytes)
        return checksum(data)

    monkeypatch.setattr(table_file.zlib, "crc32", crc32)

    def read() -> tuple[bool, bool]:
        """Whether the table was made, and whether its content was compared."""
        made = []

        def make() -> tuple[np.ndarray, bool]:
            made.append(1)
            return np.arange(1000), True

        summed.clear()
        assert mapped_tables.once_per_host("cd" * 20, make).tolist() == list(range(1000))
        return bool(made), 8000 in summed

    assert read() == (True, True)
    assert read() == (False, False)
    (path,) = map(tables.joinpath, files(tables))
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1))  # as after any change
    assert read() == (False, True)
    assert read() == (False, False)
    whole = bytearray(path.read_bytes())
    whole[-100] ^= 1
    path.write_bytes(whole)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 2))
    assert read() == (True, True)
    with monkeypatch.context() as other:
        other.setattr(mapped_tables, "_boot", lambda: "after another start of the host")
        assert read() == (False, True)
        other.setattr(mapped_tables, "_boot", lambda: "")
        assert read() == read() == (False, True)


def test_eight_starts_at_once_make_one_table(root: Path, tables: Path, tmp_path: Path) -> None:
    write = mapped_tables.write_table
    journal = tmp_path / "made"

    def noted(path: Path, table: Any, durable: bool) -> None:
        file = os.open(journal, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(file, f"{path.name}\n".encode())
        write(path, table, durable)

    ready, go = os.pipe()
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                mapped_tables.write_table = noted
                os.close(go)
                os.read(ready, 1)  # until the parent has started all
                data = EpisodeDataset(root, keys=["action"], exclude_episodes=[1])
                assert data.locate([6])[0].tolist() == [2]
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(ready)
    os.close(go)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    made = journal.read_text().split()
    assert len(made) == len(set(made)) == len(files(tables)) > 2


def _doubled(values: np.ndarray, calls: list[int]) -> tuple[np.ndarray, int]:
    calls.append(1)
    return values * 2, len(values)


def test_equal_small_inputs_share_one_read_only_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_tables, "MIN_ROWS", 100)
    calls = list[int]()

    def share(values: np.ndarray) -> tuple[np.ndarray, int]:
        return mapped_tables.share(partial(_doubled, values, calls), values, "equal small inputs")

    first = share(np.arange(3))
    again = share(np.arange(3))
    assert again is first
    assert len(calls) == 1
    assert not first[0].flags.writeable
    for other in (np.arange(4), np.arange(3, dtype=np.int32), np.arange(3)[None]):
        doubled, count = share(other)
        assert np.array_equal(doubled, other * 2)
        assert (doubled.dtype, count) == (other.dtype, len(other))
    assert len(calls) == 4
