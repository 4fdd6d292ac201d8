"""Several instructions in one task text: the parts, and the draw of a sample."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from understudy_base.testing.refusals import refused
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.load.dataloader.episode_stream import EpisodeStream
from understudy_data.load.instructions import Instructions
from understudy_data.load.loader import Loader

TEXT = "put the cup on the shelf | move the cup |  | cup to shelf"
PARTS = ["put the cup on the shelf", "move the cup", "cup to shelf"]


@pytest.mark.parametrize(
    ("text", "separator", "parts"),
    [
        (TEXT, " | ", PARTS),
        (TEXT, "|", PARTS),
        (TEXT, "", [TEXT]),
        ("", " | ", [""]),
        (" | ", "|", [" | "]),
    ],
)
def test_split_task(text: str, separator: str, parts: list[str]) -> None:
    assert Instructions(separator).split(text) == parts


def test_draws_are_a_function_of_seed_and_position() -> None:
    positions = range(3000)
    drawn = Instructions(" | ").draw([TEXT] * 3000, 0, positions)
    assert all(900 < count < 1100 for count in Counter(drawn).values())
    assert set(drawn) == set(PARTS)
    rows = [2999, 5, 1024]  # another batch, another rank
    assert Instructions(" | ").draw([TEXT] * 3, 0, rows) == [drawn[row] for row in rows]
    assert Instructions(" | ").draw([TEXT] * 3000, 1, positions) != drawn


def test_joined_texts_stay_without_a_separator() -> None:
    assert Instructions("").draw([TEXT, "stack"], 0, [0, 1]) == [TEXT, "stack"]
    assert Instructions(" | ").draw(["stack"], 0, [0]) == ["stack"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes of 20 frames, with one to three instructions each."""
    root = tmp_path_factory.mktemp("set") / "set"
    features = {"action": {"dtype": "float32", "shape": (2,)}}
    with EpisodeWriter(root, fps=10, features=features) as writer:
        for number in range(6):
            task = " | ".join(f"way {way} of {number}" for way in range(1 + number % 3))
            for frame in range(20):
                writer.add_frame({"action": np.full(2, frame, np.float32)}, task=task)
            writer.save_episode()
    return root


def batches(root: Path, count: int = 20, **options: Any) -> list[dict[str, Any]]:
    with Loader(root, batch_size=8, seed=3, **options) as loader:
        return [next(loader) for _ in range(count)]


def test_loader_draws_one_instruction_for_each_position(root: Path) -> None:
    plain = batches(root)
    drawn = batches(root, task_separator=" | ")
    for one, other in zip(plain, drawn, strict=True):
        positions = one["position"].numpy()
        assert other["task"] == Instructions(" | ").draw(one["task"], 3, positions)
        assert one.keys() == other.keys()
        for key in one.keys() - {"task"}:
            assert torch.equal(one[key], other[key])
    texts = [text for batch in plain for text in batch["task"]]
    assert any(" | " in text for text in texts)  # those who ask for nothing get the whole text
    assert plain[0]["task"] == batches(root, 1, task_separator="")[0]["task"]
    seen = {text for batch in drawn for text in batch["task"]}
    assert seen == {
        f"way {way} of {number}" for number in range(6) for way in range(1 + number % 3)
    }


def test_instructions_are_the_same_for_any_threads_ranks_workers_and_after_resume(
    root: Path,
) -> None:
    whole = [batch["task"] for batch in batches(root, task_separator="|")]
    threads = batches(root, task_separator="|", num_threads=3)
    assert [batch["task"] for batch in threads] == whole
    shares = [batches(root, task_separator="|", rank=rank, world_size=2) for rank in range(2)]
    assert [one["task"] + other["task"] for one, other in zip(*shares)] == whole
    later = batches(root, 7, task_separator="|", position=13 * 8)
    assert [batch["task"] for batch in later] == whole[13:]
    with Loader(root, batch_size=8, seed=3) as loader:
        order = loader.order
    stream = EpisodeStream(root, order=order, task_separator="|")
    streamed = DataLoader(stream, batch_size=None, num_workers=2)
    assert [batch["task"] for _, batch in zip(whole, streamed)] == whole


def test_preprocess_gets_the_drawn_instruction(root: Path) -> None:
    def lengths(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "length": [len(text) for text in batch["task"]]}

    for batch in batches(root, 5, task_separator=" | ", preprocess=lengths):
        assert batch["length"] == [len(text) for text in batch["task"]]
        assert not any(" | " in text for text in batch["task"])


def test_a_separator_of_another_type_is_refused(root: Path) -> None:
    for wrong in (None, 3, ["|"]):
        with refused("task_separator", kind=ValueError):
            Loader(root, batch_size=8, task_separator=wrong)  # type: ignore[arg-type]
