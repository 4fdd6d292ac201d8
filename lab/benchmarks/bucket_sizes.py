"""Reading a bucket 30 ms away as it grows to 5 TB, beside the same files on disk.

    python lab/benchmarks/bucket_sizes.py --folder DIR    0.27, 18.8 and 350 million frames
    python lab/benchmarks/bucket_sizes.py --folder DIR --millions 350 --only h264
        --before CHECKOUT --out FILE

The layout is DROID's (`rows.py`), with 100 episodes in a video: 350 million frames are 1,306 data
files and 39,180 videos. Each is a name of one video file; data files beyond the 70th are names of
the first 70. The server and its line are those of `bucket.py`. It has the last core, and the reader
the others. One call makes --rounds rounds in turns, adds its readings to --out, and prints the
medians of all that are there. The datasets stay in --folder.

    disk               the same names in a folder
    first              empty cache but for meta/, which `Catalog.open` has read: no row and no image
    second             the second process of the host
    middle             starts in the middle of the epoch, with the cache of the others
    first_s            seconds from the first line after the imports to the first batch
    used_over_needed   bytes of the answers up to the last batch, over the packets of the delivered
                       samples with those that they are decoded from, the indexes of their videos,
                       their row groups, and footers
    video_, rows_      the same of videos and of data files alone
    requests           per sample; samples_s and cpu_ms: in the --seconds after the first --warm
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

import common
import parsers
import rows
from bucket import LATENCY, Bucket
from loader_sets import Encoding, Recording
from understudy_data.testing.videos import encode_video
from understudy_data.video.encode import concat_videos

PER_VIDEO = 100
BATCH = 32
KINDS = {
    "h264-224": Encoding("libx264", 30, 224, 13),
    "av1-480": Encoding("libsvtav1", 2, 0),
}
SIDES = {"h264-224": (224, 224), "av1-480": (480, 640)}


def make_video(recorded: Recording, encoding: Encoding, path: Path, frames: int) -> None:
    """Write a video of so many frames: eight episodes again and again. It stays for other sizes."""
    recorded.cache.mkdir(parents=True, exist_ok=True)
    kept = (
        recorded.cache
        / f"{encoding.codec}-g{encoding.gop}-{encoding.height}-{encoding.crf}-{frames}.mp4"
    )
    if kept.exists():
        shutil.copyfile(kept, path)
        return
    parts = []
    for episode in range(recorded.episodes):
        part = path.with_name(f"part-{episode}.mp4")
        images = chain(
            recorded.images(episode, encoding.height), recorded.images(episode, encoding.height)
        )
        some = islice(images, rows.LENGTH)
        encode_video(part, some, rows.FPS, encoding.codec, encoding.gop, encoding.crf)
        parts.append(part)
    count = frames // rows.LENGTH
    concat_videos((parts * -(-count // len(parts)))[:count], path)
    for part in parts:
        part.unlink()
    shutil.copyfile(path, kept.with_suffix(".making"))
    kept.with_suffix(".making").rename(kept)


def write(folder: Path, kind: str, millions: float, group: int | None, recorded: Recording) -> Path:
    """Write a dataset where it is missing."""
    root = folder / f"{kind}-{millions:g}-{group or 'file'}"
    if not root.exists():
        draft = root.with_name(f"{root.name}.making")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        make = partial(make_video, recorded, KINDS[kind])
        layout = {"per_video": PER_VIDEO, "side": SIDES[kind], "make_video": make, "group": group}
        rows.write(draft, round(millions * 1e6), 0, **layout)
        draft.rename(root)
    return root


def read(root: str, seconds: float, warm: float, middle: bool) -> None:
    """Read batches with the defaults of `Loader`; print figures of this process."""
    import warnings

    import understudy as us

    warnings.simplefilter("ignore")
    us.keep_freed_memory()
    before = common.anonymous_bytes()
    print(json.dumps({"version": ""}), flush=True)
    sys.stdin.readline()
    begun = time.perf_counter()
    with us.Loader(root, batch_size=BATCH, seed=0, rank=0, world_size=1) as loader:
        if middle:
            loader.position = loader.order.spec.sources[0].frames // 2 // BATCH * BATCH
        start = loader.position
        checks = []
        first_s = 0.0
        largest = 0
        taken = 0

        def take() -> None:
            nonlocal taken
            batch = next(loader)
            taken += 1
            if taken <= 16:
                images = sum(int(batch[key].view(-1)[:: 1 << 8].sum()) for key in rows.CAMERAS)
                checks.append(
                    (int(batch["index"].sum()), float(batch["action"].double().sum()), images)
                )

        take()
        first_s = time.perf_counter() - begun
        while time.perf_counter() - begun < warm or taken < 16:
            take()
            largest = max(largest, common.anonymous_bytes() - before)
        early = taken
        cpu = common.cpu_seconds()
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            take()
            largest = max(largest, common.anonymous_bytes() - before)
        wall = time.perf_counter() - started
        used = common.cpu_seconds() - cpu
        samples = (taken - early) * BATCH
        figures = {
            "first_s": first_s,
            "samples_s": samples / wall,
            "cpu_ms": used / samples * 1e3,
            "early_s": early * BATCH / (started - begun),
            "anonymous_mb": largest / 1e6,
            "planned_mb": loader.plan.bytes / 1e6,
            "samples": taken * BATCH,
        }
        order = loader.order.to_json()
    print(
        json.dumps({"figures": figures, "checks": checks, "start": start, "order": order}),
        flush=True,
    )


def needed(root: Path, order: str, start: int, samples: int) -> dict[str, float]:
    """Bytes that these samples need, each once: of videos, and of data files."""
    from understudy import EpisodeDataset, Order

    data = EpisodeDataset(root)
    table = data.catalog.episodes
    _, episode, frame = Order.from_json(order, [data]).locate(np.arange(start, start + samples))
    row = table.rows_of(episode)
    first_camera = rows.CAMERAS[0]
    reader: Any = data.video_frames.reader(first_camera, int(row[0]))
    index = reader._packets.index
    path = root / data.catalog.video_path(first_camera, int(row[0]))
    beyond = path.stat().st_size - int(index.size.sum())
    file = data.catalog.videos(first_camera).file[row]
    number = data.video_frames.first_frame(first_camera, row) + frame
    videos = 0
    for one in np.unique(file).tolist():
        used = np.zeros(len(index.size), bool)
        for place in np.unique(number[file == one]).tolist():
            begin, end = index.gops.packet_range(place, place)
            used[begin : end + 1] = True
        videos += int(index.size[used].sum()) + beyond
    groups = 0
    facts: dict[int, Any] = {}
    data_file = table.data_file[row]
    for one in np.unique(data_file).tolist():
        path = root / data.catalog.data_path(int(row[data_file == one][0]))
        key = path.stat().st_ino
        facts[key] = facts.get(key) or pq.read_metadata(path)
        ends = np.cumsum(
            [facts[key].row_group(g).num_rows for g in range(facts[key].num_row_groups)]
        )
        places = (table.data_row[row] + frame)[data_file == one]
        groups += facts[key].serialized_size + 8
        for group in np.unique(np.searchsorted(ends, places, "right")).tolist():
            of_group = facts[key].row_group(group)
            groups += sum(
                of_group.column(c).total_compressed_size for c in range(of_group.num_columns)
            )
    return {"videos": videos * len(rows.CAMERAS), "rows": groups}


def warm_meta(root: str) -> None:
    """Read meta/ alone."""
    from understudy_data.datasets.format.catalog import Catalog

    print(json.dumps({"version": ""}), flush=True)
    sys.stdin.readline()
    Catalog.open(root)
    print(json.dumps({}), flush=True)


def reading(tree: str, bucket: Bucket, cache: Path, part: str, **setting: Any) -> dict[str, Any]:
    """Run one part in a process of its own: its answer, and the counts of the server until then."""
    environment = {
        **os.environ,
        **bucket.environment,
        "XDG_CACHE_HOME": str(cache),
        "PYTHONPATH": common.sources(tree),
    }
    command = common.child(__file__, part, **setting)
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        bucket.counts()
        print("go", file=process.stdin, flush=True)
        line = process.stdout.readline()
        counts = bucket.counts()
        process.stdin.close()
    if not line:
        raise SystemExit(f"{part} of {setting} failed")
    found: dict[str, Any] = json.loads(line)
    return found | {"counts": counts}


def one_round(
    root: Path, tree: str, bucket: Bucket, home: Path, seconds: float, warm: float
) -> dict[str, Any]:
    """Readings by place, in turns."""
    address = f"s3://data/{root.name}"
    found: dict[str, Any] = {}
    for cache in ("bucket", "disk"):
        shutil.rmtree(home / cache, ignore_errors=True)
    reading(tree, bucket, home / "bucket", "warm_meta", root=address)
    reading(tree, bucket, home / "disk", "warm_meta", root=str(root))
    timing = {"seconds": seconds, "warm": warm}
    for place in ("disk", "first", "second", "middle"):
        where, cache = (str(root), "disk") if place == "disk" else (address, "bucket")
        answer = reading(
            tree, bucket, home / cache, "read", root=where, middle=place == "middle", **timing
        )
        figures = answer["figures"]
        counts = answer["counts"]
        if place != "disk":
            least = needed(root, answer["order"], answer["start"], figures["samples"])
            sent = {
                kind: sum(size for path, size in counts["paths"].items() if f"/{kind}/" in path)
                for kind in ("videos", "data")
            }
            figures["used_over_needed"] = counts["body_bytes"] / sum(least.values())
            figures["video_used_over_needed"] = sent["videos"] / least["videos"]
            figures["rows_used_over_needed"] = sent["data"] / least["rows"]
            figures["requests"] = counts["requests"] / figures["samples"]
            figures["lists"] = counts["lists"]
            figures["rate_over_disk"] = figures["samples_s"] / found["disk"]["figures"]["samples_s"]
            figures["cpu_over_disk"] = figures["cpu_ms"] / found["disk"]["figures"]["cpu_ms"]
        found[place] = answer
        common.say(root.name, place, {key: round(value, 3) for key, value in figures.items()})
    if len({json.dumps(found[place]["checks"]) for place in ("disk", "first", "second")}) > 1:
        raise SystemExit(f"{root.name}: the bucket gives other batches than the disk")
    return {place: answer["figures"] for place, answer in found.items()}


def medians(readings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each dataset, checkout and place."""
    by_name: dict[tuple[str, ...], list[dict[str, float]]] = {}
    for one in readings:
        for place, figures in one["places"].items():
            by_name.setdefault((one["set"], one["tree"], place), []).append(figures)
    table = []
    for (dataset, tree, place), ones in by_name.items():
        row: dict[str, Any] = {"set": dataset, "tree": tree, "place": place, "rounds": len(ones)}
        table.append(
            row | {key: round(statistics.median(one[key] for one in ones), 3) for key in ones[0]}
        )
    return table


def main() -> None:
    parser = parsers.make_parser(__doc__, whole=True)
    parser.add_argument("--millions", type=float, nargs="+", default=[0.27, 18.8, 350])
    parser.add_argument("--only", default="", help="kinds of video with this in their name")
    parser.add_argument(
        "--group",
        type=int,
        default=0,
        help="rows of a row group of the data files; 0: all of a file",
    )
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--warm", type=float, default=15, help="seconds before the rates are taken")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--line", type=float, default=10, help="Gbit/s of the server's line")
    parser.add_argument("--before", default="", help="another checkout, measured in turns")
    parser.add_argument("--out", default="", help="file of all readings; a later call adds to it")
    parser.add_argument(
        "--folder", default=tempfile.gettempdir(), type=Path, help="folder for the datasets"
    )
    parser.add_argument(
        "--real",
        default=os.environ.get("UNDERSTUDY_TEST_DATA", ""),
        help="folder of real recordings",
    )
    parser.add_argument("--part", nargs=2, help="of a process")
    options = parser.parse_args()
    if options.part:
        parts: dict[str, Callable[..., None]] = {"read": read, "warm_meta": warm_meta}
        return parts[options.part[0]](**json.loads(options.part[1]))
    out = Path(options.out) if options.out else None
    readings = json.loads(out.read_text()) if out and out.exists() else []
    trees = {"now": str(Path(__file__).parents[2])} | (
        {"before": options.before} if options.before else {}
    )
    recorded = Recording(options.folder, Path(options.real) if options.real else None)
    home = options.folder / f"home-{os.getpid()}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        sets = [
            write(options.folder / "bucket", kind, millions, options.group or None, recorded)
            for millions in options.millions
            for kind in KINDS
            if options.only in kind
        ]
        bucket = Bucket(options.folder / "bucket", LATENCY, options.line * 1e9 / 8)
        stack.callback(bucket.close)
        for _ in range(options.rounds):
            for root in sets:
                for tree, checkout in trees.items():
                    places = one_round(root, checkout, bucket, home, options.seconds, options.warm)
                    readings.append(
                        {"set": root.name, "tree": tree, "line": options.line, "places": places}
                    )
                    if out:
                        out.write_text(json.dumps(readings))
    print(
        json.dumps(
            {"rows": medians(readings), "conditions": common.conditions()},
            indent=None if options.json else 1,
        )
    )


if __name__ == "__main__":
    main()
