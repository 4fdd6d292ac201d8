"""Loops over many frames, decode and convert, outside the interpreter.

PyAV releases the interpreter's lock and takes it again three times for each frame, conversion once
more. With two threads and small frames that is a fifth of the time: a thread that finds the lock
taken sleeps and must be woken. A few lines of C (`loops.c`, compiled when understudy is installed,
see `hatch_build.py`) call the same functions of the same FFmpeg for a whole run of frames, and
release the lock once. Frames stay PyAV's objects. Finished frames are recycled, because making and
freeing one takes the lock three more times.

Before first use the memory layout that the C code assumes is verified on live PyAV and FFmpeg
objects. They are read through /proc/self/mem, so a wrong address raises an error and does not
crash. Where the layout differs, or nothing was compiled, the same loops run in Python: the same
images, more slowly.
"""

import ctypes
import errno
import os
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Sequence
from ctypes import byref, c_int, c_int64, c_uint, c_void_p
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import av

from understudy_base import DatasetError
from understudy_data.video.index import PacketRun
from understudy_data.video.native.ffmpeg import (
    PYAV_MAJOR,
    VARIABLE,
    load_avcodec,
    load_swscale,
    native_mode,
)
from understudy_data.video.packets import make_packet

COMPILED = Path(__file__).with_name("_loops.so")
"""The compiled file, written by `hatch_build.py`."""
SOURCE = COMPILED.with_name("loops.c")
"""The C file that it is compiled from."""

# versions of PyAV that were tried; the layout check could miss a difference in others
_OLDEST = 15
_NEWEST = 19
_REINSTALL = "install understudy again where there is a C compiler"
# Pixel formats of frames that may be filled in C. PyAV then takes their planes for empty, so only
# formats whose planes are never read directly; cameras record these.
_FORMATS = ("yuv420p", "yuvj420p")
_MAX_SPARE = 1024  # where one thread decodes and another converts, spare frames would accumulate
# byte offset in a PyAV object of the pointer to the FFmpeg structure that it wraps
POINTER_OFFSET = 24
_DECODE = (
    c_void_p,
    c_void_p,
    c_int64,
    c_void_p,
    c_void_p,
    c_void_p,
    c_int,
    c_void_p,
    c_int,
    c_int,
    c_void_p,
    c_void_p,
)
_CONVERT = (c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int)
_PLAIN = (c_void_p, c_int64, c_void_p, c_void_p, c_int, c_int, c_int)
FUNCTIONS = (
    "avcodec_send_packet",
    "avcodec_receive_frame",
    "av_packet_alloc",
    "av_packet_free",
    "av_frame_unref",
)


class SpareFrames(threading.local):
    """Empty frames of a thread, by pixel format, at most as many as it ever used at once."""

    def __init__(self) -> None:
        self.by_format: dict[str, list[av.VideoFrame]] = {name: [] for name in _FORMATS}


spare_frames = SpareFrames()


def count_plain_packets(run: PacketRun, skip: int, prefix: int, hevc: bool) -> int:
    """Count the packets after the first `skip` that hold nothing but coded frames of H.264 or HEVC.

    0 where nothing is compiled. See `video/parameter_sets.py`.

    Args:
        run: the packets.
        skip: packets to leave out.
        prefix: bytes of the length in front of each unit.
        hevc: whether these are units of HEVC.
    """
    library = load_loops()
    if library is None:
        return 0
    offset, size, _ = run.table.addresses
    row = run.first + skip
    return int(
        library.loops_plain(
            run.data, run.base, offset + 8 * row, size + 4 * row, run.stop - row, prefix, hevc
        )
    )


def decode_packets(
    context: av.VideoCodecContext, run: PacketRun, pixel_format: str = ""
) -> tuple[list[av.VideoFrame], int, bool]:
    """Feed packets to a decoder and collect its frames.

    Frames that a packet gave out before it failed may be missing.

    Args:
        context: the decoder.
        run: the packets.
        pixel_format: format of the frames that this context has output; "": unknown, which makes
            this call the slower loop. (PyAV 15 and 16 do not know it, and PyAV 17.1 crashes where
            there is none yet.)

    Returns:
        Frames in output order, the number of packets fed, and whether the next packet failed.
    """
    library = load_loops()
    # C would take any object for a context.
    if (
        library is None
        or not isinstance(context, av.VideoCodecContext)
        or pixel_format not in _FORMATS
    ):
        return decode_packets_in_python(context, run)
    frames: list[av.VideoFrame] = []
    row = run.first
    status = 1
    offset, size, tag = run.table.addresses
    context.open(strict=False)
    spare = spare_frames.by_format[pixel_format]
    while status == 1:
        left = run.stop - row
        room = spare[: left + 1]  # one extra frame, so that a drained decoder is noticed
        del spare[: left + 1]
        while len(room) <= left:  # size 0: no memory, which comes with the decoded frame
            room.append(av.VideoFrame(0, 0, pixel_format))
        fed = c_int()
        got = c_int()
        status = library.loops_decode(
            id(context),
            run.data,
            run.base,
            offset + 8 * row,
            size + 4 * row,
            tag + 4 * row,
            left,
            _addresses(room),
            left + 1,
            -errno.EAGAIN,
            byref(fed),
            byref(got),
        )
        frames += room[: got.value]
        spare += room[got.value :]
        row += fed.value
    return frames, row - run.first, status < 0


def decode_packets_in_python(
    context: av.VideoCodecContext, run: PacketRun
) -> tuple[list[av.VideoFrame], int, bool]:
    """Do the same as `decode_packets` in Python.

    Packets are made in a separate loop: work between two decode calls evicts the codec's data from
    the CPU caches and takes several times as long.
    """
    view = memoryview(run.data).cast("B")
    frames = []
    offset, size, tag = (column[run.first : run.stop].tolist() for column in run.table[:3])
    packets = [
        make_packet(view[o - run.base : o - run.base + s], t, run.all_key_frames)
        for o, s, t in zip(offset, size, tag)
    ]
    for fed, packet in enumerate(packets):
        try:
            frames += context.decode(packet)
        except av.FFmpegError:
            return frames, fed, True
    return frames, len(packets), False


def convert_frames(
    context: int, frames: Sequence[av.VideoFrame], to: Sequence[int], height: int, width: int
) -> bool:
    """Convert frames of one pixel layout, each into the memory at its address; False where swscale
    wrote fewer lines.

    Frames that only the list refers to may be empty afterwards: `decode_packets` recycles them in
    this thread.

    Args:
        context: address of a context of swscale.
        frames: the frames.
        to: one address for each, of (3, height, width) bytes: planes of red, green, blue. They are
            not checked.
        height: height of each frame.
        width: width of each frame.
    """
    library = load_loops()
    if library is None:
        return _convert_frames_in_python(context, frames, to, height, width)
    # PyAV knows the size of frames that C did not fill; those are not recycled.
    done = [
        count == _UNSHARED and frame.format.width == 0
        for frame, count in zip(frames, _refcounts(frames))
    ]
    addresses = (c_void_p * len(to))(*to)
    count = library.loops_convert(
        context, _addresses(frames), addresses, bytes(done), len(to), height, width
    )
    if any(done) and len(spare := spare_frames.by_format[frames[0].format.name]) < _MAX_SPARE:
        spare += compress(frames, done)
    return bool(count == len(to))


def _convert_frames_in_python(
    context: int, frames: Sequence[av.VideoFrame], to: Sequence[int], height: int, width: int
) -> bool:
    library = load_swscale()
    channel = height * width
    assert library is not None
    source = (c_void_p * 4)()
    lines = (c_int * 4)()
    planes = (c_void_p * 4)()
    plane_lines = (c_int * 4)(width, width, width)
    for frame, first in zip(frames, to):
        for number, plane in enumerate(frame.planes):
            source[number] = plane.buffer_ptr
            lines[number] = plane.line_size
        planes[0] = first + channel  # gbrp
        planes[1] = first + 2 * channel
        planes[2] = first
        if library.sws_scale(context, source, lines, 0, height, planes, plane_lines) != height:
            return False
    return True


def _addresses(objects: Sequence[object]) -> ctypes.Array[c_void_p]:
    return (c_void_p * len(objects))(*map(id, objects))


def _refcounts(objects: Sequence[object]) -> list[int]:
    return [sys.getrefcount(item) for item in objects]


_UNSHARED = _refcounts([object()])[0]
"""Refcount of an object held only by a list. It differs between versions of Python, so it is
measured.
"""


class LoopsStatus(NamedTuple):
    """Whether the compiled loops are used.

    Attributes:
        library: the compiled loops, or None.
        reason: why they are not used.
        fix: a remedy; empty where there is none, or the user turned them off.
    """

    library: ctypes.CDLL | None
    reason: str = ""
    fix: str = ""


@lru_cache(maxsize=1)
def load_loops() -> ctypes.CDLL | None:
    """Load the C code, bound to the FFmpeg that PyAV is linked with; None where it cannot be used.

    Warns once where there is a remedy.

    Raises:
        DatasetError: `UNDERSTUDY_NATIVE` requires it, or has an unknown value.
    """
    status = loops_status()
    if status.library is None:
        if native_mode() == "require":
            raise DatasetError(f"{VARIABLE}=require cannot be met: {status.reason}", fix=status.fix)
        if status.fix:
            warnings.warn(
                f"frames are decoded in Python, more slowly: {status.reason} ({status.fix})",
                stacklevel=2,
            )
    return status.library


def check_native_mode() -> None:
    """Raise DatasetError where `UNDERSTUDY_NATIVE` has an unknown value, or requires loops that
    cannot be used.
    """
    if native_mode() == "require":
        load_loops()


@lru_cache(maxsize=1)
def loops_status() -> LoopsStatus:
    """Try to load the C code, without a warning or an error."""
    if native_mode() == "0":
        return LoopsStatus(None, f"{VARIABLE}=0")
    if not sys.platform.startswith("linux"):
        return LoopsStatus(None, f"compiled loops are made for Linux, this is {sys.platform}")
    if not COMPILED.is_file():
        return LoopsStatus(
            None, "the loops were not compiled when understudy was installed", _REINSTALL
        )
    if not _OLDEST <= PYAV_MAJOR <= _NEWEST:
        reason = (
            f"the memory layout of PyAV {av.__version__} is unknown, known are {_OLDEST} to "
            f"{_NEWEST}"
        )
        return LoopsStatus(None, reason, "install one of those, or a newer understudy")
    swscale = load_swscale()
    avcodec = load_avcodec()
    if swscale is None or avcodec is None:
        return LoopsStatus(
            None, "this PyAV hides the functions of its FFmpeg", "install PyAV's own wheel"
        )
    try:
        library = ctypes.CDLL(str(COMPILED))
        library.loops_source.restype = c_uint
        # its functions may take other arguments
        if library.loops_source() != zlib.crc32(SOURCE.read_bytes()):
            return LoopsStatus(
                None, "the loops were compiled from another version of loops.c", _REINSTALL
            )
        functions = [*(getattr(avcodec, name) for name in FUNCTIONS), swscale.sws_scale]
        library.loops_bind(*(ctypes.cast(function, c_void_p) for function in functions))
        library.loops_decode.argtypes = list(_DECODE)
        library.loops_convert.argtypes = list(_CONVERT)
        library.loops_plain.argtypes = list(_PLAIN)
        if _layout_matches(avcodec):
            return LoopsStatus(library)
        reason = "the self-test failed: PyAV's objects are not laid out in memory as expected"
    # a wrong address is any number
    except (OSError, AttributeError, ValueError, OverflowError, struct.error) as error:
        reason = f"the self-test failed: {type(error).__name__}: {' '.join(str(error).split())}"
    return LoopsStatus(None, reason, "install PyAV's own wheel, or understudy again")


def _layout_matches(avcodec: ctypes.CDLL) -> bool:
    """Whether memory holds the fields that `loops.c` uses, seen in objects whose contents PyAV also
    reports.
    """
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:

        def read(form: str, address: int) -> tuple[int, ...]:
            return struct.unpack(form, os.pread(memory, struct.calcsize(form), address))

        def wrapped(item: object) -> int:
            return read("P", id(item) + POINTER_OFFSET)[0]

        packet = av.Packet(11)
        packet.pts = 1234567890123
        _, pts, _, data, size = read("PqqPi", wrapped(packet))
        frame = av.VideoFrame(48, 32, "yuv420p")
        *pointers, _, width, height, _, pixel_format = read("8P8iP4i", wrapped(frame))
        planes = [*(plane.buffer_ptr for plane in frame.planes), *[0] * 5]
        lines = [*(plane.line_size for plane in frame.planes), *[0] * 5]
        context = av.CodecContext.create("h264", "r")
        return (
            (pts, data, size) == (packet.pts, packet.buffer_ptr, 11)
            and (pointers, width, height) == ([*planes, *lines], 48, 32)
            and pixel_format == avcodec.av_get_pix_fmt(b"yuv420p")
            and read("P", wrapped(context))[0] == avcodec.avcodec_get_class()
        )
    finally:
        os.close(memory)
