"""Depth that LeRobot records: equal to LeRobot's own reading, in both units."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_data.datasets.dataset import EpisodeDataset

DEPTH = "observation.images.depth"
HEIGHT = 64
WIDTH = 96


def frame(index: int, dtype: type) -> np.ndarray:
    """A slope from 0.3 to 3 m, shifted with the frame; millimeters as integers, meters as
    floats.
    """
    meters = np.linspace(0.3, 3.0, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH, 1) + 0.05 * index
    return (meters * 1000).astype(np.uint16) if dtype is np.uint16 else meters.astype(np.float32)


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("use_videos", [True, False])
def test_depth_unit_delivers_what_lerobot_delivers(
    use_videos: bool, dtype: type, tmp_path: Path
) -> None:
    lerobot_dataset = pytest.importorskip("lerobot.datasets.lerobot_dataset")
    features = {
        "action": {"dtype": "float32", "shape": (2,), "names": ["x", "y"]},
        DEPTH: {
            "dtype": "video" if use_videos else "image",
            "shape": (HEIGHT, WIDTH, 1),
            "names": ["height", "width", "channels"],
            "info": {"is_depth_map": True},
        },
    }
    root = tmp_path / "set"
    writer = lerobot_dataset.LeRobotDataset.create(
        "me/depth", 10, features, root=root, use_videos=use_videos
    )
    for index in range(6):
        writer.add_frame(
            {"action": np.zeros(2, np.float32), DEPTH: frame(index, dtype), "task": "look"}
        )
    writer.save_episode()
    writer.finalize()
    units: list[Any] = ["m", "mm"]
    for unit in units:
        theirs = lerobot_dataset.LeRobotDataset("me/depth", root=root, depth_output_unit=unit)
        ours = EpisodeDataset(root, depth_unit=unit)
        for index in range(6):
            image = ours[index][DEPTH]
            expected = theirs[index][DEPTH]
            assert (image.dtype, image.shape) == (expected.dtype, expected.shape)
            # Codes are converted in float64 here and in float32 there: next to a half, the
            # millimeters differ by one.
            slack = 1.0 if use_videos and unit == "mm" else 0.0
            np.testing.assert_allclose(image, expected, atol=slack or 3e-6, rtol=1e-6)
            assert (image != expected).float().mean() < 0.01 or unit == "m"
        for name in ("min", "max", "mean"):
            np.testing.assert_allclose(
                ours.catalog.stats[DEPTH][name], theirs.meta.stats[DEPTH][name], rtol=1e-5
            )
