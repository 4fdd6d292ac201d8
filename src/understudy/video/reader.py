"""Interfaces of a video reader and its cursors, and the facts that every reader derives in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import av
import numpy as np

from understudy.video.index import Gops, VideoIndex

DecodedImage: TypeAlias = av.VideoFrame | np.ndarray
"""A decoded frame whose RGB conversion is still to be done (`Converter`), or uint8 (H, W, 3) RGB."""


class VideoCursor(Protocol):
    """A decoder over one video that walks forward from any position. Use it from one thread at a time.

    Attributes:
        position: the display position at which `runs` continues without decoding a frame twice; -1: parked.
    """

    position: int

    @property
    def wait_seconds(self) -> float:
        """Seconds spent waiting for bytes so far; 0 where the backend does the reading."""

    def runs(self, positions: np.ndarray, run_length: int = 1) -> Iterator[Sequence[DecodedImage]]:
        """Decode the frames at `positions`, in lists of frames that came out together.

        A frame owns its memory: it may be kept for any time and read in any thread.

        Args:
            positions: int64 (n,), display positions: increasing, without repeats, inside the video.
            run_length: how many frames are decoded before the first is yielded. Longer runs are faster and take memory
                for as many frames.

        Raises:
            DatasetError: a frame cannot be decoded; the message names it.
            Stopped: this thread's work was cancelled (`cancel.py`); checked before each run of packets.
        """

    def park(self) -> None:
        """Release the codec context. The next `runs` starts at a key frame."""


class VideoReader(Protocol):
    """Facts about a video and access to its images, as `open_video` returns it.

    Use it from one thread at a time; `cursor` alone may be called from any thread.

    Attributes:
        path: of the file, as errors name it.
        count: number of frames.
        height: of a frame, in pixels.
        width: of a frame, in pixels.
        fps: frames per second.
        codec: FFmpeg's name of the codec.
        gops: between key frames.
        frame_bytes: memory of one `DecodedImage` of a cursor.
        knows_frame_bytes: whether the file names the format of its pixels; `frame_bytes` is a guess where not.
        decoder_bytes: memory of one cursor with a live decoder, an estimate.
    """

    path: str
    count: int
    height: int
    width: int
    fps: float
    codec: str
    gops: Gops
    frame_bytes: int
    knows_frame_bytes: bool
    decoder_bytes: int

    @property
    def gop(self) -> int:
        """Typical key-frame distance."""

    def read(self, positions: np.ndarray) -> np.ndarray:
        """Read images as uint8 (n, height, width, 3) RGB; depth as uint16 or float32 (n, height, width, 1).

        The memory may be planar: `transpose(0, 3, 1, 2)` is then contiguous.

        Args:
            positions: int (n,), display positions in any order, repeats allowed.

        Raises:
            IndexError: a position is outside [0, count).
            DatasetError: a frame cannot be decoded.
        """

    def cursor(self) -> VideoCursor:
        """Open a cursor over this video, with a decoder of its own. Index and file are shared."""

    def prefetch(self, first: int, last: int) -> None:
        """Prefetch the bytes of the frames shown from `first` to `last`; see `ByteSource.prefetch`."""

    def close(self) -> None:
        """Release decoder and file. The next read opens them again."""


class VideoFacts:
    """Facts that both readers take from a video's index; see `VideoReader`."""

    def __init__(self, path: str, index: VideoIndex) -> None:
        self.path, self.count, self.height, self.width = path, index.count, index.height, index.width
        self.fps, self.codec, self.gops = index.fps, index.codec, index.gops

    @property
    def gop(self) -> int:
        """Typical key-frame distance."""
        return self.gops.median_length


def check_positions(positions: np.ndarray, count: int, path: str) -> np.ndarray:
    """Check that `positions` are integers in [0, count); returns them as int64 (n,)."""
    wanted = np.asarray(positions)
    if wanted.ndim != 1 or not (np.issubdtype(wanted.dtype, np.integer) or wanted.size == 0):
        raise ValueError(f"positions must be one row of integers, not {wanted.dtype} of shape {wanted.shape}")
    wanted = wanted.astype(np.int64)
    if wanted.size and (wanted.min() < 0 or wanted.max() >= count):
        outside = wanted[(wanted < 0) | (wanted >= count)][0]
        raise IndexError(f"{path}: frame {outside} does not exist, the file holds frames 0..{count - 1}")
    return wanted
