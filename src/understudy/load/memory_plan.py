"""Plan: what a loader will hold, in bytes, before it makes the first batch; and how it makes do with less.

Memory goes, in this order, to what cannot be done without (the batches under way, rows, one decoder a thread), to whole
datasets that stay decoded, and to chains: what each lane holds between two of its samples. Chains have several ways,
the quickest first; the first way that fits is taken. Whatever is taken, the samples are the same.

    short groups of pictures: runs of 64, 32, 16, 8 or 4 pictures with shared decoders; a decoder kept by each lane
    middling ones:            runs of whole groups with shared decoders; then as long ones
    long ones:                a decoder kept by each lane with runs of 32, 16, 8, 4 or 1
    any:                      the pictures that windows share; nothing

Without a run or a decoder every sample starts over at a key frame: half a group of pictures decoded for each.

The order is frozen and stays. A new run can ask `fit_order` for one with so few frames in flight that the quickest way
fits.

The plan is what resident memory grows by, to about 10 %, also by what belongs to none of these things. A consumer that
keeps more batches than the one it works on keeps them beside the plan.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.features import INDEX_KEYS
from understudy.load.images.clip_reader import Holding
from understudy.load.images.cursors import index_of
from understudy.load.images.decoded_cache import IDLE, picture_bytes
from understudy.order import Order, rank_slice
from understudy.order.audit.audit import WINDOWS, audit, reading
from understudy.order.defaults import default_in_flight
from understudy.video.codec_pool import live_bytes
from understudy.video.codec_pool import picture_bytes as decoded_bytes

_AHEAD = (8, 4, 2)  # batches made before they are asked for, where memory allows: threads end their runs in turns
_SMALL = 100  # eight of them where they are nothing beside all else: one takes less than such a part of memory
_RUNS = (64, 32, 16, 8, 4)  # pictures of a run that is no whole group
_LONG = 32  # the longest that decoders kept by each lane gain from; from there on batches ahead are worth more
_SHORT = 8  # pictures from key frame to key frame up to which a decoder that starts anew costs little
_OWN = 12_000_000  # Python's objects for each lane, code that runs for the first time, gaps between what malloc gave
_MIDDLING = 32  # up to which a group is decoded at once: one decoder that stays in the cache for many lanes' pictures


@dataclass(frozen=True)
class Item:
    """One thing that takes memory: how many bytes, and why."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Plan:
    """What a loader holds at most, and how it works."""

    memory: int
    """Bytes that were allowed."""
    items: tuple[Item, ...]
    threads: int
    ahead: int
    """Batches made before they are asked for."""
    kept: tuple[bool, ...]
    """Of each source: whether all its pictures stay decoded."""
    holdings: tuple[Holding, ...]
    """Of each source: what its lanes hold between two samples."""
    said: tuple[str, ...]
    """What else the user should know, one sentence each."""

    @property
    def bytes(self) -> int:
        """All items together."""
        return sum(item.bytes for item in self.items)

    def __str__(self) -> str:
        lines = [f"memory: {_mb(self.bytes)} planned of {_mb(self.memory)}"]
        lines += [f"  {_mb(item.bytes):>10}  {item.name}: {item.why}" for item in self.items]
        lines += [f"  {sentence}" for sentence in self.said]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Source:
    """What the plan knows of one dataset."""

    dataset: EpisodeDataset
    lanes: int
    """Lanes that this rank reads; 0 for one of each thread."""
    pictures: int
    """Bytes of all its pictures, resized."""
    sample: int
    """Bytes of one sample's pictures, resized."""
    together: int
    """Samples that come up in one batch of this rank."""
    decoded: tuple[int, ...]
    """Per camera, bytes of one picture as a chain holds it."""
    live: tuple[int, ...]
    """Per camera, bytes of a live decoder."""
    converted: bool
    """Whether chains hold resized pictures, which are smaller than decoded ones."""
    clip: int
    """Samples of a clip of the order; in storage order all are one."""
    halo: int
    """Pictures that samples of a clip share beyond their own."""
    ways: tuple[Holding, ...]

    def chains(self, way: Holding, threads: int) -> int:
        """Bytes that its chains hold.

        A kept decoder keeps the memory of all pictures it ever gave out at once, two that it refers to among them; each
        thread has two such of clips that are over, one with its place in a file and one to hand on. A tenth is lost
        between them: they come and go with their clips, in heaps of the threads' own.
        Shared ones, one a thread, that of the most that its chains ever held: half a run each, for they take turns
        (`making.first_runs`) and on the way to a key frame, and what waits for its colours, a batch's pictures at most.
        Whole groups take turns by chance: two standard deviations of so many. So do runs as long as clips, which end
        with their clip, too; what is left of them is less in the mean.
        """
        if way.ahead == 0:
            return 0
        lanes = self.lanes or threads
        decoders = 1.1 * (lanes + 2 * threads) if way.keep else 0.0
        if way.keep:
            run = decoders * (way.ahead - min(2, way.ahead - 1))
        elif way.ahead > 1:
            half, twice = way.ahead / 2, 2 * (lanes * threads) ** 0.5
            if way.whole:
                held = lanes * half + twice * way.ahead / 12**0.5
            else:  # of the lesser of two evenly spread numbers, below the run and below the clip
                part = way.ahead / max(way.ahead, self.clip)
                mean = half - way.ahead * part / 6
                deviation = (way.ahead**2 * (1 / 3 - part / 6) - mean**2) ** 0.5
                held = min(lanes * half, lanes * mean + twice * deviation)
            run = min(held + min(lanes, self.together), lanes * way.ahead)
        else:
            run = 0.0
        return int(sum(self.decoded) * (run + lanes * self.halo) + decoders * sum(self.live))


def make_plan(
    datasets: Sequence[EpisodeDataset],
    order: Order,
    *,
    rank: int,
    world_size: int,
    num_threads: int,
    memory: int,
    image_size: tuple[int, int] | None = None,
) -> Plan:
    """The plan of one rank.

    Args:
        num_threads: how many may make batches; fewer are taken where memory is too small for so many.
        memory: bytes.
        image_size: (height, width) that pictures are resized to.

    Raises:
        ValueError: not even one batch fits; names the least that does.
        DatasetError: a video cannot be opened.
    """
    low, high = rank_slice(order.batch_size, rank, world_size)
    sources = [_look(dataset, order, d, low, high, image_size) for d, dataset in enumerate(datasets)]
    batch = (high - low) * max((source.sample for source in sources), default=0)
    rows = sum(_row_bytes(source.dataset) for source in sources)
    if not any(source.sample for source in sources):
        num_threads = 1  # rows alone are made by Python, one thread at a time

    def fixed(ahead: int, count: int) -> list[Item]:
        """`ahead` made, one in the making, and one that the consumer works on."""
        decoder = max((sum(s.live) + sum(s.decoded) * (1 + s.halo) for s in sources), default=0)
        return [
            Item("batches", (ahead + 2) * batch, f"{ahead + 2} of {high - low} samples, {ahead} ahead"),
            Item("rows", rows, "columns of the data files in use"),
            Item("decoders", count * decoder, f"one for each of {count} threads"),
        ]

    def total(items: Sequence[Item]) -> int:
        return sum(item.bytes for item in items)

    slowest = [source.ways[-1] for source in sources]
    fewest = total(fixed(0, 1)) + sum(s.chains(way, 1) for s, way in zip(sources, slowest))
    if fewest > memory:
        raise ValueError(
            f"memory {memory}: one batch of {high - low} samples and what it takes to make it need {fewest} bytes; "
            "give as much, or make the batch or its pictures smaller"
        )
    least = total(fixed(0, num_threads)) + sum(s.chains(way, num_threads) for s, way in zip(sources, slowest))
    said: list[str] = []
    if least > memory:
        said.append(f"one thread instead of {num_threads}: memory allows no more")
        num_threads, least = 1, fewest
    own = min(_OWN, memory // 10, memory - least)  # a small budget may be off by a tenth as well
    spare = memory - own - least
    kept = []
    for source, way in zip(sources, slowest):
        needed = source.pictures + IDLE * max(source.live, default=0) - source.chains(way, num_threads)
        kept.append(source.pictures > 0 and needed <= spare)
        spare -= needed if kept[-1] else 0
    read = [s for s, stays in zip(sources, kept) if not stays and s.sample]
    spare = memory - own - _kept_bytes(sources, kept)
    aheads = _AHEAD if batch * _SMALL <= memory else _AHEAD[1:]
    ahead, level = _level(read, aheads, spare, num_threads, lambda a: total(fixed(a, num_threads)))
    items = [*fixed(ahead, num_threads), Item("the rest", own, "lists of what is where, code, gaps in the heap")]
    holdings = []
    for d, (source, stays) in enumerate(zip(sources, kept)):
        way = source.ways[min(level, len(source.ways) - 1)]
        holdings.append(way)
        if stays:
            bytes_ = source.pictures + IDLE * max(source.live)
            items.append(Item(f"pictures of {source.dataset.name}", bytes_, "all of them, once they have been met"))
        elif source.sample:
            items.append(
                Item(f"chains of {source.dataset.name}", source.chains(way, num_threads), _in_words(source, way))
            )
            if way != source.ways[0]:
                best = source.chains(source.ways[0], num_threads)
                said.append(
                    f"{order.spec.sources[d].name}: {_in_words(source, source.ways[0])} would take {_mb(best)} and be "
                    "quicker; the samples and their order are the same (fewer frames in flight would fit: `fit_order`)"
                )
    if ahead < _AHEAD[-1]:
        said.append(f"{ahead} batches ahead: memory allows no more")
    return Plan(memory, tuple(items), num_threads, ahead, tuple(kept), tuple(holdings), tuple(said))


def fit_order(
    datasets: Sequence[EpisodeDataset],
    *,
    memory: int,
    world_size: int = 1,
    num_threads: int = 2,
    image_size: tuple[int, int] | None = None,
    frames_in_flight: int | None = None,
    **options: Any,
) -> tuple[Order, tuple[str, ...]]:
    """A new order with so many frames in flight that each rank can read them in runs of pictures in `memory` bytes.

    Frames in flight are halved until they fit. `options` are those of `Order.from_datasets`. Returns the order
    and notes: none where the requested order fits; otherwise the reduced number of frames and its design effect
    (`order/audit/design_effect.py`), or that fewer frames would not help; the order is then the requested one.

    Raises: ValueError: as `Order.from_datasets` and `make_plan` do.
    """
    wished = Order.from_datasets(datasets, frames_in_flight=frames_in_flight, **options)
    asked = default_in_flight(wished.batch) if frames_in_flight is None else frames_in_flight
    order, frames = wished, asked

    def fits(one: Order) -> bool:  # on the last rank, whose share is never smaller than another's
        plan = make_plan(
            datasets,
            one,
            rank=world_size - 1,
            world_size=world_size,
            num_threads=num_threads,
            memory=memory,
            image_size=image_size,
        )
        return all(
            h.ahead > 1 or stays or s.clip == 1 for h, stays, s in zip(plan.holdings, plan.kept, one.spec.sources)
        )

    while not fits(order) and frames > order.batch_size:
        frames //= 2
        order = Order.from_datasets(datasets, frames_in_flight=frames, **options)
    if order.spec == wished.spec and fits(order):
        return wished, ()
    if not fits(order):
        lanes = sum(source.lanes for source in wished.spec.sources)
        said = f"{lanes} lanes cannot be read in runs of pictures in {_mb(memory)}, nor would fewer frames in flight be"
        return wished, (f"{said}: give more memory, fewer lanes, or fewer samples in a batch",)
    before, after = _deff(wished), _deff(order)
    spans = ", ".join(f"{b:.2f} -> {a:.2f} over {w}" for w, b, a in zip(WINDOWS, before, after))
    return order, (
        f"{frames} frames in flight instead of {asked}: twice as many do not fit {_mb(memory)}",
        f"design effect of the batches, by batches looked at together: {spans}",
    )


def _deff(order: Order) -> tuple[float, ...]:
    read, lengths = reading(order)
    return audit(read, lengths, order.batch_size, world=1, span=max(4 * WINDOWS[-1] * order.batch_size, 2**14)).deff


def _level(
    read: Sequence[_Source], aheads: Sequence[int], memory: int, threads: int, fixed: Callable[[int], int]
) -> tuple[int, int]:
    """(batches ahead, which of its ways each source takes): the quickest that fits."""
    levels = max((len(source.ways) for source in read), default=1)

    def needs(ahead: int, level: int) -> int:
        return fixed(ahead) + sum(s.chains(s.ways[min(level, len(s.ways) - 1)], threads) for s in read)

    for level in range(levels):
        ways = [s.ways[min(level, len(s.ways) - 1)] for s in read]
        long = any(way.ahead >= _LONG and not way.whole for way in ways)
        for ahead in aheads[:-1] if long else aheads:  # 3 % of time are not worth so few batches ahead
            if needs(ahead, level) <= memory:
                return ahead, level
    return (1 if needs(1, levels - 1) <= memory else 0), levels - 1


def _kept_bytes(sources: Sequence[_Source], kept: Sequence[bool]) -> int:
    return sum(s.pictures + IDLE * max(s.live, default=0) for s, stays in zip(sources, kept) if stays)


def _look(dataset: EpisodeDataset, order: Order, d: int, low: int, high: int, size: tuple[int, int] | None) -> _Source:
    spec = order.spec.sources[d]
    alone = spec.clip == 1 and spec.shuffle
    lanes = _lanes_of_rank(order, d, low, high) if spec.shuffle and not alone else 0
    segment = dataset.segments[dataset.segments[:, 2] > dataset.segments[:, 1]][:1]
    rows, frames = dataset.video_frames(segment[:, 0], segment[:, 1])
    decoded, live, sample, converted, windows = [], [], 0, False, 0
    for camera, wanted in frames.items():
        reader = dataset.pictures.reader(camera, int(rows[0]))
        height, width = size or (reader.height, reader.width)
        sample += wanted.size * height * width * 3
        windows = max(windows, wanted.size)
        if (index := index_of(reader)) is not None:
            decoded.append(decoded_bytes(index))
            live.append(live_bytes(index))
        else:  # torchcodec gives RGB
            decoded.append(reader.height * reader.width * 3)
            live.append(4 * decoded[-1])
        converted = size is not None and (height * width * 3 < decoded[-1])
        if converted:
            decoded[-1] = height * width * 3
    for camera, own in dataset.absent.items():
        height, width = size or own
        sample += dataset.windows.get(camera, 1) * height * width * 3
    halo = min(dataset.reach[0] + dataset.reach[1], windows * spec.clip)
    return _Source(
        dataset,
        lanes,
        picture_bytes(dataset, size) if frames else 0,
        sample,
        _together(order, d, high - low),
        tuple(decoded),
        tuple(live),
        converted,
        spec.clip if spec.shuffle else spec.frames,
        halo,
        _ways(alone, dataset.gop if frames else 1, spec.clip, halo, converted, spec.shuffle),
    )


def _ways(alone: bool, gop: int, clip: int, halo: int, converted: bool, shuffle: bool) -> tuple[Holding, ...]:
    """The ways of holding a lane, the quickest first; the last one holds nothing."""
    ways: list[tuple[int, bool, bool]] = []
    if not alone:
        keep = gop > _SHORT or not shuffle
        runs = [run for run in _RUNS if not keep or run <= _LONG]
        runs = [run for run in runs if run <= clip or not shuffle] or runs[-1:]  # in storage order all is one clip
        whole = [(gop, False, True)] if keep and gop <= _MIDDLING and shuffle else []
        ways = [*whole, *((run, keep, False) for run in runs), (1, True, False)]
    ways += [(1, False, False)] if halo and not alone else []
    return tuple(Holding(ahead, keep, whole, converted) for ahead, keep, whole in [*ways, (0, False, False)])


def _lanes_of_rank(order: Order, d: int, low: int, high: int) -> int:
    """How many lanes of a source come up on a rank: its share where each lane keeps to one offset in the batch."""
    spec, slots = order.spec.sources[d], order.spec.schedule[-1].slots
    if d >= len(slots) or not slots[d]:  # it has left the mixture
        return 0
    if (places := order.lane_slots(d)) is not None:
        offset = places % order.batch_size
        own = np.count_nonzero((offset >= low) & (offset < high))
        return spec.lanes if order.spec.round % order.batch_size else int(own)
    round_ = -(-spec.lanes * sum(slots) // slots[d])
    if round_ % order.batch_size:
        return spec.lanes
    first = order.spec.schedule[-1].position
    positions = np.arange(first, first + round_)
    offset = (positions - first) % order.batch_size
    source, lane = order.lanes(positions[(offset >= low) & (offset < high)])
    return len(np.unique(lane[source == d]))


def _together(order: Order, d: int, share: int) -> int:
    """How many of the samples of a rank's batch come from a source, rounded up."""
    slots = order.spec.schedule[-1].slots
    return -(-share * slots[d] // sum(slots)) if d < len(slots) else 0


def _row_bytes(dataset: EpisodeDataset) -> int:
    """Bytes of the columns of the data files that hold selected episodes, as far as they may stay loaded."""
    episodes, features = dataset.catalog.episodes, dataset.catalog.features
    files = np.unique(episodes.data_file[episodes.rows_of(np.unique(dataset.segments[:, 0]))])
    count = int(episodes.lengths[np.isin(episodes.data_file, files)].sum())
    row = 36  # of the index: four int64 and a time
    for key in set(dataset.keys) - set(INDEX_KEYS):
        feature = features.get(key)
        if feature is not None and not feature.is_picture and not feature.is_text:
            row += int(np.prod(feature.shape, dtype=np.int64)) * np.dtype(feature.dtype).itemsize
    return min(count * row, dataset.row_cache_bytes)


def _in_words(source: _Source, way: Holding) -> str:
    what = [f"runs of {way.ahead} pictures"] if way.ahead > 1 else []
    what += ["a decoder each"] if way.keep else []
    what += ["the pictures that windows share"] if source.halo and way.ahead else []
    lanes = f"{source.lanes} lanes" if source.lanes else "one clip a thread"
    return f"{lanes}, {' and '.join(what) if what else 'nothing held between two samples'}"


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
