"""A small mixture of sources that differ in every permitted way."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from understudy.config.train import TrainConfig
from understudy.testing.runs import tiny_config
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import SourceConfig, override

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
NAMES = ("wide", "two", "small")
WEIGHTS = (3.0, 2.0, 1.0)


def tiny_sources(root: Path, small_pictures: bool = True) -> tuple[SourceConfig, ...]:
    """Three datasets.

    "wide" has 4 joints and one camera; "two" has 2 joints, two cameras of smaller images and 20
    fps; "small" is the robot of "wide" with other names for all keys. "wide" and "small" share a
    norm head.

    Args:
        root: folder of the datasets.
        small_pictures: images of "two" are 48 x 64 and 32 x 32; otherwise all images are 64 x 64.
    """
    for name, spec in {
        "wide": Spec(lengths=(9, 7, 11, 8, 6, 10), action_dim=4, state_dim=5, gop=4),
        "small": Spec(
            lengths=(7, 8, 9), action_dim=4, state_dim=5, cameras=("observation.images.cam_0",)
        ),
    }.items():
        write_dataset(root / name, spec)
    sizes = {TOP: (64, 64), WRIST: (64, 64)}
    if small_pictures:
        sizes = {TOP: (48, 64), WRIST: (32, 32)}
    record(root / "two", sizes)
    return (
        SourceConfig(str(root / "wide"), "arm", "joint", weight=3),
        SourceConfig(str(root / "two"), "hand", "joint", action="command", weight=2),
        SourceConfig(
            str(root / "small"), "arm", "joint", cameras={TOP: "observation.images.cam_0"}, weight=1
        ),
    )


def record(root: Path, cameras: dict[str, tuple[int, int]]) -> None:
    """Five episodes at 20 fps of a robot with 2 joints, whose action is called `command`."""
    vectors = {key: {"dtype": "float32", "shape": (2,)} for key in ("command", "observation.state")}
    videos = {key: {"dtype": "video", "shape": (*size, 3)} for key, size in cameras.items()}
    rng = np.random.default_rng(0)
    with EpisodeWriter(root, fps=20, features={**videos, **vectors}, codec="libx264") as writer:
        for episode, length in enumerate((8, 9, 7, 6, 10)):
            for _ in range(length):
                pictures = {
                    key: rng.integers(0, 255, (*size, 3), np.uint8) for key, size in cameras.items()
                }
                numbers = {key: rng.normal(episode, 1, 2).astype(np.float32) for key in vectors}
                writer.add_frame(pictures | numbers, task=f"task {episode % 2}")
            writer.save_episode()


def mixed(sources: tuple[SourceConfig, ...], out: Path, **changes: Any) -> TrainConfig:
    """`tiny_config` over the sources."""
    config = tiny_config(Path("nowhere"), out, batch_size=6)
    data = replace(config.data, root="", sources=sources)
    return override(replace(config, data=data), **changes)
