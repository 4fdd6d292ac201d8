"""Cuts of episodes into segments: at given times, where a text column changes, or at idle gaps."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from understudy.data.format.catalog import Catalog
from understudy.data.selection.idle import IdleRule, non_idle_ranges
from understudy.data.selection.keep_keys import match_keys
from understudy.data.selection.motion import episode_values
from understudy.edit.plan import Piece, TextColumn
from understudy.errors import DatasetError

Unit = Literal["seconds", "frames"]

_FORMAT = "an object: key of an episode -> cut points [1.5, 4], or segments [[0, 1.5], [2, 4]]"


def cut_at_times(catalog: Catalog, source: int, path: str, unit: Unit) -> list[Piece]:
    """Cut episodes as a JSON file names it; episodes without a key are left out.

    Args:
        catalog: the source.
        source: its number.
        path: the file: key of an episode -> cut points, or segments [start, end). Keys are those of keep-ranges.
        unit: of the times in the file. Seconds are rounded to the nearest frame.

    Raises:
        DatasetError: the file cannot be read, or a segment is empty, overlaps another or leaves its episode.
    """
    content = read_object(path, _FORMAT)
    pieces = []
    for key, row in match_all(catalog, content, path):
        length = int(catalog.episodes.lengths[row])
        for start, stop in _segments(content[key], key, length, catalog.fps, unit, path):
            pieces.append(Piece(source, row, start, stop))
    return pieces


def _segments(entry: Any, key: object, length: int, fps: float, unit: Unit, path: str) -> list[tuple[int, int]]:
    def refuse(what: str) -> DatasetError:
        return DatasetError(f"{key!r}: {what}", where=path, fix=f"give {_FORMAT}")

    if not isinstance(entry, list):
        raise refuse(f"{str(entry)[:60]} is no list")
    pairs = all(isinstance(item, list) and len(item) == 2 for item in entry)
    flat = [time for item in entry for time in item] if pairs else entry
    frames = [to_frame(time, fps, unit) for time in flat]
    if None in frames:
        raise refuse(f"{flat[frames.index(None)]!r} is no time in {unit}")
    numbers = [frame for frame in frames if frame is not None]
    if not pairs:
        numbers = [n for point in numbers for n in (point, point)]
        numbers = [0, *numbers, length]
    segments = list(zip(numbers[::2], numbers[1::2]))
    for start, stop in segments:
        if not 0 <= start < stop <= length:
            raise refuse(f"frames {start} to {stop} of an episode of {length} frames")
    for (_, before), (after, _) in pairwise(segments):
        if after < before:
            raise refuse(f"segments overlap at frame {after}, or are not in order")
    return segments


def cut_by_text(catalog: Catalog, source: int, texts: TextColumn) -> list[Piece]:
    """Cut episodes where the text of a frame differs from the one before; frames with an empty text are left out."""
    pieces = []
    for row, length in enumerate(catalog.episodes.lengths.tolist()):
        if not length:
            continue
        own = list(texts(Piece(source, row, 0, length)))
        turns = [i for i in range(length) if i == 0 or own[i] != own[i - 1]]
        for start, stop in zip(turns, [*turns[1:], length]):
            if own[start].strip():
                pieces.append(Piece(source, row, start, stop))
    return pieces


def cut_at_pauses(catalog: Catalog, source: int, keys: Sequence[str], rule: IdleRule) -> list[Piece]:
    """Cut episodes at their idle gaps, which are left out (`data.selection.idle`).

    Args:
        catalog: the source.
        source: its number.
        keys: numeric columns that are compared.
        rule: definition of an idle frame and of a gap.

    Raises:
        DatasetError: a column cannot be read.
    """
    pieces = [
        Piece(source, row, start, stop)
        for row, values in episode_values(catalog, keys)
        for start, stop in non_idle_ranges(values, rule)
    ]
    return sorted(pieces, key=lambda piece: (piece.row, piece.start))


def match_all(catalog: Catalog, entries: Mapping[str, Any], path: str) -> list[tuple[str, int]]:
    """Return (key, table row) of each entry of a file, by row; keys are those of keep-ranges.

    Raises:
        DatasetError: a key is no episode, or two keys are one episode.
    """
    matched, _ = match_keys(catalog, list(entries), path)
    lost = [key for key in entries if key not in matched]
    if lost:
        raise DatasetError(f"{lost[0]!r} is no episode of {catalog.root}", where=path, fix="remove it")
    found = sorted(((key, matched[key]) for key in entries), key=lambda item: item[1])
    for (key, row), (other, after) in pairwise(found):
        if row == after:
            raise DatasetError(f"{key!r} and {other!r} are one episode", where=path, fix="give each episode one key")
    return found


def to_frame(time: object, fps: float, unit: Unit) -> int | None:
    """Return the frame of a time; None for no finite number, or a fraction of a frame."""
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not abs(time) < 1e12:
        return None
    if unit == "seconds":
        return round(time * fps)
    return int(time) if time == int(time) else None


def _unique(pairs: list[tuple[str, Any]], path: str) -> dict[str, Any]:
    """Build an object of JSON; the parser itself keeps only the last value of a repeated name."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise DatasetError(f"{repeated!r} is repeated", where=path, fix="give each name one value")
    return content


def read_object(path: str, form: str) -> dict[str, Any]:
    """Read a JSON file that holds an object. Raises DatasetError; `form` describes the object."""
    try:
        content = json.loads(Path(path).read_bytes(), object_pairs_hook=lambda pairs: _unique(pairs, path))
    except OSError as error:
        raise DatasetError(f"cannot be read: {error.strerror}", where=path, fix=f"give {form}") from None
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"not valid JSON: {error}", where=path, fix="repair or restore it") from None
    if not isinstance(content, dict) or not content:
        raise DatasetError("holds no object", where=path, fix=f"give {form}")
    return content
