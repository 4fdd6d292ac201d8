"""Measurement of the loader for some seconds, in rounds; the median round counts.

CPU time is that of the process with its threads; other processes disturb it far less than wall
time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from understudy_base import MOST_LOADER_THREADS, ConfigError, DatasetError, parse_bytes
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.load.choose_order import choose_order
from understudy_data.load.loader import Loader
from understudy_data.order import Order

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
    """Settings of a measurement: a dataset, one frame of each camera, chunks of `chunk` actions,
    batches of `batch`.
    """

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

    def data(self) -> EpisodeDataset:
        """Open the dataset.

        Raises:
            DatasetError: Unknown camera.
        """
        catalog = Catalog.open(self.path)
        whole = EpisodeDataset(catalog)
        names = catalog.camera_keys
        cameras = names if self.cameras is None else self.cameras
        for camera in cameras:
            if camera not in names:
                raise DatasetError(
                    f"unknown camera {camera!r}",
                    where=self.path,
                    fix=f"cameras: {', '.join(names)}",
                )
        keys = [key for key in whole.keys if key not in names or key in cameras]
        windows = (
            {"action": [i / catalog.fps for i in range(self.chunk)]} if "action" in keys else {}
        )
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


def videos(data: EpisodeDataset) -> list[str]:
    """Cameras with video files."""
    return [key for key in data.keys if key in data.catalog.episodes.videos]


class Trial:
    """Our loader with one setting: `measure` once per round, then `close`."""

    def __init__(self, setting: Setting) -> None:
        self.data = setting.data()
        self.order = setting.order(self.data)
        other = setting.data()
        other.batch(*other.locate([0]))  # loads code and codecs, which no measurement counts
        del other
        started = time.perf_counter()
        self.loader = Loader(
            [self.data],
            order=self.order,
            num_threads=setting.threads or "auto",
            memory=setting.memory,
            rank=setting.rank,
            world_size=setting.world_size,
            position=0,
        )
        self.batch_bytes = 0
        self._spent = 0.0
        self.take()
        self.first_batch_s = time.perf_counter() - started
        self.parts: dict[str, float] = {}
        """Seconds of all rounds by kind of work, over all threads; "waited" is the consumer's."""

    def take(self) -> None:
        """Take the next batch and note its size."""
        batch = next(self.loader)
        self.batch_bytes = sum(
            value.nbytes for value in batch.values() if isinstance(value, Tensor)
        )

    def measure(self, seconds: float, wait: Callable[[], object] | None = None) -> Round:
        """Measure one round of `seconds`, after uncounted batches (the first time, one turn of all
        lanes).

        Args:
            seconds: time to measure.
            wait: called before it, to begin with other processes.
        """
        for _ in range(max(WARM_BATCHES, 0 if self._spent else self._turn())):
            self.take()
        if wait is not None:
            wait()
        parts = self._parts()
        waited = self.loader.wait_seconds
        start = time.perf_counter()
        cpu = time.process_time()
        batches = 0
        while (spent := time.perf_counter() - start) < seconds or not batches:
            self.take()
            batches += 1
        samples = batches * self.order.batch_size // self.loader.world_size
        trial = Round(samples, spent, time.process_time() - cpu)
        self._spent += spent
        new = {"waited": self.loader.wait_seconds - waited} | {
            k: v - parts[k] for k, v in self._parts().items()
        }
        self.parts = {key: self.parts.get(key, 0.0) + value for key, value in new.items()}
        return trial

    def _turn(self) -> int:
        """Batches until each lane has read its first run: until then more is decoded than
        delivered.
        """
        plan = self.loader.plan
        sources = self.order.spec.sources
        plans = zip(sources, plan.policies, plan.keeps_decoded)
        read = [
            source.lanes * policy.run_length
            for source, policy, keep in plans
            if source.shuffle and not keep
        ]
        return -(-sum(read) // self.order.batch_size)

    def _parts(self) -> dict[str, float]:
        times = self.loader.timings
        return {
            name: float(getattr(times, name))
            for name in ("fetch", "decode", "convert", "assemble", "wait")
        }

    @property
    def waited_share(self) -> float:
        """Share of the rounds in which the consumer waited for batches; it does nothing else
        here.
        """
        return self.parts.get("waited", 0.0) / max(self._spent, 1e-9)

    @property
    def work(self) -> dict[str, float]:
        """Shares of the threads' working time: fetch, decode, convert, assemble."""
        spent = {
            key: self.parts.get(key, 0.0) for key in ("fetch", "decode", "convert", "assemble")
        }
        return {key: value / max(sum(spent.values()), 1e-9) for key, value in spent.items()}

    def close(self) -> None:
        """Close the loader."""
        self.loader.close()
