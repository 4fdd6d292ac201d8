"""Batches through the train step, with their metrics, for the training loop and for `profile`.

Losses and norms stay on the device between two logs, so that no step waits for it.
"""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch

from understudy.errors import UnderstudyError
from understudy.load.loader import Loader
from understudy.progress import Progress
from understudy.train.cut_samples import CutSamples, count_cuts
from understudy.train.micro_batches import PartCounts, sum_counts
from understudy.train.optimizer_step import StepResult
from understudy.train.profiling.timer import NULL, Timer
from understudy.train.state import TrainState
from understudy.train.track.trackers import MetricsLog


class TrainingStalled(UnderstudyError, OSError):
    """Too many consecutive steps had a gradient that is not finite; they changed no weight."""


class StepRunner:
    """Runs steps, collects their results until they are logged, and shows a progress line on rank 0."""

    def __init__(self, state: TrainState, loader: Loader, log: MetricsLog) -> None:
        self._state, self._loader, self._log = state, loader, log
        self._pending: list[tuple[int, float, dict[str, int], StepResult]] = []
        self._parts: list[PartCounts | None] = []
        self._clock = _Clock(loader, state.step)
        self._skipped = 0  # consecutive skipped steps
        self._all_skipped = state.step == 0
        self._bar = Progress(
            state.config.steps, "train", "step", done=state.step, shown=state.mesh.rank == 0, last=True
        )
        self._cuts = CutSamples(state.mesh, state.config.batch_size, self._bar.write)

    def step(self, timer: Timer = NULL) -> None:
        """Wait for the next batch and take one optimizer step."""
        with timer("data wait"):
            batch = next(self._loader)
        lr, result = self._state.lr, self._state.train_step(batch, timer)
        self._pending.append((self._state.step, lr, count_cuts(batch), result))
        self._parts.append(self._state.part_counts)
        self._bar.update()

    def log_steps(self, timer: Timer = NULL) -> None:
        """Log the steps since the last call. Only here the run waits for the device.

        Raises:
            TrainingStalled: on all ranks: `max_skipped_steps` consecutive steps changed nothing, or all of the run did.
        """
        with timer("logging"):
            records = list(self._read_pending())
            parts = sum_counts(self._state.mesh, self._parts)
            self._parts.clear()
            self._log.log_all([*records, self._clock.record(self._state.step, self._state.config.batch_size, parts)])
        self._check_progress(records)

    def _check_progress(self, records: list[dict[str, Any]]) -> None:
        config = self._state.config
        for record in records:
            self._skipped = self._skipped + 1 if record["skipped"] else 0
            self._all_skipped = self._all_skipped and bool(record["skipped"])
            if self._skipped >= config.max_skipped_steps or (self._all_skipped and record["step"] == config.steps):
                first = record["step"] - self._skipped + 1
                raise TrainingStalled(
                    f"steps {first} to {record['step']}: the gradient is not finite, so no weight changes "
                    f"(max_skipped_steps {config.max_skipped_steps}); look for values out of range, or lower optim.lr "
                    f"({config.optim.lr:g}); {config.output_dir} resumes from its last checkpoint, if it has one"
                )

    @property
    def stalled(self) -> bool:
        """Whether the last two logged steps, or more, changed nothing."""
        return self._skipped > 1

    def restart_clock(self) -> None:
        """Exclude the time since the last `log_steps` from the speed."""
        self._clock.restart(self._state.step)

    def __enter__(self) -> "StepRunner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cuts.summarize()
        self._bar.close(failed=error is not None)

    def _read_pending(self) -> Iterator[dict[str, Any]]:
        """Read the pending results from the device: one record per step."""
        steps, rates, cuts, results = zip(*self._pending)
        self._pending.clear()
        figures, terms, groups = self._read_results(results)
        names = list(self._state.weights)
        means = term_means(names, terms.sum(axis=0)) if len(names) > 1 else {}
        parts = ", ".join(f"{term} {mean['loss']:.4f}" for term, mean in means.items())
        self._bar.set_note(f"loss {np.mean([loss for loss, *_ in figures]):.4f}" + (f" ({parts})" if parts else ""))
        cut = self._cuts.add(list(steps), list(cuts))
        for number, (step, lr, (loss, norm, skip), counts) in enumerate(zip(steps, rates, figures, cut)):
            if skip:
                self._bar.write(f"step {step}: the gradient is not finite; the weights were not changed")
            record = {"kind": "train", "step": step, "loss": loss, "lr": lr, "grad_norm": norm, "skipped": int(skip)}
            record["terms"] = term_means(names, terms[number])
            for kind, of_kind in groups.items():
                entries = {name: term_means(names, sums[number]) for name, sums in of_kind.items()}
                record[f"{kind}s"] = {name: {"terms": means} for name, means in entries.items() if means}
            yield {**record, "cut": counts} if counts else record

    def _read_results(
        self, results: Sequence[StepResult]
    ) -> tuple[list[list[float]], np.ndarray, dict[str, dict[str, np.ndarray]]]:
        """Read N results in one go: (loss, norm, skipped) of each, and sums and counts of terms, float64 [N, 2, K].

        The last value has those of each group, by kind and name; with several ranks they are exchanged here.
        """
        scalars = torch.stack([torch.stack(result[:3]) for result in results]).double()
        tensors = [scalars, torch.stack([result.terms for result in results]).flatten(1)]
        if in_groups := [result.groups for result in results if result.groups is not None]:
            tensors.append(self._state.mesh.sum(torch.stack(in_groups)).flatten(1))
        values = torch.cat(tensors, dim=1).cpu().numpy()
        terms, width = len(self._state.weights), 3 + 2 * len(self._state.weights)
        sums = values[:, width:].reshape(len(results), 2, -1, terms)  # [N, 2, G, K]
        groups, low = dict[str, dict[str, np.ndarray]](), 0
        for kind, names in self._state.groups.items():
            groups[kind] = {name: sums[:, :, low + number] for number, name in enumerate(names)}
            low += len(names)
        return values[:, :3].tolist(), values[:, 3:width].reshape(len(results), 2, terms), groups


def term_means(names: Sequence[str], sums: np.ndarray) -> dict[str, dict[str, float]]:
    """Return {term: {loss, elements}} of the terms that have elements.

    Args:
        names: of the K terms.
        sums: float64 (2, K): sums and counts.
    """
    return {
        term: {"loss": float(total / count), "elements": int(count) if count == int(count) else float(count)}
        for term, total, count in zip(names, *sums)
        if count
    }


class _Clock:
    """Speed and share of waiting between two logs; `restart` leaves out validations and checkpoints."""

    def __init__(self, loader: Loader, step: int) -> None:
        self._loader = loader
        self._start = time.perf_counter()
        self.restart(step)

    def restart(self, step: int) -> None:
        self._step, self._since, self._waited = step, time.perf_counter(), self._loader.wait_seconds

    def record(self, step: int, batch_size: int, parts: PartCounts | None) -> dict[str, Any]:
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        speed = {
            "samples_per_s": (step - self._step) * batch_size / seconds,
            "wait": (self._loader.wait_seconds - self._waited) / seconds,
            "seconds": now - self._start,
            **({} if parts is None else parts.rates(seconds)),
            **_peak_bytes(),
        }
        self.restart(step)
        return {"kind": "speed", "step": step, **speed}


def _peak_bytes() -> dict[str, int]:
    """Largest memory of this process so far: resident on the host, and allocated on its GPU."""
    found = {
        "host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    }
    if torch.cuda.is_initialized():
        found["gpu_bytes"] = torch.cuda.max_memory_allocated()
    return found
