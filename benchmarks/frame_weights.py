"""Frame weights in the order: exact counts, distance of copies, shuffle quality, memory and time.

    python benchmarks/frame_weights.py [--json] [--episodes 10000]

Episodes of 300 frames, a key frame every 2 frames, batch 256. Each case is a file of weights:

    none        no weights
    episodes    a tenth of the episodes has weight 4, a tenth 0, the rest 1
    moments     two moments of 30 frames in each episode have weight 3, the rest 1
    frames      each frame has 0, 1, 2 or 3, drawn on its own

`deff` is the design effect over 1, 8 and 64 batches (docs/order.md), of the default order and of a uniform shuffle of
the same frames and copies. `gap` is the distance of neighbouring copies of a frame in an epoch, in epochs: least, 1st
percentile, median. Times are CPU times.
"""

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.data.selection.frame_weights import weigh_frames
from understudy.data.selection.select import Selection
from understudy.order import Order
from understudy.order.audit.audit import as_read, audit

LENGTH, BATCH = 300, 256


def cases(episodes: int) -> Iterator[tuple[str, np.ndarray | None]]:
    """Name and weights float64 (episodes, LENGTH) of each case."""
    rng = np.random.default_rng(0)
    yield "none", None
    kind = rng.permutation(episodes) * 10 // episodes
    yield "episodes", np.repeat(np.select([kind == 0, kind == 1], [4.0, 0.0], 1.0)[:, None], LENGTH, axis=1)
    weights = np.ones((episodes, LENGTH))
    for start in rng.integers(0, LENGTH - 30, (2, episodes)):
        weights[np.arange(episodes)[:, None], start[:, None] + np.arange(30)] = 3.0
    yield "moments", weights
    yield "frames", rng.integers(0, 4, (episodes, LENGTH)).astype(np.float64)


def source_of(weights: np.ndarray | None, episodes: int, path: Path) -> tuple[Any, dict[str, Any]]:
    """The source of an order, and figures of its making."""
    ids = np.arange(episodes)
    rows = np.stack([ids, np.zeros_like(ids), np.full_like(ids, LENGTH)], axis=1)
    source = SimpleNamespace(name="table", segments=rows, gop=2, reach=(0, 0))
    if weights is None:
        return source, {"frames": episodes * LENGTH, "epoch": episodes * LENGTH}
    episode, frame = np.divmod(np.arange(weights.size), LENGTH)
    pq.write_table(pa.table({"episode": episode, "frame": frame, "weight": weights.ravel()}), path)
    table = SimpleNamespace(ids=ids, lengths=np.full(episodes, LENGTH), rows_of=lambda of: of)
    begin = time.process_time()
    catalog: Any = SimpleNamespace(root="table", episodes=table)
    selection, made = weigh_frames(catalog, Selection(rows, rows[:, 2]), path, "order")
    seconds = time.process_time() - begin
    source.segments, source.epoch_segments = selection.segments, made.epoch_segments
    facts = made.facts
    return source, {
        "frames": facts.frames,
        "epoch": facts.epoch,
        "effective": round(facts.effective),
        "segments": len(made.epoch_segments),
        "bytes_per_frame": round(made.epoch_segments.nbytes / facts.frames, 2),
        "read_s": round(seconds, 2),
    }


def exact(order: Order, source: Any, weights: np.ndarray | None, episodes: int) -> bool:
    """Whether the second epoch has each frame as often as its weight."""
    epoch = order.spec.sources[0].frames
    _, episode, frame = order.locate(np.arange(epoch, 2 * epoch))
    counts = np.bincount(episode * LENGTH + frame, minlength=episodes * LENGTH)
    return bool((counts == (1 if weights is None else weights.ravel())).all())


def gaps(order: Order, weights: np.ndarray) -> list[float]:
    """Distances of neighbouring copies of 300 frames, as shares of an epoch: least, 1st percentile, median."""
    epoch, rng = order.spec.sources[0].frames, np.random.default_rng(1)
    found: list[float] = []
    for number in rng.choice(np.flatnonzero(weights.ravel() >= 2), 300, replace=False):
        at = order.positions_of(0, *divmod(int(number), LENGTH))
        found += (np.diff(at) / epoch).tolist()
    return [float(f"{value:.3g}") for value in np.quantile(found, [0, 0.01, 0.5])]


def measure(episodes: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, weights in cases(episodes):
            source, own = source_of(weights, episodes, Path(folder, "w.parquet"))
            for mode in ("clips", "uniform"):
                order = Order.from_datasets(source, batch_size=BATCH, mode=mode)
                read, lengths = as_read(order)
                figures = audit(read, lengths, BATCH, gop=2, start=BATCH * 100, span=BATCH * 2048)
                own[mode] = {
                    "exact": exact(order, source, weights, episodes),
                    "deff": [round(value, 2) for value in figures.deff],
                    "decoded_per_sample": round(figures.amplification, 2),
                }
                if weights is not None:
                    own[mode]["gap"] = gaps(order, weights)
            found[name] = own
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--episodes", type=int, default=10_000)
    options = parser.parse_args()
    conditions = {"episodes": options.episodes, "length": LENGTH, "batch": BATCH, "python": platform.python_version()}
    found = {"conditions": conditions, **measure(options.episodes)}
    print(json.dumps(found) if options.json else json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
