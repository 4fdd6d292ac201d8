"""Sizes compared with a limit, and decompression that stops at one.

A small file can declare, or decode to, any size. Each size is compared with a limit before it is
allocated, and the message names both.
"""

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable
from typing import Any

from understudy_tools.imports.recording import RecordingError

_STEP = 1 << 20  # bytes that are decoded at a time


def require_size(size: int, limit: int, what: str, stream: str = "") -> None:
    """Refuse a size beyond a limit.

    Raises:
        RecordingError: kind `size`; the message names the size and the limit.
    """
    if size > limit:
        raise RecordingError("size", f"{what} has {size:,} bytes, the limit is {limit:,}", stream)


def decompress(kind: str, data: Any, limit: int, what: str) -> bytes:
    """Decode bytes, with concatenated frames, and stop where they are more than a limit.

    Args:
        kind: zstd, lz4, bz2, gzip, zlib or lzma.
        data: the compressed bytes.
        limit: the most bytes to decode.
        what: name of the whole, for the message.

    Raises:
        RecordingError: there are more bytes than `limit`.
        Exception: that of the library, for broken bytes; EOFError where they end early.
    """
    pieces = list[bytes]()
    size = 0
    remaining = bytes(data)
    while remaining:
        decoder = _DECODERS[kind]()
        while not decoder.eof:
            piece, remaining, is_stuck = _step(decoder, remaining)
            size += len(piece)
            if size > limit:
                problem = (
                    f"{what} of {len(data):,} bytes decodes to more than {limit:,} bytes, its limit"
                )
                raise RecordingError("size", problem)
            pieces.append(piece)
            if is_stuck:
                raise EOFError(f"{kind} data ends early")
        remaining = getattr(decoder, "unused_data", b"") or b""
        if kind in ("gzip", "zlib", "lzma") and not remaining.strip(b"\0"):
            break  # padding
    return b"".join(pieces)


def _step(decoder: Any, data: bytes) -> tuple[bytes, bytes, bool]:
    """Decode a piece. Return it, the input for the next call, and whether the input has ended too
    early.
    """
    if hasattr(decoder, "unconsumed_tail"):  # zlib
        piece = decoder.decompress(data, _STEP)
        data = decoder.unconsumed_tail
        return piece, data, not piece and not data and not decoder.eof
    if decoder.needs_input and not data:
        return b"", b"", True
    piece = decoder.decompress(data, max_length=_STEP)
    return piece, b"", False


def zstd_decoder() -> Any:
    """Return a decoder of one zstd frame: of Python 3.14, or of the package that `rosbags`
    brings.
    """
    try:
        module = importlib.import_module("compression.zstd")
    except ImportError:
        module = importlib.import_module("backports.zstd")
    return module.ZstdDecompressor()


def _lz4_decoder() -> Any:
    return importlib.import_module("lz4.frame").LZ4FrameDecompressor()


_DECODERS: dict[str, Callable[[], Any]] = {
    "zstd": zstd_decoder,
    "lz4": _lz4_decoder,
    "bz2": bz2.BZ2Decompressor,
    "lzma": lzma.LZMADecompressor,
    "gzip": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    "zlib": zlib.decompressobj,
}
