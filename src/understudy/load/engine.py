"""The threads of a loader: each makes its lanes' share of batch after batch, as far ahead of the consumer as allowed.

A lane always has the same thread, so a chain has one owner and nothing is locked while pictures are made. Threads do
not wait for each other, only for room; a batch is ready when its last part is. Its rows come from whichever thread's
turn it is. What is in a batch depends on its positions alone.

Not here: what a chain decodes (`chains.py`), what may be held (`plan.py`), the consumer's side (`loader.py`).
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from understudy.data.convert import Converter
from understudy.data.remote.retry import give_up_when
from understudy.data.samples import EpisodeDataset
from understudy.load.ahead import Ahead
from understudy.load.buffers import Buffers, keep_freed_memory
from understudy.load.chains import Chain, Spent, Stopped
from understudy.load.decoders import Cursors
from understudy.load.plan import Plan
from understudy.load.residency import KeptPictures
from understudy.order import Order
from understudy.order.placement import rank_slice

Batch: TypeAlias = dict[str, Any]

SPAN = 64
"""Positions that one thread makes on end of a source that is read in storage order."""

_IDLE = 1  # cursors that a thread keeps although no chain has them, for sources that are read in storage order
_BLOCK = 512  # positions that are looked up at once


@dataclass(frozen=True)
class Stream:
    """What is made: the positions `low` to `high` of every global batch from `start` on."""

    order: Order
    datasets: tuple[EpisodeDataset, ...]
    """Those with `KeptPictures` keep their pictures, the others are read in chains."""
    rank: int
    world: int
    start: int
    size: tuple[int, int] | None
    """(height, width) that pictures are resized to."""


@dataclass
class _Making:
    """One batch under way."""

    left: int
    """Threads that have not done their part."""
    positions: np.ndarray
    source: np.ndarray
    episode: np.ndarray
    frame: np.ndarray
    thread: np.ndarray
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    tables: Batch = field(default_factory=dict)


class Engine:
    """Makes the batches of a stream. `take` gives them in order; `stop` ends the threads."""

    def __init__(self, stream: Stream, plan: Plan, buffers: Buffers) -> None:
        self._stream, self._plan, self._buffers = stream, plan, buffers
        self._low, self._high = rank_slice(stream.order.batch, stream.rank, stream.world)
        self._cameras = stream.datasets[0].cameras
        for number, dataset in enumerate(stream.datasets):
            odd = sorted(set(self._cameras) ^ set(dataset.cameras))
            if odd:
                raise ValueError(f"sources 0 and {number} deliver different keys: {odd} only in one; select the same")
        self._shapes = [self._shape(dataset) for dataset in stream.datasets]
        self._change = threading.Condition()
        self._made: dict[int, _Making] = {}
        self._planned: list[_Making] = []
        self._plan_from = 0
        self._taken = 0
        self._until = plan.ahead + 1  # threads make batches before this one
        self._stopping = False
        self._error: tuple[int, BaseException] | None = None  # the first batch that cannot be made, and why
        self.spent = [Spent() for _ in range(plan.threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(t,), name=f"understudy-loader-{t}") for t in range(plan.threads)
        ]
        local = all(dataset.catalog.files.is_local for dataset in stream.datasets) or not self._cameras
        self._ahead = None if local else Ahead(stream.order, stream.datasets, stream.start, self._low, self._high)
        keep_freed_memory()
        for thread in self._threads:
            thread.start()

    def take(self) -> Batch:
        """The next batch. Raises what went wrong in making it."""
        number = self._taken
        with self._change:
            while (making := self._made.get(number)) is None or making.left:
                if self._error and self._error[0] <= number:
                    raise self._error[1]
                self._change.wait()
            del self._made[number]
            self._taken += 1
            if not self._error:
                self._until += 1
            self._change.notify_all()
        if self._ahead is not None:
            self._ahead.taken(number)
        batch = making.tables
        for camera, array in making.pictures.items():
            batch[camera] = torch.from_numpy(array)
        batch["position"] = torch.from_numpy(making.positions)
        batch["source"] = torch.from_numpy(making.source)
        return batch

    def ask_to_stop(self) -> None:
        """Have the threads end, without waiting for them."""
        with self._change:
            self._stopping = True
            self._change.notify_all()
        if self._ahead is not None:
            self._ahead.ask_to_stop()

    def stop(self) -> None:
        """End the threads: each gives up what it is doing within a picture."""
        self.ask_to_stop()
        if self._ahead is not None:
            self._ahead.stop()
        for thread in self._threads:
            thread.join()

    def _stopped(self) -> bool:
        return self._stopping

    def _run(self, thread: int) -> None:
        """One thread: its part of each batch."""
        give_up_when(self._stopped)  # reading from afar, too
        spent = self.spent[thread]
        maker = _Maker(self._stream, self._plan, self._shapes, self._low, self._high, self._stopped, spent)
        number = 0
        try:
            while (making := self._next(number, spent)) is not None:
                maker.make(making, np.flatnonzero(making.thread == thread).tolist())
                if number % self._plan.threads == thread:
                    begin = perf_counter()
                    making.tables = self._tables(making)
                    spent.assemble += perf_counter() - begin
                number += 1
                with self._change:
                    making.left -= 1
                    if making.left == 0:
                        self._change.notify_all()
        except Stopped:
            pass
        except BaseException as error:
            with self._change:
                if self._error is None or number < self._error[0]:
                    self._error = number, error
                self._until = min(self._until, number)  # what comes behind it is given up
                self._change.notify_all()
        maker.close()

    def _next(self, number: int, spent: Spent) -> _Making | None:
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

    def _look_up(self, number: int) -> _Making:
        """Look up what is in a batch, for several at once."""
        at = number - self._plan_from
        if at >= len(self._planned):
            share = self._high - self._low
            count = min(max(1, _BLOCK // share), max(1, number))  # the first one alone: it is being waited for
            order, stream = self._stream.order, self._stream
            firsts = stream.start + (number + np.arange(count)) * order.batch
            positions = (firsts[:, None] + np.arange(self._low, self._high)).astype(np.int64)
            source, episode, frame = order.locate(positions.reshape(-1))
            thread = self._assign(positions, source, episode)
            parts = [a.reshape(positions.shape) for a in (source, episode, frame, thread)]
            self._plan_from, at = number, 0
            # Copies: rows of one array would keep all of it alive for as long as a batch is.
            self._planned = [
                _Making(self._plan.threads, p.copy(), s.copy(), e.copy(), f.copy(), t.copy())
                for p, s, e, f, t in zip(positions, *parts, strict=True)
            ]
        making = self._planned[at]
        for camera in self._cameras:
            shape = self._shapes[int(making.source[0])][camera]
            for source in np.unique(making.source).tolist():
                other = self._shapes[source][camera]
                if other != shape:
                    raise ValueError(
                        f"{camera!r} is {shape} in source {int(making.source[0])} and {other} in source {source}: "
                        "one batch needs one shape"
                    )
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

    def _tables(self, making: _Making) -> Batch:
        source = making.source
        parts = {}
        for s in np.unique(source).tolist():
            own = source == s
            parts[s] = self._stream.datasets[s].tables(making.episode[own], making.frame[own])
        return join(parts, source)

    def _shape(self, dataset: EpisodeDataset) -> dict[str, tuple[int, ...]]:
        """Of one sample's pictures: camera -> (3, H, W) or (T, 3, H, W)."""
        segment = dataset.segments[dataset.segments[:, 2] > dataset.segments[:, 1]][:1]
        rows, frames = dataset.video_frames(segment[:, 0], segment[:, 1])
        shapes = {}
        for camera, wanted in frames.items():
            reader = dataset.pictures.reader(camera, int(rows[0]))
            shapes[camera] = (*wanted.shape[1:], 3, *(self._stream.size or (reader.height, reader.width)))
        return shapes


class _Maker:
    """The pictures of one thread's samples."""

    def __init__(
        self,
        stream: Stream,
        plan: Plan,
        shapes: Sequence[Mapping[str, tuple[int, ...]]],
        low: int,
        high: int,
        stopped: Any,
        spent: Spent,
    ) -> None:
        self._stream, self._plan, self._shapes = stream, plan, shapes
        self._low, self._high, self._stopped, self._spent = low, high, stopped, spent
        self._cursors, self._converter = Cursors(_IDLE), Converter(stream.size)
        self._open: dict[int, Chain] = {}  # position -> the chain that makes it

    def make(self, making: _Making, mine: Sequence[int]) -> None:
        """Fill in the pictures of samples number `mine` of a batch."""
        if not making.pictures:
            return
        for i in mine:
            source = int(making.source[i])
            dataset = self._stream.datasets[source]
            shapes = self._shapes[source]
            outs = {}
            for camera, array in making.pictures.items():
                outs[camera] = array[i] if len(shapes[camera]) == 4 else array[i : i + 1]
            if isinstance(dataset.pictures, KeptPictures):
                self._copy(dataset, dataset.pictures, int(making.episode[i]), int(making.frame[i]), outs)
                if self._stopped():
                    raise Stopped
                continue
            position = int(making.positions[i])
            chain = self._open.pop(position, None) or self._begin(source, position)
            chain.make(outs, self._spent)
            if chain.done:
                chain.close()

    def close(self) -> None:
        self._open.clear()

    def _copy(
        self, dataset: EpisodeDataset, pictures: KeptPictures, episode: int, frame: int, outs: dict[str, np.ndarray]
    ) -> None:
        begin = perf_counter()
        rows, frames = dataset.video_frames(np.asarray([episode]), np.asarray([frame]))
        for camera, wanted in frames.items():
            pictures.into(camera, int(rows[0]), wanted.reshape(-1).tolist(), outs[camera])
        self._spent.assemble += perf_counter() - begin

    def _begin(self, source: int, position: int) -> Chain:
        """Open the chain of a clip at a position: all samples of it that are this rank's."""
        order, dataset, spec = (
            self._stream.order,
            self._stream.datasets[source],
            self._stream.order.spec.sources[source],
        )
        positions, episode, frame = order.rest_of_clip(position, max(spec.clip, 1 if spec.shuffle else SPAN))
        if len(positions) > 1:
            offset = (positions - self._stream.start) % order.batch
            own = (offset >= self._low) & (offset < self._high)
            if not spec.shuffle:
                own &= positions // SPAN == position // SPAN
            positions, episode, frame = positions[own], episode[own], frame[own]
        rows, frames = dataset.video_frames(episode, frame)
        holding = self._plan.holdings[source]
        phase = holding.ahead
        if position < self._stream.start + self._first_round(source):
            phase = 1 + int(order.lanes([position])[1][0]) * 7 % holding.ahead
        chain = Chain(dataset, rows, frames, holding, phase, self._cursors, self._converter, self._stopped)
        self._open.update(dict.fromkeys(positions[1:].tolist(), chain))
        return chain

    def _first_round(self, source: int) -> int:
        """Positions in which each lane of a source comes up once."""
        order = self._stream.order
        slots = order.spec.schedule[-1].slots
        return -(-order.spec.sources[source].lanes * sum(slots) // max(1, slots[source]))


def join(parts: Mapping[int, Batch], source: np.ndarray) -> Batch:
    """One batch from one per source: row i is the next row of part `source[i]`.

    Raises:
        ValueError: the sources differ in a key, a shape or a dtype; names both.
    """
    first, *others = parts
    if not others:
        return dict(parts[first])
    batch: Batch = {}
    for other in others:
        if parts[other].keys() != parts[first].keys():
            odd = sorted(parts[other].keys() ^ parts[first].keys())
            raise ValueError(f"sources {first} and {other} deliver different keys: {odd} only in one; select the same")
    for key, sample in parts[first].items():
        if not isinstance(sample, Tensor):
            rows = {s: iter(part[key]) for s, part in parts.items()}
            batch[key] = [next(rows[int(s)]) for s in source]
            continue
        for other in others:
            one, two = sample, parts[other][key]
            if one.shape[1:] != two.shape[1:] or one.dtype != two.dtype:
                raise ValueError(
                    f"{key!r} is {one.dtype} {tuple(one.shape[1:])} in source {first} "
                    f"and {two.dtype} {tuple(two.shape[1:])} in source {other}: one batch needs one shape"
                )
        joined = sample.new_empty((len(source), *sample.shape[1:]))
        for s, part in parts.items():
            joined[torch.from_numpy(source == s)] = part[key]
        batch[key] = joined
    return batch
