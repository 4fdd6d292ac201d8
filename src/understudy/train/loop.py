"""The training loop, from the current step to the end or a stop request: train, log, validate, checkpoint."""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from understudy._version import __version__
from understudy.config.schema import plain
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.distributed.signals import Stop
from understudy.load.loader import Loader
from understudy.load.validation.validation_data import ValidationData
from understudy.optim.lora import merge_adapters
from understudy.order import Order
from understudy.train import precision
from understudy.train.background_rollouts import BackgroundRollouts
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.saver import Saver
from understudy.train.run_record import order_schedule
from understudy.train.state import TrainState
from understudy.train.step_runner import StepRunner
from understudy.train.track.trackers import MetricsLog
from understudy.train.validation.metrics import best_metrics
from understudy.train.validation.periodic_validation import evaluate_and_log


def run_steps(
    state: TrainState,
    order: Order,
    validation: ValidationData | None,
    loader: Loader,
    saver: Saver,
    rollouts: BackgroundRollouts,
    log: MetricsLog,
    stop: Stop,
    pending: Path | None,
) -> bool:
    """Run steps until the end or a stop request; returns whether the end was reached.

    Args:
        state: the state to train.
        order: the order of the loader.
        validation: the validation data, if any.
        loader: source of the batches.
        saver: writer of the checkpoints.
        rollouts: queue of the rollouts.
        log: destination of the metrics.
        stop: the stop request.
        pending: the checkpoint that the run resumes from, if its validation is still to be made.

    Raises:
        ValidationFailed: validation frames cannot be read; the checkpoint of the step is saved.
    """
    config, mesh = state.config, state.mesh
    if pending is not None and validation is not None:
        result, error = evaluate_and_log(state, validation, stop, log)
        if error is not None:
            raise error
        if result is None:
            return False
        log.sync()
        saver.record_metrics(pending, best_metrics(result))
    if state.step >= config.steps:
        return True
    if mesh.any(stop.asked):
        return False
    with StepRunner(state, loader, log) as runner:
        while True:
            runner.step()
            stopping, failed = mesh.votes(stop.asked, saver.failed)
            if failed:
                saver.wait()  # raises the error of the save
            complete = state.step == config.steps
            last = complete or stopping
            validate_now = validation is not None and (complete or _is_due(state.step, config.val.every))
            rollout_now = rollouts.due(state.step)
            save = last or _is_due(state.step, config.checkpoint.every)
            if validate_now or rollout_now or save or _is_due(state.step, config.log.every):
                runner.log_steps()
                rollouts.poll(log, state.step)
            result, error = {}, None
            if validate_now and validation is not None:
                result, error = evaluate_and_log(state, validation, stop, log)
                last = last or result is None
            if rollout_now:  # before the checkpoint, so that a run resumed from it finds the rollout in the queue
                rollouts.enqueue(state.step, state.eval_policy, gather_weights(state))
            # Steps that change nothing must not displace good checkpoints.
            if last or ((save or saver.improves(best_metrics(result or {}))) and not runner.stalled):
                log.sync()  # the metrics are on disk before the checkpoint that depends on them
                saved = _checkpoint_state(config, mesh, order, loader.position, result)
                saver.save(state.step, state.tensors(), saved, precision.frozen_names(state.policy))
            if error is not None:
                saver.wait()
                raise error
            if last:
                return complete and result is not None
            if validate_now or rollout_now or save:
                runner.restart_clock()


def gather_weights(state: TrainState) -> dict[str, torch.Tensor]:
    """Gather the weights to export on rank 0, whole, float32, adapters merged; all ranks call this together."""
    whole, tensors = dict[str, torch.Tensor](), state.tensors()
    for name, stored in precision.export_names(tensors).items():
        tensor = tensors[stored]
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # a collective: on every rank
        if state.mesh.rank == 0:
            whole[name] = full.cpu().float() if full.dtype == torch.bfloat16 else full.cpu()
    return merge_adapters(whole, state.config.lora.scale)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _checkpoint_state(
    config: TrainConfig, mesh: Mesh, order: Order, position: int, result: Mapping[str, Any] | None
) -> dict[str, Any]:
    """State of a checkpoint besides its tensors. result: of its validation; None if that is still to be made."""
    pending = {checkpoint.PENDING: True} if result is None else {}
    return {
        **pending,
        "position": position,
        "schedule": order_schedule(order),
        "seed": config.seed,
        "world": mesh.world_size,
        "batch": config.batch_size,
        "settings": plain(config),
        "judged": best_metrics(result or {}),
        "versions": library_versions(),
    }


def library_versions() -> dict[str, str]:
    """Return the versions that may change how sums are rounded."""
    return {
        "understudy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
