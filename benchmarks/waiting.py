"""Share of a training step spent waiting for data in the first seconds of `us.Loader` with its defaults.

    python benchmarks/waiting.py [--json] [--quick] [--cache DIR] [--seconds S] [--rounds N]

A step sleeps, as a host does while its GPU computes. Datasets have one and three cameras of 480 lines, in AV1 with a
key frame every 2 frames (LeRobot's default) and in H.264 with one every 30, from the real recordings in
UNDERSTUDY_TEST_DATA where that is set, otherwise from drawn images. Each row has, per round, the seconds from the path
to the first batch, with libraries imported, and the share of waiting in two stretches after it. Other loaders are in
`loader_rivals.py`.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from loader_sets import Encoding, Recording, joined
from understudy import EpisodeDataset, Loader
from understudy.cli.bench.measure import conditions

BATCH, CHUNK, STRETCHES = 8, 16, 2
ENCODINGS = {2: Encoding("libsvtav1", 2, 0), 30: Encoding("libx264", 30, 0, 23)}
ROWS = ((2, 1, 10), (2, 1, 50), (2, 3, 50), (30, 1, 10), (30, 3, 10), (30, 3, 50))
"""GOP, cameras, milliseconds of a step."""


def measure(root: Path, step_ms: float, seconds: float, seed: int) -> dict[str, Any]:
    """Start a loader, and measure its first batch and its stretches."""
    fps = EpisodeDataset(root).catalog.fps
    windows = {"action": [i / fps for i in range(CHUNK)]}
    begin = time.perf_counter()
    with Loader(root, batch_size=BATCH, seed=seed, delta_timestamps=windows) as loader:
        batch = next(loader)
        first, shares = time.perf_counter() - begin, []
        for _ in range(STRETCHES):
            begin, waited = time.perf_counter(), 0.0
            while (passed := time.perf_counter() - begin) < seconds:
                time.sleep(step_ms / 1000)
                asked = time.perf_counter()
                batch = next(loader)  # held during the step, as a training loop does
                waited += time.perf_counter() - asked
            shares.append(waited / passed)
        del batch
    return {"first_batch_s": first, "waiting": shares}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="tiny datasets, as a smoke test")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "understudy-bench"), help="for datasets")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a stretch")
    parser.add_argument("--rounds", type=int, default=2, help="loaders of a row")
    arguments = parser.parse_args()
    real = os.environ.get("UNDERSTUDY_TEST_DATA")
    recorded = Recording(Path(arguments.cache), Path(real) if real else None, arguments.quick)
    rows = []
    for gop, cameras, step_ms in ROWS:
        name, videos = f"waiting-{ENCODINGS[gop].codec}-g{gop}-{cameras}", recorded.encoded(ENCODINGS[gop])
        root = joined(recorded.cache / name, videos, 1 if arguments.quick else 32, cameras)
        rounds = [measure(root, step_ms, arguments.seconds, seed) for seed in range(arguments.rounds)]
        rows.append({"gop": gop, "cameras": cameras, "step_ms": step_ms, "rounds": rounds})
        if not arguments.json:
            first = ", ".join(f"{part['first_batch_s']:.2f} s" for part in rounds)
            waiting = ", ".join(" then ".join(f"{share:.1%}" for share in part["waiting"]) for part in rounds)
            print(
                f"GOP {gop:>2}, {cameras} cameras, {step_ms:>2} ms: first batch {first}; waiting {waiting}", flush=True
            )
    if arguments.json:
        print(json.dumps({"rows": rows, "conditions": conditions() | {"batch": BATCH, "quick": arguments.quick}}))


if __name__ == "__main__":
    main()
