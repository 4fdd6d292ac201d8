"""Image sizes: the declared size bounds an image before memory is allocated."""

import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.testing.datasets import SIDE, Spec, edit_json, write_dataset
from understudy_data.testing.videos import write_video
from understudy_data.video.reader import open_video

IMAGE = "observation.images.stored"
TOP = "observation.images.top"
_PEAK = """
import json, resource, sys
from understudy_base.errors import DatasetError
from understudy_data.datasets.dataset import EpisodeDataset
data = EpisodeDataset(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    data[0]
    error = ""
except DatasetError as refused:
    error = str(refused)
print(json.dumps([error, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))
"""


def png(height: int, width: int) -> bytes:
    """A black image, a few hundred bytes to some kilobytes small."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    squeezer = zlib.compressobj(9)
    rows = bytearray()
    for _ in range(height):
        rows += squeezer.compress(bytes(1 + 3 * width))
    rows += squeezer.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", bytes(rows))
        + chunk(b"IEND", b"")
    )


def with_picture(root: Path, data: bytes) -> Path:
    """A dataset whose first stored image is `data`; its info.json says 64x64."""
    write_dataset(root, Spec(version="v2.1", lengths=(6, 5), cameras=(), images=(IMAGE,)))
    path = next(root.glob("data/**/episode_000000.parquet"))
    table = pq.read_table(path)
    rows = table.column(IMAGE).to_pylist()
    rows[0] = {"bytes": data, "path": None}
    at = table.column_names.index(IMAGE)
    kind = table.schema.field(IMAGE).type
    pq.write_table(table.set_column(at, IMAGE, [pa.array(rows, kind)]), path)
    return root


def test_image_sizes_a_stored_image_that_is_far_too_large_takes_no_memory(tmp_path: Path) -> None:
    root = with_picture(tmp_path / "d", png(8000, 8000))
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, str(root)], capture_output=True, text=True, check=True
    )
    error, grown = json.loads(done.stdout)
    assert "8000x8000" in error
    assert f"{SIDE}x{SIDE}" in error
    assert grown < 60_000  # kB; the image would take 192 MB


def test_image_sizes_a_image_of_an_unknown_kind_is_not_opened(tmp_path: Path) -> None:
    """Pillow knows many, and starts Ghostscript for some."""
    out = io.BytesIO()
    Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(out, format="PCX")
    with refused(
        "'observation.images.stored'",
        "UnidentifiedImageError",
        where="episode_000000.parquet (episode 0)",
    ):
        EpisodeDataset(with_picture(tmp_path / "d", out.getvalue()))[0]


def declared(path: Path, width: int, height: int) -> None:
    """Have the index of an mp4 file name another size."""
    data = bytearray(path.read_bytes())
    at = data.index(b"avc1", data.index(b"stsd"))
    data[at + 28 : at + 32] = struct.pack(">HH", width, height)
    path.write_bytes(data)


def test_image_sizes_a_video_whose_index_names_another_size(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", "h264-gop2", 6)
    declared(path, 65535, 65535)
    with refused("64x48", "65535x65535", where="a.mp4"):
        open_video(path).read(np.arange(6))


def test_image_sizes_a_video_far_larger_than_its_dataset_says(tmp_path: Path) -> None:
    write_dataset(tmp_path, Spec(version="v2.1", lengths=(6, 5), cameras=(TOP,)))
    for path in tmp_path.rglob("episode_*.mp4"):
        declared(path, 4000, 4000)
    with refused("4000x4000", (SIDE, SIDE, 3), where="(episode 0)"):
        EpisodeDataset(tmp_path)[0]


@pytest.mark.parametrize(
    "said",
    [
        {"shape": [16, 16, 3]},
        {"shape": [3, SIDE, SIDE], "names": ["height", "width", "channels"]},
        {"shape": [SIDE, SIDE, 3], "names": ["channels", "height", "width"]},
    ],
)
def test_image_sizes_wrong_declared_size_hides_no_image(
    tmp_path: Path, said: dict[str, object]
) -> None:
    """Datasets are resized after info.json was written, and their axes are named in another
    sequence.
    """
    root = with_picture(tmp_path / "d", png(SIDE, SIDE))
    edit_json(root / "meta/info.json", lambda info: info["features"][IMAGE].update(said))
    assert EpisodeDataset(root)[0][IMAGE].shape == (3, SIDE, SIDE)
    write_dataset(tmp_path / "v", Spec(version="v2.1", lengths=(6, 5), cameras=(TOP,)))
    edit_json(tmp_path / "v/meta/info.json", lambda info: info["features"][TOP].update(said))
    assert EpisodeDataset(tmp_path / "v")[0][TOP].shape == (3, SIDE, SIDE)
