"""When checkpoints are written: at once, or behind the training's back from a copy.

In the background the tensors are copied to the host first, so that the file shows this step whatever the next ones do;
then a thread writes while training goes on. The thread talks to the other ranks over a group of its own: two threads in
one group would take each other's messages. One save is in flight; the next one waits for it.

Whether it failed is the same on all ranks (`checkpoint.save` agrees), but the ranks' threads do not end at the same
moment. A rank may therefore act on `failed` only after all ranks have agreed to (the run reduces it together with the
stop flag, each step), and then calls `wait`.
"""

import sys
import threading
import warnings
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from understudy.errors import CheckpointError
from understudy.train.checkpoint import checkpoint


class Saver:
    """Writes and prunes the checkpoints of a run. All ranks make it, and call it, together.

    Args:
        folder: where the checkpoints lie.
        keep: how many of the latest stay; best_by: the validation metric whose best checkpoint stays as well.
        background: write from a copy, in a thread.
    """

    def __init__(self, folder: Path, *, keep: int, best_by: str | None = None, background: bool = False) -> None:
        self._folder, self._keep, self._best_by = folder, keep, best_by
        self.group = dist.new_group(backend="gloo") if dist.is_initialized() else None
        self._background = background
        self._best = inf if best_by is None else checkpoint.agreed(self.group, lambda: _best(folder, best_by))
        self._stager: Any = None
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None

    @property
    def failed(self) -> bool:
        """This rank knows that the save in flight has failed."""
        return self._error is not None

    def improves(self, judged: Mapping[str, Any]) -> bool:
        """Whether a validation, the same on all ranks, is better than that of every checkpoint so far: worth one."""
        return self._best_by is not None and judged.get(self._best_by, inf) < self._best

    def judge(self, path: Path, judged: Mapping[str, Any]) -> None:
        """Leave the figures of a validation with a checkpoint that was saved before it was made; all ranks together."""
        checkpoint.agreed(self.group, lambda: checkpoint.judge(path, judged))
        if self._best_by is not None:
            self._best = min(self._best, judged.get(self._best_by, inf))

    def load(self, path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """`checkpoint.load` on this saver's group."""
        return checkpoint.load(path, tensors, self.group)

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Save checkpoint `step`, then prune; in the background, return as soon as the tensors are copied.

        Raises:
            CheckpointError: this save failed or, in the background, the one before; on every rank.
        """
        self.wait()
        if self._best_by is not None:
            self._best = min(self._best, state.get("judged", {}).get(self._best_by, inf))
        if not self._background:
            self._write(step, tensors, state)
            return

        staged, frozen = self._copied(tensors), dict(state)

        def work() -> None:
            try:
                self._write(step, staged, frozen)
            except CheckpointError as error:
                self._error = error
            except BaseException as error:  # or the run would go on without checkpoints
                self._error = CheckpointError(f"step {step}: cannot be saved: {type(error).__name__}: {error}")

        self._thread = threading.Thread(target=work, name="understudy-saver", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is in flight. Raises CheckpointError, on every rank, when it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Until nothing is in flight, whatever became of it: for the way out of a failure, which has its own error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def prune(self) -> None:
        """Remove what is not to be kept, and what a kill left unfinished; that it cannot be is told, and no more.

        The newest checkpoint is safe by then, and the failure of rank 0 alone must not part the ranks.
        """
        if self.group is None or dist.get_rank(self.group) == 0:
            try:
                checkpoint.prune(self._folder, self._keep, self._best_by)
            except OSError as error:
                print(f"{self._folder}: old checkpoints cannot be removed: {error}", file=sys.stderr)

    def _write(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        checkpoint.save(self._folder, step, tensors, state, self.group)
        self.prune()

    def _copied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors as they are now, on the host; DTensors keep their shards. Host memory is used again."""
        from torch.distributed.checkpoint.staging import BlockingAsyncStager

        if self._stager is None:
            self._stager = BlockingAsyncStager(cache_staged_state_dict=torch.cuda.is_available())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return dict(self._stager.stage(dict(tensors)))


def _best(folder: Path, metric: str) -> float:
    path = checkpoint.best(folder, metric)
    return inf if path is None else float(checkpoint.judged(path)[metric])
