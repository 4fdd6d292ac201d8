"""Requirements of writers: `factory(root, episodes, features, fps)` writes a dataset into a new
folder.

`episodes` has a list of frames per episode, each a mapping of the features and of `task`; images
are uint8 (256, 256, 3). The result is read with pyarrow and PyAV
(`understudy-conformance[writer]`), not by the code under test.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from understudy_conformance.requirement import Factory, Violation, list_places, require
from understudy_conformance.samples import compare_images
from understudy_conformance.sets import (
    FEATURES,
    SIDE,
    TASKS,
    V30,
    DemoSet,
    paint,
    temporary_folder,
    values,
)

SCALE = 4
"""Enlargement of the images: fast AV1 encoders lose whole blocks of 16 pixels."""
WRITTEN = DemoSet("written", "v3.0", (6, 1, 9, 4, 7), V30.cameras)


def make_features() -> dict[str, Any]:
    """Return the features as in info.json."""
    features: dict[str, Any] = {
        key: {"dtype": d, "shape": s, "names": None} for key, (d, s) in FEATURES.items()
    }
    image = {
        "dtype": "video",
        "shape": (SCALE * SIDE, SCALE * SIDE, 3),
        "names": ["height", "width", "channels"],
    }
    return features | dict.fromkeys(WRITTEN.cameras, image)


def make_frame(episode: int, frame: int) -> dict[str, Any]:
    """Return a frame to write."""
    images = {
        key: paint(camera, episode, frame).repeat(SCALE, 0).repeat(SCALE, 1)
        for camera, key in enumerate(WRITTEN.cameras)
    }
    return {**values(episode, frame), **images, "task": TASKS[WRITTEN.task_index(episode, frame)]}


def write(factory: Factory) -> "Written":
    """Write the episodes, once per factory."""
    if not isinstance(factory.kept, Written):
        root = Path(tempfile.mkdtemp(dir=temporary_folder())) / "written"
        episodes = []
        for episode, length in enumerate(WRITTEN.lengths):
            episodes.append([make_frame(episode, frame) for frame in range(length)])
        factory(root=root, episodes=episodes, features=make_features(), fps=WRITTEN.fps)
        factory.kept = Written(root)
    return factory.kept


def _first_text(row: dict[str, Any]) -> str:
    return next(value for value in row.values() if isinstance(value, str))


class Written:
    """A dataset as its files have it.

    Args:
        root: its folder; v2.0, v2.1 or v3.0.
    """

    def __init__(self, root: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.root = root
        self._pq = pq
        self.info: dict[str, Any] = json.loads((root / "meta/info.json").read_text())
        self.is_v3 = str(self.info["codebase_version"]).startswith("v3")
        files = sorted((root / "data").rglob("*.parquet"))
        self.rows: Any = pa.concat_tables([pq.read_table(path) for path in files])
        if self.is_v3:
            self.episodes = []
            for path in sorted((root / "meta/episodes").rglob("*.parquet")):
                self.episodes += pq.read_table(path).to_pylist()
        else:
            self.episodes = [
                json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()
            ]

    def column(self, key: str) -> Any:
        """Return a column as an array (n, ...)."""
        rows = np.array(self.rows[key].to_pylist())
        return rows.reshape(len(rows), -1) if rows.ndim > 1 else rows[:, None]

    def tasks(self) -> dict[int, str]:
        """Return the texts by task_index."""
        if self.is_v3:
            rows = self._pq.read_table(self.root / "meta/tasks.parquet").to_pylist()
            return {row["task_index"]: _first_text(row) for row in rows}
        lines = (self.root / "meta/tasks.jsonl").read_text().splitlines()
        return {row["task_index"]: row["task"] for row in map(json.loads, lines)}

    def images(self, key: str, episode: int) -> list[Any]:
        """Return the frames of an episode, uint8 (256, 256, 3), from the start of it in its
        video.
        """
        import av

        row = next(row for row in self.episodes if row["episode_index"] == episode)
        names = {
            "episode_chunk": episode // self.info.get("chunks_size", 1000),
            "episode_index": episode,
        }
        start = 0.0
        if self.is_v3:
            names = {name: row[f"videos/{key}/{name}"] for name in ("chunk_index", "file_index")}
            start = row[f"videos/{key}/from_timestamp"]
        with av.open(
            str(self.root / self.info["video_path"].format(video_key=key, **names))
        ) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        first = round(start * WRITTEN.fps)
        return frames[first : first + row["length"]]


@require(
    "R-WRITE-01",
    "info.json and the metadata of episodes count the episodes and frames that were written.",
    "Readers take lengths from them.",
)
def check_totals(factory: Factory) -> str:
    """Compare counts."""
    dataset = write(factory)
    truth = {
        "total_episodes": len(WRITTEN.lengths),
        "total_frames": sum(WRITTEN.lengths),
        "fps": WRITTEN.fps,
    }
    wrong = [
        f"{name} is {dataset.info.get(name)}, not {n}"
        for name, n in truth.items()
        if dataset.info.get(name) != n
    ]
    lengths = [
        row["length"] for row in sorted(dataset.episodes, key=lambda row: row["episode_index"])
    ]
    if lengths != list(WRITTEN.lengths):
        wrong.append(f"lengths are {lengths}, not {list(WRITTEN.lengths)}")
    if len(dataset.rows) != sum(WRITTEN.lengths):
        wrong.append(f"{len(dataset.rows)} rows, not {sum(WRITTEN.lengths)}")
    if wrong:
        raise Violation("; ".join(wrong))
    return f"{dataset.info['codebase_version']}: {len(lengths)} episodes, {len(dataset.rows)} rows"


@require(
    "R-WRITE-02",
    "The columns of a row are those of its frame, to the bit.",
    "A writer that rounds or reorders trains on other actions.",
)
def check_rows(factory: Factory) -> str:
    """Compare all features."""
    dataset = write(factory)
    wrong = []
    for key in FEATURES:
        truth = np.array([values(*place)[key] for place in WRITTEN.frames])
        actual = dataset.column(key).astype(truth.dtype)
        bad = [p for p, a, b in zip(WRITTEN.frames, actual, truth) if not np.array_equal(a, b)]
        if bad:
            wrong.append(f"{key} of {len(bad)} rows ({list_places(bad)})")
    if wrong:
        raise Violation(", ".join(wrong))
    return f"{len(FEATURES)} columns of {len(WRITTEN.frames)} rows"


@require(
    "R-WRITE-03",
    "index counts rows, frame_index and episode_index their place, and timestamp is frame_index / "
    "fps.",
    "Readers find rows and images by them.",
)
def check_indices(factory: Factory) -> str:
    """Compare the index columns."""
    dataset = write(factory)
    episode, frame = np.array(WRITTEN.frames).T
    truth = {"index": np.arange(len(episode)), "episode_index": episode, "frame_index": frame}
    wrong = [
        key
        for key, numbers in truth.items()
        if not np.array_equal(dataset.column(key)[:, 0], numbers)
    ]
    if not np.allclose(dataset.column("timestamp")[:, 0], frame / WRITTEN.fps, atol=1e-4, rtol=0):
        wrong.append("timestamp")
    if wrong:
        raise Violation(f"{', '.join(wrong)} differ")
    return "4 columns"


@require(
    "R-WRITE-04",
    "The image of a frame lies in the video at its place behind the start of its episode.",
    "A video that lacks a frame shows each later one too early.",
)
def check_images(factory: Factory) -> str:
    """Decode each video from its beginning."""
    dataset = write(factory)
    samples = []
    for episode, length in enumerate(WRITTEN.lengths):
        images = {key: dataset.images(key, episode) for key in WRITTEN.cameras}
        if any(len(frames) != length for frames in images.values()):
            counts = ", ".join(f"{len(frames)} of {key}" for key, frames in images.items())
            raise Violation(f"episode {episode} of {length} frames has images: {counts}")
        for frame in range(length):
            shown = {key: frames[frame] for key, frames in images.items()}
            samples.append({"episode_index": episode, "frame_index": frame, **shown})
    return compare_images(samples, WRITTEN).conclude("images")


@require(
    "R-WRITE-05",
    "The task of a row is the text of its frame.",
    "A policy learns the instruction that it is given.",
)
def check_tasks(factory: Factory) -> str:
    """Compare texts."""
    dataset = write(factory)
    texts = dataset.tasks()
    numbers = dataset.column("task_index")[:, 0].tolist()
    wrong = [
        p for p, n in zip(WRITTEN.frames, numbers) if texts.get(n) != TASKS[WRITTEN.task_index(*p)]
    ]
    if wrong:
        raise Violation(f"task of {len(wrong)} rows: {list_places(wrong)}")
    return f"{len(texts)} texts"
