"""Validations with all observers."""

from typing import Any

from understudy.distributed.ranks import Ranks
from understudy.policies.policy import Policy
from understudy.train.validation.losses import Losses
from understudy.train.validation.observer import Evaluation, Observer
from understudy.train.validation.open_loop import OpenLoop
from understudy.train.validation.per_dimension import PerDimension
from understudy.train.validation.validation_loss import Reading, evaluate
from understudy_data import ValidationData


def evaluate_all(
    policy: Policy,
    held: ValidationData,
    seed: int,
    mesh: Ranks,
    every: int = 0,
    per_dim: bool = False,
    reading: Reading | None = None,
) -> dict[str, Any]:
    """Evaluate the flow loss; `every`: open-loop errors of every N-th frame, 0: none."""
    evaluation = Evaluation(policy, held, seed, mesh, {"flow": 1.0})
    observers: list[Observer] = [Losses(evaluation)]
    if per_dim:
        observers.append(PerDimension(evaluation))
    if every:
        observers.append(OpenLoop(evaluation, every))
    return evaluate(evaluation, observers, reading or Reading())
