"""Reading from a bucket 30 ms away at 1 Gbit/s: bytes over bytes needed, and the rate over that of
a local folder.

    python lab/benchmarks/bucket.py [--json] [--out FILE] [--quick] [--lance PYTHON] [--ranks 1 16]
        [--only NAME]

LeRobot v3.0 datasets of three cameras, from the recordings of `loader_sets.py`, are read from disk,
from the bucket with an empty cache, and from it with a full cache, in turns. Each reading is one
whole epoch: `Loader("s3://data/NAME", batch_size=32)` with nothing else set, or 16 processes of one
host with less memory, which share a cache. Lance reads the same images, as JPEG files in a column
of bytes, from the same server in the same run: a shuffled `DataLoader` over
`lance.torch.data.SafeLanceDataset`, two workers, one epoch. The server is `bucket_server.py`; it
has the last core of this machine, and the readers have the others in all readings, from disk as
well.

    amplification    bytes of all answers' bodies / bytes needed, each once per host
    bytes needed     ours: the video packets of the delivered samples with those that they are
                     decoded from, the indexes of their files, and the files of rows and metadata.
                     Lance: its files (in an epoch all are needed)
    over_local       rate over that of the same reading from disk in the same round: median, and by
                     CPU time
    first_s          from the start (after imports) to the first batch of the slowest process
    steady           without the first half of the batches, in which lanes and connections begin
                     (CPU: ours only)
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import OtherLoader, Results, add_dataset_arguments, child, say
from loader_sets import Encoding, Recording, joined
from parsers import make_parser

# seconds, bytes per second
LATENCY = 0.03
RATE = 125e6
BATCH = 32
MEMORY = {1: "4GB", 16: "250MB"}  # 4GB is the default; 16 times that is more than the host has
KINDS = {
    # and how often the eight recordings are repeated
    "h264-224": (Encoding("libx264", 30, 224, 23), 64),
    "av1-480": (Encoding("libsvtav1", 2, 0), 8),
}
LANCE_TILES = 8  # a tenth of our rate: its epochs have 17,104 samples


def needed(root: Path) -> int:
    """Bytes that an epoch of a LeRobot dataset needs."""
    return sum(
        path.stat().st_size
        for path in root.rglob("*")
        if path.is_file() and path.name != "stats.json"
    )


def rank(root: str, memory: str, batch: int) -> None:
    """Read an epoch with our loader in this process, once a line arrives; print its figures."""
    from understudy import EpisodeDataset, Loader, keep_freed_memory

    keep_freed_memory()
    print(json.dumps({"version": ""}), flush=True)
    for _ in sys.stdin:
        wall = time.perf_counter()
        cpu = time.process_time()
        marks = []
        checksum = 0
        samples = 0
        data = EpisodeDataset(root)
        with Loader(data, batch_size=batch, memory=memory) as loader:
            count = -(-loader.order.spec.sources[0].frames // batch)
            cameras = data.video_keys
            for number in range(count):
                found = next(loader)
                samples += len(found["index"])
                if number in (0, count // 2, count - 1):
                    marks.append((time.perf_counter() - wall, time.process_time() - cpu, samples))
                checksum += sum(int(found[key].view(-1)[:: 1 << 12].sum()) for key in cameras)
                checksum += int(found["index"].sum())
            chosen = [(source.clip, source.lanes) for source in loader.order.spec.sources]
            marks.append((time.perf_counter() - wall, time.process_time() - cpu, samples))
        print(
            json.dumps(
                {
                    "marks": marks,
                    "checksum": checksum,
                    "chosen": chosen,
                    "wait": loader.wait_seconds,
                }
            ),
            flush=True,
        )


def lance(root: str) -> None:
    """Read an epoch of a Lance dataset in this process, as `rank` does."""
    try:
        import lance  # type: ignore[import-not-found]
        from lance.torch.data import SafeLanceDataset  # type: ignore[import-not-found]
    except ImportError as error:
        print(json.dumps({"missing": str(error)}), flush=True)
        return
    import resource

    import torch

    print(json.dumps({"version": lance.__version__}), flush=True)
    for _ in sys.stdin:
        wall = time.perf_counter()
        cpu = time.process_time()
        marks = []
        samples = 0
        count = 0
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        data = SafeLanceDataset(root)
        options: dict[str, Any] = {
            "batch_size": BATCH,
            "shuffle": True,
            "num_workers": 2,
            "prefetch_factor": 4,
        }
        batches = torch.utils.data.DataLoader(
            data, collate_fn=decode, multiprocessing_context="spawn", **options
        )
        total = len(batches)
        for count, found in enumerate(batches):
            samples += len(found["index"])
            if count in (0, total // 2):
                marks.append((time.perf_counter() - wall, 0.0, samples))
        marks.append((time.perf_counter() - wall, 0.0, samples))
        del batches, data
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = sum(getattr(after, key) - getattr(before, key) for key in ("ru_utime", "ru_stime"))
        marks.append((time.perf_counter() - wall, time.process_time() - cpu + spent, samples))
        print(json.dumps({"marks": marks, "checksum": 0, "chosen": [], "wait": 0.0}), flush=True)


def decode(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch of rows with JPEG files -> tensors."""
    import io

    import numpy as np
    import torch
    from PIL import Image

    found: dict[str, Any] = {}
    for key, value in rows[0].items():
        if isinstance(value, bytes):
            images = [
                np.asarray(Image.open(io.BytesIO(row[key]))).transpose(2, 0, 1) for row in rows
            ]
            found[key] = torch.from_numpy(np.stack(images))
        else:
            found[key] = torch.as_tensor([row[key] for row in rows])
    return found


def write_lance(root: str, out: str) -> None:
    """Write the frames of a LeRobot dataset as rows of a Lance dataset, images as JPEG of quality
    90.
    """
    import io

    import av
    import lance
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image

    rows = pq.read_table(next(Path(root).glob("data/*/*.parquet")))
    cameras = sorted(path.name for path in Path(root, "videos").iterdir())
    # it refuses dots
    rows = rows.rename_columns([name.replace(".", "_") for name in rows.column_names])
    images = [pa.field(key.replace(".", "_"), pa.large_binary()) for key in cameras]
    schema = pa.schema([*rows.schema.remove_metadata(), *images])

    def pictures(camera: str) -> Iterator[bytes]:
        for path in sorted(Path(root, "videos", camera).rglob("*.mp4")):
            with av.open(str(path)) as video:
                for frame in video.decode(video=0):
                    file = io.BytesIO()
                    Image.fromarray(frame.to_ndarray(format="rgb24")).save(file, "JPEG", quality=90)
                    yield file.getvalue()

    def batches() -> Iterator[pa.RecordBatch]:
        streams = [pictures(camera) for camera in cameras]
        for part in rows.to_batches(max_chunksize=256):
            blobs = [
                pa.array([next(s) for _ in range(len(part))], pa.large_binary()) for s in streams
            ]
            yield pa.record_batch([*part.columns, *blobs], schema=schema)

    lance.write_dataset(batches(), out, schema=schema)


class Bucket:
    """The server's process and the bytes that it sent."""

    def __init__(self, folder: Path, latency: float, rate: float) -> None:
        cores = sorted(os.sched_getaffinity(0))
        command = [
            sys.executable,
            str(Path(__file__).with_name("bucket_server.py")),
            str(folder),
            str(latency),
            str(rate),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if len(cores) > 1:  # else it shares the only one
            os.sched_setaffinity(self.process.pid, cores[-1:])
            os.sched_setaffinity(0, cores[:-1])  # of this process and of the readers that it starts
        assert self.process.stdout is not None
        self.url = f"http://127.0.0.1:{self.process.stdout.readline().strip()}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ENDPOINT": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "reader",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def counts(self) -> dict[str, Any]:
        """Counts of the server since the last call."""
        with urllib.request.urlopen(self.url + "/-/counts") as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextmanager
def processes(
    commands: Sequence[list[str]], environment: dict[str, str]
) -> Iterator[list[OtherLoader]]:
    """Start processes, each with its rank in its environment."""
    world = len(commands)
    before = dict(os.environ)
    with ExitStack() as stack:
        try:
            os.environ.update(environment)
            os.environ.update(WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
            started = []
            for number, command in enumerate(commands):
                os.environ.update(RANK=str(number), LOCAL_RANK=str(number))
                started.append(stack.enter_context(OtherLoader(command)))
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield started


def reading(commands: Sequence[list[str]], bucket: Bucket, cache: Path) -> dict[str, Any]:
    """Read an epoch with these processes together; returns their figures and the server's."""
    with processes(commands, bucket.environment | {"XDG_CACHE_HOME": str(cache)}) as started:
        if missing := next((one.missing for one in started if one.missing), ""):
            return {"missing": missing}
        bucket.counts()
        for one in started:
            assert one.process.stdin is not None
            print("go", file=one.process.stdin, flush=True)
        answers = [one._answer() for one in started]
        if failed := next((answer["missing"] for answer in answers if "missing" in answer), ""):
            raise SystemExit(f"a measuring process failed: {failed}")
        version = started[0].version
    first, half, _, whole = zip(*(answer["marks"] for answer in answers))
    samples = sum(mark[2] for mark in whole)
    wall = max(mark[0] for mark in whole)
    cpu = sum(mark[1] for mark in whole)
    steady = samples - sum(mark[2] for mark in half)
    return {
        "samples": samples,
        "samples_per_s": samples / wall,
        "steady_per_s": steady / max(1e-9, wall - statistics.median(mark[0] for mark in half)),
        "cpu_ms_per_sample": cpu / samples * 1e3,
        "steady_cpu_ms": (cpu - sum(mark[1] for mark in half)) / steady * 1e3,
        "first_s": max(mark[0] for mark in first),
        "checksum": sum(answer["checksum"] for answer in answers),
        "chosen": answers[0]["chosen"],
        "version": version,
        **{f"sent_{key}": value for key, value in bucket.counts().items() if key != "paths"},
    }


def measure_set(
    name: str,
    kind: str,
    commands: dict[str, list[list[str]]],
    bytes_needed: int,
    bucket: Bucket,
    home: Path,
    rounds: int,
) -> dict[str, Any] | None:
    """A row: rounds of local, empty cache and full cache in turns."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        cache = home / f"cache-{number}"
        for place, command in commands.items():
            found.setdefault(place, []).append(one := reading(command, bucket, cache))
            if "missing" in one:
                say(name, "is not measured:", one["missing"])
                return None
            say(f"{name} {place}: {one}")
        shutil.rmtree(cache, ignore_errors=True)
    sums = {one["checksum"] for ones in found.values() for one in ones}
    if len(sums) > 1:
        raise SystemExit(f"{name}: the bucket gives other batches than the disk")
    row: dict[str, Any] = {
        "name": name,
        "reader": kind,
        "processes": len(next(iter(commands.values()))),
    }
    row |= {"needed_mb": bytes_needed / 1e6, "rounds": rounds}
    for place, ones in found.items():
        middle = {
            key: statistics.median(one[key] for one in ones)
            for key in ones[0]
            if key not in ("chosen", "version")
        }
        if place != "local":
            pairs = list(zip(ones, found["local"]))
            middle["amplification"] = middle["sent_body_bytes"] / bytes_needed
            for key in ("samples_per_s", "steady_per_s"):
                middle[f"{key}_over_local"] = statistics.median(
                    one[key] / local[key] for one, local in pairs
                )
            for key in ("cpu_ms_per_sample", "steady_cpu_ms"):
                middle[f"{key}_over_local"] = statistics.median(
                    one[key] / local[key] for one, local in pairs
                )
            middle["requests_per_sample"] = middle["sent_requests"] / middle["samples"]
        row[place] = middle
    return row | {"chosen": found["local"][0]["chosen"], "version": found["local"][0]["version"]}


def measure(arguments: argparse.Namespace) -> Results:
    """Measure the rows that `--out` lacks."""
    real = Path(arguments.real) if arguments.real else None
    quick = arguments.quick
    rounds = 1 if quick else arguments.rounds
    world = arguments.ranks
    settings = {
        "recordings": "real" if real else "drawn",
        "quick": quick,
        "rounds": rounds,
        "batch": BATCH,
    }
    results = Results(
        ["rows"], arguments.out, latency_ms=LATENCY * 1e3, megabytes_per_s=RATE / 1e6, **settings
    )
    recorded = Recording(arguments.cache, real, quick)
    folder = recorded.cache / "bucket"
    home = arguments.cache / f"bucket-home-{os.getpid()}"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        bucket = Bucket(folder, LATENCY, RATE)
        stack.callback(bucket.close)
        for name, (encoding, tiles) in KINDS.items():
            if quick:
                encoding = Encoding(encoding.codec, encoding.gop, 64, encoding.crf)
                tiles = 2
            folder.mkdir(parents=True, exist_ok=True)
            root = joined(folder / f"{name}-{tiles}", recorded.encoded(encoding), tiles, cameras=3)
            for count in world:
                row_name = f"{name}-{count}"
                if arguments.only in row_name and not results.has("rows", row_name):
                    setting = {
                        "memory": MEMORY.get(count, "250MB"),
                        "batch": BATCH if count == 1 else count * 16,
                    }
                    commands = {
                        place: [child(__file__, "rank", root=where, **setting)] * count
                        for place, where in (
                            ("local", str(root)),
                            ("empty", f"s3://data/{root.name}"),
                            ("full", f"s3://data/{root.name}"),
                        )
                    }
                    row = measure_set(
                        row_name, "understudy", commands, needed(root), bucket, home, rounds
                    )
                    results.add("rows", row or {}, json.dumps(row))
            row_name = f"{name}-lance"
            blobs = folder / f"{name}.lance"
            if arguments.only in row_name and not results.has("rows", row_name) and arguments.lance:
                if not blobs.exists():
                    fewer = min(tiles, LANCE_TILES)
                    root = joined(
                        folder / f"{name}-{fewer}", recorded.encoded(encoding), fewer, cameras=3
                    )
                    words = {"root": str(root), "out": str(blobs)}
                    subprocess.run(
                        [arguments.lance, *child(__file__, "write_lance", **words)[1:]], check=True
                    )
                commands = {
                    place: [[arguments.lance, *child(__file__, "lance", root=where)[1:]]]
                    for place, where in (
                        ("local", str(blobs)),
                        ("empty", f"s3://data/{blobs.name}"),
                    )
                }
                row = measure_set(row_name, "lance", commands, needed(blobs), bucket, home, rounds)
                if row:
                    for place in commands:  # the CPU time of its workers is known at their end
                        row[place] = {
                            key: value
                            for key, value in row[place].items()
                            if "steady_cpu" not in key
                        }
                    results.add("rows", row, json.dumps(row))
    return results


def main() -> None:
    parser = make_parser(__doc__)
    add_dataset_arguments(parser, seconds=0, rounds=3)
    parser.add_argument(
        "--lance", default=sys.executable, help="Python interpreter that has pylance and understudy"
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[1, 16], help="processes that read together"
    )
    arguments = parser.parse_args()
    if arguments.part:
        parts = {"rank": rank, "lance": lance, "write_lance": write_lance}
        return parts[arguments.part[0]](**json.loads(arguments.part[1]))
    found = measure(arguments).found
    print(json.dumps(found))


if __name__ == "__main__":
    main()
