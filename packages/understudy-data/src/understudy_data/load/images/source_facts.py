"""Facts about the datasets of an order, from which its memory is planned and its cost estimated.

Thousands of datasets have few kinds of facts: those of a kind are planned once, and counted.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import TypeVar

import numpy as np

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.episode_table import EpisodeTable
from understudy_data.datasets.read.video_facts import keep_facts_of_many
from understudy_data.load.images.decoded_cache import decoded_bytes
from understudy_data.load.images.disk_cache import bytes_on_disk
from understudy_data.order.make_spec import number_equal

T = TypeVar("T")

_MS_PER_MEGAPIXEL = {
    "h264": 2.2,
    "hevc": 3.5,
    "av1": 6.0,
    "vp9": 3.5,
    "mpeg4": 1.6,
    "mjpeg": 6.0,
    "ffv1": 12.0,
}
"""FFmpeg's name of a codec -> CPU milliseconds of decoding and converting a megapixel in a row, on
one core of an AMD EPYC of 2023; 4 for any other. Not measured where it is used: every rank and
every machine must choose the same order.
"""


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
    """Bytes of the columns of each data file, of those that are mapped
    (`datasets/read/row_tables.py`).
    """
    has_stored_images: bool = False
    """Whether rows hold encoded images."""

    @property
    def halo(self) -> int:
        """Frames that samples of a clip share beyond their own."""
        return sum(self.reach)


def read_facts(
    dataset: EpisodeArrays, image_size: tuple[int, int] | None = None, on_disk: bool = False
) -> SourceFacts:
    """Read the facts about a dataset.

    Args:
        image_size: (height, width) that images are resized to.
        on_disk: whether decoded images are kept in a cache on disk.

    Raises:
        DatasetError: a video cannot be opened.
    """
    row = dataset.first_row
    held = []
    decoder = []
    sample = 0
    resized = False
    window = 0
    cost = 0.0
    pixels = 0
    indexes = 0
    for camera in dataset.video_keys:
        dataset.video_frames.open_ahead(camera, np.array([row]))
    for camera in dataset.video_keys:
        images = dataset.windows.get(camera, 1)
        facts = dataset.video_frames.facts(camera, row)
        height, width = image_size or (facts.height, facts.width)
        image = dataset.pixels(camera).nbytes(height, width)
        sample += images * image
        window = max(window, images)
        pixels = max(pixels, height * width)
        held.append(facts.frame_bytes)
        decoder.append(facts.decoder_bytes)
        indexes += (
            facts.index_bytes * int(dataset.catalog.videos(camera).expected.sum()) // facts.count
        )
        cost += _MS_PER_MEGAPIXEL.get(facts.codec, 4.0) * facts.height * facts.width / 1e6
        resized = image_size is not None and image < held[-1]
        if resized:
            held[-1] = image
    for camera, size in dataset.missing_cameras.items():
        height, width = image_size or size
        sample += dataset.windows.get(camera, 1) * height * width * 3
    columns, mapped = _column_bytes(dataset)
    segments = getattr(dataset, "epoch_segments", dataset.segments)
    frame_count = len(dataset)
    if segments is not dataset.segments:
        frame_count = int((segments[:, 2] - segments[:, 1]).sum())
    all_images = decoded_bytes(dataset, image_size) if dataset.video_keys else 0
    disk_images = bytes_on_disk(dataset, image_size) if dataset.video_keys else 0
    return SourceFacts(
        name=dataset.name,
        frames=frame_count,
        gop=dataset.gop,
        reach=dataset.reach,
        window=window,
        frame=tuple(held),
        decoder=tuple(decoder),
        resized=resized,
        sample=sample,
        all_images=all_images,
        columns=columns,
        mapped=mapped,
        has_stored_images=bool(dataset.image_keys),
        is_remote=not dataset.catalog.files.is_local,
        decode_ms=cost,
        pixels=pixels,
        disk_images=disk_images,
        on_disk=on_disk,
        indexes=indexes,
    )


def read_facts_of_all(
    datasets: Sequence[EpisodeArrays],
    image_size: tuple[int, int] | None = None,
    on_disk: bool = False,
) -> list[SourceFacts]:
    """`read_facts` of each dataset; the videos of many small ones are opened once per host."""
    videos = []
    for dataset in datasets:
        frames = dataset.video_frames
        videos += [(frames, camera, dataset.first_row) for camera in dataset.video_keys]
    keep_facts_of_many(videos)
    return [read_facts(dataset, image_size, on_disk) for dataset in datasets]


def resized(facts: SourceFacts, side: int) -> SourceFacts:
    """Facts of a dataset whose images are resized to squares, where they are larger."""
    if facts.pixels <= side**2:
        return facts
    share = side**2 / facts.pixels
    frame = tuple(min(held, 3 * side**2) for held in facts.frame)
    sample, images, disk = (
        int(share * size) for size in (facts.sample, facts.all_images, facts.disk_images)
    )
    return replace(
        facts,
        frame=frame,
        resized=True,
        pixels=side**2,
        sample=sample,
        all_images=images,
        disk_images=disk,
    )


def in_memory(facts: SourceFacts) -> SourceFacts:
    """Facts of a dataset whose columns are in the memory of each process, because this host has no
    place for files.
    """
    return replace(facts, columns=facts.columns + facts.mapped, mapped=())


@dataclass(frozen=True)
class FactGroups:
    """Facts about several datasets. Those that are alike but for their names have theirs once."""

    names: tuple[str, ...]
    kinds: tuple[SourceFacts, ...]
    """Distinct facts, each with the name of the first dataset that has them."""
    kind_of: tuple[int, ...]
    """Number of the facts of each dataset."""

    @cached_property
    def counts(self) -> list[int]:
        """Datasets of each kind."""
        return count_numbers(self.kind_of, len(self.kinds))

    def sum(self, value: Callable[[SourceFacts], int]) -> int:
        """Sum over the datasets."""
        return sum(count * value(kind) for count, kind in zip(self.counts, self.kinds))

    def most(self, value: Callable[[SourceFacts], int]) -> int:
        """Largest value of a dataset."""
        return max(map(value, self.kinds), default=0)

    def each(self, values: Sequence[T]) -> tuple[T, ...]:
        """The value of each dataset, from those of the kinds."""
        return tuple(map(values.__getitem__, self.kind_of))

    def change(self, change: Callable[[SourceFacts], SourceFacts]) -> "FactGroups":
        """Changed facts of every dataset."""
        return replace(self, kinds=tuple(map(change, self.kinds)))


_ALL_BUT_NAME = attrgetter(*(field.name for field in fields(SourceFacts) if field.name != "name"))


def group_facts(facts: Sequence[SourceFacts], *others: Sequence[Hashable]) -> FactGroups:
    """Group datasets of equal facts, and of equal values in each of the `others`."""
    kind_of, firsts = number_equal(zip(map(_ALL_BUT_NAME, facts), *others))
    return FactGroups(
        tuple(one.name for one in facts), tuple(facts[d] for d in firsts), tuple(kind_of)
    )


def count_numbers(numbers: Sequence[int], most: int) -> list[int]:
    """How often each number below `most` occurs."""
    counts: list[int] = np.bincount(np.array(numbers, np.int64), minlength=most).tolist()
    return counts


def _column_bytes(dataset: EpisodeArrays) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes of the columns of each data file of selected episodes: those in memory, and those that
    are mapped.

    The division follows from sizes alone: every rank and every machine must choose the same order.
    """
    episodes = dataset.catalog.episodes
    tables = dataset.row_tables
    count = partial(_rows_of_files, episodes, dataset.episodes)
    files = dataset.share(
        count, episodes.ids, episodes.data_file, episodes.lengths, dataset.episodes
    )
    sizes = [count * tables.row_bytes for count in files.tolist()]
    columns = tuple(size for size in sizes if not tables.is_large(size))
    return columns, tuple(size for size in sizes if tables.is_large(size))


def _rows_of_files(table: EpisodeTable, episodes: np.ndarray) -> np.ndarray:
    """Rows of each data file of these episodes, int64 (F,)."""
    is_used = np.zeros(len(table.data), bool)
    is_used[table.data_file[table.rows_of(episodes)]] = True
    return np.bincount(table.data_file, table.lengths, len(is_used)).astype(np.int64)[is_used]
