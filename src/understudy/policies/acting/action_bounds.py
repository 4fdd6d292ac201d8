"""Optional bounds of a robot's actions: the recorded minimum and maximum of each dimension, and a margin.

The margin is that of observations (`VectorFacts.margin`): a tenth of the range and some rounding.
"""

from typing import Literal

import numpy as np

from understudy.batch_keys import ACTION
from understudy.contract.facts import FILE, RobotFacts, VectorFacts

ActionBounds = Literal["clamp", "error", "off"]
"""Actions outside of their bounds are moved to the nearest bound, are an error, or reach the robot as they are."""


def action_facts(facts: RobotFacts | None) -> VectorFacts:
    """Return the facts about a robot's actions.

    Raises:
        ValueError: the policy has none, or no minimum and maximum of a dimension.
    """
    if facts is None:
        raise ValueError(f"action_bounds: the policy has no {FILE} with the recorded actions; leave it off")
    known = np.isfinite(facts.action.figures["min"]) & np.isfinite(facts.action.figures["max"])
    if not known.all():
        names = ", ".join(facts.action.names[i] for i in np.flatnonzero(~known))
        raise ValueError(f"action_bounds: {FILE} has no minimum and maximum of {names}; leave it off")
    return facts.action


def bound_actions(actions: np.ndarray, facts: VectorFacts, bounds: ActionBounds) -> tuple[np.ndarray, dict[str, float]]:
    """Bound actions in the robot's units.

    Args:
        actions: float32 [..., A].
        facts: of the recorded actions.
        bounds: the reaction; not "off".

    Returns:
        The bounded actions, and the names of the moved dimensions with the largest distance of each.

    Raises:
        ValueError: an action is outside, and `bounds` is "error".
    """
    low, high = facts.low - facts.margin, facts.high + facts.margin
    distance = np.maximum(low - actions, actions - high).reshape(-1, facts.width).max(0)
    outside = {facts.names[i]: float(distance[i]) for i in np.flatnonzero(distance > 0)}
    if outside and bounds == "error":
        i = int(distance.argmax())
        own = actions.reshape(-1, facts.width)[:, i]
        ends = f"{facts.names[i]} from {own.min():.6g} to {own.max():.6g}"
        raise ValueError(f"{ACTION} has {ends}: its bounds are {low[i]:.6g} to {high[i]:.6g} (action_bounds)")
    return np.clip(actions, low, high).astype(actions.dtype) if outside else actions, outside
