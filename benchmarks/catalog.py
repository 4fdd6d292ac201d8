"""What opening a dataset of a million episodes costs each process of a host, in time and in memory of its own.

    python benchmarks/catalog.py                          1,000,000 episodes, 3 cameras; 1 and 4 processes
    python benchmarks/catalog.py --episodes 10000000 --processes 8
    python benchmarks/catalog.py --json

The dataset is synthetic: metadata and one data file, no pictures. Each process opens it as a `Catalog` and makes an
`EpisodeDataset`; all of them are alive when memory is read. `private`: MB that the process alone has, beyond what it
had after its imports (/proc/self/smaps_rollup). `mapped`: MB of tables that the processes of the host share. `cpu_s`:
CPU seconds for both. First row: the process that makes the shared tables. `apart`: every process makes its own, as for
small datasets.
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


def write(root: Path, episodes: int, cameras: int) -> None:
    """The metadata of such a dataset, and the first of its data files."""
    draws = np.random.default_rng(0)
    lengths = draws.integers(100, 433, episodes)
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
    for place in [*(f"videos/{key}" for key in keys), "data"]:
        path = root / place / ("chunk-000/file-000.mp4" if place != "data" else "chunk-000/file-000.parquet")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")


def _memory() -> dict[str, float]:
    """MB by kind, of this process."""
    lines = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    kinds = {words[0].rstrip(":"): int(words[1]) / 1024 for words in lines}
    return {"private": kinds["Private_Clean"] + kinds["Private_Dirty"], "dirty": kinds["Private_Dirty"]}


def child(root: str, apart: bool) -> None:
    """Open the dataset; say so; wait until all have; tell what is held."""
    import torch  # noqa: F401  # what it takes is no part of the figure

    from understudy.data.dataset import EpisodeDataset
    from understudy.data.format.catalog import Catalog
    from understudy.storage import mapped

    if apart:
        mapped.LEAST = sys.maxsize
    begun, before = time.process_time(), _memory()
    data = EpisodeDataset(Catalog.open(root), {"action": [0, 1 / FPS]})
    spent = time.process_time() - begun
    print("open", flush=True)
    sys.stdin.readline()
    after, episodes = _memory(), len(data.catalog.episodes)
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
    """The files of shared tables that this process has mapped."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return {words[-1] for words in lines if len(words) > 5 and "/understudy/tables/" in words[-1]}


def _table_mb(path: str) -> float:
    return os.path.getsize(path) / 2**20


def measured(root: Path, processes: int, apart: bool) -> list[dict[str, float]]:
    """What `processes` processes hold that are there together; the first is open before the others begin."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--child", str(root), *(["--apart"] if apart else [])]
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        there: list[subprocess.Popen[str]] = []
        for number in range(processes):
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            there.append(subprocess.Popen(command, env=environment, **pipes))
            if number == 0:
                _heard(there[0])
        for one in there[1:]:
            _heard(one)
        found = []
        for one in there:
            _say(one)
            found.append(json.loads(_heard(one)))
        for one in there:
            _say(one)
            one.wait()
        return found


def _heard(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a process failed")
    return line


def _say(process: "subprocess.Popen[str]") -> None:
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
            way: {str(count): measured(root, count, way == "apart") for count in options.processes}
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
