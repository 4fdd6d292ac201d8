"""Write the datasets of the wheel: `python generate.py [FOLDER]`. Needs pyarrow and PyAV; the wheel
needs neither.
"""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy_conformance.sets import FEATURES, SETS, SIDE, TASKS, V20, DemoSet, paint, values

PACKAGE = Path(__file__).parent / "src/understudy_conformance/datasets"
INDEX = ("frame_index", "episode_index", "index", "task_index")
DATA_FILE = 3  # episodes in a data file


def encode_video(path: Path, images: list[np.ndarray], fps: int) -> None:
    """H.264 with B-frames and a key frame every 8 frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"g": "8", "bf": "2", "crf": "16", "sc_threshold": "0", "threads": "1"}
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.width = stream.height = SIDE
        stream.pix_fmt = "yuv420p"
        for image in images:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))


def encode_png(image: np.ndarray) -> bytes:
    """One frame through FFmpeg's PNG encoder."""
    encoder = av.CodecContext.create("png", "w")
    encoder.width = SIDE
    encoder.height = SIDE
    encoder.pix_fmt = "rgb24"
    encoder.time_base = 1
    frame = av.VideoFrame.from_ndarray(image, format="rgb24")
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])


def feature_table(demo: DemoSet) -> dict[str, Any]:
    """`features` of info.json."""
    features: dict[str, Any] = {
        key: {"dtype": d, "shape": list(s), "names": None} for key, (d, s) in FEATURES.items()
    }
    for key in demo.cameras:
        kind = (
            {"dtype": "image"}
            if key in demo.images
            else {"dtype": "video", "info": video_info(demo)}
        )
        features[key] = {"shape": [SIDE, SIDE, 3], "names": ["height", "width", "channels"], **kind}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    return features | {key: {"dtype": "int64", "shape": [1], "names": None} for key in INDEX}


def video_info(demo: DemoSet) -> dict[str, Any]:
    """`info` of a video feature."""
    return {
        "video.height": SIDE,
        "video.width": SIDE,
        "video.codec": "h264",
        "video.pix_fmt": "yuv420p",
        "video.is_depth_map": False,
        "video.fps": demo.fps,
        "video.channels": 3,
        "has_audio": False,
    }


def episode_table(demo: DemoSet, episode: int) -> pa.Table:
    """Rows of an episode."""
    frames = range(demo.lengths[episode])
    columns: dict[str, Any] = {}
    for key, (dtype, shape) in FEATURES.items():
        rows = [values(episode, frame)[key].tolist() for frame in frames]
        kind = pa.from_numpy_dtype(np.dtype(dtype))
        columns[key] = (
            pa.array([r[0] for r in rows], kind)
            if shape == (1,)
            else pa.array(rows, pa.list_(kind))
        )
    for key in demo.images:
        camera = demo.cameras.index(key)
        cells = [
            {"bytes": encode_png(paint(camera, episode, frame)), "path": f"frame-{frame:06d}.png"}
            for frame in frames
        ]
        columns[key] = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    first = sum(demo.lengths[:episode])
    columns["timestamp"] = pa.array(
        [demo.timestamp(episode, frame) for frame in frames], pa.float32()
    )
    columns["frame_index"] = pa.array(frames, pa.int64())
    columns["episode_index"] = pa.array([episode] * len(frames), pa.int64())
    columns["index"] = pa.array([first + frame for frame in frames], pa.int64())
    columns["task_index"] = pa.array(
        [demo.task_index(episode, frame) for frame in frames], pa.int64()
    )
    return pa.table(columns)


def statistics(demo: DemoSet, episodes: range) -> dict[str, Any]:
    """Minimum, maximum, mean, std and count in float64, of images in 0..1 by channel."""
    frames = [(episode, frame) for episode in episodes for frame in range(demo.lengths[episode])]
    out = {}
    for key in FEATURES:
        rows = np.array([values(*place)[key] for place in frames], np.float64)
        out[key] = describe(rows, 0, len(frames))
    for camera, key in enumerate(demo.cameras):
        images = np.array([paint(camera, *place) for place in frames]) / 255
        shaped = {
            name: np.reshape(value, (3, 1, 1)).tolist()
            for name, value in moments(images, (0, 1, 2)).items()
        }
        out[key] = shaped | {"count": [len(frames)]}
    return out


def moments(rows: np.ndarray, axis: Any) -> dict[str, np.ndarray]:
    return {
        "min": rows.min(axis),
        "max": rows.max(axis),
        "mean": rows.mean(axis),
        "std": rows.std(axis),
    }


def describe(rows: np.ndarray, axis: Any, count: int) -> dict[str, Any]:
    return {name: value.tolist() for name, value in moments(rows, axis).items()} | {
        "count": [count]
    }


def write_parquet(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def write_lines(path: Path, entries: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")


def episode_tasks(demo: DemoSet, episode: int) -> list[str]:
    indices = {demo.task_index(episode, frame) for frame in range(demo.lengths[episode])}
    return [TASKS[index] for index in sorted(indices)]


def write_v2(root: Path, demo: DemoSet, info: dict[str, Any]) -> None:
    """One data file and one video per episode."""
    info |= {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/"
        "episode_{episode_index:06d}.mp4",
        "total_chunks": 1,
        "total_videos": len(demo.lengths) * (len(demo.cameras) - len(demo.images)),
    }
    for episode, length in enumerate(demo.lengths):
        names = {"episode_chunk": 0, "episode_index": episode}
        write_parquet(root / info["data_path"].format(**names), episode_table(demo, episode))
        for camera, key in enumerate(demo.cameras):
            if key not in demo.images:
                images = [paint(camera, episode, frame) for frame in range(length)]
                encode_video(
                    root / info["video_path"].format(video_key=key, **names), images, demo.fps
                )
    ids = range(len(demo.lengths))
    episodes = [
        {"episode_index": e, "tasks": episode_tasks(demo, e), "length": demo.lengths[e]}
        for e in ids
    ]
    write_lines(root / "meta/episodes.jsonl", episodes)
    write_lines(
        root / "meta/tasks.jsonl", [{"task_index": i, "task": task} for i, task in enumerate(TASKS)]
    )
    if demo is V20:
        (root / "meta/stats.json").write_text(json.dumps(statistics(demo, ids)))
    else:
        records = [{"episode_index": e, "stats": statistics(demo, range(e, e + 1))} for e in ids]
        write_lines(root / "meta/episodes_stats.jsonl", records)


def write_v3(root: Path, demo: DemoSet, info: dict[str, Any]) -> None:
    """Several episodes in a data file and in a video file."""
    info |= {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
    }
    ids = range(len(demo.lengths))
    rows: list[dict[str, Any]] = []
    for episode in ids:
        first = sum(demo.lengths[:episode])
        row = {
            "episode_index": episode,
            "tasks": episode_tasks(demo, episode),
            "length": demo.lengths[episode],
        }
        row |= {"data/chunk_index": 0, "data/file_index": episode // DATA_FILE}
        row |= {"dataset_from_index": first, "dataset_to_index": first + demo.lengths[episode]}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        for key, recorded in statistics(demo, range(episode, episode + 1)).items():
            row |= {f"stats/{key}/{name}": value for name, value in recorded.items()}
        rows.append(row)
    for begin in range(0, len(ids), DATA_FILE):
        path = info["data_path"].format(chunk_index=0, file_index=begin // DATA_FILE)
        tables = [episode_table(demo, episode) for episode in ids[begin : begin + DATA_FILE]]
        write_parquet(root / path, pa.concat_tables(tables))
    for camera, key in enumerate(demo.cameras):
        for file, begin in enumerate(range(0, len(ids), demo.packed[camera])):
            images: list[np.ndarray] = []
            for episode in ids[begin : begin + demo.packed[camera]]:
                start = len(images) / demo.fps
                images += [paint(camera, episode, frame) for frame in range(demo.lengths[episode])]
                rows[episode] |= {f"videos/{key}/chunk_index": 0, f"videos/{key}/file_index": file}
                rows[episode] |= {f"videos/{key}/from_timestamp": start}
                rows[episode] |= {f"videos/{key}/to_timestamp": len(images) / demo.fps}
            path = info["video_path"].format(video_key=key, chunk_index=0, file_index=file)
            encode_video(root / path, images, demo.fps)
    write_parquet(root / "meta/episodes/chunk-000/file-000.parquet", pa.Table.from_pylist(rows))
    (root / "meta/stats.json").write_text(json.dumps(statistics(demo, ids)))
    tasks = pa.table({"task_index": pa.array(range(len(TASKS)), pa.int64()), "task": list(TASKS)})
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
    write_parquet(
        root / "meta/tasks.parquet", tasks.replace_schema_metadata({"pandas": json.dumps(pandas)})
    )


def write_set(root: Path, demo: DemoSet) -> None:
    """Write the files of a set."""
    (root / "meta").mkdir(parents=True)
    info: dict[str, Any] = {
        "codebase_version": demo.version,
        "robot_type": "formula",
        "total_episodes": len(demo.lengths),
        "total_frames": sum(demo.lengths),
        "total_tasks": len(TASKS),
        "chunks_size": 1000,
        "fps": demo.fps,
        "splits": {"train": f"0:{len(demo.lengths)}"},
        "features": feature_table(demo),
    }
    (write_v3 if demo.version == "v3.0" else write_v2)(root, demo, info)
    (root / "meta/info.json").write_text(json.dumps(info, indent=1))


def pack(root: Path, path: Path) -> None:
    """Zip a folder, with constant times."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file():
                archive.writestr(
                    zipfile.ZipInfo(str(file.relative_to(root))),
                    file.read_bytes(),
                    zipfile.ZIP_DEFLATED,
                )


if __name__ == "__main__":
    import tempfile

    target = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    with tempfile.TemporaryDirectory() as temporary:
        for demo in SETS:
            write_set(Path(temporary) / demo.name, demo)
            pack(Path(temporary) / demo.name, target / f"{demo.name}.zip")
            print(target / f"{demo.name}.zip", (target / f"{demo.name}.zip").stat().st_size)
