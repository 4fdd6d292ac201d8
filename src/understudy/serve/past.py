"""Observations that a client keeps for a policy with a history: those that the server lacks, and after a reconnect all.

A server that restarts has forgotten the episode. Its policy then sees the same past again, and no gap.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

Entry = tuple[int, float | None, Mapping[str, Any]]
"""(control step, seconds or None, observation)."""
_SLACK_S = 1e-4  # as in `policies/observation_history.py`


class PastObservations:
    """Observations of one episode, as far back as the policy sees.

    Args:
        reach_s: seconds that the policy sees back.
        fps: control steps per second; None: the robot gives times.
    """

    def __init__(self, reach_s: float, fps: float | None) -> None:
        self._reach_s, self._fps = reach_s, fps
        self._kept: deque[Entry] = deque()
        self._sent = 0  # of the kept ones, the first ones, that the server has

    def __len__(self) -> int:
        """Return the number of observations in memory."""
        return len(self._kept)

    def reset(self) -> None:
        """Forget all observations: an episode starts."""
        self._kept.clear()
        self._sent = 0

    def add(self, step: int, time: float | None, observation: Mapping[str, Any]) -> None:
        """Keep a copy of an observation, and forget those that are too old."""
        own = {key: np.array(value) if isinstance(value, np.ndarray) else value for key, value in observation.items()}
        self._kept.append((step, time, own))
        while len(self._kept) > 1 and self._age(self._kept[1]) >= self._reach_s - _SLACK_S:
            self._kept.popleft()
            self._sent = max(0, self._sent - 1)

    def unsent(self) -> list[Entry]:
        """Return the observations that the server lacks."""
        return list(self._kept)[self._sent :]

    def mark_sent(self) -> None:
        """The server has all of them."""
        self._sent = len(self._kept)

    def mark_lost(self) -> None:
        """The server has none of them: its connection ended."""
        self._sent = 0

    def _age(self, entry: Entry) -> float:
        step, time, _ = self._kept[-1]
        if time is not None and entry[1] is not None:
            return time - entry[1]
        return (step - entry[0]) / self._fps if self._fps else 0.0
