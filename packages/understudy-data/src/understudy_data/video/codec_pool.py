"""Pool of codec contexts, per thread, reused by the next video with the same key.

Making and freeing a context costs as much as decoding one to two small frames, so a short read
should not need its own. A returned context forgets all frames and keeps its working memory.

The size of decoded pixels is read from a video's decoder configuration, before anything is decoded.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import av

from understudy_base import DatasetError, LRUCache
from understudy_data.video.index import VideoIndex

# samples of a pixel, by chroma_format_idc: none, 4:2:0, 4:2:2, 4:4:4
_PLANES = {0: 1.0, 1: 1.5, 2: 2.0, 3: 3.0}
# H.264 profiles whose configuration may name the format of its pixels
_EXTENDED = {100, 110, 122, 144, 244}
_PROFILES = {110: 3.0, 122: 4.0, 144: 6.0, 244: 6.0}  # the most of the others that lack it


def pixel_bytes(codec: str, extradata: bytes) -> float | None:
    """Bytes of a pixel in frames of the decoder; None where the configuration does not name them.

    Args:
        codec: FFmpeg's name.
        extradata: the box avcC, hvcC (14496-15, 5.3.3 and 8.3.3) or av1C.
    """
    try:
        if codec == "h264" and extradata[0] == 1:
            return _of_h264(extradata)
        if codec == "hevc" and extradata[0] == 1:
            return _bytes(extradata[16] & 3, extradata[17] & 7)
        if codec == "av1" and extradata[0] == 0x81:
            high, gray, wide, tall = (extradata[2] >> bit & 1 for bit in (6, 4, 3, 2))
            chroma = 0 if gray else 3 - wide - (wide and tall)
            return _bytes(chroma, high)
    except IndexError:
        return None
    return 1.5 if codec == "mpeg4" else None


def _of_h264(extradata: bytes) -> float:
    profile = extradata[1]
    place = 5
    if profile not in _EXTENDED:
        return 1.5
    for mask in (31, 255):  # SPS, then PPS
        count = extradata[place] & mask
        place = place + 1
        for _ in range(count):
            place += 2 + int.from_bytes(extradata[place : place + 2], "big")
    if place + 1 < len(extradata):
        return _bytes(extradata[place] & 3, extradata[place + 1] & 7)
    return _PROFILES.get(profile, 1.5)


def _bytes(chroma: int, more_bits: int) -> float:
    sample_bytes = 2 if more_bits else 1
    return _PLANES[chroma] * sample_bytes


SPARE_BYTES = 4 << 20
"""Largest total size of each thread's spare contexts, unless a single one is larger. Their users
report the sizes.
"""

_SIZED_BY_CONTAINER = ("ffv1",)
_MATRICES = (1, 4, 5, 6, 7, 9, 10)  # color matrices that swscale converts
_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own "av1" decoder only drives hardware


class CodecKey(NamedTuple):
    """Properties that two videos must share for one context to decode both.

    Attributes:
        codec: FFmpeg's name.
        extradata: decoder configuration.
        reorder: largest number of frames held back.
        strict: whether damage is an error.
        pixels: pixels of one frame, as the file declares; 0: any number.
        size: (height, width), for a codec whose packets do not state it; (0, 0) for others.
        colors: matrix and range that the container names, for streams that name none.
    """

    codec: str
    extradata: bytes
    reorder: int
    strict: bool
    pixels: int = 0
    size: tuple[int, int] = (0, 0)
    colors: tuple[int, int] = (2, 0)

    @staticmethod
    def from_index(index: VideoIndex) -> CodecKey:
        """Key of a video."""
        size = (index.height, index.width) if index.codec in _SIZED_BY_CONTAINER else (0, 0)
        pixels = index.height * index.width
        colors = index.shown.colors[2:]
        return CodecKey(
            index.codec, index.extradata, min(index.reorder, 16), True, pixels, size, colors
        )


class PooledContext(NamedTuple):
    """A codec context with the figures that its last user reported.

    Attributes:
        context: the decoder.
        nbytes: its memory in bytes, an estimate; 0: a new one.
        pixel_format: format of the frames that it output; "": unknown.
    """

    context: av.VideoCodecContext
    nbytes: int = 0
    pixel_format: str = ""


class SpareContexts(threading.local):
    """Spare contexts of each thread, by identity because several may have one key.

    Attributes:
        contexts: number of the context -> its key and the context itself.
    """

    def __init__(self) -> None:
        self.contexts = LRUCache[int, tuple[CodecKey, PooledContext]](
            SPARE_BYTES, lambda pair: pair[1].nbytes, keep=1
        )


spare = SpareContexts()
"""The pool."""


def borrow(key: CodecKey, where: str) -> PooledContext:
    """Take an empty context for this key from the pool, or create one. `where` names the video in
    errors.

    Raises:
        DatasetError: PyAV has no such decoder.
    """
    for number, (spare_key, pooled) in reversed(spare.contexts.items()):
        if spare_key == key:
            spare.contexts.pop(number)
            return pooled
    return PooledContext(create_context(key, where))


def give_back(key: CodecKey, pooled: PooledContext) -> None:
    """Return a sound context to this thread's pool. The least recently used ones are dropped to
    make room.

    It must have been fed no parameter sets but those of `key` (`parameter_sets.py`): they survive
    the flush.
    """
    pooled.context.flush_buffers()
    spare.contexts.put(id(pooled.context), (key, pooled))


def create_context(key: CodecKey, where: str) -> av.VideoCodecContext:
    """Create a codec context for one thread.

    Raises:
        DatasetError: PyAV has no such decoder. `where` names the video.
    """
    try:
        context = av.CodecContext.create(_DECODERS.get(key.codec, key.codec), "r")
    except (ValueError, av.FFmpegError):
        problem = f"is coded as {key.codec}, for which this PyAV has no decoder"
        raise DatasetError(
            problem, where=where, fix="install PyAV's own wheel or convert the video"
        ) from None
    assert isinstance(context, av.VideoCodecContext)
    context.extradata = key.extradata or None
    if any(key.size):
        context.height, context.width = key.size
    context.thread_count = 1
    matrix, color_range = key.colors
    if matrix in _MATRICES:
        context.colorspace = matrix
    if color_range:
        context.color_range = color_range
    # A decoder allocates memory for the size that packets declare, so that size is limited to
    # little more than the file's; codecs round sizes up.
    options = {}
    if key.pixels:
        options["max_pixels"] = str(min(2 * key.pixels + (1 << 20), (1 << 31) - 1))
    # Without has_b_frames, H.264 decoders guess the reordering depth and may drop the first frames.
    options["has_b_frames"] = str(key.reorder)
    if key.strict:
        options["err_detect"] = "explode"
    context.options = options
    return context


def frame_bytes(index: VideoIndex) -> int:
    """Memory of one decoded frame in bytes, with padding; 8-bit 4:2:0 where the file names no
    format (`pixel_bytes`).

    Padding as measured: FFmpeg 8 aligns the lines of each plane to 64 bytes, dav1d to whole blocks
    of 128 pixels.
    """
    line = -(-index.width // 128) * 128
    size = max(1.5, pixel_bytes(index.codec, index.extradata) or 1.5)
    if index.codec == "av1":
        return int(line * -(-index.height // 128) * 128 * size)
    return int(line * index.height * size) + 2_400


def decoder_bytes(index: VideoIndex) -> int:
    """Memory of a live decoder of this video in bytes, an estimate: its reference frames and its
    own tables.

    Fitted to measurements of FFmpeg 8.1 and dav1d 1.5: within 15 % for AV1 and H.264, rougher for
    others. Before 8.1, FFmpeg's own decoders took half as much again.
    """
    longest = index.gops.longest
    if index.codec == "av1":
        return 400_000 + int((min(longest, 8) + 1.3) * frame_bytes(index))
    if index.codec == "h264":
        references = read_h264_references(index.extradata)
    else:
        references = min(longest, 4) + index.reorder
    estimate = 600_000 + int((references + 1.75) * frame_bytes(index))
    return estimate if av.library_versions["libavcodec"] >= (62, 28, 0) else estimate * 3 // 2


def read_h264_references(extradata: bytes) -> int:
    """Read `max_num_ref_frames` from the sequence parameter set in an avcC box (14496-10,
    7.3.2.1.1); 4 if unreadable.

    It is also the number of frames that may wait for output.
    """
    parameters = extradata[8 : 8 + int.from_bytes(extradata[6:8], "big")].replace(
        b"\0\0\3", b"\0\0"
    )
    bits = int.from_bytes(parameters, "big")
    left = 8 * len(parameters)

    def take(count: int) -> int:
        nonlocal left
        left -= count
        return bits >> max(left, 0) & ((1 << count) - 1)

    def take_golomb() -> int:  # Exp-Golomb code
        zeros = 0
        while left > 0 and not take(1):
            zeros += 1
        return (1 << zeros) - 1 + take(zeros)

    take(8)  # header of the unit
    profile = take(8)
    take(16)
    take_golomb()  # its id
    if profile not in (66, 77, 88):
        if take_golomb() == 3:  # chroma at full resolution
            take(1)
        take_golomb()  # bit depths
        take_golomb()
        take(1)
        if take(1):  # scaling matrices: recordings do not use them
            return 4
    take_golomb()
    order = take_golomb()
    if order == 0:
        take_golomb()
    elif order == 1:  # used by no encoder that records cameras
        return 4
    references = take_golomb()
    return references if left > 0 and references <= 16 else 4
