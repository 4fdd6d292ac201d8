"""Vectors of several columns under one key: `action.joint_velocity + action.gripper_position`.

The values of the columns follow each other in each frame. A column of one number is a vector of one.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from understudy.data.format.features import Feature

SEPARATOR = "+"


def key_parts(own: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the columns that a key names; a key in `known` names itself, also with a `+` in it."""
    return (own,) if own in known else tuple(part.strip() for part in own.split(SEPARATOR))


def joined_name(parts: Sequence[str]) -> str:
    """Name of a joined vector: the columns with ` + ` between them."""
    return f" {SEPARATOR} ".join(parts)


def join_features(parts: Sequence[Feature]) -> Feature:
    """Return the feature (D,) of joined vectors (D1,), (D2,), …; `joint_0`, … names where they are unique."""
    names = [name for part in parts for name in part.dimension_names]
    if len(set(names)) < len(names):  # both have dimensions "0", "1", or arms of one kind
        names = [f"{part.key}.{name}" for part in parts for name in part.dimension_names]
    dtype = np.result_type(*(np.dtype(part.dtype) for part in parts)).name
    return Feature(joined_name([part.key for part in parts]), dtype, (len(names),), names, is_vector=True)


def join_stats(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the recorded statistics of a joined vector: those that all parts have; the count is the first one's."""
    common = [name for name in parts[0] if all(name in part for part in parts)]
    return {
        name: parts[0][name] if name == "count" else np.concatenate([part[name].reshape(-1) for part in parts])
        for name in common
    }
