"""Spread of the validation episodes over tasks: as few exchanges as cover each task on both sides
of a split.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np


def spread_over_tasks(
    ids: np.ndarray, hashes: np.ndarray, validation: np.ndarray, tasks: np.ndarray
) -> np.ndarray:
    """Exchange validation episodes for training episodes, until each task has both, as far as their
    number allows.

    A task of several episodes gets a validation episode, and every task keeps an episode to train
    on. Each exchange takes the training episode of the lowest hash and the validation episode of
    the highest that serve this. Where every episode has one task, no fewer exchanges would do.

    Args:
        ids: int64 (n,), ascending, the episodes.
        hashes: float64 (n,), their hashes.
        validation: bool (n,), the split to start from.
        tasks: int64 (m, 2), rows [episode id, task]; an episode may have several or none, and
            others are ignored.

    Returns:
        bool (n,), as many of them True as before.
    """
    if len(ids) == 0 or len(tasks) == 0:
        return validation
    tasks = tasks[np.isin(tasks[:, 0], ids)]
    if len(tasks) == 0:
        return validation
    if (tasks[:, 1] == tasks[0, 1]).all():  # as of thousands of small sources
        held = validation[np.searchsorted(ids, tasks[:, 0])]
        if held.any() and not held.all():
            return validation
    known, numbers = np.unique(tasks[:, 1], return_inverse=True)
    pairs = np.unique(np.searchsorted(ids, tasks[:, 0]) * len(known) + numbers)
    return _Exchange(hashes, validation.copy(), *np.divmod(pairs, len(known))).run()


class _Exchange:
    """A split that is being changed.

    Args:
        hashes: float64 (n,), of the episodes.
        validation: bool (n,), changed in place.
        of: int64 (m,), ascending, numbers of episodes.
        task: int64 (m,), the number of a task of each, ascending within an episode.
    """

    def __init__(
        self, hashes: np.ndarray, validation: np.ndarray, of: np.ndarray, task: np.ndarray
    ) -> None:
        self._validation = validation
        count = int(task.max()) + 1
        bounds = np.searchsorted(of, np.arange(len(hashes) + 1)).tolist()
        flat = task.tolist()
        self._tasks = [flat[start:stop] for start, stop in pairwise(bounds)]
        total = np.bincount(task, minlength=count)
        held = np.bincount(task[validation[of]], minlength=count)
        self._total: list[int] = total.tolist()
        self._held: list[int] = held.tolist()
        rank = np.argsort(hashes, kind="stable")
        self._rising: list[int] = rank[~validation[rank]].tolist()
        self._falling: list[int] = rank[::-1][validation[rank[::-1]]].tolist()
        self._lacking = np.flatnonzero((held == 0) & (total > 1))
        self._untrained = np.flatnonzero(held == total)

    def run(self) -> np.ndarray:
        """Exchange until no task lacks an episode on a side, or none is left to give."""
        entering = self._needed(self._rising, self._lacking, self._may_enter)
        leaving = self._needed(self._falling, self._untrained, self._may_leave)
        more_entering = filter(self._may_enter, self._rising)
        more_leaving = filter(self._may_leave, self._falling)
        while True:
            enters = next(entering, None)
            leaves = next(leaving, None)
            if enters is None and leaves is None:
                return self._validation
            enters = next(more_entering, None) if enters is None else enters
            leaves = next(more_leaving, None) if leaves is None else leaves
            if enters is None or leaves is None:
                return self._validation
            self._move(enters, True)
            self._move(leaves, False)

    def _needed(
        self, episodes: Sequence[int], tasks: np.ndarray, may_move: Callable[[int], bool]
    ) -> Iterator[int]:
        """Yield an episode for each of some tasks that still need one moved, in the sequence of the
        episodes.
        """
        open_tasks = set(tasks.tolist())
        if not open_tasks:
            return
        for episode in episodes:
            own = self._tasks[episode]
            if not open_tasks.isdisjoint(own) and may_move(episode):
                yield episode
                open_tasks.difference_update(own)

    def _may_enter(self, episode: int) -> bool:
        """Whether an episode can go to validation, and each of its tasks keeps one to train on."""
        is_free = all(self._total[task] - self._held[task] > 1 for task in self._tasks[episode])
        return is_free and not self._validation[episode]

    def _may_leave(self, episode: int) -> bool:
        """Whether an episode can go to training, and no task of several episodes loses its last
        validation episode.
        """
        is_free = all(
            self._held[task] > 1 or self._total[task] == 1 for task in self._tasks[episode]
        )
        return is_free and bool(self._validation[episode])

    def _move(self, episode: int, to_validation: bool) -> None:
        self._validation[episode] = to_validation
        change = 1 if to_validation else -1
        for task in self._tasks[episode]:
            self._held[task] += change
