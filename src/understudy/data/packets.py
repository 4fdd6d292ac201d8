"""Coded pictures, one packet at a time, in decode order: from byte slices of an mp4 file, or through a container.

`Mp4Packets` is the hot path: one `pread` for a run of samples, no seeking, no time. `ContainerPackets` is for what
`mp4.py` does not describe (fragmented mp4, Matroska, edit lists that cut): it walks the whole file once without
decoding to number its pictures, then lets the container seek. Both tag each packet with its display position as `pts`,
which the decoder hands on to the picture, so a picture is known by its tag and never by a guess.

Not here: decoding (`decode.py`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from typing import Protocol

import av
import numpy as np

from understudy.data.errors import DatasetError
from understudy.data.mp4 import UnknownLayout, VideoIndex, read_mp4

_READ_AHEAD = 4 << 20  # bytes of one read at most, unless a single picture is larger
_REMEDY = "the file is damaged: copy or record it again"


class Packets(Protocol):
    """A video's index and its packets by decode position."""

    @property
    def index(self) -> VideoIndex: ...

    def packet(self, i: int, until: int) -> av.Packet:
        """Packet i in decode order, `pts` = display position; `until` says how far the caller will read on."""

    def close(self) -> None: ...


def open_packets(path: str) -> Packets:
    """The packets of a video file, whatever its container. Raises `DatasetError` if it cannot be read as a video."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for
        raise DatasetError("is no file", where=path, fix=_REMEDY)
    try:
        packets: Packets = Mp4Packets(path)
    except UnknownLayout:
        packets = ContainerPackets(path)
    if not (packets.index.display >= 0).any():
        packets.close()
        raise DatasetError("holds no pictures", where=path, fix=_REMEDY)
    return packets


def _packet(data: memoryview, display: int) -> av.Packet:
    """A packet tagged with its display position, in memory with the zero padding that decoders read into.

    `av.Packet(data)` would reference the bytes as they lie, unpadded: MPEG-4 then decodes differently from run to run.
    """
    packet = av.Packet(len(data))
    packet.update(data)  # type: ignore[arg-type]  # the stub says bytes; any buffer will do
    packet.pts = display
    return packet


class Mp4Packets:
    """Packets as byte slices of a local mp4 file."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._file = open(path, "rb")  # noqa: SIM115 - closed by close(), or with this object
            weakref.finalize(self, self._file.close)
        except OSError as error:
            raise DatasetError(f"cannot be opened: {error.strerror}", where=path, fix="check path and rights") from None
        try:
            self.index = read_mp4(self._file, path)
        except BaseException as error:
            self._file.close()
            if isinstance(error, OSError):
                raise DatasetError(f"cannot be read: {error.strerror}", where=path, fix="check the disk") from None
            raise
        self._first, self._window, self._base = 0, b"", 0  # samples [_first, ...) lie in _window, which starts at _base

    def packet(self, i: int, until: int) -> av.Packet:
        begin, size = int(self.index.offset[i]), int(self.index.size[i])
        at = begin - self._base
        if at < 0 or at + size > len(self._window):
            self._read(i, until)
            at = 0
        return _packet(memoryview(self._window)[at : at + size], int(self.index.display[i]))

    def _read(self, i: int, until: int) -> None:
        """One read of sample i and of those after it, up to `until`, that follow without a gap in the file."""
        offset = self.index.offset[i : until + 1]
        end = offset + self.index.size[i : until + 1]
        follows = (end[:-1] == offset[1:]) & (end[1:] - offset[0] <= _READ_AHEAD)
        last = int(np.argmin(follows)) if not follows.all() else len(follows)
        begin, count = int(offset[0]), int(end[last] - offset[0])
        try:
            self._window, self._base = os.pread(self._file.fileno(), count, begin), begin
        except OSError as error:
            raise DatasetError(f"cannot be read: {error.strerror}", where=self.path, fix="check the disk") from None
        if len(self._window) < int(self.index.size[i]):
            what = f"ends inside picture {int(self.index.display[i])}: it was cut after it was opened"
            raise DatasetError(what, where=self.path, fix=_REMEDY)

    def close(self) -> None:
        self._file.close()
        self._window = b""


class ContainerPackets:
    """Packets through PyAV's demuxer; opening costs one walk over the whole file, without decoding."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._open()
        stream = self._container.streams.video[0]
        times: list[int] = []
        keys: list[int] = []
        shown: list[bool] = []
        try:
            for packet in self._packets():
                if packet.pts is None:
                    what = f"picture {len(times)} carries no time, so its place is unknown"
                    raise DatasetError(what, where=path, fix="remux it into mp4")
                if packet.is_keyframe:
                    keys.append(len(times))
                times.append(packet.pts)
                shown.append(not packet.is_discard)
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
            self._container = av.open(self.path, metadata_errors="replace")
        except (av.FFmpegError, OSError) as error:
            raise DatasetError(f"cannot be opened: {error.strerror}", where=self.path, fix=_REMEDY) from None
        if not self._container.streams.video:
            raise DatasetError("holds no video track", where=self.path, fix="name another file")
        self._demux = self._packets()

    def _packets(self) -> Iterator[av.Packet]:
        return (packet for packet in self._container.demux(video=0) if packet.size)

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
        return _packet(memoryview(found), int(self.index.display[i]))

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
            found = next((packet for packet in self._demux if packet.pts == time), None)
            if found is not None:
                return found
        return None

    def close(self) -> None:
        self._container.close()
