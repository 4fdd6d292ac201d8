"""Fetching ahead: what coming batches need of videos that are not on this machine is asked for before they are made.

The order is known, so a thread walks it in front of the makers and names spans of files; how far in front follows the
measured latency and the rate at which batches are taken. Nothing depends on it but time: what was not fetched ahead is
fetched when it is read. Of the first batch only what its makers will read at once is fetched, several spans at a time,
and nothing behind it before it is there, so that it comes after as few bytes as can be.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from understudy.cancel import give_up_when
from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.load.batch_builder import Stream, first_round

_RUN = 256  # samples of a clip that are fetched at once: a request should be worth its latency and its work
_FIRST_RUN = 16  # while every batch opens new clips
_LEAST, _MOST = 4, 96  # batches ahead
_LOOKS = 4  # into the order while all of them are made
_SAMPLES = 1024  # at least: what is slow for want of bytes must not be taken for what is wanted
_MARGIN = 4.0  # latencies: requests queue behind each other


class Ahead:
    """A thread that fetches ahead for one stream.

    Args:
        stream: what is made; datasets on this machine are passed over.
        low, high: this rank's part of every global batch.
    """

    def __init__(self, stream: Stream, low: int, high: int) -> None:
        self._order, self._datasets, self._start = stream.order, stream.datasets, stream.start
        self._low, self._high = low, high
        self._covered: set[int] = set()  # positions whose pictures were asked for
        self._change = threading.Condition()
        self._taken, self._due, self._stopping = 0, 1, False  # batches handed out, and how many of them to wait for
        self._begun = 0.0
        self._thread = threading.Thread(target=self._run, name="understudy-ahead", daemon=True)
        self._thread.start()

    def taken(self, number: int) -> None:
        """Batch `number` was handed out."""
        with self._change:
            self._begun = self._begun or time.perf_counter()
            self._taken = number + 1
            if self._taken >= self._due:
                self._change.notify()

    def ask_to_stop(self) -> None:
        """Have the thread end, without waiting for it."""
        with self._change:
            self._stopping = True
            self._change.notify()

    def stop(self, others: Sequence[threading.Thread] = ()) -> None:
        """End the thread and what is being fetched, also for `others` that wait for it and were told to stop."""
        self.ask_to_stop()
        waiting = [self._thread, *others]
        while any(thread.is_alive() for thread in waiting):
            self._end_transfers()
            for thread in waiting:
                thread.join(0.02)
        self._end_transfers()  # what the last of them still asked for

    def _end_transfers(self) -> None:
        for dataset in self._datasets:
            dataset.catalog.files.close()

    def depth(self) -> int:
        """Batches ahead that hide the latency at the rate at which batches are taken."""
        latency = max((dataset.catalog.files.latency for dataset in self._datasets), default=0.0)
        rate = self._taken / max(1e-3, time.perf_counter() - self._begun)
        least = max(_LEAST, -(-_SAMPLES // (self._high - self._low)))
        return int(np.clip(_MARGIN * latency * rate, min(least, _MOST), _MOST))

    def _run(self) -> None:
        give_up_when(lambda: self._stopping)
        number, count = 0, 1  # the first batch alone, then as many at once as one look at the order is worth
        while True:
            with self._change:
                while not self._stopping and number:
                    depth = self.depth()
                    count = max(1, depth // _LOOKS)
                    self._due = max(1, number + count - depth)
                    if self._taken >= self._due:
                        break
                    self._change.wait(0.5)
                if self._stopping:
                    return
                if number < self._taken:  # overtaken: what was passed is read by now
                    number = self._taken
                    self._covered = {p for p in self._covered if p >= self._start + number * self._order.batch_size}
            first = self._start + (number + np.arange(count, dtype=np.int64)) * self._order.batch_size
            positions = first[:, None] + np.arange(self._low, self._high, dtype=np.int64)
            self._fetch(positions.reshape(-1), lambda: self._stopping)
            number += count

    def _fetch(self, positions: np.ndarray, stopped: Callable[[], bool]) -> None:
        sources = self._order.locate(positions)[0]
        for position, source in zip(positions.tolist(), sources.tolist()):
            if position in self._covered:
                self._covered.discard(position)
                continue
            dataset = self._datasets[source]
            if stopped() or dataset.catalog.files.is_local or not dataset.cameras:
                continue
            try:
                self._fetch_run(position, source, dataset)
            except DatasetError:
                continue  # the one who reads it will say so, at its position

    def _fetch_run(self, position: int, source: int, dataset: EpisodeDataset) -> None:
        """What the samples of a clip from `position` on need, as far as one request should reach."""
        order, spec = self._order, self._order.spec.sources[source]
        early = position < self._start + 2 * first_round(order, source)
        count = _FIRST_RUN if early else _RUN
        first = position < self._start + order.batch_size
        if first:  # a chain decodes no more for it than its first sample (`making.first_runs`)
            count = 1
        at, episode, frame = order.rest_of_clip(position, max(spec.clip, 1 if spec.shuffle else _RUN))
        offset = (at - self._start) % order.batch_size
        own = np.flatnonzero((offset >= self._low) & (offset < self._high))[:count]
        at, episode, frame = at[own], episode[own], frame[own]
        rows, frames = dataset.video_frames(episode, frame)
        for camera, wanted in frames.items():
            for row in np.unique(rows).tolist():
                here = wanted[rows == row]
                dataset.pictures.prefetch(camera, row, int(here.min()), int(here.max()))
        if not first:
            self._covered.update(at[at > position].tolist())
