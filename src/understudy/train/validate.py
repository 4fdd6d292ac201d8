"""Held-out loss per task: one pass over the held-out frames, the same number for the same weights every time.

Noise and flow times belong to the *sample* (its episode and frame) and the times of a sample are stratified, so two
evaluations differ only if the weights do: not by step, not by what training drew. Batches are cut from the whole line
of samples, whoever computes them, and every sample's sums are brought together before they are added up in the order
of the line: so one rank, two and three find the same bits. Nothing here reads or advances a generator, so training
cannot notice. Not here: success in simulation (`rollout.py`).
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from understudy.data.samples import EpisodeDataset
from understudy.policies.flow_policy import TASK, FlowPolicy
from understudy.train.parallel import Mesh
from understudy.train.step import Draws, moved, placed

BATCH = 128
DRAWS = 8
"""Noises and times per held-out sample."""


@torch.no_grad()
def validation(
    policy: FlowPolicy, held_out: EpisodeDataset, draws: Draws, mesh: Mesh, weights: Mapping[str, float]
) -> dict[str, Any]:
    """Losses of `policy` on every held-out frame; all ranks call this together and get the same.

    Args:
        draws: shapes and seed of the draws, `draws.draws` per sample.
        weights: of the loss terms, by name.
    Returns:
        {"loss": over all samples, "macro": mean over tasks, "tasks": {task: {"loss", "samples"}}}; each loss is the
        sum over its samples divided by the count over its samples, weighted and added up over the loss's terms.
    """
    rows = held_out.segments
    episode = np.repeat(rows[:, 0], rows[:, 2] - rows[:, 1])
    frame = np.concatenate([np.arange(start, stop) for _, start, stop in rows])
    found = torch.zeros((len(weights), 2, len(episode)), dtype=torch.float64, device=mesh.device)  # sums and counts
    tasks: dict[int, list[str]] = {}  # of this rank's batches, by where they begin
    training = policy.training
    policy.eval()
    lows = range(0, len(episode), BATCH)
    for turn in range(-(-len(lows) // mesh.world)):
        # A rank without a batch of its own in the last turn computes one that is not counted: a forward pass may gather
        # weights from all ranks.
        number = turn * mesh.world + mesh.rank
        part = slice(low := lows[number % len(lows)], low + BATCH)
        batch = held_out.batch(episode[part], frame[part])
        noise, time = draws.noise_and_time(sample_identity(episode[part], frame[part]))
        losses = policy.losses(
            moved(batch, mesh.device), placed(noise, mesh.device), placed(time, mesh.device), terms=list(weights)
        )
        if number < len(lows):
            tasks[low] = list(batch[TASK])
            for term, of_term in zip(weights, found):
                of_term[0, part], of_term[1, part] = losses[term].sum, losses[term].count
    policy.train(training)
    told = {low: names for of_rank in mesh.gather(tasks) for low, names in of_rank.items()}
    return _by_task(mesh.sum(found).cpu().numpy(), [name for low in lows for name in told[low]], weights)


def _by_task(found: np.ndarray, tasks: list[str], weights: Mapping[str, float]) -> dict[str, Any]:
    """`validation`'s result from float64 [terms, 2, samples] and each sample's task."""
    at: dict[str, list[int]] = defaultdict(list)
    for sample, task in enumerate(tasks):
        at[task].append(sample)

    def mean(samples: list[int]) -> float:
        chosen = found[:, :, np.array(samples)]
        return math.fsum(
            weight * math.fsum(sums) / max(1.0, math.fsum(counts))
            for weight, (sums, counts) in zip(weights.values(), chosen)
        )

    per_task = {task: {"loss": mean(at[task]), "samples": len(at[task])} for task in sorted(at)}
    macro = math.fsum(entry["loss"] for entry in per_task.values()) / len(per_task)
    return {"loss": mean(list(range(len(tasks)))), "macro": macro, "tasks": per_task}


def sample_identity(episode: np.ndarray, frame: np.ndarray) -> torch.Tensor:
    """One number per sample of a dataset, whatever else is selected: int64 [n]."""
    return torch.from_numpy((episode.astype(np.int64) << 32) + frame)
