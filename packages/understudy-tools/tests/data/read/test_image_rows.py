"""Images in rows: their orientation, their size before they are decoded, and modes that are not
read.
"""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.read.image_column import decode_image
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.videos import moving_pictures
from understudy_tools.report.view.sheets import Sheets
from understudy_tools.testing.edited import edit

SIDE = "observation.images.side"


def _encode(image: Image.Image, kind: str, orientation: int = 1) -> bytes:
    exif = Image.Exif()
    out = io.BytesIO()
    exif[0x0112] = orientation
    image.save(out, kind, exif=exif)
    return out.getvalue()


def _rewrite(root: Path, images: Iterator[bytes]) -> None:
    """Replace the images of all rows."""
    for path in sorted(root.glob("data/chunk-*/*.parquet")):
        table = pq.read_table(path)
        kind = table.schema.field(SIDE).type
        values = pa.array(
            [{"bytes": next(images), "path": None} for _ in range(table.num_rows)], kind
        )
        pq.write_table(table.set_column(table.column_names.index(SIDE), SIDE, values), path)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_images_with_an_orientation_are_upright_everywhere(tmp_path: Path) -> None:
    root = tmp_path / "source"
    out = tmp_path / "out"
    write_dataset(root, Spec("v2.1", lengths=(8, 8), cameras=(), images=(SIDE,)))
    pictures = list(moving_pictures(16, 64, 64))
    stored = [
        _encode(Image.fromarray(picture), ("PNG", "JPEG")[n % 2], 1 + n // 2)
        for n, picture in enumerate(pictures)
    ]
    _rewrite(root, iter(stored))
    expected = np.stack(
        [
            np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)))).transpose(2, 0, 1)
            for data in stored
        ]
    )
    edit(root, out)
    for folder in (root, out):
        data = EpisodeArrays(folder)
        assert np.array_equal(np.stack([data[place][SIDE] for place in range(16)]), expected)
        sheets = Sheets(Catalog.open(folder))
        catalog = Catalog.open(folder)
        # frames of episode 1 side by side
        with Image.open(io.BytesIO(sheets.read(SIDE, 1, 0)[0])) as sheet:
            shown = np.asarray(sheet.convert("RGB"))
        assert np.abs(shown[:64, :64].astype(int) - expected[8].transpose(1, 2, 0)).mean() < 3
        assert catalog.num_frames == 16
    figures = Catalog.open(out).stats[SIDE]
    assert np.allclose(np.ravel(figures["mean"]), expected.mean((0, 2, 3)) / 255, rtol=0, atol=1e-9)
    table = pq.read_table(sorted(out.glob("data/chunk-*/*.parquet"))[0])
    # with its orientation, which is applied once
    assert table[SIDE][5].as_py()["bytes"] == stored[5]


CAMERA = Feature("cam", "image", (64, 64, 3), ["height", "width", "channels"])


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_size_is_checked_before_an_image_is_decoded(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _encode(Image.new("RGB", (5000, 4000)), kind)
    monkeypatch.setattr(Image.Image, "convert", None)
    with refused("5000x4000", "64x64", where="here", fix="shape"):
        decode_image(data, CAMERA, Catalog, "here")


def test_size_beyond_the_limit_of_pillow_is_named() -> None:
    data = _encode(Image.new("L", (20_000, 10_000)), "PNG")
    with warnings.catch_warnings(), refused("200000000 pixels", "64x64", where="here", fix="shape"):
        warnings.simplefilter("ignore")
        decode_image(data, CAMERA, Catalog, "here")


@pytest.mark.parametrize(
    ("mode", "kind", "words", "fix", "unlike"),
    [
        ("CMYK", "JPEG", "CMYK", "RGB", "depth"),
        ("CMYK", "TIFF", "CMYK", "RGB", "depth"),
        ("LAB", "TIFF", "L*a*b*", "RGB", "depth"),
        ("I;16", "PNG", "8 bits", "is_depth_map", "profile"),
        ("F", "TIFF", "floats", "is_depth_map", "profile"),
    ],
)
def test_each_mode_has_its_own_words(
    mode: str, kind: str, words: str, fix: str, unlike: str
) -> None:
    with pytest.raises(DatasetError) as raised:
        decode_image(_encode(Image.new(mode, (64, 64)), kind), CAMERA, Catalog, "here")
    assert words in raised.value.what
    assert fix in raised.value.fix
    assert unlike not in raised.value.fix


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "1"])
def test_usual_modes_are_read(mode: str) -> None:
    assert decode_image(
        _encode(Image.new(mode, (64, 64)), "PNG"), CAMERA, Catalog, "here"
    ).shape == (3, 64, 64)
