"""Memory plan: the bytes that a loader will hold, before it makes the first batch, and how it manages with less.

Memory goes first to the indispensable (batches under way, rows, one decoder a thread), then to whole datasets that stay
decoded, then to clip readers: the state of each lane between two of its samples. Clip readers have several policies.
The first that fits, the fastest first, is taken. The samples are the same with any of them.

    short GOPs:    runs of 64, 32, 16, 8 or 4 frames with shared decoders; a decoder for each lane
    middling GOPs: runs of whole GOPs with shared decoders; then as long GOPs
    long GOPs:     a decoder for each lane, with runs of 32, 16, 8, 4 or 1
    all:           the frames that windows share; nothing

Without a run or a decoder every sample starts over at a key frame, and half a GOP is decoded for each.

An existing order is never changed. For a new one, `fit_order` reduces the frames in flight until a fast policy fits.

The plan is not below the largest growth of resident memory where `benchmarks/history.py` and
`tests/load/test_process.py` measure it, and at most 15 % above it but for plans of less than 100 MB. Batches that the
consumer keeps, other than the current one, come on top.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.features import INDEX_KEYS
from understudy.load.images.clip_reader import DecodePolicy
from understudy.load.images.decoded_cache import IDLE_CURSORS, decoded_bytes
from understudy.order import Order, rank_slice

_AHEAD = (8, 4, 2)  # batches made ahead, where memory allows: threads end their runs in turns
_SMALL = 100  # eight of them only where a batch takes less than this part of memory
_RUNS = (64, 32, 16, 8, 4)  # frames of a run that is no whole GOP
_LONG = 32  # longest run from which a lane's own decoder gains; from there on batches ahead are worth more
_SHORT = 8  # frames from key frame to key frame up to which a decoder that starts over costs little
_OWN = 9_000_000  # Python's objects for each lane, code that runs for the first time, gaps in malloc's heaps
_ROWS_HELD = 1.4  # memory of loaded columns over their bytes: Arrow keeps a part of its memory of reading
_ROWS_READ = 3.3  # memory of reading a data file, beyond that of its columns, over their bytes: levels, offsets, copies
_GAPS = 1.12  # of frames of shared decoders: they come and go in heaps of several threads
_REMOTE = 12_000_000  # code of HTTP clients, connections, bytes on their way
_MIDDLING = 32  # GOP up to which whole GOPs are decoded at once: one decoder, in the cache, serves many lanes


@dataclass(frozen=True)
class Item:
    """One item of the plan."""

    name: str
    bytes: int
    why: str


@dataclass(frozen=True)
class MemoryPlan:
    """Memory that a loader holds at most, and how it works with it."""

    memory: int
    """Bytes allowed."""
    items: tuple[Item, ...]
    num_threads: int
    batches_ahead: int
    """Batches made before they are taken."""
    keeps_decoded: tuple[bool, ...]
    """Of each source: whether all its images stay decoded."""
    policies: tuple[DecodePolicy, ...]
    """Of each source: the policy of its clip readers."""
    notes: tuple[str, ...]
    """Remarks for the user, one sentence each."""

    @property
    def bytes(self) -> int:
        """Sum of all items."""
        return sum(item.bytes for item in self.items)

    def __str__(self) -> str:
        lines = [f"memory: {megabytes(self.bytes)} planned of {megabytes(self.memory)}"]
        lines += [f"  {megabytes(item.bytes):>10}  {item.name}: {item.why}" for item in self.items]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)


@dataclass(frozen=True)
class _SourceNeeds:
    """The facts about one dataset that the plan rests on."""

    dataset: EpisodeDataset
    lanes: int
    """Lanes that this rank reads; 0 for one of each thread."""
    all_images: int
    """Bytes of all its images, resized."""
    sample: int
    """Bytes of one sample's images, resized."""
    together: int
    """Samples of the source in one batch of this rank."""
    frame: tuple[int, ...]
    """Per camera, bytes of one frame as a clip reader holds it."""
    decoder: tuple[int, ...]
    """Per camera, bytes of a live decoder."""
    clip: int
    """Samples of a clip of the order; in storage order all are one clip."""
    halo: int
    """Frames that samples of a clip share beyond their own."""
    policies: tuple[DecodePolicy, ...]
    """The fastest first."""

    @property
    def cached(self) -> int:
        """Bytes of the decoded cache of all its images."""
        return self.all_images + IDLE_CURSORS * max(self.decoder, default=0)

    def reader_bytes(self, policy: DecodePolicy, threads: int) -> int:
        """Bytes that its clip readers hold.

        A lane's own decoder keeps the memory of all frames that it ever returned at once, including two that it refers
        to. Each thread has two more decoders of finished clips: one with its place in a file and one to hand on. A
        twentieth is lost between them: they come and go with their clips, in heaps of the threads.
        Shared decoders, one a thread, keep the memory of the most frames that the readers ever held: half a run each,
        for they take turns (`load/staggered_decoding.py`) and on the way to a key frame, and the frames that wait for
        conversion, a batch's at most. Whole GOPs take turns by chance: three standard deviations of their number. So do
        runs as long as clips, which also end with their clip; their remainder is smaller in the mean.
        """
        if policy.run_length == 0:
            return 0
        run, lanes = policy.run_length, self.lanes or threads
        decoders = 1.05 * (lanes + 2 * threads) if policy.keep_decoder else 0.0
        if policy.keep_decoder:
            frames = decoders * (run - min(2, run - 1))
        elif run > 1:
            half, thrice = run / 2, 3 * (lanes * threads) ** 0.5
            if policy.whole_gops:
                held = lanes * half + thrice * run / 12**0.5
            else:  # of the lesser of two evenly spread numbers, below the run and below the clip
                part = run / max(run, self.clip)
                mean = half - run * part / 6
                deviation = (run**2 * (1 / 3 - part / 6) - mean**2) ** 0.5
                held = min(lanes * half, lanes * mean + thrice * deviation)
            frames = _GAPS * min(held + min(lanes, self.together), lanes * run)
        else:
            frames = 0.0
        halo = (1.0 if policy.keep_decoder else _GAPS) * lanes * self.halo
        return int(sum(self.frame) * (frames + halo) + decoders * sum(self.decoder))

    def policy(self, level: int) -> DecodePolicy:
        """The policy of a level, or the last one."""
        return self.policies[min(level, len(self.policies) - 1)]

    def describe(self, policy: DecodePolicy) -> str:
        """A policy in words."""
        parts = [f"runs of {policy.run_length} frames"] if policy.run_length > 1 else []
        parts += ["a decoder each"] if policy.keep_decoder else []
        parts += ["the frames that windows share"] if self.halo and policy.run_length else []
        lanes = f"{self.lanes} lanes" if self.lanes else "one clip a thread"
        return f"{lanes}, {' and '.join(parts) if parts else 'nothing held between two samples'}"


def make_plan(
    datasets: Sequence[EpisodeDataset],
    order: Order,
    *,
    rank: int,
    world_size: int,
    num_threads: int,
    memory: int,
    image_size: tuple[int, int] | None = None,
    may_keep: bool = True,
) -> MemoryPlan:
    """Make the plan of one rank.

    Args:
        num_threads: threads that may make batches; fewer are used where memory is too small for them.
        memory: bytes.
        image_size: (height, width) that images are resized to.
        may_keep: whether a dataset that fits stays decoded.

    Raises:
        ValueError: not even one batch fits; names the least memory that does.
        DatasetError: a video cannot be opened.
    """
    low, high = rank_slice(order.batch_size, rank, world_size)
    sources = [_examine(dataset, order, d, low, high, image_size) for d, dataset in enumerate(datasets)]
    batch = (high - low) * max((source.sample for source in sources), default=0)
    columns = [_column_bytes(source.dataset) for source in sources]
    rows = sum(min(sum(sizes), s.dataset.row_cache_bytes) for s, sizes in zip(sources, columns))
    reading = int(_ROWS_READ * max((size for sizes in columns for size in sizes), default=0))
    once = sum(map(len, columns)) == 1  # one data file is read before there is anything else
    remote = 0 if all(dataset.catalog.files.is_local for dataset in datasets) else _REMOTE
    if not any(source.sample for source in sources):
        num_threads = 1  # rows alone are read by Python, one thread at a time

    def fixed(ahead: int, threads: int) -> list[Item]:
        """`ahead` batches made, one under way, and one at the consumer."""
        decoder = max((sum(s.decoder) + sum(s.frame) * (1 + s.halo) for s in sources), default=0)
        return [
            Item("batches", (ahead + 2) * batch, f"{ahead + 2} of {high - low} samples, {ahead} ahead"),
            Item("rows", rows, "columns of the data files in use, and the reading of one"),
            Item("decoders", threads * decoder, f"one for each of {threads} threads"),
        ]

    def total(items: Sequence[Item]) -> int:
        return sum(item.bytes for item in items)

    slowest = [source.policies[-1] for source in sources]
    fewest = total(fixed(0, 1)) + sum(s.reader_bytes(policy, 1) for s, policy in zip(sources, slowest))
    if fewest > memory:
        raise ValueError(
            f"memory {memory}: one batch of {high - low} samples and the work on it need {fewest} bytes; give as much, "
            "or make the batch or its images smaller"
        )
    least = total(fixed(0, num_threads)) + sum(s.reader_bytes(p, num_threads) for s, p in zip(sources, slowest))
    notes: list[str] = []
    if least > memory:
        notes.append(f"one thread instead of {num_threads}: memory allows no more")
        num_threads, least = 1, fewest
    held = int((_ROWS_HELD - 1) * rows) + (0 if once else reading)
    held = min(held, memory // 10, memory - least)  # a small budget may be off by a tenth
    rows, least = rows + held, least + held
    own = min(_OWN + remote, memory // 10 - held, memory - least)
    spare = memory - own - least
    keeps = []
    for source, policy in zip(sources, slowest):
        needed = source.cached - source.reader_bytes(policy, num_threads)
        keeps.append(may_keep and source.all_images > 0 and needed <= spare)
        spare -= needed if keeps[-1] else 0
    read = [s for s, keep in zip(sources, keeps) if not keep and s.sample]
    spare = memory - own - sum(s.cached for s, keep in zip(sources, keeps) if keep)
    aheads = _AHEAD if batch * _SMALL <= memory else _AHEAD[1:]
    ahead, level = _choose_level(read, aheads, spare, num_threads, lambda a: total(fixed(a, num_threads)))
    items = [*fixed(ahead, num_threads), Item("other", own, "indices of files, code, connections, gaps in the heap")]
    for d, (source, keep) in enumerate(zip(sources, keeps)):
        policy, name = source.policy(level), source.dataset.name
        if keep:
            items.append(Item(f"images of {name}", source.cached, "all of them, once they have been decoded"))
        elif source.sample:
            readers = source.reader_bytes(policy, num_threads)
            items.append(Item(f"clip readers of {name}", readers, source.describe(policy)))
            if policy != source.policies[0]:
                best = source.reader_bytes(source.policies[0], num_threads)
                notes.append(
                    f"{order.spec.sources[d].name}: {source.describe(source.policies[0])} would take "
                    f"{megabytes(best)} and be faster; the samples and their order are the same (fewer frames in "
                    "flight would fit: `fit_order`)"
                )
    rest = total(items)
    if once and rest - rows < reading and rest < memory:
        needed = min(rows + reading, memory) - rest
        items.append(Item("reading", needed, "of the data file at the start, more than the items above but rows"))
    if ahead < _AHEAD[-1]:
        notes.append(f"{ahead} batches ahead: memory allows no more")
    policies = tuple(source.policy(level) for source in sources)
    return MemoryPlan(memory, tuple(items), num_threads, ahead, tuple(keeps), policies, tuple(notes))


def _choose_level(
    read: Sequence[_SourceNeeds], aheads: Sequence[int], memory: int, threads: int, fixed: Callable[[int], int]
) -> tuple[int, int]:
    """The fastest that fits: (batches ahead, index of each source's policy)."""
    levels = max((len(source.policies) for source in read), default=1)

    def needs(ahead: int, level: int) -> int:
        return fixed(ahead) + sum(s.reader_bytes(s.policy(level), threads) for s in read)

    for level in range(levels):
        policies = [s.policy(level) for s in read]
        long = any(policy.run_length >= _LONG and not policy.whole_gops for policy in policies)
        for ahead in aheads[:-1] if long else aheads:  # 3 % of time are not worth so few batches ahead
            if needs(ahead, level) <= memory:
                return ahead, level
    return (1 if needs(1, levels - 1) <= memory else 0), levels - 1


def _examine(
    dataset: EpisodeDataset, order: Order, d: int, low: int, high: int, image_size: tuple[int, int] | None
) -> _SourceNeeds:
    spec = order.spec.sources[d]
    single = spec.clip == 1 and spec.shuffle
    lanes = _lanes_of_rank(order, d, low, high) if spec.shuffle and not single else 0
    segment = dataset.segments[dataset.segments[:, 2] > dataset.segments[:, 1]][:1]
    rows, frames = dataset.frames_to_decode(segment[:, 0], segment[:, 1])
    held, decoder, sample, resized, window = [], [], 0, False, 0
    for camera, wanted in frames.items():
        reader = dataset.video_frames.reader(camera, int(rows[0]))
        height, width = image_size or (reader.height, reader.width)
        image = dataset.pixels(camera).nbytes(height, width)
        sample += wanted.size * image
        window = max(window, wanted.size)
        held.append(reader.frame_bytes)
        decoder.append(reader.decoder_bytes)
        resized = image_size is not None and image < held[-1]
        if resized:
            held[-1] = image
    for camera, own in dataset.missing_cameras.items():
        height, width = image_size or own
        sample += dataset.windows.get(camera, 1) * height * width * 3
    halo = min(dataset.reach[0] + dataset.reach[1], window * spec.clip)
    return _SourceNeeds(
        dataset,
        lanes,
        decoded_bytes(dataset, image_size) if frames else 0,
        sample,
        _samples_in_batch(order, d, high - low),
        tuple(held),
        tuple(decoder),
        spec.clip if spec.shuffle else spec.frames,
        halo,
        rank_policies(single, dataset.gop if frames else 1, spec.clip, halo, resized, spec.shuffle),
    )


def rank_policies(
    single: bool, gop: int, clip: int, halo: int, resized: bool, shuffle: bool
) -> tuple[DecodePolicy, ...]:
    """Decode policies of a source, the fastest first; the last one holds nothing.

    Args:
        single: whether frames are shuffled one by one.
        gop: frames from key frame to key frame.
        clip: samples of a clip.
        halo: frames that samples of a clip share beyond their own.
        resized: whether clip readers hold resized frames.
        shuffle: False for storage order.
    """
    policies: list[tuple[int, bool, bool]] = []
    if not single:
        keep = gop > _SHORT or not shuffle
        runs = [run for run in _RUNS if not keep or run <= _LONG]
        runs = [run for run in runs if run <= clip or not shuffle] or runs[-1:]  # in storage order all is one clip
        whole = [(gop, False, True)] if keep and gop <= _MIDDLING and shuffle else []
        policies = [*whole, *((run, keep, False) for run in runs), (1, True, False)]
    policies += [(1, False, False)] if halo and not single else []
    return tuple(DecodePolicy(run, keep, whole, resized) for run, keep, whole in [*policies, (0, False, False)])


def _lanes_of_rank(order: Order, d: int, low: int, high: int) -> int:
    """Lanes of a source that come up on a rank: its share where each lane keeps to one offset in the batch."""
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


def _samples_in_batch(order: Order, d: int, share: int) -> int:
    """Samples of a source in a rank's batch, rounded up."""
    slots = order.spec.schedule[-1].slots
    return -(-share * slots[d] // sum(slots)) if d < len(slots) else 0


def _column_bytes(dataset: EpisodeDataset) -> list[int]:
    """Bytes of the columns of each data file of selected episodes."""
    episodes, features = dataset.catalog.episodes, dataset.catalog.features
    files = np.unique(episodes.data_file[episodes.rows_of(np.unique(dataset.segments[:, 0]))])
    row = 36  # of the index: four int64 and a time
    for key in set(dataset.keys) - set(INDEX_KEYS):
        feature = features.get(key)
        if feature is not None and not feature.is_camera and not feature.is_text:
            row += int(np.prod(feature.shape, dtype=np.int64)) * np.dtype(feature.dtype).itemsize
    counts = np.bincount(episodes.data_file, episodes.lengths, len(files) and int(files.max()) + 1)
    return [int(counts[file]) * row for file in files.tolist()]


def megabytes(count: int) -> str:
    """Bytes in words: "1.5 MB"."""
    return f"{count / 1e6:.1f} MB"
