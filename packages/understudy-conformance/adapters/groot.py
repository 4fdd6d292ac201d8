"""GR00T N1.7: `ShardedSingleStepDataset` in `ShardedMixtureDataset` and its trainer's `DataLoader`,
on a copy of v2.1.

GR00T is the folder of a checkout. Its shards of 1024 frames are of 4 here, and its epoch of 100 000
shards is all of them. A sample passes through no processor of a model.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

sys.path.insert(0, os.environ["GR00T"])
from gr00t.data.dataset.sharded_mixture_dataset import ShardedMixtureDataset
from gr00t.data.dataset.sharded_single_step_dataset import ShardedSingleStepDataset
from gr00t.data.types import EmbodimentTag, ModalityConfig

STATES = (
    "observation.state",
    "observation.gripper",
    "observation.clock",
    "episode_index",
    "frame_index",
)


def prepare(root: Path) -> tuple[Path, dict[str, Any]]:
    """Add its modality.json and statistics to a copy, which it expects beside LeRobot's files."""
    copy = Path(shutil.copytree(root, Path(tempfile.mkdtemp()) / "set"))
    features = json.loads((copy / "meta/info.json").read_text())["features"]
    cameras = [key for key, feature in features.items() if feature["dtype"] == "video"]
    keys = {"state": STATES, "action": ("action",)}
    parts = {
        kind: {
            key: {"original_key": key, "start": 0, "end": features[key]["shape"][0]}
            for key in names
        }
        for kind, names in keys.items()
    }
    layout = parts | {
        "video": {key: {"original_key": key} for key in cameras},
        "annotation": {"task": {"original_key": "task_index"}},
    }
    (copy / "meta/modality.json").write_text(json.dumps(layout))
    tables = [pq.read_table(path) for path in sorted((copy / "data").rglob("*.parquet"))]
    stats = {}
    for key in (*STATES, "action"):
        rows = np.array([row for table in tables for row in table[key].to_pylist()], np.float64)
        rows = rows.reshape(len(rows), -1)
        moments = {"mean": rows.mean(0), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0)}
        moments |= {f"q{q:02}": np.quantile(rows, q / 100, 0) for q in (1, 99)}
        stats[key] = {name: value.tolist() for name, value in moments.items()}
    (copy / "meta/stats.json").write_text(json.dumps(stats))
    names = {
        "state": list(STATES),
        "action": ["action"],
        "video": cameras,
        "language": ["annotation.task"],
    }
    return copy, {
        kind: ModalityConfig(delta_indices=[0], modality_keys=keys) for kind, keys in names.items()
    }


class Processor:
    """The values of a step under the dataset's keys."""

    def set_statistics(self, statistics: Any, override: bool = False) -> None:
        pass

    def __call__(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        step = messages[0]["content"]
        values = {
            key: value[0]
            for part in (step.states, step.actions, step.images)
            for key, value in part.items()
        }
        return values | {"task": step.text}


def single(root: Path, seed: int = 0) -> Any:
    copy, modalities = prepare(root)
    options: dict[str, Any] = {"shard_size": 4, "seed": seed}
    return ShardedSingleStepDataset(copy, EmbodimentTag.NEW_EMBODIMENT, modalities, **options)


def reader(root: Path) -> Iterator[dict[str, Any]]:
    """Steps of each episode in turn."""
    data = single(root)
    data.set_processor(Processor())
    for episode in range(len(data.episode_loader)):
        table = data.episode_loader[episode]
        yield from (data.get_datapoint(table, step) for step in range(len(table)))


def loader(root: Path, num_workers: int, seed: int, batch_size: int) -> Any:
    data = single(root, seed)
    mixture = ShardedMixtureDataset(
        [data], [1.0], Processor(), seed=seed, num_shards_per_epoch=len(data)
    )
    options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
    return torch.utils.data.DataLoader(mixture, batch_size, collate_fn=list, **options)
