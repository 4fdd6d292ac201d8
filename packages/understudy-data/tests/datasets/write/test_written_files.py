"""Files of a dataset, written one by one: a valid dataset, and statistics of its parts together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import FileTable
from understudy_data.datasets.format.features import DEFAULTS, Feature
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.write.statistics import DatasetStatistics
from understudy_data.datasets.write.written_files import DatasetFiles

FEATURES = {"action": Feature("action", "float32", (2,)), **DEFAULTS}
LENGTHS = (5, 3)


def columns(episode: int, first: int) -> dict[str, Any]:
    frames = np.arange(LENGTHS[episode]).reshape(-1, 1)
    return {
        "action": np.random.default_rng(episode).normal(size=(len(frames), 2)).astype(np.float32),
        "timestamp": (frames / 10).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full_like(frames, episode),
        "index": first + frames,
        "task_index": np.zeros_like(frames),
    }


def write(root: Path) -> DatasetStatistics:
    files = DatasetFiles(root, FEATURES)
    statistics = DatasetStatistics(FEATURES, sum(LENGTHS))
    episodes = [columns(0, 0), columns(1, LENGTHS[0])]
    files.write_data(0, episodes)
    rows = []
    first = 0
    for number, length in enumerate(LENGTHS):
        measured = statistics.measure(episodes[number], first, {})
        statistics.add(measured, length)
        rows.append(files.episode_row(number, ["go"], length, first, 0, measured))
        first += length
    files.write_episodes(0, files.episode_table(rows), {}, {})
    files.write_tasks(["go"])
    files.write_json("meta/stats.json", statistics.json())
    entries = {
        key: {"dtype": feature.dtype, "shape": list(feature.shape), "names": None}
        for key, feature in FEATURES.items()
    }
    counts = {"episodes": 2, "frames": 8, "tasks": 1, "data_file_mb": 1, "video_file_mb": 1}
    files.write_info(entries, fps=10, robot_type=None, further={"note": "x"}, **counts)
    return statistics


def test_the_files_are_a_dataset(tmp_path: Path) -> None:
    write(tmp_path / "set")
    catalog = Catalog.open(tmp_path / "set")
    assert catalog.report() == []
    assert catalog.info["note"] == "x"
    assert catalog.episodes.lengths.tolist() == list(LENGTHS)
    read = Rows(catalog, ["action"], cache_bytes=0).span(1, "action", 0, 3)
    assert np.array_equal(read, columns(1, 5)["action"])
    rows = np.concatenate([columns(number, 0)["action"] for number in (0, 1)])
    assert catalog.stats["action"]["mean"] == pytest.approx(rows.mean(0, np.float64))


def test_statistics_of_two_parts_are_those_of_all_rows(tmp_path: Path) -> None:
    whole = write(tmp_path / "set").json()
    halves = []
    for number, length in enumerate(LENGTHS):
        part = DatasetStatistics(FEATURES, length)
        part.add(part.measure(columns(number, 5 * number), 5 * number, {}), length)
        halves.append(part.json())
    old = {key: {n: np.asarray(v) for n, v in entry.items()} for key, entry in halves[0].items()}
    joined = DatasetFiles.join_statistics(FEATURES, old, halves[1])
    for name in ("min", "max", "mean", "std", "count"):
        assert joined["action"][name] == pytest.approx(whole["action"][name])
    assert "q50" not in joined["action"]  # quantiles of parts give none


def test_numbers_of_files_pass_a_chunk() -> None:
    path = Path("data/chunk-000/file-998.parquet")
    assert DatasetFiles.renumbered(path, 0) == path
    assert DatasetFiles.renumbered(path, 3) == Path("data/chunk-001/file-001.parquet")
    table = FileTable("", np.array([0, 1]), np.array([998, 1]))
    assert DatasetFiles.numbers(table).tolist() == [998, 1001]
