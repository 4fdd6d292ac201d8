"""Share of a training step spent waiting for data, with a consumer of fixed step time.

    python benchmarks/waiting.py [--json] [--quick] [--lerobot PYTHON] [--cache DIR] [--seconds S]
                                 [--steps MS,...] [--cameras N,...] [--gops N,...]

A step sleeps, as a host does while its GPU computes: 10, 50 or 150 ms. Datasets have one and three cameras of 480
lines, in AV1 with a key frame every 2 frames (LeRobot's default) and in H.264 with one every 30. They are made once in
the cache folder, from the real recordings in UNDERSTUDY_TEST_DATA where that is set, otherwise from drawn images. Our
loader runs in this process, LeRobot's DataLoader in the interpreter given, with as many workers as ours has threads.
Without LeRobot its rows are left out, and `conditions` has the reason. `codec_share` is the part of the samples wanted
that a bare codec on all cores delivers: below 1 no loader can avoid waiting.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from loader_measure import lerobot
from loader_sets import Encoding, Recording, joined

BATCH, CHUNK, MEMORY = 8, 16, "1GB"
STEPS, CAMERAS, GOPS = (10, 50, 150), (1, 3), (2, 30)
ENCODINGS = {2: Encoding("libsvtav1", 2, 0), 30: Encoding("libx264", 30, 0, 23)}
WARM_UP = 8  # steps


def dataset(cache: Path, real: Path | None, quick: bool, gop: int, cameras: int) -> Path:
    """Make a dataset, or return its folder where it is made."""
    cache = cache / ("quick" if quick else "real" if real else "drawn")
    parts = Recording(cache, real, episodes=8, frames=24 if quick else 266, height=64 if quick else 480)
    encoding = ENCODINGS[gop]
    name = f"waiting-{encoding.codec}-g{gop}-{cameras}"
    return joined(cache / name, parts.encoded(encoding), 1 if quick else 32, cameras)


def waiting_share(batches: Any, step_ms: float, seconds: float) -> float:
    """Share of the time that a consumer spends in `next`."""
    for _ in range(WARM_UP):
        next(batches)
        time.sleep(step_ms / 1000)
    waited, begin, steps = 0.0, time.perf_counter(), 0
    while steps < 4 or time.perf_counter() - begin < seconds:
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        time.sleep(step_ms / 1000)
        del batch
        steps += 1
    return waited / (time.perf_counter() - begin)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from understudy.cli.bench.decode_limit import limits
    from understudy.cli.bench.measure import Setting, conditions
    from understudy.load.loader import Loader

    real = Path(os.environ["UNDERSTUDY_TEST_DATA"]) if os.environ.get("UNDERSTUDY_TEST_DATA") else None
    rows: list[dict[str, Any]] = []
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found = {"rows": rows, "conditions": conditions() | {"batch": BATCH, "threads": threads, "quick": arguments.quick}}
    with lerobot(arguments.lerobot) as rival:
        found["conditions"]["lerobot"] = rival.version or None
        found["conditions"]["lerobot_missing"] = rival.missing or None
        for gop in arguments.gops:
            for cameras in arguments.cameras:
                root = dataset(Path(arguments.cache), real, arguments.quick, gop, cameras)
                setting = Setting(str(root), BATCH, CHUNK, threads=threads, memory=MEMORY)
                data = setting.data()
                codec = limits(data)[1]
                codec.measure(arguments.seconds)
                limit = (codec.figures() or {}).get("samples_per_s")
                for step_ms in arguments.steps:
                    about = {"trainer": "loop", "cameras": cameras, "gop": gop, "step_ms": step_ms}
                    about["codec_share"] = limit * step_ms / 1000 / BATCH if limit else None
                    with Loader(data, order=setting.order(data), num_threads=threads, memory=MEMORY) as loader:
                        shares = [waiting_share(loader, step_ms, arguments.seconds) for _ in range(arguments.rounds)]
                    rows.append({**about, "loader": "understudy", "waiting_share": median(shares)})
                    if not rival.missing:
                        asked = {"root": str(root), "batch": BATCH, "chunk": CHUNK, "workers": threads}
                        asked |= {"seconds": arguments.seconds, "step_ms": step_ms}
                        answers = [rival.measure(**asked) for _ in range(arguments.rounds)]
                        if missing := next((own["missing"] for own in answers if "missing" in own), None):
                            found["conditions"]["lerobot_missing"] = missing
                        else:
                            share = median(own["waiting_share"] for own in answers)
                            rows.append({**about, "loader": "lerobot", "waiting_share": share})
                    print(rows[-1], file=sys.stderr, flush=True)
    return found


def render(found: dict[str, Any]) -> str:
    """The rows as a table."""
    lines = [f"{'loader':<12}{'cameras':>9}{'GOP':>6}{'step ms':>9}{'waiting':>9}{'codec':>8}"]
    for row in found["rows"]:
        codec = f"{row['codec_share']:.2f}" if row["codec_share"] else "-"
        place = f"{row['loader']:<12}{row['cameras']:>9}{row['gop']:>6}{row['step_ms']:>9g}"
        lines.append(f"{place}{row['waiting_share']:>9.1%}{codec:>8}")
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="tiny datasets, as a smoke test")
    parser.add_argument("--lerobot", default=sys.executable, help="Python interpreter that has LeRobot")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "understudy-bench"), help="for datasets")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a measurement")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of which the median counts")
    parser.add_argument("--steps", type=numbers, default=STEPS, help="step times in ms")
    parser.add_argument("--cameras", type=numbers, default=CAMERAS, help="numbers of cameras, of 1 to 3")
    parser.add_argument("--gops", type=numbers, default=GOPS, help="frames from key frame to key frame: 2, 30")
    arguments = parser.parse_args()
    found = measure(arguments)
    print(json.dumps(found) if arguments.json else render(found))


if __name__ == "__main__":
    main()
