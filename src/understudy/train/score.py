"""Values of all frames of a dataset by the value function of a run.

The frames are read in their stored sequence, in chunks that are the same on every machine. Values are kept piece by
piece in a folder, so that a kill loses the piece in progress alone, and a continued pass has equal bits.
"""

import re
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from understudy.atomic import replace_file, write_text
from understudy.batch_keys import HEAD, STATE, TASK
from understudy.checksums import file_sha256
from understudy.config.data import SourceConfig
from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.errors import ConfigError, DatasetError
from understudy.load.instructions import draw_instructions
from understudy.load.validation_data import prefetch_chunks, sample_identity
from understudy.policies.policy import Policy, load
from understudy.progress import Progress
from understudy.records import Record
from understudy.train.augment_batch import batch_to_device
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.sources import open_source, split_source

BATCH = 128
"""Frames of a pass of the network."""
PIECE = 32 * BATCH
"""Frames whose values are kept together."""
_OURS = re.compile(
    r"(\d+\.npy|identity\.json)|\.(\d+\.npy|identity\.json)\..*"
)  # pieces, their identity, and drafts of both
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
    """Keys and facts of the run's source that the dataset is read with, and `task_separator`, as JSON has them."""
    checksums: Mapping[str, str]
    """SHA-256 of the policy's files."""

    def read(self, part: slice) -> dict[str, Any]:
        """Read frames in the form of the network."""
        episodes, frames = self.dataset.locate(np.arange(part.start, part.stop))
        batch, config = self.dataset.batch(episodes, frames), self.policy.config
        batch[TASK] = draw_instructions(
            batch[TASK], self.source["task_separator"], 0, sample_identity(episodes, frames)
        )
        if config.state_dim:
            batch[STATE] = torch.nn.functional.pad(batch[STATE], (0, config.state_dim - batch[STATE].shape[-1]))
        batch[HEAD] = torch.full((len(frames),), self.head)
        return self.policy.preprocess(batch)

    @torch.no_grad()
    def compute(self, folder: Path, identity: str, threads: int) -> np.ndarray:
        """Compute the value of each frame, float32 (N,), or read those that an earlier call kept.

        Args:
            folder: place of the pieces, which is there; the caller locks it, and removes it at the end.
            identity: text of everything that the values depend on; pieces of another one are removed.
            threads: threads that read; without effect on the values.

        Raises:
            DatasetError: a frame cannot be read, or the folder has other files.
        """
        about, count = folder / "identity.json", len(self.dataset)
        if not about.is_file() or about.read_text(encoding="utf-8") != identity:
            if others := [path.name for path in folder.glob("*") if not _OURS.fullmatch(path.name)]:
                fix = "move it away, or name another output"
                raise DatasetError(f"has {others[0]!r}, and is the place of values", where=folder, fix=fix)
            for path in folder.glob("*"):
                path.unlink()
            write_text(about, identity)
        values = np.empty(count, np.float32)
        pieces = {first: folder / f"{first:012d}.npy" for first in range(0, count, PIECE)}
        done = sum(path.is_file() for path in pieces.values()) * PIECE
        with Progress(count, "score", "frame", done=min(count, done)) as bar:
            for first, path in pieces.items():
                piece = values[first : first + PIECE]
                if path.is_file():
                    piece[:] = np.load(path)
                    continue
                with closing(self._passes(slice(first, first + len(piece)), threads)) as passes:
                    for part, of_part in passes:
                        values[part] = of_part
                        bar.update(len(of_part))
                with replace_file(path) as draft, draft.open("wb") as file:
                    np.save(file, piece)
        return values

    def _passes(self, span: slice, threads: int) -> Generator[tuple[slice, np.ndarray], None, None]:
        """Yield the values of parts of the frames of `span`, in any sequence."""
        device = next(self.policy.parameters()).device
        parts = [slice(low, min(low + BATCH, span.stop)) for low in range(span.start, span.stop, BATCH)]
        with closing(prefetch_chunks(lambda n: self.read(parts[n]), range(len(parts)), threads, _MEMORY)) as reading:
            for number, batch in reading:
                yield parts[number], self.policy.values(batch_to_device(batch, device)).cpu().numpy()


def open_value_function(root: Path, data: str, source: str, device: str) -> ValueFunction:
    """Open the value function of a run, and a dataset under the keys of one of the run's sources.

    Args:
        root: the run directory.
        data: folder or URL of the dataset.
        source: name of the source whose keys and norm head the dataset has; "": the only one.
        device: device of the arithmetic.

    Raises:
        ConfigError: there is no run, its policy is no value function, or no source of this name.
        DatasetError: the dataset cannot be read, or has no outcomes or features that the policy needs.
    """
    run = RunDir(root)
    folder, settings = run.require_policy(), run.settings()
    try:
        policy = load(folder)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not policy.config.return_target:
        kind = policy.config.type
        raise ConfigError(
            f"{root}: its policy is of type {kind}; train a value function: --policy.type value or value_pi05"
        )
    sources = dict(zip(settings.data.names(), settings.data.mixed()))
    if (source and source not in sources) or (not source and len(sources) > 1):
        raise ConfigError(f"source: {source!r}: name the one of the run whose robot recorded: {', '.join(sources)}")
    name = source or next(iter(sources))
    names = ("robot_type", "control_mode", "action", "state", "cameras", "delta_action_dims")
    mapping = {setting: getattr(sources[name], setting) for setting in names}
    whole = SourceConfig(root=data, name=name, on_bad_episode="error", val_fraction=0.0, **mapping)
    config = replace(settings, data=replace(settings.data, sources=(whole,)))
    cameras = policy.config.cameras
    opened = open_source(whole, Catalog.open(data), cameras)
    sizes = dict.fromkeys(cameras, policy.config.image_size)
    head = opened.head(name)
    if len(policy.norm_heads) > 1 and head not in policy.norm_heads:
        raise ConfigError(
            f"source: {name}: its norm head {head} is none of the policy's: {', '.join(policy.norm_heads)}"
        )
    dataset = split_source(name, opened, config, cameras, sizes).training
    checksums = {
        path.name: file_sha256(path) for path in sorted(folder.iterdir()) if path.suffix in (".json", ".safetensors")
    }
    number = policy.norm_heads.index(head) if head in policy.norm_heads else 0
    read_as = {**mapping, "head": head, "task_separator": settings.augment.task_separator}
    return ValueFunction(policy.to(device).eval(), number, dataset, read_as, checksums)
