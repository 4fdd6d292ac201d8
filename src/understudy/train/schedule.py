"""The learning rate as a pure function of the optimizer step: nothing to save, nothing to restore, nothing to drift."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.train.config import ScheduleConfig


def rate(step: int, schedule: "ScheduleConfig", steps: int) -> float:
    """Factor in [0, 1] on the learning rate for optimizer step `step` (0, 1, 2, ...).

    Linear warm-up over `schedule.warmup` steps (step 0 already moves: factor 1 / warmup), then from 1 down to
    `schedule.final` along a cosine or a line, reached at the schedule's end and kept behind it; or 1 throughout.

    Args:
        steps: length of the run, which is where the decay ends unless `schedule.steps` says otherwise.
    """
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    if schedule.kind == "constant":
        return 1.0
    end = schedule.steps or steps
    done = min(1.0, (step - schedule.warmup) / max(1, end - schedule.warmup))
    shape = 0.5 * (1 + math.cos(math.pi * done)) if schedule.kind == "cosine" else 1 - done
    return schedule.final + (1 - schedule.final) * shape
