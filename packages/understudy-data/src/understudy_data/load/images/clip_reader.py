"""Clip readers: one camera's images of the samples of one clip, each frame decoded once and forward
only.

    samples of the clip      s0      s1      s2      s3 ...     in the sequence of their positions
    frames that they need    7 10    8 11    9 12    10 13      windows, clamped to the episode
    frames to decode         7 8 9 10 11 12 13 ...              each once, in file order

A sample is complete when its last frame is decoded; it then waits for its turn, with its frames. A
frame is held until its last sample is complete. So a sparse history decodes the frames that it uses
and none between them (the decoder skips to a key frame where that is less), and overlapping windows
share their frames. Between two samples a reader holds

- decoded frames, in the decoder's own format (4:2:0, half the bytes of RGB): up to `run_length`,
  decoded in one go, because a decoder that continues is faster than one that is woken for each
  frame; and
- with `keep_decoder`, its decoder. Otherwise decoders are shared, and each run of frames starts at
  a key frame.

Cursors over open videos, per thread: taken where they continue best, returned to be used again.

A video is opened once for all threads (`VideoFrames.reader`). Each cursor has a decoder of its own
over it. A clip that continues at a cursor's position decodes nothing twice. Any other position
starts over at a key frame, with the same decoder where the video is the same.

Lengths of the first runs of clip readers, chosen so that the lanes of a source decode in turns.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import TypeAlias

import av
import numpy as np

from understudy_base import DataAccessError
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.order import Order
from understudy_data.video.depth import AnyConverter
from understudy_data.video.reader import DecodedImage, VideoReader


class Cursor:
    """Cursor over one video of a dataset, with errors that name the episode.

    Attributes:
        key: dataset, camera and file.
        row: table row of the episode that it was taken for; the file may hold many.
    """

    row = 0

    def __init__(
        self, key: tuple[int, str, int], reader: VideoReader, where: Callable[[str, int], str]
    ) -> None:
        self.key = key
        self._where = where
        self._cursor = reader.cursor()

    def runs(self, positions: np.ndarray, run_length: int = 1) -> Iterator[Sequence[DecodedImage]]:
        """See `VideoCursor.runs`."""
        try:
            yield from self._cursor.runs(positions, run_length)
        except DataAccessError as error:
            raise error.replaced(where=self._where(self.key[1], self.row)) from error

    @property
    def position(self) -> int:
        """See `VideoCursor.position`."""
        return self._cursor.position

    @property
    def wait_seconds(self) -> float:
        """See `VideoCursor.wait_seconds`."""
        return self._cursor.wait_seconds

    def park(self) -> None:
        """See `VideoCursor.park`."""
        self._cursor.park()


class Cursors:
    """Idle cursors of one thread. Beyond `most`, the least recently used ones are dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: list[Cursor] = []  # the least recently used first

    def reader(self, dataset: EpisodeArrays, camera: str, row: int) -> VideoReader:
        """Open the video of an episode, or return it where it is open."""
        return dataset.video_frames.reader(camera, row)

    def take(
        self,
        dataset: EpisodeArrays,
        camera: str,
        row: int,
        position: int,
        held: Cursor | None = None,
    ) -> Cursor:
        """Take a cursor over the video of an episode, preferably one that is at `position` or
        shortly before it.

        Args:
            dataset: source of the episode.
            camera: key of the camera.
            row: table row of the episode.
            position: display position of the first frame to decode.
            held: the cursor that the caller already holds. It is taken if it is over this video,
                and returned if not.
        """
        key = (id(dataset), camera, int(dataset.catalog.videos(camera).file[row]))
        cursor = held if held is not None and held.key == key else None
        if held is not None and cursor is None:
            self.give(held)
        if cursor is None:
            near = [
                (position - idle.position >= 0, -abs(position - idle.position), i)
                for i, idle in enumerate(self._idle)
                if idle.key == key
            ]
            cursor = self._idle.pop(max(near)[2]) if near else None
        if cursor is None:
            # before the new one needs a codec context, so that it reuses theirs
            while len(self._idle) >= self._most:
                self._idle.pop(0).park()
            cursor = Cursor(key, self.reader(dataset, camera, row), dataset.video_frames.where)
        cursor.row = row
        return cursor

    def give(self, cursor: Cursor) -> None:
        """Return a cursor."""
        self._idle.append(cursor)
        if len(self._idle) > self._most:
            self._idle.pop(0).park()


SampleImages: TypeAlias = DecodedImage | list[DecodedImage]
"""Images of one sample. Many samples wait; a list of one image would cost the garbage collector
twice as much.
"""


@dataclass(frozen=True)
class ConversionJobs:
    """Images to be converted, and the place of each in a batch."""

    images: list[DecodedImage] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def add(self, images: SampleImages, sample: int) -> None:
        """Add the images of one sample of a batch. All samples have the same number of images."""
        if isinstance(images, list):
            count = len(images)
            first = sample * len(images)
            self.images.extend(images)
            self.places.extend(range(first, first + count))
        else:
            self.images.append(images)
            self.places.append(sample)


def write_all(jobs: ConversionJobs, out: np.ndarray, converter: AnyConverter) -> None:
    """Convert all jobs into their places in `out`, (n, C, H, W) of the converter's dtype, and clear
    the jobs.

    An image that directly follows itself is converted once.
    """
    frames, places, copies = _split(jobs, out)
    jobs.images.clear()  # the converter recycles frames that nothing else refers to
    jobs.places.clear()
    converter.write_all(frames, places, out)
    for place, source in copies:
        out[place] = out[source]


def _split(
    jobs: ConversionJobs, out: np.ndarray
) -> tuple[list[av.VideoFrame], list[int], list[tuple[int, int]]]:
    """Write RGB images at once; returns (frames to convert, their places, (place, source) of
    repeated images).
    """
    last = None
    source = 0
    frames = []
    places = []
    copies = []
    for image, place in zip(jobs.images, jobs.places, strict=True):
        if image is last:
            copies.append((place, source))
        elif isinstance(image, np.ndarray):
            out[place] = image.transpose(2, 0, 1)
        else:
            frames.append(image)
            places.append(place)
        last = image
        source = place
    return frames, places, copies


def write(image: DecodedImage, converter: AnyConverter, out: np.ndarray) -> None:
    """Write a cursor's image into `out`, (C, H, W) of the converter's dtype."""
    if isinstance(image, np.ndarray):
        out[...] = image.transpose(2, 0, 1)
    else:
        converter.write(image, out)


_FRAME_BITS = 40  # of a frame key; the bits above number the files of the reader


@dataclass
class Timings:
    """Seconds of one thread, by kind of work."""

    decode: float = 0.0
    convert: float = 0.0
    """RGB conversion."""
    assemble: float = 0.0
    """Rows, and copies of images that stay decoded."""
    wait: float = 0.0
    """For room: the consumer is slower."""
    fetch: float = 0.0
    """For bytes of videos, from disk or remote storage. For fragmented mp4 and mkv they count as
    decoding.
    """
    frames: int = 0
    """Frames that decoders returned."""

    @classmethod
    def total(cls, parts: Iterable["Timings"]) -> "Timings":
        """Sum over several threads."""
        every = list(parts)
        sums = []
        for kind in fields(cls):
            sums.append(sum(getattr(part, kind.name) for part in every))
        return cls(*sums)


@dataclass(frozen=True)
class DecodePolicy:
    """Frames that the clip readers of a source decode in advance, and state that they hold between
    two samples.
    """

    run_length: int
    """Frames decoded in one go, at least. 1: none in advance. 0: and none kept for the next sample.
    """
    keep_decoder: bool
    """Whether each reader has its own decoder, which continues where it stopped."""
    whole_gops: bool = False
    """Whether runs are whole GOPs, from key frame to key frame."""
    resized: bool = False
    """Whether frames are held resized, where that makes them smaller."""


class ClipReader:
    """One camera's images of the samples of one clip.

    Args:
        positions: of the n samples, in their sequence.
        rows: int64 (n,), table rows of their episodes.
        frames: int64 (n,) or (n, T), frames of their windows, clamped to the episode.
        first_runs: lengths of the first runs, before those of `policy.run_length`
            (`load/images/clip_reader.py`); a run of 0 decodes the frames of its sample and none
            ahead.
    """

    def __init__(
        self,
        dataset: EpisodeArrays,
        camera: str,
        positions: Sequence[int],
        rows: np.ndarray,
        frames: np.ndarray,
        policy: DecodePolicy,
        first_runs: Sequence[int],
        cursors: Cursors,
        converter: AnyConverter,
    ) -> None:
        self._dataset = dataset
        self._camera = camera
        self._cursors = cursors
        self._converter = converter
        self._policy = policy
        self._pixels = dataset.pixels(camera)
        # samples before `next` are complete
        self._positions = positions
        self._next = 0
        key = self._frame_keys(rows, frames.reshape(len(rows), -1))
        # frame keys, each once, in file order
        self._todo, inverse = np.unique(key, return_inverse=True)
        entries: np.ndarray = inverse.reshape(key.shape)  # (n, T), index into todo
        self._which = entries.reshape(-1).tolist()
        self._window = entries.shape[1]
        self._until = np.maximum.accumulate(entries.max(1) + 1).tolist()
        last = np.empty(len(self._todo), np.int64)  # the last sample that needs each frame
        # the last of equal ones stays
        last[entries.reshape(-1)] = np.repeat(np.arange(len(entries)), entries.shape[1])
        by_last = np.argsort(last, kind="stable")
        cuts = np.searchsorted(last[by_last], np.arange(len(entries) + 1))
        self._drop = by_last.tolist()
        self._cuts = cuts.tolist()
        self._first_runs = list(first_runs)[::-1]
        self._decoded = 0  # entries of todo
        self._held: dict[int, DecodedImage] = {}
        self._cursor: Cursor | None = None

    def _frame_keys(self, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """int64 (n, T): number of each frame in its file, below the number of the file in this
        reader.
        """
        file = self._dataset.catalog.videos(self._camera).file[rows]
        number = self._dataset.video_frames.first_frame(self._camera, rows)[:, None] + frames
        if (file == file[0]).all():
            self._rows = [int(rows[0])]  # one row for each file
            return number
        _, first, inverse = np.unique(file, return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        self._rows = rows[first[order]].tolist()
        return number + (place[inverse.reshape(-1)].astype(np.int64) << _FRAME_BITS)[:, None]

    @property
    def next_position(self) -> int | None:
        """Position of the first incomplete sample; None once all are complete."""
        return self._positions[self._next] if self._next < len(self._positions) else None

    def decode_next(self, decoded: dict[int, SampleImages], timings: Timings) -> None:
        """Decode the frames of the sample at `next_position`, and a run ahead.

        The images of all samples that are then complete, this one and mostly some behind it, go
        into `decoded`, by position. Conversion to RGB is left to the caller (`write_all`), which
        converts those of many samples in a row: work that alternates on a core for each frame finds
        its code and its tables gone from the cache.

        Raises:
            DatasetError: a frame of the sample at `next_position` cannot be read; `decoded` is
                unchanged.
        """
        begin = perf_counter()
        fetched = timings.fetch
        self._decode(self._until[self._next], timings)
        sample = self._next
        count = len(self._positions)
        held = self._held
        until = self._until
        done = self._decoded
        drop = self._drop
        cuts = self._cuts
        entries = self._which
        window = self._window
        while sample < count and until[sample] <= done:
            first = sample * window
            position = self._positions[sample]
            if window == 1:
                decoded[position] = held[entries[first]]
            else:
                decoded[position] = [held[k] for k in entries[first : first + window]]
            for k in drop[cuts[sample] : cuts[sample + 1]]:
                del held[k]
            sample += 1
        self._next = sample
        timings.decode += perf_counter() - begin - (timings.fetch - fetched)

    def _decode(self, until: int, timings: Timings) -> None:
        """Decode up to `until` (an index into todo) at least, and to the end of a run."""
        if self._decoded >= until:
            return
        stop = self._end_of_run(until)
        begin = self._decoded
        while begin < stop:
            file = int(self._todo[begin]) >> _FRAME_BITS
            end = stop
            if len(self._rows) > 1:
                end = min(stop, int(np.searchsorted(self._todo, (file + 1) << _FRAME_BITS)))
            numbers = self._todo[begin:end] - (file << _FRAME_BITS)
            cursor = self._cursors.take(
                self._dataset, self._camera, self._rows[file], int(numbers[0]), self._cursor
            )
            self._cursor = None
            waited_before = cursor.wait_seconds
            resized = self._policy.resized
            # A run whose frames are resized at once holds none of full size.
            run_length = 1 if resized else max(1, self._policy.run_length)
            try:
                for run in cursor.runs(numbers, run_length):
                    images = map(self._resize, run) if resized else run
                    self._held.update(zip(range(self._decoded, self._decoded + len(run)), images))
                    self._decoded += len(run)
            except DataAccessError:
                self._cursors.give(cursor)
                if self._decoded < until:
                    raise
                return  # no sample needs that frame yet: the one that does will raise
            finally:
                timings.frames += self._decoded - begin
                timings.fetch += cursor.wait_seconds - waited_before
            begin = end
            if self._policy.keep_decoder and end < len(self._todo):
                self._cursor = cursor
            else:
                self._cursors.give(cursor)

    def _resize(self, image: DecodedImage) -> np.ndarray:
        assert self._converter.size is not None
        out = self._pixels.empty(*self._converter.size)
        write(image, self._converter, out)
        return out.transpose(1, 2, 0)

    def _end_of_run(self, until: int) -> int:
        """End of the run that decodes up to `until`: after the run's length, and for shared
        decoders at a key frame.
        """
        count = len(self._todo)
        length = self._policy.run_length
        run = self._first_runs.pop() if self._first_runs else length
        stop = max(until, min(self._decoded + run, count))
        if self._policy.keep_decoder or length <= 1 or stop == count or run == 0:
            return stop
        file = int(self._todo[stop]) >> _FRAME_BITS
        gops = self._cursors.reader(self._dataset, self._camera, self._rows[file]).gops
        return gops.align_stop(self._todo, stop, length, file << _FRAME_BITS)

    def close(self) -> None:
        """Drop the held frames and give back the decoder."""
        self._held.clear()
        if self._cursor is not None:
            self._cursors.give(self._cursor)
            self._cursor = None


_GOLDEN = 0.618034  # its multiples spread evenly, for any number of them


def first_round(order: Order, source: int) -> int:
    """Positions in which each lane of a source comes up once (or, in a shared slot, may)."""
    if order.lane_slots(source) is not None:
        return order.spec.round
    slots = order.spec.schedule[-1].slots
    return -(-order.spec.sources[source].lanes * sum(slots) // max(1, slots[source]))


def first_runs(
    order: Order, source: int, policy: DecodePolicy, position: int, start: int, gop: int
) -> list[int]:
    """Lengths of the first runs of a clip reader that opens at `position`, in a loader that began
    at `start`.

    The runs behind them have `policy.run_length` frames. Runs end at their lane's turn: once every
    `run_length` rounds, at a phase of its own that never changes. Otherwise lanes whose clips begin
    together (as all do at the start and at the turn of an epoch) would decode in the same batch,
    and hold the most frames at the same time, from there on. Runs of whole GOPs are staggered by
    where their clips begin: the first run extends to the next key frame. A reader of the first
    batch, which the consumer waits for, first decodes only the frames of its first sample.

    While the lanes open, the consumer would also wait for the frames ahead of all of them. So a
    reader with a decoder of its own begins as in the first batch. One with shared decoders takes
    one GOP at a time (a run of 1 extends to its end) until its first turn. Hardly anything is
    decoded twice, because it starts at key frames anyway.

    Args:
        gop: frames from key frame to key frame.
    """
    if policy.run_length <= 1:
        return []
    first = position < start + order.batch_size
    if policy.whole_gops:
        return [0, 1] if first else [1]
    lane = order.lane(position)
    turns = first_round(order, source)
    length = policy.run_length
    run = length - (position // turns + int(length * (lane * _GOLDEN % 1))) % length
    opens = position < start + turns
    alone = first or (opens and policy.keep_decoder)
    remaining = run - alone
    if opens and not policy.keep_decoder and gop <= length:
        behind = [1] * -(-remaining // gop)
    else:
        behind = [remaining] if remaining else []
    return [0, *behind] if alone else behind
