"""Columns of rotations: angles that wrap by a whole turn, and unit quaternions.

Both jump without any motion: an angle from pi to -pi, a quaternion q to -q, which is the same rotation.
"""

import numpy as np

from understudy.check.column_facts import Column

TURNS = (2 * np.pi, 360.0)
"""A whole turn, in radians and degrees."""
_UNIT = 0.02  # allowed distance of the mean squared norm of unit quaternions from 1


def wrapping(column: Column, rows: np.ndarray) -> np.ndarray:
    """Find angles that wrap: no range exceeds a whole turn, and a step in some episode nearly equals it.

    Args:
        column: the column.
        rows: bool (N,), the episodes to use.

    Returns:
        bool (D,).
    """
    wraps = np.zeros(column.width, bool)
    if rows.any():
        step, extent = column.step[rows].max(axis=0), column.high[rows].max(axis=0) - column.low[rows].min(axis=0)
        for turn in TURNS:
            wraps |= (step > 0.9 * turn) & (step < 1.01 * turn) & (extent < 1.01 * turn)
    return wraps


def quaternions(column: Column, rows: np.ndarray, lengths: np.ndarray) -> list[slice]:
    """Find four dimensions side by side whose mean squared norm is 1 in all episodes, none of them constant.

    Args:
        column: the column.
        rows: bool (N,), the episodes to use.
        lengths: int64 (N,), their frames.

    Returns:
        The dimensions of each, without overlap.
    """
    parts: list[slice] = []
    if not rows.any():
        return parts
    square = column.m2[rows] / np.maximum(lengths[rows], 1)[:, None] + column.mean[rows] ** 2
    varies = column.high[rows].max(axis=0) > column.low[rows].min(axis=0)
    dim = 0
    while dim + 4 <= column.width:
        part = slice(dim, dim + 4)
        if varies[part].all() and (np.abs(square[:, part].sum(axis=1) - 1) < _UNIT).all():
            parts.append(part)
            dim += 3
        dim += 1
    return parts


def is_sign_flip(column: Column, row: int, dim: int, rotations: list[slice]) -> bool:
    """Whether the largest step of a dimension in an episode is that of a quaternion to its negative, of norm 2."""
    for part in rotations:
        if part.start <= dim < part.stop:
            together = column.step_frame[row, part] == column.step_frame[row, dim]
            return bool(abs(np.linalg.norm(column.step[row, part][together]) - 2) < 0.1)
    return False
