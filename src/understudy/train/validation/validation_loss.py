"""Validation losses: one pass over validation frames of all sources, the same number for the same weights.

Random numbers belong to the *sample* (its source, episode and frame), and the flow times of a sample are stratified. So
two evaluations differ only if the weights do. Chunks are cut from the whole list of samples
(`load/validation/validation_data.py`), independent of ranks, and the sums of all samples are gathered before they
are added. So any number of ranks and threads gives the same bits. Nothing here reads or advances a generator, so
validation does not affect training.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.batch_keys import MODE, TASK
from understudy.distributed.mesh import Mesh
from understudy.errors import DatasetError, RankError, is_wrong_input
from understudy.load.validation.validation_data import UNREADABLE, ValidationData, prefetch_chunks, share_chunks
from understudy.policies.batch import to_device
from understudy.policies.common.task_modes import FLOW, MODES, POLICY, TRAINS
from understudy.policies.draws import make_draws
from understudy.policies.losses import Loss
from understudy.policies.policy import Policy
from understudy.progress import Progress, tqdm
from understudy.train.optimizer_step import batch_to_device
from understudy.train.validation.episode_sums import EpisodeSums
from understudy.train.validation.metrics import TermSums, group_losses, loss_by_dimension, one_group
from understudy.train.validation.open_loop import OpenLoop

BATCH = 128
"""Samples of a chunk."""
MEMORY = 1 << 30
"""Default size of prefetched chunks in bytes; at least one chunk is read."""


FEW, CAP = 16, 0.01
"""Largest number, or share, of unreadable validation frames that may be left out."""


class ValidationStopped(Exception):
    """A validation was stopped before its end."""


class ValidationFailed(DatasetError):
    """Validation frames cannot be read, so there is no validation."""


@torch.no_grad()
def evaluate(
    policy: Policy,
    held: ValidationData,
    seed: int,
    mesh: Mesh,
    weights: Mapping[str, float],
    *,
    mode: str = POLICY,
    open_loop: int = 0,
    per_dim: bool = False,
    threads: int = 1,
    memory: int = MEMORY,
    asked: Callable[[], bool] = lambda: False,
    keep: Callable[[EpisodeSums], None] | None = None,
) -> dict[str, Any]:
    """Compute the losses of `policy` on every validation frame; all ranks call this together and get the same result.

    Args:
        policy: its weights do not change.
        held: the samples.
        seed: of the random numbers; they belong to the sample, not to the step.
        mesh: the ranks.
        weights: of the loss terms, by name.
        mode: task mode of all samples (`policies/common/task_modes.py`).
        open_loop: also compare sampled actions with the recorded ones on every `open_loop`-th frame of a source; 0, or
            a mode in which actions are given, disables it.
        per_dim: also compute the loss of the actions by dimension, per source.
        threads: for prefetching; the result does not depend on it.
        memory: bytes for prefetching; the result does not depend on it.
        asked: returns whether this rank should stop; then all ranks stop after the current chunk.
        keep: called with the sums of each episode, on every rank; not with `Policy.scalar_losses`.

    Returns:
        `metrics.group_losses`, with `held_out`, the number of validation frames before sampling. With `open_loop` it
        has "open_loop" (`OpenLoop.result`), with `per_dim` each source has "dims": {joint: loss}. `unreadable` is the
        number of samples that were left out, where there are any.

    Raises:
        ValidationStopped: on all ranks, one was asked to stop. ValidationFailed: on all ranks, one cannot read a frame.
    """
    width, count = policy.config.action_dim, len(held)
    rows = {"sum": 1, "count": 1, "draws": policy.validation_draws}
    layout = {(term, name): (size, count) for term in weights for name, size in rows.items()}
    action_term = policy.loss_terms[0]
    if per_dim and action_term in weights and not policy.scalar_losses:
        layout |= {("dims", "sum"): (width, count), ("dims", "count"): (width, count)}
    sampler = OpenLoop(open_loop, seed, width, mode, held) if open_loop and FLOW in TRAINS[mode] else None
    layout |= {("open loop", name): shape for name, shape in (sampler.shapes.items() if sampler else ())}
    sizes = [rows * columns for rows, columns in layout.values()]
    found = torch.zeros(sum(sizes), dtype=torch.float64, device=mesh.device)

    def parts(of: Tensor) -> dict[tuple[str, str], Tensor]:  # views
        return {name: part.view(shape) for (name, shape), part in zip(layout.items(), of.split(sizes))}

    at = parts(found)
    chunks = [slice(low, min(low + BATCH, len(held))) for low in range(0, len(held), BATCH)]
    own, turns = share_chunks(len(chunks), mesh.rank, mesh.world_size)
    tasks: dict[int, list[str]] = {}  # of this rank's chunks
    known: dict[str, str] = {}  # each text once, for the way to the other ranks
    wrong: dict[int, str] = {}  # samples that cannot be read
    # A rank without a chunk in the last turn computes one that is not counted, since a forward pass may gather weights
    # from all ranks.
    reading = prefetch_chunks(lambda number: policy.preprocess(held.read(chunks[number])), own or [0], threads, memory)
    training = policy.training
    policy.eval()
    try:
        with Progress(turns, "validation", "chunk", shown=mesh.rank == 0) as bar:
            for turn in range(turns):
                error: Exception | None = None
                if turn < max(1, len(own)):
                    try:
                        number, batch = next(reading)
                    except Exception as caught:
                        error = caught
                stopping, failed = mesh.votes(asked(), error is not None)
                if failed:
                    raise _failure(mesh, error)
                if stopping:
                    raise ValidationStopped
                part = chunks[number]
                if turn < max(1, len(own)):
                    unreadable: dict[int, str] = batch.pop(UNREADABLE)
                    if mode != POLICY:
                        batch[MODE] = torch.full((part.stop - part.start,), MODES.index(mode))
                    here = batch_to_device(batch, mesh.device)
                    draws = make_draws(policy.random_spec("validation"), seed, held.identity(part))
                    draws = {name: to_device(values, mesh.device) for name, values in draws.items()}
                losses = policy.sample_losses(here, draws, list(weights), detail=True)
                errors = sampler.errors(policy, here, part) if sampler else {}
                if turn < len(own):
                    tasks[number] = [known.setdefault(task, task) for task in batch[TASK]]
                    wrong |= {part.start + row: why for row, why in unreadable.items()}
                    _write(at, part, losses, action_term)
                    for name, (columns, values) in errors.items():
                        at["open loop", name][:, columns] = values.double()
                bar.update()
    finally:
        reading.close()
        policy.train(training)
    texts = {number: names for of_rank in mesh.gather(tasks) for number, names in of_rank.items()}
    names = [name for number in range(len(chunks)) for name in texts[number]]
    each = {name: part.numpy() for name, part in parts(mesh.sum(found).cpu()).items()}
    total, readable = held.total, np.ones(count, bool)
    if left_out := {sample: why for of_rank in mesh.gather(wrong) for sample, why in of_rank.items()}:
        _check_few(left_out, count, first=mesh.rank == 0)
        readable[list(left_out)] = False
        held, names = held.select(readable), [name for name, good in zip(names, readable) if good]
        each = {name: part if name[0] == "open loop" else part[:, readable] for name, part in each.items()}
    terms = {
        term: TermSums(each[term, "sum"][0], each[term, "count"][0], each[term, "draws"], policy.time_edges(term))
        for term in weights
    }
    scalar = policy.scalar_losses
    result = one_group(terms, weights, held) if scalar else group_losses(terms, weights, held, names)
    result["held_out"] = total
    if keep is not None and not scalar:
        keep(EpisodeSums.from_samples(terms, weights, held))
    if left_out:
        result["unreadable"] = len(left_out)
    if ("dims", "sum") in each:
        for name, entry in result["sources"].items():
            number = held.names.index(name)
            of_source = np.flatnonzero(held.source == number)
            weight = 1.0 if held.weight is None else held.weight
            entry["dims"] = loss_by_dimension(
                each["dims", "sum"] * weight, each["dims", "count"] * weight, of_source, held.action_names(number)
            )
    if sampler:
        result["open_loop"] = sampler.result({name: each["open loop", name] for name in sampler.shapes}, readable)
    return result


def _failure(mesh: Mesh, error: Exception | None) -> Exception:
    """Make the error that all ranks raise where some cannot read a chunk; `error` is that of this rank."""
    known = None if error is None else (is_wrong_input(error), str(error) or repr(error))
    wrong_input, words = next(each for each in mesh.gather(known) if each is not None)
    made: Exception
    if wrong_input:
        fix = "data.on_bad_frame substitute leaves out the few frames that cannot be read"
        made = ValidationFailed(f"validation frames cannot be read: {words}", fix=fix)
    else:
        made = RankError(f"validation frames cannot be read: {words}")
    made.__cause__ = error
    return made


def _check_few(left_out: Mapping[int, str], count: int, first: bool) -> None:
    """Warn about unreadable samples, of `count`. Raises ValidationFailed where they are many, as in training."""
    words, allowed = left_out[min(left_out)], max(FEW, int(CAP * count))
    what = f"{len(left_out)} of {count} validation frames cannot be read"
    if len(left_out) > allowed:
        fix = "repair the dataset, or leave these episodes out"
        raise ValidationFailed(f"{what}, {allowed} are allowed; the first: {words}", fix=fix)
    if first:
        tqdm.write(f"{what} and are left out of the validation; the first: {words}", file=sys.stderr)


def _write(at: Mapping[tuple[str, str], Tensor], part: slice, losses: Mapping[str, Loss], action_term: str) -> None:
    """Write the losses of a chunk to their places; the draws of a sample in the order of its strata."""
    for term, loss in losses.items():
        at[term, "sum"][0, part], at[term, "count"][0, part] = loss.sum, loss.count
        if loss.detail is None:
            at[term, "draws"][:, part] = loss.sum / len(at[term, "draws"])
            continue
        of_draw = loss.detail.sum.double().sum(dim=2)
        if loss.detail.order is not None:
            of_draw = of_draw.gather(1, loss.detail.order)
        at[term, "draws"][:, part] = of_draw.T
        if term == action_term and ("dims", "sum") in at:
            at["dims", "sum"][:, part] = loss.detail.sum.double().sum(dim=1).T
            at["dims", "count"][:, part] = (loss.detail.count * loss.detail.sum.shape[1]).T
