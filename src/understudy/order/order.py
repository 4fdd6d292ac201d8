"""Order: which sample is position p, as one pure function of (spec, position).

    position -> schedule entry -> slot of the mixture -> (source, index in its stream)        slots.py or exact.py
    index    -> (epoch, index in the epoch) -> line number                                    lanes.py
    line number -> (episode, frame)                                                           layout.py

Nothing here depends on ranks, workers, batches or what was asked before, so any position can be asked at any time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from understudy.deprecation import renamed_arguments, renamed_attribute, warn_renamed
from understudy.order.defaults import choose_slots, default_in_flight
from understudy.order.layout import Layout, check_segments, fingerprint
from understudy.order.mixture.exact import Exact
from understudy.order.mixture.mixture import check_weights, far_off, share_slots
from understudy.order.mixture.rounds import lane_counts
from understudy.order.mixture.slots import Slots, groups
from understudy.order.random.keys import check_seed
from understudy.order.random.permute import CHUNK
from understudy.order.random.philox import Words
from understudy.order.search import Ints
from understudy.order.settle import Frames, Wish, layout_of, listed, plan, plan_source, shares_of, whole
from understudy.order.spec import EXACT_VERSION, UNIT, Entry, SourceSpec, Spec, compare


class Order:
    """The order of a run. Make one with `Order.from_datasets` (new) or `Order.from_json` (saved); it never changes."""

    def __init__(
        self,
        spec: Spec,
        layouts: Sequence[Layout],
        why: Sequence[tuple[str, ...]] = (),
        wished: Sequence[float] = (),
    ) -> None:
        self.spec = spec
        self.layouts = tuple(layouts)
        self._why, self._wished = tuple(why), tuple(wished)  # of an order just made: reasons, and weights
        self._mix = Exact(spec) if spec.version == EXACT_VERSION else Slots(spec)

    @classmethod
    @renamed_arguments(batch="batch_size")
    def from_datasets(
        cls,
        sources: Frames | Sequence[Frames],
        *,
        weights: Sequence[float] | Mapping[str, float] | None = None,
        temperature: float | None = None,
        batch_size: int,
        seed: int = 0,
        frames_in_flight: int | None = None,
        mode: str = "clips",
        clip: int | None = None,
        lanes: int | None = None,
        inside: str = "sequential",
    ) -> "Order":
        """Freeze the order of a run over `sources`: datasets, or one alone.

        weights: share of each source in the samples, in order or by name; any positive scale. None with `temperature`
            None: "one epoch of each", shares in proportion to frames. `temperature` t: in proportion to frames**t.
        batch_size: of the global batch, for the defaults and for `placement`; the order itself does not depend on it.
        frames_in_flight: pictures (of one camera) that all ranks together may hold open; None: 100,000, or 192 per
            sample of a batch of more than 520.
        mode: "clips" (shuffled clips read in lanes), "uniform" (any frame anywhere), "episodes" (runs as long as the
            longest episode), "sequential" (storage order; no shuffling).
        clip, lanes: S and V instead of the derived ones (lanes: over all sources; without `clip`, a source of so few
            frames that it is shuffled one by one takes none).
        inside: order inside a clip (or episode), "sequential" or "permuted".

        Raises ValueError, naming the source, the value and the rule, for anything it cannot make an order of.
        """
        sources, batch_size, seed = listed(sources), whole("batch_size", batch_size), check_seed(seed)
        clip, lanes = (None if n is None else whole(name, n) for name, n in (("clip", clip), ("lanes", lanes)))
        in_flight = default_in_flight(batch_size) if frames_in_flight is None else frames_in_flight
        wish = Wish(mode, batch_size, in_flight, clip, lanes, inside)
        shares = shares_of(sources, weights, temperature)
        planned, slots, version = plan(sources, shares, wish)
        spec = Spec(seed, batch_size, tuple(one.spec for one in planned), (Entry(0, slots),), version)
        return cls(spec, [one.layout for one in planned], [one.why for one in planned], shares)

    @classmethod
    def of(cls, *args: Any, **options: Any) -> "Order":
        """Old name of `from_datasets`."""
        warn_renamed("Order.of", "Order.from_datasets")
        return cls.from_datasets(*args, **options)

    @classmethod
    def from_json(cls, spec: "str | dict[str, Any] | Spec", sources: Frames | Sequence[Frames]) -> "Order":
        """The saved order again, over the sources of this run (by position in the list; names may differ) or the only
        one.

        Raises ValueError that tells each difference if the sources do not hold the frames they held then.
        """
        sources, saved = listed(sources), spec if isinstance(spec, Spec) else Spec.from_json(spec)
        if len(sources) != len(saved.sources):
            names = ", ".join(source.name for source in saved.sources)
            raise ValueError(f"the saved order has {len(saved.sources)} sources ({names}), {len(sources)} were given")
        checked = [check_segments(source.segments, source.name) for source in sources]
        now = tuple(
            replace(source, data=fingerprint(rows), segments=len(rows), frames=frames)
            for source, (rows, frames) in zip(saved.sources, checked)
        )
        if differences := compare(saved, replace(saved, sources=now)):
            raise ValueError("the data is not what the order was made for:\n" + "\n".join(map(str, differences)))
        layouts = [layout_of(source, rows) for source, (rows, _) in zip(saved.sources, checked)]
        return cls(saved, layouts)

    def to_json(self) -> str:
        """The spec as JSON text: with the sources and a position, all that a resume needs."""
        return self.spec.to_json()

    @property
    def batch_size(self) -> int:
        """Global batch."""
        return self.spec.batch

    @property
    def seed(self) -> int:
        """Seed of the order and of the draws inside samples."""
        return self.spec.seed

    batch = renamed_attribute("batch", "batch_size")

    def locate(self, positions: Any) -> tuple[Ints, Ints, Ints]:
        """Positions (integers >= 0, shape (n,)) -> (source, episode, frame), int64 (n,) each.

        `frame` counts inside the episode. Any positions, in any order; raises ValueError for a negative one.
        """
        wanted = as_positions(positions)
        source, episode, frame = (np.empty(wanted.shape, np.int64) for _ in range(3))
        for start in range(0, len(wanted), CHUNK):  # one after the other, they stay in the cache
            part = slice(start, start + CHUNK)
            source[part], episode[part], frame[part] = self._locate(wanted[part])
        return source, episode, frame

    def _locate(self, positions: Words) -> tuple[Ints, Ints, Ints]:
        source, line = self._lines(positions)
        if len(self.layouts) == 1:
            return source, *self.layouts[0].locate(line)
        episode, frame = np.empty_like(source), np.empty_like(source)
        for own in groups(source):
            episode[own], frame[own] = self.layouts[int(source[own[0]])].locate(line[own])
        return source, episode, frame

    def _lines(self, positions: Words) -> tuple[Ints, Words]:
        source, index = self._mix.streams(positions)
        if len(self.layouts) == 1:
            return source, self._mix.lines[0].line(index)
        line = np.empty_like(index)
        for own in groups(source):
            line[own] = self._mix.lines[int(source[own[0]])].line(index[own])
        return source, line

    def streams(self, positions: Any) -> tuple[Ints, Words]:
        """Positions (n,) -> (source int64, index uint64 in that source's own endless stream).

        index // N is the sample's epoch. In an order of version 2 the samples of an epoch are numbered lane by lane.
        """
        return self._mix.streams(as_positions(positions))

    def lines(self, positions: Any) -> tuple[Ints, Ints, Ints]:
        """Positions (n,) -> (source, that source's own epoch, number of the frame in its line), int64 (n,) each."""
        wanted = as_positions(positions)
        source, line = self._lines(wanted)
        return source, self.epochs(wanted)[1], line.view(np.int64)

    def epochs(self, positions: Any) -> tuple[Ints, Ints]:
        """Positions (n,) -> (source, that source's own epoch), int64 (n,) each."""
        source, index = self.streams(positions)
        frames = np.array([s.frames for s in self.spec.sources], np.uint64)
        return source, (index // frames[source]).view(np.int64)

    def lanes(self, positions: Any) -> tuple[Ints, Ints]:
        """Positions (n,) -> (source, lane of that source), int64 (n,) each; a source of one lane has lane 0."""
        return self._mix.lanes(as_positions(positions))

    def lane(self, position: int) -> int:
        """The lane of one position, as `lanes` says; quicker."""
        return self._mix.lane(position)

    def lane_slots(self, source: int) -> Ints | None:
        """Where each lane of a source stands in the round, int64 (lanes,), if it keeps that place for good (in an order
        of version 2); None: a lane is every so-manieth sample of the source, wherever that comes up."""
        return self._mix.slots_of(source)

    def rest_of_clip(self, position: int, most: int) -> tuple[Ints, Ints, Ints]:
        """The samples from `position` on that share its clip in its lane: (positions, episode, frame), int64 (k,) each.

        They are what one reader of that clip makes, in the order they come; k is 1 where frames are shuffled one by
        one, and at most `most`. A source read in storage order is one clip.
        """
        d, positions, line = self._mix.rest_of_clip(position, most)
        return positions, *self.layouts[d].locate(line)

    def neighbours(self, position: int, most: int) -> tuple[Ints, Ints]:
        """Which selected frames of its source may stand in for the one at `position`: (episode, frame), int64 (k,).

        The later frames of its clip first, then the earlier ones, then those of the clips that follow in storage; at
        most `most`, and never the frame itself. They depend on the position alone.
        """
        source, _, number = self.lines([position])
        d, line = int(source[0]), int(number[0])
        spec = self.spec.sources[d]
        start = line // spec.clip * spec.clip
        stop = min(start + spec.clip, spec.frames)
        count = min(most, spec.frames - 1)
        near = [*range(line + 1, stop), *range(start, line)][:count]
        far = (stop + np.arange(count - len(near))) % spec.frames
        return self.layouts[d].locate(np.concatenate([np.array(near, np.int64), far]).view(np.uint64))

    def positions_of(self, source: int, episode: int, frame: int, epochs: range = range(1)) -> Ints:
        """The inverse of `locate`: at which positions this frame comes up in these epochs of its source.

        int64, one per epoch that the schedule reaches (a source that has left no longer comes up) and per selected
        copy of the frame. Raises ValueError if the source or the frame is not selected.
        """
        if not 0 <= source < len(self.layouts):
            raise ValueError(f"source {source}: there are {len(self.layouts)} sources, counted from 0")
        if len(epochs) and min(epochs) < 0:
            raise ValueError(f"epochs {epochs}: epochs start at 0")
        layout, lanes = self.layouts[source], self._mix.lines[source]
        rows = layout.segments
        holding = np.flatnonzero((rows[:, 0] == episode) & (rows[:, 1] <= frame) & (frame < rows[:, 2]))
        if not len(holding):
            name = self.spec.sources[source].name
            raise ValueError(f"frame {frame} of episode {episode} is not among the selected frames of {name!r}")
        lines = [layout.line_number(int(row), frame) for row in holding]
        found = [self._mix.position(source, lanes.index(line, epoch)) for epoch in epochs for line in lines]
        return np.array(sorted(p for p in found if p is not None), np.int64)

    def with_weights(
        self,
        position: int,
        weights: Mapping[str, float],
        add: Sequence[Frames] = (),
        frames_in_flight: int | None = None,
    ) -> "Order":
        """This order up to `position`, and from there on sources in other shares: a new schedule entry.

        weights: by name, of the sources that go on (a source not named leaves); `add` are new sources, which must be
        named too. A source that goes on is read on from where it was, so it is still read once per its own epoch, in
        the same clips and lanes; as its slots are others now, its lanes no longer keep to one rank each. What is added
        is read in clips, with its defaults.
        Raises ValueError if `position` is not behind the last entry of the schedule.
        """
        position, last = whole("position", position), self.spec.schedule[-1].position
        if position <= last:
            raise ValueError(f"position {position}: the schedule already has an entry at {last}; change after it")
        known = [s.name for s in self.spec.sources] + [source.name for source in add]
        for name in [*weights, *(source.name for source in add)]:
            if name not in known or name not in weights:
                raise ValueError(f"source {name!r}: weights must name each added source and only known ones: {known}")
        named = [name for name in known if name in weights]
        if not named:
            raise ValueError(f"weights name no source that goes on: name at least one of {known}")
        values = check_weights([weights[name] for name in named], named)
        most = max(self.spec.round, 16 * self.batch_size)
        slots = choose_slots(values, self.batch_size, most)
        if self.spec.version == EXACT_VERSION:
            slots = share_slots(values, -(-most // self.batch_size) * self.batch_size * UNIT)
        by_name = dict(zip(named, slots))
        entry = Entry(position, tuple(by_name.get(name, 0) for name in known))
        in_flight = default_in_flight(self.batch_size) if frames_in_flight is None else frames_in_flight
        wish = Wish("clips", self.batch_size, in_flight)
        lanes = dict(zip(named, lane_counts(slots))) if self.spec.version == EXACT_VERSION else {}
        added = [plan_source(source, by_name[source.name] / sum(slots), wish, lanes.get(source.name)) for source in add]
        sources = (*self.spec.sources, *(one.spec for one in added))
        spec = replace(self.spec, sources=sources, schedule=(*self.spec.schedule, entry))
        why = [*self._why, *((),) * (len(self.layouts) - len(self._why)), *(one.why for one in added)]
        return Order(spec, [*self.layouts, *(one.layout for one in added)], why, [weights.get(n, 0.0) for n in known])

    def reweighted(self, *args: Any, **options: Any) -> "Order":
        """Old name of `with_weights`."""
        warn_renamed("Order.reweighted", "Order.with_weights")
        return self.with_weights(*args, **options)

    def with_batch_size(self, batch_size: int) -> "Order":
        """The same order for a run that continues with another global batch size. Positions keep their samples."""
        return Order(replace(self.spec, batch=whole("batch_size", batch_size)), self.layouts, self._why, self._wished)

    def rebatched(self, batch: int) -> "Order":
        """Old name of `with_batch_size`."""
        warn_renamed("Order.rebatched", "Order.with_batch_size")
        return self.with_batch_size(batch)

    def explain(self) -> str:
        """The order in words: per source its settings and, for an order just made, why they were chosen."""
        lines = [f"order {self.spec.fingerprint[:12]}, seed {self.seed}, global batch {self.batch_size}"]
        for d, source in enumerate(self.spec.sources):
            lines.append(f"{source.name}: {source.frames} frames in {source.segments} segments; {_in_words(source)}")
            lines += [f"  - {reason}" for reason in (self._why[d] if d < len(self._why) else ())]
        for entry in self.spec.schedule:
            total = sum(entry.slots)
            named = [(s.name, count) for s, count in zip(self.spec.sources, entry.slots) if count]
            if len(self.spec.sources) > 1:
                exact = self.spec.version == EXACT_VERSION
                counts = [f" ({count} of {total})" if not exact else "" for _, count in named]
                shares = ", ".join(f"{name} {n / total:.2%}{of}" for (name, n), of in zip(named[:20], counts))
                more = f" and {len(named) - 20} more" if len(named) > 20 else ""
                lines.append(f"from position {entry.position}: {shares}{more}")
        if off := self.far_off(self._wished):
            d, share, wished = off[0]
            others = f", and {len(off) - 1} more are off by over 1 %" if len(off) > 1 else ""
            met = f"shares are met to the nearest of {sum(self.spec.schedule[-1].slots)} slots"
            lines.append(f"{met}: {self.spec.sources[d].name} has {share:.4%}, asked for were {wished:.4%}{others}")
        return "\n".join(lines)

    def far_off(self, weights: Sequence[float]) -> list[tuple[int, float, float]]:
        """Of the sources whose exact share, at the end of the schedule, is off by more than 1 % of what its weight asks
        for: (source, its share, the share asked for), worst first. `weights` as the sources, on any scale."""
        going = [
            (d, slots, w) for d, (slots, w) in enumerate(zip(self.spec.schedule[-1].slots, weights)) if slots and w
        ]
        off = far_off([slots for _, slots, _ in going], [weight for _, _, weight in going])
        return [(going[number][0], share, asked) for number, share, asked in off]


def as_positions(positions: Any) -> Words:
    """Integers >= 0 as a uint64 array (n,); ValueError for negative or non-integer ones, or another shape."""
    array = np.atleast_1d(np.asarray(positions))
    if array.ndim != 1:
        raise ValueError(f"positions of shape {array.shape}: need (n,)")
    if array.dtype == np.uint64:
        return array
    if not array.size:
        return array.astype(np.uint64)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"positions are {array.dtype}: need integers")
    if array.dtype.kind == "i" and array.min() < 0:
        raise ValueError(f"position {array.min()}: positions start at 0")
    return array.astype(np.uint64)


def _in_words(source: SourceSpec) -> str:
    if not source.shuffle:
        return "read in storage order"
    if source.clip == 1:
        return "shuffled frame by frame" + (f" in {source.lanes} lanes" if source.lanes > 1 else "")
    cut = ", cut at key frames" if source.cut == "keyframe" else ""
    return f"{source.lanes} lanes of clips of {source.clip}{cut}, {source.inside} inside a clip"
