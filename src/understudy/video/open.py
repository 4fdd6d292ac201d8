"""Open a video file with the chosen backend: `open_video(path).read([0, 7, 7, 3])`."""

from __future__ import annotations

import os

from understudy.storage.byte_source import ByteSource, LocalSource
from understudy.video.depth.pixels import RGB, Pixels
from understudy.video.pyav import PyavReader
from understudy.video.reader import VideoReader


def open_video(file: str | os.PathLike[str] | ByteSource, backend: str = "pyav", pixels: Pixels = RGB) -> VideoReader:
    """Open a video for reading images.

    Opening parses the index and decodes nothing. The reader pickles as its address and may be used after a fork: the
    child opens its own decoder.

    Args:
        file: a path, or a source.
        backend: "pyav" or "torchcodec". Both give the same images. Depth is always read by "pyav".
        pixels: color, or a kind of depth.

    Raises:
        DatasetError: the file cannot be read as a video.
    """
    if backend not in ("pyav", "torchcodec"):
        raise ValueError(f"backend={backend!r}: it must be 'pyav' or 'torchcodec'")
    source = LocalSource(os.fspath(file)) if isinstance(file, (str, os.PathLike)) else file
    if backend == "pyav" or pixels.is_depth:
        return PyavReader(source, pixels)
    from understudy.video.torchcodec import TorchcodecReader

    return TorchcodecReader(source)
