"""The scripted expert of the tabletop: move over the block, descend, grip, lift.

The action is a function of the current state, without memory, so it is right after any disturbance. Recorded beside
noisy execution, it shows a policy how to recover.
"""

from __future__ import annotations

import numpy as np

from understudy.envs.tabletop.sim import COLORS, REACH, STEP, Tabletop

NOISE = 0.15  # standard deviation added to the executed action (in [-1, 1]); the clean action is recorded
_HOVER = 0.05  # metres above the block's centre while the hand travels
_ABOVE = 0.010  # metres off the block's axis within which the hand descends


def expert_action(env: Tabletop) -> np.ndarray:
    """Compute the noise-free action float32 (4,) towards picking up `env.color`."""
    if env.held == env.color:
        return np.array([0, 0, 1, 1], dtype=np.float32)
    if env.held is not None:  # a wrong block: let go
        return np.array([0, 0, 0, -1], dtype=np.float32)
    gap = env.blocks[COLORS.index(env.color)] - env.hand
    off_axis = float(np.linalg.norm(gap[:2]))
    if off_axis > _ABOVE:
        gap[2] = max(gap[2] + _HOVER, 0.0) if off_axis < 0.04 else gap[2] + _HOVER
    near = np.linalg.norm(gap) < REACH
    move = gap / STEP
    move = move / max(1.0, float(np.abs(move).max()))  # at full speed in a straight line
    return np.append(move, 1.0 if near else -1.0).astype(np.float32)
