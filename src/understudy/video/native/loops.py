"""The two loops over many pictures, decode and convert, outside the interpreter.

PyAV gives up the interpreter's lock and takes it again three times a picture, conversion once more. With two threads
and small pictures that is a fifth of the time: whoever finds the lock taken goes to sleep and has to be woken. So a few
lines of C (`loops.c`, compiled when understudy is installed, see `hatch_build.py`) call the same functions of the same
FFmpeg for a whole run of pictures, and the lock is given up once. Pictures stay PyAV's objects; those that are done
with are filled again, for making and freeing one takes the lock three times more.

Nothing is believed: before the first call it is looked whether PyAV's objects and FFmpeg's structures lie in memory as
the C code expects them, through the kernel, which answers with an error where there is no memory. Where anything is
not as expected, or nothing was compiled, the same loops run in Python: the same pictures, more slowly.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Sequence
from ctypes import byref, c_char, c_int, c_int64, c_uint, c_void_p
from functools import lru_cache
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import av
import numpy as np

from understudy.video.native.ffmpeg import PYAV, codecs, swscale
from understudy.video.native.switch import VARIABLE, refuse, wanted

COMPILED = Path(__file__).with_name("_loops.so")
"""Where `hatch_build.py` puts it."""
SOURCE = COMPILED.with_name("loops.c")

_OLDEST, _NEWEST = 15, 19
"""Versions of PyAV whose objects this file was tried with: of others nothing is read, since the look at memory could
miss a difference."""
_REINSTALL = "install understudy again where there is a C compiler"
_FORMS = ("yuv420p", "yuvj420p")
"""Pixel formats of pictures that may be made in C. PyAV then takes their planes for empty, so only such as nobody reads
as they lie; cameras' pictures are of these."""
_MOST_SPARE = 1024  # where one thread decodes and another converts, they would become more and more
_WRAPPED = 24  # bytes into an object of PyAV's: the structure that it wraps
_DECODE = (c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int, c_void_p, c_int, c_int, c_void_p, c_void_p)
_CONVERT = (c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_int, c_int)
_PLAIN = (c_void_p, c_int64, c_void_p, c_void_p, c_int, c_int, c_int)
_FUNCTIONS = ("avcodec_send_packet", "avcodec_receive_frame", "av_packet_alloc", "av_packet_free", "av_frame_unref")


class _Spare(threading.local):
    """Empty pictures of a thread, by pixel format, as many as it ever had in use."""

    def __init__(self) -> None:
        self.by_form: dict[str, list[av.VideoFrame]] = {form: [] for form in _FORMS}


_spare = _Spare()


class Listed(NamedTuple):
    """Packets of a video in decode order: `size` int32 (n,) bytes at `offset` int64 (n,), their tags int32 (n,)."""

    offset: np.ndarray
    size: np.ndarray
    tag: np.ndarray
    addresses: tuple[int, int, int]

    @staticmethod
    def of(offset: np.ndarray, size: np.ndarray, tag: np.ndarray) -> Listed:
        offset = np.ascontiguousarray(offset, np.int64)
        size, tag = (np.ascontiguousarray(numbers, np.int32) for numbers in (size, tag))
        return Listed(offset, size, tag, (offset.ctypes.data, size.ctypes.data, tag.ctypes.data))


class Coded(NamedTuple):
    """Packets [first, stop) of `listed`, in `data`, which begins where offsets are `base`. `key`: every picture of the
    video is a key frame. The thread's next read may overwrite `data`."""

    data: bytes | ctypes.Array[c_char]
    base: int
    listed: Listed
    first: int
    stop: int
    key: bool


def packet(data: memoryview, tag: int, key: bool) -> av.Packet:
    """A packet with this tag as its time, in memory with the zero padding that decoders read into. `key`: all pictures
    are key frames, which a decoder of PNG has to be told.

    `av.Packet(data)` would reference the bytes as they lie, unpadded: MPEG-4 then decodes differently from run to run.
    """
    made = av.Packet(len(data))
    made.update(data)  # type: ignore[arg-type]  # the stub says bytes; any buffer will do
    made.pts, made.is_keyframe = tag, key
    return made


def plain_packets(coded: Coded, skip: int, prefix: int, hevc: bool) -> int:
    """How many packets behind the first `skip` are nothing but pictures, of H.264 or HEVC, whose units lie behind their
    length in `prefix` bytes; 0 where nothing is compiled. See `video/parameter_sets.py`."""
    found = compiled()
    if found is None:
        return 0
    offset, size, _ = coded.listed.addresses
    at = coded.first + skip
    return int(found.loops_plain(coded.data, coded.base, offset + 8 * at, size + 4 * at, coded.stop - at, prefix, hevc))


def decode(context: av.VideoCodecContext, coded: Coded, form: str = "") -> tuple[list[av.VideoFrame], int, bool]:
    """Feed packets and take what comes out: (pictures as they came, packets fed, whether the next one failed).

    form: pixel format of what this context has given out; "": not known, which makes this the slower way. (Asked for
    it, PyAV 15 and 16 do not know, and PyAV 17.1 crashes where there is none yet.)

    What a packet that failed gave out before it did may be missing.
    """
    found = compiled()
    # C takes what it is given for a context.
    if found is None or not isinstance(context, av.VideoCodecContext) or form not in _FORMS:
        return _decode(context, coded)
    pictures: list[av.VideoFrame] = []
    at, status = coded.first, 1
    offset, size, tag = coded.listed.addresses
    context.open(strict=False)
    spare = _spare.by_form[form]
    while status == 1:
        left = coded.stop - at
        room = spare[: left + 1]  # one more is asked for what nobody gives
        del spare[: left + 1]
        while len(room) <= left:  # without a size they have no memory: it comes with the picture
            room.append(av.VideoFrame(0, 0, form))
        fed, got = c_int(), c_int()
        status = found.loops_decode(
            id(context),
            coded.data,
            coded.base,
            offset + 8 * at,
            size + 4 * at,
            tag + 4 * at,
            left,
            _addresses(room),
            left + 1,
            -errno.EAGAIN,
            byref(fed),
            byref(got),
        )
        pictures += room[: got.value]
        spare += room[got.value :]
        at += fed.value
    return pictures, at - coded.first, status < 0


def _decode(context: av.VideoCodecContext, coded: Coded) -> tuple[list[av.VideoFrame], int, bool]:
    """In Python. Packets are made in a loop of their own: what runs between two pictures finds the caches full of them
    and takes several times as long."""
    view, pictures = memoryview(coded.data).cast("B"), []
    offset, size, tag = (numbers[coded.first : coded.stop].tolist() for numbers in coded.listed[:3])
    made = [packet(view[o - coded.base : o - coded.base + s], t, coded.key) for o, s, t in zip(offset, size, tag)]
    for fed, one in enumerate(made):
        try:
            pictures += context.decode(one)
        except av.FFmpegError:
            return pictures, fed, True
    return pictures, len(made), False


def convert(scaler: int, frames: Sequence[av.VideoFrame], to: Sequence[int], height: int, width: int) -> bool:
    """Whether pictures of one kind were converted by this context of swscale's, each into the memory at an address.

    Planes of red, green and blue, (3, height, width) bytes each; the addresses are the caller's word. Pictures that
    nobody but the list refers to may be empty then: they are filled again by `decode` in this thread.
    """
    found = compiled()
    if found is None:
        return _convert(scaler, frames, to, height, width)
    # Of those that C did not fill, PyAV has noted the size.
    done = [count == _ALONE and one.format.width == 0 for one, count in zip(frames, _references(frames))]
    addresses = (c_void_p * len(to))(*to)
    count = found.loops_convert(scaler, _addresses(frames), addresses, bytes(done), len(to), height, width)
    if any(done) and len(spare := _spare.by_form[frames[0].format.name]) < _MOST_SPARE:
        spare += compress(frames, done)
    return bool(count == len(to))


def _convert(scaler: int, frames: Sequence[av.VideoFrame], to: Sequence[int], height: int, width: int) -> bool:
    library, channel = swscale(), height * width
    assert library is not None
    given, lines = (c_void_p * 4)(), (c_int * 4)()
    planes, plane_lines = (c_void_p * 4)(), (c_int * 4)(width, width, width)
    for frame, first in zip(frames, to):
        for number, plane in enumerate(frame.planes):
            given[number], lines[number] = plane.buffer_ptr, plane.line_size
        planes[0], planes[1], planes[2] = first + channel, first + 2 * channel, first  # gbrp
        if library.sws_scale(scaler, given, lines, 0, height, planes, plane_lines) != height:
            return False
    return True


def _addresses(objects: Sequence[object]) -> ctypes.Array[c_void_p]:
    return (c_void_p * len(objects))(*map(id, objects))


def _references(objects: Sequence[object]) -> list[int]:
    return [sys.getrefcount(one) for one in objects]


_ALONE = _references([object()])[0]
"""Of an object that only the list refers to: what else counts differs between versions of Python."""


class State(NamedTuple):
    """Whether the compiled loops are used; if not, why, and what would help (empty: nothing would, or nobody asked)."""

    loops: ctypes.CDLL | None
    why: str = ""
    fix: str = ""


@lru_cache(maxsize=1)
def compiled() -> ctypes.CDLL | None:
    """The C code, bound to the FFmpeg that PyAV is linked with; None where it cannot be used.

    What can be helped is said once, as a warning. Raises DatasetError where `UNDERSTUDY_NATIVE` requires it, or has a
    value that it cannot have.
    """
    found = state()
    if found.loops is None:
        refuse(found.why, found.fix)
        if found.fix:
            warnings.warn(f"pictures are decoded in Python, more slowly: {found.why} ({found.fix})", stacklevel=2)
    return found.loops


def check() -> None:
    """Raise DatasetError where `UNDERSTUDY_NATIVE` has a value that it cannot have, or one that cannot be met here."""
    if wanted() == "require":
        compiled()


@lru_cache(maxsize=1)
def state() -> State:
    """What `compiled` gives, with the reason, and without a word or an error."""
    if wanted() == "0":
        return State(None, f"{VARIABLE}=0")
    if not sys.platform.startswith("linux"):
        return State(None, f"compiled loops are made for Linux, this is {sys.platform}")
    if not COMPILED.is_file():
        return State(None, "the loops were not compiled when understudy was installed", _REINSTALL)
    if not _OLDEST <= PYAV <= _NEWEST:
        what = f"PyAV {av.__version__} is none of {_OLDEST} to {_NEWEST}, whose objects in memory are known"
        return State(None, what, "install one of those, or a newer understudy")
    scaling, coding = swscale(), codecs()
    if scaling is None or coding is None:
        return State(None, "this PyAV hides the functions of its FFmpeg", "install PyAV's own wheel")
    try:
        found = ctypes.CDLL(str(COMPILED))
        found.loops_source.restype = c_uint
        if found.loops_source() != zlib.crc32(SOURCE.read_bytes()):  # it may have to be called in another way
            return State(None, "the loops were compiled from another version of loops.c", _REINSTALL)
        functions = [*(getattr(coding, name) for name in _FUNCTIONS), scaling.sws_scale]
        found.loops_bind(*(ctypes.cast(function, c_void_p) for function in functions))
        found.loops_decode.argtypes = list(_DECODE)
        found.loops_convert.argtypes = list(_CONVERT)
        found.loops_plain.argtypes = list(_PLAIN)
        if _lies_as_expected(coding):
            return State(found)
        why = "the self-test failed: PyAV's objects are not in memory as expected"
    except (OSError, AttributeError, ValueError, OverflowError, struct.error) as error:  # no address is any number
        why = f"the self-test failed: {type(error).__name__}: {' '.join(str(error).split())}"
    return State(None, why, "install PyAV's own wheel, or understudy again")


def _lies_as_expected(coding: ctypes.CDLL) -> bool:
    """Whether memory holds what `loops.c` reads and writes, seen in objects whose contents PyAV tells."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:

        def read(form: str, address: int) -> tuple[int, ...]:
            return struct.unpack(form, os.pread(memory, struct.calcsize(form), address))

        def wrapped(one: object) -> int:
            return read("P", id(one) + _WRAPPED)[0]

        coded = av.Packet(11)
        coded.pts = 1234567890123
        _, pts, _, data, size = read("PqqPi", wrapped(coded))
        picture = av.VideoFrame(48, 32, "yuv420p")
        *pointers, _, width, height, _, form = read("8P8iP4i", wrapped(picture))
        planes = [*(plane.buffer_ptr for plane in picture.planes), *[0] * 5]
        lines = [*(plane.line_size for plane in picture.planes), *[0] * 5]
        context = av.CodecContext.create("h264", "r")
        return (
            (pts, data, size) == (coded.pts, coded.buffer_ptr, 11)
            and (pointers, width, height) == ([*planes, *lines], 48, 32)
            and form == coding.av_get_pix_fmt(b"yuv420p")
            and read("P", wrapped(context))[0] == coding.avcodec_get_class()
        )
    finally:
        os.close(memory)
