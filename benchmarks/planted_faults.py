"""Planted faults: how many does `understudy check` name, and does it report sound datasets?

    python benchmarks/planted_faults.py [--json] [--only NAME ...]

The faults of the split "known" were there while the rules were written. Those of "held" have other episodes,
magnitudes and kinds, fixed apart from the rules, and no rule was changed for them. Both scores are printed.

Each fault is one change of a sound dataset: ten episodes of a simulated arm with two cameras, in LeRobot v3.0 and
v2.1, and the real recordings under $UNDERSTUDY_TEST_DATA ("g1", "g1_v30", "gr1"), where there are any. A fault is named
if `check` reports an error or a warning of the right rule at the right place. It is undecided if `check` lists the rule
as one with too little data, and silent otherwise. A false alarm is an error or a warning on a sound dataset: the sets
above, sets of one episode, of images in rows, of static scenes and of noise. `KNOWN` lists the documented
irregularities of the recordings.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from planted_images import CAMERA_FAULTS, CameraFault

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # which encode videos

from support.videos import encode_video
from understudy.check.examine import check_dataset
from understudy.check.findings import Finding, Report
from understudy.data.write.writer import EpisodeWriter
from understudy.video.reader import open_video

TOP, WRIST = "observation.images.top", "observation.images.wrist"
CAMERAS = (TOP, WRIST)
STATE, ACTION = "observation.state", "action"
JOINTS = ["shoulder", "elbow", "wrist", "roll", "lift", "gripper"]
LENGTHS = (48, 52, 48, 56, 50, 46, 54, 48, 52, 50)
GENERATED = ("v3.0", "v2.1", "texture")
FPS, SIDE, AHEAD = 20, 64, 2
TASKS = ("stack the cups", "open the drawer")
INDEX = ("timestamp", "frame_index", "episode_index", "index", "task_index")


# The sound datasets


def episode_rows(episode: int, length: int) -> dict[str, np.ndarray]:
    """State and action float32 (length, 6): smooth joints and a gripper; actions lead by two frames."""
    rng = np.random.default_rng([11, episode])
    time = np.arange(length + AHEAD) / FPS
    joints = np.zeros((length + AHEAD, 6))
    for joint in range(5):
        for speed in (0.35, 0.8, 1.5):
            size = rng.uniform(0.2, 0.35) if speed < 1 else rng.uniform(0.1, 0.2)
            joints[:, joint] += size * np.sin(2 * np.pi * (speed * rng.uniform(0.9, 1.1) * time + rng.uniform()))
        joints[:, joint] += (0.6, -0.5, 1.4, 0.3, -1.2)[joint]
    close, reopen = length // 3 + rng.integers(-3, 4), 2 * length // 3 + rng.integers(-3, 4)
    joints[:, 5] = np.clip(np.minimum(np.arange(length + AHEAD) - close, reopen - np.arange(length + AHEAD)) / 3, 0, 1)
    state = joints + rng.normal(0, 0.002, joints.shape) * (1, 1, 1, 1, 1, 0)
    return {STATE: state[:length].astype(np.float32), ACTION: joints[AHEAD:].astype(np.float32)}


def episode_images(camera: int, episode: int, state: np.ndarray, texture: bool = False) -> np.ndarray:
    """uint8 (length, 64, 64, 3): a background per camera, objects per episode, and blocks moved by the joints.

    With a texture, the background shows things that stay where they are in all episodes.
    """
    rng = np.random.default_rng([13, camera, episode])
    y, x = np.mgrid[0:SIDE, 0:SIDE]
    ground = np.stack([60 + x, 90 + y, 70 + 0 * x] if camera == 0 else [40 + 0 * x, 70 + x // 2, 150 + y], axis=2)
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


def write_v30(root: Path, lengths: Sequence[int] = LENGTHS, images: str = "video", change: Any = None) -> None:
    """Write the arm's dataset as v3.0; `change(episode, rows)` may alter the rows of each episode in place."""
    with EpisodeWriter(root, fps=FPS, features=features(images), codec="libx264", gop=8, crf=18) as writer:
        for episode, length in enumerate(lengths):
            rows = episode_rows(episode, length)
            if change is not None:
                change(episode, rows)
            seen = [episode_images(camera, episode, rows[STATE]) for camera in range(2)]
            for frame in range(length):
                values = {STATE: rows[STATE][frame], ACTION: rows[ACTION][frame]}
                writer.add_frame(values | {TOP: seen[0][frame], WRIST: seen[1][frame]}, TASKS[episode % 2])
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
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    tasks = [{"task_index": i, "task": text} for i, text in enumerate(TASKS)]
    episodes, stats, first = [], [], 0
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
        stats.append({"episode_index": episode, "stats": {key: _stats(values) for key, values in rows.items()}})
    for name, lines in (("tasks", tasks), ("episodes", episodes), ("episodes_stats", stats)):
        (root / f"meta/{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _stats(values: np.ndarray) -> dict[str, Any]:
    figures = {"min": values.min(0), "max": values.max(0), "mean": values.mean(0), "std": values.std(0)}
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


DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"
VIDEO = "videos/{}/chunk-000/file-000.mp4"


# Changes of files


def edit_json(root: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file in place."""
    value = json.loads((root / name).read_text())
    change(value)
    (root / name).write_text(json.dumps(value))


def edit_lines(root: Path, name: str, change: Callable[[list[Any]], Any]) -> None:
    """Change a file of JSON lines in place."""
    lines = [json.loads(line) for line in (root / name).read_text().splitlines()]
    change(lines)
    (root / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit_table(root: Path, name: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a parquet file in place: columns of numbers are numpy arrays, others lists."""
    table = pq.read_table(root / name)
    columns: dict[str, Any] = {key: table[key].to_pylist() for key in table.column_names}
    for key, values in columns.items():
        if values and not isinstance(values[0], str) and np.array(values).dtype.kind in "if":
            columns[key] = np.array(values)
    change(columns)
    arrays = [
        pa.array(v.tolist() if isinstance(v, np.ndarray) else v, table.schema.field(k).type) for k, v in columns.items()
    ]
    pq.write_table(pa.table(arrays, names=list(columns)), root / name)


def span(episode: int) -> slice:
    """Rows of an episode in the v3.0 file."""
    first = sum(LENGTHS[:episode])
    return slice(first, first + LENGTHS[episode])


def select(columns: dict[str, Any], keep: np.ndarray) -> None:
    """Keep rows of all columns, by number."""
    for key, values in columns.items():
        columns[key] = values[keep] if isinstance(values, np.ndarray) else [values[at] for at in keep]


def remake_video(root: Path, name: str, change: Callable[[np.ndarray], np.ndarray], fps: int = FPS) -> None:
    """Decode a video, change its images uint8 (n, H, W, 3), and write it again."""
    reader = open_video(root / name)
    images = np.ascontiguousarray(reader.read(np.arange(reader.count)))
    reader.close()
    write_video(root / name, change(images), fps)


# The faults


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Attributes:
        name: its name.
        version: dataset to change, a key of `write_bases`.
        plant: changes the dataset under a folder.
        rules: rules of which one must be reported.
        episode: an episode that the finding must name; None for any place.
        camera: a camera that it must name.
        column: a column that it must name.
        split: "known", or "held": no rule was written or tuned with it.
    """

    name: str
    version: str
    plant: Callable[[Path], Any]
    rules: tuple[str, ...]
    episode: int | None = None
    camera: str = ""
    column: str = ""
    split: str = "known"

    def is_named_by(self, finding: Finding, episodes: int = len(LENGTHS)) -> bool:
        """Whether a finding about a dataset of N episodes names this fault."""
        place = finding.place
        return (
            finding.severity != "note"
            and finding.rule in self.rules
            and (self.episode is None or self.episode in place.episodes)
            and (not self.camera or self.camera == place.camera)
            and (not self.column or self.column == place.column)
            and (self.episode is None or len(place.episodes) < episodes or finding.rule.startswith("files."))
        )

    def result(self, report: Report) -> Literal["named", "undecided", "silent"]:
        """Return whether a report names this fault, or says that no rule of it has enough data."""
        if any(self.is_named_by(finding, report.episodes) for finding in report.findings):
            return "named"
        return "undecided" if any(entry.rule in self.rules for entry in report.undecided) else "silent"


FAULTS: list[Fault] = []


def fault(
    version: str,
    *rules: str,
    episode: int | None = None,
    camera: str = "",
    column: str = "",
    split: Literal["known", "held"] = "known",
) -> Any:
    """Register a function that plants a fault."""

    def register(plant: Callable[[Path], Any]) -> Callable[[Path], Any]:
        FAULTS.append(Fault(plant.__name__, version, plant, rules, episode, camera, column, split))
        return plant

    return register


@fault("v3.0", "metadata.totals")
def total_frames_lies(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(total_frames=9999))


@fault("v3.0", "metadata.totals")
def total_episodes_lies(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(total_episodes=9))


@fault("v2.1", "metadata.splits")
def splits_beyond_the_episodes(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(splits={"train": "0:40"}))


@fault("v3.0", "metadata.names", column=STATE)
def repeated_dimension_names(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info["features"][STATE].update(names=["a", "a", "b", "c", "d", "e"]))


@fault("v3.0", "metadata.unreadable")
def truncated_info(root: Path) -> None:
    path = root / "meta/info.json"
    path.write_text(path.read_text()[:200])


@fault("v2.1", "files.missing", episode=4)
def missing_data_file(root: Path) -> None:
    (root / data_file(4)).unlink()


@fault("v2.1", "files.missing", episode=5, camera=WRIST)
def missing_video(root: Path) -> None:
    (root / video_file(5, WRIST)).unlink()


@fault("v2.1", "files.missing", episode=2, camera=TOP)
def lfs_pointer(root: Path) -> None:
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'5' * 64}\nsize 12345\n"
    (root / video_file(2)).write_text(text)


@fault("v2.1", "videos.unreadable", "videos.count", episode=3, camera=TOP)
def truncated_video(root: Path) -> None:
    path = root / video_file(3)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@fault("v2.1", "files.unreadable", episode=6)
def truncated_data_file(root: Path) -> None:
    path = root / data_file(6)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@fault("v3.0", "files.orphan", camera=TOP)
def orphan_video(root: Path) -> None:
    shutil.copy(root / VIDEO.format(TOP), root / VIDEO.format(TOP).replace("000.mp4", "001.mp4"))


@fault("v2.1", "files.columns", episode=7, column=ACTION)
def column_absent_in_one_file(root: Path) -> None:
    edit_table(root, data_file(7), lambda columns: columns.pop(ACTION))


@fault("v3.0", "files.unreadable", column=STATE)
def wrong_width_declared(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info["features"][STATE].update(shape=[7], names=None))


@fault("v3.0", "rows.count", episode=4)
def row_removed(root: Path) -> None:
    edit_table(root, DATA, lambda columns: select(columns, np.delete(np.arange(sum(LENGTHS)), span(4).start + 20)))


@fault("v2.1", "rows.count", episode=1)
def length_lies(root: Path) -> None:
    edit_lines(root, "meta/episodes.jsonl", lambda lines: lines[1].update(length=60))


@fault("v3.0", "rows.orphan")
def orphan_rows(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        select(columns, np.concatenate([np.arange(sum(LENGTHS)), np.arange(30)]))
        columns["episode_index"][-30:] = 77

    edit_table(root, DATA, change)


@fault("v3.0", "rows.frame_index", episode=2)
def rows_out_of_order(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        order = np.arange(sum(LENGTHS))
        order[span(2)] = np.random.default_rng(0).permutation(order[span(2)])
        select(columns, order)

    edit_table(root, DATA, change)


@fault("v3.0", "rows.split", episode=3)
def rows_of_an_episode_apart(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        order = np.arange(sum(LENGTHS))
        middle = span(3).start + 10
        select(
            columns,
            np.concatenate([order[:middle], order[span(4)], order[middle : span(3).stop], order[span(4).stop :]]),
        )

    edit_table(root, DATA, change)


@fault("v2.1", "rows.episode", episode=2)
def data_files_exchanged(root: Path) -> None:
    one, two = root / data_file(2), root / data_file(7)
    one.rename(root / "x")
    two.rename(one)
    (root / "x").rename(two)


@fault("v3.0", "episodes.range", episode=6)
def range_of_rows_lies(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["dataset_to_index"][6] += 5

    edit_table(root, EPISODES, change)


@fault("v3.0", "rows.index", "episodes.range", episode=5)
def index_off_by_ten(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["dataset_from_index"][5:] += 10
        columns["dataset_to_index"][5:] += 10

    edit_table(root, EPISODES, change)


@fault("v3.0", "tasks.unknown", episode=8, column="task_index")
def unknown_task(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["task_index"][span(8)] = 9

    edit_table(root, DATA, change)


@fault("v2.1", "tasks.unused")
def task_without_episodes(root: Path) -> None:
    edit_lines(root, "meta/tasks.jsonl", lambda lines: lines.append({"task_index": 2, "task": "pour the water"}))


@fault("v3.0", "tasks.listed", episode=1)
def rows_of_another_task(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["task_index"][span(1)] = 0

    edit_table(root, DATA, change)


@fault("v2.1", "tasks.repeated")
def task_text_twice(root: Path) -> None:
    edit_lines(root, "meta/tasks.jsonl", lambda lines: lines.append({"task_index": 2, "task": TASKS[0]}))


@fault("v3.0", "clock.fps")
def wrong_fps(root: Path) -> None:
    edit_json(root, "meta/info.json", lambda info: info.update(fps=30))


@fault("v3.0", "clock.gap", episode=3)
def timestamps_with_a_gap(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["timestamp"][span(3).start + 20 : span(3).stop] += 0.4

    edit_table(root, DATA, change)


@fault("v3.0", "clock.order", episode=7)
def timestamps_fall(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["timestamp"][span(7).start + 9] -= 0.3

    edit_table(root, DATA, change)


@fault("v2.1", "clock.jitter", episode=0)
def timestamps_of_a_hardware_clock(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["timestamp"] += np.random.default_rng(0).uniform(-0.004, 0.004, len(columns["timestamp"]))

    edit_table(root, data_file(0), change)


@fault("v2.1", "clock.start", episode=9)
def timestamps_start_late(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns["timestamp"] += 12.5

    edit_table(root, data_file(9), change)


def _edit_values(root: Path, episode: int, key: str, change: Callable[[np.ndarray], Any]) -> None:
    """Change values (length, 6) of an episode of the v3.0 dataset in place."""
    edit_table(root, DATA, lambda columns: change(columns[key][span(episode)]))


@fault("v3.0", "values.finite", episode=4, column=STATE)
def nan_in_the_state(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[17, 2] = np.nan

    _edit_values(root, 4, STATE, change)


@fault("v3.0", "values.outlier", episode=8, column=ACTION)
def outlier_in_the_action(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[30, 1] = 41.0

    _edit_values(root, 8, ACTION, change)


@fault("v3.0", "values.unit", episode=7, column=STATE)
def degrees_in_one_joint(root: Path) -> None:
    for episode in (6, 7):
        _edit_values(root, episode, STATE, lambda values: np.multiply(values[:, 0], 57.29578, out=values[:, 0]))


@fault("v3.0", "values.sign", episode=2, column=STATE)
def joint_with_the_other_sign(root: Path) -> None:
    _edit_values(root, 2, STATE, lambda values: np.negative(values[:, 3], out=values[:, 3]))


@fault("v3.0", "values.dead", episode=5, column=STATE)
def dead_joint(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[:, 1] = values[0, 1]

    _edit_values(root, 5, STATE, change)


@fault("v3.0", "values.gripper", episode=9, column=ACTION)
def gripper_never_closes(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[:, 5] = 0.0

    _edit_values(root, 9, ACTION, change)
    _edit_values(root, 9, STATE, change)


@fault("v3.0", "values.jump", episode=6, column=STATE)
def joint_jumps(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[25:, 4] += 1.8

    _edit_values(root, 6, STATE, change)


@fault("v3.0", "values.saturation", episode=3, column=ACTION)
def clipped_action(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        np.minimum(values[:, 3], np.quantile(values[:, 3], 0.5), out=values[:, 3])

    _edit_values(root, 3, ACTION, change)


@fault("v3.0", "values.offset", episode=6, column=STATE)
def encoder_offset_in_one_joint(root: Path) -> None:
    _edit_values(root, 6, STATE, lambda values: values.__setitem__((slice(None), 1), values[:, 1] + 0.35))


@fault("v3.0", "values.offset", episode=3)
def joint_calibrated_anew(root: Path) -> None:
    for key in (STATE, ACTION):
        _edit_values(root, 3, key, lambda values: values.__setitem__((slice(None), 2), values[:, 2] + 3.5))


@fault("v3.0", "values.lag", episode=4, column=ACTION)
def action_late_by_six_frames(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[6:] = values[:-6].copy()

    _edit_values(root, 4, ACTION, change)


@fault("v3.0", "values.exchanged", episode=1, column=STATE)
def joints_exchanged(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        values[:, [2, 4]] = values[:, [4, 2]]

    _edit_values(root, 1, STATE, change)


@fault("v3.0", "statistics.values", column=ACTION)
def recorded_std_is_wrong(root: Path) -> None:
    def change(stats: Any) -> None:
        stats[ACTION]["std"][0] *= 3

    edit_json(root, "meta/stats.json", change)


@fault("v3.0", "statistics.order", column=STATE)
def recorded_quantiles_out_of_order(root: Path) -> None:
    def change(stats: Any) -> None:
        stats[STATE]["q01"], stats[STATE]["q99"] = stats[STATE]["q99"], stats[STATE]["q01"]

    edit_json(root, "meta/stats.json", change)


@fault("v3.0", "statistics.shape", column=ACTION)
def recorded_statistics_of_five_joints(root: Path) -> None:
    edit_json(root, "meta/stats.json", lambda s: s.update({ACTION: {k: v[:5] for k, v in s[ACTION].items()}}))


@fault("v2.1", "statistics.episodes", episode=5)
def recorded_statistics_of_another_episode(root: Path) -> None:
    edit_lines(root, "meta/episodes_stats.jsonl", lambda lines: lines[5].update(stats=lines[8]["stats"]))


@fault("v3.0", "statistics.episodes", episode=4, column=STATE)
def recorded_range_of_one_episode_is_wrong(root: Path) -> None:
    def change(table: dict[str, Any]) -> None:
        table[f"stats/{STATE}/max"][4][2] = 9.0

    edit_table(root, "meta/episodes/chunk-000/file-000.parquet", change)


@fault("v3.0", "statistics.images", camera=TOP)
def image_statistics_of_255(root: Path) -> None:
    def change(stats: Any) -> None:
        stats[TOP]["mean"] = (255 * np.array(stats[TOP]["mean"])).tolist()

    edit_json(root, "meta/stats.json", change)


@fault("v2.1", "episodes.duplicate", episode=7)
def episode_twice(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        source = pq.read_table(root / data_file(0))
        for key in (STATE, ACTION):
            columns[key] = np.array(source[key].to_pylist())

    edit_table(root, data_file(7), change)
    for camera in CAMERAS:
        shutil.copy(root / video_file(0, camera), root / video_file(7, camera))


@fault("v2.1", "episodes.outlier", episode=6)
def episode_of_five_frames(root: Path) -> None:
    edit_table(root, data_file(6), lambda columns: select(columns, np.arange(5)))
    edit_lines(root, "meta/episodes.jsonl", lambda lines: lines[6].update(length=5))
    for camera in CAMERAS:
        remake_video(root, video_file(6, camera), lambda images: images[:5])


@fault("v3.0", "episodes.outlier", episode=8)
def episode_idles(root: Path) -> None:
    for key in (STATE, ACTION):
        _edit_values(root, 8, key, lambda values: values.__setitem__(slice(10, 45), values[10]))


@fault("v3.0", "videos.start", episode=3, camera=TOP)
def start_off_by_one_frame(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        for end in ("from", "to"):
            columns[f"videos/{TOP}/{end}_timestamp"][3] += 1 / FPS

    edit_table(root, EPISODES, change)


@fault("v3.0", "videos.length", episode=6, camera=WRIST)
def end_of_a_video_lies(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns[f"videos/{WRIST}/to_timestamp"][6] -= 0.5

    edit_table(root, EPISODES, change)


@fault("v2.1", "videos.count", episode=2, camera=TOP)
def video_lacks_a_frame(root: Path) -> None:
    remake_video(root, video_file(2), lambda images: images[:-1])


@fault("v2.1", "videos.count", episode=4, camera=WRIST)
def video_has_more_frames(root: Path) -> None:
    remake_video(root, video_file(4, WRIST), lambda images: np.concatenate([images, images[-3:]]))


@fault("v2.1", "videos.encoding", episode=1, camera=TOP)
def video_of_another_size(root: Path) -> None:
    remake_video(root, video_file(1), lambda images: np.ascontiguousarray(images[:, 8:-8, 8:-8]))


@fault("v2.1", "videos.encoding", episode=8, camera=TOP)
def video_of_another_rate(root: Path) -> None:
    remake_video(root, video_file(8), lambda images: images, fps=10)


@fault("v2.1", "images.decode", episode=3, camera=TOP)
def bytes_of_a_video_are_lost(root: Path) -> None:
    path = root / video_file(3)
    data = bytearray(path.read_bytes())
    start = data.index(b"mdat") + 8
    data[start : start + 2500] = bytes(2500)
    path.write_bytes(bytes(data))


@fault("v2.1", "images.black", episode=5, camera=TOP)
def black_camera(root: Path) -> None:
    remake_video(root, video_file(5), np.zeros_like)


@fault("v2.1", "images.frozen", episode=6, camera=WRIST)
def frozen_camera(root: Path) -> None:
    remake_video(root, video_file(6, WRIST), lambda images: np.repeat(images[:1], len(images), axis=0))


@fault("v2.1", "images.repeated", episode=7, camera=TOP)
def camera_hangs_for_a_second(root: Path) -> None:
    def change(images: np.ndarray) -> np.ndarray:
        images[12:32] = images[12]
        return images

    remake_video(root, video_file(7), change)


@fault("v2.1", "images.exchanged", episode=4)
def cameras_exchanged(root: Path) -> None:
    one, two = root / video_file(4, TOP), root / video_file(4, WRIST)
    one.rename(root / "x")
    two.rename(one)
    (root / "x").rename(two)


@fault("v3.0", "images.boundary", camera=TOP)
def each_image_one_frame_late(root: Path) -> None:
    remake_video(root, VIDEO.format(TOP), lambda images: np.concatenate([images[:1], images[:-1]]))


@fault("v2.1", "episodes.ids")
def episode_ids_with_a_gap(root: Path) -> None:
    edit_lines(root, "meta/episodes.jsonl", lambda lines: lines[9].update(episode_index=12))
    (root / data_file(9)).rename(root / data_file(12))
    for camera in CAMERAS:
        (root / video_file(9, camera)).rename(root / video_file(12, camera))


@fault("v3.0", "statistics.missing")
def statistics_are_absent(root: Path) -> None:
    (root / "meta/stats.json").unlink()


@fault("v2.1", "images.outlier", episode=8, camera=TOP)
def camera_shows_another_scene(root: Path) -> None:
    remake_video(root, video_file(8), lambda images: 255 - images)


@fault("v2.1", "images.mirrored", episode=4, camera=TOP)
def camera_is_mirrored(root: Path) -> None:
    remake_video(root, video_file(4), lambda images: images[:, :, ::-1])


@fault("v2.1", "images.channels", episode=6, camera=WRIST)
def red_and_blue_are_exchanged(root: Path) -> None:
    remake_video(root, video_file(6, WRIST), lambda images: images[..., ::-1])


@fault("v2.1", "images.noise", episode=2, camera=TOP)
def camera_is_noisy(root: Path) -> None:
    def change(images: np.ndarray) -> np.ndarray:
        noise = np.random.default_rng(5).normal(0, 20, images.shape)
        return np.clip(images + noise, 0, 255).astype(np.uint8)

    remake_video(root, video_file(2), change)


@fault("v2.1", "images.shifted", episode=3, camera=TOP)
def images_of_an_episode_late(root: Path) -> None:
    remake_video(root, video_file(3), lambda images: np.concatenate([images[:1], images[:1], images[:-2]]))


@fault("v2.1", "images.shifted", "images.duplicate", episode=0, camera=TOP)
def video_of_another_episode(root: Path) -> None:
    shutil.copy(root / video_file(2), root / video_file(0))


@fault("v2.1", "images.shifted", episode=8)
def videos_of_two_episodes_exchanged(root: Path) -> None:
    for camera in CAMERAS:
        one, two = root / video_file(1, camera), root / video_file(8, camera)
        one.rename(root / "x")
        two.rename(one)
        (root / "x").rename(two)


# Faults of values that came with the rules of `action_state.py` and `signals.py`


@fault("v3.0", "values.copy", episode=5, column=ACTION)
def action_is_the_state(root: Path) -> None:
    edit_table(root, DATA, lambda columns: columns[ACTION].__setitem__(span(5), columns[STATE][span(5)]))


@fault("v3.0", "values.copy", column=ACTION)
def all_actions_are_the_state(root: Path) -> None:
    edit_table(root, DATA, lambda columns: columns.update({ACTION: columns[STATE].copy()}))


@fault("v3.0", "values.lag", episode=2, column=ACTION)
def action_late_by_one_frame(root: Path) -> None:
    _edit_values(root, 2, ACTION, lambda values: values.__setitem__(slice(1, None), values[:-1].copy()))


@fault("v3.0", "values.frozen", episode=6, column=STATE)
def state_stops_in_the_middle(root: Path) -> None:
    _edit_values(root, 6, STATE, lambda values: values.__setitem__(slice(25, None), values[25]))


@fault("v3.0", "values.exchanged", episode=5, column=ACTION)
def actions_of_another_episode(root: Path) -> None:
    edit_table(root, DATA, lambda columns: columns[ACTION].__setitem__(span(5), columns[ACTION][span(6)][:46].copy()))


@fault("v3.0", "values.sign", episode=4)
def gripper_inverted(root: Path) -> None:
    for key in (STATE, ACTION):
        _edit_values(root, 4, key, lambda values: values.__setitem__((slice(None), 5), 1 - values[:, 5]))


@fault("v3.0", "values.noise", episode=7, column=STATE)
def state_in_64_ticks(root: Path) -> None:
    _edit_values(root, 7, STATE, lambda values: np.copyto(values, np.round(values * 64 / 2) * 2 / 64))


@fault("v3.0", "values.noise", episode=1, column=STATE)
def noise_in_the_state(root: Path) -> None:
    noise = np.random.default_rng(5).normal(0, 0.04, (LENGTHS[1], 6))
    _edit_values(root, 1, STATE, lambda values: np.add(values, noise, out=values, casting="unsafe"))


@fault("v3.0", "values.zeros", episode=8, column=STATE)
def zeros_at_the_start(root: Path) -> None:
    _edit_values(root, 8, STATE, lambda values: values.__setitem__(slice(10), 0))


@fault("v3.0", "episodes.idle", episode=3)
def idle_tail(root: Path) -> None:
    for key in (STATE, ACTION):
        _edit_values(root, 3, key, lambda values: values.__setitem__(slice(18, None), values[18]))


@fault("v3.0", "episodes.duplicate", episode=2)
def near_copy_of_an_episode(root: Path) -> None:
    noise = np.random.default_rng(6).normal(0, 0.001, (LENGTHS[0], 6))

    def change(columns: dict[str, Any]) -> None:
        for key in (STATE, ACTION):
            columns[key][span(2)] = columns[key][span(0)] + noise

    edit_table(root, DATA, change)


@fault("v3.0", "videos.start", episode=4, camera=TOP)
def start_half_a_frame_late(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        for end in ("from", "to"):
            columns[f"videos/{TOP}/{end}_timestamp"][4] += 0.5 / FPS

    edit_table(root, EPISODES, change)


@fault("v2.1", "clock.fps", episode=6)
def timestamps_in_milliseconds(root: Path) -> None:
    edit_table(root, data_file(6), lambda columns: columns.update(timestamp=columns["timestamp"] * 1000))


# Held faults of values: other episodes, magnitudes and kinds than those above


@fault("v3.0", "values.lag", episode=8, column=ACTION, split="held")
def action_early_by_two_frames(root: Path) -> None:
    _edit_values(root, 8, ACTION, lambda values: values.__setitem__(slice(-2), values[2:].copy()))


@fault("v3.0", "values.lag", episode=5, split="held")
def state_late_by_one_frame(root: Path) -> None:
    _edit_values(root, 5, STATE, lambda values: values.__setitem__(slice(1, None), values[:-1].copy()))


@fault("v3.0", "values.frozen", episode=9, column=STATE, split="held")
def state_stops_for_half_a_second(root: Path) -> None:
    _edit_values(root, 9, STATE, lambda values: values.__setitem__(slice(12, 24), values[12]))


@fault("v3.0", "values.exchanged", episode=0, split="held")
def states_of_an_episode_in_reverse(root: Path) -> None:
    _edit_values(root, 0, STATE, lambda values: values.__setitem__(slice(None), values[::-1].copy()))


@fault("v3.0", "values.exchanged", episode=6, split="held")
def three_joints_rotated_in_both_columns(root: Path) -> None:
    for key in (STATE, ACTION):
        _edit_values(root, 6, key, lambda values: values.__setitem__((slice(None), [0, 2, 4]), values[:, [2, 4, 0]]))


@fault("v3.0", "values.sign", episode=7, split="held")
def action_of_the_gripper_inverted(root: Path) -> None:
    _edit_values(root, 7, ACTION, lambda values: values.__setitem__((slice(None), 5), 1 - values[:, 5]))


@fault("v3.0", "values.noise", episode=2, column=STATE, split="held")
def state_of_an_8_bit_encoder(root: Path) -> None:
    _edit_values(root, 2, STATE, lambda values: np.copyto(values, np.round(values * 256 / 6) * 6 / 256))


@fault("v3.0", "values.noise", episode=3, column=ACTION, split="held")
def noise_in_one_joint_of_the_action(root: Path) -> None:
    noise = np.random.default_rng(8).normal(0, 0.03, LENGTHS[3])
    _edit_values(root, 3, ACTION, lambda values: np.add(values[:, 1], noise, out=values[:, 1], casting="unsafe"))


@fault("v3.0", "values.zeros", "values.jump", episode=1, column=ACTION, split="held")
def zeros_in_the_middle(root: Path) -> None:
    _edit_values(root, 1, ACTION, lambda values: values.__setitem__(slice(30, 33), 0))


@fault("v3.0", "episodes.idle", "episodes.outlier", episode=6, split="held")
def noisy_idle_tail(root: Path) -> None:
    noise = np.random.default_rng(9).normal(0, 0.0005, (LENGTHS[6] - 12, 6))
    for key in (STATE, ACTION):
        _edit_values(root, 6, key, lambda values: values.__setitem__(slice(12, None), values[12] + noise))


@fault("v3.0", "episodes.duplicate", episode=7, split="held")
def copy_with_noise_of_three_ticks(root: Path) -> None:
    noise = np.random.default_rng(10).normal(0, 0.003, (LENGTHS[1], 6))

    def change(columns: dict[str, Any]) -> None:
        for key in (STATE, ACTION):
            columns[key][span(7)][:] = columns[key][span(2)] + noise[:48]

    edit_table(root, DATA, change)


@fault("v3.0", "values.unit", episode=1, column=ACTION, split="held")
def millimeters_in_one_dimension(root: Path) -> None:
    _edit_values(root, 1, ACTION, lambda values: np.multiply(values[:, 2], 1000, out=values[:, 2]))


@fault("v3.0", "values.offset", episode=9, column=STATE, split="held")
def another_encoder_offset(root: Path) -> None:
    _edit_values(root, 9, STATE, lambda values: np.add(values[:, 3], -0.5, out=values[:, 3]))


@fault("v3.0", "values.saturation", episode=8, column=ACTION, split="held")
def action_clipped_below(root: Path) -> None:
    def change(values: np.ndarray) -> None:
        np.maximum(values[:, 2], np.quantile(values[:, 2], 0.35), out=values[:, 2])

    _edit_values(root, 8, ACTION, change)


@fault("v3.0", "videos.start", episode=7, camera=WRIST, split="held")
def start_a_fifth_of_a_frame_early(root: Path) -> None:
    def change(columns: dict[str, Any]) -> None:
        columns[f"videos/{WRIST}/from_timestamp"][7] -= 0.2 / FPS

    edit_table(root, EPISODES, change)


@fault("v2.1", "clock.fps", episode=3, split="held")
def timestamps_in_microseconds(root: Path) -> None:
    edit_table(root, data_file(3), lambda columns: columns.update(timestamp=columns["timestamp"] * 1e6))


# Faults of the real recordings


def _change_rows(columns: dict[str, Any], change: Callable[[np.ndarray], Any], key: str, rows: slice) -> None:
    change(columns[key][rows])


def _edit_real(root: Path, episode: int, key: str, change: Callable[[np.ndarray], Any]) -> None:
    """Change values (length, D) of an episode of a real recording in place."""
    for path in sorted((root / "data").rglob("*.parquet")):
        ids = pq.read_table(path, columns=["episode_index"])["episode_index"].to_numpy()
        if episode in ids:
            rows = slice(int((ids == episode).argmax()), int((ids == episode).argmax() + (ids == episode).sum()))
            edit_table(root, str(path.relative_to(root)), partial(_change_rows, change=change, key=key, rows=rows))


def _copy_state(root: Path, episode: int) -> None:
    states: list[np.ndarray] = []
    _edit_real(root, episode, STATE, lambda values: states.append(values.copy()))
    _edit_real(root, episode, ACTION, lambda values: np.copyto(values, states[0]))


def _shift(frames: int) -> Callable[[np.ndarray], Any]:
    """Delay values by frames; earlier for a negative number."""
    return lambda values: np.copyto(values, values[np.clip(np.arange(len(values)) - frames, 0, len(values) - 1)])


def _stop(begin: int, end: int | None = None) -> Callable[[np.ndarray], Any]:
    return lambda values: values.__setitem__(slice(begin, end), values[begin])


def _ticks(number: int) -> Callable[[np.ndarray], Any]:
    """Round to N steps of each dimension's range."""

    def change(values: np.ndarray) -> None:
        unit = np.where(np.ptp(values, axis=0) > 0, np.ptp(values, axis=0), 1.0) / number
        values[:] = np.round(values / unit) * unit

    return change


def _noise_of(share: float, dims: slice = slice(None)) -> Callable[[np.ndarray], Any]:
    """Add noise of a share of each dimension's range."""

    def change(values: np.ndarray) -> None:
        noise = np.random.default_rng(14).normal(size=values.shape) * share * np.ptp(values, axis=0)
        values[:, dims] += noise[:, dims]

    return change


def _invert(begin: int, end: int) -> Callable[[np.ndarray], Any]:
    """Mirror dimensions at the middle of [0, 1], the range of a hand."""
    return lambda values: values.__setitem__((slice(None), slice(begin, end)), 1 - values[:, begin:end])


def _start(root: Path, episode: int, frames: float) -> None:
    def change(columns: dict[str, Any]) -> None:
        for end in ("from", "to"):
            columns[f"videos/observation.images.cam_high/{end}_timestamp"][episode] += frames / 30

    edit_table(root, EPISODES, change)


def _both(change: Callable[[np.ndarray], Any], root: Path, episode: int) -> None:
    for key in (STATE, ACTION):
        _edit_real(root, episode, key, change)


def _clock(root: Path, episode: int, factor: float) -> None:
    edit_table(root, data_file(episode), lambda columns: columns.update(timestamp=columns["timestamp"] * factor))


def _edit(key: str, change: Callable[[np.ndarray], Any]) -> Callable[[Path, int], Any]:
    return lambda root, episode: _edit_real(root, episode, key, change)


REAL_FAULTS: list[tuple[str, str, str, tuple[str, ...], int, Callable[[Path, int], Any]]] = [
    ("known", "g1_v30", "action_is_the_state", ("values.copy",), 3, _copy_state),
    ("known", "g1_v30", "action_late_by_one_frame", ("values.lag",), 5, _edit(ACTION, _shift(1))),
    ("known", "g1_v30", "state_stops_in_the_middle", ("values.frozen",), 2, _edit(STATE, _stop(130))),
    ("known", "g1_v30", "state_in_64_ticks", ("values.noise",), 4, _edit(STATE, _ticks(64))),
    ("known", "g1_v30", "noise_in_the_state", ("values.noise",), 1, _edit(STATE, _noise_of(0.02))),
    (
        "known",
        "g1_v30",
        "zeros_at_the_start",
        ("values.zeros",),
        7,
        _edit(STATE, lambda v: v.__setitem__(slice(10), 0)),
    ),
    ("known", "g1_v30", "idle_tail", ("episodes.idle",), 0, lambda root, at: _both(_stop(130), root, at)),
    ("known", "g1_v30", "hand_inverted", ("values.sign",), 6, lambda root, at: _both(_invert(20, 26), root, at)),
    ("known", "g1_v30", "start_half_a_frame_late", ("videos.start",), 5, lambda root, at: _start(root, at, 0.5)),
    ("known", "g1", "timestamps_in_milliseconds", ("clock.fps",), 6, lambda root, at: _clock(root, at, 1e3)),
    ("held", "g1_v30", "action_early_by_one_frame", ("values.lag",), 2, _edit(ACTION, _shift(-1))),
    ("held", "g1_v30", "state_late_by_two_frames", ("values.lag",), 7, _edit(STATE, _shift(2))),
    ("held", "g1_v30", "state_stops_for_a_second", ("values.frozen",), 6, _edit(STATE, _stop(90, 120))),
    ("held", "g1_v30", "state_in_200_ticks", ("values.noise",), 5, _edit(STATE, _ticks(200))),
    ("held", "g1_v30", "noise_in_five_joints", ("values.noise",), 3, _edit(STATE, _noise_of(0.015, slice(7, 12)))),
    (
        "held",
        "g1_v30",
        "zeros_in_the_action",
        ("values.zeros",),
        2,
        _edit(ACTION, lambda v: v.__setitem__(slice(6), 0)),
    ),
    ("held", "g1_v30", "long_idle_tail", ("episodes.idle",), 4, lambda root, at: _both(_stop(160), root, at)),
    ("held", "g1_v30", "other_hand_inverted", ("values.sign",), 1, lambda root, at: _both(_invert(14, 20), root, at)),
    ("held", "g1_v30", "start_a_third_of_a_frame_early", ("videos.start",), 1, lambda root, at: _start(root, at, -0.3)),
    ("held", "g1", "timestamps_in_frames", ("clock.fps",), 2, lambda root, at: _clock(root, at, 30)),
    ("held", "gr1", "action_is_the_state", ("values.copy",), 2, _copy_state),
    ("held", "gr1", "state_stops_for_two_seconds", ("values.frozen",), 4, _edit(STATE, _stop(100, 140))),
]
"""(Split, dataset, name, rules, episode, function that plants it)."""


def _camera_path(root: Path, base: str, episode: int, camera: int) -> str:
    keys = {"g1": ["observation.images.cam_high"], "gr1": ["observation.images.ego_view"]}.get(base, list(CAMERAS))
    return video_file(episode, keys[camera])


def _exchange(one: Path, two: Path) -> None:
    one.rename(one.with_name("x"))
    two.rename(one)
    one.with_name("x").rename(two)


def _plant_camera_fault(fault: CameraFault, root: Path) -> None:
    for (episode, camera), change in fault.changes.items():
        path = _camera_path(root, fault.base, episode, camera)
        if change == "camera":
            _exchange(root / path, root / _camera_path(root, fault.base, episode, 1 - camera))
        elif isinstance(change, int):
            _exchange(root / path, root / _camera_path(root, fault.base, change, camera))
        else:
            remake_video(root, path, change, {"g1": 30}.get(fault.base, FPS))


def _register_tables() -> None:
    for split, base, name, rules, episode, change in REAL_FAULTS:

        def plant_rows(root: Path, change: Callable[[Path, int], Any] = change, episode: int = episode) -> None:
            change(root, episode)

        FAULTS.append(
            Fault(f"{base}_{name}{'_held' * (split == 'held')}", base, plant_rows, rules, episode, split=split)
        )
    for camera_fault in CAMERA_FAULTS:

        def plant_images(root: Path, fault: CameraFault = camera_fault) -> None:
            _plant_camera_fault(fault, root)

        first = next(iter(camera_fault.changes))[0] if len(camera_fault.changes) < 3 else None
        fault = Fault(camera_fault.name, camera_fault.base, plant_images, camera_fault.rules, first)
        FAULTS.append(replace(fault, split=camera_fault.split))


_register_tables()


# Sound datasets


def _one_episode(root: Path) -> None:
    write_v30(root, lengths=(5,))


def _images_in_rows(root: Path) -> None:
    write_v30(root, lengths=(24, 30, 26, 28, 25), images="image")


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
    """Joints that rest at values of their own in each episode, with the flicker of an encoder's tick."""

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
    "one episode": _one_episode,
    "images in rows": _images_in_rows,
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


def plant(one: Fault, bases: dict[str, Path], folder: Path, images: Literal["rows", "sample"] = "sample") -> Report:
    """Plant a fault in a copy of its dataset, and check the copy."""
    target = folder / one.name
    shutil.copytree(bases[one.version], target)
    for path in (target, *target.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)  # real recordings may be read-only
    try:
        one.plant(target)
        return check_dataset(target, images)
    finally:
        shutil.rmtree(target)


def alarms(report: Report, known: set[str]) -> list[Finding]:
    """Errors of a report, and warnings of rules that are not in `known`."""
    return [f for f in report.findings if f.severity == "error" or (f.severity == "warning" and f.rule not in known)]


def measure(only: Sequence[str] = ()) -> dict[str, Any]:
    """Plant all faults, and check all sound datasets."""
    scores = {f"{split}_{result}": 0 for split in ("known", "held") for result in ("named", "undecided", "silent")}
    result: dict[str, Any] = scores | {"false_alarms": 0, "undecided": [], "silent": [], "sound": {}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bases = write_bases(folder)
        for one in FAULTS:
            if one.version not in bases or (only and one.name not in only):
                continue
            report = plant(one, bases, folder)
            outcome = one.result(report)
            result[f"{one.split}_{outcome}"] += 1
            if outcome != "named":
                result[outcome].append(one.name)
                print(f"{one.name}: {outcome}", *report.findings, sep="\n  ", file=sys.stderr)
        sound = {name: bases[name] for name in GENERATED}
        for title, write in SOUND.items():
            sound[title] = folder / title
            write(sound[title])
        real = os.environ.get("UNDERSTUDY_TEST_DATA")
        for path in sorted(Path(real).iterdir()) if real else ():
            if (path / "meta/info.json").exists():
                sound[path.name] = path
        for title, path in sound.items():
            found_alarms = alarms(check_dataset(path), KNOWN.get(title, set()))
            result["sound"][title] = len(found_alarms)
            result["false_alarms"] += len(found_alarms)
            if found_alarms:
                print(f"{title}: false alarms", *found_alarms, sep="\n  ", file=sys.stderr)
    return result


def main(arguments: list[str] | None = None) -> None:
    """Print how many faults are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", nargs="+", default=[], help="names of faults")
    args = parser.parse_args(arguments)
    result = measure(args.only)
    if args.json:
        print(json.dumps(result))
        return
    for split, title in (("known", "planted"), ("held", "held")):
        named, undecided, silent = (result[f"{split}_{outcome}"] for outcome in ("named", "undecided", "silent"))
        print(f"{named} of {named + undecided + silent} {title} faults named, {undecided} undecided, {silent} silent")
    print(f"{result['false_alarms']} false alarms on {len(result['sound'])} sound datasets")


if __name__ == "__main__":
    main()
