"""Pictures into mp4 files, and mp4 files joined without touching a picture.

`encode_video` writes AV1 (SVT-AV1), H.264 (x264) or HEVC (x265), yuv420p, with a key frame every `gop` pictures: 2 by
default, so that a random picture costs at most two. `concat_videos` re-muxes packets (stream copy) with integer times,
so the joined file decodes to exactly the pictures of its parts, in order. Both put the index at the front (faststart),
write under a temporary name and rename, so a file with its final name is complete.

Not here: reading (`video.py`) and what belongs into which file (`write.py`). Depth video is not written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import numpy as np

from understudy.data.errors import DatasetError

# codec -> (name of the stream, constant rate factor, options). The factors look alike on the encoders' own scales;
# SVT-AV1 itself advises against presets above 9.
_ENCODERS: dict[str, tuple[str, int, dict[str, str]]] = {
    "libsvtav1": ("av1", 30, {"preset": "9", "svtav1-params": "lp=1"}),
    "libx264": ("h264", 22, {"preset": "veryfast"}),
    "libx265": ("hevc", 24, {"preset": "veryfast", "x265-params": "log-level=error:pools=none:frame-threads=1"}),
}


def codec_name(codec: str) -> str:
    """Name of the stream that an encoder writes ("av1", "h264", "hevc"); `ValueError` for an encoder not offered."""
    if codec not in _ENCODERS:
        raise ValueError(f"codec={codec!r}: it must be one of {', '.join(_ENCODERS)}")
    return _ENCODERS[codec][0]


class VideoEncoder:
    """Encodes pictures as they come: `add` each, then `close` for the finished file, or `abandon`.

    Pictures are uint8 (height, width, 3) RGB, all of one size, both sides even (4:2:0 chroma) and >= 16.
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
        codec_name(codec)
        if height % 2 or width % 2 or min(height, width) < 16:
            raise ValueError(f"{path}: pictures of {width}x{height}: both sides must be even and at least 16")
        if not fps > 0 or gop < 1:
            raise ValueError(f"{path}: fps={fps}, gop={gop}: both must be positive")
        _, default_crf, defaults = _ENCODERS[codec]
        os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 knows no other way to be quiet; 1 = errors only
        self.path, self.count, self._shape = Path(path), 0, (height, width, 3)
        self._temporary = temporary_name(self.path)
        self._container = av.open(str(self._temporary), "w", format="mp4", options={"movflags": "+faststart"})
        settings = {**defaults, "crf": str(default_crf if crf is None else crf), "g": str(gop), **(options or {})}
        rate = Fraction(fps).limit_denominator(1001)
        stream = self._container.add_stream(codec, rate=rate, options=settings)
        assert isinstance(stream, av.VideoStream)
        self._stream, self._tick = stream, 1 / rate
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        self._stream.thread_count = 1

    def add(self, picture: np.ndarray) -> None:
        """Encode one more picture."""
        if picture.shape != self._shape or picture.dtype != np.uint8:
            raise ValueError(f"{self.path}: picture {picture.dtype} {picture.shape}, expected uint8 {self._shape}")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
        frame.pts = self.count
        frame.time_base = self._tick
        self._container.mux(self._stream.encode(frame))
        self.count += 1

    def close(self) -> int:
        """Finish the file under its final name; returns its number of pictures (at least one)."""
        if self.count == 0:
            self.abandon()
            raise ValueError(f"{self.path}: a video needs at least one picture")
        self._container.mux(self._stream.encode(None))
        self._container.close()
        os.replace(self._temporary, self.path)
        return self.count

    def abandon(self) -> None:
        """Drop what was encoded."""
        self._container.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> VideoEncoder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.abandon()


def encode_video(
    path: str | os.PathLike[str],
    frames: Iterable[np.ndarray],
    fps: float | Fraction,
    codec: str = "libsvtav1",
    gop: int = 2,
    crf: int | None = None,
    options: Mapping[str, str] | None = None,
) -> int:
    """Encode `frames` (uint8 (height, width, 3) RGB each) into `path`; returns how many there were.

    codec: "libsvtav1", "libx264" or "libx265"; gop: pictures from key frame to key frame at most; crf: the encoder's
    own quality scale, None for a good default; options: further settings of the encoder by FFmpeg's names. Raises
    `ValueError` on an unknown codec, odd or changing sizes, or no picture at all; nothing is left behind then.
    """
    encoder: VideoEncoder | None = None
    try:
        for frame in frames:
            if encoder is None:
                encoder = VideoEncoder(path, fps, frame.shape[0], frame.shape[1], codec, gop, crf, options)
            encoder.add(frame)
    except BaseException:
        if encoder is not None:
            encoder.abandon()
        raise
    if encoder is None:
        raise ValueError(f"{path}: a video needs at least one picture")
    return encoder.close()


def concat_videos(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> list[int]:
    """Join mp4 files of one codec, size and rate into `out` by stream copy; returns the pictures of each part.

    Part k begins exactly one picture duration after the last picture of part k-1, in the integers of the stream's time
    base. Raises `DatasetError` when the parts do not fit together or one has pictures of uneven duration.
    """
    if not paths:
        raise ValueError(f"{out}: nothing to join")
    temporary, counts = temporary_name(Path(out)), list[int]()
    try:
        with av.open(str(temporary), "w", format="mp4", options={"movflags": "+faststart"}) as target:
            stream: av.VideoStream | None = None
            like: tuple[object, ...] = ()
            for path in paths:
                with av.open(os.fspath(path)) as source:
                    part = source.streams.video[0]
                    facts = (part.codec_context.extradata, part.width, part.height, part.average_rate, part.time_base)
                    if stream is None:
                        stream, like = target.add_stream_from_template(part, opaque=True), facts
                    elif facts != like:
                        what = f"differs from {os.fspath(paths[0])} in codec settings, size or rate"
                        raise DatasetError(what, where=os.fspath(path), fix="encode all parts with the same settings")
                    counts.append(_copy(source, part, target, stream, sum(counts), os.fspath(path)))
        os.replace(temporary, out)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return counts


def _copy(
    source: av.container.InputContainer,
    part: av.VideoStream,
    target: av.container.OutputContainer,
    stream: av.VideoStream,
    before: int,
    name: str,
) -> int:
    """Mux all packets of one part behind `before` pictures; returns how many."""
    rate, base = part.average_rate, part.time_base
    ticks = 1 / (rate * base) if rate and base else Fraction(0)
    if ticks.denominator != 1 or ticks <= 0:
        raise DatasetError("has pictures of uneven duration", where=name, fix="encode it with a constant rate")
    packets = [packet for packet in source.demux(part) if packet.size]
    times = [(packet.pts, packet.dts) for packet in packets if packet.pts is not None and packet.dts is not None]
    if len(times) != len(packets):
        raise DatasetError("has a packet without time", where=name, fix="encode it again")
    shift = before * int(ticks) - min((shown for shown, _ in times), default=0)
    for packet, (shown, decoded) in zip(packets, times):
        packet.pts, packet.dts = shown + shift, decoded + shift
        packet.stream = stream
        target.mux(packet)
    return len(packets)


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no reader takes for a finished file."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
