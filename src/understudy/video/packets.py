"""Coded pictures, one packet at a time, in decode order: from byte slices of an mp4 file, or through a container.

`Mp4Packets` is the hot path: one read for a run of samples, no seeking, no time. `ContainerPackets` is for what
`mp4.py` does not describe (fragmented mp4, Matroska, edit lists that cut): it walks the whole file once without
decoding to number its pictures, then lets the container seek. Both tag each packet with its display position as `pts`,
which the decoder hands on to the picture, so a picture is known by its tag and never by a guess.
"""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_left
from collections.abc import Iterator
from time import perf_counter
from typing import Any, Protocol

import av
import numpy as np

from understudy.errors import DatasetError, SourceFailed
from understudy.storage.source import ByteSource, LocalSource, as_file
from understudy.video.mp4 import UnknownLayout, VideoIndex, read_mp4
from understudy.video.native.ffmpeg import PYAV
from understudy.video.native.loops import Coded, Listed, packet

_READ_AHEAD = 4 << 20  # bytes of one read at most, unless a single picture is larger
_BUFFER = 1 << 20  # of a container that is not local
_OPEN: dict[str, Any] = {"metadata_errors": "replace"} if PYAV < 19 else {}  # which lets all texts pass
_REMEDY = "the file is damaged: copy or record it again"


class Packets(Protocol):
    """A video's index and its packets by decode position."""

    @property
    def index(self) -> VideoIndex: ...

    waited: float
    """Seconds of waiting for bytes so far; 0 where the container reads for itself."""

    def packet(self, i: int, until: int) -> av.Packet:
        """Packet i in decode order, `pts` = display position; `until` says how far the caller will read on."""

    def several(self, first: int, stop: int, until: int) -> Coded:
        """Packets from `first` on, in decode order: up to `stop`, or fewer, as far as one read goes. At least one."""

    def spans(self, first: int, last: int) -> np.ndarray:
        """Where the packets lie that give the pictures shown from `first` to `last`: int64 (k, 2) of (offset, size),
        coalesced, from the key frame on; empty where places are not known."""

    def prefetch(self, first: int, last: int) -> None:
        """Have them fetched; see `ByteSource.prefetch`."""

    def close(self) -> None: ...


def open_packets(source: ByteSource | str) -> Packets:
    """The packets of a video (a source, or the path of a local file), whatever its container.

    They close the source with themselves. Raises `DatasetError` if it cannot be read as a video.
    """
    if isinstance(source, str):
        source = LocalSource(source)
    try:
        packets: Packets
        try:
            packets = Mp4Packets(source)
        except UnknownLayout:
            packets = ContainerPackets(source)
        if not (packets.index.display >= 0).any():
            raise DatasetError("holds no pictures", where=source.where, fix=_REMEDY)
    except BaseException:
        source.close()
        raise
    return packets


def coalesced(offset: np.ndarray, size: np.ndarray, gap: int = 0) -> np.ndarray:
    """Spans int64 (k, 2) of (offset, size), in file order, that cover pieces (n,) of a file: those at most `gap` bytes
    apart as one."""
    order = np.argsort(offset, kind="stable")
    begin = offset[order].astype(np.int64)
    end = np.maximum.accumulate(begin + size[order]) if len(begin) else begin
    fresh = np.flatnonzero(np.append(True, begin[1:] > end[:-1] + gap)) if len(begin) else np.zeros(0, np.int64)
    last = np.append(fresh[1:], len(begin)) - 1 if len(begin) else fresh
    return np.stack([begin[fresh], end[last] - begin[fresh]], axis=1)


class _Window(threading.local):
    """What a thread has read last, and whose: one memory for all videos, which every read fills anew. Memory of each
    read's own is cold, and took as long as decoding a small picture. Who comes back to find other bytes reads again."""

    def __init__(self) -> None:
        self.resize(1 << 16)

    def resize(self, size: int) -> None:
        memory = bytearray(size)
        self.memory, self.view = (ctypes.c_char * size).from_buffer(memory), memoryview(memory)
        self.forget()

    def forget(self) -> None:
        self.owner: object = None
        self.base, self.first, self.stop = 0, 0, 0


_window = _Window()


class Mp4Packets:
    """Packets as byte slices of an mp4 file."""

    def __init__(self, source: ByteSource) -> None:
        self.path, self._source = source.where, source
        self.index = read_mp4(as_file(source), source.where)
        # Single numbers are read from these: a memoryview gives them three times faster than an array.
        self._offset, self._size = self.index.offset.data, self.index.size.data
        self._display, self._key = self.index.display.data, self.index.longest == 1
        self._listed = Listed.of(self.index.offset, self.index.size, self.index.display)
        ends = self.index.offset + self.index.size
        self._gaps = [*np.flatnonzero(ends[:-1] != self.index.offset[1:]).tolist(), len(ends) - 1]
        """Packets behind which the next one does not follow at once in the file."""
        self._mark = object()  # of this file's bytes in a window
        self.waited = 0.0

    def packet(self, i: int, until: int) -> av.Packet:
        window = self._having(i, until)
        at = self._offset[i] - window.base
        return packet(window.view[at : at + self._size[i]], self._display[i], self._key)

    def several(self, first: int, stop: int, until: int) -> Coded:
        window = self._having(first, max(until, stop - 1))
        return Coded(window.memory, window.base, self._listed, first, min(stop, window.stop), self._key)

    def _having(self, i: int, until: int) -> _Window:
        """This thread's window with packet i in it, read where it is not there."""
        if _window.owner is not self._mark or not _window.first <= i < _window.stop:
            self._read(i, until)
        return _window

    def _read(self, i: int, until: int) -> None:
        """One read of sample i and of those after it, up to `until`, that follow without a gap in the file."""
        window, begin = _window, self._offset[i]
        last = max(i, min(until, self._gaps[bisect_left(self._gaps, i)]))
        count = self._offset[last] + self._size[last] - begin
        if count > _READ_AHEAD and last > i:
            ends = self.index.offset[i : last + 1] + self.index.size[i : last + 1]
            last = i + max(0, int(np.searchsorted(ends, begin + _READ_AHEAD, side="right")) - 1)
            count = int(ends[last - i]) - begin
        window.forget()
        if count > len(window.view):
            window.resize(max(count, min(2 * count, _READ_AHEAD)))
        asked = perf_counter()
        try:
            self._source.fill(begin, window.view[:count])
            window.owner, window.base, window.first, window.stop = self._mark, begin, i, last + 1
        except DatasetError as error:
            if last > i and not isinstance(error, SourceFailed):  # is it this one, or one that nobody asked for?
                return self._read(i, i)
            whose = f"{self.path}, picture {int(self.index.display[i])}"
            raise type(error)(error.what, where=whose, fix=error.fix) from error
        finally:
            self.waited += perf_counter() - asked

    def spans(self, first: int, last: int) -> np.ndarray:
        start, stop = self._needed(first, last)
        return coalesced(self.index.offset[start:stop], self.index.size[start:stop])

    def _needed(self, first: int, last: int) -> tuple[int, int]:
        """Decode positions [start, stop) that give the pictures shown from `first` to `last`: from the key frame before
        the first, in decode order and in display, to what the decoder is fed before it gives out the last."""
        display, keys = self.index.display, self.index.keys
        decoded = self.index.sample[max(first, 0) : last + 1]
        if not len(decoded):
            return 0, 0
        key = int(np.searchsorted(keys, decoded.min(), side="right")) - 1
        while key > 0 and display[keys[key]] > first:
            key -= 1
        return int(keys[max(key, 0)]), min(int(decoded.max()) + self.index.reorder + 1, len(display))

    def prefetch(self, first: int, last: int) -> None:
        self._source.prefetch(self.spans(first, last))

    def close(self) -> None:
        self._source.close()


class ContainerPackets:
    """Packets through PyAV's demuxer; opening costs one walk over the whole file, without decoding."""

    def __init__(self, source: ByteSource) -> None:
        self._source, path = source, source.where
        self.path, self.waited = path, 0.0
        self._open()
        stream = self._container.streams.video[0]
        times: list[int] = []
        keys: list[int] = []
        shown: list[bool] = []
        try:
            for one in self._packets():
                if one.pts is None:
                    what = f"picture {len(times)} carries no time, so its place is unknown"
                    raise DatasetError(what, where=path, fix="remux it into mp4")
                if one.is_keyframe:
                    keys.append(len(times))
                times.append(one.pts)
                shown.append(not one.is_discard)
        except av.FFmpegError as error:
            raise DatasetError(f"cannot be demuxed: {error.strerror}", where=path, fix=_REMEDY) from None
        if not times or stream.codec_context is None:
            what = "holds no picture" if not times else "holds pictures of a codec that is not known"
            raise DatasetError(what, where=path, fix=_REMEDY)
        self._times = np.array(times, np.int64)
        if len(np.unique(self._times)) < len(times):
            raise DatasetError("has two pictures at one time", where=path, fix="remux it into mp4")
        visible = np.flatnonzero(np.array(shown, bool))
        display = np.full(len(times), -1, np.int32)
        display[visible[np.argsort(self._times[visible])]] = np.arange(len(visible))
        context = stream.codec_context
        self.index = VideoIndex(
            codec=context.codec.canonical_name,
            extradata=context.extradata or b"",
            width=context.width,
            height=context.height,
            fps=float(stream.average_rate or 0),
            keys=np.array(keys or [0], np.int32),
            display=display,
        )
        self._cursor = len(times)

    def _open(self) -> None:
        try:
            file = self.path if isinstance(self._source, LocalSource) else as_file(self._source, _BUFFER)
            self._container: av.container.InputContainer = av.open(file, "r", **_OPEN)
        except (av.FFmpegError, OSError) as error:
            raise DatasetError(f"cannot be opened: {error.strerror}", where=self.path, fix=_REMEDY) from None
        if not self._container.streams.video:
            raise DatasetError("holds no video track", where=self.path, fix="name another file")
        self._demux = self._packets()

    def _packets(self) -> Iterator[av.Packet]:
        return (one for one in self._container.demux(video=0) if one.size)

    def packet(self, i: int, until: int) -> av.Packet:
        try:
            found = next(self._demux, None) if i == self._cursor else self._seek(i)
        except av.FFmpegError as error:
            what = f"picture {int(self.index.display[i])} cannot be read: {error.strerror}"
            raise DatasetError(what, where=self.path, fix=_REMEDY) from None
        if found is None or found.pts != self._times[i]:
            what = f"picture {int(self.index.display[i])} is not where a first walk over the file found it"
            raise DatasetError(what, where=self.path, fix=_REMEDY)
        self._cursor = i + 1
        return packet(memoryview(found), int(self.index.display[i]), self.index.longest == 1)

    def several(self, first: int, stop: int, until: int) -> Coded:
        parts: list[bytes] = []
        try:
            for i in range(first, stop):
                parts.append(bytes(self.packet(i, until)))
        except DatasetError:
            if not parts:
                raise
        size = np.array([len(part) for part in parts], np.int32)
        offset = np.cumsum(size, dtype=np.int64) - size
        listed = Listed.of(offset, size, self.index.display[first : first + len(parts)])
        return Coded(b"".join(parts), 0, listed, 0, len(parts), self.index.longest == 1)

    def _seek(self, i: int) -> av.Packet | None:
        """Packet i after a seek to it; containers that cannot seek there are walked from their beginning."""
        time = int(self._times[i])
        for again in (False, True):
            if again:
                self._container.close()
                self._open()
            else:
                self._container.seek(time, stream=self._container.streams.video[0], backward=True)
                self._demux = self._packets()
            found = next((one for one in self._demux if one.pts == time), None)
            if found is not None:
                return found
        return None

    def spans(self, first: int, last: int) -> np.ndarray:
        return np.zeros((0, 2), np.int64)

    def prefetch(self, first: int, last: int) -> None:
        return None

    def close(self) -> None:
        self._container.close()
        self._source.close()
