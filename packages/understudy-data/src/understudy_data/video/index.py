"""Tables of a video: packets in decode order, the display position of each, and its GOPs.

A *display position* counts frames as they are shown, a *decode position* counts packets as they lie
in the file. They differ where B-frames are shown before frames that were decoded earlier.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from understudy_data.video.shown import Shown, turned_size

WHOLE_GOP = 32
"""Longest GOP that is decoded at once: one decoder, in the processor's cache, serves many clips."""
_RESTARTS = 3  # key frames to try before a frame counts as lost


@dataclass(frozen=True)
class VideoIndex:
    """Packets of one video track in decode order, and the display position of each.

    Attributes:
        codec: FFmpeg's name of the codec.
        extradata: decoder configuration, needed before the first packet.
        width: width of a decoded frame, in pixels.
        height: height of a decoded frame, in pixels.
        fps: frames per second over the whole track.
        keys: int32 (k,), decode positions of the key frames, sorted.
        display: int32 (n,), display position of each packet: a permutation of 0..n-1 in an mp4
            file; -1 where a container marks a packet as never shown.
        shown: what the container says of how frames are shown.
        streams: number of video streams in the file, pictures of a cover left out.
        size: int32 (n,), bytes of each packet.
    """

    codec: str
    extradata: bytes
    width: int
    height: int
    fps: float
    keys: np.ndarray
    display: np.ndarray
    shown: Shown = field(default_factory=Shown, kw_only=True)
    streams: int = field(default=1, kw_only=True)
    size: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32), kw_only=True)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of an image as it is shown."""
        return turned_size(self.height, self.width, self.shown.turns)

    @cached_property
    def count(self) -> int:
        """Number of frames that are shown."""
        return len(self.decode_position)

    @cached_property
    def decode_position(self) -> np.ndarray:
        """Decode position of each display position, int32 (count,)."""
        if (self.display == np.arange(len(self.display))).all():
            return self.display
        shown = np.flatnonzero(self.display >= 0)
        places = np.empty(len(shown), np.int32)
        places[self.display[shown]] = shown
        return places

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [
            self.decode_position,
            *(value for value in vars(self).values() if isinstance(value, np.ndarray)),
        ]
        return sum({id(array): array.nbytes for array in arrays}.values())

    @cached_property
    def reorder(self) -> int:
        """Largest number of frames that a decoder holds back before it outputs one.

        A frame that no later packet precedes in display order waits for (decode - display) frames.
        """
        if self.decode_position is self.display:
            return 0
        return int((self.decode_position - np.arange(self.count)).max(initial=0))

    @cached_property
    def gops(self) -> Gops:
        """GOPs of this video, between key frames."""
        return Gops(self)


@dataclass(frozen=True)
class Mp4Index(VideoIndex):
    """A `VideoIndex` with the place of each packet.

    Attributes:
        offset: int64 (n,), byte offset in the file.
    """

    offset: np.ndarray


class Gops:
    """GOPs of a video: each is a key frame and the packets after it, up to the next key frame.

    Decoding of a frame starts at the last key frame that precedes it in decode order *and* in
    display order. A leading frame of an open GOP also needs the group before its own key frame.
    """

    def __init__(self, index: VideoIndex) -> None:
        self._index = index
        # Single numbers are read from these. A memoryview returns them three times faster than an
        # array.
        self._keys = index.keys.data
        self._display = index.display.data
        self._decode_position = index.decode_position.data

    @cached_property
    def key_frames(self) -> np.ndarray:
        """Display positions of the key frames, int64, sorted."""
        shown = self._index.display[self._index.keys].astype(np.int64)
        return np.sort(shown[shown >= 0])

    @cached_property
    def median_length(self) -> int:
        """Key-frame distance around the median frame.

        The median distance itself would be that of the short tails where each episode of a packed
        file begins with a key frame: 250, 17, 250, 30, … is a file of GOP 250.
        """
        ends = np.append(self.key_frames, self._index.count)
        # frames before the first key frame, if any, are not counted
        distances = np.sort(np.diff(ends))
        passed = np.cumsum(distances)
        return (
            max(1, int(distances[np.searchsorted(passed, passed[-1] / 2)])) if len(distances) else 1
        )

    @cached_property
    def longest(self) -> int:
        """Packets of the longest group."""
        return int(np.diff(np.append(self._index.keys, len(self._index.display))).max(initial=1))

    @property
    def all_key_frames(self) -> bool:
        """Whether each packet is a key frame."""
        return self.longest == 1

    def start(self, position: int) -> int:
        """Decode position of the key frame to start on for this frame."""
        return self._keys[self._group(self._decode_position[position], position)]

    def restarts(self, position: int) -> Iterator[int]:
        """Decode positions of the key frames to try for this frame, the nearest first.

        Earlier ones help where a key frame is not a clean start (gradual refresh).
        """
        group = self._group(self._decode_position[position], position)
        return (self._keys[earlier] for earlier in range(group, max(group - _RESTARTS, -1), -1))

    def has_leading(self, start: int) -> bool:
        """Whether packets after the key frame at decode position `start` are shown before it."""
        if self._index.reorder == 0:
            return False
        next_key = bisect_right(self._keys, start)
        end = self._keys[next_key] if next_key < len(self._keys) else len(self._display)
        display = self._index.display[start:end]
        return bool((display[display >= 0] < display[0]).any())

    def packet_range(self, first: int, last: int) -> tuple[int, int]:
        """Decode positions [start, stop) of the packets that give the frames shown from `first` to
        `last`.

        They begin at the key frame to start on, and end with the packet that makes the decoder
        output the last frame.
        """
        decoded = self._index.decode_position[max(first, 0) : last + 1]
        if not len(decoded):
            return 0, 0
        start = self._keys[self._group(int(decoded.min()), first)]
        return start, min(int(decoded.max()) + self._index.reorder + 1, len(self._display))

    def packet_limits(self, positions: np.ndarray) -> list[int]:
        """For each of `positions` (increasing), the last decode position that will surely be
        needed.

        Bytes are read that far at once: to the last of `positions`, or to where the next one lies
        in another group, after frames that are not wanted. A decoder that holds back `reorder`
        frames outputs one when that many more packets than are shown before it were fed.
        """
        last = len(self._display) - 1
        reorder = self._index.reorder
        if int(positions[-1] - positions[0]) < len(positions):  # no gap: the usual case
            return [min(int(positions[-1]) + reorder, last)] * len(positions)
        group = np.searchsorted(
            self._index.keys, self._index.decode_position[positions], side="right"
        )
        ends = np.append(
            np.flatnonzero((np.diff(group) != 0) & (np.diff(positions) > 1)), len(positions) - 1
        )
        end = ends[np.searchsorted(ends, np.arange(len(positions)))]
        return np.minimum(positions[end] + reorder, last).tolist()

    def last_frame(self, position: int) -> int:
        """Display position of the last frame before the next key frame that is shown after
        `position`.
        """
        following = int(np.searchsorted(self.key_frames, position, side="right"))
        if following < len(self.key_frames):
            return int(self.key_frames[following]) - 1
        return int(self._index.count) - 1

    def align_stop(self, positions: np.ndarray, stop: int, limit: int, base: int) -> int:
        """Extend a run of `positions` to the next key frame, unless that is `limit` frames away or
        more.

        The next run then begins there without decoding a frame in vain.

        Args:
            positions: int64 (n,), increasing: display positions plus `base`.
            stop: index into `positions` at which the run would end, below n.
            limit: see above.
            base: see `positions`.

        Returns:
            The index at which the run ends.
        """
        position = int(positions[stop]) - base
        following = int(np.searchsorted(self.key_frames, position))
        key = int(self.key_frames[following]) if following < len(self.key_frames) else position
        aligned = int(np.searchsorted(positions, key + base))
        return aligned if aligned - stop < limit else stop

    def _group(self, decode_position: int, position: int) -> int:
        """Number of the group to start on."""
        keys = self._keys
        display = self._display
        group = bisect_right(keys, decode_position) - 1
        while group > 0 and display[keys[group]] > position:
            group -= 1
        return max(group, 0)


class PacketTable(NamedTuple):
    """Packets of a video in decode order, laid out for C.

    Attributes:
        offset: int64 (n,), byte offsets.
        size: int32 (n,), bytes.
        tag: int32 (n,), display positions.
        addresses: addresses of these three arrays in memory.
    """

    offset: np.ndarray
    size: np.ndarray
    tag: np.ndarray
    addresses: tuple[int, int, int]

    @staticmethod
    def from_arrays(offset: np.ndarray, size: np.ndarray, tag: np.ndarray) -> PacketTable:
        """Table of these columns, each copied where its dtype or layout differs."""
        offset = np.ascontiguousarray(offset, np.int64)
        size, tag = (np.ascontiguousarray(numbers, np.int32) for numbers in (size, tag))
        return PacketTable(
            offset, size, tag, (offset.ctypes.data, size.ctypes.data, tag.ctypes.data)
        )


class PacketRun(NamedTuple):
    """Bytes of the packets [first, stop) of a table.

    Attributes:
        data: their bytes. The thread's next read may overwrite them.
        base: the offset at which `data` begins.
        table: offsets, sizes and tags.
        first: row of the first packet in `table`.
        stop: row after the last packet in `table`.
        all_key_frames: whether each packet of the video is a key frame.
    """

    data: bytes | ctypes.Array[ctypes.c_char]
    base: int
    table: PacketTable
    first: int
    stop: int
    all_key_frames: bool
