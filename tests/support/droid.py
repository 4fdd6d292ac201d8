"""A small dataset with DROID's schema in LeRobot's format, as in NVIDIA's Cosmos3-DROID, and its
keep-ranges.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy import EpisodeWriter

LABS = ("AUTO", "BVL", "IRIS", "RAIL")
CAMERAS = ("wrist_image_left", "exterior_image_1_left", "exterior_image_2_left")
ROOT = "gs://xembodiment_data/r2d2/r2d2-data-full"
LENGTHS = (70, 33, 20, 60, 36, 50, 34, 64)
"""Frames of each episode; the recipe leaves out those of less than 32."""
HEIGHT = 36
WIDTH = 64
VECTORS = {
    "observation.state.cartesian_position": 6,
    "observation.state.gripper_position": 1,
    "observation.state.joint_positions": 7,
    "action.cartesian_position": 6,
    "action.cartesian_velocity": 6,
    "action.gripper_position": 1,
    "action.gripper_velocity": 1,
    "action.joint_position": 7,
    "action.joint_velocity": 7,
}


def episode_path(episode: int) -> str:
    """Value of `episode_id`: the folder of the recording."""
    lab = LABS[episode % len(LABS)]
    return f"{lab}/success/2023-05-0{1 + episode % 9}/Fri_May__{episode}_19:55:0{episode % 10}_2023"


def range_key(episode: str) -> str:
    """Key of an episode in keep_ranges_1_0_1.json: its recording_folderpath, and its file_path."""
    return f"{ROOT}/{episode}/recordings/MP4--{ROOT}/{episode}/trajectory.h5"


def write_droid(root: Path) -> dict[str, list[tuple[int, int]]]:
    """Write the dataset, with pauses in its joint velocities. Return the published ranges: key ->
    [start, end).
    """
    features = {
        f"observation.image.{camera}": _feature("video", HEIGHT, WIDTH, 3) for camera in CAMERAS
    }
    features |= {key: _feature("float32", width) for key, width in VECTORS.items()}
    features |= {key: _feature("bool", 1) for key in ("is_first", "is_last", "is_terminal")}
    features |= {
        key: _feature("string", 1) for key in ("language_instruction", "language_instruction_2")
    }
    ranges = {}
    with EpisodeWriter(
        root, fps=15, features=features, robot_type="franka", codec="libx264", gop=4
    ) as writer:
        for episode, length in enumerate(LENGTHS):
            rng = np.random.default_rng(episode)
            values = {
                key: rng.normal(size=(length, width)).astype(np.float32).cumsum(0) / 10
                for key, width in VECTORS.items()
            }
            velocity = values["action.joint_velocity"]
            # 6 idle frames are no pause
            for start, count in ((18, 7 + episode % 3), (40, 6), (52, 9)):
                velocity[start : start + count] = velocity[min(start, length - 1)]
            values["action.gripper_position"] = (np.arange(length)[:, None] // 30 % 2).astype(
                np.float32
            )
            ranges[range_key(episode_path(episode))] = published_ranges(velocity)
            texts = {
                "language_instruction": "put the cup down",
                "language_instruction_2": f"lower the cup {episode}",
            }
            for frame in range(length):
                image = np.full((HEIGHT, WIDTH, 3), (5 * frame + 20 * episode) % 256, np.uint8)
                row = {key: value[frame] for key, value in values.items()} | texts
                row |= {f"observation.image.{camera}": image for camera in CAMERAS}
                row |= {
                    "is_first": frame == 0,
                    "is_last": frame == length - 1,
                    "is_terminal": frame == length - 1,
                }
                writer.add_frame(row, task=" | ".join(texts.values()))
            writer.save_episode()
    for table in (root / "meta/episodes").rglob("*.parquet"):
        rows = pq.read_table(table)
        ids = pa.array([episode_path(episode) for episode in rows["episode_index"].to_pylist()])
        pq.write_table(rows.append_column("episode_id", ids), table)
    return ranges


def published_ranges(velocity: np.ndarray) -> list[tuple[int, int]]:
    """openpi's rule, frame by frame: velocity (L, 7) of the commands -> [start, end) frames to
    keep.
    """
    length = len(velocity)
    idle = [
        t > 0 and all(abs(velocity[t, j] - velocity[t - 1, j]) < 1e-3 for j in range(7))
        for t in range(length)
    ]
    keep = [True] * length
    for start, stop in _runs(idle, True):
        if stop - start >= 7:
            keep[start:stop] = [False] * (stop - start)
    return [(start, stop - 10) for start, stop in _runs(keep, True) if stop - start >= 16]


def write_ranges(path: Path, ranges: dict[str, list[tuple[int, int]]]) -> None:
    """Write a file like the published one: it also has episodes that the dataset has not, and one
    without ranges.
    """
    path.write_text(json.dumps(ranges | {range_key("GUY/failure/2023-07-07/Fri"): [[0, 9]]}))


def _runs(flags: list[bool], wanted: bool) -> list[tuple[int, int]]:
    found = []
    start = None
    for t, flag in enumerate([*flags, not wanted]):
        if flag is wanted and start is None:
            start = t
        if flag is not wanted and start is not None:
            found.append((start, t))
            start = None
    return found


def _feature(dtype: str, *shape: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "names": None}
