"""Annotations from files: subtasks of frames, metadata of episodes, task texts."""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import DatasetError
from understudy_data import Catalog, EpisodeNames, Responses, Rows
from understudy_tools.edit.plan import Piece, TextColumn, Unit, match_all, to_frame

_EPISODE = ("episode_index", "episode")
_STARTS = ("start", "timestamp", "time", "start_time")
_STOPS = ("stop", "end", "end_time")
_TEXTS = ("subtask", "response", "text", "content", "label")
_SUBTASKS = (
    'key of an episode -> [{"start": 0, "end": 1.5, "subtask": "reach"}, ...]; "end" may be missing'
)
_WHOLE = re.compile(r"[+-]?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_subtasks(catalog: Catalog, path: str, unit: Unit) -> TextColumn:
    """Read the subtasks of frames from a JSON or CSV file.

    A subtask is active from its start to its end, or without one to the next start or the episode's
    end. Frames without a subtask have the text "".

    Args:
        catalog: the only source.
        path: JSON, key of an episode -> list of {"start", "end", "subtask"}; or CSV with the
            columns episode_index, start, end (optional) and subtask. For "start", "timestamp" and
            "time" count as well, for "subtask" also "response", "text", "content" and "label".
        unit: unit of the times. Seconds are rounded to the nearest frame.

    Raises:
        DatasetError: the file cannot be read, names an unknown episode, or a subtask overlaps or
            leaves its episode.
    """
    entries = (
        _csv_entries(path) if path.endswith(".csv") else EpisodeNames.read_object(path, _SUBTASKS)
    )
    texts: dict[int, list[str]] = {}
    for key, row in match_all(catalog, entries, path):
        length = int(catalog.episodes.lengths[row])
        texts[row] = _fill(_parse(entries[key], key, catalog.fps, unit, path), key, length, path)
    return partial(_subtasks, texts)


def _subtasks(texts: Mapping[int, list[str]], piece: Piece) -> Sequence[str]:
    frame_texts = texts.get(piece.row)
    return frame_texts[piece.start : piece.stop] if frame_texts is not None else [""] * piece.length


def _parse(
    entry: Any, key: object, fps: float, unit: Unit, path: str
) -> list[tuple[int, int | None, str]]:
    subtasks = []
    items = entry if isinstance(entry, list) else [None]
    for item in items:
        start, stop, text = (_first(item, names) for names in (_STARTS, _STOPS, _TEXTS))
        frame = to_frame(start, fps, unit)
        last = None if stop is None else to_frame(stop, fps, unit)
        if frame is None or not isinstance(text, str) or (stop is not None and last is None):
            problem = (
                f"{key!r}: {json.dumps(item, ensure_ascii=False, default=str)[:100]} is not "
                f"a subtask in {unit}"
            )
            raise DatasetError(problem, where=path, fix=f"give {_SUBTASKS}")
        subtasks.append((frame, last, text))
    return sorted(subtasks, key=lambda subtask: subtask[0])


def _first(item: Any, names: Sequence[str]) -> Any:
    """Value of the first of `names` that an object has."""
    if not isinstance(item, Mapping):
        return None
    return next((item[name] for name in names if item.get(name) is not None), None)


def _fill(
    subtasks: list[tuple[int, int | None, str]], key: object, length: int, path: str
) -> list[str]:
    texts = [""] * length
    previous_end = 0
    following = [start for start, _, _ in subtasks[1:]] + [length]
    for (start, stop, text), next_start in zip(subtasks, following):
        end = next_start if stop is None else stop
        if not previous_end <= start < end <= length or end > max(next_start, start):
            problem = (
                f"{key!r}: subtask {text!r} has frames {start} to {end} of {length}, and the "
                f"next begins at {next_start}"
            )
            raise DatasetError(
                problem,
                where=path,
                fix="give subtasks that neither overlap nor leave their episode",
            )
        texts[start:end] = [text] * (end - start)
        previous_end = end
    return texts


def _csv_entries(path: str) -> dict[str, list[dict[str, Any]]]:
    entries: dict[str, list[dict[str, Any]]] = {}
    for episode, line in _read_csv(path):
        times = {name: _typed(text) for name, text in line.items() if name in (*_STARTS, *_STOPS)}
        entries.setdefault(episode, []).append(
            {name: text or None for name, text in line.items()} | times
        )
    return entries


def text_column(catalog: Catalog, name: str) -> TextColumn:
    """Return the texts of a column for the frames of a piece.

    Args:
        catalog: the source.
        name: a text column, `COLUMN:STYLE` of a language column, or "task"; see `data.read.texts`.

    Raises:
        DatasetError: there is no such column, or it holds no text.
    """
    responses = Responses(catalog, name)
    return partial(
        _responses, catalog.tasks, responses, Rows(catalog, list(responses.columns), 1 << 26)
    )


def _responses(
    task_texts: Sequence[str], responses: Responses, rows: Rows, piece: Piece
) -> Sequence[str]:
    rows_of_frames = np.full(piece.length, piece.row)
    numbers = rows.take(rows_of_frames, {"task_index": piece.frames})["task_index"]
    tasks = [task_texts[int(number)] for number in np.asarray(numbers).tolist()]
    return responses.read(rows, rows_of_frames, piece.frames, tasks)["response"]


def read_metadata(catalog: Catalog, path: str) -> dict[str, dict[int, Any]]:
    """Read metadata of episodes from a file: name -> episode id -> number, text, true, false or
    None.

    Args:
        catalog: the only source.
        path: JSON, key of an episode -> {name: value}; or CSV with the column episode_index and one
            column per name, where an empty field is None.

    Raises:
        DatasetError: the file cannot be read, names an unknown episode or lacks one, or a value is
            of another kind.
    """
    form = 'an object: key of an episode -> {"success": true, "quality": 3}'
    entries: dict[str, Any]
    if path.endswith(".csv"):
        lines = _read_csv(path)
        typed = _typed_columns([line for _, line in lines])
        entries = {episode: values for (episode, _), values in zip(lines, typed)}
        if len(entries) < len(lines):
            raise DatasetError(
                "an episode has two lines", where=path, fix="give each episode one line"
            )
    else:
        entries = EpisodeNames.read_object(path, form)
    matched = match_all(catalog, entries, path)
    rows = {row for _, row in matched}
    without = [int(e) for row, e in enumerate(catalog.episodes.ids) if row not in rows]
    if without:
        problem = (
            f"has nothing about {len(without)} of {len(catalog.episodes)} episodes, first "
            f"{without[0]}"
        )
        raise DatasetError(
            problem, where=path, fix="name all episodes; a value that is not known is null"
        )
    metadata: dict[str, dict[int, Any]] = {}
    for key, row in matched:
        if not isinstance(entries[key], dict):
            raise DatasetError(
                f"{key!r} is {str(entries[key])[:60]}", where=path, fix=f"give {form}"
            )
        for name, value in entries[key].items():
            if Catalog.OF_FORMAT.match(name) or not name:
                raise DatasetError(
                    f"{name!r} is a name of the format itself", where=path, fix="name it otherwise"
                )
            if not (value is None or isinstance(value, (bool, int, float, str))):
                raise DatasetError(
                    f"{key!r}: {name!r} is {str(value)[:60]}", where=path, fix=f"give {form}"
                )
            if value is not None:
                metadata.setdefault(name, {})[int(catalog.episodes.ids[row])] = value
    return metadata


def read_starts(catalog: Catalog, path: str) -> dict[int, float]:
    """Read the time at which each episode begins in a video from a file: table row -> seconds.

    Args:
        catalog: the only source.
        path: JSON, key of an episode -> seconds; or CSV with the columns episode_index and start.

    Raises:
        DatasetError: the file cannot be read, names an unknown episode, or a start is not a number.
    """
    form = "an object: key of an episode -> seconds of its first frame in the video"
    entries: dict[str, Any] = {}
    if path.endswith(".csv"):
        for episode, line in _read_csv(path):
            if episode in entries:
                problem = f"episode {episode} has two lines"
                raise DatasetError(problem, where=path, fix="give each episode one line")
            entries[episode] = _typed(_first(line, _STARTS) or "")
    else:
        entries = EpisodeNames.read_object(path, form)
    starts: dict[int, float] = {}
    for key, row in match_all(catalog, entries, path):
        start = entries[key]
        is_number = isinstance(start, (int, float)) and not isinstance(start, bool)
        if not is_number or not math.isfinite(start):
            raise DatasetError(f"{key!r} is {str(start)[:60]}", where=path, fix=f"give {form}")
        starts[row] = float(start)
    return starts


def piece_metadata(
    catalogs: Sequence[Catalog], pieces: Sequence[Piece], attached: Mapping[str, Mapping[int, Any]]
) -> dict[str, list[Any]]:
    """Return the metadata of pieces: that of their episodes in the sources, and of the only
    source's file.

    Where a piece lacks the last frame of its episode, `Catalog.END_IS_CUT` is true; then each piece
    has this mark. An earlier mark ends where the file says how the episode ended: `attached` has
    its "success" or "truncated".
    """
    of_source = [catalog.episode_metadata() for catalog in catalogs]
    if attached:
        of_source[0] = of_source[0] | {name: dict(values) for name, values in attached.items()}
    names = dict[str, None]()
    for metadata in of_source:
        names.update(dict.fromkeys(name for name in metadata if not Catalog.OF_FORMAT.match(name)))
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for piece in pieces:
        episode = int(catalogs[piece.source].episodes.ids[piece.row])
        for name in names:
            columns[name].append(of_source[piece.source].get(name, {}).get(episode))
        if any(
            attached.get(name, {}).get(episode) is not None for name in ("success", "truncated")
        ):
            columns.get(Catalog.END_IS_CUT, [None])[-1] = None
    lengths = [catalog.episodes.lengths for catalog in catalogs]
    marks = columns.get(Catalog.END_IS_CUT, [False] * len(pieces))
    cut = [
        bool(mark) or piece.stop < lengths[piece.source][piece.row]
        for piece, mark in zip(pieces, marks)
    ]
    if any(cut):
        columns[Catalog.END_IS_CUT] = cut
    return {name: values for name, values in columns.items() if _has_value(values)}


def _has_value(column: Sequence[Any]) -> bool:
    return any(value is not None for value in column)


def _read_csv(path: str) -> list[tuple[str, dict[str, str]]]:
    """Lines of a CSV file: the episode, and the text of each other column."""
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            lines = list(reader)
            head = list(reader.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            f"cannot be read as CSV: {error}", where=path, fix="give UTF-8 text with a head line"
        ) from None
    if "" in head or len(set(head)) < len(head):
        problem = "a column has no name"
        if "" not in head:
            problem = f"two columns are named {max(head, key=head.count)!r}"
        raise DatasetError(
            problem, where=path, fix="name each column once; for pandas, to_csv(..., index=False)"
        )
    rows = []
    for number, line in enumerate(lines, 2):
        episode = _first(line, _EPISODE)
        if not episode or None in line or None in line.values():
            problem = f"line {number} has no episode_index, or other fields than the head line"
            raise DatasetError(problem, where=path, fix="give the column episode_index")
        rows.append((str(episode), {k: v for k, v in line.items() if k not in _EPISODE}))
    return rows


def _typed_columns(lines: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Values of CSV fields. A column in which one field is a text holds texts only, as written."""
    rows: list[dict[str, Any]] = []
    texts = set[str]()
    for line in lines:
        row = {name: _typed(text) for name, text in line.items()}
        rows.append(row)
        texts.update(name for name, value in row.items() if isinstance(value, str))
    for line, row in zip(lines, rows):
        for name in texts & row.keys():
            row[name] = line[name] or None
    return rows


def _typed(text: str) -> Any:
    """Value of a CSV field: None, a truth value, a number or text. A number with leading zeros is a
    text.
    """
    if text.lower() in ("", "true", "false"):
        return {"": None, "true": True, "false": False}[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) < 20 and abs(int(text)) < 2**63 else text
    if _DECIMAL.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text


def read_tasks(path: str, old_tasks: Sequence[str]) -> dict[str, str]:
    """Read {task text: new text} from a JSON file.

    Args:
        path: the file.
        old_tasks: the sources' task texts.

    Raises:
        DatasetError: the file cannot be read, or names a task that no source has.
    """
    content = EpisodeNames.read_object(path, "an object: task text -> new text")
    for old, new in content.items():
        if old not in old_tasks:
            raise DatasetError(
                f"{old!r} is not a task of a source",
                where=path,
                fix=f"its tasks: {_brief(old_tasks)}",
            )
        if not isinstance(new, str) or not new.strip():
            raise DatasetError(f"{old!r} becomes {new!r}", where=path, fix="give a text")
    return content


def _brief(texts: Sequence[str]) -> str:
    """First few of the texts."""
    listed = ", ".join(map(repr, texts[:5]))
    return f"{listed}, ..." if len(texts) > 5 else listed
