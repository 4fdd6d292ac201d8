"""Batch after batch through the one step, results to the host now and then: what `run` does and `profile` times.

Between two visits to the host nothing waits for the device: losses and norms stay where they are.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from understudy.bytesize import parse_bytes
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh, fair_threads
from understudy.errors import ConfigError, UnderstudyError
from understudy.load.fit_order import fit_order
from understudy.load.loader import Loader
from understudy.order import Order
from understudy.progress import Progress
from understudy.train.data.data import RunData
from understudy.train.profiling.timer import NULL, Timer
from understudy.train.state import TrainState
from understudy.train.step import StepResult
from understudy.train.track.trackers import Log


def loader_of(
    config: TrainConfig, data: RunData, order: Order, mesh: Mesh, position: int, journal: Path | None = None
) -> Loader:
    """This rank's share of every batch, made with its share of the host's memory and cores.

    journal: where samples that stand in for others are written down; each rank has its own.

    Raises:
        ConfigError: on all ranks: the memory does not do for a batch.
    """
    with mesh.together():
        try:
            return Loader(
                data.training,
                order=order,
                image_size=data.size,
                rank=mesh.rank,
                position=position,
                on_bad_frame=config.data.on_bad_frame,
                journal=journal,
                pin=mesh.device.type == "cuda",
                **_means(config, mesh),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def new_order(config: TrainConfig, data: RunData, mesh: Mesh) -> tuple[Order, tuple[str, ...]]:
    """The order of a new run, and what it had to do without, in words, where the memory is too small for the wish.

    Raises:
        ConfigError: the memory does not do for a batch, or the settings for an order.
    """
    try:
        return fit_order(
            data.training,
            batch_size=config.batch,
            seed=config.seed,
            image_size=data.size,
            **data.order_options(config),
            **_means(config, mesh),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _means(config: TrainConfig, mesh: Mesh) -> dict[str, Any]:
    """What a rank's loader works with."""
    return {
        "world_size": mesh.world_size,
        "num_threads": config.loader_threads if config.loader_threads != "auto" else fair_threads(mesh),
        "memory": parse_bytes(config.memory) // mesh.local_world_size,
    }


class NothingLearnt(UnderstudyError, OSError):
    """So many steps in a row had a gradient that is not finite that going on is of no use; they changed no weight."""


class Pace:
    """Steps of a training, their results until they are written, and a progress line on rank 0."""

    def __init__(self, training: TrainState, loader: Loader, log: Log) -> None:
        self._training, self._loader, self._log = training, loader, log
        self._pending: list[tuple[int, float, StepResult]] = []
        self._clock = _Clock(loader, training.step)
        self._skipped = 0  # in a row, up to now
        self._all = training.step == 0  # of the run were skipped
        self._bar = Progress(
            training.config.steps, "train", "step", done=training.step, shown=training.mesh.rank == 0, last=True
        )

    def step(self, timer: Timer = NULL) -> None:
        """Wait for the next batch and take one optimizer step."""
        with timer("data wait"):
            batch = next(self._loader)
        lr, result = self._training.lr, self._training.train_step(batch, timer)
        self._pending.append((self._training.step, lr, result))
        self._bar.update()

    def write(self, timer: Timer = NULL) -> None:
        """Write what has been measured since the last time; the only place where the run waits for the device.

        Raises NothingLearnt, on all ranks, where `max_skipped` steps in a row changed nothing, or all of the run did.
        """
        with timer("logging"):
            results = list(self._flushed())
            self._log.log_all([*results, self._clock.record(self._training.step, self._training.config.batch)])
        self._refuse_idling(results)

    def _refuse_idling(self, results: list[dict[str, Any]]) -> None:
        config = self._training.config
        for result in results:
            self._skipped = self._skipped + 1 if result["skipped"] else 0
            self._all = self._all and bool(result["skipped"])
            if self._skipped >= config.max_skipped or (self._all and result["step"] == config.steps):
                first = result["step"] - self._skipped + 1
                raise NothingLearnt(
                    f"steps {first} to {result['step']}: the gradient is not finite, so nothing is learnt "
                    f"(max_skipped {config.max_skipped}); look for values that are out of range, or lower optim.lr "
                    f"({config.optim.lr:g}); {config.out} goes on from its last checkpoint, if it has one"
                )

    @property
    def idles(self) -> bool:
        """Whether the last two steps that were written, or more, changed nothing."""
        return self._skipped > 1

    def pause_over(self) -> None:
        """What happened since the last `write` does not count as training."""
        self._clock.restart(self._training.step)

    def __enter__(self) -> "Pace":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close(failed=error is not None)

    def _flushed(self) -> Iterator[dict[str, Any]]:
        """One record per pending step."""
        steps, rates, results = zip(*self._pending)
        self._pending.clear()
        losses, norms, skipped = (torch.stack(values).tolist() for values in zip(*results))
        self._bar.set_note(f"loss {np.mean(losses):.4f}")
        for step, lr, loss, norm, skip in zip(steps, rates, losses, norms, skipped):
            if skip:
                self._bar.write(f"step {step}: the gradient is not finite; the weights stay as they were")
            yield {"kind": "train", "step": step, "loss": loss, "lr": lr, "grad_norm": norm, "skipped": int(skip)}


class _Clock:
    """Speed and share of waiting between two looks; validation and checkpoints are left out by `restart`."""

    def __init__(self, loader: Loader, step: int) -> None:
        self._loader = loader
        self._began = time.perf_counter()
        self.restart(step)

    def restart(self, step: int) -> None:
        self._step, self._since, self._waited = step, time.perf_counter(), self._loader.wait_seconds

    def record(self, step: int, batch: int) -> dict[str, Any]:
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        speed = {
            "samples_per_s": (step - self._step) * batch / seconds,
            "wait": (self._loader.wait_seconds - self._waited) / seconds,
            "seconds": now - self._began,
        }
        self.restart(step)
        return {"kind": "speed", "step": step, **speed}
