"""Validation losses: one pass over validation frames of all sources, the same number for the same
weights.

Random numbers belong to the *sample* (its source, episode and frame), and the flow times of a
sample are stratified. So two evaluations differ only if the weights do. Chunks are cut from the
whole list of samples (`load/validation_data.py`), independent of ranks, and the sums of all samples
are gathered before they are added. So any number of ranks and threads gives the same bits. Numbers
that a policy draws for itself are keyed by the seed and the first sample of a chunk. No global
generator moves, so validation does not affect training.

During a run a stop request interrupts a validation, and unreadable validation frames end it. The
checkpoint of the step is saved in both cases and marked (`PENDING` in its state); a run that
resumes from it makes that validation first.
"""

import logging
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from understudy.compile import attention_kernels
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import RankError, reshard_weights
from understudy.distributed.ranks import Ranks
from understudy.policies.batch import batch_to_device
from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy.policies.draws import keyed_generators
from understudy.policies.losses import Loss
from understudy.policies.policy import Policy, evaluating
from understudy.train.augment_batch import draw_on_device
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import RunData
from understudy.train.state import TrainState
from understudy.train.track.trackers import MetricsLog
from understudy.train.validation.episode_sums import EpisodeSums
from understudy.train.validation.imagined import imagine_frames
from understudy.train.validation.metrics import (
    TermSums,
    check_keep_best,
    group_losses,
    loss_by_dimension,
    notes_on_groups,
    one_group,
)
from understudy.train.validation.open_loop import OpenLoop
from understudy_base import (
    MODE,
    TASK,
    DatasetError,
    Progress,
    Record,
    fair_threads,
    is_wrong_input,
    parse_bytes,
)
from understudy_data import KeyedDraws, ValidationData
from understudy_kit import Stop

BATCH = 128
"""Most samples of a chunk, where the training has larger forward passes."""
MEMORY = 1 << 30
"""Default size of prefetched chunks in bytes; at least one chunk is read."""
FEW = 16
CAP = 0.01
"""Largest number, or share, of unreadable validation frames that may be left out."""
OF_MODE = (
    "loss",
    "equal_frames",
    "se",
    "samples",
    "episodes",
    "terms",
    "heads",
    "sources",
    "tasks",
    "open_loop",
)
"""Figures of a validation that are stored for each mode."""

DIMS = "action dimensions"
"""Name of the figures of each dimension, besides those of the loss terms and of the open loop."""

logger = logging.getLogger(__name__)


class ValidationStopped(Exception):
    """A validation was stopped before its end."""


class ValidationFailed(DatasetError):
    """Validation frames cannot be read, so there is no validation."""


def validate(
    state: TrainState,
    held: ValidationData,
    *,
    per_dim: bool = False,
    run: RunDir | None = None,
    asked: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Validate the weights to export in the modes of the run; all ranks call this together.

    Args:
        state: the state of the run; its weights do not change.
        held: the samples.
        per_dim: also compute the loss of the actions by dimension, in the first mode.
        run: the run directory for the files of losses and of imagined images; None: no files.
        asked: returns whether this rank should stop; then all ranks stop after the current chunk.

    Returns:
        Result of `evaluate`. With several modes `modes` has the figures `OF_MODE` of each. Where
        the run trains forward dynamics of a policy that imagines, `imagined` has `Futures.figures`.
    """
    config = state.config
    mesh = state.mesh
    policy = state.eval_policy
    threads = state.config.loader.num_threads

    def in_mode(mode: str, **options: Any) -> dict[str, Any]:
        decoding_threads = fair_threads(mesh.local_world_size) if threads == "auto" else threads
        return evaluate(
            policy,
            held,
            config.seed,
            mesh,
            state.weights | dict.fromkeys(policy.metrics, 0.0),
            mode=mode,
            open_loop=config.val.open_loop_every,
            threads=decoding_threads,
            # the rest is the loader's
            memory=parse_bytes(config.loader.memory) // mesh.local_world_size // 8,
            asked=asked,
            **options,
        )

    first, *others = modes = config.val_modes()
    try:
        with attention_kernels(config.attention):
            result = in_mode(
                first, per_dim=per_dim, losses_file=run and run.episode_losses(state.step)
            )
            if others:
                tables = {first: result} | {mode: in_mode(mode) for mode in others}
                figures_of_modes = {}
                for mode, table in tables.items():
                    figures_of_modes[mode] = {
                        name: table[name] for name in OF_MODE if name in table
                    }
                result["modes"] = figures_of_modes
            if TaskMode.FORWARD in modes and policy.imagines:
                with keyed_generators(KeyedDraws(config.seed).key("imagine"), mesh.device):
                    futures = imagine_frames(policy, held, config.seed, mesh)
                result["imagined"] = futures.figures
                if run is not None and mesh.rank == 0:
                    futures.write(run.imagined)
            return result
    finally:
        reshard_weights(policy, mesh)


@torch.no_grad()
def evaluate(
    policy: Policy,
    held: ValidationData,
    seed: int,
    mesh: Ranks,
    weights: Mapping[str, float],
    *,
    mode: str = TaskMode.POLICY,
    open_loop: int = 0,
    per_dim: bool = False,
    threads: int = 1,
    memory: int = MEMORY,
    asked: Callable[[], bool] = lambda: False,
    losses_file: Path | None = None,
) -> dict[str, Any]:
    """Compute the losses of `policy` on every validation frame; all ranks call this together and
    get the same result.

    Args:
        policy: the network; its weights do not change.
        held: the samples.
        seed: seed of the random numbers; they belong to the sample, not to the step.
        mesh: the ranks.
        weights: weights of the loss terms, by name; 0 for the figures of `Policy.metrics`.
        mode: task mode of all samples (`policies/common/settings.py`).
        open_loop: also compare sampled actions with the recorded ones on every `open_loop`-th frame
            of a source; 0, or a mode in which actions are given, disables it.
        per_dim: also compute the loss of the actions by dimension, per source.
        threads: number of prefetching threads; like `memory` (bytes for prefetching) without effect
            on the result.
        memory: see `threads`.
        asked: returns whether this rank should stop; then all ranks stop after the current chunk.
        losses_file: file for the sums of each episode, written by rank 0; not with
            `Policy.scalar_losses`.

    Returns:
        `metrics.group_losses`, with `held_out`, the number of validation frames before sampling,
        and `unreadable`, that of left out samples, if any. `open_loop` adds "open_loop"
        (`OpenLoop.result`), `per_dim` "dims" of each source.

    Raises:
        ValidationStopped: on all ranks, one was asked to stop. ValidationFailed: on all ranks, one
            cannot read a frame.
    """
    sampler = None
    if open_loop and LossTerm.FLOW in TaskMode.TRAINS[mode] and predicts_actions(policy.config):
        sampler = OpenLoop(open_loop, seed, policy.config.action_dim, mode, held)
    table = SampleTable(policy, weights, len(held), mesh.device, per_dim, sampler)
    with (
        evaluating(policy),
        closing(_read_chunks(policy, held, mesh, threads, memory, asked)) as chunks,
    ):
        for chunk in chunks:
            _evaluate_chunk(policy, held, seed, mode, chunk, table, sampler, mesh.device)
    figures, tasks, unreadable = table.gather(mesh)
    readable = _find_readable(unreadable, len(held), first=mesh.rank == 0)
    samples = held.select(readable)
    tasks = [task for task, good in zip(tasks, readable) if good]
    sums = {
        term: TermSums.from_rows(figures[term][:, readable], policy.time_edges(term))
        for term in weights
    }
    scalar = policy.scalar_losses
    if scalar:
        result = one_group(sums, weights, samples)
    else:
        result = group_losses(sums, weights, samples, tasks)
    if losses_file is not None and mesh.rank == 0 and not scalar:
        EpisodeSums.from_samples(sums, weights, samples).write(losses_file)
    result["held_out"] = held.total
    if unreadable:
        result["unreadable"] = len(unreadable)
    if table.has_dims:
        _add_dims(result["sources"], figures[DIMS][:, :, readable], samples)
    if sampler:
        result["open_loop"] = sampler.result(
            {n: figures[f"open loop {n}"] for n in sampler.shapes}, readable
        )
    return result


def _evaluate_chunk(
    policy: Policy,
    held: ValidationData,
    seed: int,
    mode: str,
    chunk: "_Chunk",
    table: "SampleTable",
    sampler: OpenLoop | None,
    device: torch.device,
) -> None:
    if mode != TaskMode.POLICY:
        chunk.batch[MODE] = torch.full(
            (chunk.part.stop - chunk.part.start,), TaskMode.ALL.index(mode)
        )
    inputs = batch_to_device(chunk.batch, device)
    draws = draw_on_device(
        policy.random_spec("validation"), seed, held.identity(chunk.part), device
    )
    with keyed_generators(KeyedDraws(seed).key("validation", chunk.part.start), device):
        losses = policy.sample_losses(inputs, draws, table.terms, detail=True)
        errors = sampler.errors(policy, inputs, chunk.part) if sampler else {}
    if chunk.counts:
        table.add(chunk.part, losses, errors, chunk.batch[TASK], chunk.unreadable)


def _add_dims(
    sources: dict[str, dict[str, Any]], dims: np.ndarray, samples: ValidationData
) -> None:
    """Add the loss of each action dimension to the figures of each source; dims: float64 (2, A, N),
    sums and counts.
    """
    weights = 1.0 if samples.weight is None else samples.weight
    losses, counts = dims * weights
    for name, entry in sources.items():
        number = samples.names.index(name)
        of_source = np.flatnonzero(samples.source == number)
        entry["dims"] = loss_by_dimension(losses, counts, of_source, samples.action_names(number))


class SampleTable:
    """Figures of each validation sample, float64 on the device: zeros, into which each rank writes
    its own chunks.
    """

    def __init__(
        self,
        policy: Policy,
        weights: Mapping[str, float],
        count: int,
        device: torch.device,
        per_dim: bool,
        sampler: OpenLoop | None,
    ) -> None:
        self._action_term = policy.loss_terms[0]
        self.terms = list(weights)
        self.has_dims = per_dim and self._action_term in weights and not policy.scalar_losses
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(
            weights, (2 + policy.validation_draws, count)
        )
        if self.has_dims:
            shapes[DIMS] = (2, policy.config.action_dim, count)
        if sampler:
            shapes |= {f"open loop {name}": shape for name, shape in sampler.shapes.items()}
        self._figures = {
            name: torch.zeros(shape, dtype=torch.float64, device=device)
            for name, shape in shapes.items()
        }
        self._tasks: dict[int, list[str]] = {}  # first sample of a chunk -> tasks of its samples
        self._unreadable: dict[int, str] = {}  # sample -> error

    def add(
        self,
        part: slice,
        losses: Mapping[str, Loss],
        errors: Mapping[str, tuple[Tensor, Tensor]],
        tasks: Sequence[str],
        unreadable: Mapping[int, str],
    ) -> None:
        """Write the figures of a chunk: per term sum, count, and the draws of a sample in the order
        of its strata.
        """
        # each text once, for the way to other ranks
        self._tasks[part.start] = [sys.intern(task) for task in tasks]
        self._unreadable |= {part.start + row: error for row, error in unreadable.items()}
        for name, (columns, values) in errors.items():
            self._figures[f"open loop {name}"][:, columns] = values.double()
        for term, loss in losses.items():
            rows = self._figures[term][:, part]
            rows[0] = loss.sum
            rows[1] = loss.count
            if loss.detail is None:
                rows[2:] = loss.sum / len(rows[2:])
                continue
            of_draw = loss.detail.sum.double().sum(dim=2)
            if loss.detail.order is not None:
                of_draw = of_draw.gather(1, loss.detail.order)
            rows[2:] = of_draw.T
            if self.has_dims and term == self._action_term:
                dims = self._figures[DIMS][:, :, part]
                dims[0] = loss.detail.sum.double().sum(dim=1).T
                dims[1] = (loss.detail.count * loss.detail.sum.shape[1]).T

    def gather(self, mesh: Ranks) -> tuple[dict[str, np.ndarray], list[str], dict[int, str]]:
        """Return the figures of all ranks, the task of each sample, and the error of each
        unreadable one.
        """
        figures = {name: mesh.sum(tensor).cpu().numpy() for name, tensor in self._figures.items()}
        ranks = mesh.gather((self._tasks, self._unreadable))
        tasks_from: dict[int, list[str]] = {}
        unreadable: dict[int, str] = {}
        for tasks_of_rank, errors_of_rank in ranks:
            tasks_from |= tasks_of_rank
            unreadable |= errors_of_rank
        tasks = list(chain.from_iterable(tasks_from[start] for start in sorted(tasks_from)))
        return figures, tasks, unreadable


class _Chunk(NamedTuple):
    part: slice
    batch: dict[str, Any]
    unreadable: dict[int, str]
    """Error of each row that another sample replaces."""
    counts: bool


def _read_chunks(
    policy: Policy,
    held: ValidationData,
    mesh: Ranks,
    threads: int,
    memory: int,
    asked: Callable[[], bool],
) -> Generator[_Chunk, None, None]:
    """Yield this rank's chunks, prepared. All ranks agree before each on errors and stop requests.

    A forward pass may gather weights from all ranks. So a rank without a chunk in the last turn
    gets one again that is not counted.
    """
    size = min(BATCH, held.chunk)
    parts = [slice(low, min(low + size, len(held))) for low in range(0, len(held), size)]
    numbers, turns = held.share_chunks(len(parts), mesh.rank, mesh.world_size)
    reading = held.read_ahead(parts, numbers or [0], policy.preprocess, threads, memory)
    with closing(reading), Progress(turns, "validation", "chunk", shown=mesh.rank == 0) as bar:
        for turn in range(turns):
            error: Exception | None = None
            if turn < max(1, len(numbers)):
                try:
                    number, batch = next(reading)
                    unreadable = batch.pop(held.UNREADABLE)
                except Exception as caught:
                    error = caught
            stopping, failed = mesh.votes(asked(), error is not None)
            if failed:
                raise _failure(mesh, error)
            if stopping:
                raise ValidationStopped
            yield _Chunk(parts[number], batch, unreadable, turn < len(numbers))
            bar.update()


def _failure(mesh: Ranks, error: Exception | None) -> Exception:
    """Make the error that all ranks raise where some cannot read a chunk; `error` is this rank's
    own.
    """
    report = None if error is None else (is_wrong_input(error), str(error) or repr(error))
    wrong_input, message = next(report for report in mesh.gather(report) if report is not None)
    message = f"validation frames cannot be read: {message}"
    if wrong_input:
        fix = "data.on_bad_frame substitute leaves out the few frames that cannot be read"
        failure: Exception = ValidationFailed(message, fix=fix)
    else:
        failure = RankError(message)
    failure.__cause__ = error
    return failure


def _find_readable(unreadable: Mapping[int, str], count: int, first: bool) -> np.ndarray:
    """Mark the samples that can be read, bool (count,), with a warning about others.

    Raises:
        ValidationFailed: many cannot be read, as in training.
    """
    readable = np.ones(count, bool)
    if unreadable:
        readable[list(unreadable)] = False
        error = unreadable[min(unreadable)]
        allowed = max(FEW, int(CAP * count))
        share = f"{len(unreadable)} of {count} validation frames cannot be read"
        if len(unreadable) > allowed:
            fix = "repair the dataset, or leave these episodes out"
            raise ValidationFailed(f"{share}, {allowed} are allowed; the first: {error}", fix=fix)
        if first:
            Progress.print(f"{share} and are left out of the validation; the first: {error}")
    return readable


def describe_validation(step: int, result: Record, lowest: tuple[float, int] | None) -> str:
    """Describe a validation in one line: its loss, the terms, the lowest loss so far with its step,
    and notes.
    """
    terms = result["terms"] if len(result["terms"]) > 1 else {}
    means = ", ".join(f"{term} {entry['loss']:.4g}" for term, entry in terms.items())
    error = "" if result["se"] is None else f" ± {result['se']:.2g}"
    of_terms = f" ({means})" if means else ""
    parts = [f"loss {result['loss']:.4g}{error}{of_terms}"]
    if lowest is not None and lowest[1] == step:
        parts.append("the lowest so far")
    elif lowest is not None:
        parts.append(f"lowest {lowest[0]:.4g} at step {lowest[1]:,}")
    return "; ".join([*parts, *notes_on_groups(result)])


def read_validation_data(
    config: TrainConfig, data: RunData, trained: TrainConfig | None = None
) -> ValidationData | None:
    """Return the validation frames of all sources; None if there are none.

    Args:
        config: settings.
        data: the sources.
        trained: settings of the training, whose forward passes bound the chunks; None: `config`.
    """
    skip = config.data.on_bad_frame == "substitute"
    separator = config.augment.task_separator
    held = ValidationData.from_sources(
        data, bool(config.data.sources), config.val.frames, skip, separator
    )
    return None if held is None else replace(held, chunk=(trained or config).forward_samples())


def open_validation(config: TrainConfig, data: RunData) -> ValidationData | None:
    """Return the data of the run's validations, if any. Raises ConfigError if they lack the figure
    of `keep_best`.
    """
    validation = read_validation_data(config, data) if config.val.every else None
    if validation is not None:
        check_keep_best(config, validation)
    return validation


def validate_and_log(
    state: TrainState, validation: ValidationData, stop: Stop, log: MetricsLog
) -> tuple[Record | None, ValidationFailed | None]:
    """Make a validation and log it; all ranks call this together.

    Returns:
        The result and no error; None and the error if frames cannot be read; None twice after a
        stop request.
    """
    try:
        result = validate(
            state, validation, run=RunDir(Path(state.config.output_dir)), asked=lambda: stop.asked
        )
    except (ValidationStopped, ValidationFailed) as error:
        log.discard_row()
        failure = error if isinstance(error, ValidationFailed) else None
        return None, failure
    log.log(state.step, {"kind": "val", **result})
    if state.mesh.rank == 0:
        logger.info(
            "validation at step %s: %s",
            state.step,
            describe_validation(state.step, result, log.lowest),
        )
    return result, None
