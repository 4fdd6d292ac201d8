"""Interface of a video reader, and the facts about a video that every reader derives in the same way."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from understudy.video.mp4 import VideoIndex


class VideoReader(Protocol):
    """Facts about a video and access to its pictures, as `open_video` returns it. Use it from one thread at a time."""

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
