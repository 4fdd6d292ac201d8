"""Tools divided among processes: CPU time beside one process, equality after kills, and a
simulation of large clusters.

    python lab/benchmarks/scale_out.py --json

A recorded set of two cameras is checked (all images) and transcoded by 1, 2 and 5 processes. CPU
seconds are those of the command and all its processes; the ratio to one process is the median over
rounds, in which the three follow each other. The output must be the same to the byte. Then
processes of an edit with a `--work` folder, and its command, are killed at random until the kills
are reached.

The simulation gives parts in order to workers, each part with the CPU time of its rows or images.
The driver starts, stores and merges one part at a time, with the seconds per part that were
measured here.

    python lab/benchmarks/scale_out.py --loaders 256 --batch 8192 --millions 18.8

makes the loaders of so many ranks in turn, each in a process of its own with all defaults, and
takes the first batch of each. The dataset is that of `rows.py`, whose columns are decoded by the
first rank that reads a file.

    exact               the samples of all ranks together are the batch that the order names, each
                        once
    video_ratio         bytes of videos that all ranks have read when their first batch is there,
                        over those that decoding its samples needs, from the key frame on; clips
                        serve the next batches, too
    row_mb              resident pages of the mapped columns of a rank, beside `needed_row_mb` of
                        its samples
    other_mb            bytes of other files that a rank has read: those of the data files that it
                        decodes for the host
    first_s, cpu_s      seconds and CPU seconds from the dataset's path to the first batch
    anonymous_mb        largest of all ranks, beside the plan of each
"""

import argparse
import ctypes
import heapq
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import av
import numpy as np

import rows
import understudy as us
from common import anonymous_bytes, conditions, cpu_seconds
from parsers import make_parser
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.parts import Part, Workers
from understudy_data.storage.byte_source import LocalSource
from understudy_tools.check import row_facts

CAMERAS = ("observation.images.top", "observation.images.wrist")
CHECK = ("check", "{source}", "--depth", "all", "--json")
ROW = 2 * 7 * 4 + 4 + 2 * 8
"""Bytes of the columns of a row in the dataset of `rows.py`."""
EDIT = ("edit", "{source}", "{out}", "--codec", "libx264", "--gop", "4", "--json")


def record(root: Path, episodes: int, frames: int) -> None:
    """Record moving squares from two cameras, with 14 joints."""
    rng = np.random.default_rng(0)
    features: dict[str, dict[str, Any]] = {
        key: {"dtype": "video", "shape": (96, 128, 3)} for key in CAMERAS
    }
    features |= {
        key: {"dtype": "float32", "shape": (14,)} for key in ("action", "observation.state")
    }
    with EpisodeWriter(root, fps=30, features=features, codec="libx264") as writer:
        for _ in range(episodes):
            path = np.cumsum(rng.normal(size=(frames, 14)), axis=0)
            for frame in range(frames):
                image = np.full((96, 128, 3), 90, np.uint8)
                x, y = (int(40 + 30 * np.sin(value / 9)) for value in path[frame, :2])
                image[y : y + 20, x : x + 20] = (200, 40, frame % 256)
                row: dict[str, Any] = dict.fromkeys(CAMERAS, image)
                writer.add_frame(
                    row | {"action": path[frame], "observation.state": path[frame] - 0.1},
                    task="move",
                )
            writer.save_episode()


def wait_for_others() -> int:
    """Wait for processes that a command left to this one (`PR_SET_CHILD_SUBREAPER`); return those
    of 60 seconds.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return 0
    return 1


def run(words: tuple[str, ...], **places: Path) -> tuple[str, float]:
    """Run a command; return its output and the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "understudy", *(word.format(**places) for word in words)]
    done = subprocess.run(command, capture_output=True, text=True)
    wait_for_others()
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def content(root: Path) -> dict[str, bytes]:
    """All files but the origin, which names the command."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "edit.json"
    }


def compare(source: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """CPU seconds of 1, 2 and 5 processes, and whether the results are equal."""
    facts: dict[str, Any] = {}
    for name, words in (("check", CHECK), ("edit", EDIT)):
        seconds: dict[int, list[float]] = {1: [], 2: [], 5: []}
        results = []
        for number in range(rounds):
            for count in seconds:
                out = folder / f"{name}-{number}-{count}"
                printed, used = run((*words, "--workers", str(count)), source=source, out=out)
                seconds[count].append(used)
                report = json.loads(printed)
                results.append(
                    {k: v for k, v in report.items() if k != "seconds"}
                    if name == "check"
                    else content(out)
                )
                shutil.rmtree(out, ignore_errors=True)
        ratios = {
            n: statistics.median(a / b for a, b in zip(seconds[n], seconds[1])) for n in (2, 5)
        }
        facts[name] = {
            "cpu_seconds": {n: round(statistics.median(times), 2) for n, times in seconds.items()},
            "cpu_ratio": {n: round(ratio, 3) for n, ratio in ratios.items()},
            "equal": all(result == results[0] for result in results),
        }
    return facts


def processes_of(work: Path) -> list[int]:
    """The process of a command with this folder, its fork server, and the processes that this
    forked.
    """
    listed = subprocess.run(
        ["ps", "-eww", "-o", "pid=,ppid=,args="], capture_output=True, text=True
    ).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()]
    commands = [int(pid) for pid, _, words in lines if str(work) in words]
    for _ in range(2):  # children, and theirs
        parents = set(commands)
        commands += [
            int(pid)
            for pid, parent, words in lines
            if int(parent) in parents
            and int(pid) not in parents
            and "multiprocessing.forkserver" in words
        ]
    return commands


def kill(source: Path, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill edits at random; each is started again with its folder until it is done."""
    draw = random.Random(seed)
    run((*EDIT, "--workers", "1"), source=source, out=folder / "whole")
    whole = content(folder / "whole")
    counts = {"kills": 0, "of_commands": 0, "edits": 0, "thrice": 0, "wrong": 0, "left": 0}
    while counts["kills"] < kills:
        out = folder / "out"
        work = folder / f"work-{counts['edits']}"
        words = [*EDIT, "--workers", "2", "--work", str(work)]
        command = [
            sys.executable,
            "-m",
            "understudy",
            *(word.format(source=source, out=out) for word in words),
        ]
        while not out.exists():
            driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            parts = len(list(work.glob("*.part")))
            while driver.poll() is None and counts["kills"] < kills:
                time.sleep(draw.uniform(0.02, 0.3))
                if len(list(work.glob("*.part"))) > parts and (victims := processes_of(work)):
                    victim = draw.choice(victims)
                    parts = len(list(work.glob("*.part")))
                    os.kill(victim, signal.SIGKILL)
                    counts["kills"] += 1
                    counts["of_commands"] += victim == driver.pid
            assert driver.stderr is not None
            thrice = b"it ended 3 processes" in driver.stderr.read()
            driver.wait()
            counts["thrice"] += thrice
            counts["wrong"] += driver.returncode not in (0, -signal.SIGKILL) and not thrice
            counts["left"] += wait_for_others()
        counts["edits"] += 1
        counts["wrong"] += content(out) != whole
        counts["left"] += work.exists()
        shutil.rmtree(out)
    return counts


class Nothing:
    """Work without work: the cost of a part in the driver."""

    def __call__(self, part: Part) -> None:
        return None

    def depends_on(self, part: Part) -> None:
        return None


def measure_driver(source: Path, folder: Path) -> dict[str, float]:
    """CPU seconds of the driver for each part, and for the merge of a part of `row_facts.PART_ROWS`
    rows.
    """
    parts: list[Part] = [(number,) for number in range(1000)]
    begin = time.process_time()
    with Workers(2, folder=folder / "nothing") as workers:
        list(workers.run(Nothing(), parts))
    each = (time.process_time() - begin) / len(parts)
    catalog = Catalog.open(source)
    work = row_facts.ReadRows(catalog)
    part = tuple(range(len(catalog.episodes.data)))
    facts = row_facts.RowFacts(len(catalog.episodes))
    begin = time.process_time()
    result = work(part)
    read = (time.process_time() - begin) / result.rows
    begin = time.process_time()
    facts.merge(result, work.rows_of(part), catalog)
    merge = (time.process_time() - begin) / catalog.num_episodes
    return {"part": each, "merge_of_an_episode": merge, "row": read}


def simulate(
    episodes: int, workers: int, per_frame: float, frames_of_part: int, driver: float
) -> dict[str, float]:
    """Hours until the last part is merged, and the share of the workers' time that is work."""
    lengths = np.random.default_rng(0).lognormal(5.5, 0.4, min(episodes, 10**6))
    frames = float(lengths.mean()) * episodes
    parts = int(frames / frames_of_part) + 1
    costs = np.random.default_rng(1).uniform(0.8, 1.2, parts) * frames_of_part * per_frame
    free = [0.0] * workers
    clock = 0.0
    for cost in costs.tolist():
        clock = max(clock + driver, free[0])  # the driver hands out one part at a time
        heapq.heapreplace(free, clock + cost)
    total = max(max(free), parts * driver)
    share = float(costs.sum()) / (total * workers)
    return {"parts": parts, "hours": round(total / 3600, 3), "busy": round(share, 3)}


def load_first_batch(root: Path, batch: int, rank: int, world: int) -> dict[str, Any]:
    """Make the loader of a rank with all defaults and take its first batch: figures of this
    process.

    `video` has the bytes that were read from videos until then, read-ahead included, `others` those
    of all other reads by calls, `samples` (episode, frame) of each sample.
    """
    read = Counter[str]()
    fill = LocalSource.fill
    all_before = read_bytes()

    def count(source: LocalSource, offset: int, memory: memoryview) -> None:
        read[Path(source.where).suffix] += len(memory)
        fill(source, offset, memory)

    anonymous = anonymous_bytes()
    cpu = cpu_seconds()
    begun = time.perf_counter()
    place = {"rank": rank, "world_size": world}
    with (
        mock.patch.object(LocalSource, "fill", count),
        us.Loader(root, batch_size=batch, seed=0, **place) as loader,
    ):
        first = next(loader)
        facts = {
            "first_s": time.perf_counter() - begun,
            "cpu_s": cpu_seconds() - cpu,
            "video": read[".mp4"],
        }
        facts["others"] = read_bytes() - all_before - read[".mp4"]
        facts |= {
            "anonymous": anonymous_bytes() - anonymous,
            "planned": loader.plan.bytes,
            "mapped": mapped_bytes(),
        }
    numbers = [first[key].tolist() for key in ("episode_index", "frame_index")]
    return facts | {"samples": list(zip(*numbers))}


def named_batch(root: Path, batch: int, world: int) -> list[tuple[int, int]]:
    """Episode and frame of each sample of the first batch, by the order of the loaders."""
    with us.Loader(root, batch_size=batch, seed=0, rank=0, world_size=world) as loader:
        _, episode, frame = loader.order.locate(np.arange(batch))
    return list(zip(episode.tolist(), frame.tolist()))


def decoded_bytes(root: Path, samples: Sequence[tuple[int, int]]) -> int:
    """Bytes of the packets that decoding these samples needs: for each camera, from the key frame
    to the sample.
    """
    with av.open(str(root / "video.mp4")) as video:
        packets = [packet for packet in video.demux(video=0) if packet.size]
    ends = np.cumsum([packet.size for packet in packets])
    keys = np.maximum.accumulate(
        [number if packet.is_keyframe else 0 for number, packet in enumerate(packets)]
    )
    begins = np.concatenate([[0], ends[:-1]])[keys]
    episode, frame = np.array(samples).T
    place = episode % rows.PER_VIDEO * rows.LENGTH + frame
    return int((ends[place] - begins[place]).sum()) * len(rows.CAMERAS)


def read_bytes() -> int:
    """Bytes of all reads of this process by calls, Linux alone."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def mapped_bytes() -> int:
    """Resident bytes of the columns that this process maps."""
    total = 0
    is_counted = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            is_counted = "/understudy/rows/" in line
        elif is_counted and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


def load_in_turn(root: Path, batch: int, world: int) -> dict[str, Any]:
    """Take the first batch of each rank, in processes that follow each other."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        named = pool.apply(named_batch, (root, batch, world))
        before = pool.apply(load_first_batch, (root, batch, 0, world))
        ranks = [pool.apply(load_first_batch, (root, batch, rank, world)) for rank in range(world)]
    needed = decoded_bytes(root, named) / world
    row = batch // world * ROW
    keys = ("first_s", "cpu_s", "anonymous", "mapped", "video", "others")
    found = {key: np.array([one[key] for one in ranks]) for key in keys}
    return {
        "exact": Counter(sample for one in ranks for sample in one["samples"]) == Counter(named),
        "distinct": len(set(named)),
        "episodes": len({episode for episode, _ in named}),
        "needed_video_mb": needed / 1e6,
        "video_mb": spread(found["video"] / 1e6),
        "video_ratio": float(found["video"].mean() / needed),
        "needed_row_mb": row / 1e6,
        "row_mb": spread(found["mapped"] / 1e6),
        "other_mb": spread(found["others"] / 1e6),
        "first_of_the_host_s": before["first_s"],
        "first_s": spread(found["first_s"]),
        "cpu_s": spread(found["cpu_s"]),
        "anonymous_mb": spread(found["anonymous"] / 1e6),
        "planned_mb": ranks[0]["planned"] / 1e6,
    }


def spread(values: np.ndarray) -> dict[str, float]:
    """Median and largest of a figure of each rank."""
    return {"median": float(np.median(values)), "most": float(values.max())}


def measure_loaders(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Write the dataset, and measure the loaders with a cache of their own."""
    folder = Path(options.folder) if options.folder else folder
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    root = folder / "rows"
    if not root.exists():
        rows.write(root, round(options.millions * 1e6), 10**9)
    size = sum(path.stat().st_size for path in (root / "data").rglob("*.parquet"))
    facts = {
        "million_frames": options.millions,
        "row_files_mb": size / 1e6,
        "conditions": conditions(),
    }
    return facts | load_in_turn(root, options.batch, options.loaders)


def main() -> int:
    """Measure, kill, simulate and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--loaders", type=int, default=0, help="measure the loaders of so many ranks alone"
    )
    parser.add_argument(
        "--batch", type=int, default=8192, help="samples of a step of all these ranks"
    )
    parser.add_argument("--millions", type=float, default=18.8, help="frames of their dataset")
    parser.add_argument(
        "--folder", default="", help="folder that keeps their dataset; a later run reads it"
    )
    options = parser.parse_args()
    # PR_SET_CHILD_SUBREAPER: fork servers outlive their command for a moment
    ctypes.CDLL(None).prctl(36, 1)
    folder = Path(tempfile.mkdtemp(prefix="understudy-scale-"))
    try:
        if options.loaders:
            found = measure_loaders(options, folder)
            print(json.dumps(found) if options.json else json.dumps(found, indent=1))
            return 0 if found["exact"] else 1
        source = folder / "source"
        record(source, options.episodes, options.frames)
        facts = compare(source, folder, options.rounds)
        record(folder / "small", 12, 100)
        facts["kills"] = (
            kill(folder / "small", folder, options.kills, options.seed) if options.kills else {}
        )
        driver = measure_driver(source, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    frames = options.episodes * options.frames
    image = facts["check"]["cpu_seconds"][1] / (frames * len(CAMERAS))
    facts["driver"] = {name: float(f"{value:.3g}") for name, value in driver.items()} | {
        "image": float(f"{image:.3g}")
    }
    merge = driver["part"] + driver["merge_of_an_episode"] * row_facts.PART_ROWS / 270
    facts["simulation"] = [
        {"episodes": episodes, "workers": workers}
        | {"rows": simulate(episodes, workers, driver["row"], row_facts.PART_ROWS, merge)}
        | {"images": simulate(3 * episodes, workers, image, 4096, driver["part"])}
        for episodes in (100_000, 10_000_000)
        for workers in (1, 80, 800)
    ]
    print(json.dumps(facts) if options.json else json.dumps(facts, indent=1))
    sound = facts["check"]["equal"] and facts["edit"]["equal"]
    return 0 if sound and not (facts["kills"].get("wrong") or facts["kills"].get("left")) else 1


if __name__ == "__main__":
    sys.exit(main())
