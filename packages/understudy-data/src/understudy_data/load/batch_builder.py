"""One thread's part of each batch: its samples' images, from clip readers or from the decoded
cache.

The way of a batch: positions, rows, frames (`workers`, vectorised) -> clip readers -> RGB
conversion -> augmentation. A clip reader is opened at the first sample of its clip, for all samples
of the clip that this rank makes from there on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch

from understudy_base import DataAccessError, DatasetError
from understudy_data.load.batch_request import Batch, BatchRequest
from understudy_data.load.images.clip_reader import (
    ClipReader,
    ConversionJobs,
    Cursors,
    DecodePolicy,
    SampleImages,
    Timings,
    first_runs,
    write_all,
)
from understudy_data.load.images.decoded_cache import DecodedImages
from understudy_data.load.memory_plan import MemoryPlan
from understudy_data.load.mixed_batches import RowBatches
from understudy_data.order.sample_random import SampleRng
from understudy_data.storage.cancel import Cancelled
from understudy_data.video.depth import AnyConverter

SPAN = 64
"""Consecutive positions that one thread makes of a source read in storage order."""

_IDLE = 1  # cursors that a thread keeps between clip readers, for sources read in storage order


@dataclass
class BatchInProgress:
    """A batch between its positions and its tensors: B samples, made by several threads."""

    positions: np.ndarray
    source: np.ndarray
    episode: np.ndarray
    frame: np.ndarray
    """int64 (B,) each. Substitutes replace `episode` and `frame`."""
    samples: list[list[int]]
    """Samples of each thread."""
    row_batches: tuple[RowBatches, int]
    """Where its rows are read, and its number there."""
    threads_left: int
    """Threads that have not finished their part."""
    has_reader: bool = False
    """Whether a thread reads its rows, or has read them."""
    images: dict[str, np.ndarray] = field(default_factory=dict)
    """(B, C, H, W), or (B, T, C, H, W) for windows, by camera; uint8 and C = 3 but for depth."""
    rows: Batch = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    """Unreadable samples, and why."""
    substituted: bool = False
    ready: bool = False


@dataclass(frozen=True)
class _Clip:
    """Samples that clip readers are opened for, one reader for each camera."""

    positions: list[int]
    rows: np.ndarray
    frames: dict[str, np.ndarray]
    first_runs: list[int]


class BatchBuilder:
    """Makes the images of one thread's samples.

    Args:
        shapes: of one sample's images, by source and camera (`mixture.image_shapes`).
        stopped: whether to give up.
        timings: of this thread, to be added to.
    """

    def __init__(
        self,
        request: BatchRequest,
        plan: MemoryPlan,
        shapes: Sequence[Mapping[str, tuple[int, ...]]],
        stopped: Callable[[], bool],
        timings: Timings,
    ) -> None:
        self._request = request
        self._plan = plan
        self._stopped = stopped
        self._timings = timings
        self._cursors = Cursors(_IDLE)
        self._converters = {camera: _converter(request, camera) for camera in shapes[0]}
        missing = [
            set(data.missing_cameras) & shapes_of.keys()
            for data, shapes_of in zip(request.datasets, shapes)
        ]
        self._missing = [sorted(cameras) for cameras in missing]
        self._present: list[list[str]] = []
        for shapes_of, cameras in zip(shapes, missing):
            self._present.append([camera for camera in shapes_of if camera not in cameras])
        self._readers: dict[str, dict[int, ClipReader]] = {camera: {} for camera in shapes[0]}
        """By camera, and by the position whose images come next."""
        self._decoded: dict[str, dict[int, SampleImages]] = {camera: {} for camera in shapes[0]}
        """Decoded images of samples to come, by camera and position."""
        self._clip: tuple[int, _Clip] | None = None  # opened last, and its position

    def build(self, batch: BatchInProgress, samples: Sequence[int]) -> None:
        """Fill in the images of some samples of a batch.

        Raises:
            DatasetError: a sample cannot be read, and is not to be substituted.
        """
        if not batch.images:
            return
        jobs = {camera: ConversionJobs() for camera in batch.images}
        views = _sample_views(batch)
        sources = batch.source.tolist()
        for source in dict.fromkeys(sources[i] for i in samples):
            members = [i for i in samples if sources[i] == source]
            for camera in self._missing[source]:
                batch.images[camera][members] = 0
            images = self._request.datasets[source].video_frames
            if isinstance(images, DecodedImages):
                self._copy_cached(batch, members, source, images, views)
            else:
                self._decode(batch, members, source, jobs)
        self._convert(jobs, views)
        if self._request.augment is not None:
            for i in samples:
                if i not in batch.bad:
                    self._augment(int(batch.positions[i]), i, sources[i], views)

    def build_one(
        self, batch: BatchInProgress, i: int, source: int, episode: int, frame: int
    ) -> str | None:
        """Fill in the images of another frame as sample i of a batch.

        Returns:
            None, or why the frame cannot be read.
        """
        if not batch.images:
            return None
        dataset = self._request.datasets[source]
        views = _sample_views(batch)
        for camera in self._missing[source]:
            batch.images[camera][i] = 0
        rows, frames = dataset.frames_to_decode(np.asarray([episode]), np.asarray([frame]))
        try:
            if isinstance(dataset.video_frames, DecodedImages):
                for camera, camera_frames in frames.items():
                    out = views[camera][i]
                    numbers = camera_frames.reshape(-1).tolist()
                    dataset.video_frames.read_into(
                        camera, int(rows[0]), numbers, out, self._timings
                    )
            else:
                clip = _Clip([0], rows, frames, [])
                jobs = {camera: ConversionJobs() for camera in self._present[source]}
                for camera, conversions in jobs.items():
                    decoded: dict[int, SampleImages] = {}
                    policy = DecodePolicy(1, keep_decoder=False)
                    self._open_reader(source, camera, clip, policy).decode_next(
                        decoded, self._timings
                    )
                    conversions.add(decoded[0], i)
                self._convert(jobs, views)
        except DatasetError as error:
            return str(error)
        if self._request.augment is not None:
            self._augment(int(batch.positions[i]), i, source, views)
        return None

    def close(self) -> None:
        """Drop all decoded images and decoders."""
        self._readers.clear()
        self._decoded.clear()

    def _convert(self, jobs: Mapping[str, ConversionJobs], views: Mapping[str, np.ndarray]) -> None:
        begin = perf_counter()
        for camera, conversions in jobs.items():
            write_all(
                conversions,
                views[camera].reshape(-1, *views[camera].shape[2:]),
                self._converters[camera],
            )
        self._timings.convert += perf_counter() - begin

    def _augment(self, position: int, i: int, source: int, views: Mapping[str, np.ndarray]) -> None:
        assert self._request.augment is not None
        colors = [
            c
            for c in self._present[source]
            if not self._request.datasets[source].pixels(c).is_depth
        ]
        images = {camera: torch.from_numpy(views[camera][i]) for camera in colors}
        self._request.augment(images, SampleRng(self._request.order.seed, "augment", position))

    def _copy_cached(
        self,
        batch: BatchInProgress,
        samples: Sequence[int],
        source: int,
        images: DecodedImages,
        views: Mapping[str, np.ndarray],
    ) -> None:
        """Copy the images of samples of a source from the decoded cache, which decodes those not
        met before.
        """
        rows, frames = self._request.datasets[source].frames_to_decode(
            batch.episode[samples], batch.frame[samples]
        )
        table = rows.tolist()
        timings = self._timings
        numbers_by_camera = {
            camera: numbers.reshape(len(samples), -1).tolist() for camera, numbers in frames.items()
        }
        ahead = int(batch.positions[0]) >= self._request.position + self._request.order.batch_size
        for row, i in enumerate(samples):
            begin = perf_counter()
            other = timings.decode + timings.convert + timings.fetch
            try:
                for camera, numbers in numbers_by_camera.items():
                    images.read_into(
                        camera, table[row], numbers[row], views[camera][i], timings, ahead
                    )
            except DatasetError as error:
                self._note_bad(batch, i, error)
            other = timings.decode + timings.convert + timings.fetch - other
            timings.assemble += perf_counter() - begin - other
            if self._stopped():
                raise Cancelled

    def _decode(
        self,
        batch: BatchInProgress,
        samples: Sequence[int],
        source: int,
        jobs: Mapping[str, ConversionJobs],
    ) -> None:
        """Take the decoded images of samples of a source from their clip readers."""
        cameras = [
            (c, self._decoded[c], jobs[c]) for c in self._request.datasets[source].video_keys
        ]
        positions = batch.positions.tolist()
        for i in samples:
            position = positions[i]
            for camera, decoded, job in cameras:
                images = decoded.pop(position, None)
                if images is None:
                    try:
                        images = self._decode_next(source, camera, position)
                    except DatasetError as error:
                        self._note_bad(batch, i, error)
                        continue
                job.add(images, i)

    def _note_bad(self, batch: BatchInProgress, i: int, error: DatasetError) -> None:
        if self._request.on_bad_frame == "raise":
            raise error
        batch.bad.setdefault(i, str(error))

    def _decode_next(self, source: int, camera: str, position: int) -> SampleImages:
        """Decoded images of a sample from its clip reader, which is opened where the sample is its
        first.
        """
        decoded = self._decoded[camera]
        readers = self._readers[camera]
        reader = readers.pop(position, None)
        if reader is None:
            if self._clip is None or self._clip[0] != position:
                self._clip = position, self._find_clip(source, position)
            reader = self._open_reader(source, camera, self._clip[1], self._plan.policies[source])
        try:
            reader.decode_next(decoded, self._timings)
        except DataAccessError:
            reader.close()  # a new reader takes the rest of the clip
            raise
        following = reader.next_position
        if following is None:
            reader.close()
        else:
            readers[following] = reader
        return decoded.pop(position)

    def _find_clip(self, source: int, position: int) -> _Clip:
        """All samples from `position` on that are of its clip and of this rank."""
        order = self._request.order
        spec = self._request.order.spec.sources[source]
        policy = self._plan.policies[source]
        least = 1 if spec.shuffle else SPAN
        most = 1 if policy.run_length == 0 else max(spec.clip, least)
        positions, episode, frame = order.rest_of_clip(position, most)
        if len(positions) > 1:
            low, high = self._request.share
            offset = (positions - self._request.position) % order.batch_size
            of_rank = (offset >= low) & (offset < high)
            if not spec.shuffle:
                of_rank &= positions // SPAN == position // SPAN
            positions = positions[of_rank]
            episode = episode[of_rank]
            frame = frame[of_rank]
        dataset = self._request.datasets[source]
        runs = first_runs(order, source, policy, position, self._request.position, dataset.gop)
        rows, frames = dataset.frames_to_decode(episode, frame)
        return _Clip(positions.tolist(), rows, frames, runs)

    def _open_reader(
        self, source: int, camera: str, clip: _Clip, policy: DecodePolicy
    ) -> ClipReader:
        return ClipReader(
            self._request.datasets[source],
            camera,
            clip.positions,
            clip.rows,
            clip.frames[camera],
            policy,
            clip.first_runs,
            self._cursors,
            self._converters[camera],
        )


def _converter(request: BatchRequest, camera: str) -> AnyConverter:
    """Make the converter of a camera, for one thread."""
    return request.datasets[0].pixels(camera).converter(request.image_size)


def _sample_views(batch: BatchInProgress) -> dict[str, np.ndarray]:
    """Images of a batch as (B, T, C, H, W), with T = 1 where a camera has no window."""
    return {c: a.reshape(len(a), -1, *a.shape[-3:]) for c, a in batch.images.items()}
