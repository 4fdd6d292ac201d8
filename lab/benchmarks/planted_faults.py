"""Planted faults: how many does `understudy check` name, and does it report sound datasets?

    python lab/benchmarks/planted_faults.py [--json] [--only NAME ...]

The faults of the split "known" were there while the rules were written. Those of "held" have other
episodes, magnitudes and kinds, fixed apart from the rules, and no rule was changed for them. Both
scores are printed.

Each fault is one change of a sound dataset: ten episodes of a simulated arm with two cameras, in
LeRobot v3.0 and v2.1, and the real recordings under $UNDERSTUDY_TEST_DATA ("g1", "g1_v30", "gr1"),
where there are any. A fault is named if `check` reports an error or a warning of the right rule at
the right place. It is undecided if `check` lists the rule as one with too little data, and silent
otherwise. A false alarm is an error or a warning on a sound dataset: the sets above, sets of one
episode, of images in rows, of static scenes and of noise. `KNOWN` lists the documented
irregularities of the recordings.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from operator import setitem
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from parsers import make_parser
from planted_images import bgr, blur, flicker, hold, late, move, reverse, saturate, tear, tint, zoom
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.testing.videos import encode_video
from understudy_data.video.reader import open_video
from understudy_tools.check.examine import check_dataset
from understudy_tools.check.findings import Finding, Report
from understudy_tools.testing.sensors import add_sensor, jittered

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
CAMERAS = (TOP, WRIST)
STATE = "observation.state"
ACTION = "action"
JOINTS = ["shoulder", "elbow", "wrist", "roll", "lift", "gripper"]
LENGTHS = (48, 52, 48, 56, 50, 46, 54, 48, 52, 50)
GENERATED = ("v3.0", "v2.1", "texture")
FPS = 20
SIDE = 64
AHEAD = 2
TASKS = ("stack the cups", "open the drawer")


# The sound datasets


def episode_rows(episode: int, length: int) -> dict[str, np.ndarray]:
    """State and action float32 (length, 6): smooth joints and a gripper; actions lead by two
    frames.
    """
    rng = np.random.default_rng([11, episode])
    time = np.arange(length + AHEAD) / FPS
    joints = np.zeros((length + AHEAD, 6))
    for joint in range(5):
        for speed in (0.35, 0.8, 1.5):
            size = rng.uniform(0.2, 0.35) if speed < 1 else rng.uniform(0.1, 0.2)
            joints[:, joint] += size * np.sin(
                2 * np.pi * (speed * rng.uniform(0.9, 1.1) * time + rng.uniform())
            )
        joints[:, joint] += (0.6, -0.5, 1.4, 0.3, -1.2)[joint]
    close = length // 3 + rng.integers(-3, 4)
    reopen = 2 * length // 3 + rng.integers(-3, 4)
    joints[:, 5] = np.clip(
        np.minimum(np.arange(length + AHEAD) - close, reopen - np.arange(length + AHEAD)) / 3, 0, 1
    )
    state = joints + rng.normal(0, 0.002, joints.shape) * (1, 1, 1, 1, 1, 0)
    return {STATE: state[:length].astype(np.float32), ACTION: joints[AHEAD:].astype(np.float32)}


def episode_images(
    camera: int, episode: int, state: np.ndarray, texture: bool = False
) -> np.ndarray:
    """uint8 (length, 64, 64, 3): a background per camera, objects per episode, and blocks moved by
    the joints.

    With a texture, the background shows things that stay where they are in all episodes.
    """
    rng = np.random.default_rng([13, camera, episode])
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    ground = np.stack(
        [60 + x, 90 + y, 70 + 0 * x] if camera == 0 else [40 + 0 * x, 70 + x // 2, 150 + y], axis=2
    )
    if texture:
        scene = np.random.default_rng([19, camera])
        for _ in range(60):
            top, left, size = *scene.integers(0, SIDE - 6, 2), scene.integers(3, 9)
            ground[top : top + size, left : left + size] = scene.integers(20, 235, 3)
    for _ in range(0 if texture else 6):
        top, left = rng.integers(0, SIDE - 12, 2)
        ground[top : top + 12, left : left + 12] = rng.integers(30, 220, 3)
    images = np.repeat(ground[None].astype(np.uint8), len(state), axis=0)
    centers = (0.6, -0.5, 1.4, 0.3)
    for number, (row, column) in enumerate(((0, 1), (2, 3))):
        color = (240, 40, 40) if number else (250, 250, 240)
        for frame, values in enumerate(state):
            top = int(np.clip(26 + 40 * (values[row] - centers[row]), 0, SIDE - 14))
            left = int(np.clip(26 + 40 * (values[column] - centers[column]), 0, SIDE - 14))
            images[frame, top : top + 14, left : left + 14] = color
    return images


def features(images: str = "video") -> dict[str, dict[str, Any]]:
    """Return the features of the arm's datasets."""
    found: dict[str, dict[str, Any]] = {
        key: {"dtype": "float32", "shape": (6,), "names": JOINTS} for key in (STATE, ACTION)
    }
    return found | {key: {"dtype": images, "shape": (SIDE, SIDE, 3)} for key in CAMERAS}


def write_v30(
    root: Path, lengths: Sequence[int] = LENGTHS, images: str = "video", change: Any = None
) -> None:
    """Write the arm's dataset as v3.0; `change(episode, rows)` may alter the rows of each episode
    in place.
    """
    with EpisodeWriter(
        root, fps=FPS, features=features(images), codec="libx264", gop=8, crf=18
    ) as writer:
        for episode, length in enumerate(lengths):
            rows = episode_rows(episode, length)
            if change is not None:
                change(episode, rows)
            seen = [episode_images(camera, episode, rows[STATE]) for camera in range(2)]
            for frame in range(length):
                values = {STATE: rows[STATE][frame], ACTION: rows[ACTION][frame]}
                writer.add_frame(
                    values | {TOP: seen[0][frame], WRIST: seen[1][frame]}, TASKS[episode % 2]
                )
            writer.save_episode()


def write_v21(root: Path, source: Path, texture: bool = False) -> None:
    """Write the rows and images of a v3.0 dataset of the arm as v2.1, with one file per episode."""
    info = json.loads((source / "meta/info.json").read_text())
    table = pq.read_table(next((source / "data").rglob("*.parquet")))
    (root / "meta").mkdir(parents=True)
    info |= {
        "codebase_version": "v2.1",
        "chunks_size": 1000,
        "total_chunks": 1,
        "total_videos": 2 * len(LENGTHS),
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/"
        "episode_{episode_index:06d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    tasks = [{"task_index": i, "task": text} for i, text in enumerate(TASKS)]
    episodes = []
    stats = []
    first = 0
    for episode, length in enumerate(LENGTHS):
        part = table.slice(first, length)
        first += length
        path = root / data_file(episode)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(part, path)
        rows = {key: np.array(part[key].to_pylist(), np.float64) for key in (STATE, ACTION)}
        for camera in range(2):
            images = episode_images(camera, episode, rows[STATE], texture)
            write_video(root / video_file(episode, CAMERAS[camera]), images)
        episodes.append({"episode_index": episode, "tasks": [TASKS[episode % 2]], "length": length})
        stats.append(
            {
                "episode_index": episode,
                "stats": {key: _stats(values) for key, values in rows.items()},
            }
        )
    for name, lines in (("tasks", tasks), ("episodes", episodes), ("episodes_stats", stats)):
        (root / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _stats(values: np.ndarray) -> dict[str, Any]:
    figures = {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
    }
    return {name: figure.tolist() for name, figure in figures.items()} | {"count": [len(values)]}


def write_video(path: Path, images: np.ndarray, fps: int = FPS) -> None:
    """Write uint8 (n, H, W, 3) as H.264."""
    path.parent.mkdir(parents=True, exist_ok=True)
    encode_video(path, images, fps, codec="libx264", gop=8, crf=18)


def data_file(episode: int) -> str:
    """Path of an episode's rows in v2.1."""
    return f"data/chunk-000/episode_{episode:06d}.parquet"


def video_file(episode: int, camera: str = TOP) -> str:
    """Path of an episode's video in v2.1."""
    return f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4"


DATA = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/{}/chunk-000/file-000.mp4"


# Changes of files, each of them a function that changes the dataset under a folder

Plant = Callable[[Path], Any]
Columns = dict[str, Any]
ALL = slice(None)
BOTH = (STATE, ACTION)
INFO = "meta/info.json"


def edit_table(path: Path, change: Callable[[Columns], Any]) -> None:
    """Change a parquet file in place: columns of numbers are numpy arrays, others lists."""
    table = pq.read_table(path)
    columns: Columns = {key: table[key].to_pylist() for key in table.column_names}
    for key, values in columns.items():
        if values and not isinstance(values[0], str) and np.array(values).dtype.kind in "if":
            columns[key] = np.array(values)
    change(columns)
    arrays = [
        pa.array(v.tolist() if isinstance(v, np.ndarray) else v, table.schema.field(k).type)
        for k, v in columns.items()
    ]
    pq.write_table(pa.table(arrays, names=list(columns)), path)


def in_table(name: str, change: Callable[[Columns], Any]) -> Plant:
    """Change a parquet file."""
    return lambda root: edit_table(root / name, change)


in_rows = partial(in_table, DATA)
in_places = partial(in_table, EPISODES)
"""Change the rows of the v3.0 dataset, or the table of its episodes."""


def info(**entries: Any) -> Plant:
    """Change entries of info.json."""
    return in_json(INFO, lambda content: content.update(entries))


def in_json(name: str, change: Callable[[Any], Any]) -> Plant:
    """Change a JSON file, or the list of lines of a file of JSON lines."""

    def plant(root: Path) -> None:
        path = root / name
        by_line = name.endswith(".jsonl")
        values = [
            json.loads(line)
            for line in (path.read_text().splitlines() if by_line else [path.read_text()])
        ]
        change(values if by_line else values[0])
        path.write_text("".join(json.dumps(value) + "\n" * by_line for value in values))

    return plant


def episode(number: int, change: Callable[[Columns], Any]) -> Plant:
    """Change the rows of an episode; columns of numbers are views."""

    def change_rows(columns: Columns) -> None:
        rows = np.flatnonzero(columns["episode_index"] == number)
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        change({key: values[part] for key, values in columns.items()})

    def plant(root: Path) -> None:
        for path in sorted((root / "data").rglob("*.parquet")):
            if number in pq.read_table(path, columns=["episode_index"])["episode_index"].to_numpy():
                edit_table(path, change_rows)

    return plant


def values(number: int, keys: str | Sequence[str], change: Callable[[np.ndarray], Any]) -> Plant:
    """Change the values (length, D) of columns in an episode."""
    chosen = (keys,) if isinstance(keys, str) else keys
    return episode(number, lambda columns: [change(columns[key]) for key in chosen])


def video(name: str, change: Callable[[np.ndarray], np.ndarray], fps: int = 0) -> Plant:
    """Decode a video, change its images uint8 (n, H, W, 3), and write it again. fps: that of the
    dataset by default.
    """

    def plant(root: Path) -> None:
        reader = open_video(root / name)
        images = np.ascontiguousarray(reader.read(np.arange(reader.count)))
        reader.close()
        write_video(
            root / name, change(images), fps or json.loads((root / INFO).read_text())["fps"]
        )

    return plant


def shown(change: Any, episodes: int | range, *cameras: str) -> Plant:
    """Change videos of the first camera, or of `cameras`: a function, "camera" (exchanges both) or
    another episode.
    """

    def plant(root: Path) -> None:
        keys = sorted(path.name for path in (root / "videos/chunk-000").iterdir())
        for number, camera in product(
            (episodes,) if isinstance(episodes, int) else episodes, cameras or keys[:1]
        ):
            path = video_file(number, camera)
            if change == "camera":
                exchange((path, video_file(number, keys[1])))(root)
            elif isinstance(change, int):
                exchange((path, video_file(change, camera)))(root)
            else:
                video(path, change)(root)

    return plant


def exchange(*pairs: tuple[str, str]) -> Plant:
    """Exchange files."""

    def plant(root: Path) -> None:
        for one, two in pairs:
            (root / one).rename(root / "x")
            (root / two).rename(root / one)
            (root / "x").rename(root / two)

    return plant


def copy(*pairs: tuple[str, str]) -> Plant:
    """Copy files."""
    return lambda root: [shutil.copy(root / source, root / target) for source, target in pairs]


def write_bytes(name: str, change: Callable[[bytes], bytes]) -> Plant:
    """Change the bytes of a file."""
    return lambda root: (root / name).write_bytes(change((root / name).read_bytes()))


def remove(name: str) -> Plant:
    """Remove a file."""
    return lambda root: (root / name).unlink()


def several(*plants: Plant) -> Plant:
    """Make several changes."""
    return lambda root: [plant(root) for plant in plants]


def span(episode: int) -> slice:
    """Rows of an episode in the v3.0 file."""
    first = sum(LENGTHS[:episode])
    return slice(first, first + LENGTHS[episode])


def select(*rows: Any) -> Callable[[Columns], Any]:
    """Keep rows of all columns, by slices or numbers."""
    keep = np.concatenate([np.arange(sum(LENGTHS))[part] for part in rows])

    def change(columns: Columns) -> None:
        for key, values in columns.items():
            columns[key] = (
                values[keep] if isinstance(values, np.ndarray) else [values[row] for row in keep]
            )

    return change


def add(amount: float, index: Any, *keys: str) -> Callable[[Columns], Any]:
    """Add a number to rows of columns."""
    return lambda columns: [
        setitem(columns[key], index, columns[key][index] + amount) for key in keys
    ]


def scale(factor: float, index: Any) -> Callable[[np.ndarray], Any]:
    """Multiply values."""
    return put(index, lambda values: values[index] * factor)


def put(index: Any, value: Any) -> Callable[[np.ndarray], Any]:
    """Set values to a number, or to a function of all values."""
    return lambda values: setitem(values, index, value(values).copy() if callable(value) else value)


def delay(frames: int) -> Callable[[np.ndarray], Any]:
    """Delay values by frames; earlier for a negative number."""
    return put(
        ALL, lambda values: values[np.clip(np.arange(len(values)) - frames, 0, len(values) - 1)]
    )


def stop(begin: int, end: int | None = None) -> Callable[[np.ndarray], Any]:
    """Hold the values of a frame."""
    return put(slice(begin, end), lambda values: values[begin])


def invert(dims: Any) -> Callable[[np.ndarray], Any]:
    """Mirror dimensions at the middle of [0, 1], the range of a hand."""
    return put((ALL, dims), lambda values: 1 - values[:, dims])


def ticks(number: float, extent: float) -> Callable[[np.ndarray], Any]:
    """Round to N steps of an extent."""
    return put(ALL, lambda values: np.round(values * number / extent) * extent / number)


def ticks_of_range(number: int) -> Callable[[np.ndarray], Any]:
    """Round to N steps of each dimension's range."""

    def change(values: np.ndarray) -> None:
        unit = np.where(np.ptp(values, axis=0) > 0, np.ptp(values, axis=0), 1.0) / number
        values[:] = np.round(values / unit) * unit

    return change


def noise(seed: int, sigma: float, *shape: int) -> np.ndarray:
    """Normal noise."""
    return np.random.default_rng(seed).normal(0, sigma, shape)


def noise_of_range(share: float, dims: slice = ALL) -> Callable[[np.ndarray], Any]:
    """Add noise of a share of each dimension's range."""

    def change(values: np.ndarray) -> None:
        added = np.random.default_rng(14).normal(size=values.shape) * share * np.ptp(values, axis=0)
        values[:, dims] += added[:, dims]

    return change


def copy_rows(target: int, source: int, added: np.ndarray) -> Plant:
    """Make state and action of an episode those of another one, with noise."""
    rows = slice(span(source).start, span(source).start + LENGTHS[target])
    return in_rows(
        lambda columns: [
            setitem(columns[key], span(target), columns[key][rows] + added) for key in BOTH
        ]
    )


def copy_state(columns: Columns) -> None:
    """Make the action the state."""
    columns[ACTION][:] = columns[STATE]


def all_rows(keys: str | Sequence[str], change: Callable[[np.ndarray], Any]) -> Plant:
    """Change the values (rows, D) of columns in all episodes."""
    chosen = (keys,) if isinstance(keys, str) else keys
    return in_rows(lambda columns: [change(columns[key]) for key in chosen])


def make_quaternions(dims: slice) -> Plant:
    """Make dimensions of action and state quaternions that change little, in all episodes."""

    def change(values: np.ndarray) -> None:
        values[:, dims] = np.array([1, 0.2, 0.1, 0.05]) + 0.1 * values[:, dims]
        values[:, dims] /= np.linalg.norm(values[:, dims], axis=1, keepdims=True)

    return all_rows(BOTH, change)


def shake(size: float) -> Callable[[np.ndarray], Any]:
    """Add a number to every second frame."""
    return put(ALL, lambda values: values + size * (np.arange(len(values)) % 2)[:, None])


FORCE = "observation.force"


def add_force(change: Callable[[np.ndarray], Any]) -> Plant:
    """Record forces (rows, 3), and change them."""

    def plant(root: Path) -> None:
        table = pq.read_table(root / DATA)
        forces = noise(7, 0.3, len(table), 3)
        change(forces)
        kind = pa.list_(pa.float32())
        pq.write_table(table.append_column(FORCE, pa.array(forces.tolist(), kind)), root / DATA)
        feature = {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]}
        in_json(INFO, lambda info: info["features"].update({FORCE: feature}))(root)

    return plant


def add_imu(regular: bool, change: Callable[[dict[int, Any]], Any]) -> Plant:
    """Record a sensor of two numbers at 100 Hz, or at random times, and change its samples: episode
    -> times (n,) and values (n, 2).
    """

    def plant(root: Path) -> None:
        samples = jittered(LENGTHS, 100, FPS)
        for number, length in enumerate(LENGTHS):
            if regular:
                times = np.arange(0, length / FPS, 0.01)
                samples[number] = times, noise(number, 1, len(times), 2).astype(np.float32)
        change(samples)
        add_sensor(root, samples)

    return plant


def pause(number: int, frames: slice) -> Callable[[dict[int, Any]], Any]:
    """Leave samples of an episode out."""
    return lambda samples: samples.update(
        {number: tuple(np.delete(part, frames, axis=0) for part in samples[number])}
    )


def stick(number: int, dim: int) -> Callable[[dict[int, Any]], Any]:
    """Round the values, which then repeat at times, and hold a dimension of an episode."""

    def change(samples: dict[int, Any]) -> None:
        for _, values in samples.values():
            values[:] = np.round(values)
        samples[number][1][:, dim] = 0

    return change


# The faults

NEED_IMAGES = ("images.", "videos.unreadable", "videos.count", "videos.start", "videos.encoding")
"""Rules that read images or videos, by the begin of their names."""


@dataclass(frozen=True)
class Fault:
    """A planted fault of the dataset `version`: one of `rules` must be reported at its episode,
    camera and column.
    """

    name: str
    version: str
    rules: tuple[str, ...]
    plant: Plant
    episode: int | None = None
    camera: str = ""
    column: str = ""
    split: str = "known"

    @property
    def depth(self) -> Literal["rows", "sample"]:
        """Depth of a check that can name the fault."""
        return "sample" if any(rule.startswith(NEED_IMAGES) for rule in self.rules) else "rows"

    def is_named_by(self, finding: Finding, episodes: int = len(LENGTHS)) -> bool:
        """Whether a finding about a dataset of N episodes names this fault."""
        place = finding.place
        return (
            finding.severity != "note"
            and finding.rule in self.rules
            and (self.episode is None or self.episode in place.episodes)
            and (not self.camera or self.camera == place.camera)
            and (not self.column or self.column == place.column)
            and (
                self.episode is None
                or len(place.episodes) < episodes
                or finding.rule.startswith("files.")
            )
        )

    def result(self, report: Report) -> Literal["named", "undecided", "silent"]:
        """Return whether a report names this fault, or says that no rule of it has enough data."""
        if any(self.is_named_by(finding, report.episodes) for finding in report.findings):
            return "named"
        return (
            "undecided" if any(entry.rule in self.rules for entry in report.undecided) else "silent"
        )


STATS = "meta/stats.json"
LINES = "meta/episodes.jsonl"
LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'5' * 64}\nsize 12345\n"
STARTS, ENDS = (f"videos/{{}}/{end}_timestamp" for end in ("from", "to"))


def times_of(camera: str) -> tuple[str, str]:
    """Columns with the times of a camera."""
    return STARTS.format(camera), ENDS.format(camera)


def repeat_rows(columns: Columns) -> None:
    """Append rows of an episode that is not listed."""
    select(ALL, slice(30))(columns)
    columns["episode_index"][-30:] = 77


def shuffle_rows(columns: Columns) -> None:
    """Put the rows of an episode out of order."""
    order = np.random.default_rng(0).permutation(np.arange(sum(LENGTHS))[span(2)])
    select(slice(span(2).start), order, slice(span(2).stop, None))(columns)


def lose_bytes(content: bytes) -> bytes:
    """Overwrite a part of the packets of a video."""
    start = content.index(b"mdat") + 8
    return content[:start] + bytes(2500) + content[start + 2500 :]


def hang(images: np.ndarray) -> np.ndarray:
    """Repeat an image for a second."""
    return np.concatenate([images[:12], np.repeat(images[12:13], 20, axis=0), images[32:]])


def copy_episode(root: Path) -> None:
    """Make rows and videos of an episode those of another one."""
    source = pq.read_table(root / data_file(0))
    edit_table(
        root / data_file(7),
        lambda columns: columns.update({key: np.array(source[key].to_pylist()) for key in BOTH}),
    )
    copy(*((video_file(0, camera), video_file(7, camera)) for camera in CAMERAS))(root)


def shorten(root: Path) -> None:
    """Leave five frames of an episode."""
    edit_table(root / data_file(6), select(slice(5)))
    in_json(LINES, lambda lines: lines[6].update(length=5))(root)
    for camera in CAMERAS:
        video(video_file(6, camera), lambda images: images[:5])(root)


def leave_a_gap(root: Path) -> None:
    """Give the last episode another id."""
    in_json(LINES, lambda lines: lines[9].update(episode_index=12))(root)
    for path in (data_file, *(partial(video_file, camera=camera) for camera in CAMERAS)):
        (root / path(9)).rename(root / path(12))


def start_late(episode: int, frames: float) -> Plant:
    """Move the recorded start of an episode in a recording."""
    return in_places(add(frames / 30, episode, *times_of("observation.images.cam_high")))


KNOWN_FAULTS: dict[str, Plant] = {
    "total_frames_lies v3.0 metadata.totals - -": info(total_frames=9999),
    "total_episodes_lies v3.0 metadata.totals - -": info(total_episodes=9),
    "splits_beyond_the_episodes v2.1 metadata.splits - -": info(splits={"train": "0:40"}),
    "repeated_dimension_names v3.0 metadata.names - state": in_json(
        INFO, lambda info: info["features"][STATE].update(names=["a", "a", "b", "c", "d", "e"])
    ),
    "truncated_info v3.0 metadata.unreadable - -": write_bytes(INFO, lambda content: content[:200]),
    "missing_data_file v2.1 files.missing 4 -": remove(data_file(4)),
    "missing_video v2.1 files.missing 5 wrist": remove(video_file(5, WRIST)),
    "lfs_pointer v2.1 files.missing 2 top": write_bytes(video_file(2), lambda _: LFS.encode()),
    "truncated_video v2.1 videos.unreadable,videos.count 3 top": write_bytes(
        video_file(3), lambda content: content[: len(content) // 2]
    ),
    "truncated_data_file v2.1 files.unreadable 6 -": write_bytes(
        data_file(6), lambda content: content[: len(content) // 2]
    ),
    "orphan_video v3.0 files.orphan - top": copy(
        (VIDEO.format(TOP), VIDEO.format(TOP).replace("000.mp4", "001.mp4"))
    ),
    "column_absent_in_one_file v2.1 files.columns 7 action": in_table(
        data_file(7), lambda rows: rows.pop(ACTION)
    ),
    "wrong_width_declared v3.0 files.unreadable - state": in_json(
        INFO, lambda info: info["features"][STATE].update(shape=[7], names=None)
    ),
    "row_removed v3.0 rows.count 4 -": in_rows(
        select(slice(span(4).start + 20), slice(span(4).start + 21, None))
    ),
    "length_lies v2.1 rows.count 1 -": in_json(LINES, lambda lines: lines[1].update(length=60)),
    "orphan_rows v3.0 rows.orphan - -": in_rows(repeat_rows),
    "rows_out_of_order v3.0 rows.frame_index 2 -": in_rows(shuffle_rows),
    "rows_of_an_episode_apart v3.0 rows.split 3 -": in_rows(
        select(
            slice(span(3).start + 10),
            span(4),
            slice(span(3).start + 10, span(3).stop),
            slice(span(4).stop, None),
        )
    ),
    "data_files_exchanged v2.1 rows.episode 2 -": exchange((data_file(2), data_file(7))),
    "range_of_rows_lies v3.0 episodes.range 6 -": in_places(add(5, 6, "dataset_to_index")),
    "index_off_by_ten v3.0 rows.index,episodes.range 5 -": in_places(
        add(10, slice(5, None), "dataset_from_index", "dataset_to_index")
    ),
    "unknown_task v3.0 tasks.unknown 8 task_index": episode(
        8, lambda columns: setitem(columns["task_index"], ALL, 9)
    ),
    "task_without_episodes v2.1 tasks.unused - -": in_json(
        "meta/tasks.jsonl", lambda lines: lines.append({"task_index": 2, "task": "pour the water"})
    ),
    "rows_of_another_task v3.0 tasks.listed 1 -": episode(
        1, lambda columns: setitem(columns["task_index"], ALL, 0)
    ),
    "task_text_twice v2.1 tasks.repeated - -": in_json(
        "meta/tasks.jsonl", lambda lines: lines.append({"task_index": 2, "task": TASKS[0]})
    ),
    "wrong_fps v3.0 clock.fps - -": info(fps=30),
    "timestamps_with_a_gap v3.0 clock.gap 3 -": episode(3, add(0.4, slice(20, None), "timestamp")),
    "timestamps_fall v3.0 clock.order 7 -": episode(7, add(-0.3, 9, "timestamp")),
    "timestamps_of_a_hardware_clock v2.1 clock.jitter 0 -": episode(
        0, add(np.random.default_rng(0).uniform(-0.004, 0.004, LENGTHS[0]), ALL, "timestamp")
    ),
    "timestamps_start_late v2.1 clock.start 9 -": episode(9, add(12.5, ALL, "timestamp")),
    "nan_in_the_state v3.0 values.finite 4 state": values(4, STATE, put((17, 2), np.nan)),
    "outlier_in_the_action v3.0 values.outlier 8 action": values(8, ACTION, put((30, 1), 41.0)),
    "degrees_in_one_joint v3.0 values.unit 7 state": several(
        *(values(episode, STATE, scale(57.29578, np.s_[:, 0])) for episode in (6, 7))
    ),
    "joint_with_the_other_sign v3.0 values.sign 2 state": values(2, STATE, scale(-1, np.s_[:, 3])),
    "dead_joint v3.0 values.dead 5 state": values(5, STATE, put(np.s_[:, 1], lambda v: v[0, 1])),
    "gripper_never_closes v3.0 values.gripper 9 action": values(9, BOTH, put(np.s_[:, 5], 0.0)),
    "joint_jumps v3.0 values.jump 6 state": values(
        6, STATE, put(np.s_[25:, 4], lambda v: v[25:, 4] + 1.8)
    ),
    "clipped_action v3.0 values.saturation 3 action": values(
        3, ACTION, put(np.s_[:, 3], lambda v: np.minimum(v[:, 3], np.quantile(v[:, 3], 0.5)))
    ),
    "encoder_offset_in_one_joint v3.0 values.offset 6 state": values(
        6, STATE, put(np.s_[:, 1], lambda v: v[:, 1] + 0.35)
    ),
    "joint_calibrated_anew v3.0 values.offset 3 -": values(
        3, BOTH, put(np.s_[:, 2], lambda v: v[:, 2] + 3.5)
    ),
    "action_late_by_six_frames v3.0 values.lag 4 action": values(
        4, ACTION, put(slice(6, None), lambda v: v[:-6].copy())
    ),
    "joints_exchanged v3.0 values.exchanged 1 state": values(
        1, STATE, put(np.s_[:, [2, 4]], lambda v: v[:, [4, 2]])
    ),
    "recorded_std_is_wrong v3.0 statistics.values - action": in_json(
        STATS, lambda stats: setitem(stats[ACTION]["std"], 0, 3 * stats[ACTION]["std"][0])
    ),
    "recorded_quantiles_out_of_order v3.0 statistics.order - state": in_json(
        STATS, lambda stats: stats[STATE].update(q01=stats[STATE]["q99"], q99=stats[STATE]["q01"])
    ),
    "recorded_statistics_of_five_joints v3.0 statistics.shape - action": in_json(
        STATS,
        lambda stats: stats.update(
            {ACTION: {name: figure[:5] for name, figure in stats[ACTION].items()}}
        ),
    ),
    "recorded_statistics_of_another_episode v2.1 statistics.episodes 5 -": in_json(
        "meta/episodes_stats.jsonl", lambda lines: lines[5].update(stats=lines[8]["stats"])
    ),
    "recorded_range_of_one_episode_is_wrong v3.0 statistics.episodes 4 state": in_places(
        lambda columns: setitem(columns[f"stats/{STATE}/max"], (4, 2), 9.0)
    ),
    "image_statistics_of_255 v3.0 statistics.images - top": in_json(
        STATS, lambda stats: stats[TOP].update(mean=(255 * np.array(stats[TOP]["mean"])).tolist())
    ),
    "episode_twice v2.1 episodes.duplicate 7 -": copy_episode,
    "episode_of_five_frames v2.1 episodes.outlier 6 -": shorten,
    "episode_idles v3.0 episodes.outlier 8 -": values(8, BOTH, stop(10, 45)),
    "start_off_by_one_frame v3.0 videos.start 3 top": in_places(add(1 / FPS, 3, *times_of(TOP))),
    "end_of_a_video_lies v3.0 videos.length 6 wrist": in_places(add(-0.5, 6, ENDS.format(WRIST))),
    "video_lacks_a_frame v2.1 videos.count 2 top": video(video_file(2), lambda images: images[:-1]),
    "video_has_more_frames v2.1 videos.count 4 wrist": video(
        video_file(4, WRIST), lambda images: np.concatenate([images, images[-3:]])
    ),
    "video_of_another_size v2.1 videos.encoding 1 top": video(
        video_file(1), lambda images: np.ascontiguousarray(images[:, 8:-8, 8:-8])
    ),
    "video_of_another_rate v2.1 videos.encoding 8 top": video(
        video_file(8), lambda images: images, 10
    ),
    "bytes_of_a_video_are_lost v2.1 images.decode 3 top": write_bytes(video_file(3), lose_bytes),
    "black_camera v2.1 images.black 5 top": video(video_file(5), np.zeros_like),
    "frozen_camera v2.1 images.frozen 6 wrist": video(
        video_file(6, WRIST), lambda images: np.repeat(images[:1], len(images), axis=0)
    ),
    "camera_hangs_for_a_second v2.1 images.repeated 7 top": video(video_file(7), hang),
    "cameras_exchanged v2.1 images.exchanged 4 -": exchange(
        (video_file(4, TOP), video_file(4, WRIST))
    ),
    "each_image_one_frame_late v3.0 images.boundary - top": video(VIDEO.format(TOP), late(1)),
    "episode_ids_with_a_gap v2.1 episodes.ids - -": leave_a_gap,
    "statistics_are_absent v3.0 statistics.missing - -": remove(STATS),
    "camera_shows_another_scene v2.1 images.outlier 8 top": video(
        video_file(8), lambda images: 255 - images
    ),
    "camera_is_mirrored v2.1 images.mirrored 4 top": video(
        video_file(4), lambda images: images[:, :, ::-1]
    ),
    "red_and_blue_are_exchanged v2.1 images.channels 6 wrist": video(video_file(6, WRIST), bgr),
    "camera_is_noisy v2.1 images.noise 2 top": video(
        video_file(2),
        lambda images: np.clip(images + noise(5, 20, *images.shape), 0, 255).astype(np.uint8),
    ),
    "images_of_an_episode_late v2.1 images.shifted 3 top": video(video_file(3), late(2)),
    "video_of_another_episode v2.1 images.shifted,images.duplicate 0 top": copy(
        (video_file(2), video_file(0))
    ),
    "videos_of_two_episodes_exchanged v2.1 images.shifted 8 -": exchange(
        *((video_file(1, camera), video_file(8, camera)) for camera in CAMERAS)
    ),
    "action_is_the_state v3.0 values.copy 5 action": episode(5, copy_state),
    "all_actions_are_the_state v3.0 values.copy - action": in_rows(copy_state),
    "action_late_by_one_frame v3.0 values.lag 2 action": values(2, ACTION, delay(1)),
    "state_stops_in_the_middle v3.0 values.frozen 6 state": values(6, STATE, stop(25)),
    "actions_of_another_episode v3.0 values.exchanged 5 action": in_rows(
        lambda columns: setitem(columns[ACTION], span(5), columns[ACTION][span(6)][:46].copy())
    ),
    "gripper_inverted v3.0 values.sign 4 -": values(4, BOTH, invert(5)),
    "state_in_64_ticks v3.0 values.noise 7 state": values(7, STATE, ticks(64, 2)),
    "noise_in_the_state v3.0 values.noise 1 state": values(
        1, STATE, put(ALL, lambda v: v + noise(5, 0.04, LENGTHS[1], 6))
    ),
    "zeros_at_the_start v3.0 values.zeros 8 state": values(8, STATE, put(slice(10), 0)),
    "idle_tail v3.0 episodes.idle 3 -": values(3, BOTH, stop(18)),
    "near_copy_of_an_episode v3.0 episodes.duplicate 2 -": copy_rows(
        2, 0, noise(6, 0.001, LENGTHS[0], 6)
    ),
    "start_half_a_frame_late v3.0 videos.start 4 top": in_places(add(0.5 / FPS, 4, *times_of(TOP))),
    "timestamps_in_milliseconds v2.1 clock.fps 6 -": values(6, "timestamp", scale(1000, ALL)),
    "joint_jumps_by_two v3.0 values.jump 6 state": values(
        6, STATE, put(np.s_[25:, 1], lambda v: v[25:, 1] + 2)
    ),
    "episode_shakes v3.0 episodes.outlier 4 -": values(4, BOTH, shake(0.4)),
    "timestamps_in_milliseconds_beside_another_rate v2.1 clock.fps 6 -": several(
        info(fps=30), values(6, "timestamp", scale(1000, ALL))
    ),
    "timestamps_start_later_than_others v3.0 clock.start 9 -": several(
        in_rows(add(0.2, ALL, "timestamp")), episode(9, add(12.5, ALL, "timestamp"))
    ),
    "nearly_black_camera v2.1 images.black 2 wrist": shown(lambda images: images // 64, 2, WRIST),
    "sensor_pauses v3.0 sensors.gap 3 -": add_imu(True, pause(3, slice(60, 65))),
    "random_sensor_pauses v3.0 sensors.gap 3 -": add_imu(False, pause(3, slice(60, 160))),
    "sensor_sticks v3.0 sensors.constant 5 -": add_imu(True, stick(5, 1)),
    "quaternion_of_another_norm v3.0 values.quaternion 5 -": several(
        make_quaternions(slice(1, 5)), values(5, BOTH, scale(1.1, np.s_[:, 1:5]))
    ),
    "recorded_maximum_is_wrong v3.0 statistics.values - state": in_json(
        STATS, lambda stats: setitem(stats[STATE]["max"], 0, stats[STATE]["max"][0] + 0.1)
    ),
    "dead_joint_in_two_episodes v3.0 values.dead 5 state": several(
        *(values(episode, STATE, put(np.s_[:, 1], 0.25)) for episode in (5, 7))
    ),
    "extreme_values_in_half v3.0 values.outlier 3 action": several(
        *(values(episode, ACTION, put((30, 1), 1e8)) for episode in range(5))
    ),
    "huge_values_of_a_resting_joint v3.0 values.outlier 3 action": several(
        all_rows(ACTION, put(np.s_[:, 3], 0)),
        *(values(episode, ACTION, put((30, 3), 1e20)) for episode in range(5)),
    ),
    "shock_of_a_force v3.0 values.outlier 4 -": add_force(put((span(4).start + 20, 1), 3000)),
    "action_never_changes v3.0 values.constant - action": all_rows(ACTION, put(ALL, 0.5)),
    "g1_v30_action_is_the_state g1_v30 values.copy 3 -": episode(3, copy_state),
    "g1_v30_action_late_by_one_frame g1_v30 values.lag 5 -": values(5, ACTION, delay(1)),
    "g1_v30_state_stops_in_the_middle g1_v30 values.frozen 2 -": values(2, STATE, stop(130)),
    "g1_v30_state_in_64_ticks g1_v30 values.noise 4 -": values(4, STATE, ticks_of_range(64)),
    "g1_v30_noise_in_the_state g1_v30 values.noise 1 -": values(1, STATE, noise_of_range(0.02)),
    "g1_v30_zeros_at_the_start g1_v30 values.zeros 7 -": values(7, STATE, put(slice(10), 0)),
    "g1_v30_idle_tail g1_v30 episodes.idle 0 -": values(0, BOTH, stop(130)),
    "g1_v30_hand_inverted g1_v30 values.sign 6 -": values(6, BOTH, invert(slice(20, 26))),
    "g1_v30_start_half_a_frame_late g1_v30 videos.start 5 -": start_late(5, 0.5),
    "g1_timestamps_in_milliseconds g1 clock.fps 6 -": values(6, "timestamp", scale(1000.0, ALL)),
    "v2.1_images_late_by_three v2.1 images.shifted 4 -": shown(late(3), 4),
    "v2.1_images_early_by_three v2.1 images.shifted 7 -": shown(late(-3), 7, WRIST),
    "v2.1_images_of_both_cameras_late v2.1 images.shifted 2 -": shown(late(3), 2, TOP, WRIST),
    "v2.1_video_played_backwards v2.1 images.shifted 5 -": shown(reverse, 5),
    "v2.1_colors_exchanged_in_half v2.1 images.channels - -": shown(bgr, range(0, 9, 2)),
    "v2.1_cameras_exchanged_in_half v2.1 images.exchanged - -": shown("camera", range(0, 9, 2)),
    "v2.1_every_fourth_image v2.1 images.rate,images.repeated 6 -": shown(hold(4), 6),
    "v2.1_blurred v2.1 images.sharpness 3 -": shown(blur(2), 3),
    "v2.1_green_tint v2.1 images.color,images.outlier 4 -": shown(tint(0.8, 1.1, 0.8), 4, WRIST),
    "v2.1_gray_images v2.1 images.color,images.outlier 2 -": shown(saturate(0), 2),
    "v2.1_zoomed v2.1 images.moved 8 -": shown(zoom(1.3), 8),
    "v2.1_torn v2.1 images.torn 7 -": shown(tear(15, 2), 7),
    "v2.1_camera_moved_midway v2.1 images.moved 1 -": shown(move(0.08, -0.1, 24), 1),
    "v2.1_camera_moved v2.1 images.moved 9 -": shown(move(0.1, 0.1), 9, WRIST),
    "texture_images_late_by_three texture images.shifted 5 -": shown(late(3), 5, TOP, WRIST),
    "texture_zoomed texture images.moved 8 -": shown(zoom(1.25), 8),
    "texture_camera_moved texture images.moved 3 -": shown(move(0.06, -0.08), 3),
    "texture_camera_moved_midway texture images.moved 1 -": shown(move(0.06, 0.08, 24), 1),
    "g1_images_late_by_nine g1 images.shifted 3 -": shown(late(9), 3),
    "g1_video_played_backwards g1 images.shifted 1 -": shown(reverse, 1),
    "g1_colors_exchanged_in_half g1 images.channels - -": shown(bgr, range(0, 7, 2)),
    "g1_every_fourth_image g1 images.rate,images.repeated 6 -": shown(hold(4), 6),
    "g1_blurred g1 images.sharpness 2 -": shown(blur(4), 2),
    "g1_green_tint g1 images.color,images.outlier 5 -": shown(tint(0.85, 1.1, 0.85), 5),
    "g1_gray_images g1 images.color,images.outlier 0 -": shown(saturate(0), 0),
    "g1_zoomed g1 images.moved 4 -": shown(zoom(1.2), 4),
    "g1_torn g1 images.torn 7 -": shown(tear(22, 2), 7),
    "g1_camera_moved_midway g1 images.moved 1 -": shown(move(0.05, -0.08, 130), 1),
    "g1_camera_moved g1 images.moved 3 -": shown(move(0.06, 0.05), 3),
    "gr1_images_late_by_four gr1 images.shifted 3 -": shown(late(4), 3),
    "gr1_videos_exchanged gr1 images.shifted 1 -": shown(2, 1),
    "gr1_torn gr1 images.torn 2 -": shown(tear(15, 2), 2),
    "gr1_blurred gr1 images.sharpness 0 -": shown(blur(4), 0),
}
"""Name, dataset, rules, episode that the finding must name, and its camera or column -> change of
the dataset.
"""
HELD_FAULTS: dict[str, Plant] = {
    "action_early_by_two_frames v3.0 values.lag 8 action": values(
        8, ACTION, put(slice(-2), lambda v: v[2:].copy())
    ),
    "state_late_by_one_frame v3.0 values.lag 5 -": values(5, STATE, delay(1)),
    "state_stops_for_half_a_second v3.0 values.frozen 9 state": values(9, STATE, stop(12, 24)),
    "states_of_an_episode_in_reverse v3.0 values.exchanged 0 -": values(
        0, STATE, put(ALL, lambda v: v[::-1].copy())
    ),
    "three_joints_rotated_in_both_columns v3.0 values.exchanged 6 -": values(
        6, BOTH, put(np.s_[:, [0, 2, 4]], lambda v: v[:, [2, 4, 0]])
    ),
    "action_of_the_gripper_inverted v3.0 values.sign 7 -": values(7, ACTION, invert(5)),
    "state_of_an_8_bit_encoder v3.0 values.noise 2 state": values(2, STATE, ticks(256, 6)),
    "noise_in_one_joint_of_the_action v3.0 values.noise 3 action": values(
        3, ACTION, put(np.s_[:, 1], lambda v: v[:, 1] + noise(8, 0.03, LENGTHS[3]))
    ),
    "zeros_in_the_middle v3.0 values.zeros,values.jump 1 action": values(
        1, ACTION, put(slice(30, 33), 0)
    ),
    "noisy_idle_tail v3.0 episodes.idle,episodes.outlier 6 -": values(
        6, BOTH, put(slice(12, None), lambda v: v[12] + noise(9, 0.0005, LENGTHS[6] - 12, 6))
    ),
    "copy_with_noise_of_three_ticks v3.0 episodes.duplicate 7 -": copy_rows(
        7, 2, noise(10, 0.003, LENGTHS[1], 6)[:48]
    ),
    "millimeters_in_one_dimension v3.0 values.unit 1 action": values(
        1, ACTION, scale(1000, np.s_[:, 2])
    ),
    "another_encoder_offset v3.0 values.offset 9 state": values(
        9, STATE, put(np.s_[:, 3], lambda v: v[:, 3] - 0.5)
    ),
    "action_clipped_below v3.0 values.saturation 8 action": values(
        8, ACTION, put(np.s_[:, 2], lambda v: np.maximum(v[:, 2], np.quantile(v[:, 2], 0.35)))
    ),
    "start_a_fifth_of_a_frame_early v3.0 videos.start 7 wrist": in_places(
        add(-0.2 / FPS, 7, STARTS.format(WRIST))
    ),
    "timestamps_in_microseconds v2.1 clock.fps 3 -": values(3, "timestamp", scale(1000000.0, ALL)),
    "g1_v30_action_early_by_one_frame_held g1_v30 values.lag 2 -": values(2, ACTION, delay(-1)),
    "g1_v30_state_late_by_two_frames_held g1_v30 values.lag 7 -": values(7, STATE, delay(2)),
    "g1_v30_state_stops_for_a_second_held g1_v30 values.frozen 6 -": values(
        6, STATE, stop(90, 120)
    ),
    "g1_v30_state_in_200_ticks_held g1_v30 values.noise 5 -": values(5, STATE, ticks_of_range(200)),
    "g1_v30_noise_in_five_joints_held g1_v30 values.noise 3 -": values(
        3, STATE, noise_of_range(0.015, slice(7, 12))
    ),
    "g1_v30_zeros_in_the_action_held g1_v30 values.zeros 2 -": values(2, ACTION, put(slice(6), 0)),
    "g1_v30_long_idle_tail_held g1_v30 episodes.idle 4 -": values(4, BOTH, stop(160)),
    "g1_v30_other_hand_inverted_held g1_v30 values.sign 1 -": values(
        1, BOTH, invert(slice(14, 20))
    ),
    "g1_v30_start_a_third_of_a_frame_early_held g1_v30 videos.start 1 -": start_late(1, -0.3),
    "g1_timestamps_in_frames_held g1 clock.fps 2 -": values(2, "timestamp", scale(30, ALL)),
    "gr1_action_is_the_state_held gr1 values.copy 2 -": episode(2, copy_state),
    "gr1_state_stops_for_two_seconds_held gr1 values.frozen 4 -": values(4, STATE, stop(100, 140)),
    "v2.1_images_late_by_five_held v2.1 images.shifted 6 -": shown(late(5), 6, WRIST),
    "v2.1_images_early_by_four_held v2.1 images.shifted 0 -": shown(late(-4), 0),
    "v2.1_wrist_played_backwards_held v2.1 images.shifted 8 -": shown(reverse, 8, WRIST),
    "v2.1_both_cameras_of_equal_lengths_held v2.1 images.shifted 0 -": shown(2, 0, TOP, WRIST),
    "v2.1_wrist_colors_exchanged_in_four_held v2.1 images.channels - -": shown(
        bgr, range(1, 5), WRIST
    ),
    "v2.1_cameras_exchanged_in_last_half_held v2.1 images.exchanged - -": shown(
        "camera", range(5, 10)
    ),
    "v2.1_every_third_image_held v2.1 images.rate,images.repeated 2 -": shown(hold(3), 2, WRIST),
    "v2.1_smooth_blur_held v2.1 images.sharpness 9 -": shown(blur(1, 3), 9),
    "v2.1_red_tint_held v2.1 images.color,images.outlier 0 -": shown(tint(1.15, 0.95, 0.8), 0),
    "v2.1_pale_images_held v2.1 images.color,images.outlier 6 -": shown(saturate(0.25), 6, WRIST),
    "v2.1_reduced_held v2.1 images.moved 5 -": shown(zoom(0.8), 5),
    "v2.1_torn_above_held v2.1 images.torn 3 -": shown(tear(10, 3, bottom=False), 3, WRIST),
    "v2.1_frames_out_of_order_held v2.1 images.torn 1 -": shown(flicker(0.3, 6), 1),
    "v2.1_camera_moved_at_the_end_held v2.1 images.moved 7 -": shown(move(-0.12, 0.05, 34), 7),
    "v2.1_camera_turned_held v2.1 images.moved 4 -": shown(move(0, 0, 0, 9), 4),
    "texture_reduced_held texture images.moved 2 -": shown(zoom(0.85), 2),
    "texture_little_zoom_held texture images.moved 6 -": shown(zoom(1.12), 6, WRIST),
    "texture_camera_moved_held texture images.moved 7 -": shown(move(-0.05, 0.04), 7),
    "texture_wrist_moved_midway_held texture images.moved 0 -": shown(
        move(0.04, 0.06, 20), 0, WRIST
    ),
    "texture_camera_turned_held texture images.moved 5 -": shown(move(0, 0, 0, 7), 5),
    "texture_smooth_blur_held texture images.sharpness 3 -": shown(blur(1, 2), 3),
    "texture_slight_tint_held texture images.color,images.outlier 9 -": shown(
        tint(1.08, 1.0, 0.92), 9
    ),
    "g1_images_early_by_twelve_held g1 images.shifted 1 -": shown(late(-12), 1),
    "g1_video_played_backwards_held g1 images.shifted 2 -": shown(reverse, 2),
    "g1_colors_exchanged_in_three_held g1 images.channels - -": shown(bgr, range(4, 7)),
    "g1_every_second_image_held g1 images.rate,images.repeated 3 -": shown(hold(2), 3),
    "g1_smooth_blur_held g1 images.sharpness 6 -": shown(blur(2, 2), 6),
    "g1_red_tint_held g1 images.color,images.outlier 1 -": shown(tint(1.15, 1.0, 0.9), 1),
    "g1_pale_images_held g1 images.color,images.outlier 7 -": shown(saturate(0.4), 7),
    "g1_reduced_held g1 images.moved 2 -": shown(zoom(0.85), 2),
    "g1_torn_above_held g1 images.torn 4 -": shown(tear(10, 3, bottom=False), 4),
    "g1_camera_moved_late_held g1 images.moved 6 -": shown(move(-0.06, 0.03, 200), 6),
    "g1_camera_turned_held g1 images.moved 5 -": shown(move(0, 0, 0, 6), 5),
    "gr1_images_early_by_five_held gr1 images.shifted 1 -": shown(late(-5), 1),
    "gr1_video_played_backwards_held gr1 images.shifted 3 -": shown(reverse, 3),
    "gr1_every_third_image_held gr1 images.rate,images.repeated 4 -": shown(hold(3), 4),
    "gr1_green_tint_held gr1 images.color,images.outlier 2 -": shown(tint(0.9, 1.05, 0.9), 2),
}


def _read_faults(plants: dict[str, Plant], split: str) -> Iterator[Fault]:
    names = {
        "-": {},
        "top": {"camera": TOP},
        "wrist": {"camera": WRIST},
        "task_index": {"column": "task_index"},
    }
    names |= {"state": {"column": STATE}, "action": {"column": ACTION}}
    for line, plant in plants.items():
        name, version, rules, episode, place = line.split()
        number = None if episode == "-" else int(episode)
        yield Fault(
            name, version, tuple(rules.split(",")), plant, number, **names[place], split=split
        )


FAULTS = [*_read_faults(KNOWN_FAULTS, "known"), *_read_faults(HELD_FAULTS, "held")]


# Sound datasets


def _static(root: Path) -> None:
    """Long pauses, a gripper that is never used, and a camera that sees nothing move."""
    with EpisodeWriter(root, fps=FPS, features=features(), codec="libx264", gop=8) as writer:
        for episode, length in enumerate(LENGTHS):
            rows = episode_rows(episode, length)
            for key in rows:
                rows[key][:15] = rows[key][15]
                rows[key][:, 5] = 0
            ground = episode_images(0, 0, rows[STATE][:1])[0]
            for frame in range(length):
                images = {TOP: ground, WRIST: 255 - ground}
                writer.add_frame({key: rows[key][frame] for key in rows} | images, TASKS[0])
            writer.save_episode()


def _noise(root: Path) -> None:
    """Values without any regularity, as in tests of loaders."""

    def change(episode: int, rows: dict[str, np.ndarray]) -> None:
        rng = np.random.default_rng([5, episode])
        for values in rows.values():
            values[:] = rng.normal(size=values.shape)

    write_v30(root, lengths=(20, 33, 41, 18, 60, 25), change=change)


def _resting(root: Path) -> None:
    """Joints that rest at values of their own in each episode, with the flicker of an encoder's
    tick.
    """

    def change(episode: int, rows: dict[str, np.ndarray]) -> None:
        rng = np.random.default_rng([17, episode])
        rest = rng.uniform(-1, 1, 3)
        for values in rows.values():
            values[:, 2:5] = rest
        rows[STATE][:, 2:5] += 0.001 * (rng.random((len(rows[STATE]), 3)) < 0.2)
        if episode % 4 == 0:
            rows[STATE][10:22, 3] += (0.3 * np.sin(np.linspace(0, np.pi, 12))).astype(np.float32)

    write_v30(root, change=change)


SOUND: dict[str, Callable[[Path], Any]] = {
    "one episode": partial(write_v30, lengths=(5,)),
    "images in rows": partial(write_v30, lengths=(24, 30, 26, 28, 25), images="image"),
    "static scenes": _static,
    "noise": _noise,
    "resting joints": _resting,
}
KNOWN = {"gr1_sim_v20": {"metadata.totals", "metadata.splits", "metadata.oddity", "files.camera"}}
"""Real recording -> rules that it breaks, by its own description."""


def write_bases(folder: Path) -> dict[str, Path]:
    """Write the datasets in which faults are planted, and add the real recordings: name -> folder.

    "texture" is that of "v2.1" with a background of many things.
    """
    write_v30(folder / "v3.0")
    write_v21(folder / "v2.1", folder / "v3.0")
    write_v21(folder / "texture", folder / "v3.0", texture=True)
    real = {"g1": "g1_v21", "g1_v30": "g1_v30", "gr1": "gr1_sim_v20"}
    data = Path(os.environ.get("UNDERSTUDY_TEST_DATA", os.devnull))
    bases = {version: folder / version for version in GENERATED}
    return bases | {base: data / name for base, name in real.items() if (data / name).is_dir()}


@contextmanager
def planted(one: Fault, bases: dict[str, Path], folder: Path) -> Iterator[Path]:
    """Plant a fault in a copy of its dataset, which is removed afterwards."""
    target = folder / one.name
    shutil.copytree(bases[one.version], target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # real recordings may be read-only
    try:
        one.plant(target)
        yield target
    finally:
        shutil.rmtree(target)


def sound_sets(bases: dict[str, Path], folder: Path) -> dict[str, Path]:
    """Write the sound datasets, and add the generated bases and the recordings: title -> path."""
    sound = {name: bases[name] for name in GENERATED}
    for title, write in SOUND.items():
        sound[title] = folder / title
        write(sound[title])
    real = os.environ.get("UNDERSTUDY_TEST_DATA")
    for path in sorted(Path(real).iterdir()) if real else ():
        if (path / "meta/info.json").exists():
            sound[path.name] = path
    return sound


def alarms(report: Report, known: set[str]) -> list[Finding]:
    """Errors of a report, and warnings of rules that are not in `known`."""
    return [
        f
        for f in report.findings
        if f.severity == "error" or (f.severity == "warning" and f.rule not in known)
    ]


def measure(only: Sequence[str] = ()) -> dict[str, Any]:
    """Plant all faults, and check all sound datasets."""
    scores = {
        f"{split}_{result}": 0
        for split in ("known", "held")
        for result in ("named", "undecided", "silent")
    }
    result: dict[str, Any] = scores | {
        "false_alarms": 0,
        "undecided": [],
        "silent": [],
        "sound": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bases = write_bases(folder)
        for one in FAULTS:
            if one.version not in bases or (only and one.name not in only):
                continue
            with planted(one, bases, folder) as root:
                report = check_dataset(root)
            outcome = one.result(report)
            result[f"{one.split}_{outcome}"] += 1
            if outcome != "named":
                result[outcome].append(one.name)
                print(f"{one.name}: {outcome}", *report.findings, sep="\n  ", file=sys.stderr)
        for title, path in sound_sets(bases, folder).items():
            found_alarms = alarms(check_dataset(path), KNOWN.get(title, set()))
            result["sound"][title] = len(found_alarms)
            result["false_alarms"] += len(found_alarms)
            if found_alarms:
                print(f"{title}: false alarms", *found_alarms, sep="\n  ", file=sys.stderr)
    return result


def main(arguments: list[str] | None = None) -> None:
    """Print how many faults are named."""
    parser = make_parser(__doc__, whole=True)
    parser.add_argument("--only", nargs="+", default=[], help="names of faults")
    args = parser.parse_args(arguments)
    result = measure(args.only)
    if args.json:
        print(json.dumps(result))
        return
    for split, title in (("known", "planted"), ("held", "held")):
        named, undecided, silent = (
            result[f"{split}_{outcome}"] for outcome in ("named", "undecided", "silent")
        )
        print(
            f"{named} of {named + undecided + silent} {title} faults named, {undecided} undecided, "
            f"{silent} silent"
        )
    print(f"{result['false_alarms']} false alarms on {len(result['sound'])} sound datasets")


if __name__ == "__main__":
    main()
