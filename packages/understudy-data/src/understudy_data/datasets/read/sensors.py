"""Samples of sensors at their own rates, in windows by time.

Frame i of an episode is at i / fps seconds from the episode's start, where the time of its sensor
samples begins. The value at time t is the last sample's whose timestamp is at most t. Two times
within 1 microsecond are equal, so that no rounding of a float moves a sample. `<key>_is_pad` is
True, and the value is

    before the first sample             0
    older than `max_age`                that of the last sample
    from the episode's end on           that of its last sample

A linear sensor is interpolated towards the next sample. For a time up to that of the frame itself,
the next sample counts only if it is not after the frame: no observation depends on its future.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError, plural
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.sensors import Sensor
from understudy_data.datasets.read.columns import to_numpy
from understudy_data.storage import mapped_tables

SAME = 1e-6
"""Seconds within which two times are equal."""
_VERSION = 1  # of the stored tables
_NEEDED = {"timestamp": "seconds from the episode's start", "value": "numbers"}


class SensorTable(mapped_tables.SharedState):
    """All samples of one sensor, read when it is made; large ones are memory-mapped and shared by
    the host.

    Args:
        catalog: the dataset.
        sensor: one of its sensors.

    Attributes:
        times: float64 (N,), seconds from the episode's start, rising inside each episode.
        values: (N, *shape) of the declared dtype.
        first: int64 (episodes + 1,), number of the first sample of each table row.
        is_finite: whether all values are finite.

    Raises:
        DatasetError: a file is missing or broken, timestamps do not rise, or an episode is unknown.
    """

    times: np.ndarray
    values: np.ndarray
    first: np.ndarray
    is_finite: bool

    def __init__(self, catalog: Catalog, sensor: Sensor) -> None:
        files = catalog.sensor_files(sensor)
        versions = [(path, catalog.files.version(path)) for path in files]
        ids = hashlib.sha256(catalog.episodes.ids.tobytes()).hexdigest()
        parts = [_VERSION, catalog.root, versions, ids, repr(sensor)]
        key = hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()

        def make() -> tuple[dict[str, Any], bool]:
            table: dict[str, Any] = _read(catalog, sensor, files)
            values = table["values"]
            table["is_finite"] = values.dtype.kind != "f" or bool(np.isfinite(values).all())
            return table, len(table["times"]) >= mapped_tables.MIN_ROWS

        self.__dict__.update(mapped_tables.once_per_host(key, make, catalog.files.cache))


class Sensors:
    """Values of sensors at the frames of a dataset.

    Args:
        catalog: the dataset.
        keys: its sensors to deliver.
        offsets: key -> float64 (T,), seconds relative to the frame; a key without them has the
            value at the frame.
    """

    def __init__(
        self, catalog: Catalog, keys: Sequence[str], offsets: Mapping[str, np.ndarray]
    ) -> None:
        self._fps = float(catalog.fps)
        self._offsets = offsets
        self._sensors = {key: catalog.sensors[key] for key in keys}
        self._tables = {key: SensorTable(catalog, sensor) for key, sensor in self._sensors.items()}
        self.notes: list[str] = []
        for key in keys:
            self.notes += _notes(catalog, self._sensors[key], self._tables[key])

    def take(self, rows: np.ndarray, frames: np.ndarray, stop: np.ndarray) -> dict[str, np.ndarray]:
        """Return values and padding flags.

        Args:
            rows: int64 (B,), table rows.
            frames: int64 (B,), frames inside their episodes.
            stop: int64 (B,), frames at which the windows end (exclusive).

        Returns:
            key -> (B, *shape) or (B, T, *shape), and `<key>_is_pad` -> bool (B,) or (B, T).
        """
        out: dict[str, np.ndarray] = {}
        for key, sensor in self._sensors.items():
            offsets = self._offsets.get(key)
            window = np.zeros(1) if offsets is None else offsets
            times = frames[:, None] / self._fps + window
            values, pad = read_values(
                self._tables[key], sensor, rows, frames / self._fps, times, stop / self._fps
            )
            values = values.reshape(*pad.shape, *sensor.feature.value_shape)
            out[key] = values if offsets is not None else values[:, 0]
            out[f"{key}_is_pad"] = pad if offsets is not None else pad[:, 0]
        return out


def read_values(
    table: SensorTable,
    sensor: Sensor,
    rows: np.ndarray,
    now: np.ndarray,
    times: np.ndarray,
    end: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return values at given times, by the rule at the head of this file.

    Args:
        table: samples of the sensor.
        sensor: its declaration.
        rows: int64 (B,), table rows.
        now: float64 (B,), times of the frames in seconds.
        times: float64 (B, T), times of the values.
        end: float64 (B,), times at which the windows end.

    Returns:
        Values (B, T, *shape), and padding flags bool (B, T).
    """
    past = times >= end[:, None] - SAME
    limit = np.where(past, end[:, None] - SAME, times + SAME)
    begin = table.first[rows][:, None]
    stop = table.first[rows + 1][:, None]
    # the last sample up to the limit; begin - 1 where there is none
    sample = np.empty(times.shape, np.int64)
    for row in np.unique(rows).tolist():
        members = rows == row
        first = int(table.first[row])
        last = int(table.first[row + 1])
        sample[members] = (
            first + np.searchsorted(table.times[first:last], limit[members], side="right") - 1
        )
    none = sample < begin
    if not len(table.times):
        zeros = np.zeros((*times.shape, *table.values.shape[1:]), table.values.dtype)
        return zeros, np.ones(times.shape, bool)
    held = np.where(none, 0, sample)
    values = table.values[held]
    age = times - table.times[held]
    if sensor.linear:
        following = np.minimum(held + 1, len(table.times) - 1)
        latest = np.where(times <= now[:, None] + SAME, now[:, None] + SAME, np.inf)
        use = ~none & ~past & (held + 1 < stop) & (table.times[following] <= latest)
        span = np.where(use, table.times[following] - table.times[held], 1.0)
        share = np.where(use, np.clip(age / span, 0.0, 1.0), 0.0).reshape(
            *times.shape, *[1] * (values.ndim - 2)
        )
        between = values + share * (table.values[following].astype(np.float64) - values)
        values = np.where(share > 0, between, values).astype(values.dtype)
    values[none] = 0
    is_too_old = (
        age > sensor.max_age + SAME if sensor.max_age is not None else np.zeros(times.shape, bool)
    )
    return values, none | past | is_too_old


def _read(catalog: Catalog, sensor: Sensor, files: Sequence[str]) -> dict[str, np.ndarray]:
    """Read and check all samples, sorted by table row."""
    episodes = catalog.episodes
    shape = sensor.feature.value_shape
    rows = [np.zeros(0, np.int64)]
    times = [np.zeros(0)]
    values = [np.zeros((0, *shape), sensor.feature.dtype)]
    for number, path in enumerate(files):
        where = catalog.files.where(path)
        begun = set[int]()
        last = -1
        for ids, group_times, group_values in sensor_groups(catalog, sensor, path):
            if ids is None:
                ids = np.full(len(group_times), episodes.ids[number])
            rows.append(_table_rows(catalog, sensor, ids, number, where))
            for row in rows[-1][np.flatnonzero(np.diff(rows[-1], prepend=-1))].tolist():
                if row in begun and row != last:
                    problem = f"the samples of episode {int(episodes.ids[row])} are not contiguous"
                    raise DatasetError(
                        problem, where=where, fix="sort the file by episode_index and timestamp"
                    )
                begun.add(row)
                last = row
            times.append(group_times)
            values.append(group_values)
    row_of = np.concatenate(rows)
    table = {"times": np.concatenate(times), "values": np.concatenate(values)}
    if (np.diff(row_of) < 0).any():
        order = np.argsort(row_of, kind="stable")
        table = {name: array[order] for name, array in table.items()}
    table["first"] = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=len(episodes)))])
    for row in np.unique(row_of).tolist():
        span = slice(*table["first"][row : row + 2])
        _check_times(table["times"][span], int(episodes.ids[row]), sensor, catalog)
    return table


def sensor_groups(
    catalog: Catalog, sensor: Sensor, path: str
) -> Iterator[tuple[np.ndarray | None, np.ndarray, np.ndarray]]:
    """Yield (episode ids or None, times, values) of each row group of one of
    `Catalog.sensor_files`.

    Raises:
        DatasetError: the file cannot be read, or lacks a column.
    """
    where = catalog.files.where(path)
    key = sensor.feature.key
    needed = _NEEDED if sensor.per_episode else {"episode_index": "an integer", **_NEEDED}
    with catalog.files.parquet(path) as file:
        schema = file.schema_arrow
        for name, meaning in needed.items():
            if name not in schema.names:
                fix = f"a sensor file has the columns {', '.join(needed)}; this one is {meaning}"
                raise DatasetError(f"there is no column {name!r}", where=where, fix=fix)
        if schema.field("timestamp").type != pa.float64():
            problem = (
                f"timestamp is {schema.field('timestamp').type}, which is not exact to a "
                "microsecond"
            )
            raise DatasetError(
                problem, where=where, fix="write double: seconds from the episode's start"
            )
        names = [name for name in ("episode_index", *_NEEDED) if name in schema.names]
        for group in range(file.metadata.num_row_groups):
            part = file.read_row_group(group, columns=names, use_threads=False)
            ids = None
            if "episode_index" in names:
                ids = to_numpy(part["episode_index"], None, where, "episode_index")
                if ids.dtype.kind not in "iu":
                    raise DatasetError(
                        f"episode_index is {ids.dtype}", where=where, fix="write integers"
                    )
            times = to_numpy(part["timestamp"], None, where, key)
            yield ids, times, to_numpy(part["value"], sensor.feature, where, key)


def _table_rows(
    catalog: Catalog, sensor: Sensor, ids: np.ndarray, number: int, where: str
) -> np.ndarray:
    """Table rows of the episodes of samples, int64 (n,)."""
    episodes = catalog.episodes.ids
    rows = np.minimum(np.searchsorted(episodes, ids), len(episodes) - 1)
    expected = episodes[number] if sensor.per_episode else episodes[rows]
    wrong = ids != expected
    if not wrong.any():
        return rows
    episode = int(ids[wrong][0])
    if sensor.per_episode:
        problem = f"the file of episode {int(episodes[number])} holds samples of episode {episode}"
        raise DatasetError(problem, where=where, fix="restore the file")
    problem = f"holds samples of episode {episode}, which the dataset does not have"
    raise DatasetError(problem, where=where, fix="take them out, or restore the episode")


def _check_times(times: np.ndarray, episode: int, sensor: Sensor, catalog: Catalog) -> None:
    where = f"{catalog.files.where(sensor.path)} (episode {episode})"
    if not np.isfinite(times).all():
        number = int((~np.isfinite(times)).argmax())
        raise DatasetError(
            f"timestamp {times[number]} of sample {number}", where=where, fix="write seconds"
        )
    if (wrong := np.diff(times) <= 0).any():
        last = int(wrong.argmax())
        problem = (
            f"timestamps do not rise: {times[last]:.9g} s before {times[last + 1]:.9g} s, "
            f"after sample {last}"
        )
        raise DatasetError(
            problem, where=where, fix="sort the samples by time, and take out those of equal time"
        )


def _notes(catalog: Catalog, sensor: Sensor, table: SensorTable) -> list[str]:
    """Irregularities that reading allows."""
    where = catalog.files.where(sensor.path)
    notes = []
    empty = np.flatnonzero((np.diff(table.first) == 0) & (catalog.episodes.lengths > 0))
    if len(empty):
        first = int(catalog.episodes.ids[empty[0]])
        notes.append(
            f"{where}: no sample of {plural(len(empty), 'episode')}, first {first}: all its values "
            "are padding there"
        )
    if not table.is_finite:
        notes.append(f"{where}: some values are not finite; they are kept")
    return notes
