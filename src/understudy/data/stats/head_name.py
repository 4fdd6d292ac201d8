"""Norm heads: groups of datasets that share normalisation statistics.

A head is one robot under one control mode. Statistics are pooled across datasets only if both match: the same command
must map to the same normalised value, and velocities or another robot's joints mean something else.
"""


def head_name(robot_type: str | None, control_mode: str | None, fallback: str) -> str:
    """Return `robot_type::control_mode`, or `fallback` where either is missing, "" or "unknown".

    The fallback is the dataset's name: a dataset of an unknown robot is a head of its own.
    """
    known = [part.strip() for part in (robot_type, control_mode) if isinstance(part, str)]
    if len(known) < 2 or any(part.lower() in ("", "unknown") for part in known):
        return fallback
    return "::".join(known)
