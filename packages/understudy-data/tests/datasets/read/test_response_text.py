"""Responses of frames: from a text column, a language column, the instruction, or none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import DatasetError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.loader import Loader
from understudy_data.testing.datasets import Spec, edit_json, write_dataset

SPEC = Spec(lengths=(6, 9), per_data_file=2, cameras=(), foreign=False)
RECORDS = [
    {"style": "subtask", "content": "place", "timestamp": 0.4},
    {"style": "subtask", "content": "reach", "timestamp": 0.0},
    {"style": "plan", "content": "reach, then place", "timestamp": 0.2},
    {"style": "subtask", "content": None, "timestamp": 0.7000001},
]


def add_columns(root: Path, columns: dict[str, tuple[str, Callable[[int, int], Any]]]) -> None:
    """Add columns to every data file: name -> (dtype, function of episode and frame)."""
    for path in sorted(root.glob("data/**/*.parquet")):
        table = pq.read_table(path)
        at = list(zip(table["episode_index"].to_pylist(), table["frame_index"].to_pylist()))
        for name, (_, value) in columns.items():
            table = table.append_column(name, pa.array([value(*each) for each in at]))
        pq.write_table(table, path)
    added = {name: {"dtype": dtype, "shape": [1]} for name, (dtype, _) in columns.items()}
    edit_json(root / "meta/info.json", lambda info: info["features"].update(added))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data") / "d"
    write_dataset(root, SPEC)
    columns: dict[str, tuple[str, Callable[[int, int], Any]]] = {
        "subtask": ("string", lambda episode, frame: f"{episode} {frame}"),
        "language_persistent": ("language", lambda episode, frame: RECORDS),
        "language_events": (
            "language",
            lambda episode, frame: (
                [{"style": "vqa", "content": f"at {frame}"}] if frame == 2 else None
            ),
        ),
    }
    add_columns(root, columns)
    return root


def responses(root: Path, name: str | None) -> list[str]:
    data = EpisodeDataset(root, keys=["action"], response=name)
    batch = data.batch(np.array([0] * 3 + [1] * 9), np.array([5, 0, 1, *range(9)]))
    return list(batch["response"])


def test_a_text_column_gives_the_text_of_the_frame(root: Path) -> None:
    assert responses(root, "subtask") == [
        "0 5",
        "0 0",
        "0 1",
        *(f"1 {frame}" for frame in range(9)),
    ]


def test_a_language_column_gives_the_last_record_that_began(root: Path) -> None:
    expected = ["reach"] * 4 + ["place"] * 3 + ["", ""]
    assert responses(root, "language_persistent")[3:] == expected
    assert responses(root, "language_persistent:subtask")[3:] == expected
    assert responses(root, "language_persistent:plan")[3:] == [""] * 2 + ["reach, then place"] * 7
    assert responses(root, "language_events:vqa")[3:] == ["", "", "at 2", *[""] * 6]


def test_the_instruction_and_nothing(root: Path) -> None:
    data = EpisodeDataset(root, keys=["action"], response="task")
    batch = data.batch(np.array([0, 1]), np.array([0, 3]))
    assert batch["response"] == batch["task"]
    assert responses(root, "") == [""] * 12
    assert "response" not in EpisodeDataset(root, keys=["action"]).sample(0, 0)


def test_the_column_is_no_key_unless_it_is_named(root: Path) -> None:
    assert "subtask" not in EpisodeDataset(root, keys=["action"], response="subtask").sample(0, 0)
    assert (
        EpisodeDataset(root, keys=["subtask"], response="subtask").sample(0, 1)["subtask"] == "0 1"
    )


@pytest.mark.parametrize("name", ["sutask", "action", "subtask:plan", "task:plan"])
def test_a_column_without_text_is_refused_by_name(root: Path, name: str) -> None:
    with pytest.raises(DatasetError) as caught:
        EpisodeDataset(root, keys=["action"], response=name)
    assert repr(name.partition(":")[0]) in caught.value.what


def test_loaders_deliver_responses_of_some_sources(root: Path) -> None:
    parts = [
        EpisodeDataset(root, keys=["action"], response="subtask", name="one"),
        EpisodeDataset(root, keys=["action"], response="", name="two"),
    ]
    with Loader(parts, batch_size=8, seed=0, num_threads=2) as loader:
        seen = set()
        for _ in range(4):
            batch = next(loader)
            for row, text in enumerate(batch["response"]):
                frame = f"{int(batch['episode_index'][row])} {int(batch['frame_index'][row])}"
                assert text == (frame if batch["source"][row] == 0 else "")
                seen.add(int(batch["source"][row]))
    assert seen == {0, 1}
    with Loader(root, batch_size=4, seed=0, keys=["action"], response="task") as loader:
        assert len(next(loader)["response"]) == 4


def test_a_dataset_with_responses_pickles(root: Path) -> None:
    import pickle

    data = pickle.loads(pickle.dumps(EpisodeDataset(root, keys=["action"], response="subtask")))
    assert data.sample(1, 2)["response"] == "1 2"
