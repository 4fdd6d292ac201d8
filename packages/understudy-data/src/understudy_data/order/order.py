"""`Order`: the sample at each position, as one pure function of (spec, position).

`ClipOrder` has the formula:

    position -> schedule entry -> slot -> (source, index in its stream)  shares.py, shared_slots.py
    index -> (epoch, index in the epoch) -> line number                  lanes.py
    line number -> (episode, frame)                                      frame_numbering.py

`FileOrder` has the samples of an order file instead (`order_file.py`). Nothing here depends on
ranks, workers, batches or earlier calls, so any position can be located at any time.
"""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from understudy_data.order.defaults import default_in_flight
from understudy_data.order.frame_numbering import LARGEST, Ints, Layout, at_once, make_layout
from understudy_data.order.make_spec import (
    CheckedSource,
    Frames,
    OrderRequest,
    as_int,
    as_list,
    check_source,
    measure_source,
    resolve_order,
    resolve_weights,
    reweigh,
    source_layout,
)
from understudy_data.order.random import INDICES_PER_PASS, Words, check_seed
from understudy_data.order.shared_slots import SharedSlots
from understudy_data.order.shares import WholeSlots, group_by, share_errors
from understudy_data.order.spec import EXACT_VERSION, Entry, SourceSpec, Spec, compare, in_words

if TYPE_CHECKING:
    from understudy_data.order_file import OrderFile

_AHEAD = 1 << 20  # positions of a file that are read ahead for a clip: eight row groups


class Order(ABC):
    """The order of a run, from `Order.from_datasets` (new), `from_json` (saved) or `from_file`
    (exported).

    It never changes.
    """

    file: "OrderFile | None" = None
    """The file of the samples; None: the formula has them."""

    def __init__(self, spec: Spec, layouts: Sequence[Layout]) -> None:
        self.spec = spec
        self.layouts = tuple(layouts)
        self._mix = SharedSlots(spec) if spec.version == EXACT_VERSION else WholeSlots(spec)
        self.start = 0
        self.stop = 2 * LARGEST - 1
        """First position, and the position behind the last whole batch of a file."""

    @classmethod
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
    ) -> "ClipOrder":
        """Make the order of a new run.

        Args:
            sources: datasets, or a single one.
            weights: share of each source in the samples, in sequence or by name, on any positive
                scale. Without `weights` and `temperature` shares are in proportion to frames: one
                epoch of each.
            temperature: t for shares in proportion to frames**t, instead of `weights`.
            batch_size: samples of a global batch, for the defaults and for `rank_positions`. The
                order itself does not depend on it.
            seed: of the order, and of the draws inside samples.
            frames_in_flight: frames (of one camera) that all ranks together may hold open; by
                default 100,000, or 192 per sample of a batch of more than 520. `choose_order` knows
                the memory and makes more of it.
            mode: "clips" (shuffled clips read in lanes), "uniform" (any frame anywhere), "episodes"
                (runs as long as the longest episode) or "sequential" (storage order; no shuffling).
            clip: S, the frames of a clip, instead of the derived value.
            lanes: V, over all sources, instead of the derived value. Without `clip`, a source of so
                few frames that it is shuffled one by one has no lanes.
            inside: order inside a clip (or episode), "sequential" or "permuted".

        Raises:
            ValueError: an argument of which no order can be made; names the source, the value and
                the rule.
        """
        sources = as_list(sources)
        batch_size = as_int("batch_size", batch_size)
        seed = check_seed(seed)
        if clip is not None:
            clip = as_int("clip", clip)
        if lanes is not None:
            lanes = as_int("lanes", lanes)
        in_flight = default_in_flight(batch_size) if frames_in_flight is None else frames_in_flight
        request = OrderRequest(mode, batch_size, in_flight, clip, lanes, inside)
        resolved = resolve_weights(sources, weights, temperature)
        return cls.from_request(
            [check_source(source) for source in sources], resolved, request, seed
        )

    @classmethod
    def from_request(
        cls,
        sources: Sequence[CheckedSource],
        weights: Sequence[float],
        request: OrderRequest,
        seed: int,
    ) -> "ClipOrder":
        """Make the order of a request over checked sources, of which each has its weight, on any
        scale.

        Raises:
            ValueError: as `from_datasets`.
        """
        chosen, slots, version = resolve_order(sources, weights, request)
        spec = Spec(
            seed,
            request.batch_size,
            tuple(source.spec for source in chosen),
            (Entry(0, slots),),
            version,
        )
        return ClipOrder(
            spec,
            [source.layout for source in chosen],
            [source.reasons for source in chosen],
            weights,
        )

    @classmethod
    def from_json(
        cls, spec: "str | dict[str, Any] | Spec", sources: Frames | Sequence[Frames]
    ) -> "ClipOrder":
        """Restore a saved order.

        Args:
            spec: from `to_json`.
            sources: datasets in the saved sequence; names may differ.

        Raises:
            ValueError: the sources do not have the frames of the saved order; names each
                difference.
        """
        sources = as_list(sources)
        saved = spec if isinstance(spec, Spec) else Spec.from_json(spec)
        shares = [getattr(source, "share", at_once) for source in sources]
        layouts = [
            source_layout(spec, rows, share)
            for spec, rows, share in zip(saved.sources, _check_sources(saved, sources), shares)
        ]
        return ClipOrder(saved, layouts)

    @classmethod
    def from_file(
        cls, path: "str | os.PathLike[str] | OrderFile", *, batch_size: int | None = None
    ) -> "FileOrder":
        """Open an order file, of `understudy order export` or of other tools (docs/audit.md); it is
        not read whole.

        The samples at each position are those of the file. A loader ends with its last whole batch.

        Args:
            path: the file, or one that is open.
            batch_size: samples of a global batch, where the file does not have it, or another:
                positions keep their samples, and other batches than those of the column `step` are
                cut, with a warning.

        Raises:
            DatasetError: the file is no order, or was changed.
            ValueError: no batch size is known.
        """
        from understudy_data.order_file import OrderFile

        file = path if isinstance(path, OrderFile) else OrderFile(path)
        path = file.path
        batch = file.batch_size if batch_size is None else as_int("batch_size", batch_size)
        if batch is None:
            raise ValueError(
                f"{path}: has no `step`, or steps of several sizes; give batch_size, the samples "
                "of a global batch"
            )
        if file.has_steps and batch != file.batch_size:
            warnings.warn(
                f"{path}: batches of {batch} are not the steps of its column `step`", stacklevel=2
            )
        if file.facts.get("order"):
            spec = replace(Spec.from_json(file.facts["order"]), batch=batch)
        else:
            rows = file.stop - file.start
            sources = [
                SourceSpec(name, file.digest, 1, rows, 1, 1, True, "sequential", "plain")
                for name in file.names
            ]
            spec = Spec(0, batch, tuple(sources), (Entry(0, (1,) * len(sources)),))
        order = FileOrder(spec, (), file)
        if order.stop < file.stop:
            warnings.warn(
                f"{path}: its last {file.stop - order.stop} rows are no whole batch of {batch}",
                stacklevel=2,
            )
        return order

    @abstractmethod
    def of_datasets(self, sources: Frames | Sequence[Frames]) -> "Order":
        """This order over its datasets, which are checked. With a file they may have other frames
        selected.

        Raises:
            ValueError: the datasets are not those of the order.
        """

    def to_json(self) -> str:
        """The spec as JSON text: with the datasets and a position, all that a resume needs."""
        return self.spec.to_json()

    @property
    def batch_size(self) -> int:
        """Samples of a global batch."""
        return self.spec.batch

    @property
    def seed(self) -> int:
        """Seed of the order and of the draws inside samples."""
        return self.spec.seed

    @abstractmethod
    def locate(self, positions: Any) -> tuple[Ints, Ints, Ints]:
        """Samples at positions (integers >= 0, shape (n,), in any sequence): (source, episode,
        frame), int64 (n,) each.

        `frame` counts inside the episode.

        Raises:
            ValueError: a negative position.
        """

    def _lines(self, positions: Words) -> tuple[Ints, Words]:
        """Source and line number of the formula."""
        source, index = self._mix.streams(positions)
        if len(self.layouts) == 1:
            return source, self._mix.lines[0].line(index)
        line = np.empty_like(index)
        for group in group_by(source):
            line[group] = self._mix.lines[int(source[group[0]])].line(index[group])
        return source, line

    def streams(self, positions: Any) -> tuple[Ints, Words]:
        """Source (int64) of each position (n,), and its index (uint64) in the endless stream of
        that source.

        index // N is the sample's epoch. In an order of version 2 the samples of an epoch are
        numbered lane by lane.
        """
        return self._mix.streams(as_positions(positions))

    def lines(self, positions: Any) -> tuple[Ints, Ints, Ints]:
        """Source, epoch of that source, and line number of the frame, for positions (n,): int64
        (n,) each.
        """
        words = as_positions(positions)
        source, line = self._lines(words)
        return source, self.epochs(words)[1], line.view(np.int64)

    def epochs(self, positions: Any) -> tuple[Ints, Ints]:
        """Source and epoch of that source, for positions (n,): int64 (n,) each."""
        source, index = self.streams(positions)
        frames = np.array([s.frames for s in self.spec.sources], np.uint64)
        return source, (index // frames[source]).view(np.int64)

    def lanes(self, positions: Any) -> tuple[Ints, Ints]:
        """Source and lane of that source, for positions (n,): int64 (n,) each; a single lane is
        0.
        """
        return self._mix.lanes(as_positions(positions))

    def lane(self, position: int) -> int:
        """Lane of one position; faster than `lanes`."""
        return self._mix.lane(position)

    def lane_slots(self, source: int) -> Ints | None:
        """Fixed slot of each lane of a source in the round, int64 (lanes,), in an order of version
        2.

        None where slots are not fixed: lane l of V has every V-th sample of the source, in changing
        slots.
        """
        return self._mix.slots_of(source)

    @abstractmethod
    def rest_of_clip(self, position: int, most: int) -> tuple[Ints, Ints, Ints]:
        """Samples from `position` on in its clip and lane: (positions, episode, frame), int64 (k,)
        each.

        They are the samples of one clip reader, in their sequence. k is at most `most`, and 1 where
        frames are shuffled one by one. A source in storage order is one clip.
        """

    def neighbors(self, position: int, most: int) -> tuple[Ints, Ints]:
        """Selected frames of its source that may substitute the one at `position`: (episode,
        frame), int64 (k,).

        First the later frames of its clip, then the earlier ones, then those of the clips that
        follow in storage; at most `most`, and never the frame itself. They depend on the position
        alone.
        """
        d, line = self._line(position)
        clip = self.spec.sources[d].clip
        frames = self.layouts[d].frames
        start = line // clip * clip
        stop = min(start + clip, frames)
        count = min(most, frames - 1)
        near = [*range(line + 1, stop), *range(start, line)][:count]
        far = (stop + np.arange(count - len(near))) % frames
        return self.layouts[d].locate(
            np.concatenate([np.array(near, np.int64), far]).view(np.uint64)
        )

    @abstractmethod
    def _line(self, position: int) -> tuple[int, int]:
        """Source and line number of the frame at a position."""

    def positions_of(self, source: int, episode: int, frame: int, epochs: range = range(1)) -> Ints:
        """Positions at which a frame comes up in some epochs of its source: the inverse of
        `locate`.

        Returns:
            int64, one per epoch that the schedule reaches (a source that has left no longer comes
            up) and per selected copy of the frame.

        Raises:
            ValueError: the source or the frame is not selected.
        """
        if not 0 <= source < len(self.layouts):
            raise ValueError(
                f"source {source}: there are {len(self.layouts)} sources, counted from 0"
            )
        if len(epochs) and min(epochs) < 0:
            raise ValueError(f"epochs {epochs}: epochs start at 0")
        layout = self.layouts[source]
        lanes = self._mix.lines[source]
        rows = layout.segments
        holding = np.flatnonzero(
            (rows[:, 0] == episode) & (rows[:, 1] <= frame) & (frame < rows[:, 2])
        )
        if not len(holding):
            name = self.spec.sources[source].name
            raise ValueError(
                f"frame {frame} of episode {episode} is not among the selected frames of {name!r}"
            )
        lines = [layout.line_number(int(row), frame) for row in holding]
        positions = []
        for epoch in epochs:
            for line in lines:
                position = self._mix.position(source, lanes.index(line, epoch))
                if position is not None:
                    positions.append(position)
        return np.array(sorted(positions), np.int64)

    @abstractmethod
    def with_weights(
        self,
        position: int,
        weights: Mapping[str, float],
        add: Sequence[Frames] = (),
        frames_in_flight: int | None = None,
        mode: str = "clips",
    ) -> "Order":
        """This order up to `position`, and other shares from there on: a new schedule entry.

        A source that continues is read on from its place, so it is still read once per its own
        epoch, in the same clips and lanes. As its slots change, its lanes no longer keep to one
        rank each.

        Args:
            position: of the change.
            weights: by name, of the sources that continue, and of those in `add`. A source not
                named leaves.
            add: new sources, read with the defaults of `mode`.
            frames_in_flight, mode: for the new sources.

        Raises:
            ValueError: `position` is not behind the last entry of the schedule, a name is unknown,
                or the order is that of a file.
        """

    @abstractmethod
    def with_batch_size(self, batch_size: int) -> "Order":
        """The same order for a run that continues with another global batch size. Positions keep
        their samples.
        """

    def explain(self) -> str:
        """The order in words: the settings of each source and, for a new order, the reasons."""
        return in_words(self.spec, (), [])

    def share_errors(self, weights: Sequence[float]) -> list[tuple[int, float, float]]:
        """Sources whose share at the end of the schedule is off by more than 1 % of that of its
        weight.

        Args:
            weights: of the sources in their sequence, on any scale.

        Returns:
            (source, its share, the share of its weight), the largest error first.
        """
        going = [
            (d, slots, w)
            for d, (slots, w) in enumerate(zip(self.spec.schedule[-1].slots, weights))
            if slots and w
        ]
        off = share_errors([slots for _, slots, _ in going], [weight for _, _, weight in going])
        return [(going[number][0], share, target) for number, share, target in off]


def _check_sources(saved: Spec, sources: Sequence[Frames]) -> list[np.ndarray]:
    """Return the rows [episode, start, stop) of the datasets of a saved order, int64 (K, 3) each.

    Raises:
        ValueError: as `Order.from_json`.
    """
    if len(sources) != len(saved.sources):
        names = ", ".join(source.name for source in saved.sources)
        raise ValueError(
            f"the saved order has {len(saved.sources)} sources ({names}), {len(sources)} were given"
        )
    measured = [measure_source(source) for source in sources]
    now = tuple(
        replace(source, data=digest, segments=len(rows), frames=frames)
        for source, (rows, frames, digest) in zip(saved.sources, measured)
    )
    if differences := compare(saved, replace(saved, sources=now)):
        raise ValueError("the data is not that of the order:\n" + "\n".join(map(str, differences)))
    return [rows for rows, *_ in measured]


class ClipOrder(Order):
    """The order by its formula: clip lanes of the selected frames."""

    def __init__(
        self,
        spec: Spec,
        layouts: Sequence[Layout],
        reasons: Sequence[tuple[str, ...]] = (),
        weights: Sequence[float] = (),
    ) -> None:
        super().__init__(spec, layouts)
        # known for a new order only
        self._reasons = tuple(reasons)
        self._weights = tuple(weights)

    def of_datasets(self, sources: Frames | Sequence[Frames]) -> "ClipOrder":
        """See `Order.of_datasets`."""
        _check_sources(self.spec, as_list(sources))
        return self

    def locate(self, positions: Any) -> tuple[Ints, Ints, Ints]:
        """See `Order.locate`."""
        words = as_positions(positions)
        source, episode, frame = (np.empty(words.shape, np.int64) for _ in range(3))
        for start in range(0, len(words), INDICES_PER_PASS):  # chunks stay in the processor's cache
            part = slice(start, start + INDICES_PER_PASS)
            source[part], episode[part], frame[part] = self._locate(words[part])
        return source, episode, frame

    def _locate(self, positions: Words) -> tuple[Ints, Ints, Ints]:
        source, line = self._lines(positions)
        if len(self.layouts) == 1:
            return source, *self.layouts[0].locate(line)
        episode = np.empty_like(source)
        frame = np.empty_like(source)
        for group in group_by(source):
            episode[group], frame[group] = self.layouts[int(source[group[0]])].locate(line[group])
        return source, episode, frame

    def rest_of_clip(self, position: int, most: int) -> tuple[Ints, Ints, Ints]:
        """See `Order.rest_of_clip`."""
        d, positions, line = self._mix.rest_of_clip(position, most)
        return positions, *self.layouts[d].locate(line)

    def _line(self, position: int) -> tuple[int, int]:
        source, line = self._lines(as_positions([position]))
        return int(source[0]), int(line[0])

    def with_weights(
        self,
        position: int,
        weights: Mapping[str, float],
        add: Sequence[Frames] = (),
        frames_in_flight: int | None = None,
        mode: str = "clips",
    ) -> "ClipOrder":
        """See `Order.with_weights`."""
        spec, added = reweigh(self.spec, position, weights, add, frames_in_flight, mode)
        reasons = [
            *self._reasons,
            *((),) * (len(self.layouts) - len(self._reasons)),
            *(source.reasons for source in added),
        ]
        layouts = [*self.layouts, *(source.layout for source in added)]
        return ClipOrder(
            spec, layouts, reasons, [weights.get(source.name, 0.0) for source in spec.sources]
        )

    def with_batch_size(self, batch_size: int) -> "ClipOrder":
        """See `Order.with_batch_size`."""
        spec = replace(self.spec, batch=as_int("batch_size", batch_size))
        return ClipOrder(spec, self.layouts, self._reasons, self._weights)

    def explain(self) -> str:
        """See `Order.explain`."""
        return in_words(self.spec, self._reasons, self.share_errors(self._weights))


class FileOrder(Order):
    """The order of a file: its rows are the samples of consecutive positions."""

    file: "OrderFile"

    def __init__(self, spec: Spec, layouts: Sequence[Layout], file: "OrderFile") -> None:
        super().__init__(spec, layouts)
        self.file = file
        self.start = file.start
        self.stop = file.stop - (file.stop - file.start) % spec.batch

    def of_datasets(self, sources: Frames | Sequence[Frames]) -> "FileOrder":
        """See `Order.of_datasets`."""
        sources = as_list(sources)
        self.file.check_datasets(sources)
        layouts = []
        for saved, source in zip(self.spec.sources, sources):
            rows, _, digest = measure_source(source)
            layout = source_layout(saved, rows) if digest == saved.data else make_layout(rows)
            layouts.append(layout)
        order = FileOrder(self.spec, layouts, self.file)
        order.stop = self.stop
        return order

    def locate(self, positions: Any) -> tuple[Ints, Ints, Ints]:
        """See `Order.locate`. Raises DatasetError for a position that is not in the file."""
        source, episode, frame = self.file.locate(as_positions(positions))
        return source, episode, frame

    def rest_of_clip(self, position: int, most: int) -> tuple[Ints, Ints, Ints]:
        """See `Order.rest_of_clip`."""
        _, positions, _ = self._mix.rest_of_clip(position, most)
        positions = positions[positions < min(self.stop, position + _AHEAD)]
        source, episode, frame = self.locate(positions)
        same = source == source[0]
        return positions[same], episode[same], frame[same]

    def _line(self, position: int) -> tuple[int, int]:
        d, episode, frame = (int(part[0]) for part in self.locate([position]))
        layout = self.layouts[d]
        rows = self.layouts[d].segments
        holding = (rows[:, 0] == episode) & (rows[:, 1] <= frame) & (frame < rows[:, 2])
        return d, layout.line_number(int(holding.argmax()), frame)

    def with_weights(
        self,
        position: int,
        weights: Mapping[str, float],
        add: Sequence[Frames] = (),
        frames_in_flight: int | None = None,
        mode: str = "clips",
    ) -> NoReturn:
        """Raise ValueError: see `Order.with_weights`."""
        raise ValueError(f"{self.file.path}: the shares of an order file are fixed")

    def with_batch_size(self, batch_size: int) -> "FileOrder":
        """See `Order.with_batch_size`."""
        spec = replace(self.spec, batch=as_int("batch_size", batch_size))
        return FileOrder(spec, self.layouts, self.file)


def as_positions(positions: Any) -> Words:
    """Integers >= 0 as a uint64 array (n,).

    Raises:
        ValueError: negative or non-integer positions, or another shape.
    """
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
