"""Start of a run on synthetic metadata of up to ten million episodes, and the slices of up to 800
simulated ranks.

    python lab/benchmarks/scale.py    100,000, 1,000,000 and 10,000,000 episodes
    python lab/benchmarks/scale.py --episodes 1000000 --ranks 1 800
    python lab/benchmarks/scale.py --json

The dataset has the metadata of three cameras, and data files without images: each file is a link to
the same rows, 7 actions a frame. Two processes of one host start the same run, one after the other:
the first one makes the tables that they share. The stages are those of `understudy train`. Nothing
is trained.

    cpu_s, wall_s       seconds of the stage
    private_mb          memory of this process alone after it, beyond that after its imports
    right               each row of the first batch is the row that the order names

    rank_ms             CPU time of one rank to locate its samples of a step in the middle of the
                        first epoch
    ranks_ms            the same for all ranks, one after the other
    union               the slices of all ranks are the batch, each sample once
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from common import conditions

T = TypeVar("T")

SIZES = (100_000, 1_000_000, 10_000_000)
RANKS = (1, 8, 64, 800)
BATCH = 8000
CAMERAS = 3
WIDTH = 7
CHUNK = 8
TASKS = 100
FPS = 15
PER_DATA = 1000
PER_VIDEO = 100
PER_META = 100_000


def write_metadata(root: Path, lengths: np.ndarray) -> None:
    """Write metadata of episodes of these lengths, and empty videos. lengths: int64 (episodes,)."""
    keys = [f"observation.images.cam{number}" for number in range(CAMERAS)]
    video_feature = {
        "dtype": "video",
        "shape": [224, 224, 3],
        "names": ["height", "width", "channels"],
    }
    info = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "fps": FPS,
        "total_episodes": len(lengths),
        "total_frames": int(lengths.sum()),
        "total_tasks": TASKS,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {"action": {"dtype": "float32", "shape": [WIDTH], "names": None}}
        | dict.fromkeys(keys, video_feature),
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    texts = [f"task {number}" for number in range(TASKS)]
    pq.write_table(
        pa.table({"task_index": np.arange(TASKS), "task": texts}), root / "meta/tasks.parquet"
    )
    ids = np.arange(len(lengths))
    starts = np.cumsum(lengths) - lengths
    video = ids // PER_VIDEO
    data = ids // PER_DATA
    columns: dict[str, Any] = {
        "episode_index": ids,
        "length": lengths,
        "dataset_from_index": starts,
        "data/chunk_index": data // 1000,
        "data/file_index": data % 1000,
    }
    for key in keys:
        columns[f"videos/{key}/chunk_index"] = video // 1000
        columns[f"videos/{key}/file_index"] = video % 1000
        columns[f"videos/{key}/from_timestamp"] = (starts - starts[video * PER_VIDEO]) / FPS
    for number, begin in enumerate(range(0, len(lengths), PER_META)):
        part = {name: values[begin : begin + PER_META] for name, values in columns.items()}
        path = root / f"meta/episodes/chunk-{number // 1000:03d}/file-{number % 1000:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        tasks = pa.array([[texts[index % TASKS]] for index in part["episode_index"]])
        pq.write_table(pa.table({**part, "tasks": tasks}), path)
    for key in keys:
        path = root / "videos" / key / "chunk-000/file-000.mp4"
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")


def private_mb() -> float:
    """Memory of this process alone: without pages of files, which all processes that map them
    share.
    """
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return next(int(words[1]) for words in lines if words[0] == "Anonymous:") / 1024


def write(root: Path, episodes: int) -> np.ndarray:
    """Write the dataset; returns the lengths of the episodes of each data file, int64
    (PER_DATA,).
    """
    lengths = np.random.default_rng(0).integers(100, 433, PER_DATA)
    write_metadata(root, np.resize(lengths, episodes))
    number = np.arange(int(lengths.sum()), dtype=np.float32)
    values = (number[:, None] + np.arange(WIDTH, dtype=np.float32) / 8).reshape(-1)
    action = pa.FixedSizeListArray.from_arrays(pa.array(values), WIDTH)
    table = pa.table({"action": action, "task_index": np.zeros(len(number), np.int64)})
    first = root / "data/chunk-000/file-000.parquet"
    first.parent.mkdir(parents=True)
    pq.write_table(table, first, row_group_size=20_000)
    last = (episodes - 1) // PER_DATA
    for file in range(1, last + 1):
        path = root / f"data/chunk-{file // 1000:03d}/file-{file % 1000:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        if file < last or episodes % PER_DATA == 0:
            os.link(first, path)
        else:
            pq.write_table(
                table[: int(lengths[: episodes % PER_DATA].sum())], path, row_group_size=20_000
            )
    return lengths


class Stages:
    """Time and memory of named stages."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}
        self._before = private_mb()

    def run(self, name: str, work: Callable[[], T]) -> T:
        cpu = time.process_time()
        wall = time.perf_counter()
        result = work()
        self.found[name] = {
            "cpu_s": round(time.process_time() - cpu, 3),
            "wall_s": round(time.perf_counter() - wall, 3),
            "private_mb": round(private_mb() - self._before, 1),
        }
        print(f"{name}: {self.found[name]}", file=sys.stderr, flush=True)
        return result


def start(
    root: Path, batch: int, world: int, ranks: Sequence[int], statistics: int = 0
) -> dict[str, Any]:
    """Start the run of one of `world` ranks in this process; returns its stages and facts.

    Args:
        root: the dataset.
        batch: samples of a step.
        world: number of ranks of the run whose first batch is loaded.
        ranks: numbers of ranks to simulate.
        statistics: episodes to measure the statistics on; 0: none.
    """
    import torch  # noqa: F401  # its memory is not measured

    from understudy.config.train import DataConfig, TrainConfig
    from understudy.train.data.run_data import dataset_fingerprint, open_data
    from understudy.train.data.run_normalization import compute_normalization
    from understudy.train.validation.validation_loss import read_validation_data
    from understudy_data.load.loader import Loader

    def config(**data: Any) -> TrainConfig:
        return TrainConfig(
            data=DataConfig(str(root), cameras=("none",), chunk_size=CHUNK, **data),
            batch_size=batch,
        )

    stages = Stages()
    data = stages.run(
        "open the dataset, split it, look for missing files", lambda: open_data(config())
    )
    stages.run("validation frames", lambda: read_validation_data(config(), data))
    stages.run("fingerprint", lambda: dataset_fingerprint(data))
    order = stages.run("order", lambda: data.order(config()))

    def load() -> dict[str, Any]:
        place = {"rank": world - 1, "world_size": world, "allow_uneven": True}
        with Loader(data.training, order=order, num_threads=1, **place) as loader:
            return next(loader)

    first = stages.run("first batch of one rank", load)
    lengths = data.training[0].catalog.episodes.lengths[:PER_DATA]
    starts = np.cumsum(lengths) - lengths
    expected = starts[first["episode_index"].numpy() % PER_DATA] + first["frame_index"].numpy()
    facts: dict[str, Any] = {
        "stages": stages.found,
        "samples": len(expected),
        "right": bool(
            np.array_equal(first["action"][:, 0, 0].numpy(), expected.astype(np.float32))
        ),
        "order_bytes": len(order.to_json()),
        "frames": int(data.training[0].catalog.episodes.frames),
        "ranks": {
            str(count): simulate(order, len(data.training[0]), batch, count) for count in ranks
        },
    }
    if statistics:
        small = open_data(config(episodes=tuple(range(statistics))), check_files=False)
        frames = len(small.training[0])
        begun = time.process_time()
        compute_normalization(small, "mean_std")
        facts["statistics_us_per_frame"] = round((time.process_time() - begun) / frames * 1e6, 3)
    return facts


def simulate(order: Any, frames: int, batch: int, world: int) -> dict[str, Any]:
    """Locate the samples of all `world` ranks in a step in the middle of the first epoch."""
    from understudy_data.order.rank_positions import rank_positions

    step = frames // 2 // batch
    times = []
    parts = []
    for rank in range(world):
        begun = time.process_time()
        source, episode, frame = order.locate(rank_positions(step, batch, rank, world))
        times.append(time.process_time() - begun)
        parts.append(np.stack([source, episode, frame]))
    whole = np.stack(order.locate(np.arange(step * batch, (step + 1) * batch, dtype=np.int64)))
    together = np.concatenate(parts, axis=1)
    distinct = len(np.unique(together, axis=1).T) == batch
    return {
        "rank_ms": round(float(np.median(times)) * 1e3, 3),
        "ranks_ms": round(sum(times) * 1e3, 1),
        "union": bool(np.array_equal(together, whole) and distinct),
    }


def measure(episodes: int, batch: int, ranks: Sequence[int]) -> dict[str, Any]:
    """Start the run twice on one host, on a dataset of `episodes`."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "dataset")
        write(root, episodes)
        meta = sum(path.stat().st_size for path in (root / "meta").rglob("*.parquet"))
        world = max(ranks)
        found: dict[str, Any] = {"episodes": episodes, "meta_mb": round(meta / 2**20, 1)}
        for number, name in enumerate(("first", "second")):
            words = [
                str(root),
                str(batch),
                str(world),
                "0" if number else "2000",
                *map(str, () if number else ranks),
            ]
            env = {**os.environ, "XDG_CACHE_HOME": str(Path(folder, "cache"))}
            command = [sys.executable, __file__, "--child", *words]
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise SystemExit(
                    f"the {name} process of {episodes:,} episodes ended with {done.returncode}"
                )
            found[name] = json.loads(done.stdout.splitlines()[-1])
        tables = (Path(folder, "cache")).rglob("tables/*")
        found["shared_mb"] = round(
            sum(path.stat().st_size for path in tables if path.is_file()) / 2**20, 1
        )
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--episodes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        root, batch, world, statistics, *ranks = options.child
        print(
            json.dumps(
                start(
                    Path(root), int(batch), int(world), [int(one) for one in ranks], int(statistics)
                )
            )
        )
        return
    rows = [measure(episodes, options.batch_size, options.ranks) for episodes in options.episodes]
    facts = {
        "batch_size": options.batch_size,
        "cameras": CAMERAS,
        "rows": rows,
        "conditions": conditions(),
    }
    print(json.dumps(facts, indent=None if options.json else 1))


if __name__ == "__main__":
    main()
