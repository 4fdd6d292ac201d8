"""Validation in each task mode of a run, and imagined futures of its frames."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from understudy.distributed.mesh import Mesh
from understudy.load.validation.validation_data import ValidationData
from understudy.policies.common.task_modes import FORWARD
from understudy.policies.policy import Policy
from understudy.train.validation import validation_loss
from understudy.train.validation.episode_sums import EpisodeSums
from understudy.train.validation.imagined import imagine_frames

OF_MODE = ("loss", "equal_frames", "se", "samples", "episodes", "terms", "heads", "sources", "tasks", "open_loop")
"""Figures of a validation that are kept for each mode."""


@dataclass(frozen=True)
class ValidationFiles:
    """Paths of the files of a validation during a run."""

    imagined: Path
    """PNG file of imagined images."""
    losses: Path
    """Loss sums of each episode, in the first mode (`episode_sums.py`)."""


def evaluate_modes(
    policy: Policy,
    held: ValidationData,
    seed: int,
    mesh: Mesh,
    weights: Mapping[str, float],
    modes: Sequence[str],
    *,
    per_dim: bool = False,
    files: "ValidationFiles | None" = None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluate in the first mode, and with several modes add a table of each; all ranks call this together.

    Args:
        policy: its weights do not change.
        held: the samples.
        seed: of the random numbers.
        mesh: the ranks.
        weights: of the loss terms, by name.
        modes: task modes that the run trains.
        per_dim: also compute the loss of the actions by dimension, in the first mode.
        files: files to write besides the result; None: none. All ranks give the same, the first one writes.
        **options: see `evaluate`.

    Returns:
        Result of `evaluate`. With several modes `modes` has the figures `OF_MODE` of each. Where the run trains forward
        dynamics of a policy that imagines, `imagined` has `Futures.figures`.
    """
    first, *others = modes
    kept: list[EpisodeSums] = []
    keep = None if files is None else kept.append
    result = validation_loss.evaluate(
        policy, held, seed, mesh, weights, mode=first, per_dim=per_dim, keep=keep, **options
    )
    if files is not None and mesh.rank == 0:
        for sums in kept:
            sums.write(files.losses)
    if others:
        found = {
            mode: validation_loss.evaluate(policy, held, seed, mesh, weights, mode=mode, **options) for mode in others
        }
        tables = {mode: {name: each[name] for name in OF_MODE if name in each} for mode, each in found.items()}
        own = {name: result[name] for name in OF_MODE if name in result}
        result["modes"] = {first: own, **tables}
    if FORWARD in modes and policy.imagines:
        futures = imagine_frames(policy, held, seed, mesh)
        result["imagined"] = futures.figures
        if files is not None and mesh.rank == 0:
            futures.write(files.imagined)
    return result
