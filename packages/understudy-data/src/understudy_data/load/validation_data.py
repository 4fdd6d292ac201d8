"""Validation frames of all sources as one sequence, cut into fixed chunks and prefetched by
threads.

The sources are sorted by name, so their sequence in the settings has no effect. A chunk may contain
frames of many sources, so small sources cost no more than large ones. A chunk has the same samples
in the same rows on any rank, which makes its numbers the same to the bit. It has at most as many
samples as a forward pass of the training. A sample is identified by the name of its source, its
episode and its frame: added sources do not change the draws of the others.

A sample of the validation frames, where there are too many to evaluate all.

The sample has a given size and is the same in every run on the same frames: it depends on neither
seed, ranks nor batch size. The frames of one source and one task are a stratum. A stratum gets its
share of the sample, and a small one at least a few frames, as long as a tenth of the sample
suffices for that. Within a stratum the frames are spread over its episodes in proportion to their
lengths, and within an episode over its length: one frame from each of equal parts, drawn by the key
of the first sample of the part. Memory is needed only for chosen frames.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from understudy_base import ACTION, HEAD, TASK, DatasetError
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.images.decoded_cache import decoded_bytes, keep_decoded
from understudy_data.load.instructions import Instructions
from understudy_data.load.mixed_batches import Mixture
from understudy_data.order import sample_uniform
from understudy_data.order.random import make_key
from understudy_data.video.color import make_resize

_TRIES = 4096  # samples to try for a readable one


class Sources(Protocol):
    """The K sources of a run, each split into a training and a validation part."""

    @property
    def names(self) -> tuple[str, ...]:
        """Unique names."""

    @property
    def training(self) -> tuple[EpisodeDataset, ...]:
        """Training part of each source."""

    @property
    def validation(self) -> tuple[EpisodeDataset | None, ...]:
        """Validation part of each source, if any."""

    @property
    def weights(self) -> tuple[float, ...]:
        """Mixture weights."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the norm heads."""

    @property
    def cameras(self) -> tuple[str, ...]:
        """Standard keys of the cameras."""

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of the images, if they are resized."""

    @property
    def head_of_source(self) -> np.ndarray:
        """int64 (K,): the norm head of each source."""


@dataclass(frozen=True)
class ValidationData:
    """N validation samples of K sources: all validation frames, or a sample of them.

    Sources without validation frames do not count.
    """

    UNREADABLE: ClassVar[str] = "unreadable"
    """Key of what `read` returns: the error of each replaced row, by its number."""

    names: tuple[str, ...]
    """Names of the K sources, ascending."""
    datasets: tuple[EpisodeDataset, ...]
    """Their validation parts."""
    numbers: np.ndarray
    """int64 (K,): their indexes among all sources of the run."""
    heads: tuple[str, ...]
    """Names of all norm heads of the run."""
    head_weights: tuple[float, ...]
    """Sum of the mixture weights of the sources of each head."""
    head_of: np.ndarray
    """int64 (K,): index of the norm head of each source."""
    keys: np.ndarray
    """int64 (K,): keys that separate the draws of the sources; 0 for the only dataset of a run."""
    source: np.ndarray
    """int64 (N,): index of the source of each sample, ascending."""
    episode: np.ndarray
    """int64 (N,): its episode."""
    frame: np.ndarray
    """int64 (N,): its frame in the episode."""
    place: np.ndarray
    """int64 (N,): the number of earlier samples of its source."""
    total: int
    """Number of validation frames, N or more."""
    mixture: Mixture
    """The common widths of all sources."""
    cameras: tuple[str, ...]
    """Standard keys of the cameras."""
    size: tuple[int, int] | None
    """(height, width) of all images, where those of the sources differ."""
    skip_unreadable: bool = False
    """Whether samples that cannot be read are skipped."""
    weight: np.ndarray | None = None
    """float64 (N,): weight of each sample in means, its frame weight; None: all count the same."""
    task_separator: str = ""
    """Text between several instructions of an episode, of which a sample gets one; "": the task
    text as it is.
    """
    chunk: int = 128
    """Most samples of a chunk."""

    @classmethod
    def from_sources(
        cls,
        data: Sources,
        mixed: bool,
        limit: int = 0,
        skip_unreadable: bool = False,
        task_separator: str = "",
    ) -> "ValidationData | None":
        """Take the validation samples of a run's sources; None if there are none.

        Args:
            data: the sources.
            mixed: whether the settings list the sources. Otherwise the name of the only dataset is
                not part of a sample's identity, so it may be renamed.
            limit: largest number of samples; 0 takes all validation frames.
            skip_unreadable: skip samples that cannot be read.
            task_separator: text between several instructions of an episode, of which a sample gets
                one.
        """
        present = sorted(
            (name, number)
            for number, name in enumerate(data.names)
            if data.validation[number] is not None
        )
        if not present:
            return None
        numbers = np.array([number for _, number in present])
        parts = [data.validation[number] for number in numbers]
        datasets = tuple(part for part in parts if part is not None)
        keys = np.zeros(len(present), np.int64)
        if mixed:
            keys = np.array([source_key(name) for name, _ in present], np.int64)
        tables = [(part.segments, part.catalog.episodes) for part in datasets]
        inputs = [
            (segments, table.ids, table.task_offsets, table.task_indices)
            for segments, table in tables
        ]
        make = partial(_sample_sources, datasets, keys, limit)
        source, episode, frame, total = datasets[0].share(make, *chain(*inputs), keys, limit)
        of_source = np.bincount(source, minlength=len(datasets))
        weight = np.ones(len(source)) if any(part.frame_weights for part in datasets) else None
        for number, part in enumerate(datasets):
            if part.frame_weights is not None and weight is not None:
                of_part = source == number
                weight[of_part] = part.frame_weights.weights(episode[of_part], frame[of_part])
        return cls(
            names=tuple(name for name, _ in present),
            datasets=datasets,
            numbers=numbers,
            heads=data.heads,
            head_weights=tuple(
                np.bincount(data.head_of_source, data.weights, len(data.heads)).tolist()
            ),
            head_of=data.head_of_source[numbers],
            keys=keys,
            source=source,
            episode=episode,
            frame=frame,
            place=np.arange(len(source)) - np.repeat(np.cumsum(of_source) - of_source, of_source),
            total=total,
            # All sources together determine the widths of a batch, in the sequence of the run.
            mixture=Mixture.from_datasets(data.training),
            cameras=data.cameras,
            size=data.size,
            skip_unreadable=skip_unreadable,
            weight=weight,
            task_separator=task_separator,
        )

    def __len__(self) -> int:
        return len(self.source)

    def keep_decoded(self, memory: int) -> "ValidationData":
        """Return the same samples with sources whose decoded images fit into `memory` bytes kept in
        memory.
        """
        datasets = []
        for part in self.datasets:
            needed = decoded_bytes(part, self.size)
            if 0 < needed <= memory:
                datasets.append(keep_decoded(part, self.size))
                memory -= needed
            else:
                datasets.append(part)
        return replace(self, datasets=tuple(datasets))

    def select(self, mask: np.ndarray) -> "ValidationData":
        """Return the samples where `mask`, bool (N,), is true."""
        weight = None if self.weight is None else self.weight[mask]
        return replace(
            self, source=self.source[mask], episode=self.episode[mask], frame=self.frame[mask],
            place=self.place[mask], weight=weight,
        )  # fmt: skip

    def identity(self, part: slice) -> Tensor:
        """Return the number that keys the draws of each sample, independent of all others: int64
        [n].
        """
        return sample_identity(self.episode[part], self.frame[part], self.keys[self.source[part]])

    def read(self, part: slice) -> dict[str, Any]:
        """Read a `batch`, with another sample in place of each unreadable one.

        Returns:
            The batch. Under `UNREADABLE` it has the error of each replaced row.

        Raises:
            DatasetError: a sample cannot be read and must not be skipped, or no sample can be read.
        """
        try:
            return self.batch(part) | {self.UNREADABLE: {}}
        except DatasetError:
            if not self.skip_unreadable:
                raise
            wrong = {}
            for row, number in enumerate(range(part.start, part.stop)):
                reason = self._find_error(number)
                if reason:
                    wrong[row] = reason
            if not wrong:
                raise  # not the error of a sample
            numbers = np.arange(part.start, part.stop)
            readable = np.delete(numbers, list(wrong))
            if not len(readable):
                others = (
                    number
                    for number in range(min(len(self), _TRIES))
                    if not self._find_error(number)
                )
                readable = np.array(list(islice(others, 1)))
                if not len(readable):
                    raise
            for row in wrong:
                numbers[row] = readable[np.abs(readable - numbers[row]).argmin()]
            return self.batch(numbers) | {self.UNREADABLE: wrong}

    @staticmethod
    def share_chunks(chunks: int, rank: int, world_size: int) -> tuple[list[int], int]:
        """Return the chunks of a rank, and the number of turns that all ranks take together.

        Chunks of a rank are neighbours, so each image is decoded by one rank. Some ranks have one
        chunk less than others.
        """
        low = rank * chunks // world_size
        high = (rank + 1) * chunks // world_size
        return list(range(low, high)), -(-chunks // world_size)

    def read_ahead(
        self,
        parts: Sequence[slice],
        numbers: Sequence[int],
        prepare: Callable[[dict[str, Any]], dict[str, Any]],
        threads: int,
        memory: int,
    ) -> Generator[tuple[int, dict[str, Any]], None, None]:
        """Yield (number, batch) once for each of `numbers`, read ahead by threads
        (`prefetch_chunks`).

        Args:
            parts: samples of each chunk.
            numbers: of the chunks to read.
            prepare: called with each batch that was read; its result is the batch.
            threads: most threads.
            memory: bytes, which bound the number of threads.
        """
        return prefetch_chunks(
            lambda number: prepare(self.read(parts[number])), numbers, threads, memory
        )

    def _find_error(self, number: int) -> str | None:
        """Return the error of reading one sample, if any."""
        try:
            self.batch(slice(number, number + 1))
        except DatasetError as error:
            return str(error)
        return None

    def batch(self, part: slice | np.ndarray) -> dict[str, Any]:
        """Read samples in the policy's format: standard keys and dtypes, padded to the run's
        widths.
        """
        sources = self.source[part]
        parts = {}
        for source in np.unique(sources).tolist():
            mask = sources == source
            of_source = self.datasets[source].batch(
                self.episode[part][mask], self.frame[part][mask]
            )
            parts[int(self.numbers[source])] = self._resize(of_source)
        batch = self.mixture.join(parts, self.numbers[sources])
        if self.task_separator:
            keys = identity(self.episode[part], self.frame[part], self.keys[sources])
            batch[TASK] = Instructions(self.task_separator).draw(batch[TASK], 0, keys)
        if len(self.heads) > 1:
            batch[HEAD] = torch.from_numpy(self.head_of[sources])
        return batch

    def _resize(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Resize images to the run's size, with the same bits as the loader (`video/color.py`)."""
        if self.size is None:
            return batch
        for camera in self.cameras:
            images = batch.get(camera)
            if images is not None and tuple(images.shape[-2:]) != self.size:
                height, width = images.shape[-2:]
                # [B, 3, H, W] or [B, T, 3, H, W]
                out = np.empty((*images.shape[:-2], *self.size), np.uint8)
                resize = make_resize(height, width, self.size)
                for planes, place in zip(
                    images.flatten(0, -4).numpy(), out.reshape(-1, *out.shape[-3:])
                ):
                    resize(planes, place)
                batch[camera] = torch.from_numpy(out)
        return batch

    def action_names(self, number: int) -> list[str]:
        """Return the names of a source's action dimensions, each once; their numbers if it has no
        names.
        """
        return self.datasets[number].catalog.features[ACTION].dimension_names


def source_key(name: str) -> int:
    """Return the key of a source's name: 63 bits."""
    return make_key(0, f"held-out source {name}") >> 1


def sample_identity(episode: np.ndarray, frame: np.ndarray, key: np.ndarray | int = 0) -> Tensor:
    """Return `identity` of each frame as a tensor, int64 [B]."""
    return torch.from_numpy(identity(episode, frame, key))


def _first_tasks(data: EpisodeDataset) -> np.ndarray:
    """First task of the episode of each segment, -1 where it has none: int64 (S,)."""
    table = data.catalog.episodes
    row = table.rows_of(data.segments[:, 0])
    begin = table.task_offsets[row]
    end = table.task_offsets[row + 1]
    first_tasks = np.full(len(row), -1, np.int64)
    first_tasks[end > begin] = table.task_indices[begin[end > begin]]
    return first_tasks


def _sample_sources(
    datasets: Sequence[EpisodeDataset], keys: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Source, episode and frame of each validation sample, int64 (N,), and the number of all
    frames.
    """
    rows = np.concatenate([part.segments for part in datasets])
    of_segment = np.repeat(np.arange(len(datasets)), [len(part.segments) for part in datasets])
    tasks = np.concatenate([_first_tasks(part) for part in datasets])
    stratum = np.unique(np.stack([of_segment, tasks], axis=1), axis=0, return_inverse=True)[
        1
    ].reshape(-1)
    segment, frame = sample_frames(rows, stratum, keys[of_segment], limit)
    return of_segment[segment], rows[segment, 0], frame, int(frame_counts(rows).sum())


def prefetch_chunks(
    read: Callable[[int], dict[str, Any]], numbers: Sequence[int], threads: int, memory: int
) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Yield (number, `read(number)`) once for each of `numbers`, read in up to `threads` threads.

    Each thread walks neighbours, one ahead of the consumer, so a decoder that continues decodes
    nothing twice. The results come in another sequence than `numbers`. `memory` (bytes) bounds the
    number of threads; there is at least one.
    """
    if not numbers:
        return
    first = read(numbers[0])
    yield numbers[0], first
    size = sum(value.nbytes for value in first.values() if isinstance(value, Tensor))
    del first
    remaining = numbers[1:]
    lanes = max(1, min(threads, memory // max(1, size), len(remaining)))
    runs = [
        deque(remaining[lane * len(remaining) // lanes : (lane + 1) * len(remaining) // lanes])
        for lane in range(lanes)
    ]
    with ThreadPoolExecutor(lanes, thread_name_prefix="understudy-validation") as pool:

        def submit(run: deque[int]) -> Any:
            number = run.popleft()
            return run, number, pool.submit(read, number)

        waiting = deque(submit(run) for run in runs if run)
        while waiting:
            run, number, future = waiting.popleft()
            batch = future.result()
            if run:
                waiting.append(submit(run))
            yield number, batch
            del batch, future  # frees the memory before the wait for the next one


FEW = 16
"""Frames of a small stratum before shares are counted."""


def frame_counts(segments: np.ndarray) -> np.ndarray:
    """Return the number of frames of each segment: int64 (S,)."""
    return np.asarray(segments[:, 2] - segments[:, 1], np.int64)


def stratum_quotas(frames: np.ndarray, total: int) -> np.ndarray:
    """Return the number of sampled frames of each stratum: int64 (K,).

    Args:
        frames: int64 (K,): frames of each stratum.
        total: size of the sample, below the sum of `frames`.
    """
    count = len(frames)
    few = min(FEW, max(total // (10 * count), int(2 * count <= total)))
    least = np.minimum(frames, few)
    left = frames - least
    until = np.cumsum(left) * (total - int(least.sum())) // max(1, int(left.sum()))
    return np.asarray(least + np.diff(until, prepend=0))


def segment_quotas(
    segments: np.ndarray, stratum: np.ndarray, keys: np.ndarray, total: int
) -> np.ndarray:
    """Return the number of sampled frames of each segment: int64 (S,), `total` in all. Arguments as
    `sample_frames`.
    """
    lengths = frame_counts(segments)
    order = np.argsort(stratum, kind="stable")
    sizes = lengths[order]
    firsts = np.unique(stratum[order], return_index=True)[1]
    frames = np.add.reduceat(sizes, firsts)
    quota = stratum_quotas(frames, total)
    group = np.repeat(np.arange(len(firsts)), np.diff(firsts, append=len(order)))
    until = np.cumsum(sizes)
    # frames of the stratum up to the end of each segment
    until -= np.concatenate([[0], until])[firsts][group]
    # The phase of a stratum is drawn; otherwise the last episodes would always be favoured.
    phase = (
        _draw("held-out phase", segments[order][firsts, 0], 0 * firsts, keys[order][firsts])
        * frames
    ).astype(int)
    upto, before = (
        (bound * quota[group] + phase[group]) // frames[group] for bound in (until, until - sizes)
    )
    counts = np.empty(len(order), np.int64)
    counts[order] = upto - before
    return counts


def sample_frames(
    segments: np.ndarray, stratum: np.ndarray, keys: np.ndarray, total: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sample `total` of the frames of segments, or take all.

    Args:
        segments: int64 (S, 3): episode, start, stop.
        stratum: int64 (S,).
        keys: int64 (S,): key of the source of each segment.
        total: size of the sample; 0 takes all.

    Returns:
        Segment and frame of each sample, int64 (n,), ascending.
    """
    lengths = frame_counts(segments)
    whole = not total or int(lengths.sum()) <= total
    counts = lengths if whole else segment_quotas(segments, stratum, keys, total)
    segment = np.repeat(np.arange(len(segments)), counts)
    # within its segment
    number = np.arange(len(segment)) - np.repeat(np.cumsum(counts) - counts, counts)
    start = segments[segment, 1]
    length = lengths[segment]
    count = counts[segment]
    if whole:
        return segment, start + number
    low = number * length // count
    high = (number + 1) * length // count
    place = (
        _draw("held-out frame", segments[segment, 0], start + low, keys[segment]) * (high - low)
    ).astype(np.int64)
    return segment, start + low + np.minimum(place, high - low - 1)


def identity(episode: np.ndarray, frame: np.ndarray, key: np.ndarray | int = 0) -> np.ndarray:
    """Return a number in [0, 2^63) per sample, int64 (n,).

    The numbers of one source are unique; samples of two sources share a number with probability
    2^-63.
    """
    return np.asarray(((episode.astype(np.int64) << 32) + frame) ^ key)


def _draw(purpose: str, episode: np.ndarray, frame: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Draw float64 (n,) in [0, 1), keyed by sample."""
    return sample_uniform(0, purpose, identity(episode, frame, key), (1,))[:, 0].astype(np.float64)
