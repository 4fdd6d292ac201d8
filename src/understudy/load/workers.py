"""The threads of a loader: each makes its lanes' share of batch after batch, as far ahead of the consumer as allowed.

A lane always has the same thread, so a chain has one owner and nothing is locked while pictures are made. Threads do
not wait for each other, only for room; a batch is ready when its last part is. Its rows come from whichever thread's
turn it is. What is in a batch depends on its positions alone.
"""

import os
import threading
from time import perf_counter

import numpy as np
import torch

from understudy.cancel import Stopped, give_up_when
from understudy.errors import DatasetError, SourceFailed
from understudy.load.batch_builder import SPAN, Batch, Maker, Making, Stream
from understudy.load.images.buffer_pool import Buffers
from understudy.load.images.clip_reader import Spent
from understudy.load.images.decoded_cache import KeptPictures
from understudy.load.memory_plan import Plan
from understudy.load.mixture import Mixture, picture_shapes, row_bytes
from understudy.load.prefetch import Ahead
from understudy.load.row_batches import Tables, rows
from understudy.order.placement import rank_slice

_BLOCK = 512  # positions that are looked up at once, and whose rows are
_ROWS = 4 << 20  # bytes of rows that are made at once


class Engine:
    """Makes the batches of a stream. `take` gives them in order; `stop` ends the threads."""

    def __init__(self, stream: Stream, plan: Plan, buffers: Buffers) -> None:
        self._stream, self._plan, self._buffers = stream, plan, buffers
        self._low, self._high = rank_slice(stream.order.batch_size, stream.rank, stream.world)
        self._mixture = Mixture.of(stream.datasets)
        self._shapes = picture_shapes(stream.datasets, stream.size)
        self._block = min(_BLOCK, _ROWS // max(1, *map(row_bytes, stream.datasets)))
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._made: dict[int, Making] = {}
        self._planned: list[Making | None] = []
        self._plan_from = 0
        self._taken = 0
        self._until = plan.ahead + 1  # threads make batches before this one
        self._stopping = False
        self._error: tuple[int, BaseException] | None = None  # the first batch that cannot be made, and why
        self.spent = [Spent() for _ in range(plan.threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(t,), name=f"understudy-loader-{t}") for t in range(plan.threads)
        ]
        self._ahead: Ahead | None = None
        try:
            if any(dataset.cameras and not dataset.catalog.files.is_local for dataset in stream.datasets):
                self._ahead = Ahead(stream, self._low, self._high)
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads can be had, or a Ctrl-C: those that run are not left behind
            self.stop()
            raise

    def take(self) -> Batch:
        """The next batch. Raises what went wrong in making it."""
        number = self._taken
        with self._change:
            while (making := self._made.get(number)) is None or not making.ready:
                if self._error and self._error[0] <= number:
                    raise self._error[1]
                if self._stopping:  # by another thread: nobody makes it any more
                    raise SourceFailed("the loader was closed while a batch was waited for", fix="close it afterwards")
                self._change.wait()
            del self._made[number]
            self._taken += 1
            if not self._error:
                self._until += 1
            self._change.notify_all()
        if self._ahead is not None:
            self._ahead.taken(number)
        batch = making.rows
        for camera, array in making.pictures.items():
            batch[camera] = torch.from_numpy(array)
        return batch

    def ask_to_stop(self) -> None:
        """Have the threads end, without waiting for them."""
        if os.getpid() != self._pid:
            return  # forked: the threads are the parent's, and one of them may have held the lock
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._ahead is not None:
            self._ahead.ask_to_stop()

    def stop(self) -> None:
        """End the threads: each gives up what it is doing within a run of pictures."""
        self.ask_to_stop()
        if os.getpid() != self._pid:
            return
        begun = [thread for thread in self._threads if thread.ident is not None]
        if self._ahead is not None:
            self._ahead.stop(begun)
        for thread in begun:
            thread.join()

    def _stopped(self) -> bool:
        return self._stopping

    def _run(self, thread: int) -> None:
        """One thread: its part of each batch."""
        give_up_when(self._stopped)  # reading from afar, too
        spent = self.spent[thread]
        maker = Maker(self._stream, self._plan, self._shapes, self._low, self._high, self._stopped, spent)
        number = 0
        try:
            while (making := self._next(number, spent)) is not None:
                if number % self._plan.threads == thread:  # before pictures: reading a data file takes much
                    begin = perf_counter()
                    self._fill_tables(making)
                    spent.assemble += perf_counter() - begin
                maker.make(making, making.mine[thread])
                with self._change:
                    making.left -= 1
                    last = making.left == 0
                if last:
                    if making.bad:
                        self._mend(making, maker)
                    with self._change:
                        making.ready = True
                        self._change.notify_all()
                number += 1
                del making  # while this thread waits for room, the batch and its memory are the consumer's
        except Stopped:
            pass
        except BaseException as error:
            with self._change:
                if self._error is None or number < self._error[0]:
                    self._error = number, error
                self._until = min(self._until, number)  # what comes behind it is given up
                self._change.notify_all()
        maker.close()

    def _next(self, number: int, spent: Spent) -> Making | None:
        """Batch `number` once there is room for it; None when it is time to stop."""
        begin = perf_counter()
        with self._change:
            while number >= self._until and not self._stopping:
                # At the end of a program that closed nothing, the interpreter waits for its threads.
                if not threading.main_thread().is_alive():
                    self._stopping = True
                self._change.wait(0.5)
            spent.wait += perf_counter() - begin
            if self._stopping:
                return None
            making = self._made.get(number)
            if making is None:
                making = self._made[number] = self._look_up(number)
            return making

    def _look_up(self, number: int) -> Making:
        """Look up what is in a batch, for several at once."""
        at = number - self._plan_from
        if at >= len(self._planned):
            share = self._high - self._low
            count = min(max(1, self._block // share), max(1, number))  # the first one alone: it is being waited for
            order, stream = self._stream.order, self._stream
            firsts = stream.start + (number + np.arange(count)) * order.batch_size
            positions = (firsts[:, None] + np.arange(self._low, self._high)).astype(np.int64)
            source, episode, frame = order.locate(positions.reshape(-1))
            thread = self._assign(positions, source, episode)
            source, episode, frame, thread = (a.reshape(positions.shape) for a in (source, episode, frame, thread))
            threads = self._plan.threads
            tables = Tables(stream.datasets, self._mixture, positions, source, episode, frame)
            self._plan_from, at = number, 0
            self._planned = [
                Making(
                    threads,
                    (tables, i),
                    positions[i].copy(),  # a part would keep, and be saved with, all of them
                    source[i].copy(),
                    episode[i].copy(),  # substitutes are written there
                    frame[i].copy(),
                    [np.flatnonzero(thread[i] == t).tolist() for t in range(threads)],
                )
                for i in range(count)
            ]
        making, self._planned[at] = self._planned[at], None
        assert making is not None  # asked for once
        for camera, shape in self._shapes[0].items():
            making.pictures[camera] = self._buffers.take((self._high - self._low, *shape))
        return making

    def _assign(self, positions: np.ndarray, source: np.ndarray, episode: np.ndarray) -> np.ndarray:
        """The thread of each position, int64 like `source`."""
        order, flat = self._stream.order, positions.reshape(-1)
        _, thread = order.lanes(flat)
        thread += source
        offset = np.broadcast_to(np.arange(positions.shape[1]), positions.shape).reshape(-1)
        for d, (spec, dataset) in enumerate(zip(order.spec.sources, self._stream.datasets)):
            own = source == d
            if isinstance(dataset.pictures, KeptPictures):
                thread[own] = episode[own]
            elif not spec.shuffle:
                thread[own] = flat[own] // SPAN
            elif spec.clip == 1:
                thread[own] = offset[own]
        return thread % self._plan.threads

    def _fill_tables(self, making: Making) -> None:
        """Everything of a batch but its pictures."""
        source = making.source
        try:
            if making.mended:
                own = making.positions, source, making.episode, making.frame
                batch = rows(self._stream.datasets, self._mixture, *own)
            else:
                tables, at = making.tables
                batch = tables.take(at)
            making.rows = self._buffers.rows(batch)
        except DatasetError:
            if self._stream.substitutes is None:
                raise
            for i in range(len(source)):
                wrong = self._wrong_row(int(source[i]), int(making.episode[i]), int(making.frame[i]))
                if wrong is not None:
                    making.bad[i] = wrong
            if not making.bad:
                raise

    def _wrong_row(self, source: int, episode: int, frame: int) -> str | None:
        try:
            self._stream.datasets[source].tables(np.asarray([episode]), np.asarray([frame]))
        except SourceFailed:
            raise  # that says nothing about the row
        except DatasetError as error:
            return str(error)
        return None

    def _mend(self, making: Making, maker: Maker) -> None:
        """Put substitutes in the place of samples that cannot be read."""
        assert self._stream.substitutes is not None
        for i, why in sorted(making.bad.items()):
            source = int(making.source[i])

            def wrong(episode: int, frame: int, i: int = i, source: int = source) -> str | None:
                return self._wrong_row(source, episode, frame) or maker.alone(making, i, source, episode, frame)

            at = int(making.positions[i]), source, int(making.episode[i]), int(making.frame[i])
            making.episode[i], making.frame[i] = self._stream.substitutes.find(*at, why, wrong)
        making.bad, making.mended = {}, True
        self._fill_tables(making)
