"""Memory plan: the bytes that a loader will hold, before it makes the first batch, and how it manages with less.

Memory goes first to the indispensable (batches under way, rows, one decoder a thread), then to whole datasets that stay
decoded, then to clip readers: the state of each lane between two of its samples. Clip readers have several policies.
The first that fits, the fastest first, is taken. The samples are the same with any of them.

    short GOPs:    runs of 64, 32, 16, 8 or 4 frames with shared decoders; a decoder for each lane
    middling GOPs: runs of whole GOPs with shared decoders; then as long GOPs
    long GOPs:     a decoder for each lane, with runs of 8, 4, 2 or 1
    all:           the frames that windows share; nothing

Without a run or a decoder every sample starts over at a key frame, and half a GOP is decoded for each.

An existing order is never changed. For a new one, `choose_order` compares plans of several orders.

The plan is not below the largest growth of resident memory where
`tests/load/test_process.py` measures it, and at most 15 % above it but for plans of less than 100 MB. Batches that the
consumer keeps, other than the current one, come on top.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.features import INDEX_KEYS
from understudy.load.images.clip_reader import DecodePolicy
from understudy.load.images.decoded_cache import IDLE_CURSORS, decoded_bytes
from understudy.load.images.disk_cache import bytes_on_disk
from understudy.order import Order, rank_slice

_AHEAD = (8, 4, 2)  # batches made ahead, where memory allows: threads end their runs in turns
_SMALL = 100  # eight of them only where a batch takes less than this part of memory
_RUNS = (64, 32, 16, 8, 4)  # frames of a run of shared decoders
_LONG = 32  # run from which on batches ahead are worth more
_OWN_RUNS = (8, 4, 2)  # of a lane's own decoder; longer ones cost memory, and no less time
_SHORT = 8  # frames from key frame to key frame up to which a decoder that starts over costs little
_OWN = 9_000_000  # Python's objects for each lane, code that runs for the first time, gaps in malloc's heaps
_ROWS_HELD = 1.4  # memory of loaded columns over their bytes: Arrow keeps a part of its memory of reading
_ROWS_READ = 3.3  # memory of reading a data file, beyond that of its columns, over their bytes: levels, offsets, copies
_GAPS = 1.12  # of frames of shared decoders: they come and go in heaps of several threads
_REMOTE = 12_000_000  # code of HTTP clients, connections, bytes on their way
_MIDDLING = 32  # GOP up to which whole GOPs are decoded at once: one decoder, in the cache, serves many lanes

_MS_PER_MEGAPIXEL = {"h264": 2.2, "hevc": 3.5, "av1": 6.0, "vp9": 3.5, "mpeg4": 1.6, "mjpeg": 6.0, "ffv1": 12.0}
"""CPU milliseconds of decoding and converting in a row, on one core of an AMD EPYC of 2023. Not measured where it is
used: every rank and every machine must choose the same order."""


@dataclass(frozen=True)
class SourceFacts:
    """One dataset, with its images at the size at which they are delivered."""

    name: str
    frames: int
    """Samples of an epoch."""
    gop: int
    reach: tuple[int, int]
    """Frames that windows of images extend back and ahead."""
    window: int
    """Images of one camera in a sample; 0 without video."""
    frame: tuple[int, ...]
    """Per camera with video, bytes of one frame as a clip reader holds it."""
    decoder: tuple[int, ...]
    """Per camera with video, bytes of a live decoder."""
    resized: bool
    """Whether clip readers hold resized frames."""
    sample: int
    """Bytes of one sample's images."""
    all_images: int
    """Bytes of all images of the selected episodes, decoded."""
    columns: tuple[int, ...]
    """Bytes of the columns of each data file."""
    row_cache: int
    """Most bytes of columns that are kept."""
    is_remote: bool
    decode_ms: float
    """CPU milliseconds of decoding one image of each camera in a row, by a table."""
    pixels: int
    """Of the largest image as delivered."""
    disk_images: int = 0
    """Bytes of all images of the selected episodes in a decoded cache on disk."""
    on_disk: bool = False
    """Whether there is such a cache."""

    @property
    def halo(self) -> int:
        """Frames that samples of a clip share beyond their own."""
        return sum(self.reach)


def read_facts(
    dataset: EpisodeDataset, image_size: tuple[int, int] | None = None, on_disk: bool = False
) -> SourceFacts:
    """Read the facts about a dataset.

    Args:
        image_size: (height, width) that images are resized to.
        on_disk: whether decoded images are kept in a cache on disk.

    Raises:
        DatasetError: a video cannot be opened.
    """
    segment = dataset.segments[dataset.segments[:, 2] > dataset.segments[:, 1]][:1]
    rows, frames = dataset.frames_to_decode(segment[:, 0], segment[:, 1])
    held, decoder, sample, resized, window, cost, pixels = [], [], 0, False, 0, 0.0, 0
    for camera, numbers in frames.items():
        reader = dataset.video_frames.reader(camera, int(rows[0]))
        height, width = image_size or (reader.height, reader.width)
        image = dataset.pixels(camera).nbytes(height, width)
        sample += numbers.size * image
        window = max(window, numbers.size)
        pixels = max(pixels, height * width)
        held.append(reader.frame_bytes)
        decoder.append(reader.decoder_bytes)
        cost += _MS_PER_MEGAPIXEL.get(reader.codec, 4.0) * reader.height * reader.width / 1e6
        resized = image_size is not None and image < held[-1]
        if resized:
            held[-1] = image
    for camera, size in dataset.missing_cameras.items():
        height, width = image_size or size
        sample += dataset.windows.get(camera, 1) * height * width * 3
    segments = getattr(dataset, "epoch_segments", dataset.segments)
    return SourceFacts(
        name=dataset.name,
        frames=int((segments[:, 2] - segments[:, 1]).sum()),
        gop=dataset.gop,
        reach=dataset.reach,
        window=window,
        frame=tuple(held),
        decoder=tuple(decoder),
        resized=resized,
        sample=sample,
        all_images=decoded_bytes(dataset, image_size) if frames else 0,
        columns=_column_bytes(dataset),
        row_cache=dataset.row_cache_bytes,
        is_remote=not dataset.catalog.files.is_local,
        decode_ms=cost,
        pixels=pixels,
        disk_images=bytes_on_disk(dataset, image_size) if frames else 0,
        on_disk=on_disk,
    )


def resized(facts: SourceFacts, side: int) -> SourceFacts:
    """Facts of a dataset whose images are resized to squares, where they are larger."""
    if facts.pixels <= side**2:
        return facts
    share = side**2 / facts.pixels
    frame = tuple(min(held, 3 * side**2) for held in facts.frame)
    sample, images, disk = (int(share * size) for size in (facts.sample, facts.all_images, facts.disk_images))
    return replace(facts, frame=frame, resized=True, pixels=side**2, sample=sample, all_images=images, disk_images=disk)


def _column_bytes(dataset: EpisodeDataset) -> tuple[int, ...]:
    """Bytes of the columns of each data file of selected episodes."""
    episodes, features = dataset.catalog.episodes, dataset.catalog.features
    files = np.unique(episodes.data_file[episodes.rows_of(np.unique(dataset.segments[:, 0]))])
    row = 36  # of the index: four int64 and a time
    for key in set(dataset.keys) - set(INDEX_KEYS):
        feature = features.get(key)
        if feature is not None and not feature.is_camera and not feature.is_text:
            row += int(np.prod(feature.shape, dtype=np.int64)) * np.dtype(feature.dtype).itemsize
    counts = np.bincount(episodes.data_file, episodes.lengths, len(files) and int(files.max()) + 1)
    return tuple(int(counts[file]) * row for file in files.tolist())


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
    """A source as one rank reads it in an order."""

    facts: SourceFacts
    lanes: int
    """Lanes that this rank reads; 0 for one of each thread."""
    together: int
    """Samples of the source in one batch of this rank."""
    clip: int
    """Samples of a clip of the order; in storage order all are one clip."""
    halo: int
    """Frames that samples of a clip share beyond their own."""
    policies: tuple[DecodePolicy, ...]
    """The fastest first."""

    @property
    def cached(self) -> int:
        """Bytes of the decoded cache of all its images. Of one on disk only the decoders are in memory."""
        images = 0 if self.facts.on_disk else self.facts.all_images
        return images + IDLE_CURSORS * max(self.facts.decoder, default=0)

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
        return int(sum(self.facts.frame) * (frames + halo) + decoders * sum(self.facts.decoder))

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
    facts = [read_facts(dataset, image_size) for dataset in datasets]
    return plan_memory(
        facts, order, rank=rank, world_size=world_size, num_threads=num_threads, memory=memory, may_keep=may_keep
    )


def plan_memory(
    facts: Sequence[SourceFacts],
    order: Order,
    *,
    rank: int,
    world_size: int,
    num_threads: int,
    memory: int,
    may_keep: bool = True,
) -> MemoryPlan:
    """Make the plan of one rank from facts about its datasets; otherwise as `make_plan`."""
    low, high = rank_slice(order.batch_size, rank, world_size)
    sources = [_needs(source, order, d, low, high) for d, source in enumerate(facts)]
    batch = (high - low) * max((source.sample for source in facts), default=0)
    rows = sum(min(sum(source.columns), source.row_cache) for source in facts)
    reading = int(_ROWS_READ * max((size for source in facts for size in source.columns), default=0))
    once = sum(len(source.columns) for source in facts) == 1  # one data file is read before there is anything else
    remote = _REMOTE if any(source.is_remote for source in facts) else 0
    if not any(source.sample for source in facts):
        num_threads = 1  # rows alone are read by Python, one thread at a time

    def fixed(ahead: int, threads: int) -> list[Item]:
        """`ahead` batches made, one under way, and one at the consumer."""
        decoder = max((sum(s.facts.decoder) + sum(s.facts.frame) * (1 + s.halo) for s in sources), default=0)
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
    overhead = min(_OWN + remote, memory // 10 - held, memory - least)
    spare = memory - overhead - least
    keeps = []
    for source, policy in zip(sources, slowest):
        needed = source.cached - source.reader_bytes(policy, num_threads)
        keeps.append(may_keep and source.facts.all_images > 0 and needed <= spare)
        spare -= needed if keeps[-1] else 0
    read = [s for s, keep in zip(sources, keeps) if not keep and s.facts.sample]
    spare = memory - overhead - sum(s.cached for s, keep in zip(sources, keeps) if keep)
    aheads = _AHEAD if batch * _SMALL <= memory else _AHEAD[1:]
    ahead, level = _choose_level(read, aheads, spare, num_threads, lambda a: total(fixed(a, num_threads)))
    items = [
        *fixed(ahead, num_threads),
        Item("other", overhead, "indices of files, code, connections, gaps in the heap"),
    ]
    for d, (source, keep) in enumerate(zip(sources, keeps)):
        policy, name = source.policy(level), source.facts.name
        if keep and source.facts.on_disk:
            items.append(Item(f"decoders of {name}", source.cached, "of images that are not yet in the cache on disk"))
        elif keep:
            items.append(Item(f"images of {name}", source.cached, "all of them, once they have been decoded"))
        elif source.facts.sample:
            if source.facts.on_disk:
                notes.append(f"{name}: no decoded cache; its decoders need {megabytes(source.cached)} of memory")
            readers = source.reader_bytes(policy, num_threads)
            items.append(Item(f"clip readers of {name}", readers, source.describe(policy)))
            if policy != source.policies[0]:
                best = source.reader_bytes(source.policies[0], num_threads)
                notes.append(
                    f"{order.spec.sources[d].name}: {source.describe(source.policies[0])} would take "
                    f"{megabytes(best)} and be faster; the samples and their order are the same"
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


def _needs(facts: SourceFacts, order: Order, d: int, low: int, high: int) -> _SourceNeeds:
    spec = order.spec.sources[d]
    single = spec.clip == 1 and spec.shuffle
    halo = min(facts.halo, facts.window * spec.clip)
    gop = facts.gop if facts.frame else 1
    lanes = _lanes_of_rank(order, d, low, high) if spec.shuffle and not single else 0
    together = _samples_in_batch(order, d, high - low)
    return _SourceNeeds(
        facts,
        lanes,
        together,
        spec.clip if spec.shuffle else spec.frames,
        halo,
        rank_policies(single, gop, spec.clip, halo, facts.resized, spec.shuffle, lanes / max(1, together)),
    )


def rank_policies(
    single: bool, gop: int, clip: int, halo: int, resized: bool, shuffle: bool, lanes: float = 1.0
) -> tuple[DecodePolicy, ...]:
    """Decode policies of a source, the fastest first; the last one holds nothing.

    Args:
        single: whether frames are shuffled one by one.
        gop: frames from key frame to key frame.
        clip: samples of a clip.
        halo: frames that samples of a clip share beyond their own.
        resized: whether clip readers hold resized frames.
        shuffle: False for storage order.
        lanes: per sample of a batch. With many of them runs are short, or the first batches would wait for the frames
            of later ones.
    """
    most = max(_RUNS[-1], _RUNS[0] / max(1.0, lanes))
    policies: list[tuple[int, bool, bool]] = []
    if not single:
        keep = gop > _SHORT or not shuffle
        runs = [run for run in (_OWN_RUNS if keep else _RUNS) if run <= most]
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
        of_rank = np.count_nonzero((offset >= low) & (offset < high))
        return spec.lanes if order.spec.round % order.batch_size else int(of_rank)
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


def megabytes(count: int) -> str:
    """Bytes in words: "1.5 MB"."""
    return f"{count / 1e6:.1f} MB"
