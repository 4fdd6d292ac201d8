"""Small LeRobot datasets of every version, written with bare pyarrow, PyAV and Pillow, and their
true content.

Independent of the project's own writer, so that reader and writer cannot share a mistake. Every
image encodes its identity: 16 blocks of 16x16 pixels, 15 of them a binary number (camera, episode,
frame) that survives lossy coding, and a red one.
"""

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from understudy_data.video.encode import preserve_scheduling

SIDE = 64
TASKS = ("lift the red block", "push the blue block", "wait")


@dataclass(frozen=True)
class Spec:
    """A dataset to write. Episode k (its place in `lengths`) has id `ids[k]`."""

    version: str = "v3.0"
    lengths: tuple[int, ...] = (6, 9, 4)
    ids: tuple[int, ...] = ()
    fps: float = 10
    cameras: tuple[str, ...] = ("observation.images.top",)
    codec: str = "libx264"
    gop: int = 2
    action_dim: int = 2
    state_dim: int = 3
    b_frames: int = 0
    per_data_file: int = 2
    per_video_file: int = 2  # the second camera packs one more
    files_per_chunk: int = 2
    one_row_group: bool = False
    images: tuple[str, ...] = ()
    rich: bool = False  # strings, bool, matrix, a deeper array
    fixed_lists: bool = True
    stored_double: bool = False
    omit: tuple[str, ...] = ()
    extra: bool = False  # columns missing in info.json
    tasks_spelling: str = "index"  # "index", "unnamed", "plain"
    nan_row: bool = False
    foreign: bool = True
    late_timestamps: bool = False
    drift_s: float = 0.0  # added to from_timestamp per episode in a packed file
    chunks_size: int = 2
    reverse_meta: bool = False
    reverse_videos: bool = False  # the last episode of a packed video comes first in it
    recorded_as: bool = False  # DROID's two text columns in the episode metadata

    @property
    def episode_ids(self) -> tuple[int, ...]:
        return self.ids or tuple(range(len(self.lengths)))

    @property
    def is_v3(self) -> bool:
        return self.version >= "v3"


@dataclass
class Truth:
    """The true content: per episode id, key -> array (length, ...) or list, and the task of each
    frame.
    """

    spec: Spec
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[int, list[str]] = field(default_factory=dict)

    @property
    def frames(self) -> list[tuple[int, int]]:
        """(episode id, frame) in storage order."""
        frames: list[tuple[int, int]] = []
        for episode in sorted(self.rows):
            frames += [(episode, frame) for frame in range(len(self.tasks[episode]))]
        return frames


def picture(camera: int, episode: int, frame: int) -> np.ndarray:
    """uint8 (64, 64, 3) image that encodes its identity; camera < 4, episode < 32, frame < 256."""
    number = camera << 13 | episode << 8 | frame
    out = np.empty((SIDE, SIDE, 3), np.uint8)
    for block in range(15):
        y, x = divmod(block, 4)
        out[16 * y : 16 * y + 16, 16 * x : 16 * x + 16] = 220 if number >> block & 1 else 35
    out[48:, 48:] = (200, 30, 30)
    return out


def identity(pixels: np.ndarray) -> tuple[int, int, int]:
    """(camera, episode, frame) of an image uint8 (3, 64, 64). Fails on any other image."""
    assert (pixels.shape, pixels.dtype) == ((3, SIDE, SIDE), np.uint8)
    blocks = pixels.reshape(3, 4, 16, 4, 16).mean((2, 4)).transpose(1, 2, 0).reshape(16, 3)
    red = blocks[15]
    assert (abs(red - (200, 30, 30)) < 60).all(), f"the color mark is {red}"
    bits = blocks[:15, 1]
    assert (np.minimum(abs(bits - 220), abs(bits - 35)) < 50).all(), bits
    number = int(((bits > 128) << np.arange(15)).sum())
    return number >> 13, number >> 8 & 31, number & 255


def write_dataset(root: Path, spec: Spec) -> Truth:
    """Write a dataset under `root` and return its true content."""
    truth = _truth(spec)
    tables = {e: _table(spec, truth, k, e) for k, e in enumerate(spec.episode_ids)}
    features = _features(spec)
    (root / "meta").mkdir(parents=True)
    info: dict[str, Any] = {
        "codebase_version": spec.version,
        "robot_type": "test_arm",
        "fps": spec.fps,
        "total_episodes": len(spec.lengths),
        "total_frames": sum(spec.lengths),
        "total_tasks": len(TASKS),
        "chunks_size": spec.chunks_size,
        "splits": {"train": f"0:{len(spec.lengths)}"},
        "features": features,
    }
    _write_v3(root, spec, truth, tables, info) if spec.is_v3 else _write_v2(
        root, spec, truth, tables, info
    )
    (root / "meta/info.json").write_text(json.dumps(info, indent=2))
    if spec.foreign:
        for name in ("data/.cache", "videos/.thumbnails", "meta/episodes/backup", "notes"):
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name / "file-000.parquet").write_bytes(b"not parquet")
        (root / "data/README.txt").write_text("not data")
    return truth


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a JSON file in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_column(
    path: Path, name: str, change: Callable[[np.ndarray], Any], kind: pa.DataType | None = None
) -> None:
    """Change the values of a column of a parquet file, which keeps its type without another
    `kind`.
    """
    table = pq.read_table(path)
    values = pa.array(list(change(table[name].to_numpy())), kind or table.schema.field(name).type)
    pq.write_table(table.set_column(table.column_names.index(name), name, values), path)


def edit_times(root: Path, change: Callable[[int, np.ndarray], np.ndarray]) -> None:
    """Change the timestamps of a v2.1 dataset by episode."""
    for path in (root / "data").rglob("episode_*.parquet"):
        number = int(path.stem.removeprefix("episode_"))
        edit_column(path, "timestamp", lambda times, number=number: change(number, times))


def expected(
    truth: Truth, episode: int, frame: int, offsets: dict[str, Sequence[int]]
) -> dict[str, Any]:
    """The expected sample at a frame, one value at a time: key -> array, list, str, or identities
    of images.
    """
    values = truth.rows[episode]
    out = {}
    last = len(truth.tasks[episode]) - 1
    for key, column in values.items():
        if key not in offsets:
            out[key] = column[frame]
            continue
        wanted = [frame + o for o in offsets[key]]
        picked = [column[min(max(w, 0), last)] for w in wanted]
        out[key] = picked if isinstance(column, list) else np.stack(picked)
        out[f"{key}_is_pad"] = np.asarray([not 0 <= w <= last for w in wanted])
    out["task"] = truth.tasks[episode][frame]
    return out


def _truth(spec: Spec) -> Truth:
    truth = Truth(spec)
    index = 0
    for k, (episode, length) in enumerate(zip(spec.episode_ids, spec.lengths)):
        rng = np.random.default_rng([7, k])
        n = np.arange(length)
        state = rng.normal(size=(length, spec.state_dim)).astype(np.float32)
        state[:, 2:3] = 1.0  # a constant dimension
        if spec.nan_row and length:
            state[-1, 0] = np.nan
        task = (n >= length // 2).astype(np.int64) if k % 2 else np.full(length, k % 3, np.int64)
        late = 1 if spec.late_timestamps else 0
        rows: dict[str, Any] = {
            "observation.state": state,
            "action": rng.normal(size=(length, spec.action_dim)).astype(np.float32),
            "next.reward": rng.normal(size=length).astype(np.float32),
            "timestamp": ((n + late) / spec.fps).astype(np.float32),
            "frame_index": n,
            "episode_index": np.full(length, episode),
            "index": index + n,
            "task_index": task,
        }
        if spec.rich:
            rows["next.done"] = n == length - 1
            rows["note"] = [f"episode {episode}, frame {i} é" for i in range(length)]
            rows["matrix"] = rng.normal(size=(length, 2, 3)).astype(np.float32)
            rows["deep"] = rng.integers(0, 99, size=(length, 2, 1, 2))
        for c, key in enumerate((*spec.cameras, *spec.images)):
            rows[key] = np.asarray([(c, k, i) for i in range(length)]).reshape(length, 3)
        truth.rows[episode] = rows
        truth.tasks[episode] = [TASKS[t] for t in task]
        index += length
    return truth


def _features(spec: Spec) -> dict[str, Any]:
    features: dict[str, Any] = {
        "observation.state": {
            "dtype": "float32",
            "shape": [spec.state_dim],
            "names": list("abcdefgh"[: spec.state_dim]),
        },
        "action": {"dtype": "float32", "shape": [spec.action_dim], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    }
    if spec.rich:
        features["next.done"] = {"dtype": "bool", "shape": [1], "names": None}
        features["note"] = {"dtype": "string", "shape": [1], "names": None}
        features["matrix"] = {"dtype": "float32", "shape": [2, 3], "names": None}
        features["deep"] = {"dtype": "int64", "shape": [2, 1, 2], "names": None}
    names = ["height", "width", "channels"]
    codec = {
        "libx264": "h264",
        "libx265": "hevc",
        "libsvtav1": "av1",
        "mpeg4": "mpeg4",
        "libvpx-vp9": "vp9",
    }[spec.codec]
    for key in spec.cameras:
        said = {"video.fps": spec.fps, "video.codec": codec, "has_audio": False}
        features[key] = {"dtype": "video", "shape": [SIDE, SIDE, 3], "names": names, "info": said}
    for key in spec.images:
        features[key] = {
            "dtype": "image",
            "shape": [3, SIDE, SIDE],
            "names": ["channels", "height", "width"],
        }
    for key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        if key not in spec.omit:
            dtype = "float32" if key == "timestamp" else "int64"
            features[key] = {"dtype": dtype, "shape": [1], "names": None}
    return features


def _table(spec: Spec, truth: Truth, k: int, episode: int) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for key, values in truth.rows[episode].items():
        if key in spec.cameras or key in spec.omit:
            continue
        if key in spec.images:
            png = [_png(picture(*who)) for who in values.tolist()]
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            columns[key] = pa.array(
                [{"bytes": data, "path": f"frame-{i}.png"} for i, data in enumerate(png)], kind
            )
        elif isinstance(values, list):
            columns[key] = pa.array(values, pa.string())
        else:
            columns[key] = _lists(spec, values)
    if spec.extra:
        columns["battery"] = pa.array(np.arange(len(truth.tasks[episode])) + 0.5)
        columns["operator"] = pa.array([f"person {k}"] * len(truth.tasks[episode]), pa.string())
    return pa.table(columns)


def _lists(spec: Spec, values: np.ndarray) -> pa.Array:
    if spec.stored_double and values.dtype == np.float32:
        values = values.astype(np.float64)
    array = pa.array(values.reshape(-1))
    if values.shape[1:] == (1,):  # as LeRobot stores them
        return array
    for depth in range(values.ndim - 1, 0, -1):
        size = values.shape[depth]
        count = int(np.prod(values.shape[:depth]))
        if spec.fixed_lists:
            array = pa.FixedSizeListArray.from_arrays(array, size)
        else:
            array = pa.ListArray.from_arrays(
                pa.array(np.arange(count + 1) * size, pa.int32()), array
            )
    return array


def _png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_parquet(path: Path, tables: Sequence[pa.Table], one_row_group: bool = False) -> None:
    """Write one row group per table, or one for all. Page checksums let a reader detect a flipped
    byte.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    groups = [pa.concat_tables(tables)] if one_row_group else tables
    with pq.ParquetWriter(path, tables[0].schema, write_page_checksum=True) as writer:
        for table in groups:
            writer.write_table(table)


def write_video(path: Path, pictures: Sequence[np.ndarray], spec: Spec) -> None:
    """All images as one stream. Equal ones are encoded once in a process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = hashlib.sha256(b"".join(image.tobytes() for image in pictures)).digest()
    key = (images, path.suffix, spec.codec, spec.gop, spec.b_frames, spec.fps)
    if key in _ENCODED:
        path.write_bytes(_ENCODED[key])
        return
    _encode(path, pictures, spec)
    if path.stat().st_size < _SMALL:
        _ENCODED[key] = path.read_bytes()


_SMALL = 1 << 18
"""Bytes of a file that is kept."""
_ENCODED: dict[tuple[Any, ...], bytes] = {}


def _encode(path: Path, pictures: Sequence[np.ndarray], spec: Spec) -> None:
    crf = "30" if spec.codec == "libsvtav1" else "20"
    options = {"g": str(spec.gop), "crf": crf}
    if spec.codec == "libsvtav1":
        os.environ.setdefault("SVT_LOG", "1")
        # faster ones lose whole blocks of small images
        options |= {"preset": "9", "svtav1-params": "lp=1"}
    elif spec.codec == "libx265":
        options |= {
            "preset": "ultrafast",
            "x265-params": f"log-level=error:pools=none:ctu=32:bframes={spec.b_frames}"
            f":keyint={spec.gop}",
        }
    elif spec.codec == "mpeg4":
        options = {"g": str(spec.gop), "qscale": "2"}
    else:
        options |= {
            "preset": "ultrafast",
            "bf": str(spec.b_frames),
            "threads": "1",
            "sc_threshold": "0",
        }
    with av.open(str(path), "w") as container:
        stream = container.add_stream(
            spec.codec, rate=Fraction(spec.fps).limit_denominator(1001), options=options
        )
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        with preserve_scheduling():
            container.start_encoding()
        for pixels in pictures:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))


def episode_pictures(spec: Spec, camera: int, k: int) -> list[np.ndarray]:
    return [picture(camera, k, frame) for frame in range(spec.lengths[k])]


def _stats(tables: Sequence[pa.Table]) -> dict[str, Any]:
    stats: dict[str, Any] = {}
    tables = [table for table in tables if len(table)]
    if not tables:
        return stats
    for key in ("observation.state", "action", "next.reward"):
        values = np.concatenate(
            [np.asarray(t[key].to_pylist(), np.float64).reshape(len(t), -1) for t in tables]
        )
        ways = {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
        }
        stats[key] = {name: way.tolist() for name, way in ways.items()} | {"count": [len(values)]}
    return stats


def _task_list(truth: Truth, episode: int) -> list[str]:
    return sorted(set(truth.tasks[episode]))


def _recorded_as(spec: Spec, k: int) -> dict[str, str]:
    return (
        {"recording_folderpath": f"gs://lab/day-{k}", "file_path": f"/data/run-{k}.h5"}
        if spec.recorded_as
        else {}
    )


def _write_v2(
    root: Path, spec: Spec, truth: Truth, tables: dict[int, pa.Table], info: dict[str, Any]
) -> None:
    data = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    video = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    video_path = video if spec.cameras else None
    info |= {"data_path": data, "video_path": video_path}
    info["total_chunks"] = len({e // spec.chunks_size for e in spec.episode_ids})
    info["total_videos"] = len(spec.cameras) * len(spec.lengths)
    for k, episode in enumerate(spec.episode_ids):
        names = {"episode_chunk": episode // spec.chunks_size, "episode_index": episode}
        write_parquet(root / data.format(**names), [tables[episode]])
        for c, key in enumerate(spec.cameras):
            if spec.lengths[k]:
                write_video(
                    root / video.format(video_key=key, **names), episode_pictures(spec, c, k), spec
                )
    episodes = [
        {"episode_index": e, "tasks": _task_list(truth, e), "length": n, **_recorded_as(spec, k)}
        for k, (e, n) in enumerate(zip(spec.episode_ids, spec.lengths))
    ]
    if spec.reverse_meta:
        episodes.reverse()
    _write_lines(root / "meta/episodes.jsonl", episodes)
    _write_lines(
        root / "meta/tasks.jsonl", [{"task_index": i, "task": t} for i, t in enumerate(TASKS)]
    )
    if spec.version == "v2.0":
        (root / "meta/stats.json").write_text(json.dumps(_stats(list(tables.values()))))
    else:
        records = [{"episode_index": e, "stats": _stats([tables[e]])} for e in spec.episode_ids]
        _write_lines(root / "meta/episodes_stats.jsonl", records)


def _write_v3(
    root: Path, spec: Spec, truth: Truth, tables: dict[int, pa.Table], info: dict[str, Any]
) -> None:
    data = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    video = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    video_path = video if spec.cameras else None
    info |= {"data_path": data, "video_path": video_path}
    ids = spec.episode_ids
    lengths = spec.lengths
    meta: list[dict[str, Any]] = [
        {"episode_index": e, "tasks": _task_list(truth, e), "length": n, **_recorded_as(spec, k)}
        for k, (e, n) in enumerate(zip(ids, lengths))
    ]
    for k, row in enumerate(meta):
        start = sum(lengths[:k])
        chunk, file = divmod(k // spec.per_data_file, spec.files_per_chunk)
        row |= {"data/chunk_index": chunk, "data/file_index": file}
        row |= {"dataset_from_index": start, "dataset_to_index": start + lengths[k]}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        recorded = _stats([tables[ids[k]]])
        row["stats/action/mean"] = (
            recorded["action"]["mean"] if recorded else [0.0] * spec.action_dim
        )
    for first in range(0, len(ids), spec.per_data_file):
        at = meta[first]
        path = root / data.format(
            chunk_index=at["data/chunk_index"], file_index=at["data/file_index"]
        )
        write_parquet(
            path, [tables[e] for e in ids[first : first + spec.per_data_file]], spec.one_row_group
        )
    for c, key in enumerate(spec.cameras):
        each = spec.per_video_file + c
        for n, first in enumerate(range(0, len(ids), each)):
            chunk, file = divmod(n, spec.files_per_chunk)
            members = range(first, min(first + each, len(ids)))
            if spec.reverse_videos:
                members = members[::-1]
            pictures: list[np.ndarray] = []
            for k in members:
                pictures += episode_pictures(spec, c, k)
            if pictures:
                write_video(
                    root / video.format(video_key=key, chunk_index=chunk, file_index=file),
                    pictures,
                    spec,
                )
            at = 0.0
            for place, k in enumerate(members):
                start = at + spec.drift_s * place
                at += lengths[k] / spec.fps
                meta[k] |= {f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": file}
                meta[k] |= {f"videos/{key}/from_timestamp": start, f"videos/{key}/to_timestamp": at}
    half = (len(meta) + 1) // 2
    parts = [meta[:half], meta[half:]]
    if spec.reverse_meta:
        parts = [part[::-1] for part in parts[::-1]]
    for n, part in enumerate(part for part in parts if part):
        write_parquet(
            root / f"meta/episodes/chunk-000/file-{n:03d}.parquet", [pa.Table.from_pylist(part)]
        )
    (root / "meta/stats.json").write_text(json.dumps(_stats(list(tables.values()))))
    tasks = pa.table({"task_index": pa.array(range(len(TASKS)), pa.int64()), "task": list(TASKS)})
    if spec.tasks_spelling == "unnamed":
        tasks = tasks.rename_columns(["task_index", "__index_level_0__"])
    elif spec.tasks_spelling == "plain":
        tasks = tasks.select(["task", "task_index"]).take([2, 0, 1])
    else:
        kinds = (("task_index", "int64", "int64"), ("task", "unicode", "object"))
        columns = [
            {
                "name": name,
                "field_name": name,
                "pandas_type": kind,
                "numpy_type": stored,
                "metadata": None,
            }
            for name, kind, stored in kinds
        ]
        pandas = {"index_columns": ["task"], "columns": columns, "column_indexes": []}
        tasks = tasks.replace_schema_metadata({"pandas": json.dumps(pandas)})
    pq.write_table(tasks, root / "meta/tasks.parquet")


def _write_lines(path: Path, entries: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def rate_episodes(root: Path, **columns: Sequence[Any]) -> None:
    """Add columns of values per episode to the metadata of a v3.0 dataset."""
    for file in sorted((root / "meta/episodes").glob("chunk-*/*.parquet")):
        table = pq.read_table(file)
        ids = table["episode_index"].to_pylist()
        for name, values in columns.items():
            table = table.append_column(name, pa.array([values[episode] for episode in ids]))
        pq.write_table(table, file)


def replace_files(root: Path, pattern: str, age: float) -> None:
    """Put other files in the place of those that match, each with a time of `age` seconds before
    now.
    """
    for path in sorted(root.glob(pattern)):
        new = path.with_name("new")
        shutil.copy(path, new)
        if path.suffix == ".parquet":
            edit_column(new, "timestamp", lambda values: values + 0.01)
        os.utime(new, (time.time() - age,) * 2)
        os.replace(new, path)
