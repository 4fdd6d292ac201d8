"""EpisodeSampler: the order for people who keep torch's DataLoader.

    sampler = EpisodeSampler(data, seed=0, batch=64)              # 64: the global batch, all ranks together
    loader = DataLoader(data, batch_size=64, sampler=sampler)     # or StatefulDataLoader, or accelerator.prepare
    torch.save(sampler.state_dict(consumed=step * 64), path)      # one integer: samples consumed since the start
    sampler.load_state_dict(torch.load(path))                     # any ranks, batch or workers from here on

What it keeps is a position in an endless stream of samples, in which every N in a row are an epoch. Position and seed
say everything, so neither a restart nor another number of ranks nor another batch changes which samples come.

Consumed is not yielded. A DataLoader with workers asks for indices some batches ahead of what it hands out, and what a
checkpoint must hold is what the optimiser has used. `state_dict(consumed=...)` takes that number from you;
`state_dict()` without it counts what was yielded, which is the same with `num_workers=0` and inside a
StatefulDataLoader (it asks for the state as each batch is drawn and keeps it beside the batch).

Whole batches. Given `batch`, each pass ends on a whole global batch: the last one is filled with the first samples
of the next epoch, and the next pass starts behind them. Nothing is dropped or repeated, and a loader that would
pad or cut a short last batch (Accelerate does, with samples that depend on where it was resumed) never meets one.
Without it a pass is exactly the rest of the epoch.
"""

import warnings
from collections.abc import Iterator, Sequence
from operator import length_hint
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from understudy.deprecation import renamed_arguments
from understudy.order import Order, Spec, compare, rank_slice
from understudy.order.settle import listed

_FIRST_CHUNK, _CHUNK = 256, 16384


class EpisodeSampler(Sampler[int]):
    """Indices into a map-style dataset, each selected frame once per epoch, in an order that survives any restart.

    data: the dataset; anything with `segments`, int64 (K, 3) rows [episode, start, stop) in the order of its items.
    shuffle: uniformly, anew in every epoch; False: in storage order.
    seed: of the shuffling.
    episodes: ids of the episodes to take; None for all.
    drop_n_first_frames, drop_n_last_frames: leave out this many at the ends of each segment (of each episode, where
        whole episodes are selected). A warning names the episodes of which nothing is left.
    batch: global batch, for passes of whole batches (see above).
    rank, world: yield only the share of this rank in each global batch (batch/world of them, one after the other), for
        a DataLoader whose batch_size is batch/world. Not with Accelerate, which shares the batches out itself.

    Raises ValueError for a selection that is empty, an episode that is not there, a batch that the ranks cannot share
    evenly, and numbers out of range.
    """

    @renamed_arguments(batch="batch_size", world="world_size")
    def __init__(
        self,
        data: Any,
        *,
        shuffle: bool = True,
        seed: int = 0,
        episodes: Sequence[int] | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        batch_size: int | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if batch_size is None and world_size != 1:
            raise ValueError(
                f"world_size {world_size} without batch_size: give the size of the global batch that the ranks share"
            )
        low, high = rank_slice(1 if batch_size is None else batch_size, rank, world_size)
        if batch_size is not None and batch_size % world_size:
            raise ValueError(
                f"batch_size {batch_size} over {world_size} ranks: need a multiple, so that all yield equally many"
            )
        self._batch, self._offset, self._share = batch_size or 1, low, high - low
        if len(given := listed(data)) > 1:
            raise ValueError(
                f"{len(given)} datasets: a sampler takes one; give all of them to `Loader`, which mixes them"
            )
        data = given[0]
        rows = _select(data, episodes, drop_n_first_frames, drop_n_last_frames)
        # To the order this is a source whose "frames" are the dataset's indices.
        source = SimpleNamespace(name="sampler", segments=rows, gop=1, reach=(0, 0))
        self._order = Order.from_datasets(
            [source], batch_size=self._batch, seed=seed, mode="uniform" if shuffle else "sequential"
        )
        self._frames = self._order.spec.sources[0].frames
        self._pass = max(self._frames, self._batch)  # positions in a pass, before it is rounded to whole batches
        self._rows = rows
        self._epoch, self._start = 0, 0
        self._over = False  # whether the pass that comes next was over when its state was saved, as LeRobot counts
        self._until, self._drawn = 0, iter([0][:0])  # behind the chunk of positions in hand, and its indices to come
        self._numbered_from: int | None = 0  # the caller's number of an epoch, plus this, is its number in the stream

    @property
    def indices(self) -> list[int]:
        """The selected indices in storage order. Made anew at each call and O(N); the sampler itself keeps the bounds
        of segments alone."""
        starts, lengths = self._rows[:, 1], self._rows[:, 2] - self._rows[:, 1]
        behind = np.cumsum(lengths)
        return (np.arange(behind[-1]) + np.repeat(starts - (behind - lengths), lengths)).tolist()

    def __len__(self) -> int:
        """How many indices the pass yields that is under way or, between passes, comes next."""
        self._advance()
        return (self._end() - self._start) // self._batch * self._share

    def __iter__(self) -> Iterator[int]:
        """One pass: from where the epoch starts, or from where a restored state stopped, to its end."""
        if self._over:
            self._go_to(self._start)
            return
        self._advance()
        at, end, batches = self._start, self._end(), max(1, _FIRST_CHUNK // self._batch)
        while at < end:
            self._until = min(end, at + batches * self._batch)
            self._drawn = iter(self._indices(at, self._until))
            yield from self._drawn
            at, batches = self._until, max(1, min(2 * batches, _CHUNK // self._batch))

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is, as for torch's DistributedSampler. Calling it is optional.

        Naming the epoch that is due anyway changes nothing; the one behind it starts where this one ends; another
        starts where it would in a run with this batch from the beginning. The first call after `load_state_dict` names
        the restored epoch, whatever its number: Accelerate counts from 0 again after a restart, a loop that goes on
        from the saved number says that number, and both mean the epoch that was saved.

        Raises ValueError for a negative epoch, or one that was before the run began.
        """
        self._advance()
        if self._numbered_from is None:
            self._numbered_from = self._epoch - epoch
        wanted = epoch + self._numbered_from
        if min(epoch, wanted) < 0:
            raise ValueError(f"epoch {epoch}: epochs start at {max(0, -self._numbered_from)}")
        if wanted != self._epoch:
            following = wanted == self._epoch + 1
            self._go_to(self._end() if following else -(-wanted * self._pass // self._batch) * self._batch)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """{"position", "order"}: where to go on, and what the positions mean.

        consumed: samples consumed by all ranks since the run began (for a constant global batch B: step * B; where a
            short last batch ends each epoch: epoch * N + batches * B). None: what has been yielded.
        """
        position = self._position() if consumed is None else int(consumed)
        if position < 0:
            raise ValueError(f"consumed {position}: need 0 or more")
        return {"position": position, "order": self._order.to_json()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, in the same epoch or, if it was at its end, in the next.

        Batch, rank and world may differ. LeRobot's {"epoch", "start_index"} is understood, too: the order is the one of
        this sampler, so it goes on behind as many samples, not behind the same ones; as in LeRobot, a start_index
        behind the epoch's last index gives an empty pass first. Such a state does not say what it was of.

        Raises ValueError that tells each difference if the data, the selection, the seed or the shuffling does, or if
        this is no state of such a sampler.
        """
        if set(state_dict) == {"epoch", "start_index"}:
            self._load_lerobot(state_dict["epoch"], state_dict["start_index"])
            return
        if set(state_dict) != {"position", "order"} or int(state_dict["position"]) < 0:
            raise ValueError(
                f"{str(state_dict)[:80]} is no state of an EpisodeSampler: give what `state_dict` returned, or "
                "LeRobot's epoch and start_index"
            )
        saved = Spec.from_json(state_dict["order"])
        if differences := [d for d in compare(saved, self._order.spec) if d.changes_order]:
            raise ValueError("this sampler is not the saved one:\n" + "\n".join(map(str, differences)))
        self._go_to(int(state_dict["position"]))
        self._numbered_from = None

    def _load_lerobot(self, epoch: Any, start_index: Any) -> None:
        for name, value, most in (("epoch", epoch, 2**40), ("start_index", start_index, self._frames)):
            if type(value) is not int or not 0 <= value <= most:
                raise ValueError(f"{name} {value!r} of LeRobot's state: need a whole number from 0 to {most}")
        over = start_index == self._frames
        begin = -(-(epoch + over) * self._pass // self._batch) * self._batch
        self._go_to(begin if over else begin + start_index)
        if over:
            self._epoch, self._over = epoch, True
        self._numbered_from = None

    def _indices(self, start: int, stop: int) -> list[int]:
        """This rank's dataset indices among the positions [start, stop), which are whole global batches."""
        positions = np.arange(start, stop, dtype=np.int64)
        if self._share != self._batch:
            positions = positions.reshape(-1, self._batch)[:, self._offset : self._offset + self._share].reshape(-1)
        return self._order.locate(positions)[2].tolist()

    def _position(self) -> int:
        """Behind the last global batch of which this rank's share has been yielded."""
        to_come = length_hint(self._drawn)
        return self._until - -(-to_come // self._share) * self._batch

    def _end(self) -> int:
        """Where the pass that starts at `_start` ends: the first whole batch at or behind the end of its epoch."""
        rest = (self._epoch + 1) * self._pass - self._start
        return self._start + max(0 if self._over else 1, -(-rest // self._batch)) * self._batch

    def _advance(self) -> None:
        """Turn to the next pass once the last index of this one is out, without waiting to be asked for one more."""
        if not self._over and self._position() >= self._end():
            self._go_to(self._position())

    def _go_to(self, position: int) -> None:
        self._start = self._until = position
        self._drawn = iter([0][:0])
        self._epoch, self._over = position // self._pass, False


def _select(data: Any, episodes: Sequence[int] | None, drop_first: int, drop_last: int) -> np.ndarray:
    """int64 (K', 3): rows [row of data.segments, first, behind last) of the dataset's indices that are kept."""
    for name, value in (("drop_n_first_frames", drop_first), ("drop_n_last_frames", drop_last)):
        if value < 0:
            raise ValueError(f"{name} must be >= 0, got {value}")
    segments = np.asarray(data.segments, np.int64).reshape(-1, 3)
    lengths = segments[:, 2] - segments[:, 1]
    stops = np.cumsum(lengths)
    if len(stops) and len(data) != stops[-1]:
        raise ValueError(f"{type(data).__name__} has {len(data)} items but its segments hold {stops[-1]} frames")
    kept = np.ones(len(segments), bool)
    if episodes is not None:
        missing = sorted(set(map(int, episodes)) - set(segments[:, 0].tolist()))
        if missing:
            raise ValueError(f"episodes {missing[:10]} are not in the dataset: take ids from its `segments`")
        kept = np.isin(segments[:, 0], np.asarray(list(episodes), np.int64))
    chosen = kept & (lengths > 0)
    kept = chosen & (lengths > drop_first + drop_last)
    if not kept.any():
        raise ValueError(
            f"No valid frames remain: {len(segments)} segments, the longest of {lengths.max(initial=0)} frames, "
            f"drop_n_first_frames {drop_first}, drop_n_last_frames {drop_last}"
        )
    if len(gone := np.setdiff1d(segments[chosen, 0], segments[kept, 0])):
        named = ", ".join(map(str, gone[:10].tolist())) + (f" and {len(gone) - 10} more" if len(gone) > 10 else "")
        warnings.warn(
            f"nothing is left of episode{'s' if len(gone) > 1 else ''} {named}: drop_n_first_frames {drop_first} and "
            f"drop_n_last_frames {drop_last} leave out all frames",
            stacklevel=3,
        )
    rows = np.stack([np.arange(len(segments)), stops - lengths + drop_first, stops - drop_last], axis=1)
    return rows[kept]
