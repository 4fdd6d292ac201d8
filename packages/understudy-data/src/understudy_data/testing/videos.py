"""Short videos of every supported kind, and a plain container decode as the reference."""

import os
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from understudy_data.video.encode import VideoEncoder, preserve_scheduling

os.environ.setdefault("SVT_LOG", "1")
av.logging.set_level(av.logging.PANIC)  # damaged files are read on purpose

# name -> (encoder, key frame distance, options). "open": leading frames before every key frame.
KINDS: dict[str, tuple[str, int, dict[str, str]]] = {
    "av1-gop2": ("libsvtav1", 2, {"svtav1-params": "lp=1", "preset": "10"}),
    "av1-gop12": ("libsvtav1", 12, {"svtav1-params": "lp=1", "preset": "10"}),
    "h264-gop1": ("libx264", 1, {}),
    "h264-gop2": ("libx264", 2, {}),
    "h264-bframes": ("libx264", 12, {"bf": "3", "x264-params": "b-pyramid=2:b-adapt=0:scenecut=0"}),
    "h264-open": (
        "libx264",
        10,
        {"bf": "3", "x264-params": "open-gop=1:b-pyramid=2:b-adapt=0:scenecut=0"},
    ),
    "h264-gop250": ("libx264", 250, {"x264-params": "scenecut=0"}),
    "h264-refresh": ("libx264", 15, {"x264-params": "intra-refresh=1"}),
    "hevc-closed": ("libx265", 12, {"x265-params": "log-level=none:pools=none:ctu=32:open-gop=0"}),
    "hevc-open": (
        "libx265",
        10,
        {"x265-params": "log-level=none:pools=none:ctu=32:bframes=4:b-adapt=0:scenecut=0"},
    ),
    "mpeg4-bframes": ("mpeg4", 12, {"bf": "2"}),
}
COUNT = 45


def moving_pictures(
    count: int, height: int = 48, width: int = 64, seed: int = 0
) -> Iterator[np.ndarray]:
    """uint8 (height, width, 3) images, each different from all others far beyond coding noise."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:height, :width]
    tilt = rng.integers(1, 5, size=3)
    for i in range(count):
        channels = [
            columns * tilt[0] + 7 * i,
            rows * tilt[1] + 5 * i,
            (rows + columns) * tilt[2] - 9 * i,
        ]
        yield (np.stack(channels, axis=-1) % 256).astype(np.uint8)


def write_video(
    path: Path,
    kind: str,
    count: int = COUNT,
    container: dict[str, str] | None = None,
    height: int = 48,
    width: int = 64,
) -> Path:
    """Encode `count` moving images; `container` are options of the muxer, and the suffix names its
    kind.
    """
    encoder, gop, options = KINDS[kind]
    with av.open(str(path), "w", options=container or {}) as out:
        stream = out.add_stream(
            encoder, rate=10, options={"g": str(gop), "preset": "ultrafast", **options}
        )
        assert isinstance(stream, av.VideoStream)
        stream.height = height
        stream.width = width
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        with preserve_scheduling():
            out.start_encoding()
        for picture in moving_pictures(count, height, width):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
    return path


def rgb(frame: av.VideoFrame) -> np.ndarray:
    """uint8 (height, width, 3) by PyAV in the frame's color space, which PyAV 15 and 16 must be
    given.
    """
    try:
        return frame.to_ndarray(format="rgb24", threads=1)
    except TypeError:
        form = {"format": "rgb24"}
    if frame.format.is_rgb:
        return frame.to_ndarray(**form)
    matrix = frame.colorspace
    full = frame.color_range == 2 or frame.format.name.startswith(("yuvj", "gray"))
    ranges = {"src_color_range": 1 + full, "dst_color_range": 2 - full}
    return frame.reformat(
        **form, src_colorspace=matrix, dst_colorspace=matrix, **ranges
    ).to_ndarray()


def container_decode(path: Path | str) -> np.ndarray:
    """All images by PyAV's own container decode, uint8 (n, height, width, 3)."""
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        stream.thread_count = 1
        return np.stack([rgb(frame) for frame in file.decode(stream)])


def encode_video(
    path: str | os.PathLike[str],
    frames: Iterable[np.ndarray],
    fps: float | Fraction,
    codec: str = "libsvtav1",
    gop: int = 2,
    crf: int | None = None,
    options: Mapping[str, str] | None = None,
) -> int:
    """Encode `frames` (uint8 (height, width, 3) RGB each) into `path`; returns their number."""
    encoder: VideoEncoder | None = None
    try:
        for frame in frames:
            if encoder is None:
                encoder = VideoEncoder(
                    path, fps, frame.shape[0], frame.shape[1], codec, gop, crf, options
                )
            encoder.add(frame)
    except BaseException:
        if encoder is not None:
            encoder.abandon()
        raise
    if encoder is None:
        raise ValueError(f"{path}: a video needs at least one image")
    return encoder.close()


QUARTER_TURNS = {
    0: (1 << 16, 0, 0, 0, 1 << 16, 0),
    1: (0, -1 << 16, 0, 1 << 16, 0, 0),
    2: (-1 << 16, 0, 0, 0, -1 << 16, 0),
    3: (0, 1 << 16, 0, -1 << 16, 0, 0),
}
"""Quarter turns to the left -> first six numbers of a display matrix."""


def set_matrix(path: Path, matrix: Iterable[int], box: bytes = b"tkhd") -> Path:
    """Write a display matrix into the first box tkhd or mvhd (version 0) of an mp4 file, in
    place.
    """
    content = bytearray(path.read_bytes())
    place = content.index(box) + 4 + {b"tkhd": 40, b"mvhd": 36}[box]
    numbers = np.array([*matrix, 0, 0, 1 << 30], ">i4")
    content[place : place + 36] = numbers.tobytes()
    path.write_bytes(content)
    return path


def insert_in_entry(path: Path, box: bytes) -> Path:
    """Append a box to the sample entry of the first track of an mp4 file whose index follows its
    packets.
    """
    content = path.read_bytes()
    entry = content.index(b"avc1", content.index(b"stsd")) - 4
    end = entry + int.from_bytes(content[entry : entry + 4], "big")
    parents = [entry]
    for name in (b"stsd", b"stbl", b"minf", b"mdia", b"trak", b"moov"):
        parents.append(content.rindex(name, 0, parents[-1]) - 4)
    grown = bytearray(content)
    for parent in parents:
        size = int.from_bytes(content[parent : parent + 4], "big") + len(box)
        grown[parent : parent + 4] = size.to_bytes(4, "big")
    path.write_bytes(grown[:end] + box + grown[end:])
    return path
