"""Tools divided among processes: CPU time beside one process, equality after kills, and a simulation of large clusters.

    python benchmarks/scale_out.py --json

A recorded set of two cameras is checked (all images) and transcoded by 1, 2 and 5 processes. CPU seconds are those of
the command and all its processes; the ratio to one process is the median over rounds, in which the three follow each
other. The output must be the same to the byte. Then processes of an edit with a `--work` folder, and its command, are
killed at random until the kills are reached.

The simulation gives parts in order to workers, each part with the CPU time of its rows or images. The driver starts,
stores and merges one part at a time, with the seconds per part that were measured here.
"""

import ctypes
import heapq
import json
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
from pathlib import Path
from typing import Any

import numpy as np

from common import make_parser
from understudy.check import row_facts
from understudy.data.format.catalog import Catalog
from understudy.data.write.writer import EpisodeWriter
from understudy.parts import Part, Workers

CAMERAS = ("observation.images.top", "observation.images.wrist")
CHECK = ("check", "{source}", "--depth", "all", "--json")
EDIT = ("edit", "{source}", "{out}", "--codec", "libx264", "--gop", "4", "--json")


def record(root: Path, episodes: int, frames: int) -> None:
    """Record moving squares from two cameras, with 14 joints."""
    rng = np.random.default_rng(0)
    features: dict[str, dict[str, Any]] = {key: {"dtype": "video", "shape": (96, 128, 3)} for key in CAMERAS}
    features |= {key: {"dtype": "float32", "shape": (14,)} for key in ("action", "observation.state")}
    with EpisodeWriter(root, fps=30, features=features, codec="libx264") as writer:
        for _ in range(episodes):
            path = np.cumsum(rng.normal(size=(frames, 14)), axis=0)
            for frame in range(frames):
                image = np.full((96, 128, 3), 90, np.uint8)
                x, y = (int(40 + 30 * np.sin(value / 9)) for value in path[frame, :2])
                image[y : y + 20, x : x + 20] = (200, 40, frame % 256)
                row: dict[str, Any] = dict.fromkeys(CAMERAS, image)
                writer.add_frame(row | {"action": path[frame], "observation.state": path[frame] - 0.1}, task="move")
            writer.save_episode()


def wait_for_others() -> int:
    """Wait for processes that a command left to this one (`PR_SET_CHILD_SUBREAPER`); return those of 60 seconds."""
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
                results.append({k: v for k, v in report.items() if k != "seconds"} if name == "check" else content(out))
                shutil.rmtree(out, ignore_errors=True)
        ratios = {n: statistics.median(a / b for a, b in zip(seconds[n], seconds[1])) for n in (2, 5)}
        facts[name] = {
            "cpu_seconds": {n: round(statistics.median(times), 2) for n, times in seconds.items()},
            "cpu_ratio": {n: round(ratio, 3) for n, ratio in ratios.items()},
            "equal": all(result == results[0] for result in results),
        }
    return facts


def processes_of(work: Path) -> list[int]:
    """The process of a command with this folder, its fork server, and the processes that this forked."""
    listed = subprocess.run(["ps", "-eww", "-o", "pid=,ppid=,args="], capture_output=True, text=True).stdout
    lines = [line.split(None, 2) for line in listed.splitlines()]
    commands = [int(pid) for pid, _, words in lines if str(work) in words]
    for _ in range(2):  # children, and theirs
        parents = set(commands)
        commands += [
            int(pid)
            for pid, parent, words in lines
            if int(parent) in parents and int(pid) not in parents and "multiprocessing.forkserver" in words
        ]
    return commands


def kill(source: Path, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill edits at random; each is started again with its folder until it is done."""
    draw = random.Random(seed)
    run((*EDIT, "--workers", "1"), source=source, out=folder / "whole")
    whole = content(folder / "whole")
    counts = {"kills": 0, "of_commands": 0, "edits": 0, "thrice": 0, "wrong": 0, "left": 0}
    while counts["kills"] < kills:
        out, work = folder / "out", folder / f"work-{counts['edits']}"
        words = [*EDIT, "--workers", "2", "--work", str(work)]
        command = [sys.executable, "-m", "understudy", *(word.format(source=source, out=out) for word in words)]
        while not out.exists():
            driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            parts = len(list(work.glob("*.part")))
            while driver.poll() is None and counts["kills"] < kills:
                time.sleep(draw.uniform(0.02, 0.3))
                if len(list(work.glob("*.part"))) > parts and (victims := processes_of(work)):
                    victim, parts = draw.choice(victims), len(list(work.glob("*.part")))
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
    """CPU seconds of the driver for each part, and for the merge of a part of `row_facts.PART_ROWS` rows."""
    parts: list[Part] = [(number,) for number in range(1000)]
    begin = time.process_time()
    with Workers(2, folder=folder / "nothing") as workers:
        list(workers.run(Nothing(), parts))
    each = (time.process_time() - begin) / len(parts)
    catalog = Catalog.open(source)
    work = row_facts.ReadRows(catalog)
    part, facts = tuple(range(len(catalog.episodes.data))), row_facts.RowFacts(len(catalog.episodes))
    begin = time.process_time()
    result = work(part)
    read = (time.process_time() - begin) / result.rows
    begin = time.process_time()
    facts.merge(result, work.rows_of(part), catalog)
    merge = (time.process_time() - begin) / catalog.num_episodes
    return {"part": each, "merge_of_an_episode": merge, "row": read}


def simulate(episodes: int, workers: int, per_frame: float, frames_of_part: int, driver: float) -> dict[str, float]:
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


def main() -> int:
    """Measure, kill, simulate and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: fork servers outlive their command for a moment
    folder = Path(tempfile.mkdtemp(prefix="understudy-scale-"))
    try:
        source = folder / "source"
        record(source, options.episodes, options.frames)
        facts = compare(source, folder, options.rounds)
        record(folder / "small", 12, 100)
        facts["kills"] = kill(folder / "small", folder, options.kills, options.seed) if options.kills else {}
        driver = measure_driver(source, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    frames = options.episodes * options.frames
    image = facts["check"]["cpu_seconds"][1] / (frames * len(CAMERAS))
    facts["driver"] = {name: float(f"{value:.3g}") for name, value in driver.items()} | {"image": float(f"{image:.3g}")}
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
