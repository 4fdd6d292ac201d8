"""Files of frame weights, and the frames of segments."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Frame = tuple[int, int]
"""(episode id, frame)."""


def write_weights(path: Path, weights: Mapping[Frame, float], seed: int | None = None) -> Path:
    """Write episode, frame and weight of each frame, shuffled by `seed`."""
    rows = list(weights.items())
    if seed is not None:
        np.random.default_rng(seed).shuffle(rows)  # type: ignore[arg-type]
    columns = {
        "episode": [int(frame[0]) for frame, _ in rows],
        "frame": [int(frame[1]) for frame, _ in rows],
        "weight": [float(weight) for _, weight in rows],
    }
    pq.write_table(pa.table(columns), path, row_group_size=5)
    return path


def count_frames(segments: np.ndarray) -> Counter[Frame]:
    """Count each frame of segments, rows [episode, start, stop)."""
    counts = Counter[Frame]()
    for episode, start, stop in segments.tolist():
        counts.update((episode, frame) for frame in range(start, stop))
    return counts
