"""Cost of a sample as the rows of a dataset grow to the size of DROID (18.8 million frames) and
beyond.

    python lab/benchmarks/rows.py                                   0.27, 2.7 and 18.8 million
                                                                    frames
    python lab/benchmarks/rows.py --millions 0.27 200 --json
    python lab/benchmarks/rows.py --before CHECKOUT                 in turns with another checkout
                                                                    of the project
    python lab/benchmarks/rows.py --per-file 1 --linked 0           an episode per data file, as
                                                                    older datasets have it
    python lab/benchmarks/rows.py --copied --python lerobot=PATH    real files, beside LeRobot's
                                                                    dataset and Lance

The layout is DROID's: episodes of 268 frames, 1000 of them in a data file of two vectors of seven
numbers, distinct in every file (from --linked million frames on, files are links to 70 distinct
ones), three cameras of 224 pixels in H.264 with a key frame every 30 frames, 33 episodes in a
video. Video files are links to one. All settings of the loader are its defaults.

With `--copied` each file name has a file of its own (copies, with the columns that LeRobot reads).
`--python NAME=PATH` adds a rival with its interpreter (lerobot, lance: `rival_loaders.py`), with
one worker process per core. Its images are uint8, ours too.

    first_s             seconds from the program's first line after its imports to the first batch;
                        the columns are not yet decoded ("cold"), or are in the host's cache, out of
                        the page cache where that is allowed
    cpu_ms              CPU milliseconds of a sample, of all threads and children
    samples_s           samples a second
    decode_all_s        seconds of decoding all columns at once, with `decode_all_cpu_s`
    anonymous_mb        largest anonymous memory beyond that after the imports, with `planned_mb` of
                        the loader
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import common
import loader_rivals
import parsers
from understudy_data.datasets.write.dataset_files import tasks_table
from understudy_data.testing.videos import encode_video

LENGTH = 268
PER_DATA = 1000
PER_VIDEO = 33
FPS = 15
CAMERAS = [f"observation.images.{name}" for name in ("exterior_1", "exterior_2", "wrist")]
VECTORS = ("observation.state", "action")
DISTINCT = 70
MOST_LINKS = 60_000


def draw_video(path: Path, frames: int) -> None:
    """Write moving noise of 224 pixels in H.264."""
    images = np.random.default_rng(0).integers(0, 255, (64, 14, 14, 3), np.uint8)
    images = images.repeat(16, 1).repeat(16, 2)
    moving = (np.roll(images[number % 64], number, 1) for number in range(frames))
    encode_video(path, moving, FPS, codec="libx264", options={"preset": "ultrafast"}, gop=30)


def write(
    root: Path,
    frames: int,
    linked: int,
    copied: bool = False,
    per_video: int = PER_VIDEO,
    side: tuple[int, int] = (224, 224),
    make_video: Callable[[Path, int], None] = draw_video,
    group: int | None = None,
) -> None:
    """Write a dataset of about so many frames; from `linked` frames on, data files are links to 70
    distinct ones.

    Args:
        root: its folder.
        frames: about so many.
        linked: see above.
        copied: every file is one of its own, with all columns that a recorder writes.
        per_video: episodes of a video file.
        side: height and width of the images.
        make_video: writes a video of so many frames.
        group: rows of a row group; None: those of a file.
    """
    episodes = max(1, round(frames / LENGTH))
    _write_metadata(root, episodes, per_video, side)
    files = -(-episodes // PER_DATA)
    for file in range(files):
        path = root / f"data/chunk-{file // 1000:03d}/file-{file % 1000:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        here = min(PER_DATA, episodes - file * PER_DATA)
        if frames >= linked and file >= DISTINCT and here == PER_DATA:
            os.link(root / f"data/chunk-000/file-{file % DISTINCT:03d}.parquet", path)
        else:
            pq.write_table(_rows(file, here, copied), path, row_group_size=group)
    video = root / "video.mp4"
    make_video(video, LENGTH * per_video)
    for camera in CAMERAS:
        for file in range(-(-episodes // per_video)):
            path = root / f"videos/{camera}/chunk-{file // 1000:03d}/file-{file % 1000:03d}.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            if os.stat(video).st_nlink >= MOST_LINKS:
                os.replace(shutil.copyfile(video, root / "next.mp4"), video)
            place = shutil.copyfile if copied else os.link
            place(video, path)


def _rows(file: int, episodes: int, numbered: bool) -> pa.Table:
    """Rows of a data file. Only `numbered` ones have `episode_index` and `index`: those of a link
    would be wrong.
    """
    draw = np.random.default_rng(file)
    count = episodes * LENGTH
    columns: dict[str, Any] = {}
    for key in VECTORS:
        numbers = draw.standard_normal((count, 7)).cumsum(0).astype(np.float32)
        columns[key] = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), 7)
    frame = np.tile(np.arange(LENGTH), episodes)
    columns["timestamp"] = (frame / FPS).astype(np.float32)
    columns["frame_index"] = frame
    columns["task_index"] = np.zeros(count, np.int64)
    if numbered:
        columns["episode_index"] = np.repeat(np.arange(episodes), LENGTH) + file * PER_DATA
        columns["index"] = np.arange(count) + file * PER_DATA * LENGTH
    return pa.table(columns)


def _write_metadata(root: Path, episodes: int, per_video: int, side: tuple[int, int]) -> None:
    features: dict[str, Any] = {
        key: {"dtype": "float32", "shape": [7], "names": None} for key in VECTORS
    }
    for camera in CAMERAS:
        features[camera] = {
            "dtype": "video",
            "shape": [*side, 3],
            "names": ["height", "width", "channels"],
        }
    for key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        features[key] = {
            "dtype": "float32" if key == "timestamp" else "int64",
            "shape": [1],
            "names": None,
        }
    info = {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "fps": FPS,
        "total_episodes": episodes,
        "total_frames": episodes * LENGTH,
        "total_tasks": 1,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "meta/stats.json").write_text("{}")
    pq.write_table(tasks_table(["pick"]), root / "meta/tasks.parquet")
    ids = np.arange(episodes)
    columns: dict[str, Any] = {
        "episode_index": ids,
        "length": np.full(episodes, LENGTH),
        "dataset_from_index": ids * LENGTH,
        "dataset_to_index": ids * LENGTH + LENGTH,
        "data/chunk_index": ids // PER_DATA // 1000,
        "data/file_index": ids // PER_DATA % 1000,
        "meta/episodes/chunk_index": np.zeros(episodes, np.int64),
        "meta/episodes/file_index": np.zeros(episodes, np.int64),
        "tasks": pa.array([["pick"]] * episodes),
    }
    for camera in CAMERAS:
        columns[f"videos/{camera}/chunk_index"] = ids // per_video // 1000
        columns[f"videos/{camera}/file_index"] = ids // per_video % 1000
        start = ids % per_video * LENGTH / FPS
        columns[f"videos/{camera}/from_timestamp"] = start
        columns[f"videos/{camera}/to_timestamp"] = start + LENGTH / FPS
    pq.write_table(pa.table(columns), root / "meta/episodes/chunk-000/file-000.parquet")


def read(root: str, seconds: float, warm: int) -> dict[str, Any]:
    """Read batches with the defaults of `Loader`: figures of this process."""
    import warnings

    import understudy as us

    warnings.simplefilter("ignore")
    before = common.anonymous_bytes()
    begun = time.perf_counter()
    with us.Loader(root, batch_size=32, seed=0, rank=0, world_size=1) as loader:
        digest = float(next(loader)["action"].double().sum())
        first_s = time.perf_counter() - begun
        largest = 0
        while loader.position < warm:
            next(loader)
        samples = 0
        cpu = common.cpu_seconds()
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            samples += len(next(loader)["index"])
            largest = max(largest, common.anonymous_bytes() - before)
        wall = time.perf_counter() - started
        used = common.cpu_seconds() - cpu
        planned = loader.plan.bytes
    return {
        "first_s": first_s,
        "cpu_ms": used / samples * 1e3,
        "samples_s": samples / wall,
        "anonymous_mb": largest / 1e6,
        "planned_mb": planned / 1e6,
        "first_batch": digest,
    }


def decode_all(root: str) -> dict[str, Any]:
    """Read a sample of every data file, so that all columns are decoded: seconds."""
    import understudy as us

    begun = time.perf_counter()
    cpu = common.cpu_seconds()
    data = us.EpisodeDataset(root, keys=list(VECTORS))
    episodes = np.arange(0, data.num_episodes, PER_DATA)
    data.keep_rows(1 << 30, 0, readers=os.cpu_count() or 1)
    for some in np.array_split(episodes, -(-len(episodes) // 64)):
        data.batch(some, np.zeros_like(some))
    return {
        "decode_all_s": time.perf_counter() - begun,
        "decode_all_cpu_s": common.cpu_seconds() - cpu,
    }


def _drop(folder: Path) -> None:
    """Leave the files of a folder out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(part: str, tree: str, cache: Path, **setting: Any) -> dict[str, Any]:
    """Run one part in a process of its own, with the code of a checkout."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    environment["PYTHONPATH"] = common.sources(tree)
    command = common.child(__file__, part, **setting)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=3600, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def rival(name: str, python: str, root: Path, seconds: float) -> dict[str, Any]:
    """Measure the loader of another library: its figures, or why it has none."""
    place = root
    with loader_rivals.Rival(name, python) as process:
        copy: dict[str, Any] = {}
        if name == "lance":
            place = root.parent / "lance"
            copy = process.ask(convert=str(root), out=str(place))
        cores = os.cpu_count() or 1
        found = (
            copy
            if "missing" in copy
            else process.ask(root=str(place), batch=32, chunk=1, workers=cores, seconds=seconds)
        )
        peak_mb = process.peak_mb
        version = process.version
    if "missing" in found:
        return {"version": version, "missing": found["missing"]}
    return {
        "version": version,
        "first_s": found["first_batch_s"],
        "cpu_ms": found["cpu_seconds"] / found["samples"] * 1e3,
        "samples_s": found["samples"] / found["seconds"],
        "peak_mb": peak_mb,
        "copy_s": copy.get("seconds"),
        "copy_gb": copy["bytes"] / 1e9 if copy else None,
    }


def main() -> None:
    parser = parsers.make_parser(__doc__, whole=True)
    parser.add_argument("--millions", type=float, nargs="+", default=[0.27, 2.7, 18.8])
    parser.add_argument(
        "--linked", type=float, default=50, help="million frames from which on data files are links"
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--warm", type=int, default=20_000, help="samples before the figures, in which lanes begin"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", default="", help="another checkout, measured in turns")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="folder for the datasets")
    parser.add_argument(
        "--copied", action="store_true", help="copies of the video in place of links"
    )
    parser.add_argument(
        "--python", nargs="+", default=[], help="rivals, NAME=PATH of an interpreter each"
    )
    parser.add_argument("--part", nargs=2, help="of a process")
    options = parser.parse_args()
    if options.part:
        part = {"read": read, "decode_all": decode_all}[options.part[0]]
        print(json.dumps(part(**json.loads(options.part[1]))))
        return
    trees = {"now": str(Path(__file__).parents[2])} | (
        {"before": options.before} if options.before else {}
    )
    rows: list[dict[str, Any]] = []
    for millions in options.millions:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            root = Path(folder, "set")
            write(root, round(millions * 1e6), round(options.linked * 1e6), options.copied)
            reading = {"root": str(root), "seconds": options.seconds, "warm": options.warm}
            found: dict[str, list[dict[str, Any]]] = {}
            for _ in range(options.rounds):
                for name, tree in trees.items():
                    cache = Path(folder, f"cache-{name}")
                    shutil.rmtree(cache, ignore_errors=True)
                    _drop(root)
                    cold = measure("read", tree, cache, **reading)
                    decoded = (
                        measure("decode_all", tree, cache, root=str(root)) if name == "now" else {}
                    )
                    _drop(cache)
                    again = measure("read", tree, cache, **reading)
                    found.setdefault(f"{name} cold", []).append(cold)
                    found.setdefault(f"{name} again", []).append(again | decoded)
            for text in options.python:
                name, python = text.split("=", 1)
                own = name if name in loader_rivals.INTERPRETERS else f"{name}-torchcodec"
                row: dict[str, Any] = {"name": name, "frames": round(millions * 1e6)}
                rows.append(row | rival(own, python, root, options.seconds))
                common.say(rows[-1])
            for name, results in found.items():
                row = {"name": name, "frames": round(millions * 1e6), "rounds": len(results)}
                row["row_gb"] = round(millions * 72e-3, 3)
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
