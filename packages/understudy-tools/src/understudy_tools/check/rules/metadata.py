"""Rules of info.json and of the episode table, from metadata alone."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from understudy_base import ACTION, STATE, DatasetError, plural
from understudy_data import DEFAULTS, Catalog, Selection
from understudy_tools.check.findings import EDIT, REWRITE, Finding, Place, correct, drop, list_ids
from understudy_tools.check.row_facts import RowFacts

_COVERED = ("info.json: total_", "info.json: splits", "episode ids have gaps", "tasks: ")
"""Beginnings of lines of `Catalog.metadata_notes` that rules here and in `tasks` report with their
values.
"""


def check_metadata(catalog: Catalog) -> Iterator[Finding]:
    """Yield findings about info.json and the episode table."""
    yield from _totals(catalog)
    yield from _features(catalog)
    yield from _training(catalog)
    yield from _views(catalog)
    table = catalog.episodes
    if int(table.ids[0]) != 0 or int(table.ids[-1]) != len(table) - 1:
        gaps: list[int] = []
        if table.ids[-1] < 1 << 22:
            gaps = sorted(set(range(int(table.ids[-1]) + 1)) - set(table.ids.tolist()))
        message = (
            f"{plural(len(table), 'episode has', 'episodes have')} ids {table.ids[0]} to "
            f"{table.ids[-1]}; "
        )
        message += "LeRobot reads by position"
        fix = REWRITE
        if gaps:
            fix += f"; absent are {list_ids(gaps)}"
        yield Finding(
            "episodes.ids", "warning", message, Place(), int(table.ids[-1]) + 1, len(table), fix
        )
    empty = np.flatnonzero(table.lengths == 0)
    if len(empty):
        message = plural(len(empty), "episode has no frames", "episodes have no frames")
        fix = f"{EDIT} --where 'length > 0', or leave them: they give no samples"
        yield Finding(
            "episodes.empty", "warning", message, Place.from_rows(catalog, empty), 0, fix=fix
        )
    left_out = {f"{key} {why}: left out" for key, why in catalog.skipped_features.items()}
    for line in catalog.metadata_notes():
        covered = (
            line.startswith(_COVERED)
            or line in left_out
            or "have no frame" in line
            or "task texts" in line
        )
        if not covered and "from_timestamp of" not in line:
            yield Finding(
                "metadata.oddity",
                "warning",
                line,
                Place(file=Catalog.INFO),
                fix=correct("the entry"),
            )


def _views(catalog: Catalog) -> Iterator[Finding]:
    for name in catalog.views.names():
        try:
            Selection().apply(catalog.with_view(f"#{name}"))
        except DatasetError as error:
            yield Finding(
                "metadata.views",
                "warning",
                error.what,
                Place(file=catalog.views.path(name)),
                fix=error.fix,
            )


def _totals(catalog: Catalog) -> Iterator[Finding]:
    info = catalog.info
    table = catalog.episodes
    true = {"total_episodes": len(table), "total_frames": table.frames}
    true["total_tasks"] = sum(1 for text in catalog.tasks if text)
    if "total_chunks" in info:
        true["total_chunks"] = int(np.unique(table.data.chunk).size)
    if "total_videos" in info:
        true["total_videos"] = sum(
            int(np.unique(v.file[v.file >= 0]).size) for v in table.videos.values()
        )
    for name, value in true.items():
        if name in info and info[name] != value:
            message = f"{name} is {info[name]!r}, the tables hold {value}"
            place = Place(column=name, file=Catalog.INFO)
            yield Finding(
                "metadata.totals",
                "warning",
                message,
                place,
                info[name],
                value,
                correct(f"{name}: {value}"),
            )
    splits = info.get("splits")
    whole = f"0:{len(table)}"
    if (
        isinstance(splits, dict)
        and splits.get("train") not in (None, whole)
        and not _is_covering(splits, len(table))
    ):
        message = f"splits are {splits}, the tables list {plural(len(table), 'episode')}"
        fix = correct(f'splits: {{"train": "{whole}"}}')
        yield Finding(
            "metadata.splits",
            "warning",
            message,
            Place(file=Catalog.INFO),
            splits,
            {"train": whole},
            fix,
        )


def _is_covering(splits: dict[str, object], episodes: int) -> bool:
    """Whether splits are ranges "a:b" inside 0:episodes."""
    for value in splits.values():
        first, colon, last = str(value).partition(":")
        if not (
            colon and first.isdigit() and last.isdigit() and int(first) <= int(last) <= episodes
        ):
            return False
    return True


def _features(catalog: Catalog) -> Iterator[Finding]:
    for key, feature in catalog.features.items():
        width = int(np.prod(feature.shape))
        declared = feature.names
        if feature.is_camera or feature.is_text or not declared or width == 1:
            continue
        flat = feature.dimension_names
        if flat == [str(number) for number in range(width)] and not _is_axes(
            declared, len(feature.shape)
        ):
            message = f"the declared names are not {width} different ones"
            place = Place(column=key, file=Catalog.INFO)
            fix = correct(f"names of {key}")
            yield Finding(
                "metadata.names", "warning", message, place, str(declared)[:200], width, fix
            )
    lacking = [key for key in DEFAULTS if key not in catalog.features]
    if lacking:
        message = (
            f"info.json does not declare {', '.join(lacking)}; the reader computes absent ones"
        )
        yield Finding(
            "metadata.features",
            "note",
            message,
            Place(file=Catalog.INFO),
            lacking,
            fix=correct("features"),
        )
    for key, why in catalog.skipped_features.items():
        place = Place(camera=key)
        if key in catalog.cameras_without_files:
            fix = f"restore its files; without them train with {_cameras(catalog)}"
            yield Finding("files.camera", "warning", f"the camera {why}", place, fix=fix)
        else:
            yield Finding(
                "metadata.oddity", "note", f"{key} {why}", place, fix="use another camera"
            )


def _cameras(catalog: Catalog) -> str:
    """Return the flag that leaves out the cameras that a training refuses."""
    usable = [key for key in catalog.camera_keys if catalog.features[key].channels in (3, None)]
    colors = [key for key in usable if not catalog.features[key].is_depth]
    return f"--data.cameras {' '.join(colors) or 'none'}"


def _training(catalog: Catalog) -> Iterator[Finding]:
    """Yield a finding for each feature that a training refuses until a flag names others."""
    vectors = [
        key
        for key, feature in catalog.features.items()
        if len(feature.shape) == 1
        and not feature.is_text
        and not feature.is_camera
        and key not in DEFAULTS
    ]
    for key, flag in ((ACTION, "data.action"), (STATE, "data.state")):
        feature = catalog.features.get(key)
        if key in vectors or (feature is None and key == STATE):
            continue
        problem = "is not declared"
        if feature is not None:
            problem = f"is {feature.dtype} of shape {feature.shape}"
        none = ", or --data.state '' for none" if key == STATE else ""
        message = f"{key} {problem}; a training needs a vector"
        place = Place(column=key, file=Catalog.INFO)
        fix = (
            f"train with --{flag} KEY, or several joined by +{none}: "
            f"{', '.join(vectors) or 'there is none'}"
        )
        yield Finding("metadata.training", "warning", message, place, fix=fix)
    for key in catalog.camera_keys:
        channels = catalog.features[key].channels
        if not catalog.features[key].is_depth and channels not in (3, None):
            message = f"images have {channels} channels; a training needs RGB"
            fix = f"train with {_cameras(catalog)}"
            yield Finding(
                "metadata.training", "warning", message, Place(camera=key), channels, 3, fix
            )


def _is_axes(names: object, axes: int) -> bool:
    """Whether names are those of the axes instead of the dimensions."""
    return (
        isinstance(names, list | tuple)
        and len(names) == axes
        and all(isinstance(name, str) for name in names)
    )


def check_tasks(catalog: Catalog, facts: RowFacts) -> Iterator[Finding]:
    """Yield findings about tasks."""
    table = catalog.episodes
    file = "meta/tasks.parquet" if catalog.version.startswith("v3") else "meta/tasks.jsonl"
    unknown: dict[int, list[int]] = defaultdict(list)
    for row, tasks in facts.used_tasks.items():
        for task in sorted(tasks):
            if not 0 <= task < len(catalog.tasks):
                unknown[task].append(row)
    for task, rows in unknown.items():
        message = f"task_index {task} is not in the task list"
        expected = f"0 to {len(catalog.tasks) - 1}"
        place = Place.from_rows(catalog, rows, "task_index", file=file)
        fix = f"add its text to {file}, or {drop(place.episodes)}"
        yield Finding("tasks.unknown", "error", message, place, task, expected, fix)
    listed = set(table.task_indices.tolist()).union(*facts.used_tasks.values())
    unused = [task for task, text in enumerate(catalog.tasks) if text and task not in listed]
    complete = bool(facts.is_read[table.lengths > 0].all())
    if unused and (complete or len(table.task_indices)):
        message = f"{len(unused)} tasks have no episode, first {catalog.tasks[unused[0]]!r}"
        fix = f"remove them from {file}, or restore their episodes"
        yield Finding("tasks.unused", "warning", message, Place(file=file), unused[:1000], [], fix)
    yield from _texts(catalog, file)
    yield from _listed(catalog, facts, file)


def _texts(catalog: Catalog, file: str) -> Iterator[Finding]:
    same: dict[str, list[int]] = defaultdict(list)
    exact: dict[str, list[int]] = defaultdict(list)
    for task, text in enumerate(catalog.tasks):
        if text.strip():
            same[" ".join(text.lower().split()).rstrip(".")].append(task)
        if text:
            exact[text].append(task)
    for text, tasks in exact.items():
        if len(tasks) > 1:
            message = f"{text!r} is the text of task_index {tasks[0]} and {tasks[1]}"
            fix = f"give each text one task_index in {file}"
            yield Finding(
                "tasks.repeated", "warning", message, Place(file=file), measured=tasks, fix=fix
            )
    alike = []
    for tasks in same.values():
        texts = {catalog.tasks[task] for task in tasks}
        if len(texts) > 1:
            alike.append(tasks)
    if alike:
        first = catalog.tasks[alike[0][0]]
        second = catalog.tasks[alike[0][-1]]
        message = (
            f"{len(alike)} texts differ in case, spaces or a full stop only: {first!r} and "
            f"{second!r}"
        )
        fix = correct("them", file)
        yield Finding(
            "tasks.repeated", "note", message, Place(file=file), measured=alike[:100], fix=fix
        )
    blank = [task for task, text in enumerate(catalog.tasks) if text and not text.strip()]
    gaps = [task for task, text in enumerate(catalog.tasks) if not text]
    if blank or gaps:
        message = f"task_index {(blank or gaps)[0]} has no text"
        fix = correct("the text", file)
        yield Finding(
            "tasks.repeated",
            "warning",
            message,
            Place(file=file),
            measured=[*blank, *gaps][:1000],
            fix=fix,
        )


def _listed(catalog: Catalog, facts: RowFacts, file: str) -> Iterator[Finding]:
    """Compare the tasks listed for each episode with those of its rows; an episode may list more,
    such as labels.
    """
    table = catalog.episodes
    used = facts.used_tasks
    strange = []
    without = []
    foreign = []
    for row in range(len(table)):
        named = table.tasks_of(row)
        if (named < 0).any():
            foreign.append(row)
        if (
            row in used
            and len(named)
            and not used[row] <= set(named.tolist())
            and (named >= 0).all()
        ):
            strange.append(row)
        if not len(named) and row not in used and facts.is_read[row]:
            without.append(row)
    if strange:
        measured = sorted(used[strange[0]])
        listed = table.tasks_of(strange[0]).tolist()
        message = f"rows have task_index {measured}, meta/ lists {listed}"
        place = Place.from_rows(catalog, strange, "task_index")
        fix = "correct the tasks of the episodes in meta/, or task_index in the rows"
        yield Finding("tasks.listed", "warning", message, place, measured, listed, fix)
    if foreign:
        message = "a task text listed for the episode is not in the task list"
        place = Place.from_rows(catalog, foreign, file=file)
        yield Finding("tasks.listed", "warning", message, place, fix=f"add it to {file}")
    if without:
        message = "meta/ lists no task, and the rows have no task_index"
        place = Place.from_rows(catalog, without)
        yield Finding("tasks.none", "warning", message, place, fix=f"add a task in {file}")
