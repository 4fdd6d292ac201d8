"""The training loop, from the current step to the end or a request to stop: compute, log, validate, checkpoint."""

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
from understudy.load.eval.validation_data import HeldOut
from understudy.load.loader import Loader
from understudy.order import Order
from understudy.train.background_rollouts import Rollouts
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.saver import Saver
from understudy.train.eval.metrics import figures
from understudy.train.eval.schedule import judged_and_logged
from understudy.train.inner_loop import Pace
from understudy.train.run_record import schedule_of
from understudy.train.state import TrainState
from understudy.train.track.trackers import Log


def run_steps(
    training: TrainState,
    order: Order,
    held: HeldOut | None,
    loader: Loader,
    saver: Saver,
    rollouts: Rollouts,
    log: Log,
    stop: Stop,
    unjudged: Path | None,
) -> bool:
    """Steps until the end or a signal; whether it was the end.

    Args:
        unjudged: the checkpoint that the run goes on from, if its validation is still to be made.
    Raises:
        Unjudged: held-out frames cannot be read; the step's checkpoint is saved.
    """
    config, mesh = training.config, training.mesh
    if unjudged is not None and held is not None:
        judged, wrong = judged_and_logged(training, held, stop, log)
        if wrong is not None:
            raise wrong
        if judged is None:
            return False
        log.sync()
        saver.judge(unjudged, figures(judged))
    if training.step >= config.steps:
        return True
    if mesh.any(stop.asked):
        return False
    with Pace(training, loader, log) as pace:
        while True:
            pace.step()
            stopping, failed = mesh.votes(stop.asked, saver.failed)
            if failed:
                saver.wait()  # raises why
            complete = training.step == config.steps
            last = complete or stopping
            judge_now = held is not None and (complete or _due(training.step, config.val_every))
            play_now = rollouts.due(training.step)
            save = last or _due(training.step, config.checkpoint_every)
            if judge_now or play_now or save or _due(training.step, config.log_every):
                pace.write()
                rollouts.look(log, training.step)
            judged, wrong = {}, None
            if judge_now and held is not None:
                judged, wrong = judged_and_logged(training, held, stop, log)
                last = last or judged is None
            if play_now:  # before the checkpoint: whoever goes on from that finds what is due
                rollouts.set_aside(training.step, training.eval_policy, whole_weights(training))
            # Steps that change nothing push no good checkpoint out.
            if last or ((save or saver.improves(figures(judged or {}))) and not pace.idles):
                log.sync()  # what a checkpoint stands for is on disk before the checkpoint is
                saver.save(training.step, training.tensors(), _state(config, mesh, order, loader.position, judged))
            if wrong is not None:
                saver.wait()
                raise wrong
            if last:
                return complete and judged is not None
            if judge_now or play_now or save:
                pace.pause_over()


def whole_weights(training: TrainState) -> dict[str, torch.Tensor]:
    """The weights to hand out, whole and in float32, on rank 0; all ranks call this together."""
    prefix, whole = "average/" if training.average is not None else "weights/", dict[str, torch.Tensor]()
    for name, tensor in training.tensors().items():
        if name.startswith(prefix):
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # a collective: on every rank
            if training.mesh.rank == 0:
                whole[name.removeprefix(prefix)] = full.cpu()
    return whole


def _due(step: int, every: int) -> bool:
    return step % every == 0


def _state(
    config: TrainConfig, mesh: Mesh, order: Order, position: int, judged: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What a checkpoint says besides its tensors. judged: None where its validation is still to be made."""
    later = {checkpoint.UNJUDGED: True} if judged is None else {}
    return {
        **later,
        "position": position,
        "schedule": schedule_of(order),
        "seed": config.seed,
        "world": mesh.world_size,
        "batch": config.batch,
        "settings": plain(config),
        "judged": figures(judged or {}),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    return {
        "understudy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
