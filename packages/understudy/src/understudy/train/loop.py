"""The training loop, from the current step to the end or a stop request: train, log, validate,
checkpoint.
"""

import logging
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from understudy.distributed.mesh import Mesh
from understudy.optim.lora import merge_adapters
from understudy.policies.batch import CUT_SUFFIX
from understudy.train import precision
from understudy.train.checkpoint import checkpoint, checksums
from understudy.train.checkpoint.checkpoint import Best, Saver
from understudy.train.micro_batches import PartCounts, sum_counts
from understudy.train.optimizer_step import NULL, StepResult, Timer
from understudy.train.proofs.first_batch import check_first_batch
from understudy.train.run_hooks import RunHooks
from understudy.train.state import TrainState
from understudy.train.track.trackers import MetricsLog
from understudy.train.validation.metrics import best_metrics
from understudy.train.validation.validation_loss import validate_and_log
from understudy_base import Batch, Progress, Record, UnderstudyError, __version__
from understudy_data import BatchMixing, Loader, ValidationData
from understudy_kit import Stop, plain


def run_steps(
    state: TrainState,
    validation: ValidationData | None,
    loader: Loader,
    saver: Saver,
    hooks: RunHooks,
    log: MetricsLog,
    stop: Stop,
) -> bool:
    """Run steps until the end or a stop request; returns whether the end was reached.

    Raises:
        ValidationFailed: validation frames cannot be read; the checkpoint of the step is saved.
    """
    config = state.config
    mesh = state.mesh
    if state.step >= config.steps:
        if mesh.rank == 0:
            logger.info("resume: all %s steps are done; --steps trains for longer", config.steps)
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
            validate_now = validation is not None and (
                complete or _is_due(state.step, config.val.every)
            )
            hooks_now = hooks.due(state.step)
            save = last or _is_due(state.step, config.checkpoint.every)
            if validate_now or hooks_now or save or _is_due(state.step, config.log.every):
                runner.log_steps()
                hooks.poll(log, state.step)
            result: Record | None = {}
            error = None
            if validate_now and validation is not None:
                result, error = validate_and_log(state, validation, stop, log)
                last = last or result is None
            # before the checkpoint, so that a run resumed from it finds the work in the queue
            if hooks_now:
                hooks.enqueue(state.step, state.eval_policy, gather_weights(state))
            # Steps that change nothing must not displace good checkpoints.
            save = last or (save and not runner.stalled)
            is_best = saver.improves(best_metrics(result or {})) and not runner.stalled
            if save or is_best:
                log.sync()  # the metrics are on disk before the checkpoint that depends on them
                loader.sync()
                saved = _checkpoint_state(state, loader, result)
                tensors = state.tensors()
                frozen = precision.frozen_names(state.policy)
                best = _best_of(state, tensors, saved) if is_best else None
                if save:
                    saver.save(state.step, tensors, saved, frozen, best)
                elif best is not None:
                    saver.save_best(state.step, best, frozen)
            if error is not None:
                saver.wait()
                raise error
            if last:
                return complete and result is not None
            if validate_now or hooks_now or save:
                runner.restart_clock()


def make_pending_validation(
    state: TrainState,
    validation: ValidationData,
    saver: Saver,
    log: MetricsLog,
    stop: Stop,
    path: Path,
) -> bool:
    """Make the validation that the checkpoint `path` still lacks; returns False after a stop
    request.

    Raises:
        ValidationFailed: validation frames cannot be read.
    """
    result, error = validate_and_log(state, validation, stop, log)
    if error is not None:
        raise error
    if result is not None:
        log.sync()
        figures = best_metrics(result)
        if saver.improves(figures):
            known = checkpoint.read_state(path)
            of_file = (checkpoint.PENDING, checksums.SEAL, checksums.FILES)
            saved = {name: value for name, value in known.items() if name not in of_file}
            best = _best_of(state, state.tensors(), {**saved, "judged": figures})
            saver.save_best(state.step, best, precision.frozen_names(state.policy))
        saver.record_metrics(path, figures)
    return result is not None


def _best_of(state: TrainState, tensors: dict[str, torch.Tensor], saved: Record) -> Best:
    """Weights to export, without moments, and the state to save with them."""
    chosen = {name: tensors[name] for name in precision.export_names(tensors).values()}
    trained = [
        name for name, parameter in state.policy.named_parameters() if parameter.requires_grad
    ]
    return Best(chosen, {**saved, checkpoint.TRAINED: trained})


def gather_weights(state: TrainState) -> dict[str, torch.Tensor]:
    """Gather the weights to export on rank 0, whole, float32, adapters merged; all ranks call this
    together.
    """
    whole = dict[str, torch.Tensor]()
    tensors = state.tensors()
    for name, stored in precision.export_names(tensors).items():
        tensor = tensors[stored]
        # a collective: on every rank
        full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        if state.mesh.rank == 0:
            whole[name] = full.cpu().float() if full.dtype == torch.bfloat16 else full.cpu()
    return merge_adapters(whole, state.config.lora.scale)


def _is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _checkpoint_state(state: TrainState, loader: Loader, result: Record | None) -> dict[str, Any]:
    """State of a checkpoint besides its tensors. result: of its validation; None if that is still
    to be made.
    """
    pending = {checkpoint.PENDING: True} if result is None else {}
    return {
        **pending,
        "position": loader.position,
        "schedule": [asdict(entry) for entry in loader.order.spec.schedule],
        "starts": state.starts,
        "updates": state.updates,
        "seed": state.config.seed,
        "world": state.mesh.world_size,
        "batch": state.config.batch_size,
        "settings": plain(state.config),
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


logger = logging.getLogger(__name__)


class TrainingStalled(UnderstudyError, OSError):
    """Too many consecutive steps had a gradient that is not finite; they changed no weight."""


class StepRunner:
    """Runs steps, collects their results until they are logged, and shows a progress line on rank
    0.
    """

    def __init__(self, state: TrainState, loader: Loader, log: MetricsLog) -> None:
        self._state = state
        self._loader = loader
        self._log = log
        self._pending: list[tuple[int, float, dict[str, int], StepResult]] = []
        self._firsts: list[int] = []  # first position of each batch since the last log
        self._parts: list[PartCounts | None] = []
        self._clock = _Clock(loader, state.step)
        self._skipped = 0  # consecutive skipped steps
        self._all_skipped = state.step == 0
        self._bar = Progress(
            state.config.steps,
            "train",
            "step",
            done=state.step,
            shown=state.mesh.rank == 0,
            last=True,
        )
        self._cuts = CutSamples(state.mesh, state.config.batch_size, self._bar.write)

    def step(self, timer: Timer = NULL) -> None:
        """Wait for the next batch and take one optimizer step."""
        self._firsts.append(self._loader.position)
        with timer("data wait"):
            batch = next(self._loader)
        if self._state.step == 0 and self._state.mesh.world_size == 1:
            check_first_batch(self._state.policy, batch)
        lr = self._state.lr
        result = self._state.train_step(batch, timer)
        self._pending.append((self._state.step, lr, count_cuts(batch), result))
        self._parts.append(self._state.part_counts)
        self._bar.update()

    def log_steps(self, timer: Timer = NULL) -> None:
        """Log the steps since the last call. Only here the run waits for the device.

        Raises:
            TrainingStalled: on all ranks: `max_skipped_steps` consecutive steps changed nothing, or
                all of the run did.
        """
        with timer("logging"):
            records, note = self._read_pending()
            if self._state.mesh.rank == 0:
                figures = [
                    BatchMixing.of_batch(self._loader.order, first) for first in self._firsts
                ]
                for record, of_batch in zip(records, figures):
                    record |= of_batch
                self._bar.set_note(
                    f"{note}, {np.mean([one['episodes'] for one in figures]):.4g} episodes in a "
                    "batch"
                )
            self._firsts.clear()
            parts = sum_counts(self._state.mesh, self._parts)
            self._parts.clear()
            self._log.log_all(
                [
                    *records,
                    self._clock.record(self._state.step, self._state.config.batch_size, parts),
                ]
            )
        self._check_progress(records)

    def _check_progress(self, records: list[dict[str, Any]]) -> None:
        config = self._state.config
        for record in records:
            self._skipped = self._skipped + 1 if record["skipped"] else 0
            self._all_skipped = self._all_skipped and bool(record["skipped"])
            if self._skipped >= config.max_skipped_steps or (
                self._all_skipped and record["step"] == config.steps
            ):
                first = record["step"] - self._skipped + 1
                raise TrainingStalled(
                    f"steps {first} to {record['step']}: the gradient is not finite, so no weight "
                    f"changes (max_skipped_steps {config.max_skipped_steps}); look for values out "
                    f"of range, or lower optim.lr ({config.optim.lr:g}); {config.output_dir} "
                    "resumes from its last checkpoint, if it has one"
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cuts.summarize()
        self._bar.close(failed=error is not None)

    def _read_pending(self) -> tuple[list[dict[str, Any]], str]:
        """Read the pending results from the device: a record of each step, and the progress line's
        losses.
        """
        steps, rates, cuts, results = zip(*self._pending)
        self._pending.clear()
        figures, terms, groups = self._read_results(results)
        names = list(self._state.weights)
        means = term_means(names, terms.sum(axis=0)) if len(names) > 1 else {}
        parts = ", ".join(f"{term} {mean['loss']:.4f}" for term, mean in means.items())
        note = f"loss {np.mean([loss for loss, *_ in figures]):.4f}"
        if parts:
            note += f" ({parts})"
        cut = self._cuts.add(list(steps), list(cuts))
        records = []
        for number, (step, lr, (loss, norm, skip), counts) in enumerate(
            zip(steps, rates, figures, cut)
        ):
            if skip:
                self._bar.write(
                    f"step {step}: the gradient is not finite; the weights were not changed"
                )
            record = {
                "kind": "train",
                "step": step,
                "loss": loss,
                "lr": lr,
                "grad_norm": norm,
                "skipped": int(skip),
            }
            record["terms"] = term_means(names, terms[number])
            for kind, of_kind in groups.items():
                entries = {name: term_means(names, sums[number]) for name, sums in of_kind.items()}
                record[f"{kind}s"] = {
                    name: {"terms": means} for name, means in entries.items() if means
                }
            if counts:
                record["cut"] = counts
            records.append(record)
        return records, note

    def _read_results(
        self, results: Sequence[StepResult]
    ) -> tuple[list[list[float]], np.ndarray, dict[str, dict[str, np.ndarray]]]:
        """Read N results in one go: (loss, norm, skipped) of each, and sums and counts of terms,
        float64 [N, 2, K].

        The last value has those of each group, by kind and name; with several ranks they are
        exchanged here.
        """
        scalars = torch.stack([torch.stack(result[:3]) for result in results]).double()
        tensors = [scalars, torch.stack([result.terms for result in results]).flatten(1)]
        if in_groups := [result.groups for result in results if result.groups is not None]:
            tensors.append(self._state.mesh.sum(torch.stack(in_groups)).flatten(1))
        values = torch.cat(tensors, dim=1).cpu().numpy()
        terms = len(self._state.weights)
        width = 3 + 2 * len(self._state.weights)
        sums = values[:, width:].reshape(len(results), 2, -1, terms)  # [N, 2, G, K]
        groups = dict[str, dict[str, np.ndarray]]()
        low = 0
        for kind, names in self._state.groups.items():
            groups[kind] = {name: sums[:, :, low + number] for number, name in enumerate(names)}
            low += len(names)
        return values[:, :3].tolist(), values[:, 3:width].reshape(len(results), 2, terms), groups


def term_means(names: Sequence[str], sums: np.ndarray) -> dict[str, dict[str, float]]:
    """Return {term: {loss, elements}} of the terms that have elements.

    Args:
        names: names of the K terms.
        sums: float64 (2, K): sums and counts.
    """
    means = {}
    for term, total, count in zip(names, *sums):
        if count:
            elements = int(count) if count == int(count) else float(count)
            means[term] = {"loss": float(total / count), "elements": elements}
    return means


class _Clock:
    """Speed and share of waiting between two logs; `restart` leaves out validations and
    checkpoints.
    """

    def __init__(self, loader: Loader, step: int) -> None:
        self._loader = loader
        self._start = time.perf_counter()
        self.restart(step)

    def restart(self, step: int) -> None:
        self._step = step
        self._since = time.perf_counter()
        self._waited = self._loader.wait_seconds

    def record(self, step: int, batch_size: int, parts: PartCounts | None) -> dict[str, Any]:
        now = time.perf_counter()
        seconds = max(now - self._since, 1e-9)
        rates = {} if parts is None else parts.rates(seconds)
        speed = {
            "samples_per_s": (step - self._step) * batch_size / seconds,
            "wait": (self._loader.wait_seconds - self._waited) / seconds,
            "seconds": now - self._start,
            **rates,
            **_peak_bytes(),
        }
        self.restart(step)
        return {"kind": "speed", "step": step, **speed}


def _peak_bytes() -> dict[str, int]:
    """Largest memory of this process so far: resident on the host, and allocated on its GPU."""
    unit = 1 if sys.platform == "darwin" else 1024
    peaks = {"host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_initialized():
        peaks["gpu_bytes"] = torch.cuda.max_memory_allocated()
    return peaks


def count_cuts(batch: Batch) -> dict[str, int]:
    """Count the cut samples of a batch on the host, by name: `prompt_is_cut` bool [B] counts as
    `prompt`.
    """
    return {
        key.removesuffix(CUT_SUFFIX): int(mark.sum())
        for key, mark in batch.items()
        if key.endswith(CUT_SUFFIX)
    }


class CutSamples:
    """Counts of cut samples over all ranks, with a message at the first of each name and one at the
    end.

    Args:
        mesh: the ranks.
        batch_size: samples per step, over all ranks.
        write: prints a message.
    """

    def __init__(self, mesh: Mesh, batch_size: int, write: Callable[[str], None]) -> None:
        self._mesh = mesh
        self._batch_size = batch_size
        self._write = write
        self._cut: Counter[str] = Counter()
        self._steps = 0

    def add(self, steps: list[int], counts: list[dict[str, int]]) -> list[dict[str, int]]:
        """Return the counts of some steps over all ranks, which call this together; {} where
        nothing is marked.

        Args:
            steps: the steps.
            counts: counts of this rank, by name, for each of them.
        """
        if not any(counts):
            return counts
        ranks = self._mesh.gather(counts)
        summed = []
        for of_ranks in zip(*ranks):
            totals = {}
            for name in of_ranks[0]:
                totals[name] = sum(counted[name] for counted in of_ranks)
            summed.append(totals)
        self._steps += len(steps)
        for step, of_step in zip(steps, summed):
            for name, count in of_step.items():
                if count and not self._cut[name]:
                    self._write(
                        f"step {step}: {count} of {self._batch_size} samples have a "
                        f"{_described(name)}"
                    )
                self._cut[name] += count
        return summed

    def summarize(self) -> None:
        """Print the share of cut samples, where there is one."""
        for name, count in self._cut.items():
            if count:
                share = count / (self._steps * self._batch_size)
                self._write(
                    f"{share:.2%} of the samples since the start or resume have a "
                    f"{_described(name)}"
                )


def _described(name: str) -> str:
    lost = "its end was not trained on"
    if name.endswith("_range"):
        lost = "values beyond it were replaced by its ends"
    return f"cut {name.replace('_', ' ')}, so that {lost} (metrics.jsonl counts them per step)"
