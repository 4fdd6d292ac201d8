"""Samples of which `Policy.preprocess` could not keep everything, such as prompts longer than the policy takes."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from understudy.batch_keys import CUT_SUFFIX
from understudy.distributed.mesh import Mesh


def count_cuts(batch: Mapping[str, Any]) -> dict[str, int]:
    """Count the cut samples of a batch on the host, by name: `prompt_is_cut` bool [B] counts as `prompt`."""
    return {key.removesuffix(CUT_SUFFIX): int(mark.sum()) for key, mark in batch.items() if key.endswith(CUT_SUFFIX)}


class CutSamples:
    """Counts of cut samples over all ranks, with a message at the first of each name and one at the end.

    Args:
        mesh: the ranks.
        batch_size: samples per step, over all ranks.
        write: prints a message.
    """

    def __init__(self, mesh: Mesh, batch_size: int, write: Callable[[str], None]) -> None:
        self._mesh, self._batch_size, self._write = mesh, batch_size, write
        self._cut: Counter[str] = Counter()
        self._steps = 0

    def add(self, steps: list[int], counts: list[dict[str, int]]) -> list[dict[str, int]]:
        """Return the counts of some steps over all ranks, which call this together; {} where nothing is marked.

        Args:
            steps: the steps.
            counts: of this rank, by name, for each of them.
        """
        if not any(counts):
            return counts
        ranks = self._mesh.gather(counts)
        summed = [{name: sum(own[name] for own in of_step) for name in of_step[0]} for of_step in zip(*ranks)]
        self._steps += len(steps)
        for step, of_step in zip(steps, summed):
            for name, count in of_step.items():
                if count and not self._cut[name]:
                    self._write(f"step {step}: {count} of {self._batch_size} samples have a {_described(name)}")
                self._cut[name] += count
        return summed

    def summarize(self) -> None:
        """Print the share of cut samples, where there is one."""
        for name, count in self._cut.items():
            if count:
                share = count / (self._steps * self._batch_size)
                self._write(f"{share:.2%} of the samples since the start or resume have a {_described(name)}")


def _described(name: str) -> str:
    lost = "values beyond it were replaced by its ends" if name.endswith("_range") else "its end was not trained on"
    return f"cut {name.replace('_', ' ')}, so that {lost} (metrics.jsonl counts them per step)"
