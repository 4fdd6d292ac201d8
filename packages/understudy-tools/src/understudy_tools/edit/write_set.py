"""Write a plan as a LeRobot v3.0 dataset: rows, videos, episode table, tasks and statistics.

Statistics are computed from the written rows and images, by the rules of
`data.write.EpisodeWriter`: an edited recording has the figures of a recording of the same episodes.

meta/edit.json has the origin of the dataset: command, versions, sources, and the origin of each
episode. The folder appears in one step, complete.
"""

import hashlib
import json
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa

from understudy_base import (
    DRAFT_SUFFIX,
    BeingWritten,
    DatasetError,
    __version__,
    create_folder,
    is_taken,
    strip_credentials,
    write_text,
)
from understudy_data import (
    DEFAULTS,
    Catalog,
    DatasetFiles,
    DatasetStatistics,
    Encoding,
    Feature,
    Part,
    Workers,
)
from understudy_tools.bucket import Bucket
from understudy_tools.edit.carried import OF_VIDEO, carried_entries, carried_info, left_files
from understudy_tools.edit.plan import (
    Bad,
    Plan,
    PlanWork,
    gather,
    run_plan,
    write_files,
)
from understudy_tools.edit.rows import (
    EpisodeRows,
    RowWriter,
    SourceRows,
    group_pieces,
    row_starts,
    undeclared_columns,
)
from understudy_tools.edit.videos import (
    PARTS,
    CameraStreams,
    CameraVideos,
    CameraWriter,
    find_streams,
    move_videos,
    write_videos,
)

DATA_MB = 100.0
VIDEO_MB = 200.0
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
        left_out: lines about further facts and files of the sources that the output lacks.
        videos: camera -> its videos.
        plan: the written episodes.
        skipped: pieces that were left out, with the reasons.
    """

    episodes: int
    frames: int
    tasks: int
    clocks: int
    undeclared: list[str]
    videos: dict[str, CameraVideos]
    plan: Plan
    skipped: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def write_set(
    plan: Plan,
    root: Path,
    workers: Workers,
    mark: str,
    count: Callable[[int], None] = lambda frames: None,
) -> Written:
    """Write a dataset into the folder `root`, which is empty or has files of the same call, cut by
    a kill.

    Args:
        plan: the dataset.
        root: the folder; its caller makes it appear in one step (`atomic.create_folder`).
        workers: processes for rows, packets and images.
        mark: text that changes with the plan and its sources.
        count: called with numbers of frames as they are done, `plan.work` in all.

    Returns:
        Counts; of no episode where there is none but bad ones, and then no files are complete.

    Raises:
        DatasetError: a source cannot be read.
    """
    _check_plan(plan)
    work = replace(plan, metadata={}, origin={})
    lengths = [piece.length for piece in plan.pieces]
    name = f"{hashlib.sha256(mark.encode()).hexdigest()[:32]}.bad"
    bad: Bad = workers.kept(name) or {}
    read = ReadTasks(work, mark)
    parts = Workers.cut(range(len(lengths)), lengths, PART_ROWS)
    texts, failures = gather(run_plan(work, workers, read, parts))
    bad = failures | bad
    streams: dict[str, CameraStreams] = {}
    for key in plan.cameras:
        streams[key], failures = find_streams(work, key, root, workers, mark, count)
        bad = failures | bad
    while len(bad) < len(lengths):
        if bad:
            workers.keep(name, bad)  # no later call may write the files of another choice
        numbers = [number for number in range(len(lengths)) if number not in bad]
        used = dict.fromkeys(chain.from_iterable(texts[number] for number in numbers))
        choice = f"{mark} {sorted(bad)}"
        chosen = plan.without(bad)
        written, failures = _write_kept(chosen, root, workers, choice, used, streams, count)
        if not failures:
            return replace(written, skipped=describe_bad(plan, bad))
        bad |= {numbers[number]: error for number, error in failures.items()}
        count = _count_nothing
    return Written(0, 0, 0, 0, [], {}, plan, describe_bad(plan, bad))


def _count_nothing(frames: int) -> None:
    pass


def _write_kept(
    plan: Plan,
    root: Path,
    workers: Workers,
    mark: str,
    used: Iterable[str],
    streams: Mapping[str, CameraStreams],
    count: Callable[[int], None],
) -> tuple[Written, Bad]:
    """Write a dataset of pieces with known task texts and streams; return also the pieces that
    cannot be written, with which it remains incomplete.
    """
    metadata = {name: metadata_array(name, values) for name, values in plan.metadata.items()}
    work = replace(plan, metadata={}, origin={})
    tasks = _number_tasks(plan, used)
    features = {**plan.features, **DEFAULTS}
    files = DatasetFiles(root, features)
    rows = RowResults(plan, files, DatasetStatistics(features, plan.frames))
    failures = _write_rows(work, root, tasks, rows, workers, mark, count)
    written = Written(len(plan.pieces), plan.frames, len(tasks), rows.odd_clocks, [], {}, plan)
    if failures:
        return written, failures
    for key in plan.cameras:
        writer = CameraWriter(work, streams[key], root, workers, mark, count)
        if plan.bucket:
            move_videos(writer, VIDEO_MB)
        else:
            failures |= write_videos(writer, VIDEO_MB, measures=not failures)
        written.videos[key] = writer.videos
        if not failures:
            rows.statistics.add_videos(key, writer.statistics)
    if not failures:
        written = _write_meta(written, files, rows, list(tasks), metadata)
        _remove_others(root, files, written)
    return written, failures


def _write_meta(
    written: Written,
    files: DatasetFiles,
    rows: "RowResults",
    tasks: Sequence[str],
    metadata: Mapping[str, pa.Array],
) -> Written:
    """Write the files of meta/ of complete rows and videos; return the counts with what is left
    out.
    """
    plan = written.plan
    rows.write_episodes(written.videos, metadata)
    files.write_tasks(tasks)
    files.write_json("meta/stats.json", rows.statistics.json())
    carried, left_out = carried_info(plan)
    entries, left_entries = _entries(plan, {**plan.features, **DEFAULTS}, written.videos)
    files.write_info(
        entries,
        fps=_number(plan.fps),
        robot_type=plan.robot_type,
        episodes=len(plan.pieces),
        frames=plan.frames,
        tasks=len(tasks),
        data_file_mb=DATA_MB,
        video_file_mb=VIDEO_MB,
        further=carried,
    )
    for path, content in plan.files.items():
        files.write_json(path, content)
    undeclared = set[str]()
    for number in range(len(plan.sources)):
        undeclared.update(undeclared_columns(plan, number))
    left_out = [*left_out, *left_entries, *left_files(plan)]
    return replace(written, undeclared=sorted(undeclared), left_out=left_out)


def _remove_others(root: Path, files: DatasetFiles, written: Written) -> None:
    """Remove encoded pieces, drafts of a killed process, and files of a choice with more pieces."""
    shutil.rmtree(root / PARTS, ignore_errors=True)
    for draft in root.rglob(f"*{DRAFT_SUFFIX}"):
        draft.unlink()
    used = {files.data(number) for number in range(len(group_pieces(written.plan, DATA_MB)))}
    for key, videos in written.videos.items():
        used |= {files.video(key, number) for number in videos.file}
    for other in {*root.glob("data/*/*"), *root.glob("videos/*/*/*")} - used:
        other.unlink()
        with suppress(OSError):
            other.parent.rmdir()


def describe_bad(plan: Plan, bad: Bad) -> list[dict[str, Any]]:
    """Describe pieces that were left out, for meta/edit.json."""
    pieces = [(plan.pieces[number], error) for number, error in sorted(bad.items())]
    return [
        {
            "source": piece.source,
            "episode": int(plan.sources[piece.source].episodes.ids[piece.row]),
            "frames": [piece.start, piece.stop],
            "reason": str(error),
        }
        for piece, error in pieces
    ]


def _check_plan(plan: Plan) -> None:
    """Refuse a plan with features that are not written."""
    unwritten = {key: "depth" for key, feature in plan.features.items() if feature.is_depth}
    for source in plan.sources:
        unwritten |= dict.fromkeys(source.sensors, "a sensor")
    for key, kind in unwritten.items():
        fix = f"write a dataset without it first: understudy edit SRC OUT --drop-features {key}"
        raise DatasetError(
            f"{key!r} is {kind}, which is not written", where=plan.sources[0].root, fix=fix
        )


class ReadTasks(PlanWork):
    """Task texts of pieces, by their numbers."""

    def compute(self, item: int) -> list[str]:
        """Return the texts of a piece, in order of appearance."""
        return self._rows.tasks(self.plan.pieces[item])

    @cached_property
    def _rows(self) -> SourceRows:
        return SourceRows(self.plan)


@dataclass(frozen=True)
class WriteRows(PlanWork):
    """Data files written under `root`, by (number of a file, its pieces)."""

    root: Path
    tasks: Mapping[str, int]

    def compute(self, item: tuple[int, Sequence[int]]) -> list[EpisodeRows]:
        """Write a file; return its episodes."""
        episodes = self.writer.write(item[0], item[1])
        if self.plan.bucket:
            self.plan.bucket.move(self.writer.files.data(item[0]))
        return episodes

    @cached_property
    def writer(self) -> RowWriter:
        """The writer of files."""
        return RowWriter(SourceRows(self.plan), self.root, self.tasks)


def _number_tasks(plan: Plan, used: Iterable[str]) -> dict[str, int]:
    """Number the task texts in use: in order of the sources and of their task lists, then new texts
    as they appear.
    """
    used = dict.fromkeys(used)
    all_tasks = chain.from_iterable(source.tasks for source in plan.sources)
    listed = dict.fromkeys(text for text in all_tasks if text in used)
    return {
        text: number for number, text in enumerate(dict.fromkeys(plan.base.tasks) | listed | used)
    }


class RowResults:
    """Written rows: the rows of meta/episodes of each data file, and statistics.

    Args:
        plan: the output.
        files: its files.
        statistics: receives those of the rows.

    Attributes:
        statistics: of all rows that were taken.
        odd_clocks: episodes whose timestamps differed from frame / fps.
    """

    def __init__(self, plan: Plan, files: DatasetFiles, statistics: DatasetStatistics) -> None:
        self._plan = plan
        self._files = files
        self._starts = row_starts(plan)
        self._tables: list[pa.Table] = []
        self._episodes = 0
        self.statistics = statistics
        self.odd_clocks = 0

    def take(self, number: int, episodes: Sequence[EpisodeRows]) -> None:
        """Take the episodes of the next data file."""
        base = self._plan.base
        rows = []
        for episode in episodes:
            piece = self._episodes
            length = self._plan.pieces[piece].length
            rows.append(
                self._files.episode_row(
                    base.episodes + piece,
                    episode.tasks,
                    length,
                    self._starts[piece],
                    base.files + number,
                    episode.statistics,
                )
            )
            self.statistics.add(episode.statistics, length)
            self.odd_clocks += not episode.has_clock
            self._episodes += 1
        self._tables.append(self._files.episode_table(rows))

    def write_episodes(
        self, videos: Mapping[str, CameraVideos], metadata: Mapping[str, pa.Array]
    ) -> None:
        """Write meta/episodes, one file per data file, with places and statistics of videos, and
        metadata.
        """
        first = 0
        for number, table in enumerate(self._tables):
            pieces = range(first, first + table.num_rows)
            of_videos = {}
            for key, done in videos.items():
                of_videos[key] = [self._video_row(key, done, piece) for piece in pieces]
            of_metadata = {
                name: column.slice(first, table.num_rows) for name, column in metadata.items()
            }
            self._files.write_episodes(number, table, of_videos, of_metadata)
            first += table.num_rows

    def _video_row(self, camera: str, done: CameraVideos, piece: int) -> dict[str, Any]:
        return self._files.video_row(
            camera,
            self._plan.base.files + done.file[piece],
            done.first[piece],
            self._plan.pieces[piece].length,
            self._plan.fps,
            done.figures[piece],
        )


def _write_rows(
    plan: Plan,
    root: Path,
    tasks: Mapping[str, int],
    results: RowResults,
    workers: Workers,
    mark: str,
    count: Callable[[int], None],
) -> Bad:
    """Write all data files; return the pieces that cannot be written."""

    def done(part: Part) -> None:
        written_pieces = chain.from_iterable(group for _, group in part)
        count(sum(plan.pieces[piece].length for piece in written_pieces))

    files = list(enumerate(group_pieces(plan, DATA_MB)))
    work = WriteRows(plan, mark, root, tasks)
    return write_files(plan, workers, work, files, results.take, done)


def metadata_array(name: str, values: Sequence[Any]) -> pa.Array:
    """Convert one metadata column to Arrow. Raises DatasetError for values of different kinds."""
    try:
        try:
            column = pa.array(list(values))
        except OverflowError:
            column = pa.array(list(values), pa.uint64())
    except OverflowError:
        fix = "give whole numbers of 64 bits, or texts"
        raise DatasetError(
            f"metadata {name!r} has a whole number of more than 64 bits", fix=fix
        ) from None
    except (pa.ArrowException, ValueError, TypeError) as error:
        problem = f"metadata {name!r} has values of different kinds: {str(error).splitlines()[0]}"
        raise DatasetError(
            problem, fix="give all episodes numbers, all texts, or all true and false"
        ) from None
    return column.cast(pa.string()) if pa.types.is_null(column.type) else column


def _entries(
    plan: Plan, features: Mapping[str, Feature], videos: Mapping[str, CameraVideos]
) -> tuple[dict[str, Any], list[str]]:
    """Return the features of info.json, and lines about entries that are left out; videos describe
    written files.
    """
    entries: dict[str, Any] = {}
    left_out: list[str] = []
    for key, feature in features.items():
        entries[key] = {
            "dtype": feature.dtype,
            "shape": list(feature.shape),
            "names": feature.names,
        }
        further, details, lines = carried_entries(plan, key)
        entries[key] |= further
        if details:
            entries[key]["info"] = details
        left_out += lines
        if key in videos and (stream := videos[key].stream) is not None:
            video = DatasetFiles.video_facts(stream, _number(plan.fps))
            recorded = {
                n: v for n, v in feature.info.items() if n in details or n.startswith(OF_VIDEO)
            }
            copied_info = details if videos[key].encoded else recorded | details
            entries[key]["info"] = {**copied_info, **video}
            if videos[key].encoded:
                settings = plan.encode.get(key, Encoding())
                entries[key]["info"]["video.g"] = settings.gop or stream[-1]
                if settings.crf is not None:
                    entries[key]["info"]["video.crf"] = settings.crf
    return entries, left_out


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
    descriptions = []
    for number, catalog in enumerate(plan.sources):
        rows = {piece.row for piece in plan.pieces if piece.source == number}
        descriptions.append(describe_source(catalog, sorted(rows), plan.recorded_cameras))
    return descriptions


def write_provenance(
    root: Path, command: Sequence[str], written: Written, sources: Sequence[dict[str, Any]]
) -> None:
    """Write meta/edit.json of an output; each of its episodes becomes [source, episode id, start,
    stop].

    Args:
        root: folder of the output.
        command: words of the command line.
        written: the output.
        sources: their descriptions.
    """
    plan = written.plan
    ids = [catalog.episodes.ids for catalog in plan.sources]
    skipped = {"skipped": written.skipped} if written.skipped else {}
    content = {
        "format": 1,
        "command": [strip_credentials(word) for word in command],
        "versions": VERSIONS,
        "sources": sources,
        **plan.origin,
        **skipped,
        "episodes": [[p.source, int(ids[p.source][p.row]), p.start, p.stop] for p in plan.pieces],
    }
    DatasetFiles(root).write_json(PATH, content)


def describe_source(
    catalog: Catalog, rows: Sequence[int], cameras: Sequence[str]
) -> dict[str, Any]:
    """Describe a source: root, version, counts, a digest of the files in use, and its own origin if
    it was edited.
    """
    description: dict[str, Any] = {
        "root": catalog.root,
        "version": catalog.version,
        "episodes": catalog.num_episodes,
        "frames": catalog.num_frames,
        "digest": digest_files(catalog, rows, cameras),
    }
    try:
        if catalog.files.exists(PATH):
            description["edited"] = {
                k: v for k, v in catalog.read_json(PATH).items() if k != "episodes"
            }
    except DatasetError:
        pass  # a source can be read without its origin
    return description


def digest_files(catalog: Catalog, rows: Sequence[int], cameras: Sequence[str]) -> str:
    """Return a digest of info.json, of table rows, and of their files: path, size, first and last
    64 KiB of each.

    Args:
        catalog: the source.
        rows: table rows of the episodes in use.
        cameras: keys of the video cameras in use, under the output's names.
    """
    episodes = catalog.episodes
    tables = [(episodes.data, episodes.data_file)] + [
        (v.files, v.file) for v in map(catalog.videos, cameras)
    ]
    paths = []
    for table, file_of_row in tables:
        files = np.unique(file_of_row[list(rows)]).tolist()
        paths += [table.find(catalog.files, file) for file in files]
    digest = hashlib.sha256(json.dumps(catalog.read_json(Catalog.INFO), sort_keys=True).encode())
    chosen = list(rows)
    for column in (
        episodes.ids,
        episodes.lengths,
        *(catalog.videos(camera).first for camera in cameras),
    ):
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


def check_output(out: Path | Bucket, catalogs: Sequence[Catalog]) -> None:
    """Raise DatasetError where the output is taken, or is a source or a folder inside one."""
    if isinstance(out, Bucket):
        out.check()
        return
    for catalog in catalogs:
        if catalog.files.is_local and out.resolve().is_relative_to(Path(catalog.root).resolve()):
            raise DatasetError(
                "is a source, or a folder inside it",
                where=out,
                fix="a set is never edited in place",
            )
    if is_taken(out):
        raise DatasetError("exists", where=out, fix="name a new folder; nothing is overwritten")


def missing_pieces(plan: Plan) -> Bad:
    """Find pieces whose data or video file is missing by listings.

    Raises:
        DatasetError: there is one, and the plan does not skip it.
    """
    bad: Bad = {}
    for number, source in enumerate(plan.sources):
        of_row: dict[int, list[int]] = {}
        for place, piece in enumerate(plan.pieces):
            if piece.source == number:
                of_row.setdefault(piece.row, []).append(place)
        for gap in source.missing_files(plan.recorded_cameras) or []:
            if lost := sorted(of_row.keys() & set(gap.rows.tolist())):
                ids = source.episodes.ids[lost].tolist()
                fix = (
                    "restore the files, or leave their episodes out: --skip-bad, or "
                    "--exclude-episodes " + " ".join(map(str, ids[:99]))
                )
                error = DatasetError(gap.line, where=source.root, fix=fix)
                if not plan.skip_bad:
                    raise error
                for row in lost:
                    bad |= dict.fromkeys(of_row[row], error)
    return bad


def write_outputs(
    plans: Mapping[str, Plan],
    out: Path | Bucket,
    command: Sequence[str],
    workers: Workers | None = None,
    count: Callable[[int], None] = lambda frames: None,
) -> dict[str, Written]:
    """Write datasets into the new folder `out`: one under the name "", or several in folders of it.

    All is written to a hidden folder next to `out`, flushed and renamed. So a kill leaves either
    nothing at `out` or all of it. In a bucket a kill leaves files without `info.json`.

    Args:
        plans: datasets by name.
        out: the folder.
        command: words of the command line, for meta/edit.json.
        workers: processes; None writes in this one. With a folder, unfinished output stays there
            for the next call. A bucket needs one.
        count: called with numbers of frames as they are done, the sum of `Plan.work`.

    Raises:
        DatasetError: `out` exists, another process writes it, or a source cannot be read. Nothing
            is left behind.
    """
    for plan in plans.values():
        check_output(out, plan.sources)
    missing = {name: missing_pieces(plan) for name, plan in plans.items()}
    skipped = {name: describe_bad(plans[name], bad) for name, bad in missing.items()}
    plans = {name: plan.without(missing[name]) for name, plan in plans.items()}
    done: dict[str, Written] = {}
    workers = workers or Workers()
    described = {name: describe_sources(plan) for name, plan in plans.items()}
    light = {name: replace(plan, metadata={}, origin={}) for name, plan in plans.items()}
    mark = Workers.mark([light, described, VERSIONS, isinstance(out, Bucket) and str(out)])
    bucket = None
    if workers.folder is not None:
        _claim(workers.folder, mark)
        bucket = replace(out, work=workers.folder) if isinstance(out, Bucket) else None
    elif isinstance(out, Bucket):
        raise DatasetError(
            "is written from a local folder", where=str(out), fix="give one: --work FOLDER"
        )
    try:
        # The processes end before the folder of an interrupted edit is removed, in which they
        # write.
        if bucket:
            opened = bucket.create(mark)
        else:
            opened = create_folder(Path(str(out)), workers.folder)
        with opened as draft, workers:
            for name, plan in plans.items():
                target = None if plan.skip_bad else bucket
                plan = replace(plan, bucket=target)
                root = draft / name if name else draft
                root.mkdir(exist_ok=True)
                written = write_set(plan, root, workers, f"{mark} {name}", count)
                bad = sorted(
                    skipped[name] + written.skipped,
                    key=lambda entry: (entry["source"], entry["episode"]),
                )
                if not written.episodes:
                    raise _no_episode(name, bad)
                done[name] = replace(written, skipped=bad)
                used = describe_sources(written.plan) if written.skipped else described[name]
                write_provenance(root, command, done[name], used)
    except BeingWritten as error:
        fix = "wait for its end, or name another folder"
        raise DatasetError("another process is writing it", where=out, fix=fix) from error
    except FileExistsError as error:
        raise DatasetError(
            "exists", where=out, fix="name a new folder; nothing is overwritten"
        ) from error
    return done


def _no_episode(name: str, bad: Sequence[Mapping[str, Any]]) -> DatasetError:
    subject = f"the part {name!r} of split" if name else "the output"
    problem = f"{subject} would hold no episode"
    if bad:
        ids = Catalog.describe_ids(np.unique([entry["episode"] for entry in bad]))
        problem += f": those chosen are bad, {ids}; the first: {bad[0]['reason']}"
    return DatasetError(problem, fix="choose others, or repair them")


def _claim(folder: Path, mark: str) -> None:
    """Raise DatasetError unless `folder` is new, or holds parts of the output with this mark."""
    path = folder / "mark"
    if is_taken(folder) and not (path.is_file() and path.read_text() == mark):
        raise DatasetError(
            "holds other things than parts of this output",
            where=folder,
            fix="name a new --work folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, mark)
