"""`EpisodeSampler`: the order for torch's DataLoader over a map-style dataset.

    sampler = EpisodeSampler(data, seed=0, batch_size=64)      # 64: the batch of all ranks together
    loader = DataLoader(data, batch_size=64, sampler=sampler)  # or StatefulDataLoader
    torch.save(sampler.state_dict(consumed=step * 64), path)   # one integer: samples from the start
    sampler.load_state_dict(torch.load(path))                  # with any ranks, batch size, workers

Its state is a position in an endless stream of samples, in which every N in a row are an epoch.
Position and seed are the whole state, so neither a restart nor another number of ranks nor another
batch size changes the samples.

Consumed is not yielded. A DataLoader with workers asks for indices some batches ahead of those that
it hands out, but a checkpoint must hold the number that the optimizer has used.
`state_dict(consumed=...)` takes that number. `state_dict()` without it counts the yielded indices,
which is the same with `num_workers=0` and inside a StatefulDataLoader (it asks for the state as
each batch is drawn and keeps it beside the batch).

Whole batches. With `batch_size`, each pass ends on a whole global batch: the last one is filled
with the first samples of the next epoch, and the next pass starts behind them. Nothing is dropped
or repeated, and a loader that would pad or cut a short last batch (Accelerate does, with samples
that depend on where it was resumed) never meets one. Without `batch_size` a pass is exactly the
rest of the epoch.

Several processes. Each yields its share of every global batch, for a DataLoader with that share as
its `batch_size`. `accelerator.prepare` and Lightning divide the batches of a DataLoader themselves:
for them give rank=0, world_size=1.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from operator import length_hint
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np
from torch.utils.data import Sampler

from understudy_data.datasets.selection.select import EPISODE_STRIDE
from understudy_data.load.batch_request import NoOptions, refuse_foreign
from understudy_data.load.order_rows import OrderExport, Span
from understudy_data.load.order_state import order_state, position_in
from understudy_data.load.same_version import check_same, find_board
from understudy_data.order import Order, rank_slice
from understudy_data.order.make_spec import as_list
from understudy_data.order_file import find_segments
from understudy_data.process_rank import ProcessRank

_FIRST_CHUNK = 256
_CHUNK = 16384


class EpisodeSampler(Sampler[int]):
    """Indices into a map-style dataset, each selected frame once per epoch, in an order that
    survives any restart.

    Args:
        data: a dataset with `segments`, int64 (K, 3) rows [episode, start, stop) in the sequence of
            its items. An `EpisodeDataset` with `frame_weights` has the items of its
            `epoch_segments` in each epoch, some repeatedly.
        shuffle: uniformly, anew in every epoch; False for storage order.
        seed: of the shuffling.
        episodes: ids of the episodes to take; None for all.
        drop_n_first_frames: frames to leave out at the start of each segment (of each episode,
            where whole episodes are selected). A warning names the episodes that become empty.
        drop_n_last_frames: the same at the end.
        order: of `Order.from_file`, instead of `shuffle`, `seed` and a selection: one pass over its
            whole batches. Its datasets must be this one.
        batch_size: of the global batch, for passes of whole batches (see above).
        rank: yield only the share of this rank in each global batch (batch_size / world_size
            indices, one after the other), for a DataLoader with that batch size. Found by default,
            as for `Loader`.
        world_size: number of ranks.
        **unknown: refused.

    Raises:
        TypeError: an unknown argument; of one of torch's samplers the message has the equivalent.
        ConfigError: see `ProcessRank.find`; in the first pass, where another library divides
            the batches again.
        ValueError: an empty selection, an unknown episode, a batch size that the ranks cannot share
            evenly, or a number out of range.
    """

    def __init__(
        self,
        data: Any,
        *,
        shuffle: bool = True,
        seed: int = 0,
        episodes: Sequence[int] | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        order: Order | None = None,
        batch_size: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        **unknown: Unpack[NoOptions],
    ) -> None:
        refuse_foreign(unknown)
        if unknown:
            raise TypeError(
                f"unknown arguments {sorted(unknown)}: EpisodeSampler documents its own"
            )
        self._process = ProcessRank.find(rank, world_size)
        rank = self.rank
        world_size = self.world_size
        if order is not None:
            chosen = shuffle, seed, episodes, drop_n_first_frames, drop_n_last_frames
            if batch_size not in (None, order.batch_size) or chosen != (True, 0, None, 0, 0):
                raise ValueError(
                    "order besides a selection, a seed or a batch size other than its "
                    f"{order.batch_size}"
                )
            batch_size = order.batch_size
        if batch_size is None and world_size != 1:
            raise ValueError(
                f"world_size {world_size} without batch_size: give the global batch size, or "
                "rank=0, world_size=1 where accelerator.prepare divides the batches"
            )
        divided = 1 if batch_size is None else batch_size
        low, high = rank_slice(divided, rank, world_size)
        if batch_size is not None and batch_size % world_size:
            raise ValueError(
                f"batch_size {batch_size} over {world_size} ranks: need a multiple, for equal "
                "shares"
            )
        self._batch = batch_size or 1
        self._offset = low
        self._share = high - low
        if len(sources := as_list(data)) > 1:
            raise ValueError(
                f"{len(sources)} datasets: a sampler takes one; give all of them to `Loader`"
            )
        data = sources[0]
        rows = _select(data, episodes, drop_n_first_frames, drop_n_last_frames)
        # To the order this is a source whose "frames" are the dataset's indices.
        source = SimpleNamespace(name="sampler", segments=rows, gop=1, reach=(0, 0))
        mode = "uniform" if shuffle else "sequential"
        self._order: Order = Order.from_datasets(
            [source], batch_size=self._batch, seed=seed, mode=mode
        )
        self._frames = self._order.spec.sources[0].frames
        # positions in a pass, before it is rounded to whole batches
        self._pass = max(self._frames, self._batch)
        self._rows = rows
        self._segments = np.asarray(data.segments, np.int64).reshape(-1, 3)
        self._stops = np.cumsum(self._segments[:, 2] - self._segments[:, 1])
        facts = {
            "name": getattr(data, "name", "dataset"),
            "catalog": getattr(data, "catalog", None),
        }
        self._source: Any = SimpleNamespace(segments=self._segments, **facts)
        if order is not None:
            self._order = order.of_datasets(self._source)
            self._pass = order.stop
        settings: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "shuffle": shuffle}
        settings |= {"rank": rank, "world_size": world_size, "episodes": episodes}
        settings["drops"] = drop_n_first_frames, drop_n_last_frames
        check_same(self._order, [data], find_board([data], settings))
        self._epoch = 0
        self._start = self._order.start
        # whether the next pass was over when its state was saved, as LeRobot counts
        self._over = False
        self._until = self._start  # end of the current chunk of positions
        self._drawn = iter([0][:0])  # its indices to come
        # from the caller's number of an epoch to its number in the stream
        self._epoch_offset: int | None = 0

    @property
    def indices(self) -> list[int]:
        """Selected indices in storage order, computed at each call in O(N); the sampler keeps
        segment bounds only.
        """
        starts = self._rows[:, 1]
        lengths = self._rows[:, 2] - self._rows[:, 1]
        ends = np.cumsum(lengths)
        return (np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)).tolist()

    @property
    def rank(self) -> int:
        """Number of this process."""
        return self._process.rank

    @property
    def world_size(self) -> int:
        """Number of processes that share each batch."""
        return self._process.world_size

    def __len__(self) -> int:
        """Indices that the current pass yields or, between passes, the next."""
        self._advance()
        return (self._end() - self._start) // self._batch * self._share

    def __iter__(self) -> Iterator[int]:
        """One pass: from the start of the epoch, or from a restored state, to its end."""
        self._process.check("EpisodeSampler")
        if self._over:
            self._go_to(self._start)
            return
        self._advance()
        position = self._start
        end = self._end()
        batches = max(1, _FIRST_CHUNK // self._batch)
        while position < end:
            self._until = min(end, position + batches * self._batch)
            self._drawn = iter(self._indices(position, self._until))
            yield from self._drawn
            position = self._until
            batches = max(1, min(2 * batches, _CHUNK // self._batch))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, as for torch's DistributedSampler. Calling it is
        optional.

        The epoch that is due anyway changes nothing; the one behind it starts where this one ends;
        any other starts where it would in a run with this batch size from the beginning. The first
        call after `load_state_dict` names the restored epoch, whatever its number: Accelerate
        counts from 0 again after a restart, a loop that continues from the saved number passes that
        number, and both mean the saved epoch.

        Raises:
            ValueError: a negative epoch, or one before the beginning of the run.
        """
        self._advance()
        if self._epoch_offset is None:
            self._epoch_offset = self._epoch - epoch
        epoch_number = epoch + self._epoch_offset
        if min(epoch, epoch_number) < 0:
            raise ValueError(f"epoch {epoch}: epochs start at {max(0, -self._epoch_offset)}")
        if epoch_number == self._epoch + 1:
            self._go_to(self._end())
        elif epoch_number != self._epoch:
            self._go_to(-(-epoch_number * self._pass // self._batch) * self._batch)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """State to resume from: {"position": int, "order": JSON text of the order}.

        Args:
            consumed: samples consumed by all ranks since the run began (for a constant global batch
                size B: step * B; where a short last batch ends each epoch: epoch * N + batches *
                B). None counts the yielded ones.
        """
        position = self._position() if consumed is None else int(consumed)
        if position < 0:
            raise ValueError(f"consumed {position}: need 0 or more")
        return order_state(self._order, position)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue behind a state, in the same epoch or, if it was at its end, in the next.

        Batch size, rank and world size may differ. LeRobot's {"epoch", "start_index"} is accepted,
        too. The order is the one of this sampler, so it continues behind as many samples, not
        behind the same ones. As in LeRobot, a start_index behind the epoch's last index gives an
        empty pass first. Such a state does not name its dataset.

        Raises:
            ConfigError: not such a state, or that of other data, another selection, seed or
                shuffling; names each difference.
        """
        if set(state_dict) == {"epoch", "start_index"}:
            self._load_lerobot(state_dict["epoch"], state_dict["start_index"])
            return
        self._go_to(position_in(state_dict, self._order))
        self._epoch_offset = None

    def _load_lerobot(self, epoch: Any, start_index: Any) -> None:
        for name, value, most in (
            ("epoch", epoch, 2**40),
            ("start_index", start_index, self._frames),
        ):
            if type(value) is not int or not 0 <= value <= most:
                raise ValueError(
                    f"{name} {value!r} of LeRobot's state: need a whole number from 0 to {most}"
                )
        over = start_index == self._frames
        begin = -(-(epoch + over) * self._pass // self._batch) * self._batch
        if over:
            self._go_to(begin)
            self._epoch = epoch
            self._over = True
        else:
            self._go_to(begin + start_index)
        self._epoch_offset = None

    def _indices(self, start: int, stop: int) -> list[int]:
        """This rank's dataset indices among the positions [start, stop), which are whole global
        batches.
        """
        positions = np.arange(start, stop, dtype=np.int64)
        if self._share != self._batch:
            positions = positions.reshape(-1, self._batch)[
                :, self._offset : self._offset + self._share
            ].reshape(-1)
        _, episode, frame = self._order.locate(positions)
        if self._order.file:
            segment = find_segments(self._segments, episode, frame)
            if (segment < 0).any():
                raise ValueError(
                    f"frame {frame[segment < 0][0]} of episode {episode[segment < 0][0]} is not in "
                    "the dataset"
                )
            frame += self._stops[segment] - self._segments[segment, 2]
        return frame.tolist()

    def to_file(self, path: str | Path, steps: int) -> None:
        """Write the samples of the first steps, over all ranks, as an order file
        (docs/audit.md).
        """

        def locate(positions: np.ndarray) -> Any:
            source, episode, frame = self._order.locate(positions)
            if self._order.file:
                return source, episode, frame
            segment = np.searchsorted(self._stops, frame, side="right")
            return (
                source,
                self._segments[segment, 0],
                self._segments[segment, 2] - self._stops[segment] + frame,
            )

        span = Span(0, self._order.start, self._batch, steps)
        datasets = {self._source.name: OrderExport.facts_of(self._source)}
        export = OrderExport(self._order.spec, [span], datasets, has_formula=False)
        export.write(path, span.samples(locate))

    def _position(self) -> int:
        """End of the last global batch of which this rank's share was yielded."""
        to_come = length_hint(self._drawn)
        return self._until - -(-to_come // self._share) * self._batch

    def _end(self) -> int:
        """End of the pass that starts at `_start`: the first whole batch at or behind the end of
        its epoch.
        """
        remaining = (self._epoch + 1) * self._pass - self._start
        fewest_batches = 0 if self._over else 1
        return self._start + max(fewest_batches, -(-remaining // self._batch)) * self._batch

    def _advance(self) -> None:
        """Turn to the next pass as soon as the last index of this one is yielded."""
        if not self._over and self._position() >= self._end():
            self._go_to(self._position())

    def _go_to(self, position: int) -> None:
        self._start = self._until = position
        self._drawn = iter([0][:0])
        self._epoch = position // self._pass
        self._over = False


def _select(
    data: Any, episodes: Sequence[int] | None, drop_first: int, drop_last: int
) -> np.ndarray:
    """Selected indices of a dataset: int64 (K', 3), rows [row of data.segments, start, stop)."""
    for name, value in (("drop_n_first_frames", drop_first), ("drop_n_last_frames", drop_last)):
        if value < 0:
            raise ValueError(f"{name} must be >= 0, got {value}")
    segments = np.asarray(data.segments, np.int64).reshape(-1, 3)
    lengths = segments[:, 2] - segments[:, 1]
    stops = np.cumsum(lengths)
    if len(stops) and len(data) != stops[-1]:
        raise ValueError(
            f"{type(data).__name__} has {len(data)} items but its segments hold {stops[-1]} frames"
        )
    selected = np.ones(len(segments), bool)
    if episodes is not None:
        missing = sorted(set(map(int, episodes)) - set(segments[:, 0].tolist()))
        if missing:
            raise ValueError(
                f"episodes {missing[:10]} are not in the dataset: take ids from its `segments`"
            )
        selected = np.isin(segments[:, 0], np.asarray(list(episodes), np.int64))
    nonempty = selected & (lengths > 0)
    selected = nonempty & (lengths > drop_first + drop_last)
    if not selected.any():
        raise ValueError(
            f"No valid frames remain: {len(segments)} segments, the longest of "
            f"{lengths.max(initial=0)} frames, drop_n_first_frames {drop_first}, "
            f"drop_n_last_frames {drop_last}"
        )
    if len(gone := np.setdiff1d(segments[nonempty, 0], segments[selected, 0])):
        named = ", ".join(map(str, gone[:10].tolist()))
        if len(gone) > 10:
            named += f" and {len(gone) - 10} more"
        noun = "episodes" if len(gone) > 1 else "episode"
        warnings.warn(
            f"no frames remain of {noun} {named}: "
            f"drop_n_first_frames {drop_first} and drop_n_last_frames {drop_last} leave out all "
            "of them",
            stacklevel=3,
        )
    rows = np.stack(
        [np.arange(len(segments)), stops - lengths + drop_first, stops - drop_last], axis=1
    )
    rows = rows[selected]
    if getattr(data, "frame_weights", None) is None:
        return rows
    return _repeat(segments, stops, rows, data.epoch_segments)


def _repeat(
    segments: np.ndarray, stops: np.ndarray, rows: np.ndarray, epoch: np.ndarray
) -> np.ndarray:
    """Selected indices of an epoch with copies of frames, as `_select`.

    Args:
        segments: int64 (K, 3), of the dataset, ascending.
        stops: int64 (K,), sum of their lengths.
        rows: int64 (K', 3), selected indices without copies.
        epoch: int64 (E, 3), rows [episode, start, stop) within segments.
    """
    begins = segments[:, 0] * EPISODE_STRIDE + segments[:, 1]
    number = np.searchsorted(begins, epoch[:, 0] * EPISODE_STRIDE + epoch[:, 1], side="right") - 1
    bounds = np.zeros((len(segments), 2), np.int64)  # of a segment that is not selected: empty
    bounds[rows[:, 0]] = rows[:, 1:]
    shift = stops[number] - segments[number, 2]
    start = np.maximum(epoch[:, 1] + shift, bounds[number, 0])
    stop = np.minimum(epoch[:, 2] + shift, bounds[number, 1])
    some = stop > start
    return np.stack([number, start, stop], axis=1)[some]
