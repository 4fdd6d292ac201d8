"""Rules of tasks: the task list, the tasks listed for episodes, and task_index in the rows."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from understudy.check.findings import Finding, Place
from understudy.check.remedies import correct, drop
from understudy.check.row_facts import RowFacts
from understudy.data.format.catalog import Catalog


def check_tasks(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Yield findings about tasks."""
    table, ids = catalog.episodes, catalog.episodes.ids
    file = "meta/tasks.parquet" if catalog.version.startswith("v3") else "meta/tasks.jsonl"
    used: dict[int, set[int]] = defaultdict(set)
    unknown: dict[int, list[int]] = defaultdict(list)
    for row, task in facts.used_tasks:
        used[row].add(task)
        if not 0 <= task < len(catalog.tasks):
            unknown[task].append(row)
    for task, rows in unknown.items():
        episodes = tuple(ids[sorted(rows)].tolist())
        yield Finding(
            "tasks.unknown",
            "error",
            f"task_index {task} is not in the task list",
            Place(episodes=episodes, column="task_index", file=file),
            measured=task,
            expected=f"0 to {len(catalog.tasks) - 1}",
            fix=f"add its text to {file}, or {drop(episodes)}",
        )
    listed = set(table.task_indices.tolist()) - {-1}
    in_rows = {task for tasks in used.values() for task in tasks}
    unused = [task for task, text in enumerate(catalog.tasks) if text and task not in listed | in_rows]
    complete = bool(facts.is_read[table.lengths > 0].all())
    if unused and (complete or len(table.task_indices)):
        yield Finding(
            "tasks.unused",
            "warning",
            f"{len(unused)} tasks have no episode, first {catalog.tasks[unused[0]]!r}",
            Place(file=file),
            measured=unused[:1000],
            expected=[],
            fix=f"remove them from {file}, or restore their episodes",
        )
    yield from _texts(catalog, file)
    yield from _listed(catalog, facts, used, file)


def _texts(catalog: Catalog, file: str) -> Iterator[Finding]:
    same: dict[str, list[int]] = defaultdict(list)
    for task, text in enumerate(catalog.tasks):
        if text.strip():
            same[" ".join(text.lower().split()).rstrip(".")].append(task)
    exact: dict[str, list[int]] = defaultdict(list)
    for task, text in enumerate(catalog.tasks):
        exact[text].append(task)
    for text, tasks in exact.items():
        if len(tasks) > 1 and text:
            message = f"{text!r} is the text of task_index {tasks[0]} and {tasks[1]}"
            fix = f"give each text one task_index in {file}"
            yield Finding("tasks.repeated", "warning", message, Place(file=file), measured=tasks, fix=fix)
    alike = [tasks for tasks in same.values() if len({catalog.tasks[task] for task in tasks}) > 1]
    if alike:
        first, second = catalog.tasks[alike[0][0]], catalog.tasks[alike[0][-1]]
        message = f"{len(alike)} texts differ in case, spaces or a full stop only: {first!r} and {second!r}"
        yield Finding(
            "tasks.repeated", "note", message, Place(file=file), measured=alike[:100], fix=correct("them", file)
        )
    blank = [task for task, text in enumerate(catalog.tasks) if text and not text.strip()]
    gaps = [task for task, text in enumerate(catalog.tasks) if not text]
    if blank or gaps:
        message = f"task_index {(blank or gaps)[0]} has no text"
        fix = correct("the text", file)
        yield Finding("tasks.repeated", "warning", message, Place(file=file), measured=[*blank, *gaps][:1000], fix=fix)


def _listed(catalog: Catalog, facts: RowFacts, used: dict[int, set[int]], file: str) -> Iterator[Finding]:
    """Compare the tasks listed for each episode with those of its rows; an episode may list more, such as labels."""
    table = catalog.episodes
    strange, without, foreign = [], [], []
    for row in range(len(table)):
        named = table.tasks_of(row)
        if (named < 0).any():
            foreign.append(row)
        if row in used and len(named) and not used[row] <= set(named.tolist()) and (named >= 0).all():
            strange.append(row)
        if not len(named) and row not in used and facts.is_read[row]:
            without.append(row)
    if strange:
        row = strange[0]
        episodes = tuple(table.ids[np.array(strange)].tolist())
        yield Finding(
            "tasks.listed",
            "warning",
            f"rows have task_index {sorted(used[row])}, meta/ lists {table.tasks_of(row).tolist()}",
            Place(episodes=episodes, column="task_index"),
            measured=sorted(used[row]),
            expected=table.tasks_of(row).tolist(),
            fix="correct the tasks of the episodes in meta/, or task_index in the rows",
        )
    if foreign:
        episodes = tuple(table.ids[np.array(foreign)].tolist())
        message = "a task text listed for the episode is not in the task list"
        yield Finding("tasks.listed", "warning", message, Place(episodes=episodes, file=file), fix=f"add it to {file}")
    if without:
        episodes = tuple(table.ids[np.array(without)].tolist())
        message = "meta/ lists no task, and the rows have no task_index"
        yield Finding("tasks.none", "warning", message, Place(episodes=episodes), fix=f"add a task in {file}")
