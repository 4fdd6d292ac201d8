"""Shared by benchmarks of loaders: our loader with its memory, another loader in its process, a further limit.

`shuffled` is a decode limit next to those of `cli/bench/decode_limit.py`: bare codec contexts with shuffled output.
Decoded frames wait among as many others as the loader's lanes hold. They are converted when they are due, into batches
that stay in use for a while. So they leave the cores' caches and return, which the other limits never pay. There is no
order, no row, no choice of frames. It is no bound: a loader with fewer frames in flight, or with another conversion,
may exceed it. A loader that shuffles like ours with as many frames has at least this work.
"""

import itertools
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import av
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from order_audit import as_read, audit
from support.peak_memory import peak_bytes, start_peak
from understudy.cli.bench import decode_limit
from understudy.cli.bench.decode_limit import Limit, Stretch
from understudy.cli.bench.measure import Round, Setting, Trial, median_round, videos
from understudy.data.dataset import EpisodeDataset
from understudy.order import Order
from understudy.order.design_effect import expected_uniform
from understudy.video.color import Converter

_RING = 7 * 32  # images of batches in use at a time, over all decoders: seven batches of 32
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

    @property
    def held(self) -> int:
        """Decoded frames that wait in the loader, as planned: planned bytes over those of a 4:2:0 frame.

        0 if all frames stay in memory anyway.
        """
        readers = sum(item.bytes for item in self.loader.plan.items if item.name.startswith("clip readers of "))
        return int(readers / max(1, picture_bytes(self.data) / 2) * len(videos(self.data)))

    @property
    def peak_mb(self) -> float:
        """Largest growth of resident memory since before the loader was made, with codecs loaded.

        It includes discarded batches. On systems whose peak cannot be reset (see `start_peak`) it is the growth beyond
        the earlier peak, and too small if that was high.
        """
        return max(0, self._peak - self._before) / 1e6


def limits(data: EpisodeDataset, held: int) -> tuple[Limit, Limit, Limit]:
    """The decode limits (library, codec, shuffled). `held` frames wait in `shuffled`, over all decoders."""
    library, codec = decode_limit.limits(data)

    def cold(part: Stretch) -> Iterator[int]:
        ring = np.full((-(-_RING // len(codec.stretches)), 3, part.height, part.width), 0, np.uint8)  # every page
        return shuffled(part, held // len(codec.stretches), ring)

    return library, codec, Limit({"bare codec": cold}, codec.cameras, codec.stretches)


def shuffled(stretch: Stretch, held: int, ring: np.ndarray) -> Iterator[int]:
    """Decode prepared packets with a codec context, with `held` frames waiting in decode order.

    The oldest frames are converted into the next images of `ring`, uint8 (n, 3, H, W).
    """
    context, converter = decode_limit.create_context(stretch), Converter()
    waiting: deque[av.VideoFrame] = deque()
    place = 0
    for packet in itertools.cycle([*map(decode_limit.make_packet, stretch.packets), None]):
        waiting.extend(context.decode(packet))
        if packet is None:
            context.flush_buffers()
        while len(waiting) >= held + FRAMES_TOGETHER:
            due = [waiting.popleft() for _ in range(FRAMES_TOGETHER)]
            converter.write_all(due, [(place + i) % len(ring) for i in range(FRAMES_TOGETHER)], ring)
            place += FRAMES_TOGETHER
            yield FRAMES_TOGETHER


def wait_for_quiet(most: float = 30.0) -> None:
    """Wait until the cores are idle, at most `most` seconds; one second if the system does not report idle time.

    Worker processes of another loader continue to prepare batches for seconds, which would be charged to the next
    measurement.
    """
    stat, end = Path("/proc/stat"), time.monotonic() + most
    if not stat.exists():
        time.sleep(1)
        return

    def times() -> tuple[int, int]:
        counted = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:]]
        return counted[3] + counted[4], sum(counted)  # idle and waiting for a disk; all

    while time.monotonic() < end:
        idle, whole = times()
        time.sleep(0.3)
        later, total = times()
        if later - idle >= 0.8 * (total - whole):
            return


def quality(order: Order) -> dict[str, Any]:
    """Quality of an order: design effect over 1, 8 and 64 batches, and distinct episodes per batch.

    `deff_uniform` is the design effect over one batch of a uniform shuffle of the same episodes, by the model of
    `order/design_effect.py`.
    """
    read, lengths = as_read(order)
    span = max(256 * order.batch_size, min(1 << 18, 4 * order.spec.sources[0].frames))
    figures = audit(read, lengths, order.batch_size, world_size=1, span=span)
    uniform = expected_uniform(lengths, order.batch_size)
    return {"deff": list(figures.deff), "deff_uniform": uniform, "distinct_episodes": figures.distinct_episodes}


class OtherLoader:
    """A process that measures another loader on request, one line of JSON in and one out; a context manager.

    `version` is its reported version; `missing` the reason why it cannot measure, or "".
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self._answer()
        self.version, self.missing = str(first.get("version", "")), str(first.get("missing", ""))

    def measure(self, **request: Any) -> dict[str, Any]:
        """Send a request; returns the answer, or {"missing": reason}."""
        if self.missing:
            return {"missing": self.missing}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended, and gives no answer
            print(json.dumps(request), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.missing = f"it ended with exit code {self.process.wait()}"
            return {"missing": self.missing}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> "OtherLoader":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # it ended before it read a request
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def lerobot(python: str) -> OtherLoader:
    """Start the measurement of LeRobot's loader in the interpreter `python`."""
    script = Path(__file__).with_name("rival_loaders.py")
    return OtherLoader([python, "-P", str(script), "lerobot-torchcodec"])


def other_figures(other: OtherLoader, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the other loader's rounds with its version, or {"missing": reason}."""
    missing = [answer["missing"] for answer in answers if "missing" in answer]
    if missing or not answers:
        return {"missing": other.missing or (missing or ["nothing was measured"])[0]}
    rounds = [Round(answer["samples"], answer["seconds"], answer["cpu_seconds"]) for answer in answers]
    episodes = median(answer["episodes"] for answer in answers)
    return {"version": other.version, **median_round(rounds), "distinct_episodes": episodes}
