"""Figures of `us.Loader` without settings: the order that it chooses, its cost, its first seconds
and its mixing.

    python lab/benchmarks/defaults.py [--json] [--quick] [--real DIR] [--cache DIR] [--out FILE]
                                  [--parts measured,verified,waiting] [--only NAME]

`measured`: re-encodings of eight episodes, real (`--real`, or UNDERSTUDY_TEST_DATA) or drawn,
joined 1, 4, 8 and 20 times, each with a memory of 1 and 4 GB:
`us.Loader(PATH, batch_size=32, seed=0, memory=M, delta_timestamps=16 actions)` and nothing else, in
a process of its own. A consumer takes 50 ms a step for five seconds after the first batch
(`start_waiting`); `start_cpu_ms` is of the 100 batches after the third, all opening of lanes
included. Then rounds without a step alternate with decoding in a row: 256 consecutive frames of the
same video, read 8 at a time into RGB memory that is used again, on each core at once; larger reads
were slower. CPU times are user and system time of the process, all rounds together; work ahead
between rounds counts. In a loader that keeps its images decoded, the first 100 batches are of the
first epoch, and rounds later than that only copy.

`verified`: frames in uniform order that no memory keeps, at GOP 2 and 250, beside
`order/cost.uniform_cost`.

`waiting`: batches of 8 from one and three cameras of 480 lines. A step sleeps, as a host does while
its GPU computes. Two loaders of each row have the seconds from the path to the first batch, with
libraries imported, and the share of waiting in two stretches of five seconds after it. Other
loaders are in `loader_rivals.py`.

A whole run takes about 20 minutes; with `--out` each row is written as it is measured, and a later
run continues.
"""

import argparse
import json
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import OtherLoader, Results, add_dataset_arguments, child
from loader_sets import Encoding, Recording, encodings, joined
from order_audit import as_read, deff_of
from parsers import make_parser

BATCH = 32
CHUNK = 16
# LEAST: batches of a round
STEP_S = 0.05
START_S = 5.0
START_BATCHES = 100
LEAST = 16
TILES = (1, 4, 8, 20)
MEMORIES = (1, 4)
AT_ONCE = 8
IN_A_ROW = 256
PARTS = ("measured", "verified", "waiting")
WAITING = ((2, 1, 10), (2, 1, 50), (2, 3, 50), (30, 1, 10), (30, 3, 10), (30, 3, 50))
"""GOP, cameras, milliseconds of a step."""


@dataclass(frozen=True)
class Row:
    """A dataset and a memory in GB; `uniform` for the order of `verified`."""

    root: Path
    encoding: Encoding
    height: int
    memory: float
    uniform: bool = False

    @property
    def name(self) -> str:
        return f"{self.root.name}-{self.memory:g}GB" + ("-uniform" if self.uniform else "")


def rows(cache: Path, real: Path | None, quick: bool) -> Iterator[Row]:
    """Rows to measure, their datasets made where they are missing."""
    recorded = Recording(cache, real, quick)
    cache = recorded.cache
    for encoding in encodings(quick):
        whole = encoding.height == 0
        short = encoding.gop == 2
        if not quick and (encoding.codec == "libsvtav1") != (whole and short):
            continue  # AV1 for 480 lines with GOP 2, as LeRobot records; H.264 for all others
        height = encoding.height or recorded.height
        for tiles in TILES[:1] if quick else TILES:
            name = f"defaults-{encoding.codec.removeprefix('lib')}-g{encoding.gop}-{height}-{tiles}"
            root = joined(cache / name, recorded.encoded(encoding), tiles, 1)
            yield from (
                Row(root, encoding, height, memory)
                for memory in (MEMORIES[:1] if quick else MEMORIES)
            )
            if quick or (tiles == TILES[1] and encoding.gop in (2, 250)):
                yield Row(root, encoding, height, 0.05 if quick else 0.25, uniform=True)


def serve_loader(root: str, memory: float, uniform: bool) -> None:
    """Measure the default loader in this process: a request a line on stdin, the figures so far a
    line on stdout.
    """
    import understudy as us
    from understudy_data.testing.peak_memory import start_peak

    def answer(**figures: Any) -> None:
        print(json.dumps(figures), flush=True)

    data = us.EpisodeDataset(root)
    data.batch(*data.locate([0]))  # loads code and codecs, which the loader's plan does not count
    windows = {"action": [i / data.catalog.fps for i in range(CHUNK)]}
    del data
    answer(version=us.__version__)
    loader: us.Loader | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if loader is None:
            before = start_peak()
            order: dict[str, Any] = {"batch_size": BATCH, "seed": 0}
            if uniform:
                data = us.EpisodeDataset(root, delta_timestamps=windows)
                order = {"order": us.Order.from_datasets([data], **order, mode="uniform")}
            begin = time.perf_counter()
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                loader = us.Loader(root, memory=f"{memory}GB", delta_timestamps=windows, **order)
            next(loader)
            about = {
                "first_batch_s": time.perf_counter() - begin,
                "advice": " ".join(str(w.message) for w in warned),
            }
            if not uniform:
                about |= start_figures(loader, request["seconds"], request["batches"])
            answer(**about, **plan_figures(loader, before))
            spent = cpu_seconds()
        else:
            begin = time.perf_counter()
            batches = 0
            while batches < request["batches"] or time.perf_counter() - begin < request["seconds"]:
                next(loader)
                batches += 1
            spent, earlier = cpu_seconds(), spent
            answer(
                cpu_s=spent - earlier,
                samples=batches * BATCH,
                peak_mb=plan_figures(loader, before)["peak_mb"],
            )


def start_figures(loader: Any, seconds: float, batches: int) -> dict[str, float]:
    """Waiting of a consumer that takes 50 ms a step, after the first batch, and CPU time of batches
    4 and later.
    """
    begin = time.perf_counter()
    waited = 0.0
    share = -1.0
    steps = 1
    spent = cpu_seconds()
    while share < 0 or steps < batches + 3:
        if steps == 3:
            spent = cpu_seconds()
        if share < 0:
            time.sleep(STEP_S)
        asked = time.perf_counter()
        next(loader)
        waited += time.perf_counter() - asked
        steps += 1
        if share < 0 and (passed := time.perf_counter() - begin) >= seconds and steps > 3:
            share = waited / passed
    return {
        "start_waiting": share,
        "start_cpu_ms": 1e3 * (cpu_seconds() - spent) / (steps - 3) / BATCH,
    }


def plan_figures(loader: Any, before: int) -> dict[str, Any]:
    """The order and its figures, and memory in MB: planned, and grown since `before`."""
    from understudy_data.load.choose_order import order_cost
    from understudy_data.load.images.source_facts import read_facts
    from understudy_data.order.design_effect import expected_uniform
    from understudy_data.testing.peak_memory import peak_bytes

    peak = (peak_bytes() - before) / 1e6
    spec = loader.order.spec.sources[0]
    plan = loader.plan
    read, lengths = as_read(loader.order)
    uniform = [expected_uniform(lengths, min(count * BATCH, spec.frames)) for count in (1, 8, 64)]
    return {
        "frames": spec.frames,
        "order": "uniform" if spec.clip == 1 else f"{spec.lanes} lanes of {spec.clip}",
        "resident": all(plan.keeps_decoded),
        "estimate": order_cost(
            [read_facts(data) for data in loader._datasets], loader.order.spec, plan, 1
        ),
        "deff": deff_of(read, BATCH, 0, max(spec.frames, 64 * BATCH * 8))[0],
        "deff_uniform": uniform,
        "planned_mb": plan.bytes / 1e6,
        "peak_mb": peak,
    }


def cpu_seconds() -> float:
    """User and system time of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def serve_rows() -> None:
    """Measure decoding in a row, as `serve_loader`: {"root"} -> {"cpu_ms"}."""
    from understudy import EpisodeDataset, __version__, keep_freed_memory
    from understudy_base import available_cores
    from understudy_data.video.reader import open_video

    keep_freed_memory()
    print(json.dumps({"version": __version__}), flush=True)
    readers: dict[str, list[Callable[[], float]]] = {}
    with ThreadPoolExecutor(cores := available_cores()) as threads:
        for line in sys.stdin:
            root = json.loads(line)["root"]
            if root not in readers:
                data = EpisodeDataset(root)
                camera = data.catalog.camera_keys[0]
                source = data.catalog.files.source(data.catalog.video_path(camera, 0))
                readers = {root: [in_a_row(open_video(source)) for _ in range(cores)]}
                list(threads.map(lambda read: read(), readers[root]))
            times = list(threads.map(lambda read: read(), readers[root]))
            print(json.dumps({"cpu_ms": sum(times) / len(times)}), flush=True)


def in_a_row(reader: Any) -> Callable[[], float]:
    """Reading of the next 256 frames, 8 at a time, from the start again at the end: CPU
    milliseconds per frame.
    """
    import numpy as np

    place = reader.count

    def read() -> float:
        nonlocal place
        size = min(IN_A_ROW, reader.count)
        if place + size > reader.count:
            place = 0
        begin = time.thread_time()
        stop = place + size
        for first in range(place, stop, AT_ONCE):
            reader.read(np.arange(first, min(first + AT_ONCE, stop)))
        place = stop
        return 1e3 * (time.thread_time() - begin) / size

    return read


def measure_row(
    row: Row, rows_process: Any, start: dict[str, float], seconds: float, rounds: int
) -> dict[str, Any]:
    """Measure one row, in turns with decoding in a row; `start` is the first request."""

    def in_row() -> float:
        return float(rows_process.require(root=str(row.root))["cpu_ms"])

    base = [in_row()]
    ours = []
    with OtherLoader(
        child(__file__, "loader", root=str(row.root), memory=row.memory, uniform=row.uniform)
    ) as loader:
        results = loader.require(**start)
        for _ in range(rounds):
            base.append(in_row())
            ours.append(loader.require(seconds=seconds, batches=2 if row.uniform else LEAST))
    about = {
        "name": row.name,
        "codec": row.encoding.codec,
        "gop": row.encoding.gop,
        "height": row.height,
    }
    about |= {
        "memory_gb": row.memory,
        **results,
        "peak_mb": max(results["peak_mb"], *(one["peak_mb"] for one in ours)),
    }
    cpu = 1e3 * sum(one["cpu_s"] for one in ours) / sum(one["samples"] for one in ours)
    single = median(base)
    about |= {"cpu_ms": cpu, "in_a_row_ms": single, "ratio": cpu / single}
    if "start_cpu_ms" in about:
        about["start_ratio"] = about["start_cpu_ms"] / single
    return about


def waiting_row(
    root: Path, cameras: int, step_ms: float, seconds: float, rounds: int
) -> dict[str, Any]:
    """Seconds to the first batch, and shares of waiting in two stretches after it, of each of
    `rounds` loaders.
    """
    from understudy import EpisodeDataset, Loader

    catalog = EpisodeDataset(root).catalog
    windows = {"action": [i / catalog.fps for i in range(CHUNK)]}
    row: dict[str, Any] = {
        "name": f"{root.name}-{step_ms}ms",
        "cameras": cameras,
        "step_ms": step_ms,
        "rounds": [],
    }
    for seed in range(rounds):
        begin = time.perf_counter()
        with Loader(root, batch_size=8, seed=seed, delta_timestamps=windows) as loader:
            batch = next(loader)
            first = time.perf_counter() - begin
            shares = []
            for _ in range(2):
                begin = time.perf_counter()
                waited = 0.0
                while (passed := time.perf_counter() - begin) < seconds:
                    time.sleep(step_ms / 1000)
                    asked = time.perf_counter()
                    batch = next(loader)  # held during the step, as a training loop does
                    waited += time.perf_counter() - asked
                shares.append(waited / passed)
            del batch
        row["rounds"].append({"first_batch_s": first, "waiting": shares})
    return row


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts, as far as `--out` lacks them."""
    real = Path(arguments.real) if arguments.real else None
    quick = arguments.quick
    parts = arguments.parts.split(",")
    if not set(parts) <= set(PARTS):
        raise SystemExit(f"--parts {arguments.parts}: they are {','.join(PARTS)}")
    seconds, rounds = (0.1, 1) if quick else (arguments.seconds, arguments.rounds)
    settings = {
        "recordings": "real" if real else "drawn",
        "quick": quick,
        "seconds": seconds,
        "rounds": rounds,
    }
    results = Results(PARTS, arguments.out, **settings)
    start = {"seconds": 0.3 if quick else START_S, "batches": 3 if quick else START_BATCHES}
    if {"measured", "verified"} & set(parts):
        with OtherLoader(child(__file__, "rows")) as rows_process:
            for row in rows(arguments.cache, real, quick):
                part = "verified" if row.uniform else "measured"
                if part in parts and not results.has(part, row.name) and arguments.only in row.name:
                    measured = measure_row(row, rows_process, start, seconds, rounds)
                    results.add(part, measured, render_row(measured))
    recorded = Recording(arguments.cache, real, quick)
    for gop, cameras, step_ms in WAITING if "waiting" in parts else ():
        encoding = Encoding("libsvtav1", 2, 0) if gop == 2 else Encoding("libx264", 30, 0, 23)
        root = recorded.cache / f"waiting-g{gop}-{cameras}"
        if not results.has("waiting", f"{root.name}-{step_ms}ms") and arguments.only in root.name:
            joined(root, recorded.encoded(encoding), 1 if quick else 32, cameras)
            row = waiting_row(root, cameras, step_ms, START_S * (0.1 if quick else 1), 2)
            results.add("waiting", row, render_waiting(row))
    return results.found


def render_row(row: dict[str, Any]) -> str:
    """A measured row on one line."""
    kept = " (decoded)" if row["resident"] else ""
    start = (
        f"{row['start_ratio']:5.2f} {row['start_waiting']:6.1%}"
        if "start_ratio" in row
        else f"{'':12}"
    )
    deff = " / ".join(f"{value:.2f}" for value in row["deff"])
    return (
        f"{row['name']:<34} {row['order'] + kept:<24} {row['cpu_ms']:7.2f} "
        f"{row['in_a_row_ms']:6.2f} {row['ratio']:6.2f} ({row['estimate']:.2f}) {start} "
        f"{row['first_batch_s']:6.2f} s {row['peak_mb']:6.0f} of {row['planned_mb']:6.0f} MB  "
        f"{deff}"
    )


def render_waiting(row: dict[str, Any]) -> str:
    """A row of waiting on one line."""
    first = ", ".join(f"{part['first_batch_s']:.2f} s" for part in row["rounds"])
    shares = ", ".join(
        " then ".join(f"{share:.1%}" for share in part["waiting"]) for part in row["rounds"]
    )
    return f"{row['name']:<24} first batch {first}; waiting {shares}"


def render(results: dict[str, Any]) -> str:
    """All rows."""
    lines = [
        "name, order, CPU ms, in a row, ratio (estimate), of the start, waiting, first batch, "
        "memory, deff 1/8/64"
    ]
    lines += [render_row(row) for part in PARTS[:2] for row in results[part]]
    lines += [render_waiting(row) for row in results["waiting"]]
    return "\n".join(lines)


def main() -> None:
    parser = make_parser(__doc__)
    add_dataset_arguments(parser, seconds=1.0, rounds=3)
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="parts to measure, of " + ",".join(PARTS)
    )
    arguments = parser.parse_args()
    if arguments.part:
        part, setting = arguments.part
        serve_loader(**json.loads(setting)) if part == "loader" else serve_rows()
    else:
        results = measure(arguments)
        print(json.dumps(results) if arguments.json else render(results))


if __name__ == "__main__":
    main()
