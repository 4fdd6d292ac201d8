"""Columns decoded once per host: the same samples as from memory, never those of another file."""

import errno
import pickle
import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.read import row_tables
from understudy_data.datasets.read.rows import Rows
from understudy_data.load.loader import Loader
from understudy_data.testing.caches import own_cache
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_data.testing.mapped_child import maps

SPEC = Spec(
    lengths=(5, 3, 7, 4, 6), ids=(0, 2, 3, 5, 6), cameras=(), rich=True, late_timestamps=True
)
WINDOWS = {
    "action": [-0.1, 0.0, 0.2],
    "frame_index": [0.0, 0.1],
    "episode_index": [0.0, 0.1],
    "index": [0.0, 0.1],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the mapped files; every data file has one."""
    return own_cache(tmp_path, monkeypatch) / "rows"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "set", SPEC)
    return tmp_path / "set"


def whole(data: EpisodeDataset) -> dict[str, Any]:
    """All samples of a dataset, in a batch whose episodes alternate."""
    episodes, frames = data.locate(np.random.default_rng(0).permutation(len(data)))
    return data.batch(episodes, frames)


def in_memory(root: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> dict[str, Any]:
    """All samples, with the columns in memory."""
    with monkeypatch.context() as small:
        small.setattr(row_tables, "LEAST_DATASET", 1 << 40)
        return whole(EpisodeDataset(root, **options))


def same(one: dict[str, Any], two: dict[str, Any]) -> None:
    assert list(one) == list(two)
    for key, value in one.items():
        if torch.is_tensor(value):
            assert value.dtype == two[key].dtype, key
            assert torch.equal(torch.nan_to_num(value), torch.nan_to_num(two[key])), key
        else:
            assert value == two[key], key


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("a data file was decoded")

    monkeypatch.setattr(Rows, "read_file", read)


def tables(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == "") if folder.is_dir() else []


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("few", [False, True], ids=["all mapped", "one at a time"])
def test_mapped_columns_give_the_samples_of_memory(
    version: str, few: bool, tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(
        tmp_path / "set", Spec(**{**vars(SPEC), "version": version, "nan_row": True, "extra": True})
    )
    monkeypatch.setattr("understudy_data.datasets.read.rows.MAPPED_FILES", 1 if few else 64)
    plain = in_memory(tmp_path / "set", monkeypatch, delta_timestamps=WINDOWS)
    assert tables(folder) == []
    data = EpisodeDataset(tmp_path / "set", WINDOWS)
    same(whole(data), plain)
    assert set(maps(folder)) <= {path.name for path in tables(folder)}
    assert len(tables(folder)) == len(data.catalog.episodes.data)
    forbid_reading(monkeypatch)
    again = EpisodeDataset(tmp_path / "set", WINDOWS)
    same(whole(again), plain)
    same(whole(pickle.loads(pickle.dumps(again))), plain)
    assert again.notes == data.notes, "irregularities are told again"
    assert any("not finite" in note for note in again.notes)


def test_threads_decode_each_file_once(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    read = Rows.read_file

    def count(self: Rows, file: int) -> Any:
        decoded.append(file)
        return read(self, file)

    monkeypatch.setattr(Rows, "read_file", count)
    data = EpisodeDataset(root)
    data.keep_rows(0, 0, readers=3)
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: whole(data), range(8)))
    for batch in batches:
        same(batch, batches[0])
    assert sorted(decoded) == list(range(len(data.catalog.episodes.data)))


def test_another_process_maps_the_columns(root: Path, folder: Path) -> None:
    script = (
        "import sys; from understudy_data.datasets.read import row_tables\n"
        "from understudy_data.datasets.read.rows import Rows\n"
        "row_tables.LEAST_DATASET = row_tables.LEAST_FILE = 0\n"
        "if sys.argv[2] == 'no': Rows.read_file = None\n"
        "from understudy_data.datasets.dataset import EpisodeDataset\n"
        "data = EpisodeDataset(sys.argv[1]); print(float(data[3]['action'].sum()), "
        "float(data[20]['action'].sum()))"
    )
    said = []
    for may_read in ("yes", "no"):
        command = [sys.executable, "-c", script, str(root), may_read]
        said.append(
            subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
        )
    assert said[0] == said[1]


def test_a_changed_file_is_decoded_again(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(EpisodeDataset(root))
    before = tables(folder)
    path = sorted((root / "data").glob("chunk-*/file-*.parquet"))[0]
    stored = pq.read_table(path)
    place = stored.column_names.index("action")
    field = stored.schema.field("action")
    doubled = pa.array((np.stack(stored["action"].to_numpy()) * 2).tolist(), field.type)
    pq.write_table(stored.set_column(place, field, doubled), path)
    changed = whole(EpisodeDataset(root))
    same(changed, in_memory(root, monkeypatch))
    assert len(set(tables(folder)) - set(before)) == 1, "the other files stay as they are"


@pytest.mark.parametrize("change", ["rate", "keys", "lengths"])
def test_other_metadata_has_its_own_columns(
    change: str, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole(EpisodeDataset(root))
    before = len(tables(folder))
    options: dict[str, Any] = {"keys": ["action"]} if change == "keys" else {}
    if change == "rate":
        edit_json(root / "meta/info.json", lambda info: info.update(fps=20))
    if change == "lengths":
        path = root / "meta/episodes/chunk-000/file-000.parquet"
        stored = pq.read_table(path)
        lengths = stored["length"].to_pylist()
        lengths[0] -= 1
        place = stored.column_names.index("length")
        pq.write_table(stored.set_column(place, stored.schema.field("length"), [lengths]), path)
        with refused("length", "rows", where=f"{root}/data/chunk-000/file-000.parquet (episode 0)"):
            whole(EpisodeDataset(root))
        forbid_reading(monkeypatch)
        with refused(
            "length", "rows", where=f"{root}/data/chunk-000/file-000.parquet (episode 0)"
        ):  # the reason is kept, too
            whole(EpisodeDataset(root))
        return
    same(whole(EpisodeDataset(root, **options)), in_memory(root, monkeypatch, **options))
    assert len(tables(folder)) > before


@pytest.mark.parametrize("place", [0, 0.3, 0.6, 0.9])
def test_a_damaged_file_is_decoded_again(
    place: float, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = in_memory(root, monkeypatch)
    whole(EpisodeDataset(root))
    for path in tables(folder):
        content = bytearray(path.read_bytes())
        content[int(len(content) * place)] ^= 0xFF
        path.write_bytes(content)
    same(whole(EpisodeDataset(root)), plain)


def test_a_removed_cache_changes_nothing(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = in_memory(root, monkeypatch)
    data = EpisodeDataset(root)
    same(whole(data), plain)
    shutil.rmtree(folder)
    same(whole(data), plain)
    same(whole(EpisodeDataset(root)), plain)


def test_columns_for_which_the_disk_has_no_space_count_as_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = in_memory(root, monkeypatch)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("understudy_data.storage.mapped_tables.write_table", full)
    data = EpisodeDataset(root)
    with warned("table"):
        same(whole(data), plain)
    assert len(data._rows.files) > 0
    assert len(data._rows.mapped) == 0


def test_without_a_folder_the_columns_are_in_memory_and_a_loader_says_so(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = in_memory(root, monkeypatch)
    monkeypatch.setattr("understudy_data.storage.mapped_tables.table_folder", lambda *_: None)
    data = EpisodeDataset(root)
    same(whole(data), plain)
    with warned("XDG_CACHE_HOME"):
        loader = Loader(data, batch_size=4, num_threads=1, rank=0, world_size=1)
    with loader:
        assert loader.plan.rows[0] >= sum(file.nbytes for _, file in data._rows.files.items())
        next(loader)


def test_the_plan_names_mapped_columns_and_holds_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Loader(
            EpisodeDataset(root), batch_size=4, num_threads=1, rank=0, world_size=1
        ) as loader:
            mapped = loader.plan
            batch = next(loader)
        monkeypatch.setattr(row_tables, "LEAST_DATASET", 1 << 40)
        with Loader(
            EpisodeDataset(root), batch_size=4, num_threads=1, rank=0, world_size=1
        ) as loader:
            plain = loader.plan
            same(batch, next(loader))
    assert mapped.rows == (0,)
    assert plain.rows[0] > 0
    assert len(mapped.notes) == len(plain.notes) + 1
