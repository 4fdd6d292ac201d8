"""Held-out losses: one pass over held-out frames of all sources, the same number for the same weights every time.

Noise and flow times belong to the *sample* (its source, episode and frame) and the times of a sample are stratified, so
two evaluations differ only if the weights do: not by step, not by what training drew. Chunks are cut from the whole
line of samples (`held_out.py`), whoever computes them, and every sample's sums are brought together before they are
added up: so one rank, two and three find the same bits, with any number of threads. Nothing here reads or advances a
generator, so training cannot notice. Not here: what a table says (`groups.py`), success in simulation (`rollout.py`).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from understudy.policies.batch import MODE, TASK
from understudy.policies.flow_policy import FlowPolicy
from understudy.policies.modes import DYNAMICS, FLOW, MODES, POLICY, TRAINS
from understudy.train.groups import TermFound, by_dimension, grouped
from understudy.train.held_out import HeldOut, ahead, dealt
from understudy.train.open_loop import OpenLoop
from understudy.train.parallel import Mesh
from understudy.train.step import Draws, moved, placed

BATCH = 128
"""Samples of a chunk."""
DRAWS = 8
"""Noises and times per held-out sample."""
MEMORY = 1 << 30
"""Bytes of chunks that are read ahead, unless told otherwise; one chunk is read whatever it takes."""


@torch.no_grad()
def validation(
    policy: FlowPolicy,
    held: HeldOut,
    draws: Draws,
    mesh: Mesh,
    weights: Mapping[str, float],
    *,
    mode: str = POLICY,
    open_loop: int = 0,
    per_dim: bool = False,
    threads: int = 1,
    memory: int = MEMORY,
) -> dict[str, Any]:
    """Losses of `policy` on every frame of the line; all ranks call this together and get the same.

    Args:
        draws: shapes and seed of the draws, `draws.draws` per sample.
        weights: of the loss terms, by name.
        mode: what each sample is a lesson in (`policies/modes.py`).
        open_loop: also compare sampled actions with the recorded ones on each `open_loop`-th frame of a source; 0, or a
            mode in which actions are given: not.
        per_dim: also tell the action's loss by dimension, per source.
        threads, memory: for reading ahead; the result does not depend on them.
    Returns:
        `groups.grouped`, with `held_out`, the number of held-out frames, of which those of the line were judged; with
        `open_loop` also {"open_loop": `OpenLoop.result`}; with `per_dim` each source also has "dims": {joint: loss}.
    """
    width, count = policy.config.action_dim, len(held)
    rows = {"sum": 1, "count": 1, "draws": draws.draws}
    layout = {(term, name): (size, count) for term in weights for name, size in rows.items()}
    if per_dim and FLOW in weights:
        layout |= {("dims", "sum"): (width, count), ("dims", "count"): (width, count)}
    sampler = OpenLoop(open_loop, draws.seed, width, mode, held) if open_loop and FLOW in TRAINS[mode] else None
    layout |= {("open loop", name): shape for name, shape in (sampler.shapes.items() if sampler else ())}
    sizes = [rows * columns for rows, columns in layout.values()]
    found = torch.zeros(sum(sizes), dtype=torch.float64, device=mesh.device)

    def parts(of: Tensor) -> dict[tuple[str, str], Tensor]:  # views
        return {name: part.view(shape) for (name, shape), part in zip(layout.items(), of.split(sizes))}

    at = parts(found)
    chunks = [slice(low, min(low + BATCH, len(held))) for low in range(0, len(held), BATCH)]
    own, turns = dealt(len(chunks), mesh.rank, mesh.world)
    tasks: dict[int, list[str]] = {}  # of this rank's chunks
    known: dict[str, str] = {}  # each text once, for the way to the other ranks
    # A rank that has no chunk in the last turn computes one that is not counted: a forward pass may gather weights from
    # all ranks.
    extra = turns - len(own)
    reading = ahead(lambda number: held.batch(chunks[number]), own or [0], threads, memory)
    training = policy.training
    policy.eval()
    try:
        for number, batch in reading:
            part = chunks[number]
            repeat = extra + 1 if number == (own or [0])[-1] else 1
            if mode != POLICY:
                batch[MODE] = torch.full((part.stop - part.start,), MODES.index(mode))
            here = moved(batch, mesh.device)
            noise, time = (placed(draw, mesh.device) for draw in draws.noise_and_time(held.identity(part)))
            for turn in range(repeat if own else extra):
                losses = policy.losses(here, noise, time, terms=list(weights), detail=True)
                errors = sampler.errors(policy, here, part) if sampler else {}
                if turn or not own:
                    continue
                tasks[number] = [known.setdefault(task, task) for task in batch[TASK]]
                _write(at, part, losses, time)
                for name, (columns, values) in errors.items():
                    at["open loop", name][:, columns] = values.double()
    finally:
        reading.close()
        policy.train(training)
    told = {number: names for of_rank in mesh.gather(tasks) for number, names in of_rank.items()}
    names = [name for number in range(len(chunks)) for name in told[number]]
    each = {name: part.numpy() for name, part in parts(mesh.sum(found).cpu()).items()}
    terms = {t: TermFound(each[t, "sum"][0], each[t, "count"][0], each[t, "draws"]) for t in weights}
    result = grouped(terms, weights, held, names) | {"held_out": held.total}
    if ("dims", "sum") in each:
        for name, entry in result["sources"].items():
            number = held.names.index(name)
            of_source = np.flatnonzero(held.source == number)
            entry["dims"] = by_dimension(each["dims", "sum"], each["dims", "count"], of_source, held.joints(number))
    if sampler:
        result["open_loop"] = sampler.result({name: each["open loop", name] for name in sampler.shapes})
    return result


def _write(at: Mapping[tuple[str, str], Tensor], part: slice, losses: Mapping[str, Any], time: Tensor) -> None:
    """The losses of a chunk to their places; time [B, D], or [B, D, 2] of a policy with two streams, one per term."""
    for term, loss in losses.items():
        own = time if time.ndim == 2 else time[:, :, (FLOW, DYNAMICS).index(term)]
        # A sample's times are stratified: the d-th earliest lies in the d-th interval.
        of_draw = loss.detail.sum.double().sum(dim=2).gather(1, own.argsort(dim=1))
        at[term, "sum"][0, part], at[term, "count"][0, part] = loss.sum, loss.count
        at[term, "draws"][:, part] = of_draw.T
        if term == FLOW and ("dims", "sum") in at:
            at["dims", "sum"][:, part] = loss.detail.sum.double().sum(dim=1).T
            at["dims", "count"][:, part] = (loss.detail.count * loss.detail.sum.shape[1]).T
