"""Validation episodes with the largest losses in several runs, side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy.report.compare.runs import Run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.episode_sums import EpisodeSums, read_validated


def worst_episodes(runs: Sequence[Run], count: int) -> list[dict[str, Any]]:
    """Return the `count` episodes with the largest loss of each run, with their losses in all runs.

    Each run's losses are those of its latest validation that kept them.

    Returns:
        [{"source", "episode", "losses": {letter: loss, NaN where it was not finite}, "steps": {letter: step}}], the
        largest loss of any run first. A run that did not evaluate the episode is absent.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    kept: dict[str, tuple[int, EpisodeSums]] = {}
    for run in runs:
        if (validated := read_validated(RunDir(run.root), run.val)) is not None:
            kept[run.letter] = validated
            found |= {_key(validated[1], index): {} for index in validated[1].largest(count).tolist()}
    for letter, (_, sums) in kept.items():
        losses, evaluated = sums.losses(), set(sums.largest(len(sums.episode)).tolist())
        for index in evaluated:
            if (key := _key(sums, index)) in found:
                found[key][letter] = float(losses[index])
    steps = {letter: step for letter, (step, _) in kept.items()}
    entries = [
        {"source": source, "episode": episode, "losses": losses, "steps": {letter: steps[letter] for letter in losses}}
        for (source, episode), losses in found.items()
    ]
    return sorted(entries, key=lambda entry: (-_largest(entry), entry["source"], entry["episode"]))


def _key(sums: EpisodeSums, index: int) -> tuple[str, int]:
    return sums.names[sums.source[index]], int(sums.episode[index])


def _largest(entry: dict[str, Any]) -> float:
    return max(loss if np.isfinite(loss) else np.inf for loss in entry["losses"].values())
