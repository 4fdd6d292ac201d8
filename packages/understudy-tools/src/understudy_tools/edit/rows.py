"""Rows of the output: read from the sources, numbered anew, and written as data files with their
statistics.

Times of records in language columns count from the first frame of a piece. A record has a
`timestamp` in seconds of its episode, and is active from there on until the next one of its kind.
Its kind are all its other fields but the `content`. In a piece, records that began before it start
at 0, and only the latest of each kind stays; those after its end go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError
from understudy_data.datasets.format.features import DEFAULTS, Feature
from understudy_data.datasets.read.image_column import ImageColumns, decode_image, image_bytes
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.stats.running import (
    ImageStatistics,
    Moments,
    image_step,
    sample_stride,
)
from understudy_data.datasets.write.dataset_files import (
    data_schema,
    number_statistics,
    replace_parquet,
    statistic_columns,
    to_column,
)
from understudy_data.plain_values import storable
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
        columns: its statistics in meta/episodes.
        numbers: numeric column -> moments, and the rows that count for quantiles in the whole
            output.
        images: statistics of its image columns, with `first` as in the whole output.
        has_clock: whether its recorded timestamps are frame / fps within a millisecond.
    """

    tasks: list[str]
    columns: dict[str, Any]
    numbers: dict[str, tuple[Moments, np.ndarray]]
    images: dict[str, ImageStatistics]
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
        images = [key for key, feature in plan.features.items() if feature.dtype == "image"]
        self._images = [ImageColumns(source, images, 0) for source in plan.sources]
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
                taken[key] = self._encoded(piece, key)
            elif key in plan.columns:
                column = plan.columns[key](piece)
                taken[key] = column if isinstance(column, np.ndarray) else list(column)
            elif feature.dtype == "language" and piece.length < source.episodes.lengths[piece.row]:
                taken[key] = shift_records(taken[key], piece.start, piece.length, plan.fps)
        return taken, tasks, bool(has_clock)

    def _encoded(self, piece: Piece, key: str) -> list[bytes]:
        """Encoded images of an image column, as stored."""
        source = self.plan.sources[piece.source]
        row = piece.row
        places = self._rows[piece.source].file_rows(np.full(piece.length, row), piece.frames)
        values = self._images[piece.source].stored(key, row, places)
        return [image_bytes(value, key, source, source.data_place(row)) for value in values]


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
        tasks: task text -> task_index.

    Attributes:
        starts: index of the first row of each piece.
    """

    def __init__(self, rows: SourceRows, tasks: Mapping[str, int]) -> None:
        self._plan = rows.plan
        self._rows = rows
        self._tasks = tasks
        self.starts = row_starts(self._plan)
        self._stride = sample_stride(self._plan.frames)
        self._features = {**self._plan.features, **DEFAULTS}
        self._nested = nested_types(self._plan)
        images = {
            key: feature for key, feature in self._plan.features.items() if feature.dtype == "image"
        }
        self._measured = {
            key: measured_before(self._plan, feature) for key, feature in images.items()
        }

    def write(self, path: Path, group: Sequence[int]) -> list[EpisodeRows]:
        """Write the pieces `group` to one file, one row group each."""
        done = list[EpisodeRows]()
        schema = data_schema(self._features, self._nested)

        def tables() -> Any:
            for number in group:
                columns, tasks, has_clock = self._rows.read(number)
                columns |= self._defaults(number, tasks)
                yield pa.Table.from_arrays(
                    [self._column(columns[key], key) for key in schema.names], schema=schema
                )
                images = {key: self._measure(columns[key], key, number) for key in self._measured}
                episode = EpisodeRows(list(dict.fromkeys(tasks)), {}, {}, images, has_clock)
                for key, feature in self._features.items():
                    if isinstance(columns.get(key), np.ndarray) and not feature.is_text:
                        values = columns[key].reshape(-1, *feature.shape)
                        statistics = number_statistics(feature)
                        statistics.add(values)
                        sample = statistics.sample(
                            values[-self.starts[number] % self._stride :: self._stride]
                        )
                        episode.numbers[key] = statistics.moments, sample
                        episode.columns.update(statistic_columns(feature, statistics.result()))
                    elif key in images:
                        episode.columns.update(statistic_columns(feature, images[key].result()))
                done.append(episode)

        replace_parquet(path, tables(), schema)
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

    def _column(self, values: Any, key: str) -> pa.Array:
        if key in self._nested:
            return pa.array(values, self._nested[key])
        feature = self._features[key]
        if isinstance(values, np.ndarray):
            values = np.reshape(values, (-1, *feature.shape))
        return to_column(values, feature)

    def _measure(self, images: Sequence[bytes], key: str, number: int) -> ImageStatistics:
        """Statistics of an image column of one piece."""
        feature = self._features[key]
        part = ImageStatistics(feature.channels or 3, first=self._measured[key][number])
        source = self._plan.sources[self._plan.pieces[number].source]
        for data in images[:: step_of(feature)]:
            part.add(decode_image(data, feature, source, source.root).transpose(1, 2, 0))
        return part


def step_of(feature: Feature) -> int:
    """Step between the measured images of a camera, by its declared size."""
    return image_step(*(feature.size or (1, 1)))


def measured_before(plan: Plan, feature: Feature) -> list[int]:
    """Number of measured images of a camera before each piece."""
    counts = [-(-piece.length // step_of(feature)) for piece in plan.pieces]
    return (np.cumsum(counts) - counts).tolist()
