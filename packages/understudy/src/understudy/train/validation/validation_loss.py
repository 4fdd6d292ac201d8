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
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from understudy.compile import attention_kernels
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import RankError, reshard_weights
from understudy.distributed.ranks import Ranks
from understudy.policies.batch import batch_to_device
from understudy.policies.common.settings import TaskMode
from understudy.policies.draws import keyed_generators
from understudy.policies.policy import evaluating
from understudy.train.augment_batch import draw_on_device
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import RunData
from understudy.train.state import TrainState
from understudy.train.track.trackers import MetricsLog
from understudy.train.validation.imagined import imagine_frames
from understudy.train.validation.losses import Losses
from understudy.train.validation.metrics import check_keep_best, notes_on_groups
from understudy.train.validation.observer import Chunk, Evaluation, Observer
from understudy.train.validation.open_loop import OpenLoop
from understudy.train.validation.per_dimension import PerDimension
from understudy_base import (
    MODE,
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
    threads = config.loader.num_threads
    reading = Reading(
        threads=fair_threads(mesh.local_world_size) if threads == "auto" else threads,
        # the rest is the loader's
        memory=parse_bytes(config.loader.memory) // mesh.local_world_size // 8,
        asked=asked,
    )
    weights = state.weights | dict.fromkeys(policy.metrics, 0.0)

    def in_mode(mode: str, is_first: bool = False) -> dict[str, Any]:
        evaluation = Evaluation(policy, held, config.seed, mesh, weights, mode)
        losses_file = run.episode_losses(state.step) if run and is_first else None
        observers: list[Observer] = [Losses(evaluation, losses_file)]
        if per_dim and is_first and PerDimension.applies(evaluation):
            observers.append(PerDimension(evaluation))
        if config.val.open_loop_every and OpenLoop.applies(evaluation):
            observers.append(OpenLoop(evaluation, config.val.open_loop_every))
        return evaluate(evaluation, observers, reading)

    first, *others = modes = config.modes.val_modes()
    try:
        with attention_kernels(config.attention):
            result = in_mode(first, is_first=True)
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


@dataclass(frozen=True)
class Reading:
    """Reading of the samples, without effect on the result."""

    threads: int = 1
    """Threads that read ahead."""
    memory: int = MEMORY
    """Bytes of samples that are read ahead."""
    asked: Callable[[], bool] = lambda: False
    """Returns whether this rank should stop; then all ranks stop after the current chunk."""


@torch.no_grad()
def evaluate(
    evaluation: Evaluation, observers: Sequence[Observer], reading: Reading = Reading()
) -> dict[str, Any]:
    """Feed every sample and its losses to observers; all ranks call this together and get the same
    result.

    Returns:
        The figures of all observers.

    Raises:
        ValidationStopped: on all ranks, one was asked to stop. ValidationFailed: on all ranks, one
            cannot read a frame.
    """
    held = evaluation.held
    mesh = evaluation.mesh
    unreadable: dict[int, str] = {}  # sample -> error
    with evaluating(evaluation.policy), closing(_read_chunks(evaluation, reading)) as chunks:
        for chunk in chunks:
            _observe(evaluation, observers, chunk)
            if chunk.counts:
                start = chunk.part.start
                unreadable |= {start + row: error for row, error in chunk.unreadable.items()}
    of_ranks = mesh.gather(unreadable)
    for of_rank in of_ranks:
        unreadable |= of_rank
    readable = _find_readable(unreadable, len(held), first=mesh.rank == 0)
    record: dict[str, Any] = {}
    for observer in observers:
        _extend(record, observer.result(readable))
    return record


def _extend(record: dict[str, Any], figures: dict[str, Any]) -> None:
    """Add figures to a record; those of a source without a loss are left out."""
    if "sources" in record:
        for name, of_source in figures.pop("sources", {}).items():
            record["sources"].get(name, {}).update(of_source)
    record |= figures


def _observe(evaluation: Evaluation, observers: Sequence[Observer], chunk: "_ReadChunk") -> None:
    policy = evaluation.policy
    device = evaluation.mesh.device
    part = chunk.part
    if evaluation.mode != TaskMode.POLICY:
        number = TaskMode.ALL.index(evaluation.mode)
        chunk.batch[MODE] = torch.full((part.stop - part.start,), number)
    inputs = batch_to_device(chunk.batch, device)
    draws = draw_on_device(
        policy.random_spec("validation"), evaluation.seed, evaluation.held.identity(part), device
    )
    key = KeyedDraws(evaluation.seed).key("validation", part.start)
    with keyed_generators(key, device):
        losses = policy.sample_losses(inputs, draws, list(evaluation.weights), detail=True)
        observed = Chunk(part, inputs, losses, chunk.counts)
        for observer in observers:
            observer.add(observed)


class _ReadChunk(NamedTuple):
    part: slice
    batch: dict[str, Any]
    unreadable: dict[int, str]
    """Error of each row that another sample replaces."""
    counts: bool


def _read_chunks(evaluation: Evaluation, reading: Reading) -> Generator[_ReadChunk, None, None]:
    """Yield this rank's chunks, prepared. All ranks agree before each on errors and stop requests.

    A forward pass may gather weights from all ranks. So a rank without a chunk in the last turn
    gets one again that is not counted.
    """
    held = evaluation.held
    mesh = evaluation.mesh
    size = min(BATCH, held.chunk)
    parts = [slice(low, min(low + size, len(held))) for low in range(0, len(held), size)]
    numbers, turns = held.share_chunks(len(parts), mesh.rank, mesh.world_size)
    batches = held.read_ahead(
        parts, numbers or [0], evaluation.policy.preprocess, reading.threads, reading.memory
    )
    with closing(batches), Progress(turns, "validation", "chunk", shown=mesh.rank == 0) as bar:
        for turn in range(turns):
            error: Exception | None = None
            if turn < max(1, len(numbers)):
                try:
                    number, batch = next(batches)
                    unreadable = batch.pop(held.UNREADABLE)
                except Exception as caught:
                    error = caught
            stopping, failed = mesh.votes(reading.asked(), error is not None)
            if failed:
                raise _failure(mesh, error)
            if stopping:
                raise ValidationStopped
            yield _ReadChunk(parts[number], batch, unreadable, turn < len(numbers))
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
    if held is None:
        return None
    batching = (trained or config).batching
    return replace(held, chunk=batching.forward_samples())


def open_validation(config: TrainConfig, data: RunData) -> ValidationData | None:
    """Return the data of the run's validations, if any. Raises ConfigError if they lack the figure
    of `keep_best`.
    """
    validation = read_validation_data(config, data) if config.val.every else None
    if validation is not None:
        check_keep_best(config.checkpoint.keep_best, config.samples, config.val, validation)
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
