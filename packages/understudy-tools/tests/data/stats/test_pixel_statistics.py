"""Statistics of images that are numbers of the rows: per channel, in the writer, in edits and in
merges.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.write.dataset_files import number_statistics
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_tools.testing.edited import edit

NAMES = ["height", "width", "channel"]
FIRST = ["channel", "height", "width"]
FORMS: dict[str, tuple[dict[str, Any], tuple[int, ...], float]] = {
    "camera": ({"dtype": "uint8", "shape": (12, 16, 3), "names": NAMES}, (3, 1, 1), 255),
    "camera without names": (
        {"dtype": "uint8", "shape": (12, 16, 3), "names": None},
        (3, 1, 1),
        255,
    ),
    "channels first": (
        {"dtype": "uint8", "shape": (3, 12, 16), "names": ["channel", "height", "width"]},
        (3, 1, 1),
        255,
    ),
    "gray": ({"dtype": "uint8", "shape": (12, 16, 1), "names": NAMES}, (1, 1, 1), 255),
    "four channels": ({"dtype": "uint8", "shape": (12, 16, 4), "names": NAMES}, (4, 1, 1), 255),
    "floats": ({"dtype": "float32", "shape": (12, 16, 3), "names": NAMES}, (3, 1, 1), 1),
    "depth": ({"dtype": "uint16", "shape": (12, 16), "names": NAMES[:2]}, (1, 1), 1),
    "large": ({"dtype": "uint8", "shape": (310, 8, 3), "names": NAMES}, (3, 1, 1), 255),
}
OTHERS: list[dict[str, Any]] = [
    {"dtype": "float32", "shape": (12, 16, 3), "names": None},
    {"dtype": "uint8", "shape": (4, 4, 3), "names": NAMES},
    {"dtype": "float32", "shape": (16, 16), "names": None},
    {"dtype": "float32", "shape": (4,), "names": ["a", "b", "height", "width"]},
]


def _images(form: dict[str, Any], count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    shape = (count, *form["shape"])
    if form["dtype"] == "float32":
        return rng.normal(size=shape).astype(np.float32)
    return rng.integers(0, 255, shape).astype(form["dtype"])


def _record(root: Path, form: dict[str, Any], episodes: range, resume: bool = False) -> Path:
    features = {"cam": form, "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]}}
    with EpisodeWriter(root, fps=10, features=features, resume=resume) as writer:
        for number in episodes:
            for image in _images(form, 5 + number, number):
                writer.add_frame({"cam": image, "action": np.float32([1, 2])}, task="look")
            writer.save_episode()
    return root


def _statistics(root: Path) -> dict[str, Any]:
    return json.loads((root / "meta/stats.json").read_text())["cam"]


@pytest.mark.parametrize("name", FORMS)
def test_images_in_rows_have_statistics_per_channel(name: str, tmp_path: Path) -> None:
    form, shape, unit = FORMS[name]
    whole = _record(tmp_path / "whole", form, range(3))
    recorded = _statistics(whole)
    images = np.concatenate([_images(form, 5 + number, number) for number in range(3)])
    turned = np.moveaxis(images, 1, -1) if name == "channels first" else images
    pixels = turned[:, ::2, ::2] if name == "large" else turned
    rows = pixels.reshape(-1, shape[0]).astype(np.float64) / unit
    expected = {"mean": rows.mean(0), "std": rows.std(0), "min": rows.min(0), "max": rows.max(0)}
    for figure, value in expected.items():
        assert np.shape(recorded[figure]) == shape
        assert np.allclose(
            np.ravel(recorded[figure]), value, rtol=0, atol=1e-9 * max(1, rows.max())
        ), figure
    spread = rows.max() - rows.min()
    for figure, share in (("q01", 0.01), ("q50", 0.5), ("q99", 0.99)):
        assert np.allclose(
            np.ravel(recorded[figure]), np.quantile(rows, share, axis=0), atol=0.15 * spread
        )
    assert recorded["count"] == [18]
    table = pq.read_table(whole / "meta/episodes/chunk-000/file-000.parquet")
    assert np.shape(table["stats/cam/mean"][0].as_py()) == shape
    edit(whole, tmp_path / "copy")
    assert _statistics(tmp_path / "copy") == recorded


def test_statistics_of_a_merge_and_of_a_resumed_recording_are_the_same(tmp_path: Path) -> None:
    form = FORMS["camera"][0]
    recorded = _statistics(_record(tmp_path / "whole", form, range(4)))
    parts = [
        _record(tmp_path / name, form, some) for name, some in (("a", range(2)), ("b", range(2, 4)))
    ]
    edit(*parts, tmp_path / "merged")
    assert _statistics(tmp_path / "merged") == recorded
    _record(parts[0], form, range(2, 4), resume=True)
    assert _statistics(parts[0]) == recorded


@pytest.mark.parametrize("form", OTHERS)
def test_other_arrays_have_statistics_per_element(form: dict[str, Any]) -> None:
    feature = Feature("x", form["dtype"], form["shape"], form["names"])
    statistics = number_statistics(feature)
    statistics.add(_images(form, 4, 0))
    assert feature.pixel_axes is None
    assert statistics.result()["mean"].shape == form["shape"]
