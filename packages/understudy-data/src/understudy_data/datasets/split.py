"""`EpisodeSplit`: the episodes of a dataset to train on, and those to validate on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from understudy_base import DatasetError
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.selection.select import common, difference, split_episodes
from understudy_data.storage.mapped_tables import share

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class EpisodeSplit:
    """Ids of the two parts, int64, ascending, without a common one."""

    training: np.ndarray
    validation: np.ndarray

    @classmethod
    def by_ids(
        cls, ids: np.ndarray, validation: Iterable[int], skipped: np.ndarray = _NONE
    ) -> "EpisodeSplit":
        """Validate on chosen episodes.

        Args:
            ids: int64, the selected episodes.
            validation: the episodes to validate on.
            skipped: int64, episodes that neither part has.
        """
        validated = difference(np.array(list(validation), np.int64), skipped)
        return cls(difference(_without(ids, skipped), validated), validated)

    @classmethod
    def by_fraction(
        cls,
        catalog: Catalog,
        ids: np.ndarray,
        fraction: float,
        *,
        skipped: np.ndarray = _NONE,
        appended: bool = False,
        spread: bool = True,
    ) -> "EpisodeSplit":
        """Validate on a share of the episodes, chosen by hashes of their ids (`split_episodes`).

        Args:
            catalog: the dataset.
            ids: int64, the selected episodes, ascending.
            fraction: share of the episodes to validate on.
            skipped: int64, episodes that neither part has.
            appended: whether the episodes were appended to split ones; then either part may be
                empty.
            spread: whether to spread the validation over the tasks of `ids`; otherwise it depends
                on ids alone.

        Raises:
            DatasetError: fraction outside [0, 1), or fewer than two episodes to split.
        """
        tasks = _tasks_of(catalog, ids) if spread else None
        left = _without(ids, skipped)
        make = partial(split_episodes, left, fraction, appended=appended, tasks=tasks)
        return cls(*share(make, left, fraction, appended, tasks, cache=catalog.files.cache))

    @staticmethod
    def check_disjoint(
        names: Sequence[str],
        training: Sequence[EpisodeArrays],
        validation: Sequence[EpisodeArrays | None],
    ) -> None:
        """Refuse a source that trains on a validation episode of another source of the same
        dataset.

        Args:
            names: of the sources.
            training: training part of each.
            validation: validation part of each; None without any.

        Raises:
            DatasetError: names the first such episode.
        """
        sharing: dict[str, list[int]] = {}
        for number, part in enumerate(training):
            sharing.setdefault(part.catalog.place, []).append(number)

        def episodes(part: EpisodeArrays | None) -> np.ndarray:
            return part.episodes if part is not None else _NONE

        for numbers in sharing.values():  # of one dataset
            if len(numbers) == 1:  # its parts are disjoint
                continue
            trained = np.concatenate([episodes(training[n]) for n in numbers])
            validated = np.concatenate([episodes(validation[n]) for n in numbers])
            if len(both := common(trained, validated)):
                i = next(n for n in numbers if both[0] in episodes(validation[n]))
                j = next(n for n in numbers if both[0] in episodes(training[n]))
                overlap = (
                    f"episode {both[0]} is a validation episode of source {names[i]} and trained "
                    f"on in {names[j]}"
                )
                fix = (
                    f"{len(both)} such episodes: set the same val_episodes in both, or other "
                    "episodes in each"
                )
                raise DatasetError(overlap, where=training[i].catalog.root, fix=fix)


def _without(ids: np.ndarray, skipped: np.ndarray) -> np.ndarray:
    return difference(ids, skipped) if len(skipped) else ids


def _tasks_of(catalog: Catalog, ids: np.ndarray) -> np.ndarray:
    """Tasks of episodes, int64 (m, 2), rows [id, task]; one text is one task, and an empty one is
    none.
    """
    table = catalog.episodes
    first = dict[str, int]()
    alike = np.array(
        [first.setdefault(text, index) for index, text in enumerate(catalog.tasks)], np.int64
    )
    chosen = np.zeros(len(table), bool)
    chosen[table.rows_of(ids)] = True
    counts = np.diff(table.task_offsets)
    listed = table.task_indices[np.repeat(chosen, counts)]
    pairs = np.stack([np.repeat(table.ids, np.where(chosen, counts, 0)), alike[listed]], axis=1)
    return pairs[pairs[:, 1] != first.get("", -1)]
