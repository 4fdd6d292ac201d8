"""Memory plan: the bytes that a loader will hold, before it makes the first batch, and how it manages with less.

Memory goes first to the indispensable (batches under way, rows, one decoder a thread), then to whole datasets that stay
decoded, then to clip readers: the state of each lane between two of its samples. Clip readers have several policies.
The first that fits, the fastest first, is taken. The samples are the same with any of them.

    short GOPs:    runs of 8 or 4 frames with shared decoders; a decoder for each lane
    middling GOPs: runs of whole GOPs with shared decoders; then as long GOPs
    long GOPs:     a decoder for each lane, with runs of 8, 4, 2 or 1
    all:           the frames that windows share; nothing

Without a run or a decoder every sample starts over at a key frame, and half a GOP is decoded for each.

An existing order is never changed. For a new one, `choose_order` compares plans of several orders.

The plan is not below the largest growth of resident memory where
`packages/understudy-data/tests/load/test_process.py` measures it, and at most 15 % above it but for plans of less than
100 MB. Batches that the
consumer keeps, other than the current one, come on top.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial

import numpy as np

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.episode_table import EpisodeTable
from understudy_data.load.images.clip_reader import DecodePolicy
from understudy_data.load.images.decoded_cache import IDLE_CURSORS, decoded_bytes
from understudy_data.load.images.disk_cache import bytes_on_disk
from understudy_data.order import Order, rank_slice
from understudy_data.video.index import WHOLE_GOP

_AHEAD = (8, 4, 2)  # batches made ahead, where memory allows: threads end their runs in turns
_SMALL = 100  # eight of them only where a batch takes less than this part of memory
_RUNS = (8, 4)  # frames of a run of shared decoders; longer ones cost memory, and no less time
_OWN_RUNS = (8, 4, 2)  # of a lane's own decoder
_MANY = 8  # lanes per sample of a batch from which on runs are short: the first batches wait for half a run of each
_SHORT = 8  # frames from key frame to key frame up to which a decoder that starts over costs little
_OWN = 9_000_000  # Python's objects for each lane, code that runs for the first time, gaps in malloc's heaps
_ROWS_HELD = 1.4  # memory of loaded columns over their bytes: Arrow keeps a part of its memory of reading
_ROWS_READ = 3.3  # memory of reading a data file, beyond that of its columns, over their bytes: levels, offsets, copies
_MAPPED_READ = _ROWS_READ + 1.0  # memory of decoding a data file that is then mapped, over the bytes of its columns
_MOST_ROWS = 4  # columns in memory are at most a quarter of it
_STORED = 2  # encoded images of rows take half of the memory that all else leaves
_READERS = 8  # data files that are decoded beside each other take at most an eighth of memory
_GAPS = 1.12  # of frames and decoders: they come and go in heaps of several threads
_INDEXES = 8  # most indexes of videos are an eighth of all memory, where it is left
_PARTS = 64  # rows of single episodes of large data files on a server take at most so small a part of memory,
_PER_PART = 3  # and footers in use and freed ones as much each
_REMOTE = 12_000_000  # code of HTTP clients, connections, bytes on their way

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
    """Bytes of the columns of each data file, of those that are in the memory of each process."""
    is_remote: bool
    decode_ms: float
    """CPU milliseconds of decoding one image of each camera in a row, by a table."""
    pixels: int
    """Of the largest image as delivered."""
    disk_images: int = 0
    """Bytes of all images of the selected episodes in a decoded cache on disk."""
    on_disk: bool = False
    """Whether there is such a cache."""
    indexes: int = 0
    """Bytes of the indexes of all videos."""
    mapped: tuple[int, ...] = ()
    """Bytes of the columns of each data file, of those that are mapped (`datasets/read/row_tables.py`)."""
    has_stored_images: bool = False
    """Whether rows hold encoded images."""

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
    segment = dataset.segments[:1]
    rows, frames = dataset.frames_to_decode(segment[:, 0], segment[:, 1])
    held, decoder, sample, resized, window, cost, pixels, indexes = [], [], 0, False, 0, 0.0, 0, 0
    for camera in frames:
        dataset.video_frames.open_ahead(camera, rows)
    for camera, numbers in frames.items():
        reader = dataset.video_frames.reader(camera, int(rows[0]))
        height, width = image_size or (reader.height, reader.width)
        image = dataset.pixels(camera).nbytes(height, width)
        sample += numbers.size * image
        window = max(window, numbers.size)
        pixels = max(pixels, height * width)
        held.append(reader.frame_bytes)
        decoder.append(reader.decoder_bytes)
        indexes += reader.index_bytes * int(dataset.catalog.videos(camera).expected.sum()) // reader.count
        cost += _MS_PER_MEGAPIXEL.get(reader.codec, 4.0) * reader.height * reader.width / 1e6
        resized = image_size is not None and image < held[-1]
        if resized:
            held[-1] = image
    for camera, size in dataset.missing_cameras.items():
        height, width = image_size or size
        sample += dataset.windows.get(camera, 1) * height * width * 3
    columns, mapped = _column_bytes(dataset)
    segments = getattr(dataset, "epoch_segments", dataset.segments)
    is_whole = segments is dataset.segments
    return SourceFacts(
        name=dataset.name,
        frames=len(dataset) if is_whole else int((segments[:, 2] - segments[:, 1]).sum()),
        gop=dataset.gop,
        reach=dataset.reach,
        window=window,
        frame=tuple(held),
        decoder=tuple(decoder),
        resized=resized,
        sample=sample,
        all_images=decoded_bytes(dataset, image_size) if frames else 0,
        columns=columns,
        mapped=mapped,
        has_stored_images=bool(dataset.image_keys),
        is_remote=not dataset.catalog.files.is_local,
        decode_ms=cost,
        pixels=pixels,
        disk_images=bytes_on_disk(dataset, image_size) if frames else 0,
        on_disk=on_disk,
        indexes=indexes,
    )


def resized(facts: SourceFacts, side: int) -> SourceFacts:
    """Facts of a dataset whose images are resized to squares, where they are larger."""
    if facts.pixels <= side**2:
        return facts
    share = side**2 / facts.pixels
    frame = tuple(min(held, 3 * side**2) for held in facts.frame)
    sample, images, disk = (int(share * size) for size in (facts.sample, facts.all_images, facts.disk_images))
    return replace(facts, frame=frame, resized=True, pixels=side**2, sample=sample, all_images=images, disk_images=disk)


def in_memory(facts: SourceFacts) -> SourceFacts:
    """Facts of a dataset whose columns are in the memory of each process, because this host has no place for files."""
    return replace(facts, columns=facts.columns + facts.mapped, mapped=())


def _column_bytes(dataset: EpisodeDataset) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of the columns of each data file of selected episodes: those in memory, and those that are mapped.

    The division follows from sizes alone: every rank and every machine must choose the same order.
    """
    episodes, tables = dataset.catalog.episodes, dataset.row_tables
    count = partial(_rows_of_files, episodes, dataset.episodes)
    files = dataset.share(count, episodes.ids, episodes.data_file, episodes.lengths, dataset.episodes)
    sizes = [count * tables.row_bytes for count in files.tolist()]
    columns = tuple(size for size in sizes if not tables.is_large(size))
    return columns, tuple(size for size in sizes if tables.is_large(size))


def _rows_of_files(table: EpisodeTable, episodes: np.ndarray) -> np.ndarray:
    """Rows of each data file of these episodes, int64 (F,)."""
    is_used = np.zeros(len(table.data), bool)
    is_used[table.data_file[table.rows_of(episodes)]] = True
    return np.bincount(table.data_file, table.lengths, len(is_used)).astype(np.int64)[is_used]


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
    indexes: tuple[int, ...]
    """Of each source: bytes for the indexes of videos that stay open (`VideoFrames.keep_open`)."""
    notes: tuple[str, ...]
    """Remarks for the user, one sentence each."""
    rows: tuple[int, ...] = ()
    """Of each source: bytes for columns in the memory of the process."""
    readers: int = 1
    """Data files that are decoded at the same time, to be mapped."""
    stored_images: int = 0
    """Of each source: bytes for encoded images that are stored in rows."""
    row_parts: int = 0
    """Of each source: bytes for columns of single episodes of data files on a server (`datasets/read/rows.py`)."""

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
    is_permuted: bool
    """Whether a clip's samples come in a random order, so that most of its frames wait at once."""
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
        to. Each thread has two more decoders of finished clips: one with its place in a file and one to hand on.
        Shared decoders, one a thread, keep the memory of the most frames that the readers ever held: half a run each,
        for they take turns (`load/images/clip_reader.py`) and on the way to a key frame. In both cases frames wait for
        conversion, a batch's at most. Whole GOPs take turns by chance: three standard deviations of their number. So do
        runs as long as clips, which also end with their clip; their remainder is smaller in the mean.

        In a permuted clip of S frames, k samples need the frames up to about S k / (k + 1). So at most about S - 2
        sqrt(S) of them wait at once, and half a clip in the mean.
        """
        if policy.run_length == 0:
            return 0
        run, lanes = policy.run_length, self.lanes or threads
        decoders = _GAPS * (lanes + 2 * threads) if policy.keep_decoder else 0.0
        waiting = min(lanes, self.together)
        if policy.keep_decoder:
            permuted = lanes * (self.clip - 2 * self.clip**0.5) if self.is_permuted else 0.0
            frames = max(permuted, decoders * (run - min(2, run - 1))) + waiting
        elif self.is_permuted:
            held = self.clip * (lanes / 2 + (3 * lanes / 4) ** 0.5)  # three standard deviations above the mean
            frames = _GAPS * min(held + waiting, lanes * self.clip)
        elif run > 1:
            half, thrice = run / 2, 3 * (lanes * threads) ** 0.5
            if policy.whole_gops:
                held = lanes * half + thrice * run / 12**0.5
            else:  # of the lesser of two evenly spread numbers, below the run and below the clip
                part = run / max(run, self.clip)
                mean = half - run * part / 6
                deviation = (run**2 * (1 / 3 - part / 6) - mean**2) ** 0.5
                held = min(lanes * half, lanes * mean + thrice * deviation)
            frames = _GAPS * min(held + waiting, lanes * run)
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


@dataclass(frozen=True)
class _RankNeeds:
    """Everything that one rank holds."""

    sources: tuple[_SourceNeeds, ...]
    samples: int
    """In a batch of this rank."""
    rows: int
    """Bytes of columns."""

    @cached_property
    def batch(self) -> int:
        """Bytes of the images of a batch."""
        return self.samples * max((source.facts.sample for source in self.sources), default=0)

    @cached_property
    def decoder(self) -> int:
        """Bytes of the largest decoder of a thread."""
        facts = [source.facts for source in self.sources]
        halos = [source.halo for source in self.sources]
        return max((sum(f.decoder) + sum(f.frame) * (1 + halo) for f, halo in zip(facts, halos)), default=0)

    def fixed(self, ahead: int, threads: int) -> list[Item]:
        """Items that nothing can do without: `ahead` batches made, one under way, and one at the consumer."""
        return [
            Item("batches", (ahead + 2) * self.batch, f"{ahead + 2} of {self.samples} samples, {ahead} ahead"),
            Item("rows", self.rows, "columns of the data files in use, and the reading of one"),
            Item("decoders", threads * self.decoder, f"one for each of {threads} threads"),
        ]

    def fixed_bytes(self, ahead: int, threads: int) -> int:
        """Sum of the fixed items."""
        return sum(item.bytes for item in self.fixed(ahead, threads))

    def least(self, threads: int) -> int:
        """Bytes with no batch ahead and the slowest policies."""
        readers = sum(source.reader_bytes(source.policies[-1], threads) for source in self.sources)
        return self.fixed_bytes(0, threads) + readers

    def keep_decoded(self, spare: int, threads: int) -> tuple[bool, ...]:
        """Of each source: whether all its images stay decoded, in `spare` bytes above the least."""
        keeps = []
        for source in self.sources:
            needed = source.cached - source.reader_bytes(source.policies[-1], threads)
            keeps.append(source.facts.all_images > 0 and needed <= spare)
            spare -= needed if keeps[-1] else 0
        return tuple(keeps)


def plan_memory(
    facts: Sequence[SourceFacts],
    order: Order,
    *,
    rank: int,
    world_size: int,
    num_threads: int,
    memory: int,
) -> MemoryPlan:
    """Make the plan of one rank.

    Args:
        facts: facts about the order's datasets.
        order: sequence of samples.
        rank: number of this process.
        world_size: number of processes.
        num_threads: threads that may make batches; fewer are used where memory is too small for them.
        memory: bytes.

    Raises:
        ValueError: not even one batch fits; names the least memory that does.
    """
    low, high = rank_slice(order.batch_size, rank, world_size)
    in_rounds: dict[int, np.ndarray] = {}
    sources = tuple(_needs(source, order, d, low, high, in_rounds) for d, source in enumerate(facts))
    largest = sum(max(source.columns, default=0) for source in facts)
    needs, notes = _RankNeeds(sources, high - low, largest), []
    threads = num_threads if any(source.sample for source in facts) else 1  # Python reads rows one thread at a time
    if needs.least(1) > memory:
        raise ValueError(
            f"memory {memory}: one batch of {high - low} samples and the work on it need {needs.least(1)} bytes; give "
            "as much, or make the batch or its images smaller"
        )
    if needs.least(threads) > memory:
        notes.append(f"one thread instead of {threads}: memory allows no more")
        threads = 1
    kept = _rows_in_memory(facts, min(memory // _MOST_ROWS, largest + memory - needs.least(threads)))
    rows = sum(kept)
    needs = replace(needs, rows=rows)
    largest_mapped = max((size for source in facts for size in source.mapped), default=0)
    readers = max(1, min(num_threads, memory // _READERS // max(1, int(_MAPPED_READ * largest_mapped))))
    reading = int(_ROWS_READ * max((size for source in facts for size in source.columns), default=0))
    reading = max(reading, int(readers * _MAPPED_READ * largest_mapped))
    files = sum(len(source.columns) + len(source.mapped) for source in facts)
    single_file = files == 1  # read before there is anything else
    held = int((_ROWS_HELD - 1) * rows) + (0 if single_file else reading)
    held = min(held, memory // 10, memory - needs.least(threads))  # a small budget may be off by a tenth
    needs = replace(needs, rows=rows + held)
    in_parts = sum(source.is_remote and bool(source.mapped) for source in facts)
    parts = memory // _PARTS // max(1, in_parts)
    remote = _REMOTE + _PER_PART * parts * in_parts if any(source.is_remote for source in facts) else 0
    spare = memory - needs.least(threads)
    overhead = min(_OWN + remote, memory // 10 - held, spare)
    keeps = needs.keep_decoded(spare - overhead, threads)
    for_readers = memory - overhead - sum(source.cached for source, keep in zip(sources, keeps) if keep)
    ahead, level = _choose_level(needs, keeps, for_readers, threads, memory)
    items = needs.fixed(ahead, threads)
    items.append(
        Item(
            "other", overhead, "indices of files, code, connections, rows of single episodes, footers, gaps in the heap"
        )
    )
    for d, (source, keep) in enumerate(zip(sources, keeps)):
        items += _source_items(source, keep, source.policy(level), threads)
        notes += _source_notes(source, keep, source.policy(level), threads, order.spec.sources[d].name)
    indexes = tuple(0 if keep else source.facts.indexes for source, keep in zip(sources, keeps))
    for_indexes = min(memory // _INDEXES, memory - sum(item.bytes for item in items))
    if (most := sum(indexes)) > for_indexes:
        indexes = tuple(size * for_indexes // most for size in indexes)
    if any(indexes):
        items.append(Item("indexes", sum(indexes), "of videos that stay open"))
    with_images = sum(source.has_stored_images for source in facts)
    stored_images = (memory - sum(item.bytes for item in items)) // _STORED // max(1, with_images)
    if with_images:
        items.append(
            Item("encoded images", stored_images * with_images, "row groups of images that are stored in rows")
        )
    total = sum(item.bytes for item in items)
    if single_file and total - needs.rows < reading and total < memory:
        extra = min(needs.rows + reading, memory) - total
        items.append(Item("reading", extra, "of the data file at the start, more than the items above but rows"))
    if ahead < _AHEAD[-1]:
        notes.append(f"{ahead} batches ahead: memory allows no more")
    policies = tuple(source.policy(level) for source in sources)
    on_host = sum(sum(source.mapped) for source in facts)
    if on_host:
        notes.append(f"{megabytes(on_host)} of columns are mapped, once per host; the kernel drops them at need")
    return MemoryPlan(
        memory,
        tuple(items),
        threads,
        ahead,
        keeps,
        policies,
        indexes,
        tuple(notes),
        kept,
        readers,
        stored_images,
        parts,
    )


def _rows_in_memory(facts: Sequence[SourceFacts], most: int) -> tuple[int, ...]:
    """Of each source: bytes for columns in the memory of the process: all, or a share, and at least one data file."""
    sizes = [sum(source.columns) for source in facts]
    largest = [max(source.columns, default=0) for source in facts]
    beyond = sum(sizes) - sum(largest)
    share = min(1.0, max(0, most - sum(largest)) / max(1, beyond))
    return tuple(one + int((size - one) * share) for size, one in zip(sizes, largest))


def _source_items(source: _SourceNeeds, keep: bool, policy: DecodePolicy, threads: int) -> list[Item]:
    name = source.facts.name
    if keep and source.facts.on_disk:
        return [Item(f"decoders of {name}", source.cached, "of images that are not yet in the cache on disk")]
    if keep:
        return [Item(f"images of {name}", source.cached, "all of them, once they have been decoded")]
    if source.facts.sample:
        return [Item(f"clip readers of {name}", source.reader_bytes(policy, threads), source.describe(policy))]
    return []


def _source_notes(source: _SourceNeeds, keep: bool, policy: DecodePolicy, threads: int, name: str) -> list[str]:
    if keep or not source.facts.sample:
        return []
    notes, best = [], source.policies[0]
    best_bytes = megabytes(source.reader_bytes(best, threads))
    if source.facts.on_disk:
        needed = megabytes(source.cached)
        notes.append(f"{source.facts.name}: no decoded cache; its decoders need {needed} of memory")
    if policy != best:
        notes.append(
            f"{name}: {source.describe(best)} would take {best_bytes} and be faster; the samples and their order are "
            "the same"
        )
    return notes


def _choose_level(needs: _RankNeeds, keeps: Sequence[bool], spare: int, threads: int, memory: int) -> tuple[int, int]:
    """The fastest that fits `spare` bytes: (batches ahead, index of each source's policy)."""
    read = [source for source, keep in zip(needs.sources, keeps) if not keep and source.facts.sample]
    levels = max((len(source.policies) for source in read), default=1)
    aheads = _AHEAD if needs.batch * _SMALL <= memory else _AHEAD[1:]

    readers = 0
    for level in range(levels):
        readers = sum(source.reader_bytes(source.policy(level), threads) for source in read)
        for ahead in aheads:
            if needs.fixed_bytes(ahead, threads) + readers <= spare:
                return ahead, level
    return int(needs.fixed_bytes(1, threads) + readers <= spare), levels - 1


def _needs(
    facts: SourceFacts, order: Order, d: int, low: int, high: int, in_rounds: dict[int, np.ndarray]
) -> _SourceNeeds:
    spec = order.spec.sources[d]
    single = spec.clip == 1 and spec.shuffle
    halo = min(facts.halo, facts.window * spec.clip)
    gop = facts.gop if facts.frame else 1
    lanes = _lanes_of_rank(order, d, low, high, in_rounds) if spec.shuffle and not single else 0
    together = _samples_in_batch(order, d, high - low)
    return _SourceNeeds(
        facts,
        lanes,
        together,
        spec.clip if spec.shuffle else spec.frames,
        halo,
        spec.inside == "permuted" and lanes > 0,
        rank_policies(single, gop, spec.clip, halo, facts.resized, spec.shuffle, lanes / max(1, together)),
    )


@lru_cache(maxsize=1024)  # thousands of sources have few kinds
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
    most = _RUNS[0] if lanes < _MANY else _RUNS[-1]
    policies: list[tuple[int, bool, bool]] = []
    if not single:
        keep = gop > _SHORT or not shuffle
        runs = _OWN_RUNS if keep else tuple(run for run in _RUNS if run >= gop)
        runs = tuple(run for run in runs if run <= most) or runs[-1:]
        runs = tuple(run for run in runs if run <= clip or not shuffle) or runs[-1:]  # in storage order all is one clip
        whole = [(gop, False, True)] if keep and gop <= WHOLE_GOP and shuffle else []
        policies = [*whole, *((run, keep, False) for run in runs), (1, True, False)]
    policies += [(1, False, False)] if halo and not single else []
    return tuple(DecodePolicy(run, keep, whole, resized) for run, keep, whole in [*policies, (0, False, False)])


def _lanes_of_rank(order: Order, d: int, low: int, high: int, in_rounds: dict[int, np.ndarray]) -> int:
    """Lanes of a source that come up on a rank: its share where each lane keeps to one offset in the batch.

    `in_rounds` keeps, by the length of a round, the lanes of each source: thousands of sources have few lengths.
    """
    spec, last = order.spec.sources[d], order.spec.schedule[-1]
    slots = last.slots
    if d >= len(slots) or not slots[d]:  # it has left the mixture
        return 0
    if (places := order.lane_slots(d)) is not None:
        offset = places % order.batch_size
        of_rank = np.count_nonzero((offset >= low) & (offset < high))
        return spec.lanes if order.spec.round % order.batch_size else int(of_rank)
    round_ = -(-spec.lanes * last.total // slots[d])
    if round_ % order.batch_size:
        return spec.lanes
    if round_ not in in_rounds:
        positions = np.arange(last.position, last.position + round_)
        offset = (positions - last.position) % order.batch_size
        taken = order.lanes(positions[(offset >= low) & (offset < high)])
        in_rounds[round_] = np.bincount(np.unique(np.stack([*taken]), axis=1)[0], minlength=len(slots))
    return int(in_rounds[round_][d])


def _samples_in_batch(order: Order, d: int, share: int) -> int:
    """Samples of a source in a rank's batch, rounded up."""
    last = order.spec.schedule[-1]
    return -(-share * last.slots[d] // last.total) if d < len(last.slots) else 0


def megabytes(count: int) -> str:
    """Bytes in words: "1.5 MB"."""
    return f"{count / 1e6:.1f} MB"
