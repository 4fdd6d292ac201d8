"""Videos of the output: packets copied where the images do not change, encoded again elsewhere.

A piece is copied when it begins at a key frame and its packets depend on no other ones (`video.encode.find_span`).
Otherwise all frames of the piece, of this camera, are decoded and encoded again. Copied and encoded pieces with unequal
stream settings lie in different files, so each file is one stream that every reader decodes.

Some encoded images are compared with the images that were encoded. PSNR = 10 log10(255^2 / MSE) in dB, over all three
channels and images together. SSIM is the mean of Wang, Bovik, Sheikh & Simoncelli (2004) on luma (BT.601), over uniform
windows of 8x8 pixels at every second pixel, with K1 = 0.01 and K2 = 0.03.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, closing
from dataclasses import astuple, dataclass, field, replace
from math import inf, log10
from pathlib import Path

import av
import numpy as np

from understudy.data.read.video_frames import VideoFrames
from understudy.data.stats.running import ImageStatistics
from understudy.data.write.dataset_files import VIDEO_PATH, file_path
from understudy.edit.plan import Encoding, Plan
from understudy.edit.rows import measured_before, step_of
from understudy.errors import DatasetError
from understudy.storage.byte_source import ByteSource, LocalSource
from understudy.video.color import AreaResize
from understudy.video.encode import (
    PacketSpan,
    VideoEncoder,
    check_size,
    copy_spans,
    default_crf,
    find_span,
    stream_settings,
)
from understudy.video.index import Mp4Index, VideoIndex
from understudy.video.packets import open_packets
from understudy.video.reader import VideoReader, open_video

_WINDOW, _STRIDE = 8, 2
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


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
        total = total.add(Quality(1, difference.size, squares, structural_similarity(_luma(image), _luma(other))))
    return total


def _luma(image: np.ndarray) -> np.ndarray:
    return np.asarray(image.astype(np.float64) @ np.array([0.299, 0.587, 0.114]))


def structural_similarity(image: np.ndarray, other: np.ndarray) -> float:
    """SSIM of two images (H, W) of values from 0 to 255; both sides are at least 8."""
    mean_a, mean_b = _means(image), _means(other)
    a, b = _means(image * image) - mean_a**2, _means(other * other) - mean_b**2
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
# Without arithmetic coding and deblocking, H.264 of 224x168 decodes in 0.14 ms instead of 0.25, for 4 % more bytes and
# 0.3 dB (crf 22, GOP 2).
_OPTIONS = {"libx264": {"tune": "fastdecode"}}
_BETTER = 6  # steps of crf by which images that are encoded again are better than the encoder's default
_BATCH = 16  # images in memory per thread
_SAMPLES = 8  # images per encoded piece whose quality is measured
_STATISTICS = 16  # pieces of one task of measuring images


@dataclass
class CameraVideos:
    """Written videos of one camera.

    Attributes:
        file: number of each piece's video file.
        first: first frame of each piece there.
        figures: statistics of each piece's images (see `ImageStatistics.result`).
        encoded: numbers of the pieces that were encoded.
        quality: measured on some of the encoded images.
        index: tables of the first file.
        pix_fmt: pixel format of the first file, by FFmpeg's name.
        bytes: size of all files.
        bytes_before: size of the same frames' packets in the sources; 0 where a container hides it.
    """

    file: list[int]
    first: list[int]
    figures: list[dict[str, np.ndarray]] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)
    quality: Quality = field(default_factory=Quality)
    index: VideoIndex | None = None
    pix_fmt: str | None = None
    bytes: int = 0
    bytes_before: int = 0

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
    """

    source: ByteSource
    index: VideoIndex
    first: int
    stop: int

    @property
    def bytes(self) -> int:
        """Size of the packets of these frames; 0 where the container hides it."""
        packets = self.index.decode_position[self.first : self.stop]
        return int(self.index.size[packets].sum()) if isinstance(self.index, Mp4Index) else 0


def write_videos(
    plan: Plan,
    camera: str,
    root: Path,
    pool: Executor,
    statistics: ImageStatistics,
    file_mb: float,
    count: Callable[[int], None],
) -> CameraVideos:
    """Write all videos of a camera under `root`, and measure their images.

    Args:
        plan: the output.
        camera: key of the camera.
        root: folder of the output.
        pool: threads that encode, copy and measure.
        statistics: receives all measured images.
        file_mb: size of a file from which on the next one begins.
        count: called with numbers of frames as they are done, 0 between batches of images; its errors end the work.

    Raises:
        DatasetError: a source's video is missing or broken, or cannot be encoded.
    """
    originals = list(find_originals(plan, camera))
    spans = _find_spans(originals, plan.encode.get(camera))
    done = CameraVideos([0] * len(originals), [0] * len(originals))
    done.encoded = [number for number, span in enumerate(spans) if span is None]
    with tempfile.TemporaryDirectory(prefix=".parts-", dir=root, ignore_cleanup_errors=True) as parts:

        def encode(number: int) -> tuple[PacketSpan, Quality]:
            settings = _complete(plan.encode.get(camera) or Encoding(), originals[number].index)
            path = Path(parts, f"{number}.mp4")
            quality = encode_frames(originals[number], settings, plan.fps, path, lambda: count(0))
            index = _read_index(source := LocalSource(str(path)))
            count(len(index.display) // 2)
            return PacketSpan(source, index, 0, len(index.display)), quality

        for number, (span, quality) in zip(done.encoded, pool.map(encode, done.encoded)):
            spans[number], done.quality = span, done.quality.add(quality)
        complete = [span for span in spans if span is not None]
        files = _divide(complete, file_mb)
        paths = [root / file_path(VIDEO_PATH, number, camera) for number in range(len(files))]
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
        list(pool.map(lambda members, path: copy_spans([complete[n] for n in members], path, plan.fps), files, paths))
    for file, members in enumerate(files):
        before = 0
        for number in members:
            done.file[number], done.first[number] = file, before
            before += plan.pieces[number].length
    for part in _measure(plan, camera, paths, done, originals, pool, count):
        statistics.merge(part)
        done.figures.append(part.result())
    done.bytes = sum(path.stat().st_size for path in paths)
    done.bytes_before = sum(original.bytes for original in originals)
    done.index = _read_index(str(paths[0]))
    with av.open(str(paths[0])) as container:
        done.pix_fmt = container.streams.video[0].pix_fmt
    return done


def _read_index(source: str | ByteSource) -> VideoIndex:
    with closing(open_packets(source)) as packets:
        return packets.index


def _find_spans(originals: Sequence[Original], encoding: Encoding | None) -> list[PacketSpan | None]:
    """Packets to copy of each piece; None for one to encode."""
    if encoding is not None:
        return [None] * len(originals)
    spans = [find_span(o.source, o.index, o.first, o.stop) for o in originals]
    for original in originals:
        original.source.close()  # opens again when it is read
    if any(span is None and not _is_encodable(o.index) for span, o in zip(spans, originals)):
        return [None] * len(spans)  # another codec will be written, and one camera does not mix codecs
    return spans


def find_originals(plan: Plan, camera: str) -> Iterator[Original]:
    """Find each piece's frames in the source's files; each file is opened once."""
    readers = [VideoFrames(source, 0, "pyav") for source in plan.sources]
    opened: dict[tuple[int, int], tuple[ByteSource, VideoIndex]] = {}
    for piece in plan.pieces:
        frames, source = readers[piece.source], plan.sources[piece.source]
        place = piece.source, int(source.videos(camera).file[piece.row])
        if place not in opened:
            frames.reader(camera, piece.row)  # checks size and number of frames
            file = source.files.source(source.video_path(camera, piece.row))
            opened[place] = file, _read_index(file)
        first = int(frames.first_frame(camera, np.array([piece.row]))[0])
        yield Original(*opened[place], first + piece.start, first + piece.stop)
    for reader in readers:
        reader.close()


def _is_encodable(index: VideoIndex) -> bool:
    """Whether an encoder writes videos of this codec and size."""
    try:
        check_size(_ENCODER.get(index.codec, ""), index.height, index.width)
    except ValueError:
        return False
    return True


def _complete(encoding: Encoding, index: VideoIndex) -> Encoding:
    """Fill in the settings that are not given from the source's video."""
    codec = encoding.codec or (_ENCODER[index.codec] if _is_encodable(index) else "libx264")
    same = encoding.size in (None, (index.height, index.width)) and _ENCODER.get(index.codec) == codec
    crf = encoding.crf if encoding.crf is not None else default_crf(codec) - (_BETTER if same else 0)
    return replace(encoding, codec=codec, gop=encoding.gop or index.gops.median_length, crf=crf)


def encode_frames(
    original: Original, settings: Encoding, fps: float, path: Path, check: Callable[[], None] = lambda: None
) -> Quality:
    """Encode the frames into `path`, and compare some of them with the images that were encoded.

    Args:
        original: the frames.
        settings: complete settings.
        fps: frames per second.
        path: the file to write.
        check: called before each batch of images; an error that it raises ends the encoding.
    """
    reader = open_video(original.source)
    height, width = settings.size or (reader.height, reader.width)
    codec = settings.codec or ""
    try:
        check_size(codec, height, width)
    except ValueError as error:
        fix = "give an even --size, or another --codec"
        raise DatasetError(f"cannot be encoded as {error}", where=original.source.where, fix=fix) from None
    resize = (
        None
        if (height, width) == (reader.height, reader.width)
        else AreaResize(reader.height, reader.width, (height, width))
    )
    total = original.stop - original.first
    sampled = set(np.linspace(0, total - 1, min(_SAMPLES, total)).round().astype(int).tolist())
    samples: list[np.ndarray] = []
    encoder = VideoEncoder(path, fps, height, width, codec, settings.gop or 1, settings.crf, _OPTIONS.get(codec))
    try:
        for first in range(original.first, original.stop, _BATCH):
            check()
            for image in reader.read(np.arange(first, min(first + _BATCH, original.stop))):
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


def _divide(spans: Sequence[PacketSpan], file_mb: float) -> list[list[int]]:
    """Divide pieces into files: equal stream settings, and about `file_mb` megabytes each."""
    files: list[list[int]] = []
    open_file: dict[tuple[object, ...], tuple[int, float]] = {}
    for number, span in enumerate(spans):
        settings = stream_settings(span.index)
        file, size = open_file.get(settings, (-1, np.inf))
        if size >= file_mb * 1e6:
            files.append([])
            file, size = len(files) - 1, 0.0
        files[file].append(number)
        open_file[settings] = file, size + span.bytes
    return files


def _measure(
    plan: Plan,
    camera: str,
    paths: Sequence[Path],
    done: CameraVideos,
    originals: Sequence[Original],
    pool: Executor,
    count: Callable[[int], None],
) -> Iterator[ImageStatistics]:
    """Yield the statistics of each piece's written images. The first one of a copied piece must equal the source's.

    Raises:
        DatasetError: a copied image differs.
    """
    feature, encoded = plan.features[camera], set(done.encoded)
    before, step = measured_before(plan, feature), step_of(feature)

    def measure(members: range) -> list[ImageStatistics]:
        measured, readers = [], dict[int, VideoReader]()
        with ExitStack() as stack:
            for number in members:
                file, first, length = done.file[number], done.first[number], plan.pieces[number].length
                if file not in readers:
                    readers[file] = stack.enter_context(closing(open_video(paths[file])))
                reader = readers[file]
                part, positions = ImageStatistics(first=before[number]), np.arange(first, first + length, step)
                for offset in range(0, len(positions), _BATCH):
                    count(0)
                    images = reader.read(positions[offset : offset + _BATCH])
                    if offset == 0 and number not in encoded:
                        _compare_first(images[0], originals[number])
                    for image in images:
                        part.add(image)
                measured.append(part)
                count(length - length // 2 if number in encoded else length)
        return measured

    total = len(plan.pieces)
    tasks = [range(first, min(first + _STATISTICS, total)) for first in range(0, total, _STATISTICS)]
    for parts in pool.map(measure, tasks):
        yield from parts


def _compare_first(image: np.ndarray, original: Original) -> None:
    with closing(open_video(original.source)) as reader:
        if not np.array_equal(reader.read(np.array([original.first]))[0], image):
            problem = f"frame {original.first} decodes to another image after its packets were copied"
            raise DatasetError(problem, where=original.source.where, fix="encode this camera again: --codec and --gop")
