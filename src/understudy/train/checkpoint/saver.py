"""Saves of checkpoints, at once or in the background from a copy.

In the background the tensors are first copied to the host, so that the file has this step while training continues.
Then a thread writes it. The thread has a process group of its own: two threads in one group would receive each other's
messages. One save is in flight; the next one waits for it.

All ranks agree on a failure (`checkpoint.save`), but their threads do not end at the same moment. A rank may therefore
act on `failed` only after all ranks have agreed to (the run reduces it together with the stop flag, each step), and
then calls `wait`.
"""

import logging
import threading
import warnings
from collections.abc import Collection, Mapping
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from understudy.errors import CheckpointError
from understudy.train.checkpoint import checkpoint

logger = logging.getLogger(__name__)


class Saver:
    """Writes and prunes the checkpoints of a run. All ranks make it, and call it, together.

    Args:
        folder: folder of the checkpoints.
        keep_last: number of latest checkpoints to keep.
        best_by: validation metric whose best checkpoint is kept as well.
        background: write from a copy, in a thread.
    """

    def __init__(self, folder: Path, *, keep_last: int, best_by: str | None = None, background: bool = False) -> None:
        self._folder, self._keep_last, self._best_by = folder, keep_last, best_by
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._background = background
        self._best = (
            inf if best_by is None else checkpoint.run_on_rank_0(self.group, lambda: _read_best(folder, best_by))
        )
        self._stager: Any = None
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self._latest: Path | None = None  # the checkpoint that was loaded or saved last

    @property
    def failed(self) -> bool:
        """Whether this rank knows that the save in flight failed."""
        return self._error is not None

    def improves(self, metrics: Mapping[str, Any]) -> bool:
        """Return whether a validation, the same on all ranks, is better than that of every checkpoint so far."""
        return self._best_by is not None and metrics.get(self._best_by, inf) < self._best

    def record_metrics(self, path: Path, metrics: Mapping[str, Any]) -> None:
        """Add the figures of a validation to a checkpoint that was saved before it; all ranks call this together."""
        checkpoint.run_on_rank_0(self.group, lambda: checkpoint.write_metrics(path, metrics))
        if self._best_by is not None:
            self._best = min(self._best, metrics.get(self._best_by, inf))

    def load(self, path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Call `checkpoint.load` on this saver's group."""
        state = checkpoint.load(path, tensors, self.group)
        self._latest = path
        return state

    def save(
        self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], frozen: Collection[str] = ()
    ) -> None:
        """Save checkpoint `step`, then prune; in the background, return when the tensors are copied.

        Args:
            step: number of steps.
            tensors: this rank's shards, by name.
            state: content of state.json.
            frozen: names of the tensors that never change in the run. They are not copied, and written once.

        Raises:
            CheckpointError: this save failed or, in the background, the one before; on every rank.
        """
        self.wait()
        if self._best_by is not None:
            self._best = min(self._best, state.get("judged", {}).get(self._best_by, inf))
        if not self._background:
            self._write(step, tensors, state, frozen)
            return

        kept = {name: tensor for name, tensor in tensors.items() if name in frozen}
        staged = self._copy({name: tensor for name, tensor in tensors.items() if name not in kept}) | kept
        saved = dict(state)

        def work() -> None:
            try:
                self._write(step, staged, saved, frozen)
            except CheckpointError as error:
                self._error = error
            except BaseException as error:  # otherwise the run would continue without checkpoints
                self._error = CheckpointError(f"step {step}: cannot be saved: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=work, name="understudy-saver", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until no save is in flight. Raises CheckpointError, on every rank, if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Wait until no save is in flight, without raising its error: for cleanup after another failure."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def prune(self) -> None:
        """Remove old and incomplete checkpoints; a failure is only logged.

        The newest checkpoint is safe at this point, and a failure on rank 0 alone must not separate the ranks.
        """
        if self.group is None or dist.get_rank(self.group) == 0:
            try:
                checkpoint.prune(self._folder, self._keep_last, self._best_by)
            except OSError as error:
                logger.warning("%s: old checkpoints cannot be removed: %s", self._folder, error)

    def _write(
        self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any], frozen: Collection[str]
    ) -> None:
        self._latest = checkpoint.save(self._folder, step, tensors, state, self.group, frozen, self._latest)
        self.prune()

    def _copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy the tensors to the host; DTensors keep their shards. Host memory is recycled."""
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        if self._stager is None:
            self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return dict(self._stager.stage(dict(tensors)))


def _read_best(folder: Path, metric: str) -> float:
    path = checkpoint.find_best(folder, metric)
    return inf if path is None else float(checkpoint.read_metrics(path)[metric])
