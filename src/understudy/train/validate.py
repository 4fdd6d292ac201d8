"""Held-out loss per task: one pass over the held-out frames, the same number for the same weights every time.

Noise and flow times belong to the *sample* (its episode and frame) and the times of a sample are stratified, so two
evaluations differ only if the weights do: not by step, not by what training drew. Nothing here reads or advances a
generator, so training cannot notice. Not here: success in simulation (`rollout.py`).
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from understudy.data.samples import EpisodeDataset
from understudy.policies.flow_policy import TASK, FlowPolicy
from understudy.train.step import Draws

BATCH = 128
DRAWS = 8
"""Noises and times per held-out sample."""


@torch.no_grad()
def validation(policy: FlowPolicy, held_out: EpisodeDataset, draws: Draws) -> dict[str, Any]:
    """Losses of `policy` on every held-out frame.

    Args:
        draws: shapes and seed of the draws, `draws.draws` per sample.
    Returns:
        {"loss": over all samples, "macro": mean over tasks, "tasks": {task: {"loss", "samples"}}}; each loss is the
        sum over its samples divided by the count over its samples, added up over the loss's terms, in float64.
    """
    rows = held_out.segments
    episode = np.repeat(rows[:, 0], rows[:, 2] - rows[:, 1])
    frame = np.concatenate([np.arange(start, stop) for _, start, stop in rows])
    samples: Counter[str] = Counter()
    sums: dict[str, Counter[str]] = defaultdict(Counter)  # loss term -> task -> sum over its samples
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    training = policy.training
    policy.eval()
    for low in range(0, len(episode), BATCH):
        part = slice(low, low + BATCH)
        batch = held_out.batch(episode[part], frame[part])
        noise, time = draws.noise_and_time(sample_identity(episode[part], frame[part]))
        samples.update(batch[TASK])
        for term, loss in policy.losses(batch, noise, time).items():
            for task, total, count in zip(batch[TASK], loss.sum.tolist(), loss.count.tolist()):
                sums[term][task] += total
                counts[term][task] += count
    policy.train(training)

    def mean(tasks: Iterable[str]) -> float:
        tasks = list(tasks)
        return math.fsum(
            math.fsum(sums[term][task] for task in tasks) / max(1, sum(counts[term][task] for task in tasks))
            for term in sums
        )

    per_task = {task: {"loss": mean([task]), "samples": samples[task]} for task in sorted(samples)}
    macro = math.fsum(entry["loss"] for entry in per_task.values()) / len(per_task)
    return {"loss": mean(samples), "macro": macro, "tasks": per_task}


def sample_identity(episode: np.ndarray, frame: np.ndarray) -> torch.Tensor:
    """One number per sample of a dataset, whatever else is selected: int64 [n]."""
    return torch.from_numpy((episode.astype(np.int64) << 32) + frame)
