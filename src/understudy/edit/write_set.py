"""Write a plan as a LeRobot v3.0 dataset: rows, videos, episode table, tasks and statistics.

Statistics are computed from the written rows and images, by the rules of `data.write.EpisodeWriter`: an edited
recording has the figures of a recording of the same episodes.

meta/edit.json has the origin of the dataset: command, versions, sources, and the origin of each episode. The folder
appears in one step, complete.
"""

import hashlib
import json
import pickle
import platform
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa

from understudy._version import __version__
from understudy.atomic import DRAFT_SUFFIX, BeingWritten, create_folder, is_taken, write_text
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
from understudy.edit.plan import Encoding, Plan, PlanWork, run_plan
from understudy.edit.rows import EpisodeRows, RowWriter, SourceRows, group_pieces, row_starts, undeclared_columns
from understudy.edit.videos import PARTS, CameraVideos, write_videos
from understudy.errors import DatasetError
from understudy.parts import Part, Workers, cut_parts

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
    workers: Workers,
    mark: str,
    count: Callable[[int], None] = lambda frames: None,
) -> Written:
    """Write a dataset into the folder `root`, which is empty or has files of the same call, cut by a kill.

    Args:
        plan: the dataset.
        root: the folder; its caller makes it appear in one step (`atomic.create_folder`).
        workers: processes for rows, packets and images.
        mark: text that changes with the plan and its sources.
        count: called with numbers of frames as they are done, `plan.work` in all.

    Raises:
        DatasetError: a source cannot be read.
    """
    _check_plan(plan)
    metadata = {name: metadata_array(name, values) for name, values in plan.metadata.items()}
    work = replace(plan, metadata={}, origin={})
    tasks = _list_tasks(work, workers, mark)
    features = {**plan.features, **DEFAULTS}
    statistics: Statistics = {
        key: ImageStatistics(feature.channels or 3) if feature.is_encoded else RunningStatistics(feature.shape)
        for key, feature in features.items()
        if not feature.is_text
    }
    tables, clocks = _write_rows(work, root, tasks, statistics, workers, mark, count)
    videos = {}
    for key in plan.cameras:
        part = statistics[key]
        assert isinstance(part, ImageStatistics)
        videos[key] = write_videos(work, key, root, workers, mark, part, VIDEO_MB, count)
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
    shutil.rmtree(root / PARTS, ignore_errors=True)
    for draft in root.rglob(f"*{DRAFT_SUFFIX}"):
        draft.unlink()  # of a killed process
    undeclared = sorted({name for source in plan.sources for name in undeclared_columns(source)})
    return Written(len(plan.pieces), plan.frames, len(tasks), clocks, undeclared, videos)


def _check_plan(plan: Plan) -> None:
    """Refuse a plan without episodes, or with features that are not written."""
    unwritten = {key: "depth" for key, feature in plan.features.items() if feature.is_depth}
    unwritten |= {key: "a sensor" for source in plan.sources for key in source.sensors}
    for key, kind in unwritten.items():
        fix = f"write a dataset without it first: understudy edit SRC OUT --drop-features {key}"
        raise DatasetError(f"{key!r} is {kind}, which is not written", where=plan.sources[0].root, fix=fix)
    if not plan.pieces:
        raise DatasetError("the output would hold no episode", fix="keep at least one")


class ReadTasks(PlanWork):
    """Task texts of pieces, by their numbers."""

    def __call__(self, part: Part) -> list[list[str]]:
        """Return the texts of each piece, in order of appearance."""
        return [self._rows.tasks(self.plan.pieces[number]) for number in part]

    @cached_property
    def _rows(self) -> SourceRows:
        return SourceRows(self.plan)


@dataclass(frozen=True)
class WriteRows(PlanWork):
    """Data files written under `root`, by (number of a file, its pieces)."""

    root: Path
    tasks: Mapping[str, int]

    def __call__(self, part: Part) -> list[list[EpisodeRows]]:
        """Write files; return the episodes of each."""
        return [self.writer.write(self.root / file_path(DATA_PATH, number), group) for number, group in part]

    @cached_property
    def writer(self) -> RowWriter:
        """The writer of files."""
        return RowWriter(SourceRows(self.plan), self.tasks)


def _list_tasks(plan: Plan, workers: Workers, mark: str) -> dict[str, int]:
    """Number the task texts in use: in order of the sources and of their task lists, then new texts as they appear."""
    lengths = [piece.length for piece in plan.pieces]
    parts = cut_parts(range(len(lengths)), lengths, PART_ROWS)
    texts_of_parts = run_plan(plan, workers, ReadTasks(plan, mark), parts)
    used = dict.fromkeys(text for _, texts in texts_of_parts for piece_texts in texts for text in piece_texts)
    listed = dict.fromkeys(text for source in plan.sources for text in source.tasks if text in used)
    return {text: number for number, text in enumerate(listed | used)}


def _write_rows(
    plan: Plan,
    root: Path,
    tasks: Mapping[str, int],
    statistics: Statistics,
    workers: Workers,
    mark: str,
    count: Callable[[int], None],
) -> tuple[list[pa.Table], int]:
    """Write all data files; return the rows of meta/episodes of each, without columns of videos, and odd clocks."""
    parts: list[Part] = [((number, group),) for number, group in enumerate(group_pieces(plan, DATA_MB))]
    features = {**{key: f for key, f in plan.features.items() if not f.is_video}, **DEFAULTS}
    schema, starts = episode_schema(features).remove_metadata(), row_starts(plan)
    tables, clocks = [], 0

    def done(part: Part) -> None:
        count(sum(plan.pieces[piece].length for _, group in part for piece in group))

    for (pair,), (episodes,) in run_plan(plan, workers, WriteRows(plan, mark, root, tasks), parts, done):
        table, (number, group) = [], pair
        for piece, episode in zip(group, episodes):
            length = plan.pieces[piece].length
            row = episode_columns(piece, episode.tasks, length, starts[piece]) | episode.columns
            table.append(row | file_columns("data", number) | file_columns("meta/episodes", number))
            clocks += not episode.has_clock
            for key in features:
                part = statistics.get(key)
                if isinstance(part, RunningStatistics):
                    moments, sample = episode.numbers[key]
                    part.merge(moments, length, sample)
                elif isinstance(part, ImageStatistics):
                    part.merge(episode.images[key])
        tables.append(pa.Table.from_pylist(table, schema))
    return tables, clocks


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
VERSIONS = {
    "understudy": __version__,
    "python": platform.python_version(),
    "pyarrow": pa.__version__,
    "av": av.__version__,
}
"""Versions that an output depends on."""
PART_ROWS = 1_000_000
"""Rows of a part of the work of reading tasks."""
_ENDS = 1 << 16  # bytes at each end of a file that count for its digest


def describe_sources(plan: Plan) -> list[dict[str, Any]]:
    """Describe the sources of a plan, as far as it uses them (`describe_source`)."""
    return [
        describe_source(catalog, sorted({p.row for p in plan.pieces if p.source == number}), plan.cameras)
        for number, catalog in enumerate(plan.sources)
    ]


def write_provenance(root: Path, command: Sequence[str], plan: Plan, sources: Sequence[dict[str, Any]]) -> None:
    """Write meta/edit.json of an output; each of its episodes becomes [source, episode id, start, stop].

    Args:
        root: folder of the output.
        command: words of the command line.
        plan: the output.
        sources: their descriptions.
    """
    ids = [catalog.episodes.ids for catalog in plan.sources]
    content = {
        "format": 1,
        "command": [strip_credentials(word) for word in command],
        "versions": VERSIONS,
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
    workers: Workers | None = None,
    count: Callable[[int], None] = lambda frames: None,
) -> dict[str, Written]:
    """Write datasets into the new folder `out`: one under the name "", or several in folders of it.

    All is written to a hidden folder next to `out`, flushed and renamed. So a kill leaves either nothing at `out` or
    all of it.

    Args:
        plans: datasets by name.
        out: the folder.
        command: words of the command line, for meta/edit.json.
        workers: processes; None writes in this one. With a folder, unfinished output stays there for the next call.
        count: called with numbers of frames as they are done, the sum of `Plan.work`.

    Raises:
        DatasetError: `out` exists, another process writes it, or a source cannot be read. Nothing is left behind.
    """
    for plan in plans.values():
        check_output(out, plan.sources)
        check_files(plan)
    done: dict[str, Written] = {}
    workers = workers or Workers()
    described = {name: describe_sources(plan) for name, plan in plans.items()}
    light = {name: replace(plan, metadata={}, origin={}) for name, plan in plans.items()}
    mark = hashlib.sha256(pickle.dumps([light, described, VERSIONS])).hexdigest()
    if workers.folder is not None:
        _claim(workers.folder, mark)
    try:
        with create_folder(out, workers.folder) as draft:
            for name, plan in plans.items():
                root = draft / name if name else draft
                root.mkdir(exist_ok=True)
                done[name] = write_set(plan, root, workers, f"{mark} {name}", count)
                write_provenance(root, command, plan, described[name])
    except BeingWritten as error:
        fix = "wait for its end, or name another folder"
        raise DatasetError("another process is writing it", where=out, fix=fix) from error
    except FileExistsError as error:
        raise DatasetError("exists", where=out, fix="name a new folder; nothing is overwritten") from error
    return done


def _claim(folder: Path, mark: str) -> None:
    """Raise DatasetError unless `folder` is new, or holds parts of the output with this mark."""
    path = folder / "mark"
    if is_taken(folder) and not (path.is_file() and path.read_text() == mark):
        raise DatasetError("holds other things than parts of this output", where=folder, fix="name a new --work folder")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, mark)
