"""Codec contexts: made for a kind of video, and kept by each thread for the next video of that kind.

Making and freeing one costs as much as decoding one to two small pictures, so a short read should not need its own.
A context that is handed back forgets all pictures; what it keeps is the memory it works in.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import av

from understudy.errors import DatasetError
from understudy.video.mp4 import VideoIndex

SPARE_BYTES = 4 << 20
"""How much of contexts that wait for their next video each thread keeps at most, or one; their owners say how much."""

_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own "av1" decoder only drives hardware


class Kind(NamedTuple):
    """What makes two contexts the same: codec, its configuration, reordering depth, whether damage is an error."""

    codec: str
    extradata: bytes
    reorder: int
    strict: bool
    pixels: int = 0
    """Of one picture, as the file says; 0: any number."""


class _Spare(threading.local):
    def __init__(self) -> None:
        self.held: OrderedDict[int, tuple[Kind, av.VideoCodecContext, int, str]] = OrderedDict()
        self.bytes = 0


_spare = _Spare()


def borrow(kind: Kind, where: str) -> tuple[av.VideoCodecContext, int, str]:
    """A context for this kind of video, with nothing in it, and the bytes and pixel format that it was handed on with;
    0 and "": a new one.

    Raises DatasetError where PyAV has no such decoder.
    """
    for key, (of, context, size, form) in reversed(_spare.held.items()):
        if of == kind:
            del _spare.held[key]
            _spare.bytes -= size
            return context, size, form
    return _create(kind, where), 0, ""


def give_back(kind: Kind, context: av.VideoCodecContext, size: int, form: str) -> None:
    """Keep a sound context of about `size` bytes, which gave out pictures in pixel format `form`, for `borrow` in this
    thread; the longest unused ones make room.

    It must have been fed no parameter sets but those of `kind` (`parameter_sets.py`): they survive the emptying.
    """
    context.flush_buffers()
    _spare.held[id(context)] = kind, context, size, form
    _spare.bytes += size
    while _spare.bytes > SPARE_BYTES and len(_spare.held) > 1:
        _spare.bytes -= _spare.held.popitem(last=False)[1][2]


def _create(kind: Kind, where: str) -> av.VideoCodecContext:
    try:
        context = av.CodecContext.create(_DECODERS.get(kind.codec, kind.codec), "r")
    except (ValueError, av.FFmpegError):
        what = f"is coded as {kind.codec}, for which this PyAV has no decoder"
        raise DatasetError(what, where=where, fix="install PyAV's own wheel or convert the video") from None
    assert isinstance(context, av.VideoCodecContext)
    context.extradata = kind.extradata or None
    context.thread_count = 1
    # Without has_b_frames, H.264 decoders guess the reordering depth and may drop the first pictures.
    # Memory is taken for what packets say, so they may not say much more than the file; codecs round sizes up.
    most = {"max_pixels": str(min(2 * kind.pixels + (1 << 20), (1 << 31) - 1))} if kind.pixels else {}
    context.options = most | {"has_b_frames": str(kind.reorder)} | ({"err_detect": "explode"} if kind.strict else {})
    return context


def picture_bytes(index: VideoIndex) -> int:
    """Memory of one decoded picture as the decoder gives it out, in bytes: 8-bit 4:2:0 and padding, seen of FFmpeg 8,
    which aligns lines to 64 bytes of each plane, and dav1d, to whole blocks of 128 pixels."""
    line = -(-index.width // 128) * 128
    if index.codec == "av1":
        return line * -(-index.height // 128) * 128 * 3 // 2
    return line * index.height * 3 // 2 + 2_400


def live_bytes(index: VideoIndex) -> int:
    """Memory of a live decoder of this video in bytes, an estimate: the pictures it refers to, and its own.

    Fitted to what decoders of FFmpeg 8.1 and dav1d 1.5 were seen to take: within 15 % for AV1 and H.264, rougher for
    others. Before 8.1, decoders of FFmpeg's own took half as much again.
    """
    longest = index.longest
    if index.codec == "av1":
        return 400_000 + int((min(longest, 8) + 1.3) * picture_bytes(index))
    refers = _h264_references(index.extradata) if index.codec == "h264" else min(longest, 4) + index.reorder
    taken = 600_000 + int((refers + 1.75) * picture_bytes(index))
    return taken if av.library_versions["libavcodec"] >= (62, 28, 0) else taken * 3 // 2


def _h264_references(extradata: bytes) -> int:
    """`max_num_ref_frames` of the sequence parameter set in an avcC box (14496-10, 7.3.2.1.1); 4 where it is not read.

    It is as well how many pictures may wait for their turn.
    """
    parameters = extradata[8 : 8 + int.from_bytes(extradata[6:8], "big")].replace(b"\0\0\3", b"\0\0")
    bits, left = int.from_bytes(parameters, "big"), 8 * len(parameters)

    def take(count: int) -> int:
        nonlocal left
        left -= count
        return bits >> max(left, 0) & ((1 << count) - 1)

    def number() -> int:  # Exp-Golomb
        zeros = 0
        while left > 0 and not take(1):
            zeros += 1
        return (1 << zeros) - 1 + take(zeros)

    take(8)  # of the unit itself
    profile = take(8)
    take(16)
    number()  # its id
    if profile not in (66, 77, 88):
        if number() == 3:  # colours at full resolution
            take(1)
        number()  # bit depths
        number()
        take(1)
        if take(1):  # scaling matrices: nobody records with them
            return 4
    number()
    order = number()
    if order == 0:
        number()
    elif order == 1:  # used by no encoder that records cameras
        return 4
    found = number()
    return found if left > 0 and found <= 16 else 4
