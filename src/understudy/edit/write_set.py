"""Write a plan as a LeRobot v3.0 dataset: rows, videos, episode table, tasks and statistics.

Statistics are computed from the written rows and images, by the rules of `data.write.EpisodeWriter`: an edited
recording has the figures of a recording of the same episodes.

meta/edit.json has the origin of the dataset: command, versions, sources, and the origin of each episode. The folder
appears in one step, complete.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
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
from understudy.data.format.features import DEFAULTS, Feature
from understudy.data.format.meta_files import read_json
from understudy.data.stats.running import ImageStatistics, RunningStatistics
from understudy.data.write.dataset_files import (
    DATA_PATH,
    EPISODES_PATH,
    PLAIN_VIDEO,
    episode_columns,
    episode_schema,
    file_columns,
    file_path,
    info_json,
    replace_json,
    replace_parquet,
    statistic_columns,
    stats_json,
    tasks_table,
    video_info,
)
from understudy.edit.plan import Encoding, Plan
from understudy.edit.rows import EpisodeRows, RowWriter, SourceRows, group_pieces
from understudy.edit.videos import CameraVideos, write_videos
from understudy.errors import DatasetError

Statistics = dict[str, RunningStatistics | ImageStatistics]

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
        videos: camera -> its videos.
    """

    episodes: int
    frames: int
    tasks: int
    clocks: int
    undeclared: list[str]
    videos: dict[str, CameraVideos]


def write_set(
    plan: Plan,
    root: Path,
    num_workers: int,
    count: Callable[[int], None] = lambda frames: None,
) -> Written:
    """Write a dataset into the empty folder `root`.

    Args:
        plan: the dataset.
        root: the folder; its caller makes it appear in one step (`atomic.create_folder`).
        num_workers: threads for rows, packets and images.
        count: called with numbers of frames as they are done, `plan.work` in all.

    Raises:
        DatasetError: a source cannot be read.
    """
    _check_plan(plan)
    metadata = {name: metadata_array(name, values) for name, values in plan.metadata.items()}
    rows = SourceRows(plan)
    tasks = _list_tasks(plan, rows)
    features = {**plan.features, **DEFAULTS}
    statistics: Statistics = {
        key: ImageStatistics(feature.channels or 3) if feature.is_encoded else RunningStatistics(feature.shape)
        for key, feature in features.items()
        if not feature.is_text
    }
    tables, videos = _write_files(plan, root, rows, tasks, statistics, num_workers, count)
    _write_episodes(plan, root, tables, videos, metadata)
    listed = tasks_table(list(tasks))
    replace_parquet(root / "meta/tasks.parquet", [listed], listed.schema)
    replace_json(root / "meta/stats.json", stats_json(features, statistics))
    info = info_json(
        _entries(plan, features, videos),
        fps=_number(plan.fps),
        robot_type=plan.robot_type,
        episodes=len(plan.pieces),
        frames=plan.frames,
        tasks=len(tasks),
        data_file_mb=DATA_MB,
        video_file_mb=VIDEO_MB,
    )
    replace_json(root / "meta/info.json", info)
    for path, content in plan.files.items():
        replace_json(root / path, content)
    return Written(len(plan.pieces), plan.frames, len(tasks), len(rows.clocks), rows.undeclared, videos)


def _check_plan(plan: Plan) -> None:
    """Refuse a plan without episodes, or with features that are not written."""
    unwritten = {key: "depth" for key, feature in plan.features.items() if feature.is_depth}
    unwritten |= {key: "a sensor" for source in plan.sources for key in source.sensors}
    for key, kind in unwritten.items():
        fix = f"write a dataset without it first: understudy edit SRC OUT --drop-features {key}"
        raise DatasetError(f"{key!r} is {kind}, which is not written", where=plan.sources[0].root, fix=fix)
    if not plan.pieces:
        raise DatasetError("the output would hold no episode", fix="keep at least one")


def _write_files(
    plan: Plan,
    root: Path,
    rows: SourceRows,
    tasks: Mapping[str, int],
    statistics: Statistics,
    num_workers: int,
    count: Callable[[int], None],
) -> tuple[list[pa.Table], dict[str, CameraVideos]]:
    """Write rows and videos in threads, and fill `statistics`.

    An interrupt waits for one batch of images, not for an episode.
    """
    stopped = Event()

    def advance(done: int) -> None:
        if stopped.is_set():
            raise CancelledError
        count(done)

    with ThreadPoolExecutor(num_workers) as pool:
        try:
            tables = _write_rows(plan, root, rows, tasks, statistics, pool, advance)
            videos = {}
            for key in plan.cameras:
                part = statistics[key]
                assert isinstance(part, ImageStatistics)
                videos[key] = write_videos(plan, key, root, pool, part, VIDEO_MB, advance)
        except BaseException:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return tables, videos


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
    statistics: Statistics,
    pool: ThreadPoolExecutor,
    count: Callable[[int], None],
) -> list[pa.Table]:
    """Write all data files; return the rows of meta/episodes of each, without columns of videos."""
    writer, groups = RowWriter(rows, tasks), group_pieces(plan, DATA_MB)
    features = {**{key: f for key, f in plan.features.items() if not f.is_video}, **DEFAULTS}
    schema = episode_schema(features).remove_metadata()

    def write(number: int) -> list[EpisodeRows]:
        episodes = writer.write(root / file_path(DATA_PATH, number), groups[number])
        count(sum(plan.pieces[piece].length for piece in groups[number]))
        return episodes

    tables = []
    for number, episodes in enumerate(pool.map(write, range(len(groups)))):
        table = []
        for piece, episode in zip(groups[number], episodes):
            row = episode_columns(piece, episode.tasks, plan.pieces[piece].length, writer.starts[piece])
            row |= file_columns("data", number) | file_columns("meta/episodes", number)
            for key, feature in features.items():
                part = statistics.get(key)
                if isinstance(part, RunningStatistics):
                    values = episode.numbers[key].reshape(-1, *feature.shape)
                    alone = RunningStatistics(feature.shape)
                    alone.add(values)
                    part.add(values)
                    row |= statistic_columns(feature, alone.result())
                elif isinstance(part, ImageStatistics):
                    part.merge(episode.images[key])
                    row |= statistic_columns(feature, episode.images[key].result())
            table.append(row)
        tables.append(pa.Table.from_pylist(table, schema))
    return tables


def _write_episodes(
    plan: Plan,
    root: Path,
    tables: Sequence[pa.Table],
    videos: Mapping[str, CameraVideos],
    metadata: Mapping[str, pa.Array],
) -> None:
    """Write meta/episodes, one file per data file, with places and statistics of videos, and metadata."""
    schema = episode_schema({**plan.features, **DEFAULTS}).remove_metadata()
    first = 0
    for number, table in enumerate(tables):
        columns = {name: table.column(name) for name in table.column_names}
        for key, done in videos.items():
            rows = [_video_row(plan, key, done, piece) for piece in range(first, first + table.num_rows)]
            for name in rows[0]:
                columns[name] = pa.array([row[name] for row in rows], schema.field(name).type)
        whole = pa.table({name: columns[name] for name in schema.names}, schema)
        for name, column in metadata.items():
            whole = whole.append_column(name, column.slice(first, table.num_rows))
        replace_parquet(root / file_path(EPISODES_PATH, number), [whole], whole.schema)
        first += table.num_rows


def _video_row(plan: Plan, camera: str, done: CameraVideos, piece: int) -> dict[str, Any]:
    """Columns of meta/episodes about the video of one piece."""
    first, length, prefix = done.first[piece], plan.pieces[piece].length, f"videos/{camera}"
    times = {f"{prefix}/from_timestamp": first / plan.fps, f"{prefix}/to_timestamp": (first + length) / plan.fps}
    figures = statistic_columns(plan.features[camera], done.figures[piece])
    return file_columns(prefix, done.file[piece]) | times | figures


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
            facts = (index.height, index.width, index.codec, videos[key].pix_fmt, _number(plan.fps), 3)
            copied_info = {} if videos[key].encoded else feature.info
            entries[key]["info"] = {**copied_info, **video_info(*facts), **PLAIN_VIDEO}
            if videos[key].encoded:
                settings = plan.encode.get(key, Encoding())
                entries[key]["info"]["video.g"] = settings.gop or index.gops.median_length
                entries[key]["info"] |= {} if settings.crf is None else {"video.crf": settings.crf}
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
        **plan.origin,
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
        pass  # a source can be read without its origin
    return description


def digest_files(catalog: Catalog, rows: Sequence[int], cameras: Sequence[str]) -> str:
    """Return a digest of info.json, of table rows, and of their files: path, size, first and last 64 KiB of each.

    Args:
        catalog: the source.
        rows: table rows of the episodes in use.
        cameras: keys of the video cameras in use, under the output's names.
    """
    episodes = catalog.episodes
    tables = [(episodes.data, episodes.data_file)] + [(v.files, v.file) for v in map(catalog.videos, cameras)]
    paths = [table.find(catalog.files, file) for table, of in tables for file in np.unique(of[list(rows)]).tolist()]
    digest = hashlib.sha256(json.dumps(read_json(catalog.files, INFO), sort_keys=True).encode())
    chosen = list(rows)
    for column in (episodes.ids, episodes.lengths, *(catalog.videos(camera).first for camera in cameras)):
        digest.update(column[chosen].tobytes())
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

    All is written to a hidden folder next to `out`, flushed and renamed. So a kill leaves either nothing at `out` or
    all of it.

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
