"""understudy: `lerobot-conformance loader ours:loader`, from this folder."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import understudy as us
from understudy.policies import policy_folder
from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig

CODEC = "libx264"  # AV1 encodes images of 64 pixels slowly

Windows = Mapping[str, Sequence[float]]


def reader(
    root: Path, episodes: Sequence[int] | None = None, delta_timestamps: Windows | None = None
) -> Any:
    return us.EpisodeDataset(root, delta_timestamps, episodes=episodes)


def writer(
    root: Path, episodes: list[list[dict[str, Any]]], features: dict[str, Any], fps: int
) -> None:
    with us.EpisodeWriter(root, fps=fps, features=features, codec=CODEC) as recording:
        for episode in episodes:
            for frame in episode:
                values = dict(frame)
                recording.add_frame(values, task=values.pop("task"))
            recording.save_episode()


def statistics(root: Path) -> dict[str, Any]:
    """Statistics that the writer records, of the samples that the reader reads."""
    import json

    data = us.EpisodeDataset(root)
    info = json.loads((root / "meta/info.json").read_text())
    indices = ("timestamp", "frame_index", "episode_index", "index", "task_index")
    features = {key: feature for key, feature in info["features"].items() if key not in indices}
    copy = root.with_name(f"{root.name}-copy-{np.random.default_rng().integers(1 << 60)}")
    episodes: dict[int, list[dict[str, Any]]] = {}
    for sample in (data[i] for i in range(len(data))):
        frame = {
            key: np.asarray(sample[key]).reshape(features[key]["shape"])
            for key in features
            if "image" not in key
        }
        frame |= {key: sample[key].permute(1, 2, 0).numpy() for key in features if "image" in key}
        episodes.setdefault(int(sample["episode_index"]), []).append(
            frame | {"task": sample["task"]}
        )
    kinds = ("dtype", "shape", "names")
    writer(
        copy,
        list(episodes.values()),
        {k: {n: f[n] for n in kinds} for k, f in features.items()},
        info["fps"],
    )
    return json.loads((copy / "meta/stats.json").read_text())


def sampler(lengths: Sequence[int], seed: int, epoch: int, rank: int, world_size: int) -> Any:
    class Frames:
        segments = np.array([[episode, 0, length] for episode, length in enumerate(lengths)])

        def __len__(self) -> int:
            return sum(lengths)

    sampler = us.EpisodeSampler(
        Frames(), seed=seed, batch_size=world_size, rank=rank, world_size=world_size
    )
    sampler.set_epoch(epoch)
    return sampler


def loader(
    root: Path,
    rank: int = 0,
    world_size: int = 1,
    num_workers: int = 0,
    seed: int = 0,
    batch_size: int = 4,
    delta_timestamps: Windows | None = None,
) -> us.Loader:
    return us.Loader(
        root,
        batch_size=batch_size * world_size,
        seed=seed,
        rank=rank,
        world_size=world_size,
        num_threads=num_workers + 1,
        delta_timestamps=delta_timestamps,
    )


resume = seeds = loader


class Stream:
    """`EpisodeStream` in torch's DataLoader, with its state."""

    def __init__(
        self, root: Path, rank: int, world_size: int, num_workers: int, seed: int, batch_size: int
    ) -> None:
        size = batch_size * world_size
        self.stream = us.EpisodeStream(
            root, batch_size=size, seed=seed, rank=rank, world_size=world_size
        )
        self.loader = DataLoader(self.stream, batch_size=None, num_workers=num_workers)
        self.last: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.last = batch
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_after(self.last)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


class SamplerLoader:
    """`EpisodeSampler` in torch's DataLoader with persistent workers, with its state."""

    def __init__(
        self, root: Path, rank: int, world_size: int, num_workers: int, seed: int, batch_size: int
    ) -> None:
        data = us.EpisodeDataset(root)
        self.size = batch_size * world_size
        self.consumed = 0
        options: dict[str, Any] = {"seed": seed, "rank": rank, "world_size": world_size}
        self.sampler = us.EpisodeSampler(data, batch_size=self.size, **options)
        self.loader = DataLoader(
            data,
            batch_size,
            sampler=self.sampler,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
        )

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.consumed += self.size
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict(self.consumed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state)
        self.consumed = state["position"]


class weights:
    """A small policy in its folder."""

    def __init__(self) -> None:
        self.config = FlowPolicyConfig(
            action_dim=3,
            state_dim=2,
            cameras=(),
            chunk=4,
            channels=8,
            keypoints=4,
            width=32,
            layers=2,
        )
        self.numbers = {
            key: {"offset": [0.0] * n, "spread": [1.0] * n}
            for key, n in (("action", 3), ("observation.state", 2))
        }
        self.policy = FlowPolicy(self.config, self.numbers)

    def state_dict(self) -> dict[str, Any]:
        return self.policy.state_dict()

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        tensors = {name: torch.from_numpy(value) for name, value in state.items()}
        policy_folder.save(folder, self.config, self.numbers, tensors)

    def load(self, folder: Path) -> dict[str, Any]:
        return us.load_policy(folder).policy.state_dict()
