"""NaN and null in columns of whole numbers: the cause is named, and only episodes that lack a
number are unusable.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import DatasetError
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, edit_column, write_dataset
from understudy_kit import main
from understudy_tools.check.examine import check_dataset

CAMERA = "observation.images.top"
KINDS = {"nan": pa.float64(), "null": pa.int64()}


def made(root: Path, **more: Any) -> Path:
    lengths = (6, 6, 6, 6)
    write_dataset(
        root,
        Spec(lengths=lengths, foreign=False, per_data_file=4, cameras=(CAMERA, "other"), **more),
    )
    return root


def lose(path: Path, name: str, entries: Callable[[np.ndarray], np.ndarray], kind: str) -> None:
    """Write a column as pandas does where some numbers are absent (NaN), or with nulls."""

    def without(values: np.ndarray) -> list[float | None]:
        gone = entries(np.arange(len(values)))
        return [None if lost else value for lost, value in zip(gone.tolist(), values.tolist())]

    def as_nan(values: np.ndarray) -> np.ndarray:
        return np.where(entries(np.arange(len(values))), np.nan, values)

    edit_column(path, name, as_nan if kind == "nan" else without, KINDS[kind])


def episodes_file(root: Path) -> Path:
    """Return the file of the last episode, which is the last one in it."""
    return max((root / "meta/episodes").rglob("*.parquet"), key=lambda path: max(ids_of(path)))


def ids_of(path: Path) -> list[int]:
    return list(pq.read_table(path)["episode_index"].to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["chunk_index", "file_index"])
@pytest.mark.parametrize("whose", [f"videos/{CAMERA}", "data"])
def test_absent_place_of_an_episode(tmp_path: Path, whose: str, what: str, kind: str) -> None:
    root = made(tmp_path / "data")
    place = ids_of(episodes_file(root)).index(3)
    lose(episodes_file(root), f"{whose}/{what}", lambda entry: entry == place, kind)
    data = EpisodeArrays(root)
    data.sample(0, 0)
    with pytest.raises(DatasetError) as error:
        data.sample(3, 0)
    assert "episode 3" in error.value.what
    assert check_dataset(root).bad_episodes == (3,)
    assert main(["edit", str(root), str(tmp_path / "out")]) == 2
    assert main(["edit", str(root), str(tmp_path / "out"), "--exclude-episodes", "3"]) == 0
    assert check_dataset(tmp_path / "out").is_sound
    if whose != "data":
        EpisodeArrays(root, keys=["action", "other"]).sample(3, 0)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("key", ["task_index", "frame_index", "index", "episode_index", "deed"])
def test_absent_number_in_rows(tmp_path: Path, key: str, version: str, kind: str) -> None:
    root = made(tmp_path / "data", version=version, chunks_size=1000)
    if key == "deed":
        info = root / "meta/info.json"
        info.write_text(
            info.read_text().replace(
                '"features": {', '"features": {"deed": {"dtype": "int64", "shape": [1]},'
            )
        )
        for path in (root / "data").rglob("*.parquet"):
            table = pq.read_table(path)
            pq.write_table(table.append_column("deed", pa.array(range(len(table)))), path)
    packed = version == "v3.0"
    path = root / (
        "data/chunk-000/file-000.parquet" if packed else "data/chunk-000/episode_000003.parquet"
    )
    lose(path, key, lambda entry: entry == (20 if packed else 2), kind)
    data = EpisodeArrays(root)
    data.sample(0, 0)
    data.sample(2, 0)
    with pytest.raises(DatasetError) as error:
        data.sample(3, 0)
    assert f"{key!r}" in error.value.what
    report = check_dataset(root)
    assert report.bad_episodes == (3,)
    finding = next(f for f in report.findings if f.rule == "files.unreadable")
    assert finding.place.column == key
    assert main(["edit", str(root), str(tmp_path / "out"), "--skip-bad"]) == 1
    assert Catalog.open(tmp_path / "out").num_episodes == 3


@pytest.mark.parametrize("kind", KINDS)
def test_absent_index_of_a_task(tmp_path: Path, kind: str) -> None:
    root = made(tmp_path / "data")
    lose(root / "meta/tasks.parquet", "task_index", lambda entry: entry == 2, kind)
    catalog = Catalog.open(root)
    assert catalog.tasks == ("lift the red block", "push the blue block")
    assert any("has no task_index" in line for line in catalog.oddities)
    assert EpisodeArrays(root).sample(0, 0)["task"] == "lift the red block"


def test_absent_number_in_json_lines_is_that_of_a_line(tmp_path: Path) -> None:
    root = made(tmp_path / "data", version="v2.1", chunks_size=1000)
    path = root / "meta/episodes.jsonl"
    path.write_text(path.read_text().replace('"length": 6', '"length": 6.0'))
    assert Catalog.open(root).episodes.lengths.tolist() == [6] * 4
    path.write_text(path.read_text().replace('"length": 6.0', '"length": NaN', 1))
    with pytest.raises(DatasetError) as error:
        Catalog.open(root)
    assert "'length'" in error.value.what


def test_absent_numbers_leave_whole_and_broken_ones(tmp_path: Path) -> None:
    root = made(tmp_path / "data")
    edit_column(episodes_file(root), "length", lambda values: values, pa.float64())
    assert Catalog.open(root).num_frames == 24
    edit_column(episodes_file(root), "length", lambda values: values + 0.5)
    with pytest.raises(DatasetError) as error:
        Catalog.open(root)
    assert "'length' is 6.5" in error.value.what
