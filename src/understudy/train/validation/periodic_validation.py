"""Validations during a run: their data, and their result in the log.

A stop request interrupts a validation, and unreadable validation frames end it. The checkpoint of the step is saved in
both cases and marked (`PENDING` in its state); a run that resumes from it makes that validation first.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy.config.train import TrainConfig
from understudy.distributed.signals import Stop
from understudy.load.validation.validation_data import ValidationData
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import RunData
from understudy.train.state import TrainState
from understudy.train.track.trackers import MetricsLog
from understudy.train.validation.by_mode import ValidationFiles
from understudy.train.validation.metrics import check_keep_best, notes_on_groups
from understudy.train.validation.validation_loss import ValidationFailed, ValidationStopped

logger = logging.getLogger(__name__)


def describe_validation(step: int, result: Mapping[str, Any], lowest: tuple[float, int] | None) -> str:
    """Describe a validation in one line: its loss, the terms, the lowest loss so far with its step, and notes."""
    terms = result["terms"] if len(result["terms"]) > 1 else {}
    means = ", ".join(f"{term} {entry['loss']:.4g}" for term, entry in terms.items())
    error = "" if result["se"] is None else f" ± {result['se']:.2g}"
    parts = [f"loss {result['loss']:.4g}{error}" + (f" ({means})" if means else "")]
    if lowest is not None:
        parts.append("the lowest so far" if lowest[1] == step else f"lowest {lowest[0]:.4g} at step {lowest[1]:,}")
    return "; ".join([*parts, *notes_on_groups(result)])


def read_validation_data(config: TrainConfig, data: RunData) -> ValidationData | None:
    """Return the validation frames of all sources; None if there are none."""
    skip = config.data.on_bad_frame == "substitute"
    separator = config.augment.task_separator
    return ValidationData.from_sources(data, bool(config.data.sources), config.val.frames, skip, separator)


def open_validation(config: TrainConfig, data: RunData) -> ValidationData | None:
    """Return the data of the run's validations, if any. Raises ConfigError if they lack the figure of `keep_best`."""
    validation = read_validation_data(config, data) if config.val.every else None
    if validation is not None:
        check_keep_best(config, validation)
    return validation


def evaluate_and_log(
    state: TrainState, validation: ValidationData, stop: Stop, log: MetricsLog
) -> tuple[Mapping[str, Any] | None, ValidationFailed | None]:
    """Make a validation and log it; all ranks call this together.

    Returns:
        The result and no error; None and the error if frames cannot be read; None twice after a stop request.
    """
    try:
        run = RunDir(Path(state.config.output_dir))
        files = ValidationFiles(run.imagined, run.episode_losses(state.step))
        result = state.evaluate(validation, files=files, asked=lambda: stop.asked)
    except ValidationStopped:
        log.discard_row()
        return None, None
    except ValidationFailed as error:
        log.discard_row()
        return None, error
    log.log(state.step, {"kind": "val", **result})
    if state.mesh.rank == 0:
        logger.info("validation at step %s: %s", state.step, describe_validation(state.step, result, log.lowest))
    return result, None
