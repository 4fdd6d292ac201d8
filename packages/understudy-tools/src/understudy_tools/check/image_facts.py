"""Facts about images: thumbnails of some frames of some episodes, and the frames around the cuts of
packed videos.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from understudy_base import DatasetError
from understudy_data import (
    Catalog,
    FileCheck,
    Lost,
    Part,
    RecordedImages,
    Rows,
    VideoFile,
    Workers,
    spread_evenly,
    storable,
)
from understudy_tools.check.row_facts import ACTION, STATE, RowFacts

SAMPLED_EPISODES = 24
"""Most episodes per camera of which images are decoded for a sample."""
PART_FILES = 32
PART_IMAGES = 4096
"""Files and images of a part of the work."""
WINDOW = 256
"""Frames in a row that are decoded of a sampled episode."""
CUT = 3
"""Frames on each side of a cut between two episodes of a file."""
GRAY = (96, 128)
"""Size of the gray images by which the poses of cameras are compared."""
_HEIGHT = 24
_WIDTH = 32
_CENTER = 512  # pixels of a side
_COARSE = 8  # pixels
_BATCH = 32  # frames decoded at a time
_ROW_BYTES = 64 << 20  # memory of data files


SAMPLED_FILES = 500
"""Most video files per camera to open for a sample."""
PROBED = 8
"""Files per camera whose pixel format is read."""


@storable
@dataclass
class VideoFacts:
    """Facts about the videos of a dataset.

    Attributes:
        files: camera -> its opened videos.
        unreadable: (camera, file number, path, error).
    """

    files: dict[str, list[VideoFile]] = field(default_factory=dict)
    unreadable: list[tuple[str, int, str, DatasetError]] = field(default_factory=list)

    def sound_files(self, catalog: Catalog, camera: str) -> np.ndarray:
        """Find the files that were opened and hold as many frames as their episodes have rows: bool
        (files,).
        """
        expected = catalog.videos(camera).expected
        sound = np.zeros(len(expected), bool)
        for video in self.files.get(camera, []):
            sound[video.file] = video.count == expected[video.file]
        return sound


@dataclass(frozen=True)
class ReadVideos:
    """Facts about videos, as a function of (camera, place in its list, number of the file)
    (`parts.Work`).
    """

    catalog: Catalog

    def __call__(self, part: Part) -> VideoFacts:
        """Open videos."""
        facts = VideoFacts()
        for item in part:
            camera, place, file = item
            path = self.path(item)
            try:
                video = VideoFile.read(
                    self.catalog.files.source(path),
                    file,
                    path,
                    frames=int(self.catalog.videos(camera).expected[file]),
                    most_pixels=self.catalog.features[camera].max_pixels,
                    probes=place < PROBED,
                )
            except DatasetError as error:
                facts.unreadable.append((camera, file, path, error))
            else:
                facts.files.setdefault(camera, []).append(video)
        return facts

    def path(self, item: tuple[str, int, int]) -> str:
        """Path of a video under the root."""
        camera, _, file = item
        return self.catalog.videos(camera).files.find(self.catalog.files, file)

    def depends_on(self, part: Part) -> Any:
        """Return the versions of the videos."""
        return self.catalog.root, self.catalog.marks(map(self.path, part))


def read_videos(
    catalog: Catalog, limit: int | None, workers: Workers, progress: Callable[[int], None]
) -> VideoFacts:
    """Open the videos of all cameras, at most `limit` per camera, spread evenly."""
    facts = VideoFacts()
    absent = FileCheck(catalog).absent_rows()
    work = ReadVideos(catalog)
    items: list[tuple[str, int, int]] = []
    for camera in catalog.episodes.videos:
        files_of_camera = files_to_open(catalog, camera, absent[camera], limit)
        items += [(camera, place, file) for place, file in enumerate(files_of_camera)]
    facts.files = {camera: [] for camera in catalog.episodes.videos}
    for part, result in workers.run(
        work, Workers.cut(items, [1] * len(items), PART_FILES), lambda p: progress(len(p))
    ):
        if isinstance(result, Lost):
            camera, _, file = part[0]
            facts.unreadable.append((camera, file, work.path(part[0]), result.error))
            continue
        facts.unreadable += result.unreadable
        for camera, files in result.files.items():
            facts.files[camera] += files
    return facts


def frame_times(catalog: Catalog, camera: str, file: int) -> np.ndarray | None:
    """Read the times of a local video's frames, in seconds from its first: float64 (frames,); None
    where unknown.
    """
    if not catalog.files.is_local:
        return None
    path = catalog.videos(camera).files.find(catalog.files, file)
    return VideoFile.frame_times(catalog.files.where(path))


def files_to_open(
    catalog: Catalog, camera: str, absent: np.ndarray, limit: int | None
) -> list[int]:
    """Numbers of the camera's files with frames that are not absent, at most `limit`."""
    videos = catalog.videos(camera)
    used = np.unique(videos.file[(catalog.episodes.lengths > 0) & (videos.file >= 0) & ~absent])
    return [int(used[place]) for place in spread_evenly(len(used), limit)]


@storable
@dataclass(frozen=True)
class Clip:
    """Images of one camera in one episode.

    Attributes:
        camera: key of the camera.
        row: table row of the episode.
        ends: float32 (3, 24, 32, 3), thumbnails of the first, middle and last image.
        begin: first frame of the window.
        window: float32 (n, 24, 32, 3), thumbnails of n consecutive images.
        change: float64 (m,), mean absolute difference of each image of the decoded range to the one
            before it, from the second image on; `first_change` is the frame of the first entry.
        noise: standard deviation of the noise in these three images, in levels of 255
            (`noise_level`).
        sharpness: share of their fine detail (`sharpness`).
        gray: float32 (3, 96, 128), the same three images with finer detail.
        action, state: float64 (n, D) of the frames of the window; None without such a column.
    """

    camera: str
    row: int
    ends: np.ndarray
    begin: int
    window: np.ndarray
    change: np.ndarray
    first_change: int
    noise: float = 0.0
    sharpness: float = 0.0
    gray: np.ndarray = field(default_factory=lambda: np.zeros((3, *GRAY), np.float32))
    action: np.ndarray | None = None
    state: np.ndarray | None = None


@storable
@dataclass(frozen=True)
class Cut:
    """Images around the place of a video where one episode ends and the next begins.

    Attributes:
        camera: key of the camera.
        row: table row of the second episode.
        file: number of the file.
        change: float64 (2 * CUT - 1,), mean absolute difference of neighbors; the middle one is
            that of the cut.
    """

    camera: str
    row: int
    file: int
    change: np.ndarray


@storable
@dataclass(frozen=True)
class DepthRange:
    """Values of the first, middle and last depth image of an episode.

    Attributes:
        row: table row of the episode.
        least: smallest value that is finite.
        most: largest one; both are NaN where no value is finite.
    """

    row: int
    least: float
    most: float


@storable
@dataclass
class ImageFacts:
    """Facts about images.

    Attributes:
        clips: camera -> its clips; none of depth cameras.
        depth: depth camera -> the values of sampled episodes.
        cuts: camera -> its cuts.
        broken: (camera, table row, error) of images that cannot be decoded.
        taken: (camera, table row) -> the images that were decoded, one bit each.
    """

    clips: dict[str, list[Clip]] = field(default_factory=dict)
    depth: dict[str, list[DepthRange]] = field(default_factory=dict)
    cuts: dict[str, list[Cut]] = field(default_factory=dict)
    broken: list[tuple[str, int, DatasetError]] = field(default_factory=list)
    taken: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """Number of images that were decoded, each counted once."""
        return sum(bits.bit_count() for bits in self.taken.values())

    def merge(self, part: "ImageFacts") -> None:
        """Add the facts of further episodes."""
        for name in ("clips", "depth", "cuts"):
            for camera, facts in getattr(part, name).items():
                getattr(self, name).setdefault(camera, []).extend(facts)
        self.broken += part.broken
        for place, bits in part.taken.items():
            self.taken[place] = self.taken.get(place, 0) | bits


@dataclass(frozen=True)
class ReadImages:
    """Facts about images, as a function of (camera, table row) (`parts.Work`).

    Attributes:
        catalog: the dataset.
        keys: columns to read beside the images.
        whole: whether to decode all images of an episode.
    """

    catalog: Catalog
    keys: tuple[str, ...]
    whole: bool

    def __call__(self, part: Part) -> ImageFacts:
        """Decode images."""
        facts = ImageFacts()
        recorded = RecordedImages(self.catalog, _ROW_BYTES, _ROW_BYTES)
        numbers = Rows(self.catalog, self.keys, cache_bytes=_ROW_BYTES)
        for camera, items in groupby(part, lambda item: item[0]):
            images = _Images(self.catalog, camera, recorded, numbers, self.keys)
            for _, row in items:
                try:
                    if self.catalog.features[camera].is_depth:
                        facts.depth.setdefault(camera, []).append(images.depth_range(row))
                    else:
                        facts.clips.setdefault(camera, []).append(images.clip(row, self.whole))
                        if (previous_row := images.row_before(row)) is not None:
                            facts.cuts.setdefault(camera, []).append(images.cut(previous_row, row))
                except DatasetError as error:
                    facts.broken.append((camera, row, error))
            facts.taken |= {(camera, row): _bits(taken) for row, taken in images.taken.items()}
            recorded.close()
        return facts

    def depends_on(self, part: Part) -> Any:
        """Return the metadata, the settings, and the versions of the files."""
        rows = sorted({row for _, row in part})
        paths = {self.catalog.data_path(row) for row in rows}
        paths |= {
            self.catalog.video_path(c, row) for c, row in part if self.catalog.features[c].is_video
        }
        return self._mark, self.keys, self.whole, self.catalog.marks(sorted(paths))

    @cached_property
    def _mark(self) -> str:
        return self.catalog.mark


def _bits(flags: np.ndarray) -> int:
    return int.from_bytes(np.packbits(flags).tobytes(), "big")


def read_images(
    catalog: Catalog,
    rows: RowFacts,
    videos: VideoFacts,
    limit: int | None,
    workers: Workers,
    progress: Callable[[int], None],
) -> ImageFacts:
    """Decode images of at most `limit` episodes per camera, spread evenly; None decodes all images.

    Episodes in videos that `videos` shows to be broken are left out.
    """
    facts = ImageFacts(
        {camera: [] for camera in catalog.camera_keys}, {}, {c: [] for c in catalog.camera_keys}
    )
    chosen = {
        camera: _chosen(catalog, camera, rows, videos, limit) for camera in catalog.camera_keys
    }
    items: list[tuple[str, int]] = []
    for camera, its_rows in chosen.items():
        items += [(camera, row) for row in its_rows]
    costs = [int(catalog.episodes.lengths[row]) for _, row in items]
    if limit is not None:
        costs = [min(length, WINDOW) for length in costs]
    work = ReadImages(
        catalog, tuple(key for key in (ACTION, STATE) if key in rows.columns), limit is None
    )
    for part, result in workers.run(
        work, Workers.cut(items, costs, PART_IMAGES), lambda p: progress(len(p))
    ):
        if isinstance(result, Lost):
            facts.broken.append((*part[0], result.error))
        else:
            facts.merge(result)
    return facts


def _chosen(
    catalog: Catalog, camera: str, rows: RowFacts, videos: VideoFacts, limit: int | None
) -> list[int]:
    """Table rows of the episodes of which to decode images."""
    good = rows.is_read & (catalog.episodes.lengths > 0)
    if catalog.features[camera].is_video:
        file = catalog.videos(camera).file
        good = good & (file >= 0)
        good[good] &= videos.sound_files(catalog, camera)[file[good]]
    some = np.flatnonzero(good)
    return [int(some[place]) for place in spread_evenly(len(some), limit)]


class _Images:
    """Images of one camera, and the rows next to them.

    Attributes:
        taken: table row -> bool (length,), the images that were decoded.
    """

    def __init__(
        self,
        catalog: Catalog,
        camera: str,
        recorded: RecordedImages,
        numbers: Rows,
        keys: Sequence[str],
    ) -> None:
        self._catalog = catalog
        self._camera = camera
        self._recorded = recorded
        self._numbers = numbers
        self._keys = keys
        self._lengths = catalog.episodes.lengths
        self.taken: dict[int, np.ndarray] = {}

    def _take(self, row: int, positions: np.ndarray) -> np.ndarray:
        """Decode images (n, C, H, W) of an episode."""
        self.taken.setdefault(row, np.zeros(self._lengths[row], bool))[positions] = True
        return self._recorded.read(self._camera, row, positions)

    def depth_range(self, row: int) -> DepthRange:
        """Measure the depth images of an episode."""
        length = int(self._lengths[row])
        values = self._take(row, np.unique([0, length // 2, length - 1]))
        values = values[np.isfinite(values)]
        if not values.size:
            return DepthRange(row, np.nan, np.nan)
        return DepthRange(row, float(values.min()), float(values.max()))

    def clip(self, row: int, whole: bool) -> Clip:
        """Summarize an episode: its window, or all of it."""
        length = int(self._lengths[row])
        size = min(length, WINDOW)
        begin = (length - size) // 2
        ends = self._take(row, np.array([0, length // 2, length - 1]))
        first, last = (0, length) if whole else (begin, begin + size)
        window = np.zeros((size, _HEIGHT, _WIDTH, 3), np.float32)
        changes = []
        previous = np.zeros((0, _HEIGHT, _WIDTH, 3), np.float32)
        for start in range(first, last, _BATCH):
            stop = min(start + _BATCH, last)
            part = shrink(self._take(row, np.arange(start, stop)))
            changes.append(
                np.abs(np.diff(np.concatenate([previous, part]), axis=0)).mean(axis=(1, 2, 3))
            )
            previous = part[-1:]
            inside = np.arange(max(start, begin), min(stop, begin + size))
            window[inside - begin] = part[inside - start]
        values = self._rows(row, np.arange(begin, begin + size))
        return Clip(
            self._camera,
            row,
            shrink(ends),
            begin,
            window,
            np.concatenate(changes).astype(np.float64),
            first + 1,
            noise=noise_level(ends),
            sharpness=sharpness(ends),
            gray=shrink(ends, GRAY).mean(axis=3),
            action=values.get(ACTION),
            state=values.get(STATE),
        )

    def _rows(self, row: int, frames: np.ndarray) -> dict[str, np.ndarray]:
        """Read action and state of an episode, float64 (n, D) each."""
        if not self._keys:
            return {}
        try:
            columns = self._numbers.take(np.array([row]), dict.fromkeys(self._keys, frames[None]))
        except DatasetError:
            return {}  # a finding about the file, not about its images
        return {
            key: np.asarray(value, np.float64).reshape(len(frames), -1)
            for key, value in columns.items()
        }

    def row_before(self, row: int) -> int | None:
        """Return the table row of the episode before this one in its video; None for the first, or
        short ones.
        """
        if not self._catalog.features[self._camera].is_video:
            return None
        videos = self._catalog.videos(self._camera)
        lengths = self._lengths
        if self._catalog.episodes.own_files or lengths[row] < CUT:
            return None
        ends_there = (videos.file == videos.file[row]) & (
            videos.first + lengths == videos.first[row]
        )
        rows = np.flatnonzero(ends_there & (lengths > 0))
        return int(rows[0]) if len(rows) == 1 and lengths[rows[0]] >= CUT else None

    def cut(self, previous_row: int, row: int) -> Cut:
        """Measure the changes around the end of the episode `before`, which `row` follows."""
        length = int(self._lengths[previous_row])
        images = [
            self._take(previous_row, np.arange(length - CUT, length)),
            self._take(row, np.arange(CUT)),
        ]
        change = (
            np.abs(np.diff(shrink(np.concatenate(images)), axis=0))
            .mean(axis=(1, 2, 3))
            .astype(np.float64)
        )
        return Cut(self._camera, row, int(self._catalog.videos(self._camera).file[row]), change)


def noise_level(images: np.ndarray) -> float:
    """Estimate the standard deviation of the noise of images uint8 (n, C, H, W), in levels, from
    their centers.

    The mask of Immerkaer, "Fast noise variance estimation" (1996), which plain areas and slopes do
    not reach. The median instead of the mean leaves edges out.
    """
    gray = _center(images)
    if min(gray.shape[1:]) < 3:
        return 0.0
    across = gray[:, :, :-2] - 2 * gray[:, :, 1:-1] + gray[:, :, 2:]
    both = across[:, :-2] - 2 * across[:, 1:-1] + across[:, 2:]
    return float(np.median(np.abs(both)) / (6 * 0.6745))


def sharpness(images: np.ndarray) -> float:
    """Root mean square difference of neighboring pixels of images uint8 (n, C, H, W), as a share of
    that over eight.

    A blur takes the first and leaves the second. Measured in the centers; 0 for images of one
    color.
    """
    gray = _center(images)
    if min(gray.shape[1:]) <= _COARSE:
        return 0.0
    fine, coarse = (
        float(
            np.square(gray[:, step:] - gray[:, :-step]).mean()
            + np.square(gray[:, :, step:] - gray[:, :, :-step]).mean()
        )
        for step in (1, _COARSE)
    )
    return float(np.sqrt(fine / coarse)) if coarse > 0 else 0.0


def _center(images: np.ndarray) -> np.ndarray:
    """Gray centers float32 (n, h, w) of images (n, C, H, W), at most `_CENTER` pixels on a side."""
    top, left = (max(0, (side - _CENTER) // 2) for side in images.shape[2:])
    center = images[:, :, top : top + _CENTER, left : left + _CENTER]
    return np.asarray(center.mean(axis=1, dtype=np.float32))


def shrink(images: np.ndarray, size: tuple[int, int] = (_HEIGHT, _WIDTH)) -> np.ndarray:
    """Average images uint8 (n, C, H, W) over a grid of height and width `size`: float32 (n, *size,
    3), in 0 to 255.
    """
    if images.shape[1] != 3:
        images = np.repeat(images[:, :1], 3, axis=1)
    step = max(1, min(images.shape[2] // (3 * size[0]), images.shape[3] // (3 * size[1])))
    thin: np.ndarray = images[:, :, ::step, ::step].astype(np.float32)
    for axis, cells in ((2, size[0]), (3, size[1])):
        thin = np.repeat(thin, max(1, -(-cells // thin.shape[axis])), axis=axis)
        edges = np.linspace(0, thin.shape[axis], cells + 1).astype(int)
        counts = np.diff(edges).astype(np.float32)
        along_axis = [1, 1, 1, 1]
        along_axis[axis] = -1
        thin = np.add.reduceat(thin, edges[:-1], axis=axis) / counts.reshape(along_axis)
    return np.ascontiguousarray(thin.transpose(0, 2, 3, 1), np.float32)
