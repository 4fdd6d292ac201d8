"""Facts that neither contract decides: the observations that show a fault in them, and how often
they do.

The power is estimated on numbers and images drawn from those of training, by the checks of
`observed` themselves. A small one means that the fault is not decidable for this scene or this
robot.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from understudy_client import (
    FACTORS,
    LEAST_SEEN,
    UNIT_KINDS,
    RobotFacts,
    VectorFacts,
    estimate_power,
    explain_numbers,
)

_TRIALS = 10


@dataclass(frozen=True)
class Undecided:
    """A fact that the contracts leave open.

    Attributes:
        fact: the fact ("orientation", "units").
        key: key of the input or output.
        observations: observations after which a fault is named; 0: none names it.
        power: share of drawn robots whose fault is named by then; NaN: nothing is measured.
    """

    fact: str
    key: str
    observations: int
    power: float

    def __str__(self) -> str:
        """One line."""
        if not self.observations:
            return (
                f"{self.key}: {self.fact}: no observation shows it; compare the transitions of "
                "a replay"
            )
        shown = f"{self.power:.0%} of such faults are named within {self.observations} observations"
        decided = shown if self.power >= 0.5 else f"not decidable for this scene ({shown})"
        return f"{self.key}: {self.fact}: {decided}"


def list_undecided(trained: RobotFacts, robot: RobotFacts) -> list[Undecided]:
    """List the facts that two contracts leave open, with the power of the checks in motion.

    Args:
        trained: facts of a policy.
        robot: facts of its robot, environment or dataset.
    """
    undecided: list[Undecided] = []
    prints = trained.looks
    for key, camera in trained.cameras.items():
        other = robot.cameras.get(key, robot.cameras.get(camera.key))
        shares = estimate_power(key, prints, LEAST_SEEN, _TRIALS) if key in prints else {}
        colors = shares.pop("BGR", np.nan)
        observations = LEAST_SEEN if shares else 0
        for fact, share in (
            ("orientation", min(shares.values(), default=np.nan)),
            ("color", colors),
        ):
            if not (getattr(camera, fact) and other is not None and getattr(other, fact)):
                undecided.append(Undecided(fact, camera.key, observations, share))
    if trained.state is not None and robot.state is not None:
        undecided += _of_state(trained.state, robot.state, trained.episodes)
    for fact in ("gripper", "references"):
        if not (getattr(trained.action, fact) and getattr(robot.action, fact)):
            undecided.append(Undecided(fact, trained.action.key or "action", 0, np.nan))
    return undecided


def _of_state(trained: VectorFacts, robot: VectorFacts, episodes: int) -> Iterator[Undecided]:
    shape = (_TRIALS, LEAST_SEEN, trained.width)
    rows = np.arange(trained.width)
    noise = np.random.default_rng(0).standard_normal(shape)
    drawn = np.clip(trained.center + trained.spread * noise, trained.low, trained.high)
    orders = (np.roll(rows, 1), rows[::-1])
    faults = {
        "units": ([drawn * factor for factor in FACTORS.values()], UNIT_KINDS),
        "order of dimensions": (
            [drawn[..., order] for order in orders],
            ("dimension order", "range"),
        ),
    }
    stated = {
        "units": trained.units and robot.units,
        "order of dimensions": not (trained.is_unnamed or robot.is_unnamed),
    }
    for fact, (changed, kinds) in faults.items():
        if stated[fact]:
            continue
        power = np.nan
        if trained.width and np.isfinite(drawn).all():
            explained = [
                explain_numbers(sample, trained, episodes) for sample in np.concatenate(changed)
            ]
            power = float(
                np.mean([mismatch is not None and mismatch.kind in kinds for mismatch in explained])
            )
        observations = 0 if np.isnan(power) else LEAST_SEEN
        yield Undecided(fact, trained.key, observations, power)
