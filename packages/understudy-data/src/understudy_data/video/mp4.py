"""Sample tables of the video track of an mp4 file, parsed once into numpy arrays. A sample is a
packet.

Of several video tracks, the best is read, by these questions in turn: is it no picture of a cover
(JPEG, PNG), has it the wanted number of frames, is it enabled, has it more frames, more bytes.

Only box headers and the `moov` box are read (one to three small reads), from anything with `seek`
and `read`, so a remote file costs the same reads. Field layouts: ISO/IEC 14496-12 (boxes), 14496-15
(avcC, hvcC), 14496-1 (esds), AV1-ISOBMFF (av1C).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from struct import Struct
from typing import BinaryIO, NamedTuple

import numpy as np

from understudy_base import DatasetError
from understudy_data.video.index import Mp4Index
from understudy_data.video.shown import IDENTITY, UNSPECIFIED, Shown, multiply

# first read: the whole index of a file written with faststart, up to some thousand frames
FIRST_READ = 1 << 16
_MAX_MOOV = 1 << 30  # an index of 1 GiB would describe some 100 million frames
_HEAD = Struct(">I4s")  # of a box: size and kind
_REMEDY = "the file is damaged: copy or record it again"
_CODECS = {
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"av01": ("av1", b"av1C"),
    b"mp4v": ("mpeg4", b"esds"),
}
_PICTURES = (b"jpeg", b"mjpa", b"mjpb", b"png ", b"tiff", b"gif ")  # sample entries of a cover
_PICTURE_TYPES = (0x6C, 0x6D)  # objectTypeIndication of JPEG and PNG in an esds box
_FIRST_BOXES = {b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"pdin", b"uuid"}


class UnknownLayout(Exception):
    """These tables do not describe the file, which may be sound: it must be read through the
    container instead.
    """


def read_mp4(file: BinaryIO, name: str, frames: int = 0) -> Mp4Index:
    """Parse the video track of an mp4 file.

    Args:
        file: seekable, opened for reading bytes.
        name: name of the file, in errors.
        frames: wanted number of frames, which decides among several tracks; 0: any.

    Raises:
        UnknownLayout: the file must be read through the container.
        DatasetError: the file is damaged.
    """
    size = file.seek(0, 2)
    moov = _find_moov(file, size, name)
    if moov.find(b"mvex") is not None:
        raise UnknownLayout("fragmented")
    movie = moov.need(b"mvhd")
    tracks = []
    for track in moov.all(b"trak"):
        media = track.need(b"mdia")
        if media.is_video:
            tracks.append(_Track(track, media))
    if not tracks:
        raise DatasetError("holds no video track", where=name, fix="name another file")
    if len(tracks) == 1:
        return _read_track(*tracks[0], movie, size, 1)
    ranks = [_rank(track, size, frames) for track in tracks]
    films = sum(rank[0] for rank in ranks)
    return _read_track(*tracks[ranks.index(max(ranks))], movie, size, films or len(tracks))


class _Box:
    """Payload of one box: bounds-checked reads, and child boxes by name."""

    def __init__(self, data: memoryview, kind: str, name: str) -> None:
        self.data = data
        self.kind = kind
        self.name = name
        # child boxes, by where the first begins
        self._boxes: dict[int, list[tuple[bytes, memoryview]]] = {}

    def error(self, problem: str) -> DatasetError:
        return DatasetError(
            f"broken mp4 index: box '{self.kind}' {problem}", where=self.name, fix=_REMEDY
        )

    def take(self, offset: int, count: int) -> bytes:
        return bytes(self._part(offset, count))

    def number(self, offset: int, width: int) -> int:
        return int.from_bytes(self._part(offset, width), "big")

    def _part(self, offset: int, count: int) -> memoryview:
        if offset < 0 or count < 0 or offset + count > len(self.data):
            raise self.error(f"ends at byte {len(self.data)}, but byte {offset + count} is needed")
        return self.data[offset : offset + count]

    def table(self, start: int, rows: int, dtype: str, columns: int = 1) -> np.ndarray:
        """Read a table of `rows` x `columns` big-endian numbers as int64; it must fit inside the
        box.
        """
        width = np.dtype(dtype).itemsize * columns
        if rows * width > len(self.data) - start:
            raise self.error(
                f"declares {rows} entries but has room for "
                f"{max(0, len(self.data) - start) // width}"
            )
        flat = np.frombuffer(self.data, dtype=dtype, count=rows * columns, offset=start).astype(
            np.int64
        )
        return flat.reshape(rows, columns) if columns > 1 else flat

    def all(self, kind: bytes, start: int = 0) -> list[_Box]:
        payloads = [data for other, data in self._children(start) if other == kind]
        return [_Box(data, kind.decode("latin-1"), self.name) for data in payloads]

    def _children(self, start: int) -> list[tuple[bytes, memoryview]]:
        """Kind and payload of each child box, the first of which begins at `start`."""
        if start in self._boxes:
            return self._boxes[start]
        boxes: list[tuple[bytes, memoryview]] = []
        offset = start
        end = len(self.data)
        while offset + 8 <= end:
            size, kind = _HEAD.unpack_from(self.data, offset)
            header = 8
            if size == 1:
                size = self.number(offset + 8, 8)
                header = 16
            elif size == 0:
                size = end - offset
            if size < header or offset + size > end:
                raise self.error(f"holds a box of {size} bytes, but {end - offset} are left")
            boxes.append((kind, self.data[offset + header : offset + size]))
            offset += size
        self._boxes[start] = boxes
        return boxes

    def find(self, kind: bytes, start: int = 0) -> _Box | None:
        for other, data in self._children(start):
            if other == kind:
                return _Box(data, kind.decode("latin-1"), self.name)
        return None

    def need(self, kind: bytes, start: int = 0) -> _Box:
        box = self.find(kind, start)
        if box is None:
            raise self.error(f"has no '{kind.decode()}'")
        return box

    @property
    def is_video(self) -> bool:
        """Whether this `mdia` box is of a video track."""
        return self.need(b"hdlr").take(8, 4) == b"vide"

    def timescale(self) -> int:
        """Read the units per second of a movie header or media header."""
        place = 20 if self.number(0, 1) == 1 else 12
        scale = self.number(place, 4)
        if scale == 0:
            raise self.error("has a time scale of 0")
        return scale


def _find_moov(file: BinaryIO, size: int, name: str) -> _Box:
    """Walk the top-level boxes to `moov` and read all of it."""
    file.seek(0)
    start = 0
    window = file.read(min(FIRST_READ, size))
    offset = 0
    while offset + 8 <= size:
        if offset < start or offset + 16 > start + len(window):
            file.seek(offset)
            start = offset
            window = file.read(min(FIRST_READ, size - offset))
            if len(window) < 8:
                raise DatasetError(
                    f"ends at byte {offset + len(window)}, but its size is {size}",
                    where=name,
                    fix=_REMEDY,
                )
        head = window[offset - start :]
        length = int.from_bytes(head[:4], "big")
        kind = head[4:8]
        header = 8
        if offset == 0 and kind not in _FIRST_BOXES:
            raise UnknownLayout("not an mp4 file")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
            header = 16
        elif length == 0:
            length = size - offset
        if kind == b"moof":
            raise UnknownLayout("fragmented")
        if length < header or offset + length > size:
            left = f"the file has {size - offset} left"
            problem = (
                f"box '{kind.decode('latin-1')}' at byte {offset} claims {length} bytes, {left}"
            )
            raise DatasetError(problem, where=name, fix=_REMEDY)
        if kind == b"moov":
            if length > _MAX_MOOV:
                raise DatasetError(f"its index claims {length} bytes", where=name, fix=_REMEDY)
            body = head[header:length]
            if len(body) < length - header:
                file.seek(offset + header + len(body))
                body += file.read(length - header - len(body))
            if len(body) != length - header:
                raise DatasetError("ends inside its index", where=name, fix=_REMEDY)
            return _Box(memoryview(body), "moov", name)
        offset += length
    raise DatasetError(
        "has no index (no 'moov' box): it was not written to the end", where=name, fix=_REMEDY
    )


class _Track(NamedTuple):
    box: _Box
    media: _Box


def _rank(track: _Track, file_size: int, frames: int) -> tuple[bool, bool, bool, int, int]:
    """Rank of a track among the video tracks of a file: a film, as wanted, enabled, frames,
    bytes.
    """
    table = track.media.need(b"minf").need(b"stbl")
    stsd = table.need(b"stsd")
    size = _sizes(table, file_size)
    kind = stsd.take(12, 4) if len(stsd.data) >= 16 else b""
    picture = kind in _PICTURES
    if kind == b"mp4v" and (esds := stsd.need(kind, 8).find(b"esds", 78)) is not None:
        picture = _is_picture(esds)
    header = track.box.find(b"tkhd")
    enabled = header is not None and bool(header.number(3, 1) & 1)
    return not picture, len(size) == frames, enabled, len(size), int(size.sum())


def _read_track(track: _Box, media: _Box, movie: _Box, file_size: int, streams: int) -> Mp4Index:
    movie_scale = movie.timescale()
    scale = media.need(b"mdhd").timescale()
    table = media.need(b"minf").need(b"stbl")
    codec, extradata, width, height, entry = _description(table.need(b"stsd"))
    shown = _shown(track.find(b"tkhd"), movie, entry, width, height)
    size = _sizes(table, file_size)
    n = len(size)
    if n and int(size.min()) == 0:
        # a decoder takes an empty packet for the end of the stream
        raise UnknownLayout("empty samples")
    offset = _offsets(table, size)
    if n and (int(offset.min()) < 0 or int((offset + size).max()) > file_size):
        end = int((offset + size).max())
        problem = f"its index names bytes up to {end}, the file has {file_size}"
        raise DatasetError(problem, where=table.name, fix=_REMEDY)
    durations = _runs(table.need(b"stts"), n)
    display, times = _display(table, durations, n)
    _check_edits(track, times, scale, movie_scale)
    total = int((durations[:, 0] * durations[:, 1]).sum())
    fps = n * scale / total if total else 0.0
    if n and int(size.max()) > np.iinfo(np.int32).max:
        raise table.error(f"declares a packet of {int(size.max())} bytes")
    keys, display, size = (array.astype(np.int32) for array in (_keys(table, n), display, size))
    place = codec, extradata, width, height, fps, keys, display, offset
    return Mp4Index(*place, size=size, shown=shown, streams=streams)


def _shown(header: _Box | None, movie: _Box, entry: _Box, width: int, height: int) -> Shown:
    """Read what the boxes tkhd, mvhd and those of the sample entry say of how the track is
    shown.
    """
    matrix = IDENTITY
    place = 0
    if header is not None:
        place = 52 if header.number(0, 1) == 1 else 40
        matrix_of_track = _matrix(header, place)
        place_in_movie = 48 if movie.number(0, 1) == 1 else 36
        matrix = multiply(matrix_of_track, _matrix(movie, place_in_movie))
    aspect = (1, 1)
    colors = UNSPECIFIED
    if (box := entry.find(b"pasp", 78)) is not None and box.number(0, 4) and box.number(4, 4):
        aspect = box.number(0, 4), box.number(4, 4)
    elif header is not None and len(header.data) >= place + 44:
        wide = header.number(place + 36, 4)
        tall = header.number(place + 40, 4)
        if wide and tall and abs(wide * height / (tall * width) - 1) > 0.01:
            aspect = wide * height, tall * width
    if (box := entry.find(b"colr", 78)) is not None and box.take(0, 4) in (b"nclx", b"nclc"):
        is_ranged = box.take(0, 4) == b"nclx" and len(box.data) > 10
        full_range = (1 + (box.number(10, 1) >> 7)) if is_ranged else 0
        colors = box.number(4, 2), box.number(6, 2), box.number(8, 2), full_range
    clap = entry.find(b"clap", 78)
    clean_aperture = bytes(clap.data) if clap else b""
    common = gcd(*aspect)
    return Shown(matrix, (aspect[0] // common, aspect[1] // common), colors, clean_aperture)


def _matrix(box: _Box, place: int) -> tuple[int, ...]:
    if len(box.data) < place + 36:
        return IDENTITY
    return tuple(np.frombuffer(box.data, ">i4", 9, place).tolist())


def _description(stsd: _Box) -> tuple[str, bytes, int, int, _Box]:
    """Read codec, decoder configuration, width and height of a sample description; its box comes
    last.
    """
    if stsd.number(4, 4) != 1:
        raise UnknownLayout("several sample descriptions")
    kind = stsd.take(12, 4)
    if kind not in _CODECS:
        raise UnknownLayout(f"codec {kind!r}")
    codec, config = _CODECS[kind]
    entry = stsd.need(kind, 8)
    width = entry.number(24, 2)
    height = entry.number(26, 2)
    if width == 0 or height == 0:
        raise stsd.error(f"declares frames of {width}x{height}")
    box = entry.find(config, 78)
    if box is None:
        raise UnknownLayout(f"no {config.decode()} box")
    config = _mpeg4_config(box) if codec == "mpeg4" else bytes(box.data)
    return codec, config, width, height, entry


def _mpeg4_config(esds: _Box) -> bytes:
    """Find the decoder configuration in the nested descriptors of an `esds` box."""
    for tag, offset, length in _descriptors(esds):
        if tag == 0x04 and esds.number(offset, 1) != 0x20:
            raise UnknownLayout("not MPEG-4 part 2")
        if tag == 0x05:  # DecoderSpecificInfo
            return esds.take(offset, length)
    raise AssertionError("the descriptors end with an error")


def _is_picture(esds: _Box) -> bool:
    """Whether an `esds` box describes JPEG or PNG pictures."""
    try:
        kind = next(esds.number(offset, 1) for tag, offset, _ in _descriptors(esds) if tag == 0x04)
    except (DatasetError, UnknownLayout):
        return False
    return kind in _PICTURE_TYPES


def _descriptors(esds: _Box) -> Iterator[tuple[int, int, int]]:
    """Yield tag, place and length of the nested descriptors of an `esds` box (14496-1, 7.2.6), up
    to its end.
    """
    offset = 4
    while True:
        tag = esds.number(offset, 1)
        length = 0
        offset = offset + 1
        for _ in range(4):
            byte = esds.number(offset, 1)
            offset = offset + 1
            length = (length << 7) | (byte & 0x7F)
            if byte < 0x80:
                break
        yield tag, offset, length
        if tag == 0x03:  # ES_Descriptor: id, flags, and the fields that the flags announce
            flags = esds.number(offset + 2, 1)
            offset += 3
            if flags & 0x80:
                offset += 2
            if flags & 0x20:
                offset += 2
            if flags & 0x40:
                raise UnknownLayout("elementary stream by reference")
        elif tag == 0x04:  # DecoderConfigDescriptor holds others behind its fields
            offset += 13
        else:
            offset += length


def _sizes(table: _Box, file_size: int) -> np.ndarray:
    box = table.find(b"stsz")
    if box is not None:
        sample_size = box.number(4, 4)
        n = box.number(8, 4)
        if sample_size == 0:
            return box.table(12, n, ">u4")
        if n * sample_size > file_size:
            raise box.error(f"claims {n} samples of {sample_size} bytes, the file has {file_size}")
        return np.full(n, sample_size, np.int64)
    box = table.need(b"stz2")
    width = box.number(7, 1)
    n = box.number(8, 4)
    if width == 4:
        pairs = box.table(12, (n + 1) // 2, ">u1")
        return np.stack([pairs >> 4, pairs & 15], axis=1).reshape(-1)[:n]
    if width not in (8, 16):
        raise box.error(f"has a field size of {width} bits")
    dtype = ">u1" if width == 8 else ">u2"
    return box.table(12, n, dtype)


def _offsets(table: _Box, size: np.ndarray) -> np.ndarray:
    """Compute the file offset of each sample from chunk offsets, samples per chunk and sizes."""
    n = len(size)
    box = table.find(b"co64")
    dtype = ">u8"
    if not box:
        box = table.need(b"stco")
        dtype = ">u4"
    chunk = box.table(8, box.number(4, 4), dtype)
    stsc = table.need(b"stsc")
    runs = stsc.table(8, stsc.number(4, 4), ">u4", columns=3)
    if n == 0:
        return np.zeros(0, np.int64)
    first = runs[:, 0]
    per = runs[:, 1]
    if (
        len(runs) == 0
        or first[0] != 1
        or (np.diff(first) <= 0).any()
        or first[-1] > len(chunk)
        or (per == 0).any()
    ):
        raise stsc.error(f"does not map {n} samples to {len(chunk)} chunks")
    if (runs[:, 2] != 1).any():
        raise UnknownLayout("several sample descriptions")
    in_chunk = np.repeat(per, np.diff(np.append(first, len(chunk) + 1)))  # samples of each chunk
    if int(in_chunk.sum()) != n:
        raise stsc.error(f"assigns {int(in_chunk.sum())} samples to chunks, the size table has {n}")
    bytes_before = np.cumsum(size) - size  # bytes of all samples before this one
    head = np.cumsum(in_chunk) - in_chunk  # first sample of each chunk
    return np.repeat(chunk - bytes_before[head], in_chunk) + bytes_before


def _runs(box: _Box, n: int) -> np.ndarray:
    """Read a run-length table of n values, int64 (k, 2): count and value, which is read as a signed
    32-bit number.
    """
    runs = box.table(8, box.number(4, 4), ">u4", columns=2)
    total = int(runs[:, 0].sum())
    if total != n:
        raise box.error(f"describes {total} samples, the size table has {n}")
    runs[:, 1] = runs[:, 1].astype(np.uint32).view(np.int32)
    return runs[runs[:, 0] > 0]


def _display(
    table: _Box, durations: np.ndarray, n: int
) -> tuple[np.ndarray, tuple[int, int] | None]:
    """Compute the display position of each of n samples, and the first and the last composition
    time; None of none.

    Args:
        table: the sample table.
        durations: counts and values of the samples' durations (`_runs`).
        n: number of samples.
    """
    box = table.find(b"ctts")
    counts, values = durations.T
    if n == 0:
        return np.arange(0), None
    if box is None and int(values.min()) >= 0:
        return np.arange(n), (0, int((counts * values).sum() - values[-1]))
    delta = np.repeat(values, counts)
    time = np.cumsum(delta) - delta
    if box is None:
        return np.arange(n), (int(time.min()), int(time.max()))
    shift_counts, shifts = _runs(box, n).T
    time += np.repeat(shifts, shift_counts)
    order = np.argsort(time, kind="stable")
    if (np.diff(time[order]) == 0).any():
        raise UnknownLayout("two frames at one time")
    display = np.empty(n, np.int64)
    display[order] = np.arange(n)
    return display, (int(time.min()), int(time.max()))


def _keys(table: _Box, n: int) -> np.ndarray:
    box = table.find(b"stss")
    if box is None:
        return np.arange(n)
    keys = box.table(8, box.number(4, 4), ">u4") - 1
    if len(keys) and ((np.diff(keys) <= 0).any() or keys[0] < 0 or keys[-1] >= n):
        raise box.error(f"names key frames outside the {n} samples or out of order")
    if n and (len(keys) == 0 or keys[0] != 0):
        raise UnknownLayout("does not begin with a key frame")
    return keys


def _check_edits(track: _Box, times: tuple[int, int] | None, scale: int, movie_scale: int) -> None:
    """Raise UnknownLayout for an edit list that cuts or repeats frames. One that shifts the time
    line is accepted.

    Args:
        track: the track.
        times: the first and the last composition time; None where there is no sample.
        scale: units of these times per second.
        movie_scale: units of the edit list per second.
    """
    edts = track.find(b"edts")
    elst = edts.find(b"elst") if edts else None
    if elst is None or times is None:
        return
    wide = elst.number(0, 1) == 1
    rows = elst.number(4, 4)
    row_bytes = 20 if wide else 12
    width = 8 if wide else 4
    seen = False
    for row in range(rows):
        offset = 8 + row * row_bytes
        length = elst.number(offset, width)
        start = int.from_bytes(elst.take(offset + width, width), "big", signed=True)
        rate = elst.number(offset + 2 * width, 4)
        if start == -1 and not seen:
            continue  # an empty edit: the track only begins later
        if seen or start < 0 or rate != 0x10000:
            raise UnknownLayout("edit list")
        seen = True
        end = start + length * scale / movie_scale
        if times[0] < start or (length and times[1] >= end):
            raise UnknownLayout("an edit list cuts frames")
