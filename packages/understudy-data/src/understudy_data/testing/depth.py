"""Depth cameras for datasets of `understudy_data.testing.datasets`: videos of 12-bit codes or
16-bit numbers, and images in rows.
"""

import io
import json
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from understudy_data.video.encode import preserve_scheduling

DEPTH = "observation.images.depth"
HEIGHT = 36
WIDTH = 52
SCALE = {
    "video.depth_min": 0.01,
    "video.depth_max": 10.0,
    "video.shift": 3.5,
    "video.use_log": True,
}
_KINDS = {
    "gray12le": ("libx265", {"x265-params": "lossless=1:log-level=none:pools=none"}),
    "gray16le": ("ffv1", {}),
    "yuv420p": ("libx264", {}),
}


def numbers(index: int, bits: int = 12) -> np.ndarray:
    """uint16 (H, W), different for every frame and with edges everywhere."""
    return (
        np.random.default_rng([3, index]).integers(0, 1 << bits, (HEIGHT, WIDTH)).astype(np.uint16)
    )


def add_depth_video(
    root: Path, lengths: tuple[int, ...], pixel_format: str = "gray12le", **info: Any
) -> None:
    """Add a video camera to a v3.0 dataset of one video file; frame `index` shows
    `numbers(index)`.
    """
    path = root / f"videos/{DEPTH}/chunk-000/file-000.mp4"
    path.parent.mkdir(parents=True)
    write_depth_video(path, range(sum(lengths)), pixel_format)
    for file in (root / "meta/episodes").glob("chunk-*/*.parquet"):
        table = pq.read_table(file)
        starts = (
            np.concatenate([[0], np.cumsum(lengths)])[np.array(table["episode_index"].to_pylist())]
            / 10
        )
        stops = starts + np.array(lengths)[np.array(table["episode_index"].to_pylist())] / 10
        columns = {
            "chunk_index": np.zeros(len(table), int),
            "file_index": np.zeros(len(table), int),
        }
        for name, values in (columns | {"from_timestamp": starts, "to_timestamp": stops}).items():
            table = table.append_column(f"videos/{DEPTH}/{name}", pa.array(values))
        pq.write_table(table, file)
    _declare(root, "video", info)


def write_depth_video(path: Path, indices: range, pixel_format: str = "gray12le") -> None:
    """Write `numbers` of some frames into the first plane of a video's frames."""
    codec, options = _KINDS[pixel_format]
    bits = {"gray12le": 12, "gray16le": 16, "yuv420p": 8}[pixel_format]
    with av.open(str(path), "w") as out:
        try:
            stream = out.add_stream(codec, rate=10, options={"g": "2", **options})
        except ValueError as error:
            if codec != "ffv1":
                raise
            pytest.skip(f"PyAV {av.__version__}: {error}")  # FFmpeg 7 writes none into MP4
        assert isinstance(stream, av.VideoStream)
        stream.width = WIDTH
        stream.height = HEIGHT
        stream.pix_fmt = pixel_format
        stream.thread_count = 1
        with preserve_scheduling():
            out.start_encoding()
        for index in indices:
            frame = av.VideoFrame(WIDTH, HEIGHT, pixel_format)
            kind = np.uint8 if bits == 8 else np.dtype("<u2")
            lines = np.frombuffer(frame.planes[0], kind).reshape(HEIGHT, -1)
            lines[:, :WIDTH] = numbers(index, bits)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))


def add_depth_images(root: Path, dtype: str = "uint16", **info: Any) -> None:
    """Add a column of PNG (uint16, or "rgb" of three channels) or TIFF (float32) images to a
    dataset.
    """
    for file in (root / "data").glob("chunk-*/*.parquet"):
        table = pq.read_table(file)
        images = [_encode(numbers(index, 16), dtype) for index in table["index"].to_pylist()]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = table.append_column(
            DEPTH, pa.array([{"bytes": one, "path": None} for one in images], kind)
        )
        pq.write_table(table, file, row_group_size=4)
    channels = 3 if dtype == "rgb" else 1
    _declare(root, "image", info, channels)


def _encode(values: np.ndarray, dtype: str) -> bytes:
    buffer = io.BytesIO()
    if dtype == "rgb":
        Image.fromarray(np.stack([values.astype(np.uint8)] * 3, axis=-1)).save(buffer, "PNG")
    elif dtype == "uint16":
        Image.fromarray(values).save(buffer, "PNG")
    else:
        Image.fromarray(values.astype(np.float32) / 1000).save(buffer, "TIFF")
    return buffer.getvalue()


def _declare(root: Path, dtype: str, given: dict[str, Any], channels: int = 1) -> None:
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    said = {"is_depth_map": True} | given
    info["features"][DEPTH] = {
        "dtype": dtype,
        "shape": [HEIGHT, WIDTH, channels],
        "names": None,
        "info": said,
    }
    path.write_text(json.dumps(info))
