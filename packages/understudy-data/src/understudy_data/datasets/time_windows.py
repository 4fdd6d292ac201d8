"""Windows in time around a frame: from `delta_timestamps` in seconds to clamped frame numbers and
padding flags.

Rows and images, single samples and batches all use it. Integer arithmetic; reads no data.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from understudy_base import DatasetError

TOLERANCE_S = 1e-4
"""Default of the largest distance of a delta from a multiple of 1/fps, in seconds, as LeRobot's."""

_LONGEST_S = 1e6  # eleven days; anything longer, and NaN, is a mistake


def frame_offsets(
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    fps: float,
    keys: Sequence[str],
    sensors: Collection[str] = (),
    tolerance_s: float = TOLERANCE_S,
) -> dict[str, np.ndarray]:
    """Convert windows from seconds to frames: key -> int64 (T,); those of `sensors` to float64
    seconds (T,).

    Raises:
        DatasetError: an unknown key, no deltas, or a delta that is not a multiple of 1/fps within
            `tolerance_s`. That of a sensor may be any number of seconds. A tolerance that is
            negative, or half a frame or more.
    """
    if tolerance_s != TOLERANCE_S and not 0 <= tolerance_s < 0.5 / fps:  # any fps takes the default
        problem = f"tolerance_s is {tolerance_s!r}"
        raise DatasetError(
            problem, fix=f"give 0 or more, and less than half a frame, {0.5 / fps:.6g} s"
        )
    if not isinstance(delta_timestamps, Mapping | None):
        problem = f"delta_timestamps is {str(delta_timestamps)[:80]}"
        raise DatasetError(problem, fix='give seconds by key, as in {"action": [0, 0.1]}')
    offsets = {}
    for key, deltas in (delta_timestamps or {}).items():
        if key not in keys:
            raise DatasetError(
                f"delta_timestamps names {key!r}", fix=f"the keys are {', '.join(keys)}"
            )
        if isinstance(deltas, (str, bytes)) or not isinstance(deltas, Iterable):
            raise DatasetError(
                f"delta_timestamps[{key!r}] is {deltas!r}", fix="give a list of seconds"
            )
        if key in sensors:
            offsets[key] = np.asarray([_seconds(key, delta) for delta in deltas], np.float64)
        else:
            offsets[key] = np.asarray(
                [_offset(key, delta, fps, tolerance_s) for delta in deltas], np.int64
            )
        if len(offsets[key]) == 0:
            raise DatasetError(
                f"delta_timestamps[{key!r}] is empty",
                fix="give at least one delta, 0 for the frame itself",
            )
    return offsets


def _seconds(key: str, delta: float) -> float:
    if not isinstance(delta, (int, float, np.integer, np.floating)) or not abs(delta) < _LONGEST_S:
        raise DatasetError(f"delta_timestamps[{key!r}] holds {delta!r}", fix="give seconds")
    return float(delta)


def _offset(key: str, delta: float, fps: float, tolerance_s: float) -> int:
    frames = round(_seconds(key, delta) * fps)
    if abs(frames / fps - float(delta)) > tolerance_s:
        near = f"{frames / fps:.6g}"
        raise DatasetError(
            f"delta_timestamps[{key!r}] holds {float(delta):.6g} s, which is not a multiple of "
            f"1/fps = {1 / fps:.6g} s",
            fix=f"the nearest is {near} s; tolerance_s={tolerance_s:g} is the largest distance",
        )
    return int(frames)


def window(
    frames: np.ndarray, offsets: np.ndarray, start: np.ndarray, stop: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Clamp windows to their bounds.

    Args:
        frames: int64 (B,), frame numbers inside their episodes.
        offsets: int64 (T,), frames relative to the sample.
        start: int64 (B,), first frame of each window's bounds.
        stop: int64 (B,), end (exclusive) of the bounds.

    Returns:
        Frame numbers int64 (B, T) and padding flags bool (B, T). Outside the bounds the nearest
        frame is repeated and the flag is True.
    """
    numbers = frames[:, None] + offsets[None, :]
    low = start[:, None]
    high = stop[:, None] - 1
    return np.clip(numbers, low, high), (numbers < low) | (numbers > high)


def reach(offsets: Sequence[np.ndarray]) -> tuple[int, int]:
    """Return the frames that windows reach (back, ahead), both >= 0."""
    back = max((max(0, -int(o.min())) for o in offsets), default=0)
    ahead = max((max(0, int(o.max())) for o in offsets), default=0)
    return back, ahead
