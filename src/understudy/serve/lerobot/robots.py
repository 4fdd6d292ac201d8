"""One robot: its newest observation, and the observations that are skipped.

LeRobot's client sends an observation in each control step in which few actions are left, and waits for a chunk in
another thread. Only the newest observation is computed. Those of a computed timestep are skipped, and those like the
last computed one, unless the robot has no action left (`must_go`). The client sets `must_go` once, and again after the
next chunk. So after a failure the next observation is never skipped.
"""

import asyncio
import time
from typing import Any, Literal

import numpy as np

from understudy.batch_keys import STATE
from understudy.serve.lerobot.mapping import Inputs
from understudy.serve.lerobot.messages import Observation
from understudy.serve.session import Session

SIMILAR = 0.05
"""Distance of two similar states, in deviations of training. LeRobot's is 1 in the unit of the joints, which would skip
nearly all observations of a robot that sends radians."""
_MOST_TIMESTEPS = 10_000  # kept ones

Skipped = Literal["", "predicted", "similar"]


class Robot:
    """State of one client. All methods are called in the event loop.

    Args:
        name: in the log.
        session: of its requests.
        scale: deviation of each dimension of the state in training; None: no observation is similar to another.

    Attributes:
        inputs: of its features; None: it gave no instructions.
        most_actions: of an answer.
        serving: held while an answer is in work.
        receiving: whether an observation arrives.
        seen: `time.monotonic` of its last call.
    """

    def __init__(self, name: str, session: Session, scale: np.ndarray | None) -> None:
        self.name, self.session = name, session
        self.inputs: Inputs | None = None
        self.most_actions: int | None = None
        self.serving = asyncio.Lock()
        self.receiving = False
        self.seen = time.monotonic()
        self._scale = scale
        self._newest: tuple[Observation, dict[str, Any], float] | None = None
        self._arrived = asyncio.Event()
        self._predicted: dict[int, None] = {}
        self._state: np.ndarray | None = None
        self._owed = True  # the robot waits for the chunk of its next observation

    def offer(self, observation: Observation, inputs: dict[str, Any], since: float) -> tuple[Skipped, bool]:
        """Keep an observation as the newest one, unless it is skipped.

        Args:
            observation: of the robot.
            inputs: the same in the policy's keys.
            since: `time.monotonic` of its arrival.

        Returns:
            Why it is skipped, or ""; and whether it replaces one that waited.
        """
        self._owed |= observation.must_go
        if not self._owed:
            if observation.timestep in self._predicted:
                return "predicted", False
            if self._is_similar(inputs.get(STATE)):
                return "similar", False
        replaced = self._newest is not None
        self._newest = observation, inputs, since
        self._arrived.set()
        return "", replaced

    async def take(self, seconds: float) -> tuple[Observation, dict[str, Any], float] | None:
        """Wait for an observation, and remove it; None: none came, or `wake` was called."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return None
        self._arrived.clear()
        found, self._newest = self._newest, None
        if found is not None:
            observation, inputs, _ = found
            self._owed = False
            self._state = inputs.get(STATE)
            self._predicted[observation.timestep] = None
            if len(self._predicted) > _MOST_TIMESTEPS:
                del self._predicted[next(iter(self._predicted))]
        return found

    def wake(self) -> None:
        """End the wait of `take`."""
        self._arrived.set()

    def mark_failed(self) -> None:
        """An observation got no chunk: the next one is not skipped."""
        self._owed = True

    def _is_similar(self, state: np.ndarray | None) -> bool:
        if self._scale is None or state is None or self._state is None or len(state) != len(self._scale):
            return False
        return bool(np.linalg.norm((state - self._state) / self._scale) < SIMILAR)
