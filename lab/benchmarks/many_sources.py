"""Start of a run over thousands of small sources, beside the start of the same run over three.

    python lab/benchmarks/many_sources.py                       1,000 and 3,000 sources, with rows
                                                                alone and with videos
    python lab/benchmarks/many_sources.py --sources 3000 --kinds rows --json
    python lab/benchmarks/many_sources.py --before CHECKOUT     in turns with another checkout of
                                                                the project

A source has three episodes of twelve frames, the last one of 13, so that it never equals another in
length: a state and an action of seven numbers, distinct in every source, and with videos one camera
of 64 pixels, a file of its own. Their keys have six spellings, which the settings map to the
standard ones. All have one norm head, and weights of 1 to 5. A script writes the settings file. The
run trains the policy `flow` with batches of 32 and a validation at the end.

    first_s         seconds from the command to step 1, with no file of the sources in a cache of
                    the project
    later_s         the same of a second run over the same sources
    resume_s        the same of `resume` after a kill
    …_cpu_s         CPU seconds of the same starts, of all threads: first_cpu_s, later_cpu_s,
                    resume_cpu_s
    …_extra_s       each of these beyond that of three sources: first_extra_s, first_cpu_extra_s, …
    extra_mb        largest resident memory until step 1, beyond that of three sources: of the first
                    start
    steps_s         steps a second behind step 1
    config_mb       bytes of config.yaml and order.json
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import common
import parsers
from understudy_data.testing.videos import encode_video

LENGTHS = (12, 12, 13)
FPS = 10
WIDTH = 7
SIDE = 64
SPELLINGS = (
    ("action", "observation.state", "observation.images.top"),
    ("actions", "state", "images.top"),
    ("command", "observation.joints", "observation.images.cam_0"),
    ("action.joints", "state.joints", "observation.images.front"),
    ("target", "proprio", "observation.image"),
    ("control", "qpos", "top"),
)
"""Keys of action, state and camera."""


def write(folder: Path, sources: int, with_videos: bool) -> None:
    """Write so many datasets under `folder`, named by their number."""
    video = b""
    if with_videos:
        images = np.random.default_rng(0).integers(0, 255, (sum(LENGTHS), 8, 8, 3), np.uint8)
        folder.mkdir(parents=True, exist_ok=True)
        encode_video(
            folder / "video.mp4", images.repeat(8, 1).repeat(8, 2), FPS, codec="libx264", gop=4
        )
        video = (folder / "video.mp4").read_bytes()
        (folder / "video.mp4").unlink()
    for number in range(sources):
        _write_source(folder / f"source-{number:05d}", number, video)


def _write_source(root: Path, number: int, video: bytes) -> None:
    action, state, camera = SPELLINGS[number % len(SPELLINGS)]
    vector = {"dtype": "float32", "shape": [WIDTH], "names": None}
    features: dict[str, Any] = {action: vector, state: vector}
    if video:
        features[camera] = {
            "dtype": "video",
            "shape": [SIDE, SIDE, 3],
            "names": ["height", "width", "channels"],
        }
    info = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "fps": FPS,
        "total_episodes": len(LENGTHS),
        "total_frames": sum(LENGTHS),
        "total_tasks": 1,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    for part in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / part).mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(
        pa.table({"task_index": [0], "task": [f"task {number % 20}"]}), root / "meta/tasks.parquet"
    )
    lengths = np.array(LENGTHS)
    ids = np.arange(len(LENGTHS))
    begin = np.cumsum(lengths) - lengths
    zero = np.zeros(len(LENGTHS), np.int64)
    columns: dict[str, Any] = {"episode_index": ids, "length": lengths, "dataset_from_index": begin}
    columns |= {
        "data/chunk_index": zero,
        "data/file_index": zero,
        "tasks": [[f"task {number % 20}"]] * len(LENGTHS),
    }
    if video:
        columns |= {f"videos/{camera}/{name}": zero for name in ("chunk_index", "file_index")}
        columns[f"videos/{camera}/from_timestamp"] = begin / FPS
        path = root / f"videos/{camera}/chunk-000/file-000.mp4"
        path.parent.mkdir(parents=True)
        # the same images in another file
        path.write_bytes(video + b"\0\0\0\x10free" + number.to_bytes(8, "big"))
    pq.write_table(pa.table(columns), root / "meta/episodes/chunk-000/file-000.parquet")
    draw = np.random.default_rng(number)
    rows = int(lengths.sum())
    frame = np.arange(rows) - np.repeat(begin, lengths)
    values: dict[str, Any] = {"timestamp": (frame / FPS).astype(np.float32), "frame_index": frame}
    values |= {"episode_index": np.repeat(ids, lengths), "task_index": np.zeros(rows, np.int64)}
    for key in (action, state):
        numbers = draw.standard_normal(rows * WIDTH).astype(np.float32)
        values[key] = pa.FixedSizeListArray.from_arrays(pa.array(numbers), WIDTH)
    pq.write_table(pa.table(values), root / "data/chunk-000/file-000.parquet")


def settings(folder: Path, sources: int, with_videos: bool) -> dict[str, Any]:
    """Settings of a run over the first `sources` datasets under `folder`."""
    entries = []
    for number in range(sources):
        action, state, camera = SPELLINGS[number % len(SPELLINGS)]
        entry: dict[str, Any] = {
            "root": str(folder / f"source-{number:05d}"),
            "control_mode": "joint",
        }
        entry |= {"action": action, "state": state, "weight": 1 + number % 5}
        entries.append(
            entry | ({"cameras": {"observation.images.top": camera}} if with_videos else {})
        )
    return {
        "batch_size": 32,
        "data": {"sources": entries, "chunk_size": 8},
        "policy": {"type": "flow", "image_size": [32, 32], "width": 64, "channels": 8},
        "log": {"every": 1},
        "device": "cpu",
        "loader": {"num_threads": 1},
    }


def start(
    words: list[str], out: Path, steps: int, tree: str, cache: Path, limit: float
) -> dict[str, float]:
    """Start a run and kill it `steps` steps later: seconds and largest memory to its first step,
    and the rate.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": common.sources(tree)}
    environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-m", "understudy", *words]
    metrics = out / "metrics.jsonl"
    earlier = _lines(out / "metrics.jsonl")
    begun = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(command, env=environment, stderr=said) as run,
    ):
        while (seen := _lines(metrics)) <= earlier:
            if run.poll() is not None or time.perf_counter() - begun > limit:
                run.kill()
                said.seek(0)
                raise SystemExit(
                    f"no step in {time.perf_counter() - begun:.0f} s: {' '.join(words)}\n"
                    f"{said.read()}"
                )
            time.sleep(0.02)
        first = time.perf_counter() - begun
        first_at = time.perf_counter()
        peak = _peak(run.pid)
        cpu = _cpu(run.pid)
        while _lines(metrics) < seen + steps and run.poll() is None:
            time.sleep(0.02)
        rate = (_lines(metrics) - seen) / (time.perf_counter() - first_at)
        run.send_signal(signal.SIGKILL)
    return {"seconds": first, "cpu": cpu, "peak_mb": peak, "steps_s": rate}


def _lines(metrics: Path) -> int:
    """Steps in a metrics file."""
    return metrics.read_bytes().count(b'{"kind": "train"') if metrics.exists() else 0


def _peak(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1e3


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def measure(
    folder: Path, tree: str, sources: int, with_videos: bool, steps: int, limit: float
) -> dict[str, float]:
    """First and later start of a run, and its resumption, with a new cache of the project."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        place = Path(made)
        cache = Path(made, "cache")
        file = place / "settings.json"
        file.write_text(
            json.dumps(settings(folder, sources, with_videos) | {"checkpoint": {"every": steps}})
        )
        common_words = ["train", str(file), "--steps", str(10 * steps), "--output-dir"]
        first = start([*common_words, str(place / "one")], place / "one", 2, tree, cache, limit)
        later = start(
            [*common_words, str(place / "two")], place / "two", 2 * steps, tree, cache, limit
        )
        resumed = start(["resume", str(place / "two")], place / "two", 2, tree, cache, limit)
        recorded = sum(
            (place / "two" / name).stat().st_size for name in ("config.yaml", "order.json")
        )
    starts = {"first": first, "later": later, "resume": resumed}
    return {
        **{f"{name}_s": found["seconds"] for name, found in starts.items()},
        **{f"{name}_cpu_s": found["cpu"] for name, found in starts.items()},
        "peak_mb": first["peak_mb"],
        "steps_s": later["steps_s"],
        "config_mb": recorded / 1e6,
    }


def beyond(found: dict[str, float], few: dict[str, float]) -> dict[str, float]:
    """Add seconds and memory beyond those of few sources."""
    names = [name for name in found if name.endswith("_s") and name != "steps_s"]
    extra = {f"{name.removesuffix('_s')}_extra_s": found[name] - few[name] for name in names}
    return found | extra | {"extra_mb": found["peak_mb"] - few["peak_mb"]}


def main() -> None:
    parser = parsers.make_parser(__doc__, whole=True)
    parser.add_argument("--sources", type=int, nargs="+", default=[1000, 3000])
    parser.add_argument(
        "--kinds", nargs="+", choices=("rows", "videos"), default=["rows", "videos"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=20, help="steps of the rate, and between checkpoints"
    )
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds to step 1 behind which a run is given up"
    )
    parser.add_argument("--before", default="", help="another checkout, measured in turns")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="folder for the datasets")
    options = parser.parse_args()
    trees = {"now": str(Path(__file__).parents[2])} | (
        {"before": options.before} if options.before else {}
    )
    rows = []
    for kind in options.kinds:
        with tempfile.TemporaryDirectory(dir=options.folder) as made:
            folder = Path(made, "sources")
            with_videos = kind == "videos"
            write(folder, max(options.sources), with_videos)
            found: dict[tuple[str, int], list[dict[str, float]]] = {}
            for _ in range(options.rounds):
                for name, tree in trees.items():
                    few = measure(folder, tree, 3, with_videos, options.steps, options.limit)
                    for sources in options.sources:
                        many = measure(
                            folder, tree, sources, with_videos, options.steps, options.limit
                        )
                        found.setdefault((name, sources), []).append(beyond(many, few))
            for (name, sources), results in found.items():
                row: dict[str, Any] = {
                    "name": name,
                    "kind": kind,
                    "sources": sources,
                    "rounds": len(results),
                }
                row |= {"frames": sources * sum(LENGTHS)}
                row |= {key: round(median(one[key] for one in results), 3) for key in results[0]}
                rows.append(row)
                common.say(row)
    print(
        json.dumps(
            {"rows": rows, "conditions": common.conditions()}, indent=None if options.json else 1
        )
    )


if __name__ == "__main__":
    main()
