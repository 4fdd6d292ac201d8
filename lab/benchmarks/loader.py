"""Loader benchmark: samples per second beside the decode limits and LeRobot, memory, and the first
batch.

    python lab/benchmarks/loader.py [--json] [--out FILE] [--only NAME] [--quick] [--lerobot PYTHON]
        [--cache DIR]

The datasets are made once in the cache folder (about 2 GB; a few minutes), from the real recordings
in UNDERSTUDY_TEST_DATA where that is set, otherwise from drawn images. In each round the three
decode limits, our loader (in its own process) and LeRobot (in the interpreter given; null where it
is missing) take turns. Figures are medians. `limit` and `codec` are those of `decode_limit.py`. The
memory budget is smaller than the decoded images, so this measures streaming, not copying. Only the
real recordings are also measured with enough memory ("-half": with too little). The row "rows-only"
has no video. A full run takes half an hour or more. Linux only.

`shuffled` is the bare codec with shuffled output. Decoded frames wait among as many others as the
loader's lanes hold. They are converted when they are due, into batches that stay in use for a
while. So they leave the cores' caches and return, which the other limits never pay. There is no
order, no row, no choice of frames. It is no bound: a loader with fewer frames in flight, or with
another conversion, may exceed it. A loader that shuffles like ours with as many frames has at least
this work.
"""

import argparse
import itertools
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import av
import numpy as np

import decode_limit
from common import OtherLoader, Results, add_dataset_arguments, child, say
from decode_limit import Limit, Stretch
from loader_rivals import Rival
from loader_sets import Set, sets
from loader_trial import Round, Setting, Trial, median_round, videos
from order_audit import as_read, deff_of
from parsers import make_parser
from understudy_base import __version__
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.order.design_effect import expected_uniform
from understudy_data.testing.peak_memory import peak_bytes, start_peak
from understudy_data.video.color import Converter

BATCH = 32
CHUNK = 16
MEMORY = 10**9
RING = 7 * 32  # images of batches in use at a time, over all decoders: seven batches of 32
FRAMES_TOGETHER = 16
"""Frames converted one after the other: a thread's part of a batch."""


def picture_bytes(data: EpisodeDataset) -> int:
    """Bytes of one decoded frame of all cameras; 0 without video."""
    readers = [data.video_frames.reader(camera, 0) for camera in videos(data)]
    return sum(reader.height * reader.width * 3 for reader in readers)


class MemoryTrial(Trial):
    """Our loader with one setting, and its memory."""

    def __init__(self, setting: Setting) -> None:
        warm = setting.data()
        warm.batch(*warm.locate([0]))  # code and codecs, which the loader's plan does not count
        del warm
        self._before = start_peak()
        super().__init__(setting)
        self._peak = peak_bytes()

    def measure(self, seconds: float, wait: Callable[[], object] | None = None) -> Round:
        start_peak()  # memory used in this process between rounds is not the loader's
        trial = super().measure(seconds, wait)
        self._peak = max(self._peak, peak_bytes())
        return trial

    def facts(self) -> dict[str, Any]:
        """Facts about the loader beside a round's figures.

        `peak_mb` is the largest growth of resident memory since before the loader was made, with
        codecs loaded. It includes discarded batches. On systems whose peak cannot be reset (see
        `start_peak`) it is the growth beyond the earlier peak, and too small if that was high.
        `held` is the number of decoded frames that wait in the loader, as planned: planned bytes
        over those of a 4:2:0 frame; 0 if all frames stay in memory anyway.
        """
        plan = self.loader.plan
        readers = sum(item.bytes for item in plan.items if item.name.startswith("clip readers of "))
        return {
            "peak_mb": max(0, self._peak - self._before) / 1e6,
            "planned_mb": plan.bytes / 1e6,
            "held": int(readers / max(1, picture_bytes(self.data) / 2) * len(videos(self.data))),
            "resident": all(plan.keeps_decoded),
            "waited_share": self.waited_share,
            "work": self.work,
            "plan": str(plan),
            "first_batch_s": self.first_batch_s,
        }


def serve(setting: Setting) -> None:
    """Measure our loader in this process: one round per line on stdin, with its facts so far."""
    print(json.dumps({"version": __version__}), flush=True)
    trial = None
    for line in sys.stdin:
        trial = trial or MemoryTrial(setting)
        measured = trial.measure(json.loads(line)["seconds"])
        print(json.dumps(asdict(measured) | trial.facts()), flush=True)
    if trial:
        trial.close()


def limits(data: EpisodeDataset, held: int) -> dict[str, Limit]:
    """The decode limits by their prefix in a row. `held` frames wait in `shuffled`, over all
    decoders.
    """
    library, codec = decode_limit.limits(data)

    def cold(part: Stretch) -> Iterator[int]:
        # every page
        ring = np.full((-(-RING // len(codec.stretches)), 3, part.height, part.width), 0, np.uint8)
        return shuffled(part, held // len(codec.stretches), ring)

    return {
        "limit": library,
        "codec_limit": codec,
        "shuffled_limit": Limit({"bare codec": cold}, codec.cameras, codec.stretches),
    }


def shuffled(stretch: Stretch, held: int, ring: np.ndarray) -> Iterator[int]:
    """Decode prepared packets with a codec context, with `held` frames waiting in decode order.

    The oldest frames are converted into the next images of `ring`, uint8 (n, 3, H, W).
    """
    context = decode_limit.create_context(stretch)
    converter = Converter()
    waiting: deque[av.VideoFrame] = deque()
    place = 0
    for packet in itertools.cycle([*map(decode_limit.make_packet, stretch.packets), None]):
        waiting.extend(context.decode(packet))
        if packet is None:
            context.flush_buffers()
        while len(waiting) >= held + FRAMES_TOGETHER:
            due = [waiting.popleft() for _ in range(FRAMES_TOGETHER)]
            converter.write_all(
                due, [(place + i) % len(ring) for i in range(FRAMES_TOGETHER)], ring
            )
            place += FRAMES_TOGETHER
            yield FRAMES_TOGETHER


def medians(answers: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds of a process."""
    return median_round(
        [Round(answer["samples"], answer["seconds"], answer["cpu_seconds"]) for answer in answers]
    )


def rival_figures(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the other loader's rounds, or {"missing": reason}."""
    missing = [answer["missing"] for answer in answers if "missing" in answer]
    return {"missing": missing[0]} if missing else medians(answers)


def measure_set(
    one: Set, rival: Rival | None, known: dict[Path, Any], seconds: float, rounds: int
) -> dict[str, Any]:
    """Measure one row. `known` has LeRobot's figures on earlier datasets by their path."""
    data = Setting(str(one.root), BATCH, CHUNK).data()
    memory = int(picture_bytes(data) * len(data) * one.memory) or MEMORY
    memory = memory if one.memory > 1 else min(MEMORY, memory)
    setting = Setting(str(one.root), BATCH, CHUNK, memory=str(memory))
    ours = []
    theirs = []
    with OtherLoader(child(__file__, "ours", **asdict(setting))) as loader:
        # warm-up: lanes turn over, and the frames that they hold become known
        start = loader.require(seconds=0)
        sides = limits(data, start["held"])
        for _ in range(rounds):
            for side in sides.values():
                side.measure(seconds)
            ours.append(loader.require(seconds=seconds))
            if rival and one.lerobot not in known:
                asked = {"batch": BATCH, "chunk": CHUNK, "workers": 2, "seconds": seconds}
                theirs.append(rival.ask(root=str(one.lerobot), **asked))
    known |= {one.lerobot: rival_figures(theirs)} if theirs else {}
    figures = medians(ours)
    other = known.get(one.lerobot, {})
    order = setting.order(data)
    read, lengths = as_read(order)
    stop = max(256 * BATCH, min(1 << 18, 4 * order.spec.sources[0].frames))
    row = {**asdict(one), "root": None, "lerobot": None, **figures}
    for key, side in sides.items():
        for figure in ("samples_per_s", "cpu_ms_per_sample"):
            row[f"{key}_{figure.removeprefix('samples_')}"] = (side.figures() or {}).get(figure)
        row[f"over_{key}"] = side.share(figures["samples_per_s"])
    row |= {
        f"lerobot_{key}": other.get(key)
        for key in ("samples_per_s", "cpu_ms_per_sample", "missing")
    }
    row |= {
        "deff1": deff_of(read, BATCH, 0, stop)[0][0],
        "deff1_uniform": expected_uniform(lengths, BATCH),
    }
    about = {
        key: ours[-1][key] for key in start if key not in ("samples", "seconds", "cpu_seconds")
    }
    return row | about | {"memory_mb": memory / 1e6}


def measure(arguments: argparse.Namespace) -> Results:
    """Measure the rows that `--out` lacks."""
    real = Path(arguments.real) if arguments.real else None
    quick = arguments.quick
    seconds, rounds = (0.3, 1) if quick else (arguments.seconds, arguments.rounds)
    settings = {
        "recordings": "real" if real else "drawn",
        "quick": quick,
        "batch": BATCH,
        "chunk": CHUNK,
    }
    results = Results(["rows"], arguments.out, **settings, rounds=rounds, seconds=seconds)
    say("making missing datasets in", arguments.cache)
    chosen = sets(arguments.cache, real, quick, arguments.only)
    known = dict[Path, Any]()
    with Rival("lerobot-torchcodec", arguments.lerobot) as rival:
        if rival.missing:
            say("LeRobot is not measured:", rival.missing)
        results.found["conditions"]["lerobot"] = rival.version or None
        for one in chosen:
            if not results.has("rows", one.name):
                other = None if rival.missing else rival
                row = measure_set(one, other, known, seconds, rounds)
                results.add("rows", row, render_row(row))
    return results


COLUMNS = {
    "samples/s": "samples_per_s",
    "limit/s": "limit_per_s",
    "of limit": "over_limit",
    "codec/s": "codec_limit_per_s",
    "of codec": "over_codec_limit",
    "shuffled/s": "shuffled_limit_per_s",
    "of shuf.": "over_shuffled_limit",
    "CPU ms": "cpu_ms_per_sample",
    "limit's": "limit_cpu_ms_per_sample",
    "codec's": "codec_limit_cpu_ms_per_sample",
    "shuffled's": "shuffled_limit_cpu_ms_per_sample",
    "LeRobot's": "lerobot_cpu_ms_per_sample",
    "deff(1)": "deff1",
    "uniform": "deff1_uniform",
    "first s": "first_batch_s",
    "MB": "peak_mb",
    "planned": "planned_mb",
}


def render_row(row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [
        "-" if row[key] is None else f"{row[key]:,.0f}" if row[key] >= 100 else f"{row[key]:.3f}"
        for key in COLUMNS.values()
    ]
    return f"{row['name']:<24}" + "".join(f"{cell:>11}" for cell in cells)


def render(found: dict[str, Any]) -> str:
    """All rows as a table."""
    head = f"{'':<24}" + "".join(f"{name:>11}" for name in COLUMNS)
    return "\n".join([head, *map(render_row, found["rows"]), "", json.dumps(found["conditions"])])


def main() -> None:
    parser = make_parser(__doc__)
    add_dataset_arguments(parser, seconds=3.0, rounds=3)
    parser.add_argument(
        "--lerobot", default=sys.executable, help="Python interpreter that has LeRobot"
    )
    arguments = parser.parse_args()
    if arguments.part:
        return serve(Setting(**json.loads(arguments.part[1])))
    found = measure(arguments).found
    print(json.dumps(found) if arguments.json else render(found))


if __name__ == "__main__":
    from understudy import keep_freed_memory

    keep_freed_memory()  # as a training run does, here and in each child
    main()
