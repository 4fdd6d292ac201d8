"""Memory plan: the bytes that a loader will hold, before it makes the first batch, and how it
manages with less.

Memory goes first to the indispensable (batches under way, rows, one decoder a thread), then to
whole datasets that stay decoded, then to clip readers: the state of each lane between two of its
samples. Clip readers have several policies. The first that fits, the fastest first, is taken. The
samples are the same with any of them.

    short GOPs:    runs of 8 or 4 frames with shared decoders; a decoder for each lane
    middling GOPs: runs of whole GOPs with shared decoders; then as long GOPs
    long GOPs:     a decoder for each lane, with runs of 8, 4, 2 or 1
    all:           the frames that windows share; nothing

Without a run or a decoder every sample starts over at a key frame, and half a GOP is decoded for
each.

An existing order is never changed. For a new one, `choose_order` compares plans of several orders.

The plan is not below the largest growth of resident memory where
`packages/understudy-data/tests/load/test_process.py` measures it, and at most 15 % above it but for
plans of less than 100 MB. Batches that the consumer keeps, other than the current one, come on top.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import compress

import numpy as np

from understudy_data.load.images.clip_reader import DecodePolicy
from understudy_data.load.images.decoded_cache import IDLE_CURSORS
from understudy_data.load.images.source_facts import (
    FactGroups,
    SourceFacts,
    count_numbers,
    group_facts,
)
from understudy_data.order import Order, rank_slice
from understudy_data.order.frame_numbering import Ints
from understudy_data.order.make_spec import Settings, number_equal
from understudy_data.order.random import Words
from understudy_data.order.shared_slots import count_lanes_within
from understudy_data.order.shares import make_period
from understudy_data.order.spec import EXACT_VERSION, UNIT, SourceSpec
from understudy_data.video.index import WHOLE_GOP

_AHEAD = (8, 4, 2)  # batches made ahead, where memory allows: threads end their runs in turns
_SMALL = 100  # eight of them only where a batch takes less than this part of memory
_RUNS = (8, 4)  # frames of a run of shared decoders; longer ones cost memory, and no less time
_OWN_RUNS = (8, 4, 2)  # of a lane's own decoder
# lanes per sample of a batch from which on runs are short: the first batches wait for half a run of
# each
_MANY = 8
_SHORT = 8  # frames from key frame to key frame up to which a decoder that starts over costs little
# Python's objects for each lane, code that runs for the first time, gaps in malloc's heaps
_OWN = 9_000_000
# memory of loaded columns over their bytes: Arrow keeps a part of its memory of reading
_ROWS_HELD = 1.4
# memory of reading a data file, beyond that of its columns, over their bytes: levels, offsets,
# copies
_ROWS_READ = 3.3
# memory of decoding a data file that is then mapped, over the bytes of its columns
_MAPPED_READ = _ROWS_READ + 1.0
_MOST_ROWS = 4  # columns in memory are at most a quarter of it
_STORED = 2  # encoded images of rows take half of the memory that all else leaves
_READERS = 8  # data files that are decoded beside each other take at most an eighth of memory
_GAPS = 1.12  # of frames and decoders: they come and go in heaps of several threads
_INDEXES = 8  # most indexes of videos are an eighth of all memory, where it is left
# rows of single episodes of large data files on a server take at most so small a part of memory,
_PARTS = 64
_PER_PART = 3  # and footers in use and freed ones as much each
_REMOTE = 12_000_000  # code of HTTP clients, connections, bytes on their way


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
    """Of each source: bytes for columns of single episodes of data files on a server
    (`datasets/read/rows.py`).
    """

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
    spec: SourceSpec
    """Its part of the order."""
    slots: int
    """In a round of the mixture."""

    @property
    def cached(self) -> int:
        """Bytes of the decoded cache of all its images. Of one on disk only the decoders are in
        memory.
        """
        images = 0 if self.facts.on_disk else self.facts.all_images
        return images + IDLE_CURSORS * max(self.facts.decoder, default=0)

    def reader_bytes(self, policy: DecodePolicy, threads: int) -> int:
        """Bytes that its clip readers hold.

        A lane's own decoder keeps the memory of all frames that it ever returned at once, including
        two that it refers to. Each thread has two more decoders of finished clips: one with its
        place in a file and one to hand on. Shared decoders, one a thread, keep the memory of the
        most frames that the readers ever held: half a run each, for they take turns
        (`load/images/clip_reader.py`) and on the way to a key frame. In both cases frames wait for
        conversion, a batch's at most. Whole GOPs take turns by chance: three standard deviations of
        their number. So do runs as long as clips, which also end with their clip; their remainder
        is smaller in the mean.

        In a permuted clip of S frames, k samples need the frames up to about S k / (k + 1). So at
        most about S - 2 sqrt(S) of them wait at once, and half a clip in the mean.
        """
        if policy.run_length == 0:
            return 0
        run = policy.run_length
        lanes = self.lanes or threads
        decoders = _GAPS * (lanes + 2 * threads) if policy.keep_decoder else 0.0
        waiting = min(lanes, self.together)
        if policy.keep_decoder:
            permuted = lanes * (self.clip - 2 * self.clip**0.5) if self.is_permuted else 0.0
            frames = max(permuted, decoders * (run - min(2, run - 1))) + waiting
        elif self.is_permuted:
            # three standard deviations above the mean
            held = self.clip * (lanes / 2 + (3 * lanes / 4) ** 0.5)
            frames = _GAPS * min(held + waiting, lanes * self.clip)
        elif run > 1:
            half = run / 2
            thrice = 3 * (lanes * threads) ** 0.5
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
        gaps = 1.0 if policy.keep_decoder else _GAPS
        halo = gaps * lanes * self.halo
        return int(sum(self.facts.frame) * (frames + halo) + decoders * sum(self.facts.decoder))

    def policy(self, level: int) -> DecodePolicy:
        """The policy of a level, or the last one."""
        return self.policies[min(level, len(self.policies) - 1)]

    def describe(self, policy: DecodePolicy) -> str:
        """A policy in words."""
        parts = [f"runs of {policy.run_length} frames"] if policy.run_length > 1 else []
        if policy.keep_decoder:
            parts.append("a decoder each")
        if self.halo and policy.run_length:
            parts.append("the frames that windows share")
        held = " and ".join(parts) or "nothing held between two samples"
        lanes = f"{self.lanes} lanes" if self.lanes else "one clip a thread"
        return f"{lanes}, {held}"


@dataclass(frozen=True)
class RankNeeds:
    """Everything that one rank reads in an order, for any memory. Sources that are alike are
    counted.
    """

    facts: FactGroups
    sources: tuple[_SourceNeeds, ...]
    """Distinct ones."""
    number_of: tuple[int, ...]
    """Number of the needs of each source of the order."""
    samples: int
    """In a batch of this rank."""

    @cached_property
    def counts(self) -> list[int]:
        """Sources of each number."""
        return count_numbers(self.number_of, len(self.sources))

    @cached_property
    def batch(self) -> int:
        """Bytes of the images of a batch."""
        return self.samples * self.facts.most(lambda source: source.sample)

    @cached_property
    def decoder(self) -> int:
        """Bytes of the largest decoder of a thread."""
        needs = self.sources
        return max(
            (sum(n.facts.decoder) + sum(n.facts.frame) * (1 + n.halo) for n in needs), default=0
        )

    @cached_property
    def largest_rows(self) -> int:
        """Bytes of the columns of one data file of each source."""
        return self.facts.sum(lambda source: max(source.columns, default=0))

    @cached_property
    def images(self) -> list[int | None]:
        """Per number, bytes of a source that stays decoded, above the least; None without video."""
        images = []
        for source in self.sources:
            cached = source.cached if source.facts.all_images > 0 else None
            images.append(cached)
        return images

    def fixed(self, ahead: int, threads: int, rows: int) -> list[Item]:
        """Items that nothing can do without: `ahead` batches made, one under way, and one at the
        consumer.
        """
        return [
            Item(
                "batches",
                (ahead + 2) * self.batch,
                f"{ahead + 2} of {self.samples} samples, {ahead} ahead",
            ),
            Item("rows", rows, "columns of the data files in use, and the reading of one"),
            Item("decoders", threads * self.decoder, f"one for each of {threads} threads"),
        ]

    def fixed_bytes(self, ahead: int, threads: int, rows: int) -> int:
        """Sum of the fixed items."""
        return (ahead + 2) * self.batch + rows + threads * self.decoder

    def least(self, threads: int, rows: int) -> int:
        """Bytes with no batch ahead and the slowest policies, which hold nothing."""
        return self.fixed_bytes(0, threads, rows)

    def keep_decoded(self, spare: int) -> tuple[bool, ...]:
        """Of each source: whether all its images stay decoded, in `spare` bytes above the least."""
        keeps = []
        for number in self.number_of:
            needed = self.images[number]
            keeps.append(needed is not None and needed <= spare)
            if keeps[-1] and needed is not None:
                spare -= needed
        return tuple(keeps)

    @cached_property
    def _reader_bytes(self) -> dict[tuple[int, int], list[int]]:
        return {}

    def reader_bytes(self, level: int, threads: int) -> list[int]:
        """Per number, bytes that the clip readers of a source hold by the policy of a level."""
        sizes = self._reader_bytes.get((level, threads))
        if sizes is None:
            sizes = [source.reader_bytes(source.policy(level), threads) for source in self.sources]
            self._reader_bytes[level, threads] = sizes
        return sizes


@dataclass(frozen=True)
class Division:
    """A memory, divided among everything that a rank holds: a plan before it is put in words."""

    needs: RankNeeds
    memory: int
    num_threads: int
    """Threads that are used."""
    notes: tuple[str, ...]
    """As in `MemoryPlan`, of the threads."""
    keeps_decoded: tuple[bool, ...]
    """As in `MemoryPlan`."""
    batches_ahead: int
    level: int
    """Of the policies of sources that do not stay decoded."""
    rows: Sequence[int]
    """Per kind of facts: bytes for columns in the memory of the process."""
    all_rows: int
    """Bytes of these columns, and of reading others."""
    readers: int
    """As in `MemoryPlan`."""
    reading: int
    """Bytes of reading a data file."""
    row_parts: int
    """As in `MemoryPlan`."""
    overhead: int
    """Bytes of all that is not planned in detail."""


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
        num_threads: threads that may make batches; fewer are used where memory is too small for
            them.
        memory: bytes.

    Raises:
        ValueError: not even one batch fits; names the least memory that does.
    """
    needs = needs_of_order(group_facts(facts), order, rank=rank, world_size=world_size)
    names = [source.name for source in order.spec.sources]
    return describe_plan(divide_memory(needs, num_threads=num_threads, memory=memory), names)


def divide_memory(needs: RankNeeds, *, num_threads: int, memory: int) -> Division:
    """Divide the memory of a rank; otherwise as `plan_memory`."""
    facts = needs.facts
    largest = needs.largest_rows
    has_images = facts.most(lambda source: source.sample) > 0
    threads = num_threads if has_images else 1  # Python reads rows one thread at a time
    if needs.least(1, largest) > memory:
        raise ValueError(
            f"memory {memory}: one batch of {needs.samples} samples and the work on it need "
            f"{needs.least(1, largest)} bytes; give as much, or make the batch or its images "
            "smaller"
        )
    notes: tuple[str, ...] = ()
    if needs.least(threads, largest) > memory:
        notes = (f"one thread instead of {threads}: memory allows no more",)
        threads = 1
    kept = _rows_in_memory(
        facts, min(memory // _MOST_ROWS, largest + memory - needs.least(threads, largest))
    )
    rows = sum(count * size for count, size in zip(facts.counts, kept))
    largest_mapped = facts.most(lambda source: max(source.mapped, default=0))
    readers = max(
        1, min(num_threads, memory // _READERS // max(1, int(_MAPPED_READ * largest_mapped)))
    )
    reading = int(_ROWS_READ * facts.most(lambda source: max(source.columns, default=0)))
    reading = max(reading, int(readers * _MAPPED_READ * largest_mapped))
    held = int((_ROWS_HELD - 1) * rows)
    if not _has_single_file(facts):
        held += reading
    # a small budget may be off by a tenth
    held = min(held, memory // 10, memory - needs.least(threads, rows))
    rows += held
    in_parts = facts.sum(lambda source: source.is_remote and bool(source.mapped))
    parts = memory // _PARTS // max(1, in_parts)
    is_remote = any(source.is_remote for source in facts.kinds)
    remote = _REMOTE + _PER_PART * parts * in_parts if is_remote else 0
    spare = memory - needs.least(threads, rows)
    overhead = min(_OWN + remote, memory // 10 - held, spare)
    keeps = needs.keep_decoded(spare - overhead)
    ahead, level = _choose_level(needs, keeps, memory - overhead, threads, rows, memory)
    return Division(
        needs,
        memory,
        threads,
        notes,
        keeps,
        ahead,
        level,
        kept,
        rows,
        readers,
        reading,
        parts,
        overhead,
    )


def describe_plan(division: Division, names: Sequence[str]) -> MemoryPlan:
    """Put a division of memory in words; `names` are those of the sources in the order."""
    needs = division.needs
    memory = division.memory
    threads = division.num_threads
    facts = needs.facts
    keeps = division.keeps_decoded
    ahead = division.batches_ahead
    policies = [source.policy(division.level) for source in needs.sources]
    items = [
        *needs.fixed(ahead, threads, division.all_rows),
        Item(
            "other",
            division.overhead,
            "indices of files, code, connections, rows of single episodes, footers, gaps in the "
            "heap",
        ),
    ]
    notes = [*division.notes]
    words = {
        pair: _source_words(needs.sources[pair[0]], policies[pair[0]], pair[1], threads)
        for pair in set(zip(needs.number_of, keeps))
    }
    for pair, name, name_in_order in zip(zip(needs.number_of, keeps), facts.names, names):
        item, of_cache, of_policy = words[pair]
        if item is not None:
            items.append(Item(f"{item.name} {name}", item.bytes, item.why))
        if of_cache:
            notes.append(f"{name}: {of_cache}")
        if of_policy:
            notes.append(f"{name_in_order}: {of_policy}")
    total = sum(item.bytes for item in items)
    indexes = _index_bytes(needs, keeps, min(memory // _INDEXES, memory - total))
    if any(indexes):
        items.append(Item("indexes", sum(indexes), "of videos that stay open"))
        total += items[-1].bytes
    with_images = facts.sum(lambda source: source.has_stored_images)
    stored_images = (memory - total) // _STORED // max(1, with_images)
    if with_images:
        items.append(
            Item(
                "encoded images",
                stored_images * with_images,
                "row groups of images that are stored in rows",
            )
        )
        total += items[-1].bytes
    rows = division.all_rows
    reading = division.reading
    if _has_single_file(facts) and total - rows < reading and total < memory:
        extra = min(rows + reading, memory) - total
        items.append(
            Item(
                "reading",
                extra,
                "of the data file at the start, more than the items above but rows",
            )
        )
    if ahead < _AHEAD[-1]:
        notes.append(f"{ahead} batches ahead: memory allows no more")
    on_host = facts.sum(lambda source: sum(source.mapped))
    if on_host:
        notes.append(
            f"{megabytes(on_host)} of columns are mapped, once per host; the kernel drops them at "
            "need"
        )
    return MemoryPlan(
        memory,
        tuple(items),
        threads,
        ahead,
        keeps,
        tuple(map(policies.__getitem__, needs.number_of)),
        indexes,
        tuple(notes),
        facts.each(division.rows),
        division.readers,
        stored_images,
        division.row_parts,
    )


def _index_bytes(needs: RankNeeds, keeps: Sequence[bool], most: int) -> tuple[int, ...]:
    """Bytes for the indexes of the open videos of each source, `most` in all; a source that is kept
    decoded has none.
    """
    sizes = []
    for number, keep in zip(needs.number_of, keeps):
        size = 0 if keep else needs.sources[number].facts.indexes
        sizes.append(size)
    total = sum(sizes)
    if total > most:
        sizes = [size * most // total for size in sizes]
    return tuple(sizes)


def _rows_in_memory(facts: FactGroups, most: int) -> list[int]:
    """Per kind: bytes for columns in the memory of the process: all, or a share, and at least one
    data file.
    """
    largest = facts.sum(lambda source: max(source.columns, default=0))
    beyond = facts.sum(lambda source: sum(source.columns)) - largest
    share = min(1.0, max(0, most - largest) / max(1, beyond))
    rows = []
    for source in facts.kinds:
        largest_file = max(source.columns, default=0)
        rows.append(largest_file + int((sum(source.columns) - largest_file) * share))
    return rows


def _has_single_file(facts: FactGroups) -> bool:
    """Whether there is a single data file, which is read before there is anything else."""
    return facts.sum(lambda source: len(source.columns) + len(source.mapped)) == 1


def _source_words(
    source: _SourceNeeds, policy: DecodePolicy, keep: bool, threads: int
) -> tuple[Item | None, str, str]:
    """Item of a source, and its notes on the decoded cache and on the policy: all without its
    name.
    """
    if keep and source.facts.on_disk:
        return (
            Item("decoders of", source.cached, "of images that are not yet in the cache on disk"),
            "",
            "",
        )
    if keep:
        return Item("images of", source.cached, "all of them, once they have been decoded"), "", ""
    if not source.facts.sample:
        return None, "", ""
    item = Item("clip readers of", source.reader_bytes(policy, threads), source.describe(policy))
    of_cache = ""
    of_policy = ""
    best = source.policies[0]
    if source.facts.on_disk:
        of_cache = f"no decoded cache; its decoders need {megabytes(source.cached)} of memory"
    if policy != best:
        best_bytes = megabytes(source.reader_bytes(best, threads))
        of_policy = (
            f"{source.describe(best)} would take {best_bytes} and be faster; the samples "
            "and their order are the same"
        )
    return item, of_cache, of_policy


def _choose_level(
    needs: RankNeeds, keeps: Sequence[bool], spare: int, threads: int, rows: int, memory: int
) -> tuple[int, int]:
    """The fastest that fits `spare` bytes: (batches ahead, level of the policies)."""
    kept = count_numbers(list(compress(needs.number_of, keeps)), len(needs.sources))
    spare -= sum(count * source.cached for count, source in zip(kept, needs.sources) if count)
    read = [
        (number, count - of_kept)
        for number, (source, count, of_kept) in enumerate(zip(needs.sources, needs.counts, kept))
        if count > of_kept and source.facts.sample
    ]
    levels = max((len(needs.sources[number].policies) for number, _ in read), default=1)
    aheads = _AHEAD if needs.batch * _SMALL <= memory else _AHEAD[1:]
    readers = 0
    for level in range(levels):
        sizes = needs.reader_bytes(level, threads)
        readers = sum(count * sizes[number] for number, count in read)
        for ahead in aheads:
            if needs.fixed_bytes(ahead, threads, rows) + readers <= spare:
                return ahead, level
    return int(needs.fixed_bytes(1, threads, rows) + readers <= spare), levels - 1


def needs_of_order(facts: FactGroups, order: Order, *, rank: int, world_size: int) -> RankNeeds:
    """What a rank reads in an existing order, at the end of its schedule."""
    last = order.spec.schedule[-1]
    sources = order.spec.sources
    # the others have left the mixture
    slots = (*last.slots, *[0] * (len(sources) - len(last.slots)))
    part_of, firsts = number_equal(
        (part.frames, part.clip, part.lanes, part.shuffle, part.inside, part.cut, count)
        for part, count in zip(sources, slots)
    )
    parts = tuple(sources[d] for d in firsts)
    settings = Settings(parts, ((),) * len(parts), tuple(part_of), slots, order.spec.version)

    def streams(positions: Words) -> tuple[Ints, Words]:
        return order.streams(positions + np.uint64(last.position))

    return needs_of_rank(
        facts, settings, order.batch_size, rank=rank, world_size=world_size, streams=streams
    )


def needs_of_rank(
    facts: FactGroups,
    settings: Settings,
    batch_size: int,
    *,
    rank: int,
    world_size: int,
    streams: Callable[[Words], tuple[Ints, Words]] | None = None,
) -> RankNeeds:
    """What a rank reads in an order.

    Args:
        facts: of the sources of the order.
        settings: of the sources of the order.
        batch_size: samples of a global batch.
        rank: number of the process.
        world_size: number of processes.
        streams: source, and index in its stream, of positions behind the begin of the last entry of
            the schedule; by default of a new order.
    """
    low, high = rank_slice(batch_size, rank, world_size)
    lanes = _lanes_of_rank(settings, batch_size, low, high, streams)
    number_of, firsts = number_equal(zip(facts.kind_of, settings.part_of, lanes))
    total = sum(settings.slots)
    sources = []
    for d in firsts:
        part = settings.parts[settings.part_of[d]]
        count = settings.slots[d]
        together = -(-(high - low) * count // total)
        sources.append(_needs(facts.kinds[facts.kind_of[d]], part, count, lanes[d], together))
    return RankNeeds(facts, tuple(sources), tuple(number_of), high - low)


def _needs(
    facts: SourceFacts, spec: SourceSpec, slots: int, lanes: int, together: int
) -> _SourceNeeds:
    single = spec.clip == 1 and spec.shuffle
    halo = min(facts.halo, facts.window * spec.clip)
    gop = facts.gop if facts.frame else 1
    clip = spec.clip if spec.shuffle else spec.frames
    return _SourceNeeds(
        facts,
        lanes,
        together,
        clip,
        halo,
        spec.inside == "permuted" and lanes > 0,
        rank_policies(
            single, gop, spec.clip, halo, facts.resized, spec.shuffle, lanes / max(1, together)
        ),
        spec,
        slots,
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
        lanes: per sample of a batch. With many of them runs are short, or the first batches would
            wait for the frames of later ones.
    """
    most = _RUNS[0] if lanes < _MANY else _RUNS[-1]
    policies: list[tuple[int, bool, bool]] = []
    if not single:
        keep = gop > _SHORT or not shuffle
        runs = _OWN_RUNS if keep else tuple(run for run in _RUNS if run >= gop)
        runs = tuple(run for run in runs if run <= most) or runs[-1:]
        # in storage order all is one clip
        runs = tuple(run for run in runs if run <= clip or not shuffle) or runs[-1:]
        whole = [(gop, False, True)] if keep and gop <= WHOLE_GOP and shuffle else []
        policies = [*whole, *((run, keep, False) for run in runs), (1, True, False)]
    if halo and not single:
        policies.append((1, False, False))
    return tuple(
        DecodePolicy(run, keep, whole, resized)
        for run, keep, whole in [*policies, (0, False, False)]
    )


def _lanes_of_rank(
    settings: Settings,
    batch_size: int,
    low: int,
    high: int,
    streams: Callable[[Words], tuple[Ints, Words]] | None,
) -> list[int]:
    """Lanes of each source that come up at the offsets [low, high) of a batch.

    That is a rank's share of them where each lane keeps to one offset, and otherwise all. Sources
    without lanes, and those that have left the mixture, have 0.
    """
    total = sum(settings.slots)
    slots_of_part = dict(zip(settings.part_of, settings.slots))
    is_exact = settings.version == EXACT_VERSION
    lanes: list[int] = []  # of each part, where no offsets are fixed
    rounds: list[int] = []  # of each part; 0 where no offsets are fixed
    for number, part in enumerate(settings.parts):
        count = slots_of_part[number]
        in_lanes = count > 0 and part.shuffle and part.clip > 1
        round_ = total // UNIT if is_exact else -(-part.lanes * total // max(1, count))
        is_fixed = in_lanes and not round_ % batch_size
        lanes_of_part = part.lanes if in_lanes else 0
        lanes.append(lanes_of_part)
        fixed_round = round_ if is_fixed else 0
        rounds.append(fixed_round)
    by_round: dict[int, list[int]] = {}
    for round_ in set(rounds) - {0}:
        if is_exact:
            by_round[round_] = count_lanes_within(settings.slots, low, high, batch_size)
        else:
            positions = np.arange(round_, dtype=np.uint64)
            offset = positions % np.uint64(batch_size)
            positions = positions[(offset >= low) & (offset < high)]
            source, index = (streams or make_period(settings.slots).streams)(positions)
            by_round[round_] = _count_lanes(settings, source, index)
    of_sources = []
    for d, number in enumerate(settings.part_of):
        round_ = rounds[number]
        lanes_of_source = by_round[round_][d] if round_ else lanes[number]
        of_sources.append(lanes_of_source)
    return of_sources


def _count_lanes(settings: Settings, source: Ints, index: Words) -> list[int]:
    """Lanes of each source that hold these samples."""
    frames = np.array([part.frames for part in settings.parts], np.uint64)
    lanes = np.array([part.lanes for part in settings.parts], np.uint64)
    part_of = np.array(settings.part_of)
    part = part_of[source]
    first = np.cumsum(lanes[part_of]) - lanes[part_of]
    taken = np.unique(first[source] + index % frames[part] % lanes[part], return_index=True)[1]
    return count_numbers(source[taken].tolist(), len(settings.part_of))


def megabytes(count: int) -> str:
    """Bytes in words: "1.5 MB"."""
    return f"{count / 1e6:.1f} MB"
