"""Learning rate as a pure function of the optimizer step, without a state to save or restore."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.config.train import ScheduleConfig


def lr_factor(step: int, schedule: "ScheduleConfig", steps: int) -> float:
    """Return the factor in [0, 1] on the learning rate for optimizer step `step` (0, 1, 2, ...).

    Linear warm-up over `schedule.warmup(steps)` steps (factor 1 / warmup at step 0), then a decay
    from 1 to `schedule.final_lr_ratio` along a cosine or a line, constant after its end. With kind
    "constant" it is 1 after the warm-up. From step `schedule.warmup_from` on a second warm-up of
    the same length leads from 0 to this curve.

    Args:
        step: number of steps done.
        schedule: the settings.
        steps: length of the run; the decay ends there unless `schedule.decay_steps` is set.
    """
    if step < (warmup := schedule.warmup(steps)):
        return (step + 1) / warmup
    rise = 1.0
    if schedule.warmup_from and step >= schedule.warmup_from and warmup:
        rise = min(1.0, (step - schedule.warmup_from + 1) / warmup)
    if schedule.kind == "constant":
        return rise
    end = schedule.decay_steps or steps
    done = min(1.0, (step - warmup) / max(1, end - warmup))
    shape = 0.5 * (1 + math.cos(math.pi * done)) if schedule.kind == "cosine" else 1 - done
    return rise * (schedule.final_lr_ratio + (1 - schedule.final_lr_ratio) * shape)
