"""Norm heads: which datasets are normalised by the same numbers.

A head is a robot under one way of controlling it. Numbers of another robot, or of the same joints driven by velocities
instead of places, mean something else and must not be pooled; ten recordings of one robot must be, or the same command
means ten things.
"""


def head_name(robot_type: str | None, control_mode: str | None, fallback: str) -> str:
    """`robot_type::control_mode`, or `fallback` (the dataset's name) where either is missing, "" or "unknown": what is
    not known to be the same robot is a head of its own."""
    known = [part.strip() for part in (robot_type, control_mode) if isinstance(part, str)]
    if len(known) < 2 or any(part.lower() in ("", "unknown") for part in known):
        return fallback
    return "::".join(known)
