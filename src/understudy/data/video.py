"""Pictures of a video file by integer position: `open_video(path).read([0, 7, 7, 3])`.

Positions count pictures in display order from the first of the file. Colours: 8-bit RGB by swscale's bilinear chroma
interpolation with the matrix and range the stream names (BT.601 where it names none), which is what torchcodec and
`VideoFrame.to_ndarray` do; the tests hold the three equal to the bit.

Not here: which picture belongs to which frame of an episode (`rows.py`, `windows.py`), resizing, and depth videos.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from understudy.data.convert import Converter
from understudy.data.decode import PictureDecoder
from understudy.data.errors import DatasetError
from understudy.data.mp4 import VideoIndex
from understudy.data.packets import open_packets
from understudy.data.sources import ByteSource, LocalSource


class VideoReader(Protocol):
    """What `open_video` gives: facts about a video and its pictures. Use from one thread at a time."""

    path: str
    count: int
    height: int
    width: int
    fps: float
    codec: str
    gop: int
    key_frames: np.ndarray

    def read(self, indices: np.ndarray) -> np.ndarray:
        """uint8 (n, height, width, 3) RGB for int positions [n] in any order, repeats allowed.

        The memory may lie by planes: `transpose(0, 3, 1, 2)` is then contiguous.
        Raises `IndexError` for a position outside [0, count) and `DatasetError` for a picture that cannot be decoded.
        """

    def prefetch(self, first: int, last: int) -> None:
        """Say that the pictures from position `first` to `last` will be read soon; see `ByteSource.prefetch`."""

    def close(self) -> None:
        """Release decoder and file; the reader can be used again and then reopens them."""


def open_video(file: str | os.PathLike[str] | ByteSource, backend: str = "pyav") -> VideoReader:
    """Open a video (a path, or a source) for reading pictures; `backend` is "pyav" or "torchcodec" (same pictures).

    Opening parses the index and decodes nothing. The reader pickles as its address and may be used after a fork: the
    child opens its own decoder. Raises `DatasetError` when the file cannot be read as a video.
    """
    if backend not in ("pyav", "torchcodec"):
        raise ValueError(f"backend={backend!r}: it must be 'pyav' or 'torchcodec'")
    source = LocalSource(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else file
    if backend == "pyav":
        return PyavReader(source)
    from understudy.data.video_torchcodec import TorchcodecReader

    return TorchcodecReader(source)


def key_positions(index: VideoIndex) -> np.ndarray:
    """Display positions of the key frames, int64, sorted."""
    shown = index.display[index.keys].astype(np.int64)
    return np.sort(shown[shown >= 0])


def median_gop(index: VideoIndex) -> int:
    """Key-frame distance around the median picture. (The median distance itself would be that of the short tails where
    every episode of a packed file begins with a key frame: 250, 17, 250, 30, … is a file of GOP 250.)"""
    ends = np.append(key_positions(index), int((index.display >= 0).sum()))
    distances = np.sort(np.diff(ends))  # the pictures before the first key frame, if any, belong to none
    passed = np.cumsum(distances)
    return max(1, int(distances[np.searchsorted(passed, passed[-1] / 2)])) if len(distances) else 1


def check_positions(indices: np.ndarray, count: int, path: str) -> np.ndarray:
    """`indices` as int64[n], each inside [0, count)."""
    wanted = np.asarray(indices)
    if wanted.ndim != 1 or not (np.issubdtype(wanted.dtype, np.integer) or wanted.size == 0):
        raise ValueError(f"positions must be one row of integers, not {wanted.dtype} of shape {wanted.shape}")
    wanted = wanted.astype(np.int64)
    if wanted.size and (wanted.min() < 0 or wanted.max() >= count):
        outside = wanted[(wanted < 0) | (wanted >= count)][0]
        raise IndexError(f"{path}: picture {outside} was asked for, the file holds pictures 0..{count - 1}")
    return wanted


_AT_ONCE = 8  # pictures that are decoded before the first is converted


class PyavReader:
    """Pictures through bare PyAV decoders; see `VideoReader`."""

    def __init__(self, source: ByteSource) -> None:
        self.path, self._source = source.where, source
        self._open()
        index = self._packets.index
        self.count, self.height, self.width = self._decoder.count, index.height, index.width
        self.fps, self.codec, self.gop, self.key_frames = (
            index.fps,
            index.codec,
            median_gop(index),
            key_positions(index),
        )

    def _open(self) -> None:
        self._pid: int | None = os.getpid()
        self._packets = open_packets(self._source)
        self._decoder = PictureDecoder(self._packets, self.path)
        self._converter = Converter()

    def read(self, indices: np.ndarray) -> np.ndarray:
        wanted, place = np.unique(check_positions(indices, self.count, self.path), return_inverse=True)
        if self._pid != os.getpid():  # forked, or closed: what the parent holds is the parent's
            self._open()
            if self._decoder.count != self.count:
                raise DatasetError(f"had {self.count} pictures, now has {self._decoder.count}", where=self.path)
        in_order = len(wanted) == len(place) and bool((np.diff(place) > 0).all())
        pictures = np.empty((0, 3, self.height, self.width), np.uint8)
        for row, (_, frame) in enumerate(self._decoder.pictures(wanted, _AT_ONCE)):
            if row == 0:  # now its size is known to be what the file says
                pictures = np.empty((len(wanted), *pictures.shape[1:]), np.uint8)
            self._converter.write(frame, pictures[row])
        return (pictures if in_order else pictures[place]).transpose(0, 2, 3, 1)

    def prefetch(self, first: int, last: int) -> None:
        self._packets.prefetch(first, last)

    def close(self) -> None:
        if self._pid is not None:
            self._packets.close()
            self._pid = None
            del self._decoder

    def __reduce__(self) -> tuple[object, ...]:
        return open_video, (self._source, "pyav")
