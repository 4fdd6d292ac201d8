"""One thread's part of batches: pictures made in chains, copied where they are kept, or replaced where they are bad.

A chain is opened at the first of its samples that comes up, for all that this rank makes of the clip from there on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from understudy.cancel import Stopped
from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError, SourceFailed
from understudy.load.bad_frames import Substitutes
from understudy.load.images.clip_reader import Chain, Holding, Spent
from understudy.load.images.cursors import Cursors, Jobs, Pictures, write_all
from understudy.load.images.decoded_cache import KeptPictures
from understudy.load.memory_plan import Plan
from understudy.load.row_batches import Tables
from understudy.order import Order
from understudy.order.draws import SampleRng
from understudy.video.color import Converter

Batch: TypeAlias = dict[str, Any]
Augment: TypeAlias = Callable[[dict[str, Tensor], SampleRng], None]

SPAN = 64
"""Positions that one thread makes on end of a source that is read in storage order."""

_GOLDEN = 0.618034  # its multiples spread evenly, however many
_IDLE = 1  # cursors that a thread keeps although no chain has them, for sources that are read in storage order


@dataclass(frozen=True)
class Stream:
    """What is made: the positions `low` to `high` of every global batch from `start` on."""

    order: Order
    datasets: tuple[EpisodeDataset, ...]
    """Those with `KeptPictures` keep their pictures, the others are read in chains."""
    rank: int
    world: int
    start: int
    size: tuple[int, int] | None = None
    """(height, width) that pictures are resized to."""
    augment: Augment | None = None
    """Changes each sample's pictures in place; see `Loader`."""
    substitutes: Substitutes | None = None
    """What stands in for a sample that cannot be read; None: that is an error."""


@dataclass
class Making:
    """One batch under way."""

    left: int
    """Threads that have not done their part."""
    tables: tuple[Tables, int]
    """Where its rows come from, and which batch it is there."""
    positions: np.ndarray
    source: np.ndarray
    episode: np.ndarray
    frame: np.ndarray
    mine: list[list[int]]
    """The samples of each thread."""
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    rows: Batch = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    """Samples that cannot be read, and why."""
    mended: bool = False
    """Whether some of `episode` and `frame` are substitutes."""
    ready: bool = False


@dataclass(frozen=True)
class _Clip:
    """What chains of a clip are opened with: one for each camera."""

    positions: list[int]
    """Of its samples that are made here."""
    rows: np.ndarray
    frames: dict[str, np.ndarray]
    runs: list[int]


class Maker:
    """The pictures of one thread's samples."""

    def __init__(
        self,
        stream: Stream,
        plan: Plan,
        shapes: Sequence[Mapping[str, tuple[int, ...]]],
        low: int,
        high: int,
        stopped: Callable[[], bool],
        spent: Spent,
    ) -> None:
        self._stream, self._plan, self._shapes = stream, plan, shapes
        self._low, self._high, self._stopped, self._spent = low, high, stopped, spent
        self._cursors, self._converter = Cursors(_IDLE), Converter(stream.size)
        self._chains: dict[str, dict[int, Chain]] = {camera: {} for camera in shapes[0]}
        """By camera, and by the position whose pictures come next."""
        self._ready: dict[str, dict[int, Pictures]] = {camera: {} for camera in shapes[0]}
        """By camera and position."""
        self._clip: tuple[int, _Clip] | None = None  # opened last, at which position

    def make(self, making: Making, mine: Sequence[int]) -> None:
        """Fill in the pictures of samples number `mine` of a batch."""
        if not making.pictures:
            return
        jobs = {camera: Jobs() for camera in making.pictures}
        sources = making.source.tolist()
        for source in dict.fromkeys(sources[i] for i in mine):
            dataset, own = self._stream.datasets[source], [i for i in mine if sources[i] == source]
            self._blacken(making, own, source)
            if isinstance(dataset.pictures, KeptPictures):
                self._copy(making, own, source, dataset.pictures)
            else:
                self._decode(making, own, source, jobs)
        self._convert(making, jobs)
        for i in mine if self._stream.augment is not None else ():
            if i not in making.bad:
                self._augment(making, i, self._outs(making, i, sources[i]))

    def alone(self, making: Making, i: int, source: int, episode: int, frame: int) -> str | None:
        """Fill in the pictures of another frame as sample i of a batch; what is wrong with it where that cannot be."""
        if not making.pictures:
            return None
        dataset = self._stream.datasets[source]
        self._blacken(making, [i], source)
        outs = self._outs(making, i, source)
        rows, frames = dataset.video_frames(np.asarray([episode]), np.asarray([frame]))
        try:
            if isinstance(dataset.pictures, KeptPictures):
                self._copy_one(dataset.pictures, int(rows[0]), {c: f.reshape(-1) for c, f in frames.items()}, outs)
            else:
                clip, jobs = _Clip([0], rows, frames, []), {camera: Jobs() for camera in outs}
                for camera, own in jobs.items():
                    ready: dict[int, Pictures] = {}
                    self._chain(source, camera, clip, Holding(1, False)).go_on(ready, self._spent)
                    own.add(ready[0], i)
                self._convert(making, jobs)
        except SourceFailed:
            raise  # that says nothing about the picture
        except DatasetError as error:
            return str(error)
        self._augment(making, i, outs)
        return None

    def _blacken(self, making: Making, own: Sequence[int], source: int) -> None:
        """Fill in the absent cameras of samples of a source."""
        for camera in self._stream.datasets[source].absent:
            if camera in making.pictures:
                making.pictures[camera][own] = 0

    def _outs(self, making: Making, i: int, source: int) -> dict[str, np.ndarray]:
        """Where the pictures of sample i go: camera -> uint8 (T, 3, H, W), without absent cameras."""
        shapes, absent = self._shapes[source], self._stream.datasets[source].absent
        there = {c: a for c, a in making.pictures.items() if c not in absent}
        return {c: a[i] if len(shapes[c]) == 4 else a[i : i + 1] for c, a in there.items()}

    def _convert(self, making: Making, jobs: Mapping[str, Jobs]) -> None:
        begin = perf_counter()
        for camera, own in jobs.items():
            array = making.pictures[camera]
            write_all(own, array.reshape(-1, *array.shape[-3:]), self._converter)
        self._spent.convert += perf_counter() - begin

    def _augment(self, making: Making, i: int, outs: Mapping[str, np.ndarray]) -> None:
        if self._stream.augment is not None:
            rng = SampleRng(self._stream.order.seed, "augment", int(making.positions[i]))
            self._stream.augment({camera: torch.from_numpy(out) for camera, out in outs.items()}, rng)

    def _decode(self, making: Making, own: Sequence[int], source: int, jobs: Mapping[str, Jobs]) -> None:
        """Have pictures of samples of a source decoded, by their chains."""
        cameras = [(c, self._ready[c], jobs[c]) for c in self._stream.datasets[source].cameras]
        positions = making.positions.tolist()
        for i in own:
            position = positions[i]
            for camera, ready, wanted in cameras:
                found = ready.pop(position, None)
                if found is None:
                    try:
                        found = self._go_on(source, camera, position)
                    except DatasetError as error:
                        self._bad(making, i, error)
                        continue
                wanted.add(found, i)

    def _go_on(self, source: int, camera: str, position: int) -> Pictures:
        """The pictures of a sample from its chain, which is opened where this is its first."""
        ready, chains = self._ready[camera], self._chains[camera]
        chain = chains.pop(position, None) or self._begin(source, camera, position)
        try:
            chain.go_on(ready, self._spent)
        except DatasetError:
            chain.close()  # the rest of the clip begins anew
            raise
        due = chain.due
        if due is None:
            chain.close()
        else:
            chains[due] = chain
        return ready.pop(position)

    def _bad(self, making: Making, i: int, error: DatasetError) -> None:
        if self._stream.substitutes is None or isinstance(error, SourceFailed):
            raise error
        making.bad.setdefault(i, str(error))

    def close(self) -> None:
        self._chains.clear()
        self._ready.clear()

    def _copy(self, making: Making, own: Sequence[int], source: int, pictures: KeptPictures) -> None:
        """Copy what stays decoded of samples of a source; what is not there yet is decoded."""
        dataset = self._stream.datasets[source]
        rows, frames = dataset.video_frames(making.episode[own], making.frame[own])
        for at, i in enumerate(own):
            try:
                wanted = {camera: numbers[at].reshape(-1) for camera, numbers in frames.items()}
                self._copy_one(pictures, int(rows[at]), wanted, self._outs(making, i, source))
            except DatasetError as error:
                self._bad(making, i, error)
            if self._stopped():
                raise Stopped

    def _copy_one(
        self, pictures: KeptPictures, row: int, frames: Mapping[str, np.ndarray], outs: Mapping[str, np.ndarray]
    ) -> None:
        spent = self._spent
        begin, other = perf_counter(), spent.decode + spent.convert + spent.fetch
        for camera, wanted in frames.items():
            pictures.into(camera, row, wanted.tolist(), outs[camera], spent)
        spent.assemble += perf_counter() - begin - (spent.decode + spent.convert + spent.fetch - other)

    def _begin(self, source: int, camera: str, position: int) -> Chain:
        """Open a chain of a clip at a position: for all samples of it that are this rank's."""
        if self._clip is None or self._clip[0] != position:
            self._clip = position, self._clip_at(source, position)
        return self._chain(source, camera, self._clip[1], self._plan.holdings[source])

    def _clip_at(self, source: int, position: int) -> _Clip:
        order, spec = self._stream.order, self._stream.order.spec.sources[source]
        holding = self._plan.holdings[source]
        most = 1 if holding.ahead == 0 else max(spec.clip, 1 if spec.shuffle else SPAN)
        positions, episode, frame = order.rest_of_clip(position, most)
        if len(positions) > 1:
            offset = (positions - self._stream.start) % order.batch_size
            own = (offset >= self._low) & (offset < self._high)
            if not spec.shuffle:
                own &= positions // SPAN == position // SPAN
            positions, episode, frame = positions[own], episode[own], frame[own]
        runs = first_runs(order, source, holding, position, self._stream.start)
        return _Clip(positions.tolist(), *self._stream.datasets[source].video_frames(episode, frame), runs)

    def _chain(self, source: int, camera: str, clip: _Clip, holding: Holding) -> Chain:
        dataset = self._stream.datasets[source]
        frames = clip.frames[camera]
        own = self._cursors, self._converter
        return Chain(dataset, camera, clip.positions, clip.rows, frames, holding, clip.runs, *own)


def first_round(order: Order, source: int) -> int:
    """Positions in which each lane of a source comes up once (or, in a divided slot, may)."""
    if order.lane_slots(source) is not None:
        return order.spec.round
    slots = order.spec.schedule[-1].slots
    return -(-order.spec.sources[source].lanes * sum(slots) // max(1, slots[source]))


def first_runs(order: Order, source: int, holding: Holding, position: int, start: int) -> list[int]:
    """Pictures of the first runs of a chain that opens at a position of a stream that begins at `start`; those behind
    them are `holding.ahead` long.

    Runs end when it is their lane's turn: every so many rounds, each lane at another time, for good. Otherwise lanes
    whose clips begin together (all of them do at the start, and when an epoch turns) would decode in the same batch,
    and hold as much at the same time, from there on. Runs of whole groups have their turns by where their clips begin:
    the first goes on to the next key frame. A chain of the first batch, which is waited for, decodes only what that
    needs.
    """
    if holding.ahead <= 1:
        return []
    first = position < start + order.batch_size
    if holding.whole:
        return [0, 1] if first else [1]
    lane, round_ = order.lane(position), position // first_round(order, source)
    run = holding.ahead - (round_ + int(holding.ahead * (lane * _GOLDEN % 1))) % holding.ahead
    if first:
        return [0, run - 1] if run > 1 else [0]
    return [run]
