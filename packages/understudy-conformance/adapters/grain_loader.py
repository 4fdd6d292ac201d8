"""Grain 0.2.18: an endless `MapDataset` over LeRobot's reader, shuffled anew in each repetition,
sharded by slices.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
from lerobot_061 import reader


class Samples:
    """LeRobot's samples, as arrays and texts."""

    def __init__(self, root: Path, delta_timestamps: Mapping[str, Sequence[float]] | None) -> None:
        self.data = reader(root, None, delta_timestamps)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self.data[int(index)]
        return {
            key: value if isinstance(value, str) else np.asarray(value)
            for key, value in sample.items()
        }


class Loader:
    def __init__(
        self,
        root: Path,
        rank: int,
        world_size: int,
        num_workers: int,
        seed: int,
        batch_size: int,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        shuffled = grain.MapDataset.source(Samples(root, delta_timestamps)).shuffle(seed=seed)
        batches = shuffled[rank::world_size].batch(batch_size)
        self.length = len(batches)
        endless = batches.repeat().to_iter_dataset(grain.ReadOptions(num_threads=0))
        if num_workers:
            endless = endless.mp_prefetch(grain.MultiprocessingOptions(num_workers))
        self.batches = iter(endless)
        self.given = 0

    def __iter__(self) -> Iterator[Any]:
        while self.given < self.length:
            self.given += 1
            yield next(self.batches)
        self.given = 0

    def state_dict(self) -> Any:
        return {"batches": self.batches.get_state(), "given": self.given}

    def load_state_dict(self, state: Any) -> None:
        self.batches.set_state(state.get("batches", state))
        self.given = state.get("given", 0)


def seeds(root: Path, seed: int) -> Iterator[Any]:
    return iter(Loader(root, 0, 1, 0, seed, 4))
