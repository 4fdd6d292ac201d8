"""Time and private memory that each process of a host needs to open a dataset of a million episodes.

    python benchmarks/catalog.py                          1,000,000 episodes, 3 cameras; 1 and 4 processes
    python benchmarks/catalog.py --episodes 10000000 --processes 8
    python benchmarks/catalog.py --json

The dataset is synthetic: metadata and one data file, no images. Each process opens a `Catalog` and an `EpisodeDataset`.
Memory is read while all processes are alive.

    private    MB of the process alone, beyond those after its imports (/proc/self/smaps_rollup)
    mapped     MB of tables shared by the processes of the host
    cpu_s      CPU seconds for both objects
    apart      every process builds its own tables, as for small datasets

The first row of `shared` is the process that builds the tables.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TASKS, FPS, PER_DATA, PER_VIDEO, PER_META = 100, 15, 1000, 100, 100_000


def write(root: Path, episodes: int, cameras: int, lengths: np.ndarray | None = None) -> None:
    """Write the metadata and the first data file. lengths: of the episodes; they are drawn by default."""
    draws = np.random.default_rng(0)
    drawn = draws.integers(100, 433, episodes)
    lengths = drawn if lengths is None else lengths
    keys = [f"observation.images.cam{number}" for number in range(cameras)]
    features: dict[str, Any] = {"action": {"dtype": "float32", "shape": [7], "names": None}}
    for key in keys:
        features[key] = {"dtype": "video", "shape": [224, 224, 3], "names": ["height", "width", "channels"]}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "fps": FPS,
        "total_episodes": episodes,
        "total_frames": int(lengths.sum()),
        "total_tasks": TASKS,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    texts = [f"task {number}" for number in range(TASKS)]
    pq.write_table(pa.table({"task_index": np.arange(TASKS), "task": texts}), root / "meta/tasks.parquet")
    ids, ends = np.arange(episodes), np.cumsum(lengths)
    starts = ends - lengths
    video, data, task = ids // PER_VIDEO, ids // PER_DATA, draws.integers(0, TASKS, episodes)
    from_timestamp = (starts - starts[video * PER_VIDEO]) / FPS
    for number, begin in enumerate(range(0, episodes, PER_META)):
        part = slice(begin, begin + PER_META)
        columns = {
            "episode_index": ids[part],
            "length": lengths[part],
            "tasks": pa.array([[texts[i]] for i in task[part]]),
            "dataset_from_index": starts[part],
            "data/chunk_index": data[part] // 1000,
            "data/file_index": data[part] % 1000,
        }
        for key in keys:
            columns[f"videos/{key}/chunk_index"] = video[part] // 1000
            columns[f"videos/{key}/file_index"] = video[part] % 1000
            columns[f"videos/{key}/from_timestamp"] = from_timestamp[part]
        path = root / f"meta/episodes/chunk-{number // 1000:03d}/file-{number % 1000:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
    for kind in [*(f"videos/{key}" for key in keys), "data"]:
        path = root / kind / ("chunk-000/file-000.mp4" if kind != "data" else "chunk-000/file-000.parquet")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")


def measure_memory() -> dict[str, float]:
    """MB of this process, by kind."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kinds = {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines}
    return {"private": kinds["Private_Clean"] + kinds["Private_Dirty"], "dirty": kinds["Private_Dirty"]}


def child(root: str, apart: bool) -> None:
    """Open the dataset, report it, wait for the other processes, print the figures."""
    import torch  # noqa: F401  # its memory is not measured

    from understudy.data.dataset import EpisodeDataset
    from understudy.data.format.catalog import Catalog
    from understudy.storage import mapped_tables

    if apart:
        mapped_tables.MIN_ROWS = sys.maxsize
    begun, before = time.process_time(), measure_memory()
    data = EpisodeDataset(Catalog.open(root), {"action": [0, 1 / FPS]})
    spent = time.process_time() - begun
    print("open", flush=True)
    sys.stdin.readline()
    after, episodes = measure_memory(), len(data.catalog.episodes)
    found = {
        "cpu_s": round(spent, 2),
        "private": round(after["private"] - before["private"], 1),
        "dirty": round(after["dirty"] - before["dirty"], 1),
        "mapped": round(sum(map(_table_mb, _tables())), 1),
        "bytes_per_episode": round((after["private"] - before["private"]) * 2**20 / episodes, 1),
    }
    print(json.dumps(found), flush=True)
    sys.stdin.readline()


def _tables() -> set[str]:
    """Files of shared tables that this process has mapped."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return {words[-1] for words in lines if len(words) > 5 and "/understudy/tables/" in words[-1]}


def _table_mb(path: str) -> float:
    return os.path.getsize(path) / 2**20


def measure(root: Path, processes: int, apart: bool) -> list[dict[str, float]]:
    """Measure `processes` concurrent processes; the first one opens the dataset before the others start."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--child", str(root), *(["--apart"] if apart else [])]
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        children: list[subprocess.Popen[str]] = []
        for number in range(processes):
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            children.append(subprocess.Popen(command, env=environment, **pipes))
            if number == 0:
                _read_line(children[0])
        for one in children[1:]:
            _read_line(one)
        found = []
        for one in children:
            _continue(one)
            found.append(json.loads(_read_line(one)))
        for one in children:
            _continue(one)
            one.wait()
        return found


def _read_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a process failed")
    return line


def _continue(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--cameras", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        return child(options.child, options.apart)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "dataset")
        write(root, options.episodes, options.cameras)
        found = {
            way: {str(count): measure(root, count, way == "apart") for count in options.processes}
            for way in ("apart", "shared")
        }
    conditions = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version()}
    facts = {"episodes": options.episodes, "cameras": options.cameras, **found, "conditions": conditions}
    if options.json:
        print(json.dumps(facts))
        return
    print(f"{options.episodes:,} episodes, {options.cameras} cameras")
    print(f"{'':8}{'processes':>10}{'cpu s':>8}{'private MB':>12}{'mapped MB':>11}")
    for way, by_count in found.items():
        for count, rows in by_count.items():
            for row in rows:
                print(f"{way:8}{count:>10}{row['cpu_s']:>8.2f}{row['private']:>12.1f}{row['mapped']:>11.1f}")


if __name__ == "__main__":
    main()
