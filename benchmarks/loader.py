"""The loader measured: samples per second beside the decode limit and LeRobot, memory, first batch, remote data.

    python benchmarks/loader.py [--json] [--quick] [--lerobot PYTHON] [--cache DIR] [--only NAME]

The datasets are made once into the cache folder (about 2 GB; a few minutes): from the real recordings in
UNDERSTUDY_TEST_DATA where that is set, otherwise from drawn pictures. In each round the two decode limits
(`tools/bench_limit.py`: `limit` is a standard library's plain reading, `codec` the bare codec), our loader (a process
of its own) and LeRobot (in the interpreter named; where there is none its figures are null) take turns; figures are
medians. Memory is below what the pictures take, so it is streaming that is measured, not copying; only the real
recordings are also measured as they fit into it ("-half": as they do not).
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

from loader_remote import remote_rows
from loader_sets import Set, rows_only, sets

BATCH, CHUNK = 32, 16
MEMORY = 10**9


def serve(setting: Any) -> None:
    """Our side, in a process of its own: a round for each line on stdin, with what is known so far."""
    from understudy import __version__
    from understudy.tools.bench_measure import Trial

    print(json.dumps({"version": __version__}), flush=True)
    trial = None
    for line in sys.stdin:
        trial = trial or Trial(setting)
        found = trial.measure(json.loads(line)["seconds"])
        print(json.dumps(asdict(found) | facts(trial)), flush=True)
    if trial:
        trial.close()


def facts(trial: Any) -> dict[str, Any]:
    """What our side knows beside a round."""
    plan = trial.loader.plan
    return {
        "peak_mb": trial.peak_mb,
        "planned_mb": plan.bytes / 1e6,
        "resident": all(plan.kept),
        "waited": trial.waited_share,
        "work": trial.work,
        "plan": str(plan),
    }


def first_batch(root: str) -> dict[str, float]:
    """{"seconds" from nothing opened to a batch in hand, in this fresh process, imports done; "pictures" that must be
    decoded for it: each sample's, and what leads to it from a key frame}."""
    import time

    from understudy import EpisodeDataset, Loader, Order  # noqa: F401
    from understudy.tools.bench_measure import Setting

    setting = Setting(root, BATCH, CHUNK)
    start = time.perf_counter()
    data = setting.data()
    order = setting.order(data)
    loader = Loader([data], order=order, memory=setting.memory)
    next(loader)
    seconds = time.perf_counter() - start
    _, episode, frame = order.locate(range(BATCH))
    rows, frames = data.video_frames(episode, frame)
    loader.close()
    pictures = 0
    for camera, wanted in frames.items():
        shown = data.catalog.videos(camera).first[rows] + wanted
        for row, number in zip(rows.tolist(), shown.tolist()):
            begin, end = data.pictures.reader(camera, row)._packets._needed(number, number)  # type: ignore[attr-defined]
            pictures += end - begin
    return {"seconds": seconds, "pictures": pictures}


def first_batch_elsewhere(root: str) -> dict[str, float]:
    """`first_batch` in a process of its own."""
    found: dict[str, float] = json.loads(subprocess.check_output(child("first", root=root)))
    return found


def first_batches(chosen: list[Set], rows: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Of each dataset: how long the first batch takes, and the least that decoding its pictures takes at the limit."""
    found = []
    for one, row in zip(chosen, rows, strict=True):
        if one.root in [each.root for each in chosen[: chosen.index(one)]]:  # the same with less memory
            continue
        tries = [first_batch_elsewhere(str(one.root)) for _ in range(rounds)]
        pictures = tries[0]["pictures"]
        found.append(
            {
                "name": one.name,
                "gop": one.gop,
                "height": one.height,
                "cameras": one.cameras,
                "seconds": median(each["seconds"] for each in tries),
                "pictures": pictures,
                "floor_s": pictures / (row["limit_per_s"] * one.cameras) if row["limit_per_s"] else None,
            }
        )
    return found


def child(part: str, **setting: Any) -> list[str]:
    return [sys.executable, __file__, "--part", part, json.dumps(setting)]


def measure_set(one: Set, rival: Any, known: dict[Path, Any], seconds: float, rounds: int) -> dict[str, Any]:
    """A row. `known`: what LeRobot reached on the datasets before, by where they lie for it."""
    from understudy.tools.bench_limit import limits
    from understudy.tools.bench_measure import (
        Asked,
        Round,
        Setting,
        median_round,
        picture_bytes,
        quality,
        rival_figures,
    )

    data = Setting(str(one.root), BATCH, CHUNK).data()
    memory = int(picture_bytes(data) * len(data) * one.memory)
    memory = memory if one.memory > 1 else min(MEMORY, memory)
    setting = Setting(str(one.root), BATCH, CHUNK, memory=str(memory))
    (library, codec), ours, theirs = limits(data), [], []
    with Asked(child("ours", **asdict(setting))) as loader:
        for _ in range(rounds):
            library.measure(seconds)
            codec.measure(seconds)
            ours.append(loader.measure(seconds=seconds))
            if "missing" in ours[-1]:
                raise SystemExit(f"{one.name}: our loader failed: {ours[-1]['missing']}")
            if rival and one.lerobot not in known:
                theirs.append(
                    rival.measure(root=str(one.lerobot), batch=BATCH, chunk=CHUNK, workers=2, seconds=seconds)
                )
    figures = median_round([Round(each["samples"], each["seconds"], each["cpu_seconds"]) for each in ours])
    limit, strict, last = library.found() or {}, codec.found() or {}, ours[-1]
    if theirs:
        known[one.lerobot] = rival_figures(rival, theirs)
    other = known.get(one.lerobot, {})
    shuffle = quality(setting.order(data))
    return {
        "name": one.name,
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
        "cpu_ms_per_sample": figures["cpu_ms_per_sample"],
        "limit_cpu_ms_per_sample": limit.get("cpu_ms_per_sample"),
        "codec_limit_cpu_ms_per_sample": strict.get("cpu_ms_per_sample"),
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


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from contextlib import ExitStack

    from understudy.tools.bench_measure import Asked, Round, conditions, lerobot, median_round, rival_figures

    real = Path(os.environ["UNDERSTUDY_TEST_DATA"]) if os.environ.get("UNDERSTUDY_TEST_DATA") else None
    quick, cache = arguments.quick, Path(arguments.cache)
    say("making the datasets that are not there yet, in", cache)
    chosen = sets(cache, real, quick, arguments.only)
    rows_root = rows_only(cache, quick)
    seconds, rounds = (0.3, 1) if quick else (arguments.seconds, arguments.rounds)
    at_start = conditions()
    with ExitStack() as stack:
        rival = stack.enter_context(lerobot(arguments.lerobot))
        if rival.missing:
            say("LeRobot is not measured:", rival.missing)
        theirs = None if rival.missing else rival
        rows, known = [], {}
        for one in chosen:
            say(one.name)
            rows.append(measure_set(one, theirs, known, seconds, rounds))
        say("rows without video")
        plain = {"path": str(rows_root), "batch": BATCH, "chunk": CHUNK}
        with Asked(child("ours", **plain)) as loader:
            ours = [loader.measure(seconds=seconds) for _ in range(rounds)]
        asked = {"root": str(rows_root), "batch": BATCH, "chunk": CHUNK, "workers": 2, "seconds": seconds}
        other = rival_figures(theirs, [theirs.measure(**asked) for _ in range(rounds)]) if theirs else {}
        rows_rate = median_round([Round(each["samples"], each["seconds"], each["cpu_seconds"]) for each in ours])
        say("first batch")
        first = first_batches(chosen, rows, rounds)
        short = [each["seconds"] for each in first if each["gop"] == 2]
        say("remote")
        remote = remote_rows(cache, real, quick) if arguments.only in "remote" else []
    return {
        "rows": rows,
        "parquet_only_samples_per_s": rows_rate["samples_per_s"],
        "parquet_only_cpu_ms_per_sample": rows_rate["cpu_ms_per_sample"],
        "parquet_only_lerobot_cpu_ms_per_sample": other.get("cpu_ms_per_sample"),
        "first_batch_s": short[0] if short else None,
        "first_batches": first,
        "remote": remote,
        "conditions": at_start
        | {
            "load_average_after": list(os.getloadavg()),
            "lerobot": rival.version or None,
            "recordings": "real" if real else "drawn",
            "batch": BATCH,
            "chunk": CHUNK,
            "rounds": rounds,
            "seconds": seconds,
        },
    }


def render(found: dict[str, Any]) -> str:
    """The rows as a table, and the other figures below it."""
    head = (
        "",
        "samples/s",
        "limit/s",
        "of limit",
        "codec/s",
        "of codec",
        "CPU ms",
        "limit",
        "codec",
        "LeRobot",
        "factor",
    )
    head += ("deff(1)", "uniform", "MB", "planned")
    lines = [f"{head[0]:<24}" + "".join(f"{name:>10}" for name in head[1:])]
    for row in found["rows"]:
        other = row["lerobot_cpu_ms_per_sample"]
        cells = [
            f"{row['samples_per_s']:,.0f}",
            f"{row['limit_per_s']:,.0f}",
            f"{row['over_limit']:.2f}",
            f"{row['codec_limit_per_s']:,.0f}",
            f"{row['over_codec_limit']:.2f}",
            f"{row['cpu_ms_per_sample']:.3f}",
            f"{row['limit_cpu_ms_per_sample']:.3f}",
            f"{row['codec_limit_cpu_ms_per_sample']:.3f}",
            f"{other:.2f}" if other else "-",
            f"{other / row['cpu_ms_per_sample']:.1f}" if other else "-",
            f"{row['deff1']:.3f}",
            f"{row['deff1_uniform']:.3f}",
            f"{row['peak_mb']:,.0f}",
            f"{row['planned_mb']:,.0f}",
        ]
        lines.append(f"{row['name']:<24}" + "".join(f"{cell:>10}" for cell in cells))
    other = found["parquet_only_lerobot_cpu_ms_per_sample"]
    lines += [
        "",
        f"rows without video: {found['parquet_only_samples_per_s']:,.0f} samples/s, "
        f"{found['parquet_only_cpu_ms_per_sample'] * 1e3:.1f} CPU us per sample"
        + (f" (LeRobot {other * 1e3:.0f})" if other else ""),
        *(
            f"first batch of {each['name']} after {each['seconds']:.2f} s: needs {each['pictures']:.0f} pictures"
            + (f", {each['floor_s']:.2f} s at the limit" if each["floor_s"] else "")
            for each in found["first_batches"]
        ),
    ]
    for each in found["remote"]:
        lines.append(
            f"remote, {each['server']}, GOP {each['gop']}: {each['amplification']:.3f} times the pictures' bytes, "
            f"first batch after {each['first_batch_fraction_of_file']:.1%} of a file, {each['over_local']:.2f} of local"
        )
    return "\n".join([*lines, "", json.dumps(found["conditions"])])


def say(*words: object) -> None:
    print(*words, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="tiny datasets and rounds: does it work at all?")
    parser.add_argument("--lerobot", default=sys.executable, help="Python interpreter that has LeRobot")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "understudy-bench"), help="for datasets")
    parser.add_argument("--only", default="", help="datasets with this in their name, or `remote`")
    parser.add_argument("--seconds", type=float, default=3.0, help="per round and side")
    parser.add_argument("--rounds", type=int, default=3, help="medians are over these")
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part and arguments.part[0] == "ours":
        from understudy.tools.bench_measure import Setting

        serve(Setting(**json.loads(arguments.part[1])))
    elif arguments.part:
        print(json.dumps(first_batch(json.loads(arguments.part[1])["root"])))
    else:
        found = measure(arguments)
        print(json.dumps(found) if arguments.json else render(found))


if __name__ == "__main__":
    main()
