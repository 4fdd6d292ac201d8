"""Cost of a history in the loader: samples per second, decoded frames and memory of 1 and 6 frames a second apart.

    python benchmarks/history.py [--json] [--gop 2 30 250] [--remote] [--cache DIR] [--data FOLDER] [--seconds S]

Each row is a process of its own on one thread. Without `--data` the recordings are drawn: 160 episodes of 420 to 780
frames at 30 per second, 224 pixels, H.264. Images stream: the memory budget is below that of all decoded images. With
`--remote` each row comes twice: from disk, and from a server 30 ms away with an empty cache (`loader_remote.py`). A row
is measured for `--seconds` at least, and until each lane has passed two clips on average. Figures:

    samples_per_s        wall time, on this machine as busy as it is
    cpu_ms_per_sample    CPU time of the process
    decoded_per_sample   frames that decoders return, per sample and camera
    peak_mb, planned_mb  largest resident memory above that before the loader, and the loader's plan. After the timed
                         samples as many again are taken with pauses that fill the batches ahead
    decode_ratio         decoded_per_sample over that of a history of 1

A sample of 6 frames also converts 6 images to RGB and fills 6 times the batch memory, which is most of its CPU time.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from loader_remote import LATENCY, served, started
from loader_sets import Encoding, Recording, joined

if TYPE_CHECKING:
    from understudy import Loader

HISTORIES = {1: (0.0,), 6: (-5.0, -4.0, -3.0, -2.0, -1.0, 0.0)}
BATCH, EPISODES, SIDE, MEMORY = 16, 160, 224, 1_500_000_000
PAUSES, PAUSE, IDLE = 32, 0.25, 0.02
"""Pauses that fill the batches ahead: until 0.25 s (8 round trips to the server) take less than 2 % of a core."""
LENGTHS = (420, 540, 660, 780)
"""Frames of the episodes. Clips of about one common length would begin where episodes do, and need no history."""


def drawn(cache: Path, gop: int) -> Path:
    """Recordings with a key frame every `gop` frames."""
    parts = []
    for frames in LENGTHS:
        recorded = Recording(cache / "history" / str(frames), None, episodes=1, frames=frames, height=240)
        parts += recorded.encoded(Encoding("libx264", gop, SIDE))
    return joined(cache / "history" / f"mixed-g{gop}", parts, EPISODES // len(parts), cameras=1)


def measure(root: str, history: int, seconds: float, cache: str) -> dict[str, Any]:
    """Measure one history in this process; `cache` is the folder of bytes from a server."""
    import pyarrow as pa

    from understudy import Catalog, EpisodeDataset, Loader, RemoteOptions
    from understudy.cli.bench.measure import peak_bytes, start_peak
    from understudy.load.choose_order import choose_order

    catalog = Catalog.open(root, RemoteOptions(cache=cache) if cache else None)
    camera = catalog.camera_keys[0]
    windows = {camera: HISTORIES[history]} if history > 1 else None
    data = EpisodeDataset(catalog, delta_timestamps=windows, keys=[camera, "action"])
    order = choose_order([data], batch_size=BATCH, seed=0, memory=MEMORY).order
    warm = EpisodeDataset(catalog, delta_timestamps=windows, keys=[camera, "action"])
    warm.batch(*warm.locate([0]))  # loads code and codecs; the rows that it reads are not those of the loader
    del warm
    pa.default_memory_pool().release_unused()
    before = start_peak()
    with Loader([data], order=order, num_threads=1, memory=MEMORY) as loader:
        source = order.spec.sources[0]
        for _ in range(source.lanes // BATCH + 8):  # lanes begin
            next(loader)
        frames, cpu, start, samples = loader.timings.frames, time.process_time(), time.perf_counter(), 0
        while samples < 2 * source.lanes * source.clip or time.perf_counter() - start < seconds:
            next(loader)
            samples += BATCH
        wall, spent = time.perf_counter() - start, time.process_time() - cpu
        decoded = loader.timings.frames - frames
        fill_ahead(loader, max(10 * PAUSES, 2 * source.lanes * source.clip // BATCH))
        return {
            "gop": data.gop,
            "history": history,
            "remote": bool(cache),
            "samples_per_s": samples / wall,
            "cpu_ms_per_sample": 1e3 * spent / samples,
            "decoded_per_sample": decoded / samples,
            "peak_mb": (peak_bytes() - before) / 1e6,
            "planned_mb": loader.plan.bytes / 1e6,
            "clip": source.clip,
            "lanes": source.lanes,
            "resident": all(loader.plan.keeps_decoded),
        }


def fill_ahead(loader: "Loader", batches: int) -> None:
    """Take batches with pauses in which the loader makes all that it may ahead, as beside a slow training step."""
    for number in range(batches):
        if number % (batches // PAUSES) == 0:
            before, now = -1.0, time.process_time()
            while now - before > IDLE * PAUSE:
                time.sleep(PAUSE)
                before, now = now, time.process_time()
        held = next(loader)  # noqa: F841 (until the next one is there, as in training)


def rows(root: Path, seconds: float, remote: bool) -> list[dict[str, Any]]:
    """Measure each history in a process of its own."""
    found: list[dict[str, Any]] = []
    for history in HISTORIES:
        with ExitStack() as stack:
            place, cache = str(root), ""
            if remote:
                home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                _, port = stack.enter_context(served(root, home))
                proxy = [str(Path(__file__).with_name("delay_proxy.py")), str(port), str(LATENCY), str(home / "bytes")]
                place = f"http://127.0.0.1:{stack.enter_context(started([sys.executable, *proxy]))}"
                cache = str(home / "cache")
            command = [sys.executable, __file__, "--one", place, str(history), cache, "--seconds", str(seconds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        first = found[0] if found else row
        found.append(row | {"decode_ratio": row["decoded_per_sample"] / first["decoded_per_sample"]})
    return found


def table(measured: list[dict[str, Any]]) -> str:
    names = ["gop", "remote", "history", "samples_per_s", "cpu_ms_per_sample", "decoded_per_sample", "decode_ratio"]
    names += ["peak_mb", "planned_mb", "clip", "lanes", "resident"]
    lines = ["  ".join(f"{name:>18}" for name in names)]
    for row in measured:
        shown = [f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names]
        lines.append("  ".join(f"{value:>18}" for value in shown))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gop", type=int, nargs="+", default=[2, 30, 250])
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "understudy-benchmark")
    parser.add_argument("--data", type=Path, help="a dataset of 30 frames per second, instead of drawn ones")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured time of a row")
    parser.add_argument("--json", action="store_true", help="print one JSON list")
    parser.add_argument("--remote", action="store_true", help="also measure over a server 30 ms away")
    parser.add_argument("--one", nargs=3, metavar=("ROOT", "HISTORY", "CACHE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        root, history, cache = options.one
        print(json.dumps(measure(root, int(history), options.seconds, cache)))
        return
    roots = [options.data] if options.data else [drawn(options.cache, gop) for gop in options.gop]
    places = (False, True) if options.remote else (False,)
    measured = [row for root in roots for remote in places for row in rows(root, options.seconds, remote)]
    print(json.dumps(measured) if options.json else table(measured))


if __name__ == "__main__":
    main()
