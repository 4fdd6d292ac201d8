"""Losses of a validation per norm head, source and task."""

import sys
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from understudy.train.validation.episode_sums import EpisodeSums
from understudy.train.validation.metrics import TermSums, group_losses, one_group
from understudy.train.validation.observer import Chunk, Evaluation
from understudy_base import TASK


class Losses:
    """Observes the losses of each sample.

    Args:
        evaluation: policy, samples and ranks.
        file: file for the sums of each episode, written by rank 0; not with
            `Policy.scalar_losses`.
    """

    def __init__(self, evaluation: Evaluation, file: Path | None = None) -> None:
        rows = 2 + evaluation.policy.validation_draws
        self._evaluation = evaluation
        self._file = file
        self._figures = {
            term: evaluation.zeros(rows, len(evaluation.held)) for term in evaluation.weights
        }
        self._tasks: dict[int, list[str]] = {}  # first sample of a chunk -> tasks of its samples

    def add(self, chunk: Chunk) -> None:
        """Write per term sum, count, and the draws of a sample in the order of its strata."""
        if not chunk.counts:
            return
        # each text once, for the way to other ranks
        self._tasks[chunk.part.start] = [sys.intern(task) for task in chunk.batch[TASK]]
        for term, loss in chunk.losses.items():
            rows = self._figures[term][:, chunk.part]
            rows[0] = loss.sum
            rows[1] = loss.count
            if loss.detail is None:
                rows[2:] = loss.sum / len(rows[2:])
                continue
            of_draw = loss.detail.sum.double().sum(dim=2)
            if loss.detail.order is not None:
                of_draw = of_draw.gather(1, loss.detail.order)
            rows[2:] = of_draw.T

    def result(self, readable: np.ndarray) -> dict[str, Any]:
        """Return `metrics.group_losses`, with `held_out`, the number of validation frames before
        sampling, and `unreadable`, that of left out samples, if any.
        """
        policy = self._evaluation.policy
        held = self._evaluation.held
        weights = self._evaluation.weights
        samples = held.select(readable)
        sums = self.term_sums(readable)
        tasks = self._gather_tasks()
        if policy.scalar_losses:
            result = one_group(sums, weights, samples)
        else:
            readable_tasks = [task for task, good in zip(tasks, readable) if good]
            result = group_losses(sums, weights, samples, readable_tasks)
            if self._file is not None and self._evaluation.mesh.rank == 0:
                EpisodeSums.from_samples(sums, weights, samples).write(self._file)
        result["held_out"] = held.total
        if len(samples) < len(held):
            result["unreadable"] = len(held) - len(samples)
        return result

    def term_sums(self, readable: np.ndarray) -> dict[str, TermSums]:
        """Return the sums of each term over all ranks, which call this together."""
        sums = {}
        for term, figures in self._figures.items():
            rows = self._evaluation.gather(figures)[:, readable]
            sums[term] = TermSums.from_rows(rows, self._evaluation.policy.time_edges(term))
        return sums

    def _gather_tasks(self) -> list[str]:
        """Return the task of each of the N samples."""
        tasks_from: dict[int, list[str]] = {}
        for of_rank in self._evaluation.mesh.gather(self._tasks):
            tasks_from |= of_rank
        return list(chain.from_iterable(tasks_from[start] for start in sorted(tasks_from)))
