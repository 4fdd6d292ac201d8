"""The held-out frames of all sources as one line, cut into chunks that are always the same, and read ahead in threads.

The sources stand in the line by name, so their sequence in the settings changes nothing; a chunk may hold frames of
many, so small ones cost no more than large ones. A chunk has the same samples in the same rows whoever computes it and
in whatever batches the run trains: that makes its numbers the same to the bit. A sample is known by its source's name,
its episode and its frame: sources that are added move nobody's draws.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from understudy.batch_keys import ACTION, HEAD
from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError, SourceError
from understudy.load.eval.validation_sample import all_of, chosen, identity
from understudy.load.images.decoded_cache import decoded_bytes, keep_decoded
from understudy.load.mixture import Mixture
from understudy.order.random.keys import make_key
from understudy.video.resize import AreaResize

UNREADABLE = "unreadable"
_TRIES = 4096  # samples that are tried for one that can be read


class Sources(Protocol):
    """What is read of a run's sources, each split into a training and a validation part; K of them."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def training(self) -> tuple[EpisodeDataset, ...]: ...
    @property
    def held_out(self) -> tuple[EpisodeDataset | None, ...]: ...
    @property
    def weights(self) -> tuple[float, ...]: ...
    @property
    def heads(self) -> tuple[str, ...]: ...
    @property
    def cameras(self) -> tuple[str, ...]: ...
    @property
    def size(self) -> tuple[int, int] | None: ...
    @property
    def head_of_source(self) -> np.ndarray:
        """int64 (K,): the norm head of each source."""


@dataclass(frozen=True)
class HeldOut:
    """The line. N samples of K sources, all held-out frames or a sample of them; a source without held-out frames is
    none of the K."""

    names: tuple[str, ...]
    """Of the K sources, ascending."""
    datasets: tuple[EpisodeDataset, ...]
    numbers: np.ndarray
    """int64 (K,), what the run numbers them by."""
    heads: tuple[str, ...]
    """Of all norm heads of the run."""
    head_weights: tuple[float, ...]
    """Of each head: the sum of the mixture weights of its sources."""
    head_of: np.ndarray
    """int64 (K,), the norm head of each source."""
    keys: np.ndarray
    """int64 (K,), what keeps the draws of one source from those of another; 0 for the only dataset of a run."""
    source: np.ndarray
    """int64 (N,), numbers below K, ascending."""
    episode: np.ndarray
    frame: np.ndarray
    place: np.ndarray
    """int64 (N,), how many samples of its source stand before it."""
    total: int
    """Held-out frames, N or more."""
    mixture: Mixture
    cameras: tuple[str, ...]
    size: tuple[int, int] | None
    """(height, width) of all pictures, where those of the sources differ."""
    skips: bool = False
    """Whether samples that cannot be read are left out."""

    @classmethod
    def of(cls, data: Sources, mixed: bool, most: int = 0, skips: bool = False) -> "HeldOut | None":
        """The line of a run's data; None where nothing is held out.

        Args:
            mixed: the settings list the sources. The only dataset of a run that does not is known by nothing but its
                episodes and frames, so that it may be renamed.
            most: samples of the line; 0 takes all held-out frames.
            skips: leave out samples that cannot be read.
        """
        there = sorted((name, number) for number, name in enumerate(data.names) if data.held_out[number] is not None)
        if not there:
            return None
        numbers = np.array([number for _, number in there])
        datasets = tuple(part for number in numbers if (part := data.held_out[number]) is not None)
        keys = np.array([source_key(name) if mixed else 0 for name, _ in there], np.int64)
        rows = np.concatenate([part.segments for part in datasets])
        of_segment = np.repeat(np.arange(len(datasets)), [len(part.segments) for part in datasets])
        tasks = np.concatenate([_first_tasks(part) for part in datasets])
        stratum = np.unique(np.stack([of_segment, tasks], axis=1), axis=0, return_inverse=True)[1].reshape(-1)
        segment, frame = chosen(rows, stratum, keys[of_segment], most)
        source = of_segment[segment]
        of_source = np.bincount(source, minlength=len(datasets))
        return cls(
            names=tuple(name for name, _ in there),
            datasets=datasets,
            numbers=numbers,
            heads=data.heads,
            head_weights=tuple(np.bincount(data.head_of_source, data.weights, len(data.heads)).tolist()),
            head_of=data.head_of_source[numbers],
            keys=keys,
            source=source,
            episode=rows[segment, 0],
            frame=frame,
            place=np.arange(len(source)) - np.repeat(np.cumsum(of_source) - of_source, of_source),
            total=int(all_of(rows).sum()),
            # How wide a batch is, all sources decide together, in the sequence of the run.
            mixture=Mixture.from_datasets(data.training),
            cameras=data.cameras,
            size=data.size,
            skips=skips,
        )

    def __len__(self) -> int:
        return len(self.source)

    def resident(self, memory: int) -> "HeldOut":
        """The same samples; sources whose pictures fit `memory` (bytes, all together) stay decoded as they are met."""
        held = []
        for part in self.datasets:
            needed = decoded_bytes(part, self.size)
            fits = 0 < needed <= memory
            held.append(keep_decoded(part, self.size) if fits else part)
            memory -= needed if fits else 0
        return replace(self, datasets=tuple(held))

    def only(self, chosen: np.ndarray) -> "HeldOut":
        """The line without the samples that are not `chosen`, bool (N,)."""
        return replace(
            self, source=self.source[chosen], episode=self.episode[chosen], frame=self.frame[chosen],
            place=self.place[chosen],
        )  # fmt: skip

    def identity(self, part: slice) -> Tensor:
        """One number per sample for its draws, whatever else is held out: int64 [n]."""
        return sample_identity(self.episode[part], self.frame[part], self.keys[self.source[part]])

    def read(self, part: slice) -> dict[str, Any]:
        """`batch`, and under `UNREADABLE` which of its rows hold another sample since theirs cannot be read, and why.

        Raises:
            DatasetError: a sample cannot be read and is not to be left out, or none can.
        """
        try:
            return self.batch(part) | {UNREADABLE: {}}
        except DatasetError as error:
            if not self.skips or isinstance(error, SourceError):
                raise
            wrong = {
                row: why for row, number in enumerate(range(part.start, part.stop)) if (why := self._wrong(number))
            }
            if not wrong:
                raise  # it was none of the samples
            numbers = np.arange(part.start, part.stop)
            readable = np.delete(numbers, list(wrong))
            if not len(readable):
                others = (number for number in range(min(len(self), _TRIES)) if not self._wrong(number))
                readable = np.array(list(islice(others, 1)))
                if not len(readable):
                    raise
            for row in wrong:
                numbers[row] = readable[np.abs(readable - numbers[row]).argmin()]
            return self.batch(numbers) | {UNREADABLE: wrong}

    def _wrong(self, number: int) -> str | None:
        """Why one sample cannot be read, if it cannot."""
        try:
            self.batch(slice(number, number + 1))
        except SourceError:
            raise
        except DatasetError as error:
            return str(error)
        return None

    def batch(self, part: slice | np.ndarray) -> dict[str, Any]:
        """Samples of the line as the policy takes them: one source's keys and dtypes, padded to the run's widths."""
        sources = self.source[part]
        parts = {}
        for own in np.unique(sources).tolist():
            at = sources == own
            of_source = self.datasets[own].batch(self.episode[part][at], self.frame[part][at])
            parts[int(self.numbers[own])] = self._resized(of_source)
        batch = self.mixture.join(parts, self.numbers[sources])
        if len(self.heads) > 1:
            batch[HEAD] = torch.from_numpy(self.head_of[sources])
        return batch

    def _resized(self, batch: dict[str, Any]) -> dict[str, Any]:
        """With pictures of the run's size, to the bit as the loader makes them (`video/color.py`)."""
        if self.size is None:
            return batch
        for camera in self.cameras:
            given = batch.get(camera)
            if given is not None and tuple(given.shape[2:]) != self.size:
                height, width = given.shape[2:]
                out = np.empty((len(given), 3, *self.size), np.uint8)
                resize = AreaResize(height, width, self.size)
                for planes, place in zip(given.numpy(), out):
                    resize(planes, place)
                batch[camera] = torch.from_numpy(out)
        return batch

    def joints(self, number: int) -> list[str]:
        """Names of the action's dimensions in one of the K sources, each once; their numbers where it has no names."""
        return self.datasets[number].catalog.features[ACTION].dimension_names


def source_key(name: str) -> int:
    """What belongs to the name of a source: 63 bits."""
    return make_key(0, f"held-out source {name}") >> 1


def sample_identity(episode: np.ndarray, frame: np.ndarray, key: np.ndarray | int = 0) -> Tensor:
    """`held_out_sample.identity` as a tensor."""
    return torch.from_numpy(identity(episode, frame, key))


def _first_tasks(data: EpisodeDataset) -> np.ndarray:
    """The first task of the episode of each segment, -1 where it has none: int64 (S,)."""
    table = data.catalog.episodes
    row = table.rows_of(data.segments[:, 0])
    begin, end = table.task_offsets[row], table.task_offsets[row + 1]
    found = np.full(len(row), -1, np.int64)
    found[end > begin] = table.task_indices[begin[end > begin]]
    return found


def dealt(chunks: int, rank: int, world: int) -> tuple[list[int], int]:
    """The chunks of a rank, neighbours in the line so that each picture is decoded by one, and how many turns all ranks
    take together: no rank has more chunks, some have one less."""
    low, high = rank * chunks // world, (rank + 1) * chunks // world
    return list(range(low, high)), -(-chunks // world)


def ahead(
    read: Callable[[int], dict[str, Any]], numbers: Sequence[int], threads: int, memory: int
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """(number, what `read` gives for it) for each of `numbers`, once, read in up to `threads` threads.

    Each thread walks neighbours, one ahead of who computes, since a decoder that goes on where it stands decodes
    nothing twice; so they come in a sequence of their own. As many read as `memory` (bytes) has room for what they
    hold, at least one.
    """
    if not numbers:
        return
    first = read(numbers[0])
    yield numbers[0], first
    size = sum(value.nbytes for value in first.values() if isinstance(value, Tensor))
    del first
    rest = numbers[1:]
    lanes = max(1, min(threads, memory // max(1, size), len(rest)))
    runs = [deque(rest[lane * len(rest) // lanes : (lane + 1) * len(rest) // lanes]) for lane in range(lanes)]
    with ThreadPoolExecutor(lanes, thread_name_prefix="understudy-held-out") as pool:

        def begun(run: deque[int]) -> Any:
            number = run.popleft()
            return run, number, pool.submit(read, number)

        waiting = deque(begun(run) for run in runs if run)
        while waiting:
            run, number, coming = waiting.popleft()
            batch = coming.result()
            if run:
                waiting.append(begun(run))
            yield number, batch
            del batch, coming  # or it would be held while the next one is awaited
