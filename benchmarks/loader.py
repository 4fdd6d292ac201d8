"""Loader benchmark: samples per second beside the decode limit and LeRobot, memory, first batch, remote data.

    python benchmarks/loader.py [--json] [--out FILE] [--parts rows,first,remote] [--only NAME] [--quick]
                                [--lerobot PYTHON] [--cache DIR]

The datasets are made once in the cache folder (about 2 GB; a few minutes), from the real recordings in
UNDERSTUDY_TEST_DATA where that is set, otherwise from drawn images. In each round the three decode limits, our loader
(in its own process) and LeRobot (in the interpreter given; null where it is missing) take turns. Figures are medians.
Of the limits (`cli/bench/decode_limit.py`, `loader_measure.py`), `limit` is plain reading by a standard library,
`codec` the bare codec, and `shuffled` the bare codec with frames that wait before delivery. The memory budget is
smaller than the decoded images, so this measures streaming, not copying. Only the real recordings are also measured
with enough memory ("-half": with too little). Datasets with one camera also have a row NAME-yuv, with
`"colors": "yuv"`: planes that the GPU converts.

A full run takes half an hour or more. With `--out` each row is in the file as soon as it is measured, and a later run
with the same file measures only missing rows. So the parts (datasets and rows without video; first batches; remote
data) can run separately, and a stopped run can continue.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from loader_measure import (
    MemoryTrial,
    OtherLoader,
    lerobot,
    limits,
    other_figures,
    picture_bytes,
    quality,
    wait_for_quiet,
)
from loader_remote import remote_rows
from loader_results import Results, render, say
from loader_sets import Set, rows_only, sets
from understudy._version import __version__
from understudy.cli.bench.measure import Round, Setting, conditions, median_round

BATCH, CHUNK = 32, 16
PARTS = ("rows", "first", "remote")
MEMORY = 10**9
COLORS = ("rgb", "yuv")
"""Forms of images between host and device. Without a GPU the planes of "yuv" are converted on the CPU."""


def serve(setting: Any) -> None:
    """Measure our loader in this process: one round per line on stdin, with its facts so far."""
    print(json.dumps({"version": __version__}), flush=True)
    trial = None
    for line in sys.stdin:
        trial = trial or MemoryTrial(setting)
        found = trial.measure(json.loads(line)["seconds"])
        print(json.dumps(asdict(found) | facts(trial)), flush=True)
    if trial:
        trial.close()


def facts(trial: Any) -> dict[str, Any]:
    """Facts about the loader beside a round's figures."""
    plan = trial.loader.plan
    return {
        "peak_mb": trial.peak_mb,
        "planned_mb": plan.bytes / 1e6,
        "held": trial.held,
        "resident": all(plan.keeps_decoded),
        "waited": trial.waited_share,
        "work": trial.work,
        "plan": str(plan),
    }


def first_batch(root: str) -> dict[str, float]:
    """Seconds to the first batch in a fresh process after its imports, and the frames that it must decode.

    These are the frames of each sample and all frames between the key frame and them.
    """
    import time

    from understudy import EpisodeDataset, Loader, Order  # noqa: F401

    setting = Setting(root, BATCH, CHUNK)
    start = time.perf_counter()
    data = setting.data()
    order = setting.order(data)
    loader = Loader([data], order=order, memory=setting.memory)
    next(loader)
    seconds = time.perf_counter() - start
    _, episode, frame = order.locate(range(BATCH))
    rows, frames = data.frames_to_decode(episode, frame)
    loader.close()
    pictures = 0
    for camera, wanted in frames.items():
        shown = data.catalog.videos(camera).first[rows] + wanted
        for row, number in zip(rows.tolist(), shown.tolist()):
            begin, end = data.video_frames.reader(camera, row).gops.packet_range(number, number)
            pictures += end - begin
    return {"seconds": seconds, "pictures": pictures}


def first_batch_elsewhere(root: str) -> dict[str, float]:
    """`first_batch` in a process of its own."""
    found: dict[str, float] = json.loads(subprocess.check_output(child("first", root=root)))
    return found


def child(part: str, **setting: Any) -> list[str]:
    return [sys.executable, __file__, "--part", part, json.dumps(setting)]


def measure_set(
    one: Set, rival: Any, known: dict[Path, Any], seconds: float, rounds: int, colors: str = "rgb"
) -> dict[str, Any]:
    """Measure one row. `known` has LeRobot's figures on earlier datasets by their path."""
    data = Setting(str(one.root), BATCH, CHUNK).data()
    memory = int(picture_bytes(data) * len(data) * one.memory)
    memory = memory if one.memory > 1 else min(MEMORY, memory)
    setting = Setting(str(one.root), BATCH, CHUNK, memory=str(memory), colors=colors)
    ours, theirs = [], []
    with OtherLoader(child("ours", **asdict(setting))) as loader:
        start = loader.measure(seconds=0)  # warm-up: lanes turn over, and the frames that they hold become known
        library, codec, shuffled = limits(data, start.get("held", 0))
        for _ in range(rounds):
            library.measure(seconds)
            codec.measure(seconds)
            shuffled.measure(seconds)
            ours.append(loader.measure(seconds=seconds))
            if "missing" in ours[-1]:
                raise SystemExit(f"{one.name}: our loader failed: {ours[-1]['missing']}")
            if rival and one.lerobot not in known:
                theirs.append(
                    rival.measure(root=str(one.lerobot), batch=BATCH, chunk=CHUNK, workers=2, seconds=seconds)
                )
                wait_for_quiet()
    figures = median_round([Round(each["samples"], each["seconds"], each["cpu_seconds"]) for each in ours])
    limit, strict, cold = (limit.figures() or {} for limit in (library, codec, shuffled))
    last = ours[-1]
    if theirs:
        known[one.lerobot] = other_figures(rival, theirs)
    other = known.get(one.lerobot, {})
    shuffle = quality(setting.order(data))
    return {
        "name": row_name(one, colors),
        "colors": colors,
        "codec": one.codec,
        "gop": one.gop,
        "height": one.height,
        "cameras": one.cameras,
        "samples_per_s": figures["samples_per_s"],
        "limit_per_s": limit.get("samples_per_s"),
        "over_limit": library.share(figures["samples_per_s"]),
        "limit_by": limit.get("by"),
        "codec_limit_per_s": strict.get("samples_per_s"),
        "over_codec_limit": codec.share(figures["samples_per_s"]),
        "shuffled_limit_per_s": cold.get("samples_per_s"),
        "over_shuffled_limit": shuffled.share(figures["samples_per_s"]),
        "cpu_ms_per_sample": figures["cpu_ms_per_sample"],
        "limit_cpu_ms_per_sample": limit.get("cpu_ms_per_sample"),
        "codec_limit_cpu_ms_per_sample": strict.get("cpu_ms_per_sample"),
        "shuffled_limit_cpu_ms_per_sample": cold.get("cpu_ms_per_sample"),
        "shuffled_limit_held": last["held"],
        "deff1": shuffle["deff"][0],
        "deff1_uniform": shuffle["deff_uniform"],
        "distinct_episodes": shuffle["distinct_episodes"],
        "peak_mb": last["peak_mb"],
        "planned_mb": last["planned_mb"],
        "memory_mb": memory / 1e6,
        "resident": last["resident"],
        "waited_share": last["waited"],
        "work": last["work"],
        "lerobot_cpu_ms_per_sample": other.get("cpu_ms_per_sample"),
        "lerobot_samples_per_s": other.get("samples_per_s"),
        "lerobot_distinct_episodes": other.get("distinct_episodes"),
        "lerobot_missing": other.get("missing"),
        "plan": last["plan"],
    }


def row_name(one: Set, colors: str) -> str:
    return one.name if colors == "rgb" else f"{one.name}-{colors}"


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure `parts` as far as `out` lacks them, into one object (`loader_results.py`)."""
    real = Path(os.environ["UNDERSTUDY_TEST_DATA"]) if os.environ.get("UNDERSTUDY_TEST_DATA") else None
    quick, cache, parts = arguments.quick, Path(arguments.cache), arguments.parts.split(",")
    if not set(parts) <= set(PARTS):
        raise SystemExit(f"--parts {arguments.parts}: they are {','.join(PARTS)}")
    seconds, rounds = (0.3, 1) if quick else (arguments.seconds, arguments.rounds)
    settings = {"recordings": "real" if real else "drawn", "quick": quick, "batch": BATCH, "chunk": CHUNK}
    settings |= {"rounds": rounds, "seconds": seconds, "lerobot": None}
    results = Results(Path(arguments.out) if arguments.out else None, conditions() | settings)
    if {"rows", "first"} & set(parts):
        say("making missing datasets in", cache)
        chosen = sets(cache, real, quick, arguments.only)
        if "rows" in parts:
            measure_rows(results, chosen, rows_only(cache, quick), arguments.lerobot, seconds, rounds)
        if "first" in parts:
            measure_first(results, chosen, rounds)
    if "remote" in parts:
        for row in remote_rows(cache, real, quick, known=[row["gop"] for row in results.found["remote"]]):
            results.add("remote", row)
    return results.found


def measure_rows(
    results: Results, chosen: list[Set], rows_root: Path, python: str, seconds: float, rounds: int
) -> None:
    """Measure the datasets one by one, then rows without video."""
    there, known = [row["name"] for row in results.found["rows"]], dict[Path, Any]()
    with lerobot(python) as rival:
        if rival.missing:
            say("LeRobot is not measured:", rival.missing)
        results.found["conditions"]["lerobot"] = rival.version or None
        theirs = None if rival.missing else rival
        for one in chosen:
            for colors in COLORS if one.cameras == 1 else COLORS[:1]:
                if row_name(one, colors) not in there:
                    rival_of = theirs if colors == "rgb" else None
                    results.add("rows", measure_set(one, rival_of, known, seconds, rounds, colors))
        if results.found["parquet_only_samples_per_s"] is not None:
            return
        with OtherLoader(child("ours", path=str(rows_root), batch=BATCH, chunk=CHUNK)) as loader:
            ours = [loader.measure(seconds=seconds) for _ in range(rounds)]
        asked = {"root": str(rows_root), "batch": BATCH, "chunk": CHUNK, "workers": 2, "seconds": seconds}
        other = other_figures(theirs, [theirs.measure(**asked) for _ in range(rounds)]) if theirs else {}
    rate = median_round([Round(each["samples"], each["seconds"], each["cpu_seconds"]) for each in ours])
    results.set(
        parquet_only_samples_per_s=rate["samples_per_s"],
        parquet_only_cpu_ms_per_sample=rate["cpu_ms_per_sample"],
        parquet_only_lerobot_cpu_ms_per_sample=other.get("cpu_ms_per_sample"),
    )


def measure_first(results: Results, chosen: list[Set], rounds: int) -> None:
    """Measure the time to the first batch of each dataset."""
    there = [each["name"] for each in results.found["first_batches"]]
    for one in chosen:
        if one.name in there or one.root in [each.root for each in chosen[: chosen.index(one)]]:  # with less memory
            continue
        tries = [first_batch_elsewhere(str(one.root)) for _ in range(rounds)]
        seconds, pictures = median(each["seconds"] for each in tries), tries[0]["pictures"]
        what = {"name": one.name, "gop": one.gop, "height": one.height, "cameras": one.cameras}
        results.add("first_batches", what | {"seconds": seconds, "pictures": pictures})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--out", default="", help="file for the object, written after every row; a later run adds to it"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="parts to measure, of " + ",".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="tiny datasets and rounds, as a smoke test")
    parser.add_argument("--lerobot", default=sys.executable, help="Python interpreter that has LeRobot")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "understudy-bench"), help="for datasets")
    parser.add_argument("--only", default="", help="datasets with this in their name")
    parser.add_argument("--seconds", type=float, default=3.0, help="per round and side")
    parser.add_argument("--rounds", type=int, default=3, help="medians are over these")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part and arguments.part[0] == "ours":
        serve(Setting(**json.loads(arguments.part[1])))
    elif arguments.part:
        print(json.dumps(first_batch(json.loads(arguments.part[1])["root"])))
    else:
        found = measure(arguments)
        print(json.dumps(found) if arguments.json else render(found))


if __name__ == "__main__":
    from understudy import keep_freed_memory

    keep_freed_memory()  # as a training run does, here and in each child
    main()
