"""LeRobot 0.6.1 (`lerobot[dataset]`): `lerobot-conformance loader lerobot_061:TrainerLoader`, from
this folder.

Map-style and streaming datasets, and the loader, the resume and the seed of its training script.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate.data_loader import prepare_data_loader
from lerobot.datasets.factory import make_dataset
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.datasets.sampler import EpisodeAwareSampler, compute_sampler_state
from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

Windows = Mapping[str, Sequence[float]]


def reader(
    root: Path, episodes: Sequence[int] | None = None, delta_timestamps: Windows | None = None
) -> Any:
    return LeRobotDataset(
        "local/set", root=root, episodes=episodes, delta_timestamps=delta_timestamps
    )


def streaming_reader(
    root: Path, episodes: Sequence[int] | None = None, delta_timestamps: Windows | None = None
) -> Any:
    return StreamingLeRobotDataset(
        "local/set", root=root, episodes=episodes, delta_timestamps=delta_timestamps
    )


def writer(
    root: Path, episodes: list[list[dict[str, Any]]], features: dict[str, Any], fps: int
) -> None:
    recording = LeRobotDataset.create("local/set", fps, features, root=root)
    for episode in episodes:
        for frame in episode:
            recording.add_frame(dict(frame))
        recording.save_episode()
    recording.finalize()


def statistics(root: Path) -> dict[str, Any]:
    """Statistics that the writer records, of the rows in the files and the images of the reader."""
    data = reader(root)
    rows = pa.concat_tables(
        [pq.read_table(path) for path in sorted((root / "data").rglob("*.parquet"))]
    ).to_pylist()
    indices = ("timestamp", "frame_index", "episode_index", "index", "task_index")
    features = {key: feature for key, feature in data.meta.features.items() if key not in indices}
    episodes: dict[int, list[dict[str, Any]]] = {}
    for sample, row in zip((data[i] for i in range(len(data))), rows):
        frame = {"task": sample["task"]}
        for key, feature in features.items():
            if feature["dtype"] == "video":
                frame[key] = (
                    (np.asarray(sample[key]) * 255).round().astype(np.uint8).transpose(1, 2, 0)
                )
            else:
                frame[key] = np.asarray(row[key], feature["dtype"]).reshape(feature["shape"])
        episodes.setdefault(int(sample["episode_index"]), []).append(frame)
    copy = Path(tempfile.mkdtemp()) / "copy"
    writer(copy, list(episodes.values()), features, data.fps)
    return json.loads((copy / "meta/stats.json").read_text())


def sampler(lengths: Sequence[int], seed: int, epoch: int) -> Iterator[int]:
    ends = np.cumsum(lengths)
    sampler = EpisodeAwareSampler((ends - lengths).tolist(), ends.tolist(), shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return iter(sampler)


class TrainerLoader:
    """The map-style dataset, sampled, divided among ranks and resumed as in `lerobot_train.py`."""

    def __init__(
        self,
        root: Path,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        seed: int = 0,
        batch_size: int = 4,
        delta_timestamps: Windows | None = None,
    ) -> None:
        self.data = self.open(root, delta_timestamps)
        self.step = 0
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers
        self.seed = seed
        self.batch_size = batch_size
        self.prepare(None)

    def open(self, root: Path, delta_timestamps: Windows | None) -> Any:
        return reader(root, None, delta_timestamps)

    def prepare(self, state: Any) -> None:
        episodes = self.data.meta.episodes
        ends = (episodes["dataset_from_index"], episodes["dataset_to_index"])
        self.sampler = EpisodeAwareSampler(*ends, shuffle=True, seed=self.seed)
        if state is not None:
            self.sampler.load_state_dict(state)
        options: dict[str, Any] = {
            "num_workers": self.num_workers,
            "persistent_workers": self.num_workers > 0,
        }
        loader = torch.utils.data.DataLoader(
            self.data, self.batch_size, sampler=self.sampler, **options
        )
        self.loader = prepare_data_loader(
            loader, num_processes=self.world_size, process_index=self.rank
        )

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.step += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step, "batch_size": self.batch_size, "num_processes": self.world_size}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]
        sizes = (state["batch_size"], state["num_processes"])
        self.prepare(compute_sampler_state(self.step, len(self.sampler), *sizes))


def streaming_loader(
    root: Path,
    rank: int,
    world_size: int,
    num_workers: int,
    seed: int,
    batch_size: int,
    delta_timestamps: Any = None,
) -> Any:
    """The streaming dataset in torch's `DataLoader`, divided by Accelerate, as in
    `lerobot_train.py`.
    """
    data = StreamingLeRobotDataset(
        "local/set", root=root, delta_timestamps=delta_timestamps, seed=seed
    )
    loader = torch.utils.data.DataLoader(data, batch_size, num_workers=num_workers)
    return prepare_data_loader(loader, num_processes=world_size, process_index=rank)


def trainer_seed(root: Path, seed: int) -> Iterator[int]:
    """Frames of `make_dataset` with `--dataset.streaming=true --seed=SEED`, without videos."""
    copy = Path(shutil.copytree(root, Path(tempfile.mkdtemp()) / "set"))
    info = json.loads((copy / "meta/info.json").read_text())
    info["features"] = {
        key: feature for key, feature in info["features"].items() if feature["dtype"] != "video"
    }
    (copy / "meta/info.json").write_text(json.dumps(info))
    transforms = SimpleNamespace(enable=False)
    dataset = SimpleNamespace(
        repo_id="local/set",
        root=copy,
        revision=None,
        repo_type="dataset",
        episodes=None,
        streaming=True,
        image_transforms=transforms,
        use_imagenet_stats=False,
    )
    deltas = dict.fromkeys(
        ("reward_delta_indices", "action_delta_indices", "observation_delta_indices")
    )
    policy = SimpleNamespace(**deltas)
    config = SimpleNamespace(
        dataset=dataset, trainable_config=policy, seed=seed, num_workers=4, tolerance_s=1e-4
    )
    return (int(sample["index"]) for sample in make_dataset(config))


class Policy:
    """A policy of LeRobot in its folder."""

    def __init__(self) -> None:
        self.policy = self.make()

    def make(self) -> Any:
        from lerobot.configs.types import FeatureType, PolicyFeature
        from lerobot.policies.act.configuration_act import ACTConfig
        from lerobot.policies.act.modeling_act import ACTPolicy

        inputs = {
            "observation.state": PolicyFeature(FeatureType.STATE, (4,)),
            "observation.environment_state": PolicyFeature(FeatureType.ENV, (3,)),
        }
        sizes = {
            "dim_model": 16,
            "n_heads": 2,
            "dim_feedforward": 16,
            "n_encoder_layers": 1,
            "chunk_size": 4,
        }
        outputs = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
        config = ACTConfig(
            input_features=inputs, output_features=outputs, n_action_steps=4, use_vae=False, **sizes
        )
        return ACTPolicy(config)

    def state_dict(self) -> dict[str, Any]:
        return self.policy.state_dict()

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        from safetensors.torch import save_file

        self.policy.config.save_pretrained(folder)
        save_file(
            {name: torch.from_numpy(value) for name, value in state.items()},
            folder / "model.safetensors",
        )

    def load(self, folder: Path) -> dict[str, Any]:
        self.policy = type(self.policy).from_pretrained(folder, local_files_only=True, strict=True)
        return self.policy.state_dict()


class Pi0(Policy):
    """`PI0Policy.from_pretrained`, with a network of one layer in place of the 3 billion
    parameters.
    """

    def make(self) -> Any:
        from lerobot.policies.pi0 import modeling_pi0
        from lerobot.policies.pi0.configuration_pi0 import PI0Config

        class Small(torch.nn.Module):
            def __init__(self, config: Any, **options: Any) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(3, 4)

        modeling_pi0.PI0Pytorch = Small
        return modeling_pi0.PI0Policy(PI0Config(device="cpu"))
