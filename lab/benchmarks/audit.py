"""Accounts of runs against a record of the batches that their steps consumed, and the rates of
export, play and audit.

    python lab/benchmarks/audit.py [--json] [--scale 25] [--samples 20000000]

`run`: a mixture is trained by 1, 2, 1 and 2 processes in turn, between kills and a signal, with
other weights and a larger batch from the first resume on, bad frames that are substituted and a
step that changes no weight. Each step writes down the samples of the batch that it got, beside the
run. The audit of each checkpoint is compared with that.

The rates are those of an order like DROID's (76,000 episodes, 23 million frames), each in a process
of its own: medians of three, per CPU second, with the growth of resident memory. `audit` counts the
samples of the order, as an audit of a run does; `export` writes them; `audit file` and `play` read
that file, the latter in batches of 256.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from common import conditions, say
from parsers import make_parser
from understudy.testing.audited import damage, eventful_run, trained
from understudy.testing.mixtures import mixed, tiny_sources
from understudy.train.audit import FrameCounts, audit_file, audit_run
from understudy.train.checkpoint import checkpoint
from understudy_data.load.explain import LengthTable, droid_like
from understudy_data.load.order_rows import OrderExport, Span
from understudy_data.order import Order
from understudy_data.testing.peak_memory import peak_bytes, start_peak

ROUNDS = 3
BATCH = 256


def run(scale: int) -> dict[str, Any]:
    """Audit every checkpoint of an eventful run of 16 x `scale` steps; compare each frame's count
    with the record.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        sources = tiny_sources(root)
        damage(root / "wide", 3, 10)
        changes: dict[str, Any] = {
            "steps": 16 * scale,
            "batch_size": 6,
            "data": {"on_bad_frame": "substitute"},
        }
        changes |= {
            "checkpoint": {"every": 4 * scale, "keep_last": 99},
            "val": {"every": 0},
            "device": "cpu",
        }
        out = eventful_run(mixed(sources, root / "run", **changes), [1.0, 4.0, 2.0], scale)
        compared = []
        result = dict[str, Any]()
        for step in checkpoint.list_steps(out / "checkpoints"):
            result, counts = audit_run(out, step, ())
            names = ("source", "episode", "frame", "samples")
            rows = (
                row
                for block in counts.frames()
                for row in zip(*(block[name].tolist() for name in names))
            )
            found = {(counts.names.index(name), *frame): n for name, *frame, n in rows if n}
            record, skipped = trained(out, step)
            same = found == dict(record) and skipped == set(result["skipped_steps"])
            compared.append(
                {
                    "checkpoint": step,
                    "samples": record.total(),
                    "frames": len(record),
                    "equal": same,
                }
            )
        return {
            "compared": compared,
            "equal": all(row["equal"] for row in compared),
            "starts": [
                {key: start[key] for key in ("step", "batch", "world")}
                for start in result["starts"]
            ],
            "substitutions": len(result["substitutions"]),
            "skipped_steps": result["skipped_steps"],
            "validation_samples": result["validation"]["samples"],
        }


def measured(work: Callable[[], Any], samples: int) -> dict[str, float]:
    """Samples per CPU second of `work`, and the growth of resident memory in MB."""
    before = start_peak()
    begin = time.process_time()
    work()
    return {
        "samples_per_cpu_s": samples / (time.process_time() - begin),
        "peak_mb": (peak_bytes() - before) / 1e6,
    }


def part(name: str, samples: int, path: Path) -> dict[str, float]:
    """Measure one rate."""
    table = LengthTable("droid", droid_like(), 2, (0, 0), 30.0, 1)
    order = Order.from_datasets([table], batch_size=BATCH, seed=0)
    span = Span(0, 0, BATCH, samples // BATCH)
    if name == "audit":
        nothing = np.zeros(len(table.lengths), np.int64)
        counts = FrameCounts(["droid"], nothing, table.segments, np.full(len(nothing), ""))
        counts.mark("validation", [])
        return measured(lambda: counts.count(span.samples(order.locate), samples), samples)
    if name == "export":
        path.unlink(missing_ok=True)
        export = OrderExport(order.spec, [span], {"droid": {"lengths": ""}})
        return measured(lambda: export.write(path, span.samples(order.locate)), samples) | {
            "bytes_per_sample": path.stat().st_size / samples
        }
    if name == "audit file":
        return measured(lambda: audit_file(path, "latest", (), ()), samples)
    played = Order.from_file(path)

    def play() -> None:
        for first in range(0, played.stop, BATCH):
            played.locate(np.arange(first, first + BATCH))

    return measured(play, samples)


def main() -> None:
    parser = make_parser(__doc__, whole=True)
    parser.add_argument("--scale", type=int, default=25, help="the run has 16 times as many steps")
    parser.add_argument("--samples", type=int, default=20_000_000, help="of the rates")
    parser.add_argument("--part", nargs=2)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(part(arguments.part[0], arguments.samples, Path(arguments.part[1]))))
        return
    results: dict[str, Any] = {
        "run": run(arguments.scale),
        "rates": {},
        "samples": arguments.samples,
    }
    say(f"run: equal {results['run']['equal']}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "order.parquet")
        words = [sys.executable, __file__, "--samples", str(arguments.samples), "--part"]
        for name in ("audit", "export", "audit file", "play"):
            rounds = [
                json.loads(subprocess.check_output([*words, name, str(path)]))
                for _ in range(ROUNDS)
            ]
            results["rates"][name] = {key: median(row[key] for row in rounds) for key in rounds[0]}
            say(name, results["rates"][name])
    print(json.dumps(results | {"conditions": conditions()}, indent=None if arguments.json else 1))


if __name__ == "__main__":
    main()
