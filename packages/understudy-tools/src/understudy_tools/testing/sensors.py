"""Sensor files for the datasets of `understudy_data.testing.datasets`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

IMU = "observation.imu"
Samples = dict[int, tuple[np.ndarray, np.ndarray]]
"""Episode id -> float64 (n,) timestamps and (n, D) values."""


def jittered(
    lengths: tuple[int, ...], rate: float, fps: float = 10, width: int = 2, seed: int = 0
) -> Samples:
    """Samples at about `rate`, none at equal distances, from shortly before each episode's start to
    its end.
    """
    rng = np.random.default_rng([9, seed])
    found = {}
    for episode, length in enumerate(lengths):
        count = max(1, int(length / fps * rate))
        times = np.sort(rng.uniform(-0.05, length / fps, count))
        found[episode] = np.unique(np.round(times, 4)), np.zeros((0, width))
        found[episode] = (
            found[episode][0],
            rng.normal(size=(len(found[episode][0]), width)).astype(np.float32),
        )
    return found


def add_sensor(
    root: Path,
    samples: Samples,
    key: str = IMU,
    path: str = "sensors/imu.parquet",
    group: int = 7,
    **entry: Any,
) -> None:
    """Declare a sensor of a dataset and write its file, or a file per episode if `path` is a
    template.
    """
    declared = root / "meta/sensors.json"
    sensors = json.loads(declared.read_text()) if declared.exists() else {}
    width = next(iter(samples.values()))[1].shape[1]
    sensors[key] = {"path": path, "dtype": "float32", "shape": [width]} | entry
    declared.write_text(json.dumps(sensors))
    parts = (
        {path.format(episode_index=e): {e: own} for e, own in samples.items()}
        if "{" in path
        else {path: samples}
    )
    for name, part in parts.items():
        write_samples(root / name, part, group)


def write_samples(path: Path, samples: Samples, group: int = 7) -> None:
    """Write one sensor file."""
    values = np.concatenate([own for _, own in samples.values()]).astype(np.float32)
    columns = {
        "episode_index": pa.array(
            np.concatenate([np.full(len(t), e) for e, (t, _) in samples.items()])
        ),
        "timestamp": pa.array(np.concatenate([t for t, _ in samples.values()])),
        "value": pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=group)
