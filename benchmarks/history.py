"""Cost of a history in the loader: samples per second, decoded frames and memory of 1 and 6 frames a second apart.

    python benchmarks/history.py [--json] [--gop 2 30 250] [--cache DIR] [--data FOLDER] [--seconds S]

Each row is a process of its own on one thread. Without `--data` the recordings are drawn: 160 episodes of 600 frames at
30 per second, 224 pixels, H.264. Images stream: the memory budget is below that of all decoded images. Figures:

    samples_per_s        wall time, on this machine as busy as it is
    cpu_ms_per_sample    CPU time of the process
    decoded_per_sample   frames that decoders return, per sample and camera
    peak_mb, planned_mb  largest resident memory above that before the loader, and the loader's plan
    decode_ratio         decoded_per_sample over that of a history of 1

A sample of 6 frames also converts 6 images to RGB and fills 6 times the batch memory, which is most of its CPU time.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from loader_sets import Encoding, Recording, joined

HISTORIES = {1: (0.0,), 6: (-5.0, -4.0, -3.0, -2.0, -1.0, 0.0)}
BATCH, EPISODES, FRAMES, SIDE, MEMORY = 16, 160, 600, 224, 1_500_000_000


def drawn(cache: Path, gop: int) -> Path:
    """Recordings with a key frame every `gop` frames."""
    recorded = Recording(cache / "history", None, episodes=4, frames=FRAMES, height=240)
    parts = recorded.encoded(Encoding("libx264", gop, SIDE))
    return joined(cache / "history" / f"g{gop}", parts, EPISODES // 4, cameras=1)


def measure(root: str, history: int, seconds: float) -> dict[str, Any]:
    """Measure one history in this process."""
    from understudy import EpisodeDataset, Loader
    from understudy.cli.bench.measure import peak_bytes, start_peak
    from understudy.load.fit_order import fit_order

    camera = EpisodeDataset(root).catalog.camera_keys[0]
    windows = {camera: HISTORIES[history]} if history > 1 else None
    data = EpisodeDataset(root, delta_timestamps=windows, keys=[camera, "action"])
    order, _ = fit_order([data], batch_size=BATCH, seed=0, memory=MEMORY)
    data.batch(*data.locate([0]))  # loads code and codecs
    before = start_peak()
    with Loader([data], order=order, num_threads=1, memory=MEMORY) as loader:
        for _ in range(order.spec.sources[0].lanes // BATCH + 8):  # lanes begin
            next(loader)
        frames, cpu, start, samples = loader.timings.frames, time.process_time(), time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            next(loader)
            samples += BATCH
        wall, spent = time.perf_counter() - start, time.process_time() - cpu
        return {
            "gop": data.gop,
            "history": history,
            "samples_per_s": samples / wall,
            "cpu_ms_per_sample": 1e3 * spent / samples,
            "decoded_per_sample": (loader.timings.frames - frames) / samples,
            "peak_mb": (peak_bytes() - before) / 1e6,
            "planned_mb": loader.plan.bytes / 1e6,
            "clip": order.spec.sources[0].clip,
            "lanes": order.spec.sources[0].lanes,
            "resident": all(loader.plan.keeps_decoded),
        }


def rows(root: Path, seconds: float) -> list[dict[str, Any]]:
    """Measure each history in a process of its own."""
    found: list[dict[str, Any]] = []
    for history in HISTORIES:
        command = [sys.executable, __file__, "--one", str(root), str(history), "--seconds", str(seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout.splitlines()[-1])
        first = found[0] if found else row
        found.append(row | {"decode_ratio": row["decoded_per_sample"] / first["decoded_per_sample"]})
    return found


def table(measured: list[dict[str, Any]]) -> str:
    names = ["gop", "history", "samples_per_s", "cpu_ms_per_sample", "decoded_per_sample", "decode_ratio"]
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
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "HISTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.seconds)))
        return
    roots = [options.data] if options.data else [drawn(options.cache, gop) for gop in options.gop]
    measured = [row for root in roots for row in rows(root, options.seconds)]
    print(json.dumps(measured) if options.json else table(measured))


if __name__ == "__main__":
    main()
