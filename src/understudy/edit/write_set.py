"""Write a plan as a LeRobot v3.0 dataset: rows, videos, episode table, tasks and statistics.

Statistics are computed from the written rows and images, by the rules of `data.write.EpisodeWriter`: an edited
recording has the figures of a recording of the same episodes.

Origin of an edited dataset, in its meta/edit.json: command, versions, sources, and the origin of each episode.

Write plans to a folder that appears in one step, complete.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import av
import numpy as np
import pyarrow as pa

from understudy._version import __version__
from understudy.atomic import BeingWritten, create_folder, is_taken
from understudy.credentials import strip_credentials
from understudy.data.format.catalog import INFO, Catalog
from understudy.data.format.features import Feature
from understudy.data.format.meta_files import read_json
from understudy.data.stats.running import NAMES, ImageStatistics, RunningStatistics
from understudy.data.write.dataset_files import (
    DATA_PATH,
    DEFAULTS,
    EPISODES_PATH,
    FILES_PER_CHUNK,
    episode_schema,
    file_path,
    info_json,
    replace_json,
    replace_parquet,
    statistic_value,
    tasks_table,
)
from understudy.edit.plan import Plan
from understudy.edit.rows import EpisodeRows, RowWriter, SourceRows, group_pieces, measured_before, nested_types
from understudy.edit.videos import CameraVideos, Quality, write_videos
from understudy.errors import DatasetError

DATA_MB, VIDEO_MB = 100.0, 200.0
"""Sizes at which a data file and a video file are closed."""


@dataclass
class Written:
    """Counts of a written dataset.

    Attributes:
        episodes: number of episodes.
        frames: number of frames.
        tasks: number of tasks.
        clocks: episodes whose timestamps differed from frame / fps; the output has frame / fps.
        undeclared: columns of the sources that info.json does not declare, and that were left out.
        copied: camera -> episodes whose packets were copied.
        encoded: camera -> episodes that were encoded again.
        quality: camera -> measured on encoded images.
        bytes: camera -> bytes of its videos before and after the edit.
    """

    episodes: int
    frames: int
    tasks: int
    clocks: int = 0
    undeclared: list[str] = field(default_factory=list)
    copied: dict[str, int] = field(default_factory=dict)
    encoded: dict[str, int] = field(default_factory=dict)
    quality: dict[str, Quality] = field(default_factory=dict)
    bytes: dict[str, tuple[int, int]] = field(default_factory=dict)


def write_set(
    plan: Plan,
    root: Path,
    num_workers: int,
    count: Callable[[int], None] = lambda frames: None,
    data_mb: float = DATA_MB,
    video_mb: float = VIDEO_MB,
) -> Written:
    """Write a dataset into the empty folder `root`.

    Args:
        plan: the dataset.
        root: the folder; its caller makes it appear in one step (`atomic.create_folder`).
        num_workers: threads for rows, packets and images.
        count: called with numbers of frames as they are done, `plan.work` in all.
        data_mb: size at which a data file is closed.
        video_mb: size at which a video file is closed.

    Raises:
        DatasetError: a source cannot be read.
    """
    unwritten = {key: "depth" for key, feature in plan.features.items() if feature.is_depth}
    unwritten |= {key: "a sensor" for source in plan.sources for key in source.sensors}
    for key, kind in unwritten.items():
        fix = f"write a dataset without it first: understudy edit SRC OUT --drop-features {key}"
        raise DatasetError(f"{key!r} is {kind}, which is not written", where=plan.sources[0].root, fix=fix)
    if not plan.pieces:
        raise DatasetError("the output would hold no episode", fix="keep at least one")
    metadata = {name: metadata_array(name, values) for name, values in plan.metadata.items()}
    rows = SourceRows(plan)
    tasks = _list_tasks(plan, rows)
    features = {**plan.features, **DEFAULTS}
    statistics: dict[str, RunningStatistics | ImageStatistics] = {
        key: ImageStatistics(feature.channels or 3) if feature.is_encoded else RunningStatistics(feature.shape)
        for key, feature in features.items()
        if not feature.is_text
    }
    stopped = Event()

    def advance(done: int) -> None:
        if stopped.is_set():  # an interrupt waits for one batch of images, not for an episode
            raise CancelledError
        count(done)

    with ThreadPoolExecutor(num_workers) as pool:
        try:
            tables = _write_rows(plan, root, rows, tasks, statistics, pool, data_mb, advance)
            videos: dict[str, CameraVideos] = {}
            for key in plan.cameras:
                part = statistics[key]
                assert isinstance(part, ImageStatistics)
                videos[key] = write_videos(plan, key, root, pool, part, video_mb, advance)
        except BaseException:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    _write_episodes(plan, root, features, tables, videos, metadata)
    listed = tasks_table(list(tasks))
    replace_parquet(root / "meta/tasks.parquet", [listed], listed.schema)
    figures = {key: part.result() for key, part in statistics.items()}
    values = {
        key: {name: statistic_value(features[key], name, columns[name]) for name in NAMES}
        for key, columns in figures.items()
    }
    replace_json(root / "meta/stats.json", values)
    written = Written(len(plan.pieces), plan.frames, len(tasks), len(rows.clocks), rows.undeclared)
    for key, done in videos.items():
        written.encoded[key], written.copied[key] = len(done.encoded), len(plan.pieces) - len(done.encoded)
        written.quality[key], written.bytes[key] = done.quality, (done.bytes_before, done.bytes)
    info = info_json(
        _entries(plan, features, videos),
        fps=_number(plan.fps),
        robot_type=plan.robot_type,
        episodes=written.episodes,
        frames=written.frames,
        tasks=written.tasks,
        data_file_mb=data_mb,
        video_file_mb=video_mb,
    )
    replace_json(root / "meta/info.json", info)
    return written


def _list_tasks(plan: Plan, rows: SourceRows) -> dict[str, int]:
    """Number the task texts in use: in order of the sources and of their task lists, then new texts as they appear."""
    used: dict[str, None] = {}
    for piece in plan.pieces:
        for text in rows.tasks(piece):
            if not text.strip():
                source = plan.sources[piece.source]
                problem = f"episode {int(source.episodes.ids[piece.row])} has a frame with an empty task text"
                raise DatasetError(problem, where=source.root, fix="name its task: --task TEXT, or --tasks FILE")
            used[text] = None
    listed = dict.fromkeys(text for source in plan.sources for text in source.tasks if text in used)
    return {text: number for number, text in enumerate(listed | used)}


def _write_rows(
    plan: Plan,
    root: Path,
    rows: SourceRows,
    tasks: Mapping[str, int],
    statistics: Mapping[str, RunningStatistics | ImageStatistics],
    pool: ThreadPoolExecutor,
    data_mb: float,
    count: Callable[[int], None],
) -> list[pa.Table]:
    """Write all data files; return the rows of meta/episodes of each, without columns of videos."""
    measured = {key: measured_before(plan, f) for key, f in plan.features.items() if f.dtype == "image"}
    writer = RowWriter(rows, tasks, nested_types(plan), measured)
    groups = group_pieces(plan, data_mb)
    lengths = [piece.length for piece in plan.pieces]
    starts = (np.cumsum(lengths) - lengths).tolist()
    features = {**{key: f for key, f in plan.features.items() if not f.is_video}, **DEFAULTS}
    schema = episode_schema(features).remove_metadata()

    def write(number: int) -> list[EpisodeRows]:
        group = groups[number]
        path = root / file_path(DATA_PATH, number)
        episodes = writer.write(path, group, starts[group.start])
        count(sum(lengths[piece] for piece in group))
        return episodes

    tables = []
    for number, episodes in enumerate(pool.map(write, range(len(groups)))):
        chunk, file = divmod(number, FILES_PER_CHUNK)
        table = []
        for piece, episode in zip(groups[number], episodes):
            row: dict[str, Any] = {
                "episode_index": piece,
                "tasks": episode.tasks,
                "length": lengths[piece],
                "data/chunk_index": chunk,
                "data/file_index": file,
                "dataset_from_index": starts[piece],
                "dataset_to_index": starts[piece] + lengths[piece],
                "meta/episodes/chunk_index": chunk,
                "meta/episodes/file_index": file,
            }
            for key, feature in features.items():
                part = statistics.get(key)
                if isinstance(part, RunningStatistics):
                    values = episode.numbers[key].reshape(-1, *feature.shape)
                    alone = RunningStatistics(feature.shape)
                    alone.add(values)
                    part.add(values)
                    row |= _figures(feature, alone.result())
                elif isinstance(part, ImageStatistics):
                    part.merge(episode.images[key])
                    row |= _figures(feature, episode.images[key].result())
            table.append(row)
        tables.append(pa.Table.from_pylist(table, schema))
    return tables


def _figures(feature: Feature, figures: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {f"stats/{feature.key}/{name}": statistic_value(feature, name, figures[name]) for name in NAMES}


def _write_episodes(
    plan: Plan,
    root: Path,
    features: Mapping[str, Feature],
    tables: Sequence[pa.Table],
    videos: Mapping[str, CameraVideos],
    metadata: Mapping[str, pa.Array],
) -> None:
    """Write meta/episodes, one file per data file, with places and statistics of videos, and metadata."""
    schema = episode_schema(features).remove_metadata()
    first = 0
    for number, table in enumerate(tables):
        members = range(first, first + table.num_rows)
        columns = {name: table.column(name) for name in table.column_names}
        for key, done in videos.items():
            video_columns = _video_columns(plan, key, done, members)
            columns |= {name: pa.array(values, schema.field(name).type) for name, values in video_columns.items()}
        rows = pa.table({name: columns[name] for name in schema.names}, schema)
        for name, column in metadata.items():
            rows = rows.append_column(name, column.slice(first, len(members)))
        replace_parquet(root / file_path(EPISODES_PATH, number), [rows], rows.schema)
        first = members.stop


def _video_columns(plan: Plan, camera: str, done: CameraVideos, members: range) -> dict[str, list[Any]]:
    """Columns of meta/episodes about a camera's videos."""
    prefix = f"videos/{camera}"
    columns: dict[str, list[Any]] = {}
    columns[f"{prefix}/chunk_index"], columns[f"{prefix}/file_index"] = [], []
    columns[f"{prefix}/from_timestamp"], columns[f"{prefix}/to_timestamp"] = [], []
    columns |= {f"stats/{camera}/{name}": [] for name in NAMES}
    for number in members:
        chunk, file = divmod(done.file[number], FILES_PER_CHUNK)
        first, length = done.first[number], plan.pieces[number].length
        figures = {name: done.figures[name][number] for name in NAMES}
        shaped = {
            name: values_of.reshape(-1, 1, 1) if name != "count" else values_of for name, values_of in figures.items()
        }
        values: dict[str, Any] = {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}
        values |= {f"{prefix}/from_timestamp": first / plan.fps, f"{prefix}/to_timestamp": (first + length) / plan.fps}
        for name, value in (values | _figures(plan.features[camera], shaped)).items():
            columns[name].append(value)
    return columns


def metadata_array(name: str, values: Sequence[Any]) -> pa.Array:
    """Convert one metadata column to Arrow. Raises DatasetError for values of different kinds."""
    try:
        try:
            column = pa.array(list(values))
        except OverflowError:
            column = pa.array(list(values), pa.uint64())
    except OverflowError:
        fix = "give whole numbers of 64 bits, or texts"
        raise DatasetError(f"metadata {name!r} has a whole number of more than 64 bits", fix=fix) from None
    except (pa.ArrowException, ValueError, TypeError) as error:
        problem = f"metadata {name!r} has values of different kinds: {str(error).splitlines()[0]}"
        raise DatasetError(problem, fix="give all episodes numbers, all texts, or all true and false") from None
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _entries(plan: Plan, features: Mapping[str, Feature], videos: Mapping[str, CameraVideos]) -> dict[str, Any]:
    """Return the features of info.json; those of videos describe the written files."""
    entries: dict[str, Any] = {}
    for key, feature in features.items():
        entries[key] = {"dtype": feature.dtype, "shape": list(feature.shape), "names": feature.names}
        if key in videos and (index := videos[key].index) is not None:
            copied_info = {name: value for name, value in feature.info.items() if not videos[key].encoded}
            entries[key]["info"] = copied_info | {
                "video.height": index.height,
                "video.width": index.width,
                "video.codec": index.codec,
                "video.pix_fmt": videos[key].pix_fmt,
                "video.fps": _number(plan.fps),
                "video.channels": 3,
                "is_depth_map": False,
                "has_audio": False,
            }
            if videos[key].encoded:
                entries[key]["info"]["video.g"] = index.gops.median_length
    return entries


def _number(value: float) -> Any:
    """Return a whole number as an integer, as LeRobot writes rates."""
    return int(value) if float(value).is_integer() else value


PATH = "meta/edit.json"
"""File of the origin, relative to the root."""
_ENDS = 1 << 16  # bytes at each end of a file that count for its digest


def write_provenance(root: Path, command: Sequence[str], plan: Plan) -> None:
    """Write meta/edit.json of an output; each of its episodes becomes [source, episode id, start, stop].

    Args:
        root: folder of the output.
        command: words of the command line.
        plan: the output.
    """
    sources = []
    for number, catalog in enumerate(plan.sources):
        rows = sorted({piece.row for piece in plan.pieces if piece.source == number})
        sources.append(describe_source(catalog, rows, plan.cameras))
    ids = [catalog.episodes.ids for catalog in plan.sources]
    content = {
        "format": 1,
        "command": [strip_credentials(word) for word in command],
        "versions": {
            "understudy": __version__,
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "av": av.__version__,
        },
        "sources": sources,
        "episodes": [[p.source, int(ids[p.source][p.row]), p.start, p.stop] for p in plan.pieces],
    }
    replace_json(root / PATH, content)


def describe_source(catalog: Catalog, rows: Sequence[int], cameras: Sequence[str]) -> dict[str, Any]:
    """Describe a source: root, version, counts, a digest of the files in use, and its own origin if it was edited."""
    description: dict[str, Any] = {
        "root": catalog.root,
        "version": catalog.version,
        "episodes": catalog.num_episodes,
        "frames": catalog.num_frames,
        "digest": digest_files(catalog, rows, cameras),
    }
    try:
        if catalog.files.exists(PATH):
            description["edited"] = {k: v for k, v in read_json(catalog.files, PATH).items() if k != "episodes"}
    except DatasetError:
        pass  # the origin of a source is no condition for reading it
    return description


def digest_files(catalog: Catalog, rows: Sequence[int], cameras: Sequence[str]) -> str:
    """Return a digest of info.json and of the files of table rows: path, size, first and last 64 KiB of each.

    Args:
        catalog: the source.
        rows: table rows of the episodes in use.
        cameras: keys of the video cameras in use, under the output's names.
    """
    episodes = catalog.episodes
    tables = [(episodes.data, episodes.data_file)] + [(v.files, v.file) for v in map(catalog.videos, cameras)]
    paths = [table.find(catalog.files, file) for table, of in tables for file in np.unique(of[list(rows)]).tolist()]
    digest = hashlib.sha256(json.dumps(read_json(catalog.files, INFO), sort_keys=True).encode())
    for path in sorted(paths):
        source = catalog.files.source(path)
        try:
            first = source.read(0, min(source.size, _ENDS))
            last = source.read(max(0, source.size - _ENDS), min(source.size, _ENDS))
        finally:
            source.close()
        digest.update(f"{path}\0{source.size}\0".encode() + first + last)
    return digest.hexdigest()[:32]


def check_output(out: Path, catalogs: Sequence[Catalog]) -> None:
    """Raise DatasetError where the output is taken, or is a source or a folder inside one."""
    for catalog in catalogs:
        if catalog.files.is_local and out.resolve().is_relative_to(Path(catalog.root).resolve()):
            raise DatasetError("is a source, or a folder inside it", where=out, fix="a set is never edited in place")
    if is_taken(out):
        raise DatasetError("exists", where=out, fix="name a new folder; nothing is overwritten")


def check_files(plan: Plan) -> None:
    """Raise DatasetError where listings show that a data or video file of a piece is missing."""
    for number, source in enumerate(plan.sources):
        rows = {piece.row for piece in plan.pieces if piece.source == number}
        for gap in source.missing_files(plan.cameras) or []:
            if lost := sorted(rows.intersection(gap.rows.tolist())):
                ids = source.episodes.ids[lost].tolist()
                fix = "restore the files, or leave their episodes out: --exclude-episodes " + " ".join(
                    map(str, ids[:99])
                )
                raise DatasetError(gap.line, where=source.root, fix=fix)


def write_outputs(
    plans: Mapping[str, Plan],
    out: Path,
    command: Sequence[str],
    num_workers: int,
    count: Callable[[int], None] = lambda frames: None,
) -> dict[str, Written]:
    """Write datasets into the new folder `out`: one under the name "", or several in folders of it.

    All is written to a hidden folder beside `out`, flushed and renamed. So a kill leaves either nothing at `out` or all
    of it.

    Args:
        plans: datasets by name.
        out: the folder.
        command: words of the command line, for meta/edit.json.
        num_workers: threads.
        count: called with numbers of frames as they are done, the sum of `Plan.work`.

    Raises:
        DatasetError: `out` exists, another process writes it, or a source cannot be read. Nothing is left behind.
    """
    for plan in plans.values():
        check_output(out, plan.sources)
        check_files(plan)
    done: dict[str, Written] = {}
    try:
        with create_folder(out) as draft:
            for name, plan in plans.items():
                root = draft / name if name else draft
                root.mkdir(exist_ok=True)
                done[name] = write_set(plan, root, num_workers, count)
                write_provenance(root, command, plan)
    except BeingWritten as error:
        fix = "wait for its end, or name another folder"
        raise DatasetError("another process is writing it", where=out, fix=fix) from error
    except FileExistsError as error:
        raise DatasetError("exists", where=out, fix="name a new folder; nothing is overwritten") from error
    return done
