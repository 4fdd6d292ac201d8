"""Language columns in edited datasets: kept to the bit, with times that count from the first frame
of a cut.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_tools.testing.edited import assert_equal_frames, edit, episode, segment

RECORDS: list[dict[str, Any]] = [
    {"style": "subtask", "content": "reach", "timestamp": 0.1},
    {"style": "subtask", "content": "grasp", "timestamp": 0.3},
    {"style": "plan", "content": "reach, then lift", "timestamp": 0.0},
    {"style": "subtask", "content": "lift", "timestamp": 0.7},
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of 12 and 8 frames at 10 fps, with records that hold for each whole episode."""
    root = tmp_path_factory.mktemp("source") / "v30"
    write_dataset(root, Spec("v3.0", lengths=(12, 8), cameras=(), foreign=False))
    for path in root.glob("data/**/*.parquet"):
        table = pq.read_table(path)
        pq.write_table(
            table.append_column("language_persistent", pa.array([RECORDS] * len(table))), path
        )
    entry = {"dtype": "language", "shape": [1], "names": None}
    edit_json(
        root / "meta/info.json", lambda info: info["features"].update(language_persistent=entry)
    )
    return root


def responses(root: Path, number: int, style: str) -> list[str]:
    data = EpisodeArrays(root, response=f"language_persistent:{style}")
    length = int(data.catalog.episodes.lengths[number])
    return list(data.batch(np.full(length, number), np.arange(length))["response"])


def test_language_records_of_whole_episodes_stay_to_the_bit(source: Path, tmp_path: Path) -> None:
    edit(source, tmp_path / "out")
    for number in range(2):
        assert_equal_frames(episode(tmp_path / "out", number), episode(source, number))
    stored = pq.read_schema(tmp_path / "out/data/chunk-000/file-000.parquet")
    assert stored.field("language_persistent").type == pa.array([RECORDS]).type
    types = json.loads(stored.metadata[b"huggingface"])["info"]["features"]["language_persistent"]
    assert types["_type"] == "List"
    assert types["feature"]["timestamp"] == {"dtype": "float64", "_type": "Value"}


@pytest.mark.parametrize("style", ["subtask", "plan"])
def test_language_records_of_a_cut_give_the_same_texts(
    style: str, source: Path, tmp_path: Path
) -> None:
    (tmp_path / "times.json").write_text(json.dumps({"0": [[4, 6], [6, 12]]}))
    segment(source, tmp_path / "out", times=str(tmp_path / "times.json"), unit="frames")
    whole = responses(source, 0, style)
    assert responses(tmp_path / "out", 0, style) == whole[4:6]
    assert responses(tmp_path / "out", 1, style) == whole[6:12]
    assert len(episode(tmp_path / "out", 0)["language_persistent"][0]) == 2


def test_segment_by_a_language_column(source: Path, tmp_path: Path) -> None:
    segment(source, tmp_path / "out", by="language_persistent:subtask", task_from_text=True)
    assert [set(episode(tmp_path / "out", number)["task"]) for number in range(3)] == [
        {"reach"},
        {"grasp"},
        {"lift"},
    ]
    edit(source, tmp_path / "column", subtasks_from="language_persistent:subtask")
    assert episode(tmp_path / "column", 1)["subtask"] == responses(source, 1, "subtask")
