"""Videos of the output: packets copied where the images do not change, encoded again elsewhere.

A piece is copied when it begins at a key frame and its packets depend on no other ones. Otherwise
all frames of the piece, of this camera, are decoded and encoded again, and some of them compared.
Copied and encoded pieces with unequal stream settings lie in different files, so each file is one
stream that every reader decodes.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import DataAccessError, DatasetError
from understudy_data import (
    DatasetFiles,
    Encoding,
    EpisodeClips,
    ImageStatistics,
    Part,
    Quality,
    VideoClip,
    Workers,
    storable,
)
from understudy_tools.edit.plan import (
    Bad,
    Piece,
    Plan,
    PlanWork,
    gather,
    run_plan,
    write_files,
)
from understudy_tools.edit.rows import measured_before

_BATCH = 16  # images in memory
PART_IMAGES = 4096
"""Images of a part of the work."""
FILES = 16
"""Video files on this host at a time, where the output is a bucket."""
PARTS_OF_PROCESS = 8
"""Parts of each process that are encoded before full files are joined, where the output is a
bucket.
"""
PARTS = ".parts"
"""Folder of encoded pieces, under that of the output."""

File = tuple[int, list[int]]
"""Number of a video file, and its pieces."""


@dataclass
class CameraVideos:
    """Written videos of one camera.

    Attributes:
        file: number of each piece's video file.
        first: first frame of each piece there.
        figures: statistics of each piece's images (see `ImageStatistics.result`).
        encoded: numbers of the pieces that were encoded.
        quality: measured on some of the encoded images.
        stream: height, width, codec, FFmpeg's pixel format and median GOP of the first file.
        bytes: size of all files.
        bytes_before: size of the same frames' packets in the sources.
    """

    file: list[int]
    first: list[int]
    figures: list[dict[str, np.ndarray]] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)
    quality: Quality = field(default_factory=Quality)
    stream: tuple[int, int, str, str | None, int] | None = None
    bytes: int = 0
    bytes_before: int = 0

    def place(self, files: Sequence[File], lengths: Sequence[int]) -> None:
        """Set the places of pieces with these lengths, which lie in `files` in order."""
        for file, members in files:
            first = 0
            for number in members:
                self.file[number] = file
                self.first[number] = first
                first += lengths[number]

    @property
    def copied(self) -> int:
        """Number of pieces whose packets were copied."""
        return len(self.file) - len(self.encoded)


@storable
@dataclass(frozen=True)
class Stream:
    """Frames of a piece as one stream, to be divided into files.

    Attributes:
        settings: those that all pieces of a file share (`VideoClip.settings`).
        bytes: size of its packets.
        bytes_before: the same in the source.
        is_whole: whether its packets in the source depend on no others.
        is_encodable: whether an encoder writes such videos.
    """

    settings: tuple[object, ...]
    bytes: int
    bytes_before: int
    is_whole: bool
    is_encodable: bool = True


@dataclass(frozen=True)
class CameraWork(PlanWork):
    """Work on the pieces of one camera.

    Attributes:
        camera: key of the camera.
        root: folder of the output.
        encoded: bool (pieces,), those to encode.
        file: number of each piece's video file, as far as it is known; `first` is its first frame
            there.
    """

    camera: str
    root: Path
    encoded: np.ndarray
    file: Sequence[int] = ()
    first: Sequence[int] = ()

    @cached_property
    def _clips(self) -> EpisodeClips:
        return EpisodeClips(self.plan.sources, self.camera)

    @cached_property
    def _added(self) -> Callable[[Piece], VideoClip] | None:
        added = self.plan.added.get(self.camera)
        return None if added is None else added.clips(self.plan)

    def original(self, number: int) -> VideoClip:
        """Return the frames of a piece in its source, or in the video of a new camera."""
        piece = self.plan.pieces[number]
        if self._added is not None:
            return self._added(piece)
        return self._clips.clip(*astuple(piece))

    def clip(self, number: int) -> VideoClip:
        """Return the frames of a piece, encoded if they are to be."""
        if self.encoded[number]:
            return VideoClip.of_file(self.encoded_path(number))
        return self.original(number)

    def depends_on(self, part: Part) -> Any:
        """Return the mark and the camera."""
        return super().depends_on(part), self.camera

    def path(self, file: int) -> Path:
        """Path of a video of the output."""
        return DatasetFiles(self.root).video(self.camera, file)

    def encoded_path(self, number: int) -> Path:
        """Path of an encoded piece, the same among other pieces."""
        name = "-".join(map(str, astuple(self.plan.pieces[number])))
        return self.root / PARTS / self.camera / f"{name}.mp4"


class FindStreams(CameraWork):
    """Streams of pieces in the sources."""

    def compute(self, item: int) -> Stream:
        """Return the stream of a piece."""
        clip = self.original(item)
        is_whole = not self.encoded[item] and clip.has_own_packets()
        size = clip.bytes if is_whole else 0
        return Stream(clip.settings, size, clip.bytes, is_whole, clip.is_encodable)


class EncodePieces(CameraWork):
    """Pieces encoded into files."""

    def compute(self, item: int) -> tuple[tuple[object, ...], int, Quality]:
        """Return the settings, the bytes and the quality of a piece."""
        path = self.encoded_path(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        encoding = self.plan.encode.get(self.camera) or Encoding()
        quality = self.original(item).encode(path, encoding, self.plan.fps)
        encoded = VideoClip.of_file(path)
        return encoded.settings, encoded.bytes, quality


class JoinPieces(CameraWork):
    """Videos of the output, by (number of a file, its pieces)."""

    def compute(self, item: tuple[int, Sequence[int]]) -> tuple[int, tuple[Any, ...]]:
        """Write a file; return its bytes and `CameraVideos.stream`."""
        path = self.path(item[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        return VideoClip.join([self.clip(number) for number in item[1]], path, self.plan.fps)


class MoveFiles(CameraWork):
    """Videos moved into the bucket, by (number of a file, its pieces)."""

    def compute(self, item: tuple[int, Sequence[int]]) -> None:
        """Move a file."""
        assert self.plan.bucket is not None
        self.plan.bucket.move(self.path(item[0]))


class MeasurePieces(CameraWork):
    """Statistics of written images. The first image of a copied piece must equal the source's."""

    def __call__(self, part: Part) -> list[Any]:
        """Return the statistics of each piece."""
        try:
            return super().__call__(part)
        finally:
            while self.videos:
                self.videos.popitem()[1].close()

    @cached_property
    def videos(self) -> dict[int, VideoClip]:
        """Open files by their numbers."""
        return {}

    @cached_property
    def before(self) -> list[int]:
        """Number of measured images before each piece."""
        return measured_before(self.plan, self.plan.features[self.camera])

    def compute(self, item: int) -> ImageStatistics:
        """Return the statistics of a piece."""
        try:
            return self._measure(item)
        except DataAccessError:
            if not self.encoded[item]:
                # raises the error of the source, which names its file
                deque(self.original(item).images(), 0)
            raise

    def _measure(self, item: int) -> ImageStatistics:
        file = self.file[item]
        first = self.first[item]
        length = self.plan.pieces[item].length
        if file not in self.videos:
            self.videos[file] = VideoClip.of_file(self.path(file))
        step = ImageStatistics.step(self.plan.features[self.camera].size)
        positions = np.arange(first, first + length, step)
        statistics = ImageStatistics(first=self.before[item])
        for offset in range(0, len(positions), _BATCH):
            images = self.videos[file].read(positions[offset : offset + _BATCH])
            if offset == 0 and not self.encoded[item]:
                self._compare_first(images[0], item)
            for image in images:
                statistics.add(image)
        return statistics

    def _compare_first(self, image: np.ndarray, item: int) -> None:
        original = self.original(item)
        try:
            is_equal = np.array_equal(original.read(np.zeros(1, np.int64))[0], image)
        finally:
            original.close()
        if not is_equal:
            problem = "its first frame decodes to another image after its packets were copied"
            fix = "encode this camera again: --codec and --gop"
            raise DatasetError(problem, where=original.where, fix=fix)


@dataclass(frozen=True)
class CameraStreams:
    """Streams of the pieces of one camera; those that are encoded lie in files.

    Attributes:
        camera: key of the camera.
        stored: stream of each piece in its source.
        made: settings, bytes and quality of the pieces that are encoded by now.
    """

    camera: str
    stored: Mapping[Piece, Stream]
    made: dict[Piece, tuple[tuple[object, ...], int, Quality]] = field(default_factory=dict)

    def encoded(self, pieces: Sequence[Piece]) -> np.ndarray:
        """Return which pieces of a dataset are to be encoded, bool (pieces,)."""
        streams = [self.stored[piece] for piece in pieces if piece in self.stored]
        # Another codec will be written where no encoder writes this one, and one camera does not
        # mix codecs.
        mixes = any(not (stream.is_whole or stream.is_encodable) for stream in streams)
        return np.array(
            [
                piece in self.stored and (mixes or not self.stored[piece].is_whole)
                for piece in pieces
            ]
        )


def _before_encoding(length: int) -> int:
    """Frames of an encoded piece that count as done when it is encoded; the others do when it is
    measured.
    """
    return length // 2


def _after_encoding(length: int, is_encoded: bool) -> int:
    """Frames of a piece that count as done when it is measured."""
    if not is_encoded:
        return length
    return length - _before_encoding(length)


def find_streams(
    plan: Plan,
    camera: str,
    root: Path,
    workers: Workers,
    mark: str,
    count: Callable[[int], None],
) -> tuple[CameraStreams, Bad]:
    """Find the streams of a camera's pieces, and encode those that cannot be copied, for a local
    output.

    See `write_set`; for a bucket `move_videos` encodes them, as far as the disk is to hold them.

    Returns:
        The streams, and the pieces without one.

    Raises:
        DatasetError: a source's video is missing or broken, or cannot be encoded.
    """
    find = FindStreams(plan, mark, camera, root, np.full(len(plan.pieces), camera in plan.encode))
    numbers = range(len(plan.pieces))
    stored, failures = gather(run_plan(plan, workers, find, _cut(plan, numbers)))
    streams = CameraStreams(camera, {plan.pieces[n]: stored[n] for n in stored})
    if not plan.bucket:
        encoded = streams.encoded(plan.pieces)
        work = EncodePieces(plan, mark, camera, root, encoded)
        parts = _cut(plan, np.flatnonzero(encoded).tolist())
        failures |= encode(work, streams, workers, parts, count)
    return streams, failures


def encode(
    work: EncodePieces,
    streams: CameraStreams,
    workers: Workers,
    parts: Sequence[Part],
    count: Callable[[int], None],
) -> Bad:
    """Encode pieces, and add them to the streams; return those that cannot be encoded."""
    pieces = work.plan.pieces

    def done(part: Part) -> None:
        count(sum(_before_encoding(pieces[number].length) for number in part))

    made, failures = gather(run_plan(work.plan, workers, work, parts, done))
    streams.made.update((pieces[number], result) for number, result in made.items())
    return failures


def _cut(plan: Plan, numbers: Sequence[int]) -> list[Part]:
    return Workers.cut(numbers, [plan.pieces[number].length for number in numbers], PART_IMAGES)


class CameraWriter:
    """Writer of the videos of one camera.

    Args:
        plan: the output; see `write_set` for the other arguments.
        streams: of its pieces.
        root: folder of the output.
        workers: processes.
        mark: text that changes with the pieces.
        count: called with numbers of frames as they are done.

    Attributes:
        videos: what is written by now.
        statistics: of the images that are measured by now.
    """

    def __init__(
        self,
        plan: Plan,
        streams: CameraStreams,
        root: Path,
        workers: Workers,
        mark: str,
        count: Callable[[int], None],
    ) -> None:
        self._plan = plan
        self._streams = streams
        self._workers = workers
        self._count = count
        self._lengths = [piece.length for piece in plan.pieces]
        self._encoded = streams.encoded(plan.pieces)
        self._base = plan, mark, streams.camera, root, self._encoded
        places = [0] * len(plan.pieces)
        self.videos = CameraVideos(
            list(places), places, encoded=np.flatnonzero(self._encoded).tolist()
        )
        self.statistics = ImageStatistics()
        self._waiting: dict[int, ImageStatistics] = {}

    def missing(self) -> list[int]:
        """Return the pieces that are to be encoded and are not."""
        pieces = self._plan.pieces
        return [n for n in self.videos.encoded if pieces[n] not in self._streams.made]

    def encode(self, parts: Sequence[Part]) -> None:
        """Encode pieces, and add them to the streams.

        Raises:
            DatasetError: a piece cannot be encoded.
        """
        work = EncodePieces(*self._base)
        encode(work, self._streams, self._workers, parts, self._count)

    def divide(self, numbers: Sequence[int], division: "Division") -> list[File]:
        """Divide pieces that are stored whole or encoded into files; return those that are full."""
        full = []
        for number in numbers:
            piece = self._plan.pieces[number]
            stream = self._streams.stored[piece]
            settings = stream.settings
            size = stream.bytes
            if self._encoded[number]:
                settings, size, quality = self._streams.made[piece]
                self.videos.quality = self.videos.quality.add(quality)
            self.videos.bytes_before += stream.bytes_before
            full += division.add(number, settings, size)
        return full

    def join(self, files: Sequence[File]) -> Bad:
        """Write files of pieces; return the pieces that cannot be copied.

        Raises:
            DatasetError: a file cannot be written.
        """
        self.videos.place(files, self._lengths)
        work = JoinPieces(*self._base)
        failures = write_files(self._plan, self._workers, work, files, self._note)
        if not self._plan.skip_bad:
            for number in chain.from_iterable(members for _, members in files):
                work.encoded_path(number).unlink(missing_ok=True)
        return failures

    def _note(self, file: int, written: tuple[int, Any]) -> None:
        size, stream = written
        self.videos.bytes += size
        if file == 0:
            self.videos.stream = stream

    def measure(self, files: Sequence[File]) -> Bad:
        """Measure the images of joined files, in the order of the pieces; return the pieces whose
        images are not those of their source.

        Raises:
            DatasetError: an image cannot be decoded, or is another one than in its source.
        """
        failures: Bad = {}
        work = MeasurePieces(*self._base, self.videos.file, self.videos.first)
        numbers = sorted(chain.from_iterable(members for _, members in files))
        parts = _cut(self._plan, numbers)
        for number, measured in run_plan(self._plan, self._workers, work, parts, self._finish):
            if isinstance(measured, DatasetError):
                failures[number] = measured
            elif not failures:
                self._add(number, measured)
        return failures

    def _add(self, number: int, measured: ImageStatistics) -> None:
        """Add the statistics of a piece, after those of the pieces before it."""
        self._waiting[number] = measured
        while (following := self._waiting.pop(len(self.videos.figures), None)) is not None:
            self.videos.figures.append(following.result())
            self.statistics.merge(following)

    def _finish(self, part: Part) -> None:
        frames = [_after_encoding(self._lengths[n], bool(self._encoded[n])) for n in part]
        self._count(sum(frames))

    def move(self, files: Sequence[File]) -> None:
        """Move joined files into the bucket."""
        work = MoveFiles(*self._base)
        write_files(self._plan, self._workers, work, files, lambda file, moved: None)

    def batches(self) -> Iterator[tuple[Sequence[Part], Sequence[int]]]:
        """Yield (parts to encode, pieces that can be divided then), as the disk is to hold them."""
        parts = _cut(self._plan, self.missing())
        size = PARTS_OF_PROCESS * self._workers.most
        starts = range(0, len(parts), size)
        ends = [parts[start][0] for start in starts[1:]] + [len(self._plan.pieces)]
        if not parts:
            yield [], range(len(self._plan.pieces))
        first = 0
        for start, end in zip(starts, ends):
            yield parts[start : start + size], range(first, end)
            first = end


def write_videos(writer: CameraWriter, file_mb: float, measures: bool) -> Bad:
    """Write all videos of a camera on this host; return the pieces that cannot be.

    Args:
        writer: writes them, with all pieces encoded that are to be.
        file_mb: size at which a file is closed.
        measures: whether to measure the images, too.

    Raises:
        DatasetError: a source's video is missing or broken.
    """
    division = Division(file_mb)
    full = writer.divide(range(len(writer.videos.file)), division)
    files = sorted(full + division.rest())
    failures = writer.join(files)
    if measures and not failures:
        failures = writer.measure(files)
    return failures


def move_videos(writer: CameraWriter, file_mb: float) -> None:
    """Write all videos of a camera into a bucket, a few files at a time.

    Raises:
        DatasetError: a source's video is missing or broken, or cannot be encoded.
    """
    division = Division(file_mb)
    full: list[File] = []
    for parts, numbers in writer.batches():
        writer.encode(parts)
        full += writer.divide(numbers, division)
        while len(full) >= FILES:
            _move(writer, full[:FILES])
            full = full[FILES:]
    full += division.rest()
    for start in range(0, len(full), FILES):
        _move(writer, full[start : start + FILES])


def _move(writer: CameraWriter, files: Sequence[File]) -> None:
    ordered = sorted(files)
    writer.join(ordered)
    writer.measure(ordered)
    writer.move(ordered)


class Division:
    """Division of pieces into files: equal stream settings, and about `file_mb` megabytes each."""

    def __init__(self, file_mb: float) -> None:
        self._bytes = file_mb * 1e6
        self._open: dict[tuple[object, ...], tuple[int, list[int], float]] = {}
        self._files = 0

    def add(self, number: int, settings: tuple[object, ...], size: int) -> list[File]:
        """Add the next piece; return the file that is full by it, in a list."""
        if settings not in self._open:
            self._open[settings] = (self._files, [], 0.0)
            self._files += 1
        file, members, total = self._open[settings]
        members.append(number)
        total += size
        self._open[settings] = file, members, total
        if total < self._bytes:
            return []
        del self._open[settings]
        return [(file, members)]

    def rest(self) -> list[File]:
        """Return the files that are not full."""
        return [(file, members) for file, members, _ in self._open.values()]
