"""Values of all frames of a dataset by the value function of a run, and advantages by them.

The frames are read in their stored sequence, in chunks that are the same on every machine and for
any number of processes.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from understudy import Policy, PredictsReturns, RunDir, open_source, torch_device
from understudy_base import HEAD, STATE, TASK, ConfigError, Progress, Record
from understudy_data import (
    Checksums,
    EpisodeDataset,
    Instructions,
    Lost,
    Part,
    Workers,
    open_episodes,
    prefetch_chunks,
    sample_identity,
)
from understudy_kit import SourceConfig

BATCH = 128
"""Frames of a pass of the network."""
PIECE = 32 * BATCH
"""Frames of a part of the work."""
_MEMORY = 1 << 30  # bytes of prefetched chunks


@dataclass(frozen=True)
class ValueFunction:
    """A value function and a dataset that it can see."""

    policy: Policy
    head: int
    """Its norm head of the dataset's robot."""
    dataset: EpisodeDataset
    """All frames, with the returns of the policy."""
    source: Record
    """Keys and facts of the run's source that the dataset is read with, and `task_separator`, as
    JSON has them.
    """
    checksums: Mapping[str, str]
    """SHA-256 of the policy's files."""

    def read(self, part: slice) -> dict[str, Any]:
        """Read frames in the form of the network."""
        episodes, frames = self.dataset.locate(np.arange(part.start, part.stop))
        config = self.policy.config
        batch = self.policy.from_present(self.dataset.batch(episodes, frames))
        instructions = Instructions(self.source["task_separator"])
        batch[TASK] = instructions.draw(batch[TASK], 0, sample_identity(episodes, frames))
        if config.state_dim:
            batch[STATE] = torch.nn.functional.pad(
                batch[STATE], (0, config.state_dim - batch[STATE].shape[-1])
            )
        batch[HEAD] = torch.full((len(frames),), self.head)
        return self.policy.preprocess(batch)


@dataclass(frozen=True)
class ComputeValues:
    """Values of spans of frames, float32 (`parts.Work`).

    Attributes:
        opened: arguments of `open_value_function`.
        threads: threads that read; without effect on the values.
        identity: text of everything that the values depend on.
        function: the value function, if this process has opened it.
    """

    opened: tuple[Path, str, str, str]
    threads: int
    identity: str
    function: ValueFunction | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.opened, self.threads, self.identity)

    def depends_on(self, part: Part) -> Any:
        """Return the identity."""
        return self.identity

    def __call__(self, part: Part) -> np.ndarray:
        """Return the values of the frames [first, stop) of the only item."""
        torch.set_num_threads(1)  # the rounding of sums may depend on their number
        function = self.function or _reopen(*self.opened)
        first, stop = part[0]
        batches = [slice(low, min(low + BATCH, stop)) for low in range(first, stop, BATCH)]
        values = np.empty(stop - first, np.float32)
        reading = prefetch_chunks(
            lambda n: function.read(batches[n]), range(len(batches)), self.threads, _MEMORY
        )
        with torch.no_grad(), closing(reading):
            for number, batch in reading:
                low = number * BATCH
                returns = function.policy.values(function.policy.batch_to_device(batch))
                values[low : low + BATCH] = returns.cpu().numpy()
        return values


def compute_values(work: ComputeValues, frames: int, workers: Workers) -> np.ndarray:
    """Compute the value of each frame, float32 (N,).

    Raises:
        DatasetError: a frame cannot be read.
    """
    parts: list[Part] = [
        ((first, min(first + PIECE, frames)),) for first in range(0, frames, PIECE)
    ]
    values = list[np.ndarray]()
    with Progress(frames, "score", "frame") as bar:
        for _, result in workers.run(work, parts, lambda part: bar.update(part[0][1] - part[0][0])):
            if isinstance(result, Lost):
                raise result.error.replaced(where=work.opened[1])
            values.append(result)
    return np.concatenate(values)


def open_value_function(root: Path, data: str, source: str, device: str) -> ValueFunction:
    """Open the value function of a run, and a dataset under the keys of one of the run's sources.

    Args:
        root: the run directory.
        data: folder or URL of the dataset.
        source: name of the source whose keys and norm head the dataset has; "": the only one.
        device: device of the arithmetic.

    Raises:
        ConfigError: there is no run, its policy is no value function, or no source or device of
            this name.
        DatasetError: the dataset cannot be read, or has no outcomes or features that the policy
            needs.
    """
    torch_device(device)
    run = RunDir(root)
    folder = run.require_policy()
    settings = run.settings()
    try:
        policy = Policy.load(folder)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    predicts_returns = isinstance(policy.config, PredictsReturns)
    if not predicts_returns:
        kind = policy.config.type
        raise ConfigError(
            f"{root}: its policy is of type {kind}; train a value function: --policy.type value or "
            "value_pi05"
        )
    sources = dict(zip(settings.data.names(), settings.data.mixed()))
    if (source and source not in sources) or (not source and len(sources) > 1):
        raise ConfigError(
            f"source: {source!r}: name the one of the run whose robot recorded: "
            f"{', '.join(sources)}"
        )
    name = source or next(iter(sources))
    names = ("robot_type", "control_mode", "action", "state", "cameras", "delta_action_dims")
    mapping = {setting: getattr(sources[name], setting) for setting in names}
    whole = SourceConfig(root=data, name=name, on_bad_episode="error", val_fraction=0.0, **mapping)
    samples = replace(settings.samples, data=replace(settings.data, sources=(whole,)))
    cameras = policy.config.cameras
    opened = open_source(whole, open_episodes(data), cameras)
    sizes = dict.fromkeys(cameras, policy.config.image_size)
    head = opened.head(name)
    if len(policy.norm_heads) > 1 and head not in policy.norm_heads:
        raise ConfigError(
            f"source: {name}: its norm head {head} is none of the policy's: "
            f"{', '.join(policy.norm_heads)}"
        )
    dataset = opened.split(name, samples, cameras, sizes).training
    checksums = {
        path.name: Checksums.sha256_of(path)
        for path in sorted(folder.iterdir())
        if path.suffix in (".json", ".safetensors")
    }
    number = policy.norm_heads.index(head) if head in policy.norm_heads else 0
    read_as = {**mapping, "head": head, "task_separator": settings.augment.task_separator}
    return ValueFunction(policy.to(device).eval(), number, dataset, read_as, checksums)


def n_step_advantages(
    values: np.ndarray, rewards: np.ndarray, is_terminal: bool, steps: int, discount: float
) -> np.ndarray:
    """Compute the advantage of each frame over `steps` steps (Sutton & Barto 2018, "Reinforcement
    Learning", 7.1).

        A_t = sum over k = 0 to m - 1 of discount^k r_(t + k) + discount^m V(s_(t + m)) - V(s_t)

    m is `steps`, or fewer at the end: a terminal end has the value 0 behind the last frame, and in
    an episode that was cut the last frame's own value follows, so that its advantage is 0.

    Args:
        values: float (T,), V of each frame.
        rewards: float (T,), behind each frame.
        is_terminal: whether the episode ended, and was not cut.
        steps: n, at least 1.
        discount: per frame.

    Returns:
        float64 (T,).
    """
    length = len(values)
    bootstrap = np.append(values.astype(np.float64), 0.0)  # V of the state behind a terminal end
    end = length if is_terminal else length - 1  # the last state that steps lead to
    start = np.arange(length)
    stop = np.minimum(start + steps, end)
    total = np.zeros(length)
    for k in range(min(steps, length)):
        inside = start + k < stop
        total[inside] += discount**k * rewards[start[inside] + k]
    return total + np.power(float(discount), stop - start) * bootstrap[stop] - bootstrap[:length]


_reopen = lru_cache(maxsize=1)(open_value_function)
