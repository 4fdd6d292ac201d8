"""Prefetching: requests the bytes of coming batches from remote storage before the loader threads
read them.

The order is known, so a thread walks it ahead of the loader threads and requests spans of files.
The distance follows the measured latency and the rate at which batches are taken. Only time depends
on it: bytes that were not prefetched are fetched when they are read. For the first batch only the
bytes of its own samples are requested, several spans at a time, and nothing else before they are
there. So the first batch waits for as few bytes as possible.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from understudy_base import DataAccessError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.batch_request import BatchRequest
from understudy_data.load.images.clip_reader import first_round
from understudy_data.storage.cancel import cancel_when

_RUN = 256  # samples of a clip per request: a request should be worth its latency and its work
_FIRST_RUN = 16  # of the clips that begin together; their second samples request the rest
# batches ahead
_LEAST = 4
_MOST = 96
_LOOKS = 4  # looks at the order per distance
# ahead at least: a rate that is slow for want of bytes must not be taken for the consumer's
_SAMPLES = 1024
_MARGIN = 4.0  # latencies: requests queue behind each other


class Prefetcher:
    """Thread that prefetches for one request. Local datasets are skipped."""

    def __init__(self, request: BatchRequest) -> None:
        self._order = request.order
        self._datasets = request.datasets
        self._start = request.position
        self._low, self._high = request.share
        self._covered: set[int] = set()  # positions whose bytes were requested with earlier ones
        self._change = threading.Condition()
        # batches taken, and how many to wait for
        self._taken = 0
        self._wake_at = 1
        self._stopping = False
        self._first_taken = 0.0
        self._thread = threading.Thread(target=self._run, name="understudy-prefetch", daemon=True)
        self._thread.start()

    def advance(self, number: int) -> None:
        """Note that batch `number` was taken."""
        with self._change:
            self._first_taken = self._first_taken or time.perf_counter()
            self._taken = number + 1
            if self._taken >= self._wake_at:
                self._change.notify()

    def ask_to_stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        with self._change:
            self._stopping = True
            self._change.notify()

    def stop(self, others: Sequence[threading.Thread] = ()) -> None:
        """End the thread and its transfers, and those that `others`, already asked to stop, wait
        for.
        """
        self.ask_to_stop()
        waiting = [self._thread, *others]
        while any(thread.is_alive() for thread in waiting):
            self._end_transfers()
            for thread in waiting:
                thread.join(0.02)
        self._end_transfers()  # requested by the last of them

    def _end_transfers(self) -> None:
        for dataset in self._datasets:
            dataset.catalog.files.close()

    def distance(self) -> int:
        """Batches ahead that hide the latency at the rate at which batches are taken."""
        latency = max((dataset.catalog.files.latency for dataset in self._datasets), default=0.0)
        rate = self._taken / max(1e-3, time.perf_counter() - self._first_taken)
        least = max(_LEAST, -(-_SAMPLES // (self._high - self._low)))
        return int(np.clip(_MARGIN * latency * rate, min(least, _MOST), _MOST))

    def _run(self) -> None:
        cancel_when(lambda: self._stopping)
        # the first batch alone, then as many at once as one look at the order is worth
        number = 0
        count = 1
        while True:
            with self._change:
                while not self._stopping and number:
                    distance = self.distance()
                    count = max(1, distance // _LOOKS)
                    self._wake_at = max(1, number + count - distance)
                    if self._taken >= self._wake_at:
                        break
                    self._change.wait(0.5)
                if self._stopping:
                    return
                if number < self._taken:  # overtaken: earlier batches are read by now
                    number = self._taken
                    self._covered = {
                        p
                        for p in self._covered
                        if p >= self._start + number * self._order.batch_size
                    }
            first = (
                self._start + (number + np.arange(count, dtype=np.int64)) * self._order.batch_size
            )
            positions = (first[:, None] + np.arange(self._low, self._high, dtype=np.int64)).reshape(
                -1
            )
            self._fetch(positions[positions < self._order.stop], lambda: self._stopping)
            number += count

    def _fetch(self, positions: np.ndarray, stopped: Callable[[], bool]) -> None:
        sources = self._order.locate(positions)[0]
        for position, source in zip(positions.tolist(), sources.tolist()):
            if position in self._covered:
                self._covered.discard(position)
                continue
            dataset = self._datasets[source]
            if stopped() or dataset.catalog.files.is_local or not dataset.video_keys:
                continue
            try:
                self._fetch_run(position, source, dataset)
            except DataAccessError:
                continue  # the loader thread that reads it raises, at its position

    def _fetch_run(self, position: int, source: int, dataset: EpisodeDataset) -> None:
        """Request the bytes of the samples of a clip from `position` on, as far as one request
        should reach.
        """
        order = self._order
        spec = self._order.spec.sources[source]
        early = position < self._start + first_round(order, source)
        count = _FIRST_RUN if early else _RUN
        first = position < self._start + order.batch_size
        if first:  # the first batch decodes its own samples only (`first_runs`)
            count = 1
        least = 1 if spec.shuffle else _RUN
        positions, episode, frame = order.rest_of_clip(position, max(spec.clip, least))
        offset = (positions - self._start) % order.batch_size
        of_rank = (offset >= self._low) & (offset < self._high)
        positions = positions[of_rank]
        episode = episode[of_rank]
        frame = frame[of_rank]
        rows, frames = dataset.frames_to_decode(episode, frame)
        dataset.prefetch_rows(rows[:count])
        for camera, numbers in frames.items():
            for row in np.unique(rows[:count]).tolist():
                requested = numbers[:count][rows[:count] == row]
                most = requested if first else numbers[rows == row]
                dataset.video_frames.prefetch(
                    camera, row, int(requested.min()), int(requested.max()), int(most.max())
                )
        if not early:
            self._covered.update(positions[:count][positions[:count] > position].tolist())
