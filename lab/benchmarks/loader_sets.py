"""Datasets of the loader benchmark, made once in a cache folder: `sets(cache, real, quick)` -> name
-> Set.

Eight episodes, real or drawn, are encoded in every measured way and joined without re-encoding to
256 episodes. So a batch of 32 has different episodes, and memory cannot hold them all. A finished
folder has its final name; an unfinished one is made again. About 2 GB at full size.
"""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import common  # noqa: F401  # puts tests/ on the path
from understudy_data.datasets.format.features import DEFAULTS, Feature
from understudy_data.datasets.write.dataset_files import (
    DATA_PATH,
    EPISODES_PATH,
    VIDEO_PATH,
    data_schema,
    feature_entries,
    file_path,
    info_json,
    tasks_table,
)
from understudy_data.testing.videos import encode_video
from understudy_data.video.encode import concat_videos
from understudy_data.video.reader import open_video

CAMERAS = tuple(f"observation.images.{n}" for n in ("one", "two", "three", "four"))
FILE_BYTES = 200e6  # packed files are closed at LeRobot's default size
WIDTH = 26  # numbers in a state and in an action
X264 = {"preset": "veryfast"}


@dataclass(frozen=True)
class Encoding:
    """An encoding of images. `height` 0 is the recorded size, any other a square."""

    codec: str
    gop: int
    height: int
    crf: int | None = None
    b_frames: int = 0


@dataclass(frozen=True)
class Set:
    """A dataset to measure. `lerobot` is its twin in v3.0, the format that LeRobot reads."""

    name: str
    root: Path
    codec: str
    gop: int
    height: int
    cameras: int
    lerobot: Path
    memory: float
    """Memory budget of the loader, as a share of all images decoded."""


def encodings(quick: bool) -> list[Encoding]:
    """AV1 with GOP 2, H.264 with 2, 30 and 250 and B-frames, at 480 lines and at 224."""
    if quick:
        return [Encoding("libsvtav1", 2, 64), Encoding("libx264", 30, 64, 23)]
    kinds = [
        ("libsvtav1", 2, None, 0),
        ("libx264", 2, 30, 0),
        ("libx264", 30, 23, 0),
        ("libx264", 250, 23, 3),
    ]
    return [
        Encoding(codec, gop, height, crf, b) for height in (0, 224) for codec, gop, crf, b in kinds
    ]


def sets(cache: Path, real: Path | None, quick: bool, only: str = "") -> list[Set]:
    """Datasets with `only` in their name, made where they are missing.

    real: the folder with the real recordings, if any.
    """
    tiles = 4 if quick else 32
    recorded = Recording(cache, real, quick)
    cache = recorded.cache
    found: list[Set] = []
    if real and not quick:
        parts = sorted((real / "gr1_sim_v20" / "videos").rglob("*.mp4"))
        twin = joined(cache / "gr1_sim_v30", parts, tiles=1, cameras=1)  # LeRobot reads no v2.0
        for name, lerobot in (("g1_v30", real / "g1_v30"), ("gr1_sim_v20", twin)):
            if only in name:  # with enough memory, and with too little
                found += [
                    describe(name, real / name, lerobot, 2.0),
                    describe(f"{name}-half", real / name, lerobot, 0.5),
                ]
    kinds = [(one, 1) for one in encodings(quick)]
    for encoding, cameras in [*kinds, *((kinds[0][0], n) for n in (2, 3))]:
        height = encoding.height or recorded.height
        name = f"{encoding.codec.removeprefix('lib')}-g{encoding.gop}-{height}"
        name += f"-{cameras}cameras" if cameras > 1 else ""
        if only in name:
            root = joined(cache / name, recorded.encoded(encoding), tiles, cameras)
            found.append(describe(name, root, root, 0.5))
    if only in "rows-only":
        root = joined(cache / "rows-only", [recorded.frames] * 8, tiles, cameras=0)
        found.append(Set("rows-only", root, "", 0, 0, 0, root, 1.0))
    return found


def describe(name: str, root: Path, lerobot: Path, memory: float) -> Set:
    from understudy import EpisodeDataset

    data = EpisodeDataset(root)
    cameras = data.catalog.camera_keys
    reader = data.video_frames.reader(cameras[0], 0)
    return Set(name, root, reader.codec, reader.gop, reader.height, len(cameras), lerobot, memory)


class Recording:
    """Eight episodes of images, and their encodings as one file per episode, in the folder
    `cache`.
    """

    episodes = 8

    def __init__(self, cache: Path, real: Path | None, quick: bool = False) -> None:
        self.cache = cache / ("quick" if quick else "real" if real else "drawn")
        self.frames, self.height = (24, 64) if quick else (266, 480)
        self.files = sorted((real / "g1_v21" / "videos").rglob("*.mp4")) if real else []

    def encoded(self, encoding: Encoding) -> list[Path]:
        """One video per episode."""
        if self.files and (encoding.codec, encoding.gop, encoding.height) == ("libsvtav1", 2, 0):
            return self.files  # recorded in this encoding
        folder = self.cache / "parts" / f"{encoding.codec}-g{encoding.gop}-{encoding.height}"
        paths = [folder / f"episode-{episode}.mp4" for episode in range(self.episodes)]
        folder.mkdir(parents=True, exist_ok=True)
        options = {"bf": str(encoding.b_frames)} if encoding.codec == "libx264" else {}
        for episode, path in enumerate(paths):
            if not path.exists():
                images = self.images(episode, encoding.height)
                encode_video(path, images, 30, encoding.codec, encoding.gop, encoding.crf, options)
        return paths

    def images(self, episode: int, height: int) -> Iterator[np.ndarray]:
        """uint8 (H, W, 3); scaled to a square of `height` unless that is 0."""
        for image in self.read(episode) if self.files else self.drawn(episode):
            if height in (0, len(image)):
                yield image
            else:
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                yield frame.reformat(width=height, height=height, interpolation="AREA").to_ndarray()

    def read(self, episode: int) -> Iterator[np.ndarray]:
        reader = open_video(self.files[episode])
        for first in range(0, reader.count, 32):
            yield from reader.read(np.arange(first, min(first + 32, reader.count)))
        reader.close()

    def drawn(self, episode: int) -> Iterator[np.ndarray]:
        """A textured scene, something that moves through it, and noise like that of a sensor, new
        in every image.
        """
        rng = np.random.default_rng([17, episode])
        height = self.height
        width = self.height // 3 * 4
        coarse = rng.integers(30, 220, (8, 12, 3)).astype(np.uint8)
        scene = av.VideoFrame.from_ndarray(coarse, format="rgb24").reformat(
            width, height, interpolation="BICUBIC"
        )
        still = scene.to_ndarray().astype(np.int16) + rng.integers(
            -12, 13, (height, width, 1), np.int16
        )
        noise = rng.normal(0, 2.5, (8, height, width, 3)).round().astype(np.int16)
        side = height // 5
        for frame in range(self.frames):
            image = still.copy()
            y = int((height - side) * (0.5 + 0.5 * np.sin(frame / 23)))
            x = int((width - side) * (0.5 + 0.5 * np.cos(frame / 31 + episode)))
            image[y : y + side, x : x + side] = 255 - image[y : y + side, x : x + side]
            image += np.roll(noise[frame % 8], frame * 7, axis=1)
            yield np.clip(image, 0, 255).astype(np.uint8)


def joined(root: Path, parts: Sequence[Path] | Sequence[int], tiles: int, cameras: int) -> Path:
    """A LeRobot v3.0 dataset of `tiles` times the episodes `parts`: their videos or, without
    cameras, their lengths.
    """
    if root.exists():
        return root
    making = root.with_name(root.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    videos = [part for part in parts if isinstance(part, Path)]
    readers = [open_video(part) for part in videos]
    lengths = np.tile([reader.count for reader in readers] or list(parts), tiles).astype(np.int64)
    height, width, fps = (
        (readers[0].height, readers[0].width, round(readers[0].fps)) if readers else (0, 0, 30)
    )
    keys = CAMERAS[:cameras]
    per_file = max(1, int(FILE_BYTES / max(1, sum(part.stat().st_size for part in videos)))) * len(
        parts
    )
    for number, first in enumerate(range(0, len(lengths), per_file) if keys else []):
        one = making / file_path(VIDEO_PATH, number, keys[0])
        one.parent.mkdir(parents=True, exist_ok=True)
        concat_videos(videos * (min(per_file, len(lengths) - first) // len(parts)), one)
        for key in keys[1:]:
            other = making / file_path(VIDEO_PATH, number, key)
            other.parent.mkdir(parents=True, exist_ok=True)
            os.link(one, other)
    codec = {"av1": "libsvtav1", "h264": "libx264"}[readers[0].codec] if readers else "libx264"
    features = {key: Feature(key, "video", (height, width, 3)) for key in keys}
    features |= {
        key: Feature(key, "float32", (WIDTH,)) for key in ("observation.state", "action")
    } | DEFAULTS
    _tables(making, features, lengths, fps, per_file)
    entries = feature_entries(features, fps, codec, readers[0].gop if readers else 1, None)
    sizes = {"data_file_mb": 100, "video_file_mb": FILE_BYTES / 1e6}
    counts = {"episodes": len(lengths), "frames": int(lengths.sum()), "tasks": 1}
    (making / "meta/info.json").write_text(
        json.dumps(info_json(entries, fps=fps, robot_type="bench", **counts, **sizes))
    )
    making.rename(root)
    return root


def _tables(
    root: Path, features: dict[str, Feature], lengths: np.ndarray, fps: int, per_file: int
) -> None:
    """Rows, episodes, tasks and statistics."""
    total = int(lengths.sum())
    rng = np.random.default_rng(0)
    start = np.cumsum(lengths) - lengths
    frame = np.arange(total) - np.repeat(start, lengths)
    values = {
        key: rng.normal(size=(total, WIDTH)).astype(np.float32)
        for key in ("observation.state", "action")
    }
    columns = {
        **{
            key: pa.FixedSizeListArray.from_arrays(value.reshape(-1), WIDTH)
            for key, value in values.items()
        },
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "index": np.arange(total),
        "task_index": np.zeros(total, np.int64),
    }
    data = root / file_path(DATA_PATH, 0)
    data.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns).cast(data_schema(features)), data)
    rows = []
    for episode, length in enumerate(lengths.tolist()):
        number = episode // per_file
        begin = int(start[episode] - start[episode // per_file * per_file])
        row = {"episode_index": episode, "tasks": ["move the light"], "length": length}
        row |= {"data/chunk_index": 0, "data/file_index": 0}
        row |= {
            "dataset_from_index": int(start[episode]),
            "dataset_to_index": int(start[episode]) + length,
        }
        for key, feature in features.items():
            if feature.is_video:
                row |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": number}
                row |= {
                    f"videos/{key}/from_timestamp": begin / fps,
                    f"videos/{key}/to_timestamp": (begin + length) / fps,
                }
        rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
    episodes = root / file_path(EPISODES_PATH, 0)
    episodes.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), episodes)
    pq.write_table(tasks_table(["move the light"]), root / "meta/tasks.parquet")
    stats = {
        key: {
            "min": v.min(0),
            "max": v.max(0),
            "mean": v.mean(0),
            "std": v.std(0),
            "count": np.array([total]),
        }
        for key, v in values.items()
    }
    text = {
        key: {name: figure.tolist() for name, figure in each.items()} for key, each in stats.items()
    }
    (root / "meta/stats.json").write_text(json.dumps(text))
