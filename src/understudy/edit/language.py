"""Records of language columns in a piece of an episode: their times count from its first frame.

A record has a `timestamp` in seconds of its episode, and is active from there on until the next one of its kind. Its
kind are all its other fields but the `content`. In a piece, records that began before it start at 0, and only the
latest of each kind stays; those after its end go.
"""

from collections.abc import Mapping, Sequence
from typing import Any


def shift_records(column: Sequence[Any], start: int, length: int, fps: float) -> list[Any]:
    """Return a language column of a piece; values without a time stay as they are.

    Args:
        column: for each frame of the piece, a list of records or None.
        start: first frame of the piece in its episode.
        length: number of frames of the piece.
        fps: frames per second.
    """
    return [_shift(value, start, length, fps) for value in column]


def _shift(value: Any, start: int, length: int, fps: float) -> Any:
    if not isinstance(value, list) or not all(isinstance(record, Mapping) for record in value):
        return value
    latest: dict[str, tuple[int, int]] = {}  # kind -> frame and place of the record that is active at the start
    frames: list[int | None] = []
    for place, record in enumerate(value):
        time = record.get("timestamp")
        frame = None if time is None else round(float(time) * fps) - start
        frames.append(frame)
        if frame is not None and frame <= 0:
            kind = repr(sorted((k, v) for k, v in record.items() if k not in ("timestamp", "content")))
            latest[kind] = max(latest.get(kind, (frame, place)), (frame, place), key=lambda found: found[0])
    active = {place for _, place in latest.values()}
    kept = []
    for place, (record, frame) in enumerate(zip(value, frames)):
        if frame is None:
            kept.append(record)
        elif place in active or 0 < frame < length:
            kept.append({**record, "timestamp": max(0, frame) / fps})
    return kept
