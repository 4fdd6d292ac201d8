"""Encode images into mp4 files, and concatenate mp4 files without re-encoding.

`VideoEncoder` writes AV1 (SVT-AV1), H.264 (x264) or HEVC (x265), yuv420p, with a key frame every
`gop` frames. The default is 2, so that reading a random frame decodes at most two. `concat_videos`
re-muxes packets (stream copy) with times counted in frames, so the joined file decodes to exactly
the frames of its parts, in order. Both put the index in front (faststart), write under a temporary
name and rename, so a file with its final name is complete.

SVT-AV1, run as root, sets the policy SCHED_FIFO at priority 99 for the calling thread and its own
threads each time an encoder is opened. Every thread and process started afterwards inherits it, and
a machine of few cores then runs nothing else. Wrap a call that may open an encoder in
`preserve_scheduling`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from types import TracebackType

import av
import numpy as np

from understudy_base import DatasetError, draft_path, replace_file
from understudy_data.storage.byte_source import ByteSource, LocalSource, as_file
from understudy_data.video.index import Mp4Index, VideoIndex
from understudy_data.video.packets import main_stream, open_packets
from understudy_data.video.parameter_sets import InBand

_TASKS = "/proc/self/task"


@contextlib.contextmanager
def preserve_scheduling() -> Iterator[None]:
    """Restore the scheduling of the calling thread, and apply it to threads started meanwhile.

    The calling thread gets its policy, priority and cores back. A real-time thread that was started
    meanwhile gets the policy and priority of the calling thread. All other threads keep theirs, so
    a thread that the user made real-time stays real-time. Does nothing where the system has no such
    calls (macOS, Windows).
    """
    if not (hasattr(os, "sched_getscheduler") and os.path.isdir(_TASKS)):
        yield
        return
    threads_before = _threads()
    policy = os.sched_getscheduler(0)
    parameter = os.sched_getparam(0)
    cores = os.sched_getaffinity(0)
    try:
        yield
    finally:
        settings = policy, parameter.sched_priority
        if (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) != settings:
            os.sched_setscheduler(0, policy, parameter)
        if os.sched_getaffinity(0) != cores:
            os.sched_setaffinity(0, cores)
        for thread in _threads() - threads_before:
            with contextlib.suppress(ProcessLookupError):  # the thread has ended
                of_thread = os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority
                if of_thread != settings and of_thread[1] > 0:
                    os.sched_setscheduler(thread, policy, parameter)


def _threads() -> set[int]:
    return {int(name) for name in os.listdir(_TASKS)}


_MUXER = {"movflags": "+faststart"}
_COPIED = ("h264", "hevc", "av1", "mpeg4")  # codecs that `mp4.py` reads

_QUIET = "log-level=error:pools=none:frame-threads=1"  # x265: one thread
# Encoder -> (codec, constant rate factor, options). The factors give about the same quality on the
# encoders' own scales and preserve small objects. At 64 pixels, AV1 at 30 smears gripper fingers of
# two pixels, and presets above 9, which SVT-AV1 itself advises against, lose whole blocks. Without
# B-frames a random frame needs none that follow it. On CPUs with AVX-512, x264's `mbtree` reads
# memory that it never filled: the same images then give another video each time.
_ENCODERS: dict[str, tuple[str, int, dict[str, str]]] = {
    "libsvtav1": ("av1", 20, {"preset": "9", "svtav1-params": "lp=1"}),
    "libx264": ("h264", 22, {"preset": "veryfast", "bf": "0", "mbtree": "0"}),
    "libx265": ("hevc", 24, {"preset": "veryfast", "x265-params": f"{_QUIET}:bframes=0"}),
}
# x265 4.1 writes outside its memory for images of up to 48 pixels width, and reads memory that it
# never filled where a side is at most one coding block of 64 pixels: the same images then give
# another video each time, some far off.
_SMALLEST = {"libx265": 64}
_ONE_BLOCK = 64
_SMALL_BLOCKS = "ctu=32"


def codec_name(codec: str) -> str:
    """Codec that an encoder writes ("av1", "h264", "hevc"). Raises ValueError for an unknown
    encoder.
    """
    if codec not in _ENCODERS:
        raise ValueError(f"codec={codec!r}: it must be one of {', '.join(_ENCODERS)}")
    return _ENCODERS[codec][0]


def default_crf(codec: str) -> int:
    """Quality that an encoder has by default, on its own scale. Raises ValueError for an unknown
    encoder.
    """
    codec_name(codec)
    return _ENCODERS[codec][1]


def check_size(codec: str, height: int, width: int) -> None:
    """Raise ValueError for a size that an encoder cannot write; the message names the size, the
    rule and the fix.
    """
    codec_name(codec)
    if height % 2 or width % 2 or min(height, width) < 16:
        raise ValueError(f"images of {width}x{height}: both sides must be even and at least 16")
    if min(height, width) < _SMALLEST.get(codec, 16):
        rule = f"{codec} needs sides of at least {_SMALLEST[codec]}"
        raise ValueError(
            f"images of {width}x{height}: {rule}; smaller images need libx264 or libsvtav1"
        )


class VideoEncoder:
    """Encoder of one video: `add` each image, then `close` for the finished file, or `abandon`.

    Images are uint8 (height, width, 3) RGB, all of one size, both sides even (4:2:0 chroma) and >=
    16 (libx265: 64).

    Args:
        path: the file to write.
        fps: frames per second.
        height: height of the images.
        width: width of the images.
        codec: "libsvtav1", "libx264" or "libx265".
        gop: largest distance between key frames.
        crf: quality on the encoder's own scale; None: a good default.
        options: more settings of the encoder, by FFmpeg's names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fps: float | Fraction,
        height: int,
        width: int,
        codec: str = "libsvtav1",
        gop: int = 2,
        crf: int | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        try:
            check_size(codec, height, width)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        if not fps > 0 or gop < 1:
            raise ValueError(f"{path}: fps={fps}, gop={gop}: both must be positive")
        _, default_crf, defaults = _ENCODERS[codec]
        os.environ.setdefault("SVT_LOG", "1")  # the only way to silence SVT-AV1; 1 = errors only
        self.path = Path(path)
        self.count = 0
        self._shape = (height, width, 3)
        self._temporary = draft_path(self.path)
        self._container = av.open(str(self._temporary), "w", format="mp4", options=_MUXER)
        quality = default_crf if crf is None else crf
        settings = {
            **defaults,
            "crf": str(quality),
            "g": str(gop),
            **(options or {}),
        }
        if codec == "libx265" and min(height, width) <= _ONE_BLOCK:
            settings["x265-params"] += f":{_SMALL_BLOCKS}"
        rate = Fraction(fps).limit_denominator(1001)
        stream = self._container.add_stream(codec, rate=rate, options=settings)
        assert isinstance(stream, av.VideoStream)
        self._stream = stream
        self._tick = 1 / rate
        self._stream.width = width
        self._stream.height = height
        self._stream.pix_fmt = "yuv420p"
        self._stream.thread_count = 1

    def add(self, image: np.ndarray) -> None:
        """Encode one more image."""
        if image.shape != self._shape or image.dtype != np.uint8:
            raise ValueError(
                f"{self.path}: image {image.dtype} {image.shape}, expected uint8 {self._shape}"
            )
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts = self.count
        frame.time_base = self._tick
        self._encode(frame)
        self.count += 1

    def _encode(self, frame: av.VideoFrame | None) -> None:
        """Encode a frame; None flushes the encoder. The first frame opens it."""
        starts_threads = self.count == 0 or frame is None
        scheduling = preserve_scheduling() if starts_threads else contextlib.nullcontext()
        with scheduling:
            packets = self._stream.encode(frame)
        self._container.mux(packets)

    def close(self) -> int:
        """Finish the file under its final name; returns its number of frames, at least one."""
        if self.count == 0:
            self.abandon()
            raise ValueError(f"{self.path}: a video needs at least one image")
        self._encode(None)
        self._container.close()
        os.replace(self._temporary, self.path)
        return self.count

    def abandon(self) -> None:
        """Delete the unfinished file."""
        if self.count:
            with contextlib.suppress(av.FFmpegError), preserve_scheduling():
                # SVT-AV1 prints an error for an encoder that was not flushed
                self._stream.encode(None)
        self._container.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> VideoEncoder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


@dataclass(frozen=True)
class PacketSpan:
    """Frames of a video to copy: the packets [first, first + count) in decode order, from a key
    frame on.

    Attributes:
        source: the file.
        index: its tables.
        first: decode position of the key frame.
        count: number of frames.
    """

    source: ByteSource
    index: VideoIndex
    first: int
    count: int

    @property
    def display(self) -> np.ndarray:
        """Display position of each packet within the span, int64 (count,)."""
        shown = self.index.display[self.first : self.first + self.count].astype(np.int64)
        return np.asarray(shown - shown.min())

    @property
    def bytes(self) -> int:
        """Size of the packets."""
        return int(self.index.size[self.first : self.first + self.count].sum())


def find_span(source: ByteSource, index: VideoIndex, start: int, stop: int) -> PacketSpan | None:
    """Return the packets that give exactly the frames [start, stop), in display order; None where
    there are none.

    The first frame must be a key frame that resets the decoder, and no packet between it and the
    last one may belong to another frame. A packet depends on earlier packets only, so the copied
    frames decode as in the file.
    """
    if not 0 <= start < stop <= index.count or index.codec not in _COPIED:
        return None
    first = int(index.decode_position[start])
    shown = index.display[first : first + stop - start]
    whole = (
        len(shown) == stop - start and int(shown.min()) == start and int(shown.max()) == stop - 1
    )
    if not whole or first not in index.keys or not _is_restart(source, index, first):
        return None
    return PacketSpan(source, index, first, stop - start)


def _is_restart(source: ByteSource, index: VideoIndex, first: int) -> bool:
    if first == 0 or not isinstance(index, Mp4Index):
        return first == 0
    packet = source.read(int(index.offset[first]), int(index.size[first]))
    return InBand(index.codec, index.extradata).is_restart(packet)


def stream_settings(index: VideoIndex) -> tuple[object, ...]:
    """Settings that all parts of one copied stream share: codec, decoder configuration, size, and
    how it is shown.
    """
    return index.codec, index.extradata, index.width, index.height, index.shown


def copy_spans(
    spans: Sequence[PacketSpan], out: str | os.PathLike[str], fps: float | Fraction
) -> None:
    """Join spans of videos with equal `stream_settings` into `out` by stream copy; frame i is shown
    at i / fps.
    """
    if not spans or len({stream_settings(span.index) for span in spans}) > 1:
        raise ValueError(
            f"{out}: {len(spans)} spans, which must be one or more with equal stream settings"
        )
    with replace_file(Path(out), durable=False) as draft:
        _mux(spans, draft, 1 / Fraction(fps).limit_denominator(1001))


def concat_videos(
    paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]
) -> list[int]:
    """Join video files of one codec, size and rate into `out` by stream copy; returns each part's
    number of frames.

    Frame i of the joined file is shown at i / rate, whatever times the parts carried.

    Raises:
        DatasetError: a part cannot be read, or differs from the first in codec settings, size or
            rate.
    """
    if not paths:
        raise ValueError(f"{out}: nothing to join")
    names = [os.fspath(path) for path in paths]
    spans: list[PacketSpan] = []
    for name in names:  # one open file at a time: there may be a thousand parts
        source = LocalSource(name)
        part = open_packets(source)
        part.close()
        index = part.index
        first = spans[0].index if spans else part.index
        alike = (*stream_settings(index), index.fps) == (*stream_settings(first), first.fps)
        if not alike or (index.display < 0).any():
            problem = f"differs from {names[0]} in codec settings, size or rate, or hides frames"
            raise DatasetError(problem, where=name, fix="encode all parts with the same settings")
        spans.append(PacketSpan(source, index, 0, len(index.display)))
    copy_spans(spans, out, spans[0].index.fps)
    return [span.count for span in spans]


def _mux(spans: Sequence[PacketSpan], path: Path, tick: Fraction) -> None:
    """Write the packets of all spans, in order, into one mp4 file with even times."""
    # A frame is decoded before it is shown. One delay for all spans keeps decode times increasing.
    delay = max(int((np.arange(span.count) - span.display).max()) for span in spans)
    first = spans[0].source
    file = first.where if isinstance(first, LocalSource) else as_file(first, 1 << 20)
    with (
        av.open(file, "r") as template,
        av.open(str(path), "w", format="mp4", options=_MUXER) as target,
    ):
        stream = target.add_stream_from_template(
            main_stream(template, spans[0].index.count), opaque=True
        )
        # a template lacks that of its container
        if (aspect := Fraction(*spans[0].index.shown.aspect)) != 1:
            stream.codec_context.sample_aspect_ratio = aspect
        frames_before = 0
        for source, group in groupby(spans, key=lambda span: span.source):
            members = list(group)
            part = open_packets(source, members[0].index.count)
            keys = set(members[0].index.keys.tolist())
            for span in members:
                for i, shown in enumerate(span.display.tolist()):
                    packet = part.packet(span.first + i, span.first + span.count - 1)
                    packet.pts = frames_before + shown
                    packet.dts = frames_before + i - delay
                    packet.duration = 1
                    packet.time_base = tick
                    packet.is_keyframe = span.first + i in keys
                    packet.stream = stream
                    target.mux(packet)
                frames_before += span.count
            part.close()
