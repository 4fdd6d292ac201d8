"""What a bench is made of: our loader at work for some seconds, a rival in another process, and the decode limit.

Each is asked in rounds, one after the other, so that a busy machine disturbs all alike, and the median round counts.
CPU time is the process's own, threads included; it is disturbed far less than wall time.
"""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import Tensor

from understudy.bytesize import parse_bytes
from understudy.data.dataset import EpisodeDataset
from understudy.errors import ConfigError, DatasetError
from understudy.load.fit_order import fit_order
from understudy.load.loader import Loader
from understudy.order import Order
from understudy.order.audit.audit import as_read, audit
from understudy.order.audit.design_effect import expected_uniform
from understudy.video.native.loops import load_loops, loops_status

WARM_BATCHES = 8
"""Batches that are thrown away before each round: more than are made ahead while nobody asks."""
FRAMES_IN_FLIGHT = 100_000
"""As a training run has it."""


@dataclass(frozen=True)
class Round:
    """One stretch of samples from anybody."""

    samples: int
    seconds: float
    cpu_seconds: float

    @property
    def per_s(self) -> float:
        return self.samples / self.seconds

    @property
    def cpu_ms(self) -> float:
        return self.cpu_seconds / self.samples * 1e3


def median_round(rounds: Sequence[Round]) -> dict[str, float]:
    """{"samples_per_s", "cpu_ms_per_sample"}: each the median."""
    return {
        "samples_per_s": median(one.per_s for one in rounds),
        "cpu_ms_per_sample": median(one.cpu_ms for one in rounds),
    }


@dataclass(frozen=True)
class Setting:
    """What is loaded: a dataset, one frame of each camera, an action chunk of `chunk` frames, batches of `batch`."""

    path: str
    batch: int = 32
    chunk: int = 16
    threads: int = 0
    """0: the loader chooses."""
    memory: str = "1GB"
    cameras: tuple[str, ...] | None = None
    """None: all of them."""
    seed: int = 0

    def data(self) -> EpisodeDataset:
        """Raises DatasetError for a camera that is not there."""
        whole = EpisodeDataset(self.path)
        catalog = whole.catalog
        known = catalog.camera_keys
        cameras = known if self.cameras is None else self.cameras
        for camera in cameras:
            if camera not in known:
                raise DatasetError(f"no camera {camera!r}", where=self.path, fix=f"its cameras are {', '.join(known)}")
        keys = [key for key in whole.keys if key not in known or key in cameras]
        windows = {"action": [i / catalog.fps for i in range(self.chunk)]} if "action" in keys else {}
        return EpisodeDataset(catalog, delta_timestamps=windows, keys=keys)

    def order(self, data: EpisodeDataset) -> Order:
        """The order of a new run with this memory: any frame anywhere where all pictures stay decoded, else clips.

        Raises ConfigError when the memory does not do for a batch.
        """
        fits = picture_bytes(data) * len(data) <= parse_bytes(self.memory)
        in_flight = FRAMES_IN_FLIGHT if fits else max(1, min(FRAMES_IN_FLIGHT, len(data) - 1))
        memory = parse_bytes(self.memory)
        try:
            return fit_order([data], memory=memory, batch_size=self.batch, seed=self.seed, frames_in_flight=in_flight)[
                0
            ]
        except ValueError as error:
            raise ConfigError(str(error)) from error


def picture_bytes(data: EpisodeDataset) -> int:
    """Bytes of one decoded frame of all cameras; 0 without video."""
    readers = [data.video_frames.reader(camera, 0) for camera in videos(data)]
    return sum(reader.height * reader.width * 3 for reader in readers)


def videos(data: EpisodeDataset) -> list[str]:
    """The cameras whose pictures are in video files."""
    return [key for key in data.keys if key in data.catalog.episodes.videos]


class Trial:
    """Our loader on one setting: `measure` as often as wanted, then `close`."""

    def __init__(self, setting: Setting) -> None:
        self.data = setting.data()
        self.order = setting.order(self.data)
        other = setting.data()
        other.batch(*other.locate([0]))  # code and codecs are loaded: they are in nobody's plan
        del other
        self._before = start_peak()
        started = time.perf_counter()
        self.loader = Loader(
            [self.data], order=self.order, num_threads=setting.threads or "auto", memory=setting.memory, position=0
        )
        self.batch_bytes, self._spent = 0, 0.0
        self._take()
        self.first_batch_s = time.perf_counter() - started
        self._peak = peak_bytes()
        self.parts: dict[str, float] = {}
        """Seconds of all rounds by what they went into, over all threads; "waited": the consumer's."""

    def _take(self) -> None:
        batch = next(self.loader)
        self.batch_bytes = sum(value.nbytes for value in batch.values() if isinstance(value, Tensor))

    def measure(self, seconds: float) -> Round:
        """Take batches for so long, after some that are not counted: the first time, one turn of all lanes."""
        start_peak()  # of what others did in this process since the last round nothing is ours
        for _ in range(max(WARM_BATCHES, 0 if self._spent else self._turn())):
            self._take()
        parts, waited = self._parts(), self.loader.wait_seconds
        start, cpu, batches = time.perf_counter(), time.process_time(), 0
        while (spent := time.perf_counter() - start) < seconds or not batches:
            self._take()
            batches += 1
        found = Round(batches * self.order.batch_size, spent, time.process_time() - cpu)
        self._peak = max(self._peak, peak_bytes())
        self._spent += spent
        new = {"waited": self.loader.wait_seconds - waited} | {k: v - parts[k] for k, v in self._parts().items()}
        self.parts = {key: self.parts.get(key, 0.0) + value for key, value in new.items()}
        return found

    @property
    def held(self) -> int:
        """Pictures that wait decoded in its chains, as planned: their bytes in those of a 4:2:0 picture; 0 where all
        stays in memory anyway."""
        readers = sum(item.bytes for item in self.loader.plan.items if item.name.startswith("clip readers of "))
        return int(readers / max(1, picture_bytes(self.data) / 2) * len(videos(self.data)))

    def _turn(self) -> int:
        """Batches until each lane has read its first run: until then more is decoded than is handed out."""
        plan, sources = self.loader.plan, self.order.spec.sources
        each = zip(sources, plan.policies, plan.keeps_decoded)
        read = [source.lanes * policy.run_length for source, policy, keep in each if source.shuffle and not keep]
        return -(-sum(read) // self.order.batch_size)

    def _parts(self) -> dict[str, float]:
        times = self.loader.timings
        return {name: float(getattr(times, name)) for name in ("fetch", "decode", "convert", "assemble", "wait")}

    @property
    def waited_share(self) -> float:
        """Share of the rounds that the consumer waited for batches; it does nothing else here."""
        return self.parts.get("waited", 0.0) / max(self._spent, 1e-9)

    @property
    def work(self) -> dict[str, float]:
        """Shares of the threads' working time: fetch, decode, convert, assemble."""
        spent = {key: self.parts.get(key, 0.0) for key in ("fetch", "decode", "convert", "assemble")}
        return {key: value / max(sum(spent.values()), 1e-9) for key, value in spent.items()}

    @property
    def peak_mb(self) -> float:
        """Growth of resident memory since before the loader, codecs loaded, at its highest: from the loader's making
        on, batches that are thrown away among it. Where the system keeps no peak that can start anew (see
        `start_peak`): growth beyond the highest before, which is too little where that was high."""
        return max(0, self._peak - self._before) / 1e6

    def close(self) -> None:
        self.loader.close()


def wait_for_quiet(most: float = 30.0) -> None:
    """Until the cores stand still, or so many seconds: worker processes of a rival go on making what nobody asks for
    any more, for seconds, and would be charged to whoever is measured next. Where the system does not tell, a second.
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
    """deff over 1, 8 and 64 batches and, over one batch, of a uniform shuffle of the same episodes (a model, see
    `order/audit/design_effect.py`); distinct episodes per batch."""
    read, lengths = as_read(order)
    span = max(256 * order.batch_size, min(1 << 18, 4 * order.spec.sources[0].frames))
    figures = audit(read, lengths, order.batch_size, world_size=1, span=span)
    uniform = expected_uniform(lengths, order.batch_size)
    return {"deff": list(figures.deff), "deff_uniform": uniform, "distinct_episodes": figures.distinct_episodes}


def resident_bytes() -> int:
    """Resident memory of this process; off Linux, its peak so far."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return _peak_ever()


def start_peak() -> int:
    """Have `peak_bytes` count from now on; what it would answer now, which is what is resident.

    It is Linux that counts, at no cost to whom it counts (proc(5): 5 into /proc/self/clear_refs). Elsewhere, or where
    that may not be written, the peak is the process's from its beginning.
    """
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return peak_bytes()


def peak_bytes() -> int:
    """The most that was resident of this process since `start_peak`."""
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return _peak_ever()


def _peak_ever() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Asked:
    """Another process that measures on request, one line of JSON in and one out; use as a context manager.

    `version` is what it said of itself; `missing` why it cannot answer, or "".
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        first = self._answer()
        self.version, self.missing = str(first.get("version", "")), str(first.get("missing", ""))

    def measure(self, **asked: Any) -> dict[str, Any]:
        """Its answer; {"missing": why} where it has none."""
        if self.missing:
            return {"missing": self.missing}
        assert self._process.stdin is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.missing = f"it ended with exit code {self._process.wait()}"
            return {"missing": self.missing}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> "Asked":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def lerobot(python: str) -> Asked:
    """LeRobot as this interpreter has it."""
    script = Path(__file__).with_name("lerobot.py")
    return Asked([python, "-P", str(script)])


def rival_figures(rival: Asked, answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of its rounds with its version, or {"missing": why}."""
    missing = [answer["missing"] for answer in answers if "missing" in answer]
    if missing or not answers:
        return {"missing": rival.missing or (missing or ["nothing was measured"])[0]}
    rounds = [Round(answer["samples"], answer["seconds"], answer["cpu_seconds"]) for answer in answers]
    episodes = median(answer["episodes"] for answer in answers)
    return {"version": rival.version, **median_round(rounds), "distinct_episodes": episodes}


def conditions() -> dict[str, Any]:
    """Where and when, for the reader of a figure."""
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
    """Cores this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
