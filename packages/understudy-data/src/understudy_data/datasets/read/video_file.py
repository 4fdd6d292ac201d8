"""Facts of a video file, as its container and its index tell them."""

import os
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import av
import numpy as np

from understudy_data.plain_values import storable
from understudy_data.storage.byte_source import ByteSource, LocalSource
from understudy_data.video.packets import main_stream
from understudy_data.video.reader import open_video
from understudy_data.video.shown import Shown


@storable
@dataclass(frozen=True)
class VideoFile:
    """A video of a camera.

    Attributes:
        file: number of the file in the camera's table.
        path: path under the root.
        count: frames in the file.
        width, height: size of a frame, in pixels.
        fps: frames per second.
        codec: FFmpeg's name of the codec.
        gop: usual distance of key frames.
        shown: what the container says of how images are shown.
        streams: number of video streams in the file.
        bytes: size of a local file; None elsewhere.
        pixels: FFmpeg's name of the pixel format; None where it is unknown, or was not asked for.
        b_frames: whether there are B-frames; None as for `pixels`.
    """

    file: int
    path: str
    count: int
    width: int
    height: int
    fps: float
    codec: str
    gop: int
    shown: Shown = field(default_factory=Shown)
    streams: int = 1
    bytes: int | None = None
    pixels: str | None = None
    b_frames: bool | None = None

    @classmethod
    def read(
        cls,
        source: ByteSource,
        file: int,
        path: str,
        *,
        frames: int,
        most_pixels: int,
        probes: bool,
    ) -> Self:
        """Open a video, and read what is said of it.

        Args:
            source: the file.
            file: its number.
            path: its path under the root.
            frames: frames that it should have.
            most_pixels: pixels above which an image is refused.
            probes: whether to ask a local file for its pixel format and B-frames.

        Raises:
            DatasetError: it cannot be read as a video.
        """
        details: dict[str, Any] = {}
        with closing(open_video(source, frames=frames, most_pixels=most_pixels)) as reader:
            if isinstance(source, LocalSource):
                details["bytes"] = os.path.getsize(source.where)
                if probes:
                    details |= _probe(source.where, most_pixels)
            return cls(
                file,
                path,
                reader.count,
                reader.width,
                reader.height,
                float(reader.fps),
                reader.codec,
                int(reader.gop),
                reader.shown,
                reader.streams,
                **details,
            )

    @staticmethod
    def frame_times(path: str) -> np.ndarray | None:
        """Read the times of the frames of a local file, in seconds from its first: float64
        (frames,); None for a file that cannot be read.
        """
        try:
            with av.open(path) as container:
                stream = main_stream(container)
                unit = float(stream.time_base or 0)
                times = [
                    packet.pts * unit
                    for packet in container.demux(stream)
                    if packet.pts is not None and packet.size
                ]
        except (OSError, ValueError, IndexError):
            return None
        return np.sort(np.array(times)) - min(times, default=0.0)


def _probe(path: str, most_pixels: int) -> dict[str, Any]:
    """Return the pixel format of a file, and whether there are B-frames; {} where it cannot be
    opened.
    """
    limits: Any = [{"max_pixels": str(most_pixels)}] * 8
    with (
        suppress(OSError, ValueError, IndexError),
        av.open(path, stream_options=limits) as container,
    ):
        context = main_stream(container).codec_context
        # PyAV 17.1 crashes on the pixel format of a file that does not declare it; such a file has
        # no width either.
        pixels = str(context.pix_fmt) if context.width else None
        return {"pixels": pixels, "b_frames": bool(context.has_b_frames)}
    return {}
