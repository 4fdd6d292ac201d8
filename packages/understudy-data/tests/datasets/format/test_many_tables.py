"""Tables of many small datasets: kept in groups, never those of another version, and parsed where
none can be kept.
"""

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import many_sources
from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.format import layouts
from understudy_data.datasets.format.catalog import Catalog, Opening
from understudy_data.datasets.format.catalogs import read_tables_of_many
from understudy_data.testing.datasets import Spec, write_dataset

SOURCES = 130
TASKS = "meta/tasks.parquet"


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg/understudy/tables"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small datasets, of rows alone and with videos."""
    folder = tmp_path_factory.mktemp("many")
    many_sources.write(folder / "sets", SOURCES, with_videos=True)
    for version in ("v2.0", "v2.1", "v3.0"):
        cameras = ("observation.images.top", "observation.images.wrist")
        write_dataset(
            folder / "sets" / version, Spec(lengths=(6, 9), version=version, cameras=cameras)
        )
    return folder / "sets"


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A copy of the datasets that the test may change."""
    shutil.copytree(written, tmp_path / "sets")
    return tmp_path / "sets"


def roots(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


def opened(folder: Path) -> list[Catalog]:
    openings = [Opening(root) for root in roots(folder)]
    read_tables_of_many(openings)
    return [opening.finish() for opening in openings]


def content(value: Any) -> Any:
    """Content of an object, with arrays as dtype and numbers."""
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: content(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map(content, value))
    if type(value).__module__.startswith("understudy_data.datasets.format"):
        return type(value), content(
            {name: item for name, item in vars(value).items() if name != "files"}
        )
    return value


def same(folder: Path) -> None:
    """The catalogs are those of datasets that are opened one by one: every third of each kind."""
    pairs = list(zip(roots(folder), opened(folder), strict=True))
    for root, catalog in [*pairs[:-3:3], *pairs[-3:]]:
        alone = Catalog.open(root)
        assert content(catalog) == content(alone)
        assert catalog.files.version_read == alone.files.version_read


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Roots of the datasets whose tables are parsed."""
    read = layouts.read_episodes
    seen = list[str]()

    def counted(files: Any, *arguments: Any) -> Any:
        seen.append(files.root)
        return read(files, *arguments)

    monkeypatch.setattr(layouts, "read_episodes", counted)
    return seen


def test_a_second_opening_parses_no_table(written: Path, parsed: list[str]) -> None:
    opened(written)
    assert sorted(parsed) == [str(root) for root in roots(written)]
    parsed.clear()
    opened(written)
    assert parsed == []
    same(written)


def change_task(root: Path) -> None:
    """Write another text of equal size in place, and set the times back."""
    path = root / TASKS
    before = path.stat()
    pq.write_table(pa.table({"task_index": [0], "task": ["tusk 0"]}), path)
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(root: Path) -> None:
    """Put a dataset of equal sizes into the place of another one."""
    other = root.parent / "source-00006"
    assert (other / TASKS).stat().st_size == (root / TASKS).stat().st_size
    other.rename(root.parent / "moved")
    root.rename(other)
    (root.parent / "moved").rename(root)


def more_episodes(root: Path) -> None:
    """Add a file to the table of episodes, which its listing shows alone."""
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path).slice(0, 1)
    column = table.column_names.index("episode_index")
    table = table.set_column(column, "episode_index", pa.array([7], pa.int64()))
    pq.write_table(table, path.with_name("file-001.parquet"))


@pytest.mark.parametrize("change", [change_task, swap, more_episodes])
def test_a_changed_dataset_is_read_again(
    change: Callable[[Path], None], folder: Path, parsed: list[str]
) -> None:
    before = opened(folder)
    parsed.clear()
    change(folder / "source-00000")
    after = opened(folder)
    assert str(folder / "source-00000") in parsed
    assert len(parsed) < len(before)
    assert content(after[0]) != content(before[0])
    same(folder)


def test_a_killed_writer_leaves_no_tables(written: Path, tables: Path, parsed: list[str]) -> None:
    child = os.fork()
    if child == 0:
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        opened(written)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert not [
        path for path in tables.iterdir() if path.suffix == "" and not path.name.startswith(".")
    ]
    same(written)
    parsed.clear()
    opened(written)
    assert parsed == []


@pytest.mark.parametrize("damage", ["cut", "empty", "first", "middle", "last"])
def test_damaged_tables_are_made_again(damage: str, written: Path, tables: Path) -> None:
    opened(written)
    for path in (path for path in tables.iterdir() if path.suffix == ""):
        whole = bytearray(path.read_bytes())
        if damage in ("cut", "empty"):
            path.write_bytes(whole[: len(whole) // 2 if damage == "cut" else 0])
            continue
        whole[{"first": 0, "middle": len(whole) // 2, "last": -1}[damage]] ^= 1
        path.unlink()
        path.write_bytes(whole)
    same(written)


def test_datasets_open_where_nothing_can_be_kept(
    written: Path, tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", full)
        with warned(os.strerror(errno.ENOSPC), "understudy/tables"):
            same(written)
    with monkeypatch.context() as user:
        # as of a folder that is mounted for reading alone
        user.setattr(os, "access", lambda *_: False)
        same(written)
    assert not [
        path for path in tables.iterdir() if path.suffix == "" and not path.name.startswith(".")
    ]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    same(written)


def test_one_broken_dataset_leaves_the_others(folder: Path, parsed: list[str]) -> None:
    sound = (folder / "source-00000" / TASKS).read_bytes()
    (folder / "source-00000" / TASKS).write_bytes(b"PAR1")
    openings = [Opening(root) for root in roots(folder)]
    read_tables_of_many(openings)
    assert [opening.tables is None for opening in openings] == [
        True,
        *[False] * (len(openings) - 1),
    ]
    with refused(where=f"source-00000/{TASKS}"):
        openings[0].finish()
    (folder / "source-00000" / TASKS).write_bytes(sound)
    same(folder)
    parsed.clear()
    opened(folder)
    assert parsed == []


def test_info_that_changes_behind_its_reading_is_not_kept_with_the_tables(folder: Path) -> None:
    info = folder / "v3.0/meta/info.json"
    text = info.read_text()
    content_of_info = json.loads(text)
    del content_of_info["features"]["observation.images.wrist"]
    info.write_text(json.dumps(content_of_info))
    openings = [Opening(root) for root in roots(folder)]
    info.write_text(text)
    read_tables_of_many(openings)
    for opening in openings:
        opening.finish()
    same(folder)
