"""Grain 0.2.18 over LeRobot's reader: a shuffled, divided and repeated `MapDataset`, in batches."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grain
import numpy as np
from absl import flags
from lerobot_061 import reader

Windows = Mapping[str, Sequence[float]]


class Pipeline:
    def __init__(
        self,
        root: Path,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        seed: int = 0,
        batch_size: int = 4,
        delta_timestamps: Windows | None = None,
    ) -> None:
        if not flags.FLAGS.is_parsed():
            flags.FLAGS(["grain"])  # its worker processes pass on flags of absl
        data = grain.MapDataset.source(reader(root, None, delta_timestamps))
        data = data.seed(seed).shuffle()[rank::world_size].map(self.to_arrays).repeat().batch(batch_size)
        stream = data.to_iter_dataset(grain.ReadOptions(num_threads=0))
        if num_workers:
            stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
        self.iterator = iter(stream)

    @staticmethod
    def to_arrays(sample: Mapping[str, Any]) -> dict[str, Any]:
        return {key: np.asarray(value) for key, value in sample.items()}

    def __iter__(self) -> Iterator[Any]:
        return self.iterator

    def state_dict(self) -> Any:
        return self.iterator.get_state()

    def load_state_dict(self, state: Any) -> None:
        self.iterator.set_state(state)
