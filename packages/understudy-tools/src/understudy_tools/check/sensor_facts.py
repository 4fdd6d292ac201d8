"""Facts about the samples of a sensor, per episode; nothing in its files is an error here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from understudy_base import DatasetError
from understudy_data import Catalog, sensor_groups


@dataclass
class EpisodeSamples:
    """Samples of a sensor in one episode, in the sequence of its file.

    Attributes:
        times: float64 (n,), seconds; NaN where they are not finite.
        steps: float64 (n - 1,), seconds between neighbours.
        bad: number of the first sample with a time or value that is not finite; None without one.
        still: float64 (D,), share of the steps in which each dimension keeps its value; NaN without
            a step.
    """

    times: np.ndarray
    bad: int | None
    still: np.ndarray
    steps: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.steps = np.diff(self.times)


@dataclass
class SensorFacts:
    """Facts about one sensor.

    Attributes:
        key: of the sensor.
        files: paths under the dataset's root: one, or one for each table row.
        episodes: samples by table row; rows without any are absent.
        broken: path -> reason, for files that are missing or cannot be read.
        unknown: ids of episodes in a file that the dataset does not have, or that belong to another
            file.
    """

    key: str
    files: Sequence[str]
    episodes: dict[int, EpisodeSamples] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)

    def rows_where(self, is_odd: Callable[[EpisodeSamples], object]) -> list[int]:
        """Table rows of the episodes whose samples meet a condition."""
        return [row for row, samples in self.episodes.items() if is_odd(samples)]

    def file_of(self, row: int) -> str:
        """Path of the file of a table row."""
        if len(self.files) == 1:
            return self.files[0]
        return self.files[row]


def read_sensor_facts(catalog: Catalog, key: str) -> SensorFacts:
    """Read all files of a sensor.

    Raises:
        SourceError: the source of the dataset gives no answer.
    """
    sensor = catalog.sensors[key]
    facts = SensorFacts(key, catalog.sensor_files(sensor))
    ids = catalog.episodes.ids
    for number, path in enumerate(facts.files):
        parts: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        try:
            if not catalog.files.exists(path):
                facts.broken[path] = "is missing"
                continue
            for ids_of, times, values in sensor_groups(catalog, sensor, path):
                flat = values.reshape(len(values), -1).astype(np.float64)
                episode_ids = np.full(len(times), ids[number]) if ids_of is None else ids_of
                for begin, stop in _runs(episode_ids):
                    parts.setdefault(int(episode_ids[begin]), []).append(
                        (times[begin:stop], flat[begin:stop])
                    )
        except DatasetError as error:
            facts.broken[path] = error.what
            continue
        for episode, own_parts in parts.items():
            row = int(np.searchsorted(ids, episode))
            if row == len(ids) or ids[row] != episode or (sensor.per_episode and row != number):
                facts.unknown.add(episode)
                continue
            facts.episodes[row] = _describe(
                np.concatenate([times for times, _ in own_parts]),
                np.concatenate([values for _, values in own_parts]),
            )
    return facts


def _runs(ids: np.ndarray) -> list[tuple[int, int]]:
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(ids)) + 1, [len(ids)]]).tolist()
    return [(begin, stop) for begin, stop in pairwise(cuts) if begin < stop]


def _describe(times: np.ndarray, values: np.ndarray) -> EpisodeSamples:
    good = np.isfinite(times) & np.isfinite(values).all(axis=1)
    # The distance of two infinities is unknown, and that to one says nothing about the clock.
    times, values = (np.where(np.isfinite(array), array, np.nan) for array in (times, values))
    still = np.full(values.shape[1], np.nan)
    if len(values) > 1:
        still = (np.diff(values, axis=0) == 0).mean(axis=0)
    first_bad = None if good.all() else int((~good).argmax())
    return EpisodeSamples(times, first_bad, still)
