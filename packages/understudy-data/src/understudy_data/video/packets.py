"""Coded packets in decode order: byte slices of an mp4 file, or packets of a container.

`Mp4Packets` is the hot path: one read for a run of packets, no seeking, no time. `ContainerPackets`
reads files that `mp4.py` does not describe: fragmented mp4, Matroska, edit lists that cut. It walks
the whole file once without decoding to number its frames, then lets the container seek.

Both set the `pts` of each packet to its display position. The decoder copies it to the frame, so
each frame is identified by its tag and never by a guess.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from time import perf_counter
from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import Type as SideDataType
from av.stream import Disposition

from understudy_base import DataAccessError, DatasetError
from understudy_data.storage.byte_source import ByteSource, LocalSource, as_file
from understudy_data.video.index import PacketRun, PacketTable, VideoIndex
from understudy_data.video.mp4 import UnknownLayout, read_mp4
from understudy_data.video.native.ffmpeg import PYAV_MAJOR
from understudy_data.video.shown import IDENTITY, Shown

_MAX_READ = 4 << 20  # bytes of one read, unless a single packet is larger
_BUFFER = 1 << 20  # bytes read ahead in a container that is not local
# accept text that is not UTF-8
_OPEN: dict[str, Any] = {"metadata_errors": "replace"} if PYAV_MAJOR < 19 else {}
_PICTURES = ("mjpeg", "png", "bmp", "gif", "tiff", "webp")  # codecs of a cover
_WITH_MATRIX = {"mov", "mp4", "matroska", "webm"}  # containers that may hold a display matrix
_LIMITED = 64  # streams of a container that are limited
MOST_PIXELS = 1 << 26
"""Largest frames, in pixels, that are decoded when a container is opened."""
_REMEDY = "the file is damaged: copy or record it again"


def open_packets(
    source: ByteSource | str, frames: int = 0, most_pixels: int = MOST_PIXELS
) -> Packets:
    """Open the packets of a video (a source, or the path of a local file), whatever its container.

    Closing them closes the source.

    Args:
        source: the file.
        frames: wanted number of frames, which decides among several video streams; 0: any.
        most_pixels: larger frames are not decoded when a container is opened.

    Raises:
        DatasetError: the file cannot be read as a video.
    """
    if isinstance(source, str):
        source = LocalSource(source)
    try:
        packets: Packets
        try:
            packets = Mp4Packets(source, frames)
        except UnknownLayout:
            packets = ContainerPackets(source, frames, most_pixels)
        if packets.index.count == 0:
            raise DatasetError("holds no frames", where=source.where, fix=_REMEDY)
    except BaseException:
        source.close()
        raise
    return packets


def coalesce(offset: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Merge pieces (n,) of a file that touch or overlap: int64 (k, 2) of (offset, size), in file
    order.
    """
    order = np.argsort(offset, kind="stable")
    begin = offset[order].astype(np.int64)
    end = np.maximum.accumulate(begin + size[order]) if len(begin) else begin
    fresh = np.zeros(0, np.int64)
    if len(begin):
        fresh = np.flatnonzero(np.append(True, begin[1:] > end[:-1]))
    last = np.append(fresh[1:], len(begin)) - 1 if len(begin) else fresh
    return np.stack([begin[fresh], end[last] - begin[fresh]], axis=1)


def make_packet(data: memoryview, tag: int, all_key_frames: bool) -> av.Packet:
    """Make a packet with `tag` as its time, in memory with the zero padding that decoders read
    into.

    `av.Packet(data)` would reference the bytes without padding: MPEG-4 then decodes differently
    from run to run. A PNG decoder depends on the key-frame flag.
    """
    packet = av.Packet(len(data))
    packet.update(data)  # type: ignore[arg-type]  # the stub says bytes; any buffer will do
    packet.pts = tag
    packet.is_keyframe = all_key_frames
    return packet


class _Window(threading.local):
    """Bytes of a thread's last read, and their owner.

    Each thread has one memory for all videos, and each read overwrites it. A fresh buffer for each
    read is cold, and took as long as decoding a small frame. An owner that finds another owner's
    bytes reads again.
    """

    def __init__(self) -> None:
        self.resize(1 << 16)

    def resize(self, size: int) -> None:
        memory = bytearray(size)
        self.memory = (ctypes.c_char * size).from_buffer(memory)
        self.view = memoryview(memory)
        self.clear()

    def clear(self) -> None:
        self.owner: object = None
        self.base = 0
        self.first = 0
        self.stop = 0


_window = _Window()


class Mp4Packets:
    """Packets as byte slices of an mp4 file. For one thread at a time, but for `clone`.

    Attributes:
        index: tables of the video.
        wait_seconds: seconds spent waiting for bytes so far; 0 where a container does the reading.
    """

    def __init__(self, source: ByteSource, frames: int = 0) -> None:
        self.path = source.where
        self._source = source
        self.index = read_mp4(as_file(source), source.where, frames)
        # Single numbers are read from these. A memoryview returns them three times faster than an
        # array.
        self._offset = self.index.offset.data
        self._size = self.index.size.data
        self._display = self.index.display.data
        self._all_key_frames = self.index.gops.all_key_frames
        self._table = PacketTable.from_arrays(
            self.index.offset, self.index.size, self.index.display
        )
        ends = self.index.offset + self.index.size
        # Packets that the next one does not follow at once in the file.
        self._gaps = [*np.flatnonzero(ends[:-1] != self.index.offset[1:]).tolist(), len(ends) - 1]
        self._owner = object()  # identifies this file's bytes in a window
        self.wait_seconds = 0.0

    def packet(self, i: int, read_limit: int) -> av.Packet:
        """Packet i, with its display position as `pts`. Bytes are read ahead up to packet
        `read_limit`.
        """
        window = self._window_with(i, read_limit)
        offset = self._offset[i] - window.base
        return make_packet(
            window.view[offset : offset + self._size[i]], self._display[i], self._all_key_frames
        )

    def run(self, first: int, stop: int, read_limit: int) -> PacketRun:
        """Packets from `first` up to `stop`, or fewer where one read ends earlier. At least one."""
        window = self._window_with(first, max(read_limit, stop - 1))
        return PacketRun(
            window.memory,
            window.base,
            self._table,
            first,
            min(stop, window.stop),
            self._all_key_frames,
        )

    def _window_with(self, i: int, read_limit: int) -> _Window:
        """Return this thread's window with packet i in it, after a read where it is not."""
        if _window.owner is not self._owner or not _window.first <= i < _window.stop:
            self._read(i, read_limit)
        return _window

    def _read(self, i: int, read_limit: int) -> None:
        """Read packet i and those after it, up to `read_limit`, that follow without a gap in the
        file.
        """
        window = _window
        begin = self._offset[i]
        last = max(i, min(read_limit, self._gaps[bisect_left(self._gaps, i)]))
        count = self._offset[last] + self._size[last] - begin
        if count > _MAX_READ and last > i:
            ends = self.index.offset[i : last + 1] + self.index.size[i : last + 1]
            last = i + max(0, int(np.searchsorted(ends, begin + _MAX_READ, side="right")) - 1)
            count = int(ends[last - i]) - begin
        window.clear()
        if count > len(window.view):
            window.resize(max(count, min(2 * count, _MAX_READ)))
        asked = perf_counter()
        try:
            self._source.fill(begin, window.view[:count])
            window.owner = self._owner
            window.base = begin
            window.first = i
            window.stop = last + 1
        except DataAccessError as error:
            # the bad bytes may be those of a later packet
            if last > i and isinstance(error, DatasetError):
                return self._read(i, i)
            where = f"{self.path}, frame {int(self.index.display[i])}"
            raise error.replaced(where=where) from error
        finally:
            self.wait_seconds += perf_counter() - asked

    def spans(self, first: int, last: int) -> np.ndarray:
        """Bytes that give the frames shown from `first` to `last`: int64 (k, 2) of (offset, size),
        coalesced.

        They begin at the key frame.
        """
        start, stop = self.index.gops.packet_range(first, last)
        return coalesce(self.index.offset[start:stop], self.index.size[start:stop])

    def prefetch(self, first: int, last: int) -> None:
        """Prefetch the bytes that give the frames shown from `first` to `last`; see
        `ByteSource.prefetch`.
        """
        self._source.prefetch(self.spans(first, last))

    def clone(self) -> Mp4Packets:
        """Packets of the same video for another thread, with their own `wait_seconds`. Callable
        from any thread.
        """
        return copy.copy(self)

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def film_streams(container: av.container.InputContainer) -> list[av.VideoStream]:
    """Video streams of a container without pictures of a cover; those, too, where there is nothing
    else.
    """
    streams = list(container.streams.video)
    films = [
        stream
        for stream in streams
        if not stream.disposition & Disposition.attached_pic
        and (stream.codec_context is None or stream.codec_context.name not in _PICTURES)
    ]
    return films or streams


def main_stream(container: av.container.InputContainer, frames: int = 0) -> av.VideoStream:
    """Video stream that is read: no picture of a cover, the one with the wanted number of frames,
    or FFmpeg's best.

    Args:
        container: it has one at least. Where it does not count the frames of several, they are
            counted by a walk to its end.
        frames: wanted number of frames; 0: any.
    """
    films = film_streams(container)
    if frames and len(films) > 1:
        counts = {stream.index: stream.frames for stream in films}
        if not all(counts.values()):
            counts = Counter(
                packet.stream_index for packet in container.demux(*films) if packet.size
            )
        films = [stream for stream in films if counts[stream.index] == frames] or films
    best = container.streams.best("video")
    return next(
        (stream for stream in films if best is not None and stream.index == best.index), films[0]
    )


class ContainerPackets:
    """Packets through PyAV's demuxer. Opening costs one walk over the whole file; a few frames are
    decoded.

    Those bring the container's display matrix, which PyAV hides elsewhere.
    """

    def __init__(self, source: ByteSource, frames: int = 0, most_pixels: int = MOST_PIXELS) -> None:
        self._source = source
        self._wanted = frames
        self._most_pixels = most_pixels
        path = source.where
        self._number = -1  # of the stream in the container
        self.path = path
        self.wait_seconds = 0.0
        self._open()
        stream = self._stream
        sight = _Sight(stream, self._container.format.name, self._most_pixels)
        times: list[int] = []
        sizes: list[int] = []
        keys: list[int] = []
        shown: list[bool] = []
        durations: list[int] = []
        try:
            for packet in self._demuxed():
                if packet.pts is None:
                    problem = f"frame {len(times)} carries no time, so its position is unknown"
                    raise DatasetError(problem, where=path, fix="remux it into mp4")
                if packet.is_keyframe:
                    keys.append(len(times))
                sight.add(packet)
                times.append(packet.pts)
                sizes.append(packet.size)
                shown.append(not packet.is_discard)
                durations.append(packet.duration or 0)
        except av.FFmpegError as error:
            raise DatasetError(
                f"cannot be demuxed: {error.strerror}", where=path, fix=_REMEDY
            ) from None
        if not times or stream.codec_context is None:
            problem = "holds no frame" if not times else "holds frames of an unknown codec"
            raise DatasetError(problem, where=path, fix=_REMEDY)
        self._times = np.array(times, np.int64)
        if len(np.unique(self._times)) < len(times):
            raise DatasetError("has two frames at one time", where=path, fix="remux it into mp4")
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
            size=np.array(sizes, np.int32),
            shown=sight.shown(),
            streams=len(film_streams(self._container)),
        )
        self._next = len(times)
        self._durations = np.array(durations, np.int64)

    def _open(self) -> None:
        self._container = self._new_container()
        if not self._container.streams.video:
            raise DatasetError("holds no video track", where=self.path, fix="name another file")
        if self._number < 0:
            self._number = main_stream(self._container).index
            if self._wanted and len(self._container.streams.video) > 1:
                with contextlib.suppress(av.FFmpegError), self._new_container() as probe:
                    self._number = main_stream(probe, self._wanted).index
        self._stream = next(s for s in self._container.streams.video if s.index == self._number)
        self._packets = self._demuxed()

    def _new_container(self) -> av.container.InputContainer:
        try:
            file: Any = self.path
            if not isinstance(self._source, LocalSource):
                file = as_file(self._source, _BUFFER)
            # FFmpeg decodes frames when it opens a file, and allocates what they declare.
            limits: Any = [{"max_pixels": str(self._most_pixels)}] * _LIMITED
            return av.open(file, "r", stream_options=limits, **_OPEN)
        except (av.FFmpegError, OSError) as error:
            raise DatasetError(
                f"cannot be opened: {error.strerror}", where=self.path, fix=_REMEDY
            ) from None

    def _demuxed(self) -> Iterator[av.Packet]:
        return (packet for packet in self._container.demux(self._stream) if packet.size)

    def shown_times(self) -> tuple[np.ndarray, float]:
        """Return the seconds at which each shown frame begins, float64 (count,) ascending, and the
        second at which the last one ends.

        They count from the start of the file as a player's do, after its edit list.
        """
        unit = float(self._stream.time_base or 0)
        order = self.index.decode_position
        start = (self._container.start_time or 0) / av.time_base
        begins = self._times[order] * unit - start
        return begins, float(begins[-1] + self._durations[order[-1]] * unit)

    def packet(self, i: int, read_limit: int) -> av.Packet:
        """See `Mp4Packets.packet`."""
        try:
            packet = next(self._packets, None) if i == self._next else self._seek(i)
        except av.FFmpegError as error:
            problem = f"frame {int(self.index.display[i])} cannot be read: {error.strerror}"
            raise DatasetError(problem, where=self.path, fix=_REMEDY) from None
        if packet is None or packet.pts != self._times[i]:
            problem = (
                f"frame {int(self.index.display[i])} is not where the first walk over the "
                "file found it"
            )
            raise DatasetError(problem, where=self.path, fix=_REMEDY)
        self._next = i + 1
        return make_packet(
            memoryview(packet), int(self.index.display[i]), self.index.gops.all_key_frames
        )

    def run(self, first: int, stop: int, read_limit: int) -> PacketRun:
        """See `Mp4Packets.run`."""
        parts: list[bytes] = []
        try:
            for i in range(first, stop):
                parts.append(bytes(self.packet(i, read_limit)))
        except DataAccessError:
            if not parts:
                raise
        size = np.array([len(part) for part in parts], np.int32)
        offset = np.cumsum(size, dtype=np.int64) - size
        table = PacketTable.from_arrays(
            offset, size, self.index.display[first : first + len(parts)]
        )
        return PacketRun(b"".join(parts), 0, table, 0, len(parts), self.index.gops.all_key_frames)

    def _seek(self, i: int) -> av.Packet | None:
        """Seek to packet i and return it. A container that cannot seek there is walked from its
        beginning.
        """
        time = int(self._times[i])
        for again in (False, True):
            if again:
                self._container.close()
                self._open()
            else:
                self._container.seek(time, stream=self._stream, backward=True)
                self._packets = self._demuxed()
            packet = next((candidate for candidate in self._packets if candidate.pts == time), None)
            if packet is not None:
                return packet
        return None

    def spans(self, first: int, last: int) -> np.ndarray:
        """No spans: offsets are unknown."""
        return np.zeros((0, 2), np.int64)

    def prefetch(self, first: int, last: int) -> None:
        """Do nothing: offsets are unknown."""

    def clone(self) -> ContainerPackets:
        """Open the file once more: a container has one place at a time."""
        return ContainerPackets(self._source, self._wanted, self._most_pixels)

    def close(self) -> None:
        """See `Mp4Packets.close`."""
        self._container.close()
        self._source.close()


class _Sight:
    """Finds out what a container says of how a stream is shown, from the packets of a walk over
    it.
    """

    def __init__(self, stream: av.VideoStream, container: str, most_pixels: int) -> None:
        self._stream = stream
        self._matrix = IDENTITY
        context = stream.codec_context
        has_matrix = bool(_WITH_MATRIX & set(container.split(",")))
        self._is_open = (
            has_matrix and context is not None and context.width * context.height <= most_pixels
        )
        if self._is_open:
            context.options = {"max_pixels": str(2 * most_pixels)}  # codecs round sizes up
            context.thread_count = 1  # the first frame comes out early

    def add(self, packet: av.Packet) -> None:
        """Take the next packet; it is decoded where no frame came out so far."""
        if not self._is_open:
            return
        try:
            frames = packet.decode()
        except av.FFmpegError:  # damage is met again where the frame is wanted
            return
        if frames:
            self._is_open = False
            side_data: Any = frames[0].side_data
            for data in side_data:
                if data.type == SideDataType.DISPLAYMATRIX:
                    self._matrix = tuple(np.frombuffer(bytes(data)[:36], np.int32).tolist())

    def shown(self) -> Shown:
        """Return what was found."""
        context = self._stream.codec_context
        aspect = self._stream.sample_aspect_ratio or 1
        colors = (int(context.color_primaries), int(context.color_trc), int(context.colorspace))
        return Shown(
            self._matrix, Fraction(aspect).as_integer_ratio(), (*colors, int(context.color_range))
        )


Packets = Mp4Packets | ContainerPackets
