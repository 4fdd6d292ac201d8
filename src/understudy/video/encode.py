"""Encode images into mp4 files, and concatenate mp4 files without re-encoding.

`encode_video` writes AV1 (SVT-AV1), H.264 (x264) or HEVC (x265), yuv420p, with a key frame every `gop` frames. The
default is 2, so that reading a random frame decodes at most two. `concat_videos` re-muxes packets (stream copy) with
times counted in frames, so the joined file decodes to exactly the frames of its parts, in order. Both put the index in
front (faststart), write under a temporary name and rename, so a file with its final name is complete.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import numpy as np

from understudy.atomic import draft_path, replace_file
from understudy.errors import DatasetError
from understudy.video.index import VideoIndex
from understudy.video.packets import open_packets
from understudy.video.scheduling import preserve_scheduling

_MUXER = {"movflags": "+faststart"}

_QUIET = "log-level=error:pools=none:frame-threads=1"  # x265: one thread
# Encoder -> (codec, constant rate factor, options). The factors give about the same quality on the encoders' own scales
# and preserve small objects. At 64 pixels, AV1 at 30 smears gripper fingers of two pixels, and presets above 9, which
# SVT-AV1 itself advises against, lose whole blocks. Without B-frames a random frame needs none that follow it.
_ENCODERS: dict[str, tuple[str, int, dict[str, str]]] = {
    "libsvtav1": ("av1", 20, {"preset": "9", "svtav1-params": "lp=1"}),
    "libx264": ("h264", 22, {"preset": "veryfast", "bf": "0"}),
    "libx265": ("hevc", 24, {"preset": "veryfast", "x265-params": f"{_QUIET}:bframes=0"}),
}


def codec_name(codec: str) -> str:
    """Codec that an encoder writes ("av1", "h264", "hevc"). Raises ValueError for an unknown encoder."""
    if codec not in _ENCODERS:
        raise ValueError(f"codec={codec!r}: it must be one of {', '.join(_ENCODERS)}")
    return _ENCODERS[codec][0]


class VideoEncoder:
    """Encoder of one video: `add` each image, then `close` for the finished file, or `abandon`.

    Images are uint8 (height, width, 3) RGB, all of one size, both sides even (4:2:0 chroma) and >= 16.

    Args:
        path: of the file.
        fps: frames per second.
        height: of the images.
        width: of the images.
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
        codec_name(codec)
        if height % 2 or width % 2 or min(height, width) < 16:
            raise ValueError(f"{path}: images of {width}x{height}: both sides must be even and at least 16")
        if not fps > 0 or gop < 1:
            raise ValueError(f"{path}: fps={fps}, gop={gop}: both must be positive")
        _, default_crf, defaults = _ENCODERS[codec]
        os.environ.setdefault("SVT_LOG", "1")  # the only way to silence SVT-AV1; 1 = errors only
        self.path, self.count, self._shape = Path(path), 0, (height, width, 3)
        self._temporary = draft_path(self.path)
        self._container = av.open(str(self._temporary), "w", format="mp4", options=_MUXER)
        settings = {**defaults, "crf": str(default_crf if crf is None else crf), "g": str(gop), **(options or {})}
        rate = Fraction(fps).limit_denominator(1001)
        stream = self._container.add_stream(codec, rate=rate, options=settings)
        assert isinstance(stream, av.VideoStream)
        self._stream, self._tick = stream, 1 / rate
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        self._stream.thread_count = 1

    def add(self, image: np.ndarray) -> None:
        """Encode one more image."""
        if image.shape != self._shape or image.dtype != np.uint8:
            raise ValueError(f"{self.path}: image {image.dtype} {image.shape}, expected uint8 {self._shape}")
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts = self.count
        frame.time_base = self._tick
        self._encode(frame)
        self.count += 1

    def _encode(self, frame: av.VideoFrame | None) -> None:
        """Encode a frame; None flushes the encoder. The first frame opens it."""
        with preserve_scheduling() if self.count == 0 or frame is None else contextlib.nullcontext():
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
                self._stream.encode(None)  # SVT-AV1 prints an error for an encoder that was not flushed
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
    """Encode `frames` (uint8 (height, width, 3) RGB each) into `path`; returns their number.

    The other arguments are those of `VideoEncoder`. After an error no file is left behind.

    Raises:
        ValueError: an unknown codec, an odd size, a size that changes, or no frame at all.
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
        raise ValueError(f"{path}: a video needs at least one image")
    return encoder.close()


def concat_videos(paths: Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> list[int]:
    """Join video files of one codec, size and rate into `out` by stream copy; returns each part's number of frames.

    Frame i of the joined file is shown at i / rate, whatever times the parts carried.

    Raises:
        DatasetError: a part cannot be read, or differs from the first in codec settings, size or rate.
    """
    if not paths:
        raise ValueError(f"{out}: nothing to join")
    names = [os.fspath(path) for path in paths]
    indexes = []
    for name in names:  # one open file at a time: there may be a thousand parts
        part = open_packets(name)
        part.close()
        indexes.append(part.index)
        if _stream_settings(part.index) != _stream_settings(indexes[0]) or (part.index.display < 0).any():
            what = f"differs from {names[0]} in codec settings, size or rate, or hides frames"
            raise DatasetError(what, where=name, fix="encode all parts with the same settings")
    with replace_file(Path(out), durable=False) as draft:
        _mux(names, indexes, draft)
    return [len(index.display) for index in indexes]


def _stream_settings(index: VideoIndex) -> tuple[object, ...]:
    return index.codec, index.extradata, index.width, index.height, index.fps


def _mux(names: Sequence[str], indexes: Sequence[VideoIndex], path: Path) -> None:
    """Write all packets of the parts, in order, into one mp4 file with even times."""
    tick = 1 / Fraction(indexes[0].fps).limit_denominator(1001)
    # A frame is decoded before it is shown. One delay for all parts keeps decode times increasing.
    delay = max(int((np.arange(len(index.display)) - index.display).max(initial=0)) for index in indexes)
    with av.open(names[0]) as template, av.open(str(path), "w", format="mp4", options=_MUXER) as target:
        stream = target.add_stream_from_template(template.streams.video[0], opaque=True)
        before = 0
        for name, index in zip(names, indexes):
            part, keys, count = open_packets(name), set(index.keys.tolist()), len(index.display)
            for i in range(count):
                packet = part.packet(i, count - 1)
                packet.pts, packet.dts, packet.duration = before + int(index.display[i]), before + i - delay, 1
                packet.time_base, packet.is_keyframe = tick, i in keys
                packet.stream = stream
                target.mux(packet)
            part.close()
            before += count
