"""Videos of the output: packets copied where the images do not change, encoded again elsewhere.

A piece is copied when it begins at a key frame and its packets depend on no other ones
(`video.encode.find_span`). Otherwise all frames of the piece, of this camera, are decoded and
encoded again. Copied and encoded pieces with unequal stream settings lie in different files, so
each file is one stream that every reader decodes.

Some encoded images are compared with the images that were encoded. PSNR = 10 log10(255^2 / MSE) in
dB, over all three channels and images together. SSIM is the mean of Wang, Bovik, Sheikh &
Simoncelli (2004) on luma (BT.601), over uniform windows of 8x8 pixels at every second pixel, with
K1 = 0.01 and K2 = 0.03.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from itertools import chain, islice
from math import inf, log10
from pathlib import Path
from typing import Any

import av
import numpy as np

from understudy_base import DatasetError
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.datasets.stats.running import ImageStatistics
from understudy_data.datasets.write.dataset_files import VIDEO_PATH, file_path
from understudy_data.parts import Part, Workers
from understudy_data.plain_values import storable
from understudy_data.storage.byte_source import ByteSource, LocalSource
from understudy_data.video.color import AreaResize
from understudy_data.video.encode import (
    PacketSpan,
    VideoEncoder,
    check_size,
    copy_spans,
    default_crf,
    find_span,
    stream_settings,
)
from understudy_data.video.index import VideoIndex
from understudy_data.video.packets import open_packets
from understudy_data.video.reader import VideoReader, open_video
from understudy_tools.edit.plan import (
    Bad,
    Encoding,
    Piece,
    Plan,
    PlanWork,
    keep_sound,
    run_plan,
    write_files,
)
from understudy_tools.edit.rows import measured_before, step_of

_WINDOW = 8
_STRIDE = 2
_C1 = (0.01 * 255) ** 2
_C2 = (0.03 * 255) ** 2


@storable
@dataclass(frozen=True)
class Quality:
    """Sums over compared images, which can be added.

    Attributes:
        images: number of images.
        values: number of compared values, three per pixel.
        squares: sum of squared differences, in steps of 255.
        similarity: sum of the images' SSIM.
    """

    images: int = 0
    values: int = 0
    squares: float = 0.0
    similarity: float = 0.0

    def add(self, other: "Quality") -> "Quality":
        """Return the sums of both."""
        return Quality(*(sum(pair) for pair in zip(astuple(self), astuple(other))))

    @property
    def psnr(self) -> float:
        """PSNR in dB; infinite for equal images."""
        return 10 * log10(255**2 * self.values / self.squares) if self.squares else inf

    @property
    def ssim(self) -> float:
        """Mean SSIM of the images."""
        return self.similarity / self.images if self.images else 1.0


def compare_images(reference: np.ndarray, decoded: np.ndarray) -> Quality:
    """Compare images uint8 (n, H, W, 3) with their decoded counterparts."""
    total = Quality()
    for image, other in zip(reference, decoded, strict=True):
        difference = image.astype(np.float64) - other
        squares = float((difference**2).sum())
        total = total.add(
            Quality(1, difference.size, squares, structural_similarity(_luma(image), _luma(other)))
        )
    return total


def _luma(image: np.ndarray) -> np.ndarray:
    return np.asarray(image.astype(np.float64) @ np.array([0.299, 0.587, 0.114]))


def structural_similarity(image: np.ndarray, other: np.ndarray) -> float:
    """SSIM of two images (H, W) of values from 0 to 255; both sides are at least 8."""
    mean_a = _means(image)
    mean_b = _means(other)
    a = _means(image * image) - mean_a**2
    b = _means(other * other) - mean_b**2
    both = _means(image * other) - mean_a * mean_b
    top = (2 * mean_a * mean_b + _C1) * (2 * both + _C2)
    return float((top / ((mean_a**2 + mean_b**2 + _C1) * (a + b + _C2))).mean())


def _means(image: np.ndarray) -> np.ndarray:
    """Means of all windows, from a summed-area table."""
    table = np.zeros((image.shape[0] + 1, image.shape[1] + 1))
    table[1:, 1:] = image.cumsum(0).cumsum(1)
    w = _WINDOW
    sums = table[w:, w:] - table[:-w, w:] - table[w:, :-w] + table[:-w, :-w]
    return np.asarray(sums[::_STRIDE, ::_STRIDE] / w**2)


_ENCODER = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
# Without arithmetic coding and deblocking, H.264 of 224x168 decodes in 0.14 ms instead of 0.25, for
# 4 % more bytes and 0.3 dB (crf 22, GOP 2).
_OPTIONS = {"libx264": {"tune": "fastdecode"}}
# steps of crf by which images that are encoded again are better than the encoder's default
_BETTER = 6
_BATCH = 16  # images in memory
_SAMPLES = 8  # images per encoded piece whose quality is measured
_OPENED = 16  # source files
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

    def place(self, files: Sequence[tuple[int, Sequence[int]]], lengths: Sequence[int]) -> None:
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


@dataclass(frozen=True)
class Original:
    """Frames of a piece in its source.

    Attributes:
        source: the file.
        index: its tables.
        first: first frame, in display order.
        stop: frame after the last one.
        episode: id of the episode.
    """

    source: ByteSource
    index: VideoIndex
    first: int
    stop: int
    episode: int

    def open(self) -> VideoReader:
        """Open the file."""
        return open_video(self.source, frames=self.index.count)

    def images(self, reader: VideoReader) -> Iterator[np.ndarray]:
        """Read the images with a reader of the file; an error names the episode."""
        try:
            for first in range(self.first, self.stop, _BATCH):
                yield from reader.read(np.arange(first, min(first + _BATCH, self.stop)))
        except DatasetError as error:
            raise error.replaced(where=f"{error.where} (episode {self.episode})") from error

    @property
    def bytes(self) -> int:
        """Size of the packets of these frames."""
        return int(self.index.size[self.index.decode_position[self.first : self.stop]].sum())


class Originals:
    """Frames of each piece in the sources' files, by the number of the piece; a few files are open
    at a time.
    """

    def __init__(self, plan: Plan, camera: str) -> None:
        self._plan = plan
        self._camera = camera
        self._frames = [VideoFrames(source, 0, "pyav") for source in plan.sources]
        self._opened: dict[tuple[int, int], tuple[ByteSource, VideoIndex]] = {}

    def __getitem__(self, number: int) -> Original:
        piece = self._plan.pieces[number]
        frames = self._frames[piece.source]
        source = self._plan.sources[piece.source]
        place = piece.source, int(source.videos(self._camera).file[piece.row])
        if place not in self._opened:
            count = frames.reader(self._camera, piece.row).count  # checks size and number of frames
            frames.close()
            file = source.files.source(source.video_path(self._camera, piece.row))
            if len(self._opened) == _OPENED:
                self._opened.pop(next(iter(self._opened)))[0].close()
            self._opened[place] = file, _read_index(file, count)
        first = int(frames.first_frame(self._camera, np.array([piece.row]))[0])
        episode = int(source.episodes.ids[piece.row])
        return Original(*self._opened[place], first + piece.start, first + piece.stop, episode)


@storable
@dataclass(frozen=True)
class Stream:
    """Frames of a piece as one stream, to be divided into files.

    Attributes:
        settings: those that all pieces of a file share (`stream_settings`).
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
    def originals(self) -> Originals:
        """The frames of the pieces."""
        return Originals(self.plan, self.camera)

    def depends_on(self, part: Part) -> Any:
        """Return the mark and the camera."""
        return super().depends_on(part), self.camera

    def path(self, file: int) -> Path:
        """Path of a video of the output."""
        return self.root / file_path(VIDEO_PATH, file, self.camera)

    def encoded_path(self, number: int) -> Path:
        """Path of an encoded piece, the same among other pieces."""
        name = "-".join(map(str, astuple(self.plan.pieces[number])))
        return self.root / PARTS / self.camera / f"{name}.mp4"

    def span(self, number: int) -> PacketSpan | None:
        """Packets of a piece; None for those that depend on others."""
        if self.encoded[number]:
            index = _read_index(source := LocalSource(str(self.encoded_path(number))))
            return PacketSpan(source, index, 0, len(index.display))
        original = self.originals[number]
        span = find_span(original.source, original.index, original.first, original.stop)
        original.source.close()  # opens again when it is read
        return span


class FindStreams(CameraWork):
    """Streams of pieces in the sources."""

    def compute(self, item: int) -> Stream:
        """Return the stream of a piece."""
        original = self.originals[item]
        span = None if self.encoded[item] else self.span(item)
        size = span.bytes if span else 0
        settings = stream_settings(original.index)
        return Stream(
            settings, size, original.bytes, span is not None, _is_encodable(original.index)
        )


class EncodePieces(CameraWork):
    """Pieces encoded into files."""

    def compute(self, item: int) -> tuple[tuple[object, ...], int, Quality]:
        """Return the settings, the bytes and the quality of a piece."""
        original = self.originals[item]
        path = self.encoded_path(item)
        path.parent.mkdir(parents=True, exist_ok=True)
        settings = _complete(self.plan.encode.get(self.camera) or Encoding(), original.index)
        quality = encode_frames(original, settings, self.plan.fps, path)
        span = self.span(item)
        assert span is not None
        return stream_settings(span.index), span.bytes, quality


class JoinPieces(CameraWork):
    """Videos of the output, by (number of a file, its pieces)."""

    def compute(self, item: tuple[int, Sequence[int]]) -> tuple[int, tuple[Any, ...]]:
        """Write a file; return its bytes and `CameraVideos.stream`."""
        path = self.path(item[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        spans = [span for span in map(self.span, item[1]) if span]
        assert len(spans) == len(item[1])
        copy_spans(spans, path, self.plan.fps)
        index = _read_index(str(path))
        with av.open(str(path)) as container:
            pix_fmt = container.streams.video[0].pix_fmt
        return path.stat().st_size, (
            *index.image_size,
            index.codec,
            pix_fmt,
            index.gops.median_length,
        )


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
            while self.readers:
                self.readers.popitem()[1].close()

    @cached_property
    def readers(self) -> dict[int, VideoReader]:
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
        except DatasetError:
            if not self.encoded[item]:
                original = self.originals[item]
                with closing(original.open()) as reader:
                    # raises the error of the source, which names its file
                    deque(original.images(reader), 0)
            raise

    def _measure(self, item: int) -> ImageStatistics:
        file = self.file[item]
        first = self.first[item]
        length = self.plan.pieces[item].length
        if file not in self.readers:
            self.readers[file] = open_video(self.path(file))
        positions = np.arange(first, first + length, step_of(self.plan.features[self.camera]))
        statistics = ImageStatistics(first=self.before[item])
        for offset in range(0, len(positions), _BATCH):
            images = self.readers[file].read(positions[offset : offset + _BATCH])
            if offset == 0 and not self.encoded[item]:
                _compare_first(images[0], self.originals[item])
            for image in images:
                statistics.add(image)
        return statistics


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


def _cut(plan: Plan, numbers: Sequence[int]) -> list[Part]:
    return Workers.cut(numbers, [plan.pieces[number].length for number in numbers], PART_IMAGES)


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
    bad: Bad,
) -> CameraStreams:
    """Find the streams of a camera's pieces, and encode those that cannot be copied, for a local
    output.

    See `write_set`; for a bucket `write_videos` encodes them, as far as the disk is to hold them.

    Raises:
        DatasetError: a source's video is missing or broken, or cannot be encoded.
    """
    pieces = plan.pieces
    encoded = np.full(len(plan.pieces), camera in plan.encode)
    find = FindStreams(plan, mark, camera, root, encoded)
    stored = keep_sound(run_plan(plan, workers, find, _cut(plan, range(len(pieces)))), bad)
    streams = CameraStreams(camera, {pieces[number]: stream for number, stream in stored.items()})
    encoded = streams.encoded(pieces)
    if not plan.bucket:
        encode = EncodePieces(plan, mark, camera, root, encoded)
        _encode(encode, streams, workers, _cut(plan, np.flatnonzero(encoded).tolist()), count, bad)
    return streams


def _encode(
    work: EncodePieces,
    streams: CameraStreams,
    workers: Workers,
    parts: Sequence[Part],
    count: Callable[[int], None],
    bad: Bad,
) -> None:
    """Encode pieces, and add them to the streams."""
    pieces = work.plan.pieces

    def done(part: Part) -> None:
        count(sum(_before_encoding(pieces[number].length) for number in part))

    encodings = keep_sound(run_plan(work.plan, workers, work, parts, done), bad)
    streams.made.update((pieces[number], result) for number, result in encodings.items())


def write_videos(
    plan: Plan,
    streams: CameraStreams,
    root: Path,
    workers: Workers,
    mark: str,
    statistics: ImageStatistics,
    file_mb: float,
    count: Callable[[int], None],
    bad: Bad,
) -> CameraVideos:
    """Write all videos of a camera under `root`, as `write_set` does, and measure their images into
    `statistics`.

    Raises:
        DatasetError: a source's video is missing or broken.
    """
    camera = streams.camera
    pieces = plan.pieces
    encoded = streams.encoded(pieces)
    lengths = [piece.length for piece in pieces]
    done = CameraVideos(
        [0] * len(pieces), [0] * len(pieces), encoded=np.flatnonzero(encoded).tolist()
    )
    base = plan, mark, camera, root, encoded
    missing = iter(
        _cut(plan, [number for number in done.encoded if pieces[number] not in streams.made])
    )

    def sizes() -> Iterator[tuple[tuple[object, ...], int]]:
        for number, piece in enumerate(pieces):
            stream = streams.stored[piece]
            settings = stream.settings
            size = stream.bytes
            if encoded[number]:
                if piece not in streams.made:
                    parts = list(islice(missing, PARTS_OF_PROCESS * workers.most))
                    _encode(EncodePieces(*base), streams, workers, parts, count, bad)
                settings, size, quality = streams.made[piece]
                done.quality = done.quality.add(quality)
            done.bytes_before += stream.bytes_before
            yield settings, size

    def finish(part: Part) -> None:
        count(sum(_after_encoding(lengths[number], bool(encoded[number])) for number in part))

    work = MeasurePieces(*base, done.file, done.first)
    waiting = dict[int, ImageStatistics]()
    files = _divide(sizes(), file_mb)
    most_files = FILES if plan.bucket else None
    while group := sorted(islice(files, most_files)):
        done.place(group, lengths)
        for (number, _), (size, stream) in write_files(
            plan, workers, JoinPieces(*base), group, bad
        ):
            done.bytes = done.bytes + size
            done.stream = done.stream if number else stream
        numbers = sorted(chain.from_iterable(members for _, members in group))
        if not plan.skip_bad:
            for number in numbers:
                work.encoded_path(number).unlink(missing_ok=True)
        measurements: Iterable[tuple[Any, Any]] = ()
        if not bad:
            measurements = run_plan(plan, workers, work, _cut(plan, numbers), finish)
        for number, measured in measurements:
            if isinstance(measured, DatasetError):
                bad[number] = measured
            elif not bad:
                waiting[number] = measured
                while (following := waiting.pop(len(done.figures), None)) is not None:
                    done.figures.append(following.result())
                    statistics.merge(following)
        if plan.bucket:
            for _ in write_files(plan, workers, MoveFiles(*base), group, bad):
                pass
    return done


def _read_index(source: str | ByteSource, frames: int = 0) -> VideoIndex:
    with closing(open_packets(source, frames)) as packets:
        return packets.index


def _is_encodable(index: VideoIndex) -> bool:
    """Whether an encoder writes videos of this codec and size."""
    try:
        check_size(_ENCODER.get(index.codec, ""), *index.image_size)
    except ValueError:
        return False
    return True


def _complete(encoding: Encoding, index: VideoIndex) -> Encoding:
    """Fill in the settings that are not given from the source's video."""
    codec = encoding.codec
    if not codec:
        codec = _ENCODER[index.codec] if _is_encodable(index) else "libx264"
    is_same = encoding.size in (None, index.image_size) and _ENCODER.get(index.codec) == codec
    crf = encoding.crf
    if crf is None:
        crf = default_crf(codec)
        if is_same:
            crf -= _BETTER
    return replace(encoding, codec=codec, gop=encoding.gop or index.gops.median_length, crf=crf)


def encode_frames(original: Original, settings: Encoding, fps: float, path: Path) -> Quality:
    """Encode the frames into `path`, and compare some of them with the images that were encoded.

    Args:
        original: the frames.
        settings: complete settings.
        fps: frames per second.
        path: the file to write.
    """
    reader = original.open()
    height, width = settings.size or (reader.height, reader.width)
    codec = settings.codec or ""
    try:
        check_size(codec, height, width)
    except ValueError as error:
        fix = "give an even --size, or another --codec"
        raise DatasetError(
            f"cannot be encoded as {error}", where=original.source.where, fix=fix
        ) from None
    resize = None
    if (height, width) != (reader.height, reader.width):
        resize = AreaResize(reader.height, reader.width, (height, width))
    total = original.stop - original.first
    sampled = set(np.linspace(0, total - 1, min(_SAMPLES, total)).round().astype(int).tolist())
    samples: list[np.ndarray] = []
    encoder = VideoEncoder(
        path, fps, height, width, codec, settings.gop or 1, settings.crf, _OPTIONS.get(codec)
    )
    try:
        for image in original.images(reader):
            if resize is not None:
                planes = np.empty((3, height, width), np.uint8)
                resize(image.transpose(2, 0, 1), planes)
                image = planes.transpose(1, 2, 0)
            if encoder.count in sampled:
                samples.append(np.ascontiguousarray(image))
            encoder.add(image)
    except BaseException:
        encoder.abandon()
        raise
    finally:
        reader.close()
    encoder.close()
    with closing(open_video(path)) as written:
        return compare_images(np.stack(samples), written.read(np.array(sorted(sampled))))


def _divide(
    streams: Iterable[tuple[tuple[object, ...], int]], file_mb: float
) -> Iterator[tuple[int, list[int]]]:
    """Divide pieces, each (stream settings, bytes), into files: equal settings, and about `file_mb`
    megabytes each.

    Yields (number of a file, its pieces) as files are full.
    """
    open_files: dict[tuple[object, ...], tuple[int, list[int], float]] = {}
    files = 0
    for number, (settings, count) in enumerate(streams):
        if settings not in open_files:
            open_files[settings] = (files, [], 0.0)
            files += 1
        file, members, size = open_files[settings]
        members.append(number)
        open_files[settings] = file, members, size + count
        if size + count >= file_mb * 1e6:
            yield file, members
            del open_files[settings]
    yield from ((file, members) for file, members, _ in open_files.values())


def _compare_first(image: np.ndarray, original: Original) -> None:
    with closing(original.open()) as reader:
        if not np.array_equal(reader.read(np.array([original.first]))[0], image):
            problem = (
                f"frame {original.first} decodes to another image after its packets were copied"
            )
            raise DatasetError(
                problem,
                where=original.source.where,
                fix="encode this camera again: --codec and --gop",
            )
