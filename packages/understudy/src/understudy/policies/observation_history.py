"""Past observations of an episode, on a robot or in a simulation: the windows that training read
from recordings.

    history = ObservationHistory({"observation.images.front": (-2.0, -1.0, 0.0)}, fps=30)
    history.add({"observation.images.front": image})  # each control step
    history.windows()  # the frames of 2 s and 1 s ago, and the present

Before the start of the episode a window repeats its first observation and is padding there, as in
training.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite

import numpy as np

from understudy_base import Record

TOLERANCE_S = 1e-4
"""Seconds by which a time may miss a step or the start of an episode, as in
`datasets/time_windows.py`.
"""


@dataclass(frozen=True)
class _Moment:
    time: float
    """Seconds, or the number of the step."""
    values: Mapping[str, np.ndarray]


class ObservationHistory:
    """Observations of one episode, as far back as a policy sees.

    All observations of that reach stay in memory, at the size in which they come: each grows as old
    as every time of the window, and may be asked for then. Ages of 5 4 3 2 1 s at 50 observations
    per second are 251 of them, 690 MB with three cameras of 480 x 640 pixels.

    With a `time` for each observation a window has the one whose time is nearest. Without, each
    observation is one step of 1/fps.

    Args:
        times: key -> times of its window in seconds from the present, ascending, 0 last.
        fps: steps per second; None: every observation needs its time.

    Raises:
        ValueError: a time is not a multiple of 1/fps.
    """

    def __init__(self, times: Mapping[str, Sequence[float]], fps: float | None = None) -> None:
        self.fps = fps
        self._times = {key: tuple(map(float, ages)) for key, ages in times.items()}
        if fps is not None:
            for ages in self._times.values():
                _check_steps(ages, fps)
        self._longest = -min((ages[0] for ages in self._times.values()), default=0.0)
        self._kept: deque[_Moment] = deque()
        self._by_time = False
        self._start = 0.0

    def __len__(self) -> int:
        """Return the number of observations in memory."""
        return len(self._kept)

    def reset(self) -> None:
        """Forget all observations: the next one is the first of an episode."""
        self._kept.clear()

    def copy(self) -> "ObservationHistory":
        """Return a history of the same observations, which it shares: one to `add` to while this
        one stays.
        """
        duplicate = copy(self)
        duplicate._kept = self._kept.copy()
        return duplicate

    def add(self, values: Record, time: float | None = None) -> None:
        """Add a copy of the present observation.

        Args:
            values: arrays by key; keys without a window are ignored.
            time: seconds on any clock. None: one step after the last observation.

        Raises:
            ValueError: `time` is not finite, not later than the last one, or given for some
                observations only; without it there are no `fps`; a key is missing, or its shape or
                dtype differs from the first one's.
        """
        last = self._kept[-1] if self._kept else None
        if last is None:
            self._by_time = time is not None
            self._start = time or 0.0
        if (time is not None) != self._by_time:
            raise ValueError(
                f"time is {time}; give the time of all observations of an episode or of none, or "
                "reset()"
            )
        if time is None and self.fps is None:
            raise ValueError(
                "time is None, and the policy names no frame rate; give the time of each "
                "observation"
            )
        if time is not None and not isfinite(time):
            raise ValueError(f"time is {time}; give seconds")
        if time is not None and last is not None and time <= last.time:
            raise ValueError(
                f"time is {time}, not after the last one, {last.time}; reset() starts an episode"
            )
        if time is not None:
            now = time
        else:
            now = 0.0 if last is None else last.time + 1
        self._kept.append(_Moment(now, {key: self._copy(key, values) for key in self._times}))
        unit = 1 if self._by_time else self.fps or 1
        oldest = now - self._longest * unit
        # An observation can be nearest no more once the next one is old enough.
        while len(self._kept) > 1 and self._kept[1].time <= oldest + TOLERANCE_S:
            self._kept.popleft()

    def windows(self) -> dict[str, np.ndarray]:
        """Return the window of each key, [T, ...], and `<key>_is_pad`, bool [T].

        Raises:
            ValueError: there is no observation; or none near one of the times, by half the distance
                of two times.
        """
        if not self._kept:
            raise ValueError("there is no observation yet; add() one first")
        windows: dict[str, np.ndarray] = {}
        for key, times in self._times.items():
            moments, padded = zip(*(self._at(seconds, times) for seconds in times))
            windows[key] = np.stack([moment.values[key] for moment in moments])
            windows[f"{key}_is_pad"] = np.array(padded)
        return windows

    def _at(self, seconds: float, times: Sequence[float]) -> tuple[_Moment, bool]:
        """Observation nearest to a time of a window, and whether it lies before the episode."""
        if not self._by_time:
            assert self.fps is not None
            seconds = round(seconds * self.fps)
        time = self._kept[-1].time + seconds
        if time < self._start - TOLERANCE_S:
            return self._kept[0], True
        nearest = min(self._kept, key=lambda moment: abs(moment.time - time))
        gap = min((later - earlier for earlier, later in pairwise(times)), default=inf)
        if self._by_time and abs(nearest.time - time) > gap / 2 + TOLERANCE_S:
            raise ValueError(
                f"the observation nearest to {seconds:g} s is that of "
                f"{nearest.time - self._kept[-1].time:g} s; the policy sees times {gap:g} s apart: "
                "observe() each control step, or reset() after a pause"
            )
        return nearest, False

    def _copy(self, key: str, values: Record) -> np.ndarray:
        if key not in values:
            raise ValueError(f"the observation has {sorted(values)}, the history needs {key!r}")
        value = np.array(values[key])  # a copy: drivers reuse their buffers
        if self._kept:
            first = self._kept[0].values[key]
            if (value.shape, value.dtype) != (first.shape, first.dtype):
                message = (
                    f"{key} is {value.dtype} {value.shape}, and was {first.dtype} "
                    f"{first.shape} before"
                )
                raise ValueError(f"{message}; reset() starts an episode")
        return value


def _check_steps(times: Sequence[float], fps: float) -> None:
    for seconds in times:
        if abs(round(seconds * fps) / fps - seconds) > TOLERANCE_S:
            raise ValueError(
                f"the policy sees {-seconds:g} s back, which is not a multiple of 1/fps = "
                f"{1 / fps:.6g} s; observe at another rate, or give the time of each observation"
            )
