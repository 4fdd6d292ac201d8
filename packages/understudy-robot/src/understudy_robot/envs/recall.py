"""A table that needs memory: move to the pad that was lit in the first second.

Four equal pads lie around a hand, seen from above. One of them is lit for the first second. Then
all are dark for 1 to 1.5 seconds, until a lamp turns from red to green. Before that the hand is
locked. The instruction is the same in every scene, and the first pad that the hand reaches ends the
episode. From the end of the first second on, observations do not depend on the pad that was lit,
until the hand moves: without memory, success is 1 in 4.

A chunk of up to `WAIT[0]` + 1 actions that was predicted while the pad was lit ends before the hand
can move.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from understudy_robot.envs.env import (
    Outcome,
    image_feature,
    select_by_name,
    uniforms,
    vector_feature,
)

CAMERA = "top"
TASK = "move to the pad that was lit"
WRONG = "move to another pad"
"""Name of the outcome in which another pad is reached."""
FPS = 10
LIT = 10
"""Steps in which the pad is lit."""
WAIT = (10, 15)
"""Least and most steps between these and the first one in which the hand may move."""
MAX_STEPS = 50
STEP = 0.015
"""Metres that the hand moves along an axis for an action of 1."""
PADS = 0.10 * np.array([[-1, -1], [1, -1], [-1, 1], [1, 1]])
"""Centres (4, 2) of the pads, metres."""
RADIUS = 0.035
"""Radius of a pad, metres."""
START = 0.04
"""The hand begins in [-START, START] x [-START, START]."""
LIMIT = 0.16
"""Largest coordinate of the hand, and half the side of the image, metres."""
NOISE = 0.15
"""Standard deviation of the noise in recordings, on executed actions."""

_TABLE = (116, 132, 150)
_DARK = (70, 72, 80)
_BRIGHT = (255, 226, 70)
_HAND = (235, 235, 240)
_LAMP = np.array([0.0, 0.125])
_RED = (225, 40, 35)
_GREEN = (40, 210, 70)
_LAMP_RADIUS = 0.028
_HAND_RADIUS = 0.022


def layout(seed: int) -> tuple[int, int, np.ndarray]:
    """Draw a scene, a pure function of `seed` (0 <= seed < 2**128).

    Returns:
        Number of the lit pad, the first step in which the hand may move, and the hand's position
        (2,) in metres; all independent and uniform.
    """
    draws = uniforms(seed, 4)
    go = LIT + WAIT[0] + int(draws[1] * (WAIT[1] - WAIT[0] + 1))
    return int(draws[0] * len(PADS)), go, START * (2 * draws[2:] - 1)


def move_to(hand: np.ndarray, pad: int) -> np.ndarray:
    """Compute the action float32 (2,) from `hand` (2,) towards a pad, in a straight line at full
    speed.
    """
    move = (PADS[pad] - hand) / STEP
    return (move / max(1.0, float(np.abs(move).max()))).astype(np.float32)


class RecallEnv:
    """The table as an `Env`.

    Keys: `observation.images.top`, `observation.state` (hand x, y in metres). Actions are the
    hand's velocity along x and y; 1 is 1.5 cm per step.

    Attributes:
        lit: Number of the pad of this episode, in the sequence of `PADS`.
        go: First step in which the hand may move.
        hand: Position float64 (2,), metres.
    """

    name = "recall"
    fps = FPS
    max_steps = MAX_STEPS
    episodes = 30
    one_scene = False
    noise = NOISE
    conditions: ClassVar[Mapping[str, str]] = {}  # no simulator but this file

    def __init__(
        self,
        size: int | None = None,
        cameras: Sequence[str] | None = None,
        tasks: Sequence[str] = (),
    ) -> None:
        size = 64 if size is None else size
        if cameras is not None and tuple(cameras) != (CAMERA,):
            raise ValueError(
                f"cameras={list(cameras)}: this table always has the one camera {CAMERA!r}"
            )
        if size < 8:
            raise ValueError(f"size={size}: must be at least 8 pixels")
        self.tasks = tuple(select_by_name("task", tasks, {"lit": TASK}).values())
        self.features: dict[str, dict[str, Any]] = {
            f"observation.images.{CAMERA}": image_feature(size),
            "observation.state": vector_feature(["x", "y"]),
            "action": vector_feature(["dx", "dy"]),
        }
        self._pixel = 2 * LIMIT / size  # metres
        across = (np.arange(size) + 0.5) * self._pixel - LIMIT
        # (H, W, 2), row 0 at the top
        self._places = np.stack(np.meshgrid(across, -across), axis=-1)
        self._table = np.empty((size, size, 3))
        self._table[:] = _TABLE
        for pad in PADS:
            self._draw(self._table, pad, RADIUS, _DARK)
        self.lit, self.go, self.hand = layout(0)
        self._steps = 0

    def reset(self, seed: int, task: str) -> dict[str, np.ndarray]:
        """Start an episode; see `Env.reset`."""
        if task not in self.tasks:
            raise ValueError(f"unknown task {task!r}; known: {list(self.tasks)}")
        self.lit, self.go, self.hand = layout(seed)
        self._steps = 0
        return self.observation()

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], Outcome]:
        """Execute an action; see `Env.step`."""
        action = np.asarray(action, dtype=np.float64)
        if action.shape != (2,) or not np.isfinite(action).all():
            raise ValueError(f"an action has two finite numbers (dx, dy), got {action!r}")
        if self._steps >= self.go:
            self.hand = np.clip(self.hand + STEP * np.clip(action, -1, 1), -LIMIT, LIMIT)
        self._steps += 1
        reached = np.flatnonzero(np.linalg.norm(PADS - self.hand, axis=1) < RADIUS)
        completed = None
        if len(reached):
            completed = TASK if reached[0] == self.lit else WRONG
        return self.observation(), Outcome(
            completed, completed is not None or self._steps >= MAX_STEPS
        )

    def expert(self) -> np.ndarray:
        """Compute the expert's action, which knows the pad: 0 before the lamp is green; see
        `Env.expert`.
        """
        return (
            move_to(self.hand, self.lit)
            if self._steps >= self.go
            else np.zeros(2, dtype=np.float32)
        )

    def observation(self) -> dict[str, np.ndarray]:
        """Render the current observation."""
        image = self._table.copy()
        if self._steps < LIT:
            self._draw(image, PADS[self.lit], RADIUS, _BRIGHT)
        light = _GREEN if self._steps >= self.go else _RED
        self._draw(image, _LAMP, _LAMP_RADIUS, light)
        self._draw(image, self.hand, _HAND_RADIUS, _HAND)
        return {
            f"observation.images.{CAMERA}": image.round().astype(np.uint8),
            "observation.state": self.hand.astype(np.float32),
        }

    def _draw(
        self, image: np.ndarray, center: np.ndarray, radius: float, color: tuple[int, int, int]
    ) -> None:
        """Draw a disc on `image` (H, W, 3) with smooth edges."""
        distance = np.linalg.norm(self._places - center, axis=-1)
        cover = np.clip((radius - distance) / self._pixel + 0.5, 0, 1)[..., None]
        image += cover * (np.array(color) - image)
