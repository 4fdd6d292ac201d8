"""A run's validations as the loop sees them: on what, and what becomes of one that cannot be made to its end.

A stop cuts a validation short, and held-out frames that cannot be read end one. The checkpoint of the step is saved all
the same and says so (`UNJUDGED` in its state); whoever goes on from it makes that validation first.
"""

from collections.abc import Mapping
from typing import Any

from understudy.config.train import TrainConfig
from understudy.distributed.signals import Stop
from understudy.load.eval.validation_data import HeldOut
from understudy.train.data.data import RunData
from understudy.train.eval.metrics import check_figure
from understudy.train.eval.validate import ValidationFailed, ValidationStopped
from understudy.train.state import TrainState
from understudy.train.track.trackers import Log


def held_out(config: TrainConfig, data: RunData) -> HeldOut | None:
    """The line of held-out frames that validations judge; None where nothing is held out."""
    skips = config.data.on_bad_frame == "substitute"
    return HeldOut.of(data, bool(config.data.sources), config.val_frames, skips)


def validated_on(config: TrainConfig, data: RunData) -> HeldOut | None:
    """What a run is validated on, if it is. Raises ConfigError where that does not have the figure of `keep_best`."""
    held = held_out(config, data) if config.val_every else None
    if held is not None:
        check_figure(config, held)
    return held


def judged_and_logged(
    training: TrainState, held: HeldOut, stop: Stop, log: Log
) -> tuple[Mapping[str, Any] | None, ValidationFailed | None]:
    """A validation, written to the log; all ranks call this together. None where it was not made to its end: with why,
    or with None after a request to stop."""
    try:
        judged = training.evaluate(held, asked=lambda: stop.asked)
    except ValidationStopped:
        log.hold_back()
        return None, None
    except ValidationFailed as error:
        log.hold_back()
        return None, error
    log.log(training.step, {"kind": "val", **judged})
    return judged, None
