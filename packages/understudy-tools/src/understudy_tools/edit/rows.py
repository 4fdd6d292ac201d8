"""Rows of the output: read from the sources, numbered anew, and written as data files with their
statistics.

Times of records in language columns count from the first frame of a piece. A record has a
`timestamp` in seconds of its episode, and is active from there on until the next one of its kind.
Its kind are all its other fields but the `content`. In a piece, records that began before it start
at 0, and only the latest of each kind stays; those after its end go.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError
from understudy_data import (
    DEFAULTS,
    DatasetFiles,
    DatasetStatistics,
    EpisodeStatistics,
    Feature,
    ImageStatistics,
    RecordedImages,
    Rows,
    storable,
)
from understudy_tools.edit.features import bytes_per_frame, cast_values, with_declared_dtypes
from understudy_tools.edit.plan import Piece, Plan


def shift_records(column: Sequence[Any], start: int, length: int, fps: float) -> list[Any]:
    """Return a language column of a piece; values without a time stay as they are.

    Args:
        column: one entry for each frame of the piece: a list of records or None.
        start: first frame of the piece in its episode.
        length: number of frames of the piece.
        fps: frames per second.
    """
    return [_shift(value, start, length, fps) for value in column]


def _shift(value: Any, start: int, length: int, fps: float) -> Any:
    if not isinstance(value, list) or not all(isinstance(record, Mapping) for record in value):
        return value
    # kind -> frame and place of the record that is active at the start
    latest: dict[str, tuple[int, int]] = {}
    frames: list[int | None] = []
    for place, record in enumerate(value):
        time = record.get("timestamp")
        frame = None if time is None else round(float(time) * fps) - start
        frames.append(frame)
        if frame is not None and frame <= 0:
            kind = repr(
                sorted((k, v) for k, v in record.items() if k not in ("timestamp", "content"))
            )
            latest[kind] = max(
                latest.get(kind, (frame, place)),
                (frame, place),
                key=lambda frame_and_place: frame_and_place[0],
            )
    active = {place for _, place in latest.values()}
    shifted = []
    for place, (record, frame) in enumerate(zip(value, frames)):
        if frame is None:
            shifted.append(record)
        elif place in active or 0 < frame < length:
            shifted.append({**record, "timestamp": max(0, frame) / fps})
    return shifted


_CACHE = 1 << 28  # bytes of loaded data files per source
_GROUP = 1000  # most episodes of a data file


@storable
@dataclass(frozen=True)
class EpisodeRows:
    """One written episode.

    Attributes:
        tasks: its task texts, in order of appearance.
        statistics: of its rows and image columns.
        has_clock: whether its recorded timestamps are frame / fps within a millisecond.
    """

    tasks: list[str]
    statistics: EpisodeStatistics
    has_clock: bool


class SourceRows:
    """Reader of the rows of all sources of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        keys = [
            key for key, f in plan.features.items() if not f.is_encoded and key not in plan.columns
        ]
        self._rows = [Rows(with_declared_dtypes(source), keys, _CACHE) for source in plan.sources]
        self._tasks = [Rows(source, [], 0) for source in plan.sources]
        self._images = [RecordedImages(source, _CACHE, image_bytes=0) for source in plan.sources]
        self._keys = keys

    def tasks(self, piece: Piece) -> list[str]:
        """Return the task texts of a piece in the output, in order of appearance.

        Raises:
            DatasetError: one is empty.
        """
        numbers = self._take(self._tasks[piece.source], piece, ["task_index"])["task_index"]
        texts = list(dict.fromkeys(self._texts(piece, numbers)))
        if not all(text.strip() for text in texts):
            source = self.plan.sources[piece.source]
            problem = (
                f"episode {int(source.episodes.ids[piece.row])} has a frame with an empty task text"
            )
            raise DatasetError(
                problem, where=source.root, fix="name its task: --task TEXT, or --tasks FILE"
            )
        return texts

    def _texts(self, piece: Piece, numbers: Any) -> list[str]:
        source_tasks = self.plan.sources[piece.source].tasks
        text_of = {
            number: self.plan.task_of(piece, source_tasks[number])
            for number in set(np.asarray(numbers).tolist())
        }
        return [text_of[number] for number in np.asarray(numbers).tolist()]

    def _take(self, rows: Rows, piece: Piece, keys: Sequence[str]) -> dict[str, Any]:
        rows_of_frames = np.full(piece.length, piece.row)
        return rows.take(rows_of_frames, dict.fromkeys(keys, piece.frames))

    def read(self, number: int) -> tuple[dict[str, Any], list[str], bool]:
        """Return the columns of a piece (arrays, or lists of texts and encoded images), tasks, and
        `has_clock`.
        """
        plan = self.plan
        piece = plan.pieces[number]
        taken = self._take(
            self._rows[piece.source], piece, [*self._keys, "task_index", "timestamp"]
        )
        times = np.asarray(taken.pop("timestamp"), np.float64).reshape(-1)
        tasks = self._texts(piece, taken.pop("task_index"))
        has_clock = not len(times) or np.abs(times - piece.frames / plan.fps).max() <= 1e-3
        source = plan.sources[piece.source]
        for key, feature in plan.features.items():
            values = taken.get(key)
            if (
                isinstance(values, np.ndarray)
                and not feature.is_text
                and values.dtype != feature.dtype
            ):
                where = f"{source.root} (episode {int(source.episodes.ids[piece.row])})"
                taken[key] = cast_values(values, feature.dtype, key, where)
            elif feature.dtype == "image":
                taken[key] = self._images[piece.source].encoded(key, piece.row, piece.frames)
            elif key in plan.columns:
                column = plan.columns[key](piece)
                taken[key] = column if isinstance(column, np.ndarray) else list(column)
            elif feature.dtype == "language" and piece.length < source.episodes.lengths[piece.row]:
                taken[key] = shift_records(taken[key], piece.start, piece.length, plan.fps)
        return taken, tasks, bool(has_clock)

    def decode(self, piece: Piece, key: str, data: bytes) -> np.ndarray:
        """Decode an image of a piece, uint8 (C, H, W)."""
        return self._images[piece.source].decode(key, piece.row, data)


def undeclared_columns(plan: Plan, number: int) -> list[str]:
    """Return columns of the first data file in use of a source that info.json does not declare."""
    source = plan.sources[number]
    declared = {*source.info.get("features", {}), *DEFAULTS}
    row = next((piece.row for piece in plan.pieces if piece.source == number), None)
    if row is None:
        return []
    with source.files.parquet(source.data_path(row)) as file:
        return [name for name in file.schema_arrow.names if name not in declared]


def group_pieces(plan: Plan, file_mb: float) -> list[range]:
    """Divide the pieces into data files of about `file_mb` megabytes."""
    frame_size = bytes_per_frame(plan.features)
    groups = list[range]()
    first = 0
    size = 0.0
    for number, piece in enumerate(plan.pieces):
        size += frame_size * piece.length
        if size >= file_mb * 1e6 or number + 1 - first >= _GROUP or number + 1 == len(plan.pieces):
            groups.append(range(first, number + 1))
            first = number + 1
            size = 0.0
    return groups


def nested_types(plan: Plan) -> dict[str, pa.DataType]:
    """Return the Arrow types of the language columns. Raises DatasetError where sources differ."""
    kinds: dict[str, pa.DataType] = {}
    for source in {piece.source: piece for piece in plan.pieces}.values():
        catalog = plan.sources[source.source]
        for key in [key for key, feature in plan.features.items() if feature.dtype == "language"]:
            path = catalog.data_path(source.row)
            name = catalog.stored_names.get(key, key)
            with catalog.files.parquet(path) as file:
                kind = file.schema_arrow.field(name).type
            if kinds.setdefault(key, kind) != kind:
                problem = f"{key!r} is {kind}, in another source {kinds[key]}"
                raise DatasetError(
                    problem,
                    where=catalog.files.where(path),
                    fix="leave it out with --drop-features",
                )
    return kinds


def row_starts(plan: Plan) -> list[int]:
    """Return the index of the first row of each piece."""
    lengths = [piece.length for piece in plan.pieces]
    return (plan.base.frames + np.cumsum(lengths) - lengths).tolist()


class RowWriter:
    """Writer of data files.

    Args:
        rows: reader of the sources.
        root: folder of the output.
        tasks: task text -> task_index.

    Attributes:
        files: the written files.
        starts: index of the first row of each piece.
    """

    def __init__(self, rows: SourceRows, root: Path, tasks: Mapping[str, int]) -> None:
        self._plan = rows.plan
        self._rows = rows
        self._tasks = tasks
        self.starts = row_starts(self._plan)
        features = {**self._plan.features, **DEFAULTS}
        self.files = DatasetFiles(root, features, nested_types(self._plan))
        self._statistics = DatasetStatistics(features, self._plan.frames)
        images = {
            key: feature for key, feature in self._plan.features.items() if feature.dtype == "image"
        }
        self._measured = {
            key: measured_before(self._plan, feature) for key, feature in images.items()
        }

    def write(self, file: int, group: Sequence[int]) -> list[EpisodeRows]:
        """Write the pieces `group` to the file of this number, one row group each."""
        done = list[EpisodeRows]()

        def episodes() -> Iterator[dict[str, Any]]:
            for number in group:
                columns, tasks, has_clock = self._rows.read(number)
                columns |= self._defaults(number, tasks)
                yield columns
                images = {key: self._measure(columns[key], key, number) for key in self._measured}
                statistics = self._statistics.measure(columns, self.starts[number], images)
                done.append(EpisodeRows(list(dict.fromkeys(tasks)), statistics, has_clock))

        self.files.write_data(file, episodes())
        return done

    def _defaults(self, number: int, tasks: list[str]) -> dict[str, np.ndarray]:
        frames = np.arange(len(tasks)).reshape(-1, 1)
        return {
            "timestamp": (frames / self._plan.fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full_like(frames, self._plan.base.episodes + number),
            "index": self.starts[number] + frames,
            "task_index": np.array([[self._tasks[task]] for task in tasks], np.int64),
        }

    def _measure(self, images: Sequence[bytes], key: str, number: int) -> ImageStatistics:
        """Statistics of an image column of one piece."""
        feature = self._plan.features[key]
        part = ImageStatistics(feature.channels or 3, first=self._measured[key][number])
        piece = self._plan.pieces[number]
        for data in images[:: ImageStatistics.step(feature.size)]:
            part.add(self._rows.decode(piece, key, data).transpose(1, 2, 0))
        return part


def measured_before(plan: Plan, feature: Feature) -> list[int]:
    """Number of measured images of a camera before each piece."""
    step = ImageStatistics.step(feature.size)
    counts = [-(-piece.length // step) for piece in plan.pieces]
    return (np.cumsum(counts) - counts).tolist()
