"""Facts about a dataset: contents, encoding and defects, as JSON-serialisable values.

All metadata, the rows of many episodes and the index of many video files are read; no video is decoded. Unreadable data
becomes a finding, not an error.
"""

import os
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from understudy.check.idle_frames import IdleCounter
from understudy.data.check_files import check_files, rows_without_files
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import spread_evenly
from understudy.data.format.features import INDEX_KEYS
from understudy.data.selection.motion import named_motion, numeric_keys, rate_dims
from understudy.errors import DatasetError
from understudy.report.dataset.episode_metadata import describe_metadata
from understudy.report.dataset.recorded_claims import colors, constant, contradictions
from understudy.video.reader import open_video


def examine(catalog: Catalog, limit: int) -> dict[str, Any]:
    """Collect the facts of a dataset.

    Args:
        catalog: The dataset.
        limit: Most episodes (rows), and most video files per camera, to open, spread evenly.
    """
    lengths = catalog.episodes.lengths
    wrong = list(check_files(catalog, limit))
    rows = _rows(catalog, spread_evenly(len(catalog.episodes), limit), wrong)
    videos = {key: _videos(catalog, key, limit, wrong) for key in catalog.episodes.videos}
    metadata: dict[str, Any] = {}
    with finding(wrong):
        metadata = describe_metadata(catalog)
    return {
        "root": catalog.root,
        "format": catalog.version,
        "robot": catalog.robot_type,
        "fps": catalog.fps,
        "episodes": len(catalog.episodes),
        "frames": int(lengths.sum()),
        "seconds": float(lengths.sum() / catalog.fps),
        "lengths": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "tasks": _tasks(catalog),
        "features": {
            key: {"dtype": feature.dtype, "shape": list(feature.shape), "camera": feature.is_camera}
            for key, feature in catalog.features.items()
        },
        "metadata": metadata,
        "undeclared": _undeclared(catalog, wrong),
        "rows": rows,
        "videos": videos,
        "wrong": list(dict.fromkeys(wrong)),
    }


def _undeclared(catalog: Catalog, wrong: list[str]) -> dict[str, str]:
    """Columns of a data file that info.json does not declare, with their types; they are read only by name."""
    rows = np.flatnonzero((catalog.episodes.lengths > 0) & ~rows_without_files(catalog)["data"])
    if not len(rows):
        return {}
    with finding(wrong), catalog.files.parquet(catalog.data_path(int(rows[0]))) as file:
        schema = file.schema_arrow
        known = {*catalog.features, *catalog.skipped_features, *INDEX_KEYS}
        return {field.name: str(field.type) for field in schema if field.name not in known}
    return {}


@contextmanager
def finding(wrong: list[str]) -> Iterator[None]:
    """Append errors and warnings of the block to `wrong` as lines."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        except (DatasetError, OSError, ValueError, MemoryError) as error:
            wrong.append(" ".join(str(error).split()) or type(error).__name__)
    wrong += [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)]


def _tasks(catalog: Catalog) -> list[dict[str, Any]]:
    """Tasks with their numbers of episodes."""
    counts: Counter[int] = Counter()
    for row in range(len(catalog.episodes)):
        counts.update(set(catalog.episodes.tasks_of(row).tolist()))
    return [{"task": text, "episodes": counts[index]} for index, text in enumerate(catalog.tasks)]


def _rows(catalog: Catalog, at: list[int], wrong: list[str]) -> dict[str, Any]:
    """Ranges and constant dimensions of numeric columns; findings on non-finite values and on timestamps."""
    keys = numeric_keys(catalog)
    low: dict[str, np.ndarray] = {}
    high: dict[str, np.ndarray] = {}
    bad: Counter[str] = Counter()
    late, drift, read, steps = 0.0, 0.0, 0, 0
    moving = named_motion(keys)
    idle = IdleCounter(rate_dims(catalog, moving))
    absent = rows_without_files(catalog)["data"]
    with finding(wrong):
        data = EpisodeDataset(catalog, keys=keys)
        selected = {int(episode): (int(start), int(stop)) for episode, start, stop in data.segments}
        for row in at:
            episode = int(catalog.episodes.ids[row])
            if episode not in selected or absent[row]:
                continue  # without frames or without a file, which the catalog's report names
            with finding(wrong):
                frames = np.arange(*selected[episode])
                batch = data.batch(np.full(len(frames), episode), frames)
                read += 1
                if moving and len(frames) > 1:
                    own = [batch[key].double().numpy().reshape(len(frames), -1) for key in moving]
                    idle.add(row, np.concatenate(own, axis=1))
                    steps += len(frames) - 1
                for key in keys:
                    values = np.atleast_2d(batch[key].double().numpy().reshape(len(frames), -1))
                    good = np.isfinite(values)
                    bad[key] += int((~good).any(1).sum())
                    least = np.where(good, values, np.inf).min(0)
                    most = np.where(good, values, -np.inf).max(0)
                    low[key] = np.minimum(low.get(key, least), least)
                    high[key] = np.maximum(high.get(key, most), most)
                time = batch["timestamp"].double().numpy() - frames / catalog.fps
                late = max(late, abs(float(time[0])), key=abs)
                drift = max(drift, float(np.abs(time - time[0]).max()))
    if late > 0.5 / catalog.fps:
        wrong.append(f"timestamps start up to {late:.3f} s away from 0; frames are paired by number, not by time")
    if drift > 0.5 / catalog.fps:
        wrong.append(
            f"timestamps drift up to {drift:.3f} s from frame/fps within an episode; frames are paired by number"
        )
    wrong += [f"{key}: not finite in {count} of the rows read" for key, count in bad.items() if count]
    columns: dict[str, dict[str, list[Any]]] = {
        key: {
            "min": [_plain(x) for x in low[key]],
            "max": [_plain(x) for x in high[key]],
            "constant": np.flatnonzero(low[key] == high[key]).tolist(),
        }
        for key in low
    }
    with_rows = np.array([row for row in at if catalog.episodes.lengths[row] > 0 and not absent[row]], np.int64)
    for key, feature in catalog.features.items():
        if feature.looks_like_images and len(with_rows):
            with finding(wrong):
                low[key], high[key] = colors(catalog, key, with_rows)
    for key in low:  # values read replace recorded ones
        wrong[:] = [line for line in wrong if not (line.startswith(f"{key}: ") and "are constant" in line)]
        if (line := constant(catalog, key, low[key], high[key])) and key.startswith(("action", "observation.")):
            wrong.append(line)
    wrong += contradictions(catalog, low, high)
    share = float(idle.result(len(catalog.episodes)).sum()) / steps if steps else None
    return {"episodes_read": read, "columns": columns, "starts_late": late, "drift": drift, "idle_share": share}


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _videos(catalog: Catalog, camera: str, limit: int, wrong: list[str]) -> dict[str, Any]:
    """Encoding of one camera's files."""
    videos = catalog.videos(camera)
    used = np.flatnonzero(videos.expected > 0)  # a file of episodes without frames may be missing
    opened: list[dict[str, Any]] = []
    for place in spread_evenly(len(used), limit):
        with suppress(DatasetError, OSError, ValueError):  # reported by `check_files`
            opened.append(_video(catalog, camera, int(used[place])))
    facts: dict[str, Any] = {"files": len(used), "files_read": len(opened)}
    for name in ("codec", "pixels", "width", "height", "fps", "gop", "b_frames"):
        values = [one[name] for one in opened]
        facts[name] = max(set(values), key=values.count) if values else None
        if len(set(values)) > 1:
            shown = ", ".join(f"{value} ({values.count(value)})" for value in sorted(set(values), key=str))
            if name != "gop":  # the last group of a file is often shorter
                wrong.append(f"{camera}: files differ in {name}: {shown}")
    pictures, size = sum(one["pictures"] for one in opened), sum(one["bytes"] for one in opened)
    facts |= {"pictures": pictures, "bytes": size, "bytes_per_picture": size / pictures if pictures else None}
    return facts


def _video(catalog: Catalog, camera: str, file: int) -> dict[str, Any]:
    """Encoding of one file, from its index without decoding."""
    import av

    videos = catalog.videos(camera)
    row = int(np.flatnonzero(videos.file == file)[0])
    path = catalog.files.where(catalog.video_path(camera, row))
    if not catalog.files.is_local:
        raise DatasetError("videos are examined in a local folder only", where=path, fix="copy the dataset to disk")
    reader = open_video(path)
    with av.open(path) as container:
        context = container.streams.video[0].codec_context
        # PyAV 17.1 crashes on the pixel format of a file that does not declare it; such a file has no width either.
        pixels = str(context.pix_fmt) if context.width else "None"
        b_frames = bool(context.has_b_frames)
    return {
        "codec": reader.codec,
        "pixels": pixels,
        "width": reader.width,
        "height": reader.height,
        "fps": round(float(reader.fps), 3),
        "gop": int(reader.gop),
        "b_frames": b_frames,
        "pictures": reader.count,
        "bytes": os.path.getsize(path),
    }
