"""Validation episodes spread over tasks: properties, fewest exchanges against a search of all
splits, and limits.
"""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_data.datasets.selection.select import split_episodes

ONE_TASK_EACH = st.lists(st.integers(0, 3), min_size=2, max_size=9)
SEVERAL_TASKS = st.lists(st.sets(st.integers(0, 4), max_size=3), min_size=2, max_size=40)


def rows(tasks: list[set[int]], ids: list[int] | None = None) -> np.ndarray:
    """Pairs (id, task) of episodes."""
    listed = [
        (episode, task) for episode, own in zip(ids or range(len(tasks)), tasks) for task in own
    ]
    return np.array(listed, np.int64).reshape(-1, 2)


def lacking(held: set[int], tasks: list[set[int]]) -> tuple[int, int]:
    """Number of tasks without a training episode, and of those of several episodes without a
    validation episode.
    """
    untrained = unseen = 0
    for task in set().union(*tasks):
        own = {episode for episode, names in enumerate(tasks) if task in names}
        untrained += own <= held
        unseen += len(own) > 1 and not own & held
    return untrained, unseen


def split(
    tasks: list[set[int]], fraction: float = 0.3, seed: int = 0, spread: bool = True
) -> set[int]:
    return set(
        split_episodes(range(len(tasks)), fraction, seed, tasks=rows(tasks) if spread else None)[
            1
        ].tolist()
    )


@given(ONE_TASK_EACH, st.floats(0.05, 0.9), st.integers(0, 20))
def test_fewest_exchanges_leave_the_fewest_tasks_on_one_side(
    labels: list[int], fraction: float, seed: int
) -> None:
    tasks = [{label} for label in labels]
    plain = split(tasks, fraction, seed, spread=False)
    found = split(tasks, fraction, seed)
    assert len(found) == len(plain)
    possible = [set(chosen) for chosen in combinations(range(len(tasks)), len(plain))]
    fewest = min(sum(lacking(held, tasks)) for held in possible)
    assert sum(lacking(found, tasks)) == fewest
    exchanges = min(len(held - plain) for held in possible if sum(lacking(held, tasks)) == fewest)
    assert len(found - plain) == exchanges


@given(SEVERAL_TASKS, st.floats(0.05, 0.9), st.integers(0, 20))
def test_episodes_of_several_tasks_or_none_never_fare_worse(
    tasks: list[set[int]], fraction: float, seed: int
) -> None:
    plain = split(tasks, fraction, seed, spread=False)
    found = split(tasks, fraction, seed)
    assert len(found) == len(plain)
    for before, after in zip(lacking(plain, tasks), lacking(found, tasks), strict=True):
        assert after <= before
    if lacking(plain, tasks) == (0, 0):
        assert found == plain


@given(SEVERAL_TASKS)
def test_split_depends_on_neither_sequence_nor_numbers_of_tasks(tasks: list[set[int]]) -> None:
    pairs = rows(tasks)
    other = np.array(
        [[episode, 1000 - 7 * task] for episode, task in pairs.tolist()], np.int64
    ).reshape(-1, 2)
    # some twice, and one of another episode
    other = np.concatenate([other[::-1], other[:3], [[10_000, 5]]])
    found = split_episodes(range(len(tasks)), 0.3, tasks=pairs)[1]
    assert split_episodes(range(len(tasks)), 0.3, tasks=other)[1].tolist() == found.tolist()


@pytest.mark.parametrize("tasks", [[{0}] * 40, [set[int]()] * 40, [{0, 1}] * 40])
def test_one_task_or_none_is_the_plain_split(tasks: list[set[int]]) -> None:
    assert split(tasks) == split(tasks, spread=False)


def test_rare_tasks_are_validated_and_trained() -> None:
    """Planted: the plain split validates no episode of one task, and trains none of another."""
    plain = split([{0}] * 60, spread=False)
    inside = sorted(plain)[:2]
    outside = sorted(set(range(60)) - plain)[:2]
    tasks = [
        {1} if episode in inside else {2} if episode in outside else {0} for episode in range(60)
    ]
    assert lacking(plain, tasks) == (1, 1)
    found = split(tasks)
    assert lacking(found, tasks) == (0, 0)
    assert (len(found), len(found - plain)) == (len(plain), 1)


def test_appended_episodes_are_never_exchanged() -> None:
    ids = list(range(100, 140))
    pairs = rows([{episode // 2} for episode in ids], ids)
    plain = split_episodes(ids, 0.3, appended=True)[1].tolist()
    assert split_episodes(ids, 0.3, appended=True, tasks=pairs)[1].tolist() == plain
    assert split_episodes(ids, 0.3, tasks=pairs)[1].tolist() != split_episodes(ids, 0.3)[1].tolist()
