"""Depth images are read exactly as stored, or refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.depth import (
    DEPTH,
    HEIGHT,
    SCALE,
    WIDTH,
    add_depth_images,
    add_depth_video,
    numbers,
)

TOP = "observation.images.top"
LENGTHS = (6, 4)
WINDOW = {DEPTH: [-0.1, 0.0, 0.1]}


def dataset(root: Path, cameras: tuple[str, ...] = (TOP,)) -> Path:
    write_dataset(root, Spec(lengths=LENGTHS, cameras=cameras, foreign=False))
    return root


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = dataset(tmp_path_factory.mktemp("depth") / "set")
    add_depth_video(root, LENGTHS, **SCALE, depth_unit="mm", **{"video.pix_fmt": "gray12le"})
    return root


def meters(code: int) -> float:
    """LeRobot's formula, with Python's own numbers."""
    low = 0.01
    high = 10.0
    shift = 3.5
    share = math.log(low + shift) + code / 4095 * (math.log(high + shift) - math.log(low + shift))
    return min(max(math.exp(share) - shift, low), high)


def exact(index: int) -> np.ndarray:
    values = [np.float32(meters(int(code))) for code in numbers(index).reshape(-1)]
    return np.array(values, np.float32).reshape(1, HEIGHT, WIDTH)


def test_depth_of_quantized_video_is_meters_in_float32(quantized: Path) -> None:
    sample = EpisodeDataset(quantized, WINDOW).sample(1, 3)
    assert (sample[DEPTH].dtype, sample[DEPTH].shape) == (torch.float32, (3, 1, HEIGHT, WIDTH))
    assert sample[f"{DEPTH}_is_pad"].tolist() == [False, False, True]
    for image, index in zip(sample[DEPTH].numpy(), (8, 9, 9)):
        np.testing.assert_allclose(image, exact(index), rtol=2e-7)  # one rounding to float32
    assert sample[TOP].dtype == torch.uint8


def test_depth_statistics_have_the_unit_of_the_images(quantized: Path, tmp_path: Path) -> None:
    recorded = {
        "min": [[[10.0]]],
        "max": [[[4000.0]]],
        "mean": [[[900.0]]],
        "std": [[[30.0]]],
        "count": [10],
    }
    (quantized / "meta/stats.json").write_text(json.dumps({DEPTH: recorded}))
    found = Catalog.open(quantized).stats[DEPTH]
    assert [float(found[name].item()) for name in recorded] == [0.01, 4.0, 0.9, 0.03, 10.0]


@pytest.mark.parametrize("unit", [None, "mm"])
def test_depth_of_16_bit_video_is_as_stored(unit: str | None, tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    add_depth_video(root, LENGTHS, "gray16le", depth_unit=unit)
    batch = EpisodeDataset(root, WINDOW).batch(np.array([0, 1]), np.array([2, 0]))
    assert (batch[DEPTH].dtype, batch[DEPTH].shape) == (torch.uint16, (2, 3, 1, HEIGHT, WIDTH))
    for images, indices in zip(batch[DEPTH].numpy(), ((1, 2, 3), (6, 6, 7))):
        assert all(np.array_equal(image[0], numbers(i, 16)) for image, i in zip(images, indices))


@pytest.mark.parametrize(("dtype", "unit"), [("uint16", "mm"), ("uint16", None), ("float32", "m")])
def test_depth_of_images_in_rows_is_as_stored(dtype: str, unit: str | None, tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    add_depth_images(root, dtype, depth_unit=unit)
    batch = EpisodeDataset(root, WINDOW).batch(np.array([0, 1]), np.array([2, 0]))
    assert (str(batch[DEPTH].dtype), batch[DEPTH].shape) == (
        f"torch.{dtype}",
        (2, 3, 1, HEIGHT, WIDTH),
    )
    for images, indices in zip(batch[DEPTH].numpy(), ((1, 2, 3), (6, 6, 7))):
        for image, index in zip(images, indices):
            stored = numbers(index, 16)
            assert np.array_equal(
                image[0], stored if dtype == "uint16" else stored.astype(np.float32) / 1000
            )


@pytest.mark.parametrize(
    ("dtype", "unit", "mode"), [("float32", "mm", "F"), ("uint16", "m", "I;16")]
)
def test_depth_images_of_another_type_than_declared_are_refused(
    dtype: str, unit: str, mode: str, tmp_path: Path
) -> None:
    root = dataset(tmp_path / "set")
    add_depth_images(root, dtype, depth_unit=unit)
    with refused(DEPTH, mode, unit, where="(episode 0)", fix="depth_unit"):
        EpisodeDataset(root).sample(0, 0)


def test_depth_images_that_are_not_declared_as_depth_are_refused(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    add_depth_images(root, is_depth_map=False)
    with refused(DEPTH, "I;16", where="(episode 0)", fix="is_depth_map"):
        EpisodeDataset(root).sample(0, 0)


@pytest.mark.parametrize(
    ("info", "values"),
    [
        ({"video.depth_min": None}, ["video.depth_min"]),
        ({"video.use_log": 1}, ["video.use_log", 1]),
        ({"video.shift": "far"}, ["video.shift", "'far'"]),
        ({"video.depth_max": math.inf}, ["video.depth_max", "inf"]),
        ({"video.depth_max": 0.01}, [0.01]),
        ({"video.shift": -1.0}, [-1.0]),
        ({"depth_unit": "cm"}, ["'cm'"]),
        ({"video.pix_fmt": "yuv420p12le"}, ["yuv420p12le", "gray12le"]),
        (dict.fromkeys(SCALE) | {"video.pix_fmt": "gray12le"}, ["gray12le", "gray16le"]),
    ],
)
def test_depth_that_cannot_be_read_exactly_is_left_out_by_name(
    info: dict[str, Any], values: list[object], quantized: Path, tmp_path: Path
) -> None:
    root = tmp_path / "set"
    root.mkdir()
    for name in ("data", "videos"):
        (root / name).symlink_to(quantized / name)
    (root / "meta").mkdir()
    for path in (quantized / "meta").iterdir():
        (root / "meta" / path.name).symlink_to(path)
    content = json.loads((quantized / "meta/info.json").read_text())
    content["features"][DEPTH]["info"] |= info
    (root / "meta/info.json").unlink()
    (root / "meta/info.json").write_text(json.dumps(content))
    with warned(DEPTH, *values):
        assert DEPTH not in EpisodeDataset(root).keys
    with refused(DEPTH, *values, where="set", fix="keys"):
        EpisodeDataset(root, keys=[DEPTH])


def test_depth_frames_in_another_format_than_declared_are_refused(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    add_depth_video(root, LENGTHS, "yuv420p", **SCALE)
    with refused("yuv420p", "gray12le", where="(episode 0)"):
        EpisodeDataset(root).sample(0, 0)


@pytest.mark.parametrize(("unit", "factor", "tolerance"), [("mm", 1000, 0.5), ("m", 1, 2e-7)])
def test_depth_unit_converts_codes_and_their_statistics(
    unit: Any, factor: int, tolerance: float, quantized: Path
) -> None:
    recorded = {
        "min": [[[10.0]]],
        "max": [[[4000.0]]],
        "mean": [[[900.0]]],
        "std": [[[30.0]]],
        "count": [10],
    }
    (quantized / "meta/stats.json").write_text(json.dumps({DEPTH: recorded}))
    data = EpisodeDataset(quantized, depth_unit=unit)
    image = data.sample(0, 2)[DEPTH].numpy()
    assert (image.dtype, image.shape) == (np.float32, (1, HEIGHT, WIDTH))
    np.testing.assert_allclose(
        image, exact(2).astype(np.float64) * factor, atol=tolerance, rtol=2e-7
    )
    assert unit == "m" or np.array_equal(image, np.rint(image))
    statistics = data.catalog.stats[DEPTH]
    assert [float(statistics[name].item()) * 1000 / factor for name in recorded][:4] == [
        10.0,
        4000.0,
        900.0,
        30.0,
    ]
    assert statistics["count"] == 10


@pytest.mark.parametrize(("dtype", "stored"), [("uint16", "mm"), ("float32", "m")])
@pytest.mark.parametrize("unit", ["m", "mm"])
def test_depth_unit_converts_images_in_rows(
    dtype: str, stored: str, unit: Any, tmp_path: Path
) -> None:
    root = dataset(tmp_path / "set")
    add_depth_images(root, dtype, depth_unit=stored)
    image = EpisodeDataset(root, depth_unit=unit).sample(0, 3)[DEPTH].numpy()
    values = numbers(3, 16) if stored == "mm" else numbers(3, 16).astype(np.float32) / 1000
    assert image.dtype == np.float32
    factor = {("m", "mm"): 1000.0, ("mm", "m"): 0.001}.get((stored, unit), 1.0)
    np.testing.assert_allclose(image[0], values.astype(np.float64) * factor, rtol=2e-7)


def test_depth_unit_needs_a_recorded_unit(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    add_depth_images(root)
    with refused(DEPTH, "'mm'", where="set", fix="depth_unit"):
        EpisodeDataset(root, depth_unit="mm")
    assert DEPTH not in EpisodeDataset(root, keys=[TOP], depth_unit="mm").keys
    with refused("'cm'", where=None, fix="'mm'"):
        EpisodeDataset(root, depth_unit="cm")  # type: ignore[arg-type]


def test_ordinary_video_declared_as_depth_is_color(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    add_depth_video(root, LENGTHS, "yuv420p", **{"video.pix_fmt": "yuv420p"})
    catalog = Catalog.open(root)
    assert [line for line in catalog.oddities if DEPTH in line and "yuv420p" in line]
    sample = EpisodeDataset(catalog).sample(0, 0)
    assert (sample[DEPTH].dtype, sample[DEPTH].shape) == (torch.uint8, (3, HEIGHT, WIDTH))
    assert not catalog.features[DEPTH].is_depth


def test_images_of_three_channels_declared_as_depth_are_color(tmp_path: Path) -> None:
    root = dataset(tmp_path / "set")
    add_depth_images(root, "rgb")
    catalog = Catalog.open(root)
    assert [line for line in catalog.oddities if DEPTH in line and "three channels" in line]
    for unit in (None, "mm"):
        data = EpisodeDataset(catalog, depth_unit=unit)  # type: ignore[arg-type]
        image = data.sample(0, 3)[DEPTH].numpy()
        assert np.array_equal(image, np.stack([numbers(3, 16).astype(np.uint8)] * 3))
    assert not catalog.features[DEPTH].is_depth


def test_depth_is_not_given_to_image_transforms(quantized: Path) -> None:
    shapes = []

    def note(images: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(images.shape))
        return images

    EpisodeDataset(quantized, image_transforms=note).sample(0, 0)
    assert shapes == [(3, 64, 64)]
