"""Measurement of our loader for some seconds, and of another loader in another process.

They are measured in rounds, in turns, so that a busy machine disturbs all alike; the median round counts. CPU time is
that of the process with its threads; it is disturbed far less than wall time.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from understudy.bytesize import parse_bytes
from understudy.cores import MOST_LOADER_THREADS, available_cores
from understudy.data.dataset import EpisodeDataset
from understudy.errors import ConfigError, DatasetError
from understudy.load.choose_order import choose_order
from understudy.load.loader import Loader
from understudy.order import Order
from understudy.order.audit.audit import as_read, audit
from understudy.order.audit.design_effect import expected_uniform
from understudy.video.native.loops import load_loops, loops_status

WARM_BATCHES = 8
"""Batches discarded before each round: more than the loader prepares ahead between rounds."""


@dataclass(frozen=True)
class Round:
    """One measured interval."""

    samples: int
    seconds: float
    cpu_seconds: float

    @property
    def per_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU time of a sample in milliseconds."""
        return self.cpu_seconds / self.samples * 1e3


def median_round(rounds: Sequence[Round]) -> dict[str, float]:
    """Medians over rounds: {"samples_per_s", "cpu_ms_per_sample"}."""
    return {
        "samples_per_s": median(trial.per_s for trial in rounds),
        "cpu_ms_per_sample": median(trial.cpu_ms for trial in rounds),
    }


@dataclass(frozen=True)
class Setting:
    """Settings of a measurement: a dataset, one frame of each camera, chunks of `chunk` actions, batches of `batch`."""

    path: str
    batch: int = 32
    chunk: int = 16
    threads: int = 0
    """0: chosen by the loader."""
    memory: str = "4GB"
    cameras: tuple[str, ...] | None = None
    """None: all cameras."""
    seed: int = 0
    rank: int = 0
    world_size: int = 1
    """Processes that are measured at once; each makes its share of every batch."""
    colors: Literal["rgb", "yuv"] = "rgb"
    """Form of images between host and device (`Loader`). Planes are converted on the GPU, without one on the CPU."""

    def data(self) -> EpisodeDataset:
        """Open the dataset.

        Raises:
            DatasetError: Unknown camera.
        """
        whole = EpisodeDataset(self.path)
        catalog = whole.catalog
        names = catalog.camera_keys
        cameras = names if self.cameras is None else self.cameras
        for camera in cameras:
            if camera not in names:
                raise DatasetError(f"unknown camera {camera!r}", where=self.path, fix=f"cameras: {', '.join(names)}")
        keys = [key for key in whole.keys if key not in names or key in cameras]
        windows = {"action": [i / catalog.fps for i in range(self.chunk)]} if "action" in keys else {}
        return EpisodeDataset(catalog, delta_timestamps=windows, keys=keys)

    def order(self, data: EpisodeDataset) -> Order:
        """Choose the order of a new run with this memory.

        Raises:
            ConfigError: The memory does not suffice for a batch.
        """
        try:
            return choose_order(
                [data],
                memory=parse_bytes(self.memory),
                world_size=self.world_size,
                num_threads=MOST_LOADER_THREADS,
                batch_size=self.batch,
                seed=self.seed,
            ).order
        except ValueError as error:
            raise ConfigError(str(error)) from error


def default_seconds(frames: int) -> float:
    """Return the seconds of a measurement by the frames of a dataset.

    Few frames are decoded many times within a second, and more time repeats the same work.
    """
    return min(5.0, max(1.0, 5.0 * frames / 10_000))


def picture_bytes(data: EpisodeDataset) -> int:
    """Bytes of one decoded frame of all cameras; 0 without video."""
    readers = [data.video_frames.reader(camera, 0) for camera in videos(data)]
    return sum(reader.height * reader.width * 3 for reader in readers)


def videos(data: EpisodeDataset) -> list[str]:
    """Cameras with video files."""
    return [key for key in data.keys if key in data.catalog.episodes.videos]


class Trial:
    """Our loader with one setting: `measure` once per round, then `close`."""

    def __init__(self, setting: Setting) -> None:
        self.data = setting.data()
        self.order = setting.order(self.data)
        other = setting.data()
        other.batch(*other.locate([0]))  # loads code and codecs, which the loader's plan does not count
        del other
        self._before = start_peak()
        started = time.perf_counter()
        cuda = setting.colors == "yuv" and torch.cuda.is_available()
        self.loader = Loader(
            [self.data],
            order=self.order,
            num_threads=setting.threads or "auto",
            memory=setting.memory,
            rank=setting.rank,
            world_size=setting.world_size,
            position=0,
            colors=setting.colors,
            device="cuda" if cuda else None,
        )
        self.batch_bytes, self._spent = 0, 0.0
        self.take()
        self.first_batch_s = time.perf_counter() - started
        self._peak = peak_bytes()
        self.parts: dict[str, float] = {}
        """Seconds of all rounds by kind of work, over all threads; "waited" is the consumer's."""

    def take(self) -> None:
        """Take the next batch and note its size."""
        batch = next(self.loader)
        self.batch_bytes = sum(value.nbytes for value in batch.values() if isinstance(value, Tensor))

    def measure(self, seconds: float, wait: Callable[[], object] | None = None) -> Round:
        """Measure one round of `seconds`, after uncounted batches (the first time, one turn of all lanes).

        Args:
            seconds: time to measure.
            wait: called before it, to begin with other processes.
        """
        start_peak()  # memory used in this process between rounds is not the loader's
        for _ in range(max(WARM_BATCHES, 0 if self._spent else self._turn())):
            self.take()
        if wait is not None:
            wait()
        parts, waited = self._parts(), self.loader.wait_seconds
        start, cpu, batches = time.perf_counter(), time.process_time(), 0
        while (spent := time.perf_counter() - start) < seconds or not batches:
            self.take()
            batches += 1
        samples = batches * self.order.batch_size // self.loader.world_size
        trial = Round(samples, spent, time.process_time() - cpu)
        self._peak = max(self._peak, peak_bytes())
        self._spent += spent
        new = {"waited": self.loader.wait_seconds - waited} | {k: v - parts[k] for k, v in self._parts().items()}
        self.parts = {key: self.parts.get(key, 0.0) + value for key, value in new.items()}
        return trial

    @property
    def held(self) -> int:
        """Decoded frames that wait in the loader, as planned: planned bytes over those of a 4:2:0 frame.

        0 if all frames stay in memory anyway.
        """
        readers = sum(item.bytes for item in self.loader.plan.items if item.name.startswith("clip readers of "))
        return int(readers / max(1, picture_bytes(self.data) / 2) * len(videos(self.data)))

    def _turn(self) -> int:
        """Batches until each lane has read its first run: until then more is decoded than delivered."""
        plan, sources = self.loader.plan, self.order.spec.sources
        plans = zip(sources, plan.policies, plan.keeps_decoded)
        read = [source.lanes * policy.run_length for source, policy, keep in plans if source.shuffle and not keep]
        return -(-sum(read) // self.order.batch_size)

    def _parts(self) -> dict[str, float]:
        times = self.loader.timings
        return {name: float(getattr(times, name)) for name in ("fetch", "decode", "convert", "assemble", "wait")}

    @property
    def waited_share(self) -> float:
        """Share of the rounds in which the consumer waited for batches; it does nothing else here."""
        return self.parts.get("waited", 0.0) / max(self._spent, 1e-9)

    @property
    def work(self) -> dict[str, float]:
        """Shares of the threads' working time: fetch, decode, convert, assemble."""
        spent = {key: self.parts.get(key, 0.0) for key in ("fetch", "decode", "convert", "assemble")}
        return {key: value / max(sum(spent.values()), 1e-9) for key, value in spent.items()}

    @property
    def peak_mb(self) -> float:
        """Largest growth of resident memory since before the loader was made, with codecs loaded.

        It includes discarded batches. On systems whose peak cannot be reset (see `start_peak`) it is the growth beyond
        the earlier peak, and too small if that was high.
        """
        return max(0, self._peak - self._before) / 1e6

    def close(self) -> None:
        """Close the loader."""
        self.loader.close()


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
    `order/audit/design_effect.py`.
    """
    read, lengths = as_read(order)
    span = max(256 * order.batch_size, min(1 << 18, 4 * order.spec.sources[0].frames))
    figures = audit(read, lengths, order.batch_size, world_size=1, span=span)
    uniform = expected_uniform(lengths, order.batch_size)
    return {"deff": list(figures.deff), "deff_uniform": uniform, "distinct_episodes": figures.distinct_episodes}


def start_peak() -> int:
    """Reset the peak of `peak_bytes`; returns the peak, which is then the resident memory.

    Linux keeps this peak at no cost (proc(5): 5 into /proc/self/clear_refs). On other systems, or without permission to
    write that file, the peak is that of the process since its start.
    """
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return peak_bytes()


def peak_bytes() -> int:
    """Largest resident memory of this process since `start_peak`."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return _peak_ever()


def _peak_ever() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


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


LEROBOT_SCRIPT = Path(__file__).parents[4] / "benchmarks" / "rival_loaders.py"
"""Measures other loaders; part of a checkout, not of the installed package."""


def lerobot(python: str) -> OtherLoader:
    """Start the measurement of LeRobot's loader in the interpreter `python`.

    Raises:
        ConfigError: understudy is installed without its source.
    """
    if not LEROBOT_SCRIPT.is_file():
        raise ConfigError("against: lerobot needs benchmarks/rival_loaders.py, which only a checkout has")
    return OtherLoader([python, "-P", str(LEROBOT_SCRIPT), "lerobot-torchcodec"])


def other_figures(other: OtherLoader, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the other loader's rounds with its version, or {"missing": reason}."""
    missing = [answer["missing"] for answer in answers if "missing" in answer]
    if missing or not answers:
        return {"missing": other.missing or (missing or ["nothing was measured"])[0]}
    rounds = [Round(answer["samples"], answer["seconds"], answer["cpu_seconds"]) for answer in answers]
    episodes = median(answer["episodes"] for answer in answers)
    return {"version": other.version, **median_round(rounds), "distinct_episodes": episodes}


def conditions() -> dict[str, Any]:
    """Date, machine and versions of a measurement."""
    import av
    import torch

    from understudy._version import __version__

    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "cpu": cpu_name(),
        "cores": cores(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "understudy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "av": av.__version__,
        "loops": "compiled" if load_loops() else f"Python: {loops_status().reason}",
    }


def cores() -> int:
    """Number of cores that this process may use."""
    return available_cores()


def cpu_name() -> str:
    """Name of the processor, if the system provides it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
