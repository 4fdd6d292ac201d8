"""Loader threads: each makes its lanes' share of every batch, as far ahead of the consumer as
allowed.

A lane always has the same thread. So a clip reader has one owner, and images are made without
locks. Threads wait for room only, not for each other. A batch is ready when its last part is. Its
rows are read by the first thread that has made its images. The content of a batch depends on its
positions alone.
"""

import os
import threading
from time import perf_counter

import numpy as np
import torch

from understudy_base import TASK, DatasetError, SourceError
from understudy_data.load.bad_frames import Substitutes
from understudy_data.load.batch_builder import SPAN, BatchBuilder, BatchInProgress
from understudy_data.load.batch_request import Batch, BatchRequest
from understudy_data.load.images.buffer_pool import BufferPool
from understudy_data.load.images.clip_reader import Timings
from understudy_data.load.images.decoded_cache import DecodedImages
from understudy_data.load.instructions import Instructions
from understudy_data.load.memory_plan import MemoryPlan
from understudy_data.load.mixed_batches import (
    Mixture,
    RowBatches,
    image_shapes,
    read_rows,
    row_bytes,
)
from understudy_data.load.remote_prefetch import Prefetcher
from understudy_data.storage.cancel import Cancelled, cancel_when

# positions at once: their samples are located, and several rows of each lane read from its file
_BLOCK = 2048
# the same where rows are on a server, so that a batch waits for those of few others
_BLOCK_OF_SERVER = 512
_ROWS = 4 << 20  # bytes of rows that are read at once


class WorkerPool:
    """Threads that make the batches of a request. `take` returns them in sequence; `stop` ends the
    threads.

    Args:
        request: its datasets with `DecodedImages` are kept decoded, the others are read by clip
            readers.
        substitutes: replace unreadable samples; None raises.
    """

    def __init__(
        self,
        request: BatchRequest,
        plan: MemoryPlan,
        buffers: BufferPool,
        substitutes: Substitutes | None = None,
    ) -> None:
        self._request = request
        self._plan = plan
        self._buffers = buffers
        self._substitutes = substitutes
        self._low, self._high = request.share
        self._mixture = Mixture.from_datasets(request.datasets)
        self._shapes = image_shapes(request.datasets, request.image_size)
        is_local = all(dataset.catalog.files.is_local for dataset in request.datasets)
        most = _BLOCK if is_local else _BLOCK_OF_SERVER
        self._block = min(most, _ROWS // max(1, *map(row_bytes, request.datasets)))
        self._pid = os.getpid()
        self._change = threading.Condition()
        # looking up samples takes milliseconds, in which `take` must not wait
        self._beginning = threading.Lock()
        self._batches: dict[int, BatchInProgress] = {}  # under way or ready, by number
        self._planned: list[BatchInProgress | None] = []
        self._planned_from = 0
        self._taken = 0
        self._until = plan.batches_ahead + 1  # threads make batches before this one
        self._stopping = False
        # of the first batch that cannot be made
        self._error: tuple[int, BaseException] | None = None
        self.timings = [Timings() for _ in range(plan.num_threads)]
        """Of each thread."""
        self._threads = [
            threading.Thread(target=self._run, args=(t,), name=f"understudy-loader-{t}")
            for t in range(plan.num_threads)
        ]
        self._prefetcher: Prefetcher | None = None
        try:
            if any(
                dataset.video_keys and not dataset.catalog.files.is_local
                for dataset in request.datasets
            ):
                self._prefetcher = Prefetcher(request)
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads available, or Ctrl-C: end those that run
            self.stop()
            raise

    def take(self) -> Batch:
        """The next batch. Raises the error of making it."""
        number = self._taken
        with self._change:
            while (batch := self._batches.get(number)) is None or not batch.ready:
                if self._error and self._error[0] <= number:
                    raise self._error[1]
                if self._stopping:  # by another thread
                    raise SourceError(
                        "the loader was closed while a batch was waited for",
                        fix="close it afterwards",
                    )
                self._change.wait()
            del self._batches[number]
            self._taken += 1
            if not self._error:
                self._until += 1
            self._change.notify_all()
        if self._prefetcher is not None:
            self._prefetcher.advance(number)
        return batch.rows

    @staticmethod
    def _assemble(batch: BatchInProgress) -> Batch:
        return batch.rows | {
            camera: torch.from_numpy(array) for camera, array in batch.images.items()
        }

    def ask_to_stop(self) -> None:
        """Ask the threads to end, without waiting for them."""
        if os.getpid() != self._pid:
            return  # forked: the threads are the parent's, and one of them may have held the lock
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._prefetcher is not None:
            self._prefetcher.ask_to_stop()

    def stop(self) -> None:
        """End the threads. Each gives up its work within a run of frames."""
        self.ask_to_stop()
        if os.getpid() != self._pid:
            return
        started = [thread for thread in self._threads if thread.ident is not None]
        if self._prefetcher is not None:
            self._prefetcher.stop(started)
        for thread in started:
            thread.join()

    def _stopped(self) -> bool:
        return self._stopping

    def _run(self, thread: int) -> None:
        """One thread: its part of each batch."""
        cancel_when(self._stopped)  # reading from remote storage, too
        timings = self.timings[thread]
        builder = BatchBuilder(self._request, self._plan, self._shapes, self._stopped, timings)
        number = 0
        try:
            while (batch := self._wait_for_room(number, timings)) is not None:
                builder.build(batch, batch.samples[thread])
                with self._change:
                    reads_rows = not batch.has_reader
                    batch.has_reader = True
                if reads_rows:
                    begin = perf_counter()
                    self._read_rows(batch)
                    timings.assemble += perf_counter() - begin
                with self._change:
                    batch.threads_left -= 1
                    last = batch.threads_left == 0
                if last:
                    if batch.bad:
                        self._substitute(batch, builder)
                    whole = self._assemble(batch)
                    if separator := self._request.task_separator:
                        seed = self._request.order.seed
                        instructions = Instructions(separator)
                        whole[TASK] = instructions.draw(whole[TASK], seed, batch.positions)
                    if self._request.preprocess is not None:
                        whole = self._request.preprocess(whole)
                    batch.rows = whole
                    batch.images = {}
                    del whole
                    with self._change:
                        batch.ready = True
                        self._change.notify_all()
                number += 1
                # while this thread waits for room, the batch and its memory are the consumer's
                del batch
        except Cancelled:
            pass
        except BaseException as error:
            with self._change:
                if self._error is None or number < self._error[0]:
                    self._error = number, error
                self._until = min(self._until, number)  # later batches are given up
                self._change.notify_all()
        builder.close()

    def _wait_for_room(self, number: int, timings: Timings) -> BatchInProgress | None:
        """Batch `number` once there is room for it; None when the pool stops."""
        begin = perf_counter()
        with self._change:
            while number >= self._until and not self._stopping:
                # At the end of a program that closed nothing, the interpreter waits for its
                # threads.
                if not threading.main_thread().is_alive():
                    self._stopping = True
                self._change.wait(0.5)
            timings.wait += perf_counter() - begin
            if self._stopping:
                return None
            # it stays there until this thread has done its part
            if (batch := self._batches.get(number)) is not None:
                return batch
        with self._beginning:
            if (batch := self._batches.get(number)) is None:
                batch = self._begin(number)
                with self._change:
                    self._batches[number] = batch
            return batch

    def _begin(self, number: int) -> BatchInProgress:
        """Begin a batch: its samples, and memory for its images."""
        index = number - self._planned_from
        if index >= len(self._planned):
            share = self._high - self._low
            order = self._request.order
            # the consumer waits for the first: it alone
            count = min(max(1, self._block // share), max(1, number))
            whole = (order.stop - self._request.position - self._high) // order.batch_size + 1
            if (count := min(count, whole - number)) < 1:
                raise StopIteration  # at the end of an order file
            self._planned = self._look_up(number, count)
            self._planned_from = number
            index = 0
        batch = self._planned[index]
        self._planned[index] = None
        assert batch is not None  # each is begun once
        for camera, shape in self._shapes[0].items():
            dtype = self._request.datasets[0].pixels(camera).dtype
            batch.images[camera] = self._buffers.take((self._high - self._low, *shape), dtype)
        return batch

    def _look_up(self, number: int, count: int) -> list[BatchInProgress | None]:
        """Look up the samples of `count` batches at once."""
        request = self._request
        threads = self._plan.num_threads
        firsts = request.position + (number + np.arange(count)) * request.order.batch_size
        positions = (firsts[:, None] + np.arange(self._low, self._high)).astype(np.int64)
        samples = request.order.locate(positions.reshape(-1))
        thread = self._assign(positions, samples[0], samples[1]).reshape(positions.shape)
        source, episode, frame = (part.reshape(positions.shape) for part in samples)
        rows = RowBatches(request.datasets, self._mixture, positions, source, episode, frame)
        batches: list[BatchInProgress | None] = []
        for i in range(count):
            batch = BatchInProgress(
                # a view would keep all of them alive, and be saved with all of them
                positions[i].copy(),
                source[i].copy(),
                episode[i].copy(),
                frame[i].copy(),
                samples=[np.flatnonzero(thread[i] == t).tolist() for t in range(threads)],
                row_batches=(rows, i),
                threads_left=threads,
            )
            batches.append(batch)
        return batches

    def _assign(self, positions: np.ndarray, source: np.ndarray, episode: np.ndarray) -> np.ndarray:
        """The thread of each position, int64 like `source`."""
        order = self._request.order
        flat = positions.reshape(-1)
        _, thread = order.lanes(flat)
        thread += source
        offset = np.broadcast_to(np.arange(positions.shape[1]), positions.shape).reshape(-1)
        for d, (spec, dataset) in enumerate(zip(order.spec.sources, self._request.datasets)):
            of_source = source == d
            if isinstance(dataset.video_frames, DecodedImages):
                thread[of_source] = episode[of_source]
            elif not spec.shuffle:
                thread[of_source] = flat[of_source] // SPAN
            elif spec.clip == 1:
                thread[of_source] = offset[of_source]
        return thread % self._plan.num_threads

    def _read_rows(self, batch: BatchInProgress) -> None:
        """Fill in all entries of a batch except its images, or note its unreadable samples."""
        try:
            if batch.substituted:
                samples = batch.positions, batch.source, batch.episode, batch.frame
                rows = read_rows(self._request.datasets, self._mixture, *samples)
            else:
                row_batches, number = batch.row_batches
                rows = row_batches.take(number)
            batch.rows = self._buffers.pin_rows(rows)
        except DatasetError:
            if self._substitutes is None:
                raise
            for i, sample in enumerate(
                zip(batch.source.tolist(), batch.episode.tolist(), batch.frame.tolist())
            ):
                reason = self._row_error(*sample)
                if reason is not None:
                    batch.bad[i] = reason
            if not batch.bad:
                raise

    def _row_error(self, source: int, episode: int, frame: int) -> str | None:
        """Why a row cannot be read; None if it can."""
        try:
            self._request.datasets[source].row_batch(np.asarray([episode]), np.asarray([frame]))
        except DatasetError as error:
            return str(error)
        return None

    def _substitute(self, batch: BatchInProgress, builder: BatchBuilder) -> None:
        """Replace the unreadable samples of a batch."""
        assert self._substitutes is not None
        for i, reason in sorted(batch.bad.items()):
            source = int(batch.source[i])

            def error_of(episode: int, frame: int, i: int = i, source: int = source) -> str | None:
                return self._row_error(source, episode, frame) or builder.build_one(
                    batch, i, source, episode, frame
                )

            bad = int(batch.positions[i]), source, int(batch.episode[i]), int(batch.frame[i])
            batch.episode[i], batch.frame[i] = self._substitutes.find(*bad, reason, error_of)
        batch.bad = {}
        batch.substituted = True
        self._read_rows(batch)
