"""Tests of openpi and of its client on understudy: statistics, relative actions, the loader, LoRA,
messages, images.

The packages `openpi`, `jax` and `flax` are not needed: the names that the tests import are these.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import understudy as us
from shared import explain
from understudy.config.lora import LoraConfig
from understudy.config.train import OptimConfig
from understudy.optim.lora import add_adapters
from understudy.policies.common.images import write_letterbox
from understudy.policies.common.normalizer import Normalizer
from understudy_client import encode
from understudy_client.protocol import decode
from understudy_data.datasets.format.recorded_stats import parse_stats
from understudy_data.datasets.stats.running import RunningStatistics


class RunningStats:
    """Statistics over rows of the last axis."""

    def __init__(self) -> None:
        self._statistics: RunningStatistics | None = None

    def update(self, batch: np.ndarray) -> None:
        rows = batch.reshape(-1, batch.shape[-1])
        self._statistics = self._statistics or RunningStatistics(rows.shape[1:])
        self._statistics.add(rows)

    def get_statistics(self) -> SimpleNamespace:
        assert self._statistics is not None
        return SimpleNamespace(**self._statistics.result())


def serialize_json(statistics: Mapping[str, SimpleNamespace]) -> str:
    """Write statistics as meta/stats.json has them."""
    return json.dumps(
        {
            key: {name: f.tolist() for name, f in vars(entry).items()}
            for key, entry in statistics.items()
        }
    )


def deserialize_json(text: str) -> dict[str, SimpleNamespace]:
    return {
        key: SimpleNamespace(**entry)
        for key, entry in parse_stats(json.loads(text), "stats.json").items()
    }


def as_batch(item: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    state, actions = (
        torch.as_tensor(item[key], dtype=torch.float32)[None] for key in ("state", "actions")
    )
    return {"observation.state": state, "action": actions}


def normalizer(width: int, mask: Sequence[bool]) -> Normalizer:
    """Normalizer that changes nothing but the dimensions of a mask, to differences to the state."""
    identity = {"offset": [0.0] * width, "spread": [1.0] * width}
    delta = [*mask, *[False] * (width - len(mask))]
    arrays = {"action": identity, "observation.state": identity, "delta": [delta]}
    return Normalizer(arrays, {"action": width, "observation.state": width})


def delta_actions(mask: Sequence[bool]) -> Any:
    def transform(item: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        actions = normalizer(item["actions"].shape[-1], mask).actions(as_batch(item))
        return {**item, "actions": actions[0].numpy()}

    return transform


def absolute_actions(mask: Sequence[bool]) -> Any:
    def transform(item: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        batch = as_batch(item)
        actions = normalizer(item["actions"].shape[-1], mask).robot_actions(batch["action"], batch)
        return {**item, "actions": actions[0].numpy()}

    return transform


class Adapted:
    """A layer with the interface of flax, with adapters if it has a `lora_config`."""

    def __init__(self, width: int, out: int, lora_config: Any) -> None:
        self.width = width
        self.out = out
        self.rank = 0 if lora_config is None else lora_config.rank

    def init(self, key: int, *inputs: Any) -> nn.Module:
        torch.manual_seed(key)
        network = nn.Sequential(nn.Linear(self.width, self.out))
        adapters = LoraConfig(rank=self.rank, targets=("*",))
        add_adapters(network, adapters, OptimConfig(), lambda name: key)
        return network

    def apply(self, network: nn.Module, *inputs: Any) -> np.ndarray:
        return network(inputs[-1]).detach().numpy()


def einsum(shape: Sequence[int], lora_config: Any = None) -> Adapted:
    return Adapted(shape[2], shape[0] * shape[1] * shape[3], lora_config)


def feed_forward(features: int, hidden_dim: int, lora_config: Any = None) -> Adapted:
    return Adapted(features, hidden_dim, lora_config)


class FakeDataset:
    """A recording of some frames, with windows as long as the model's horizon."""

    def __init__(self, config: SimpleNamespace, num_samples: int) -> None:
        self.root = Path(tempfile.mkdtemp(), "set")
        features = {"action": {"dtype": "float32", "shape": (config.action_dim,)}}
        with us.EpisodeWriter(self.root, fps=10, features=features) as writer:
            for frame in range(num_samples):
                writer.add_frame(
                    {"action": np.full(config.action_dim, frame, np.float32)}, task="exam"
                )
            writer.save_episode()
        times = [step / 10 for step in range(config.action_horizon)]
        self.data = us.EpisodeDataset(self.root, {"action": times})


class TorchDataLoader:
    def __init__(
        self,
        dataset: FakeDataset,
        local_batch_size: int,
        num_batches: int | None = None,
        num_workers: int = 0,
    ) -> None:
        self._loader = us.Loader(
            dataset.data, batch_size=local_batch_size, seed=0, num_threads=num_workers or 1
        )
        self._batches = num_batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._loader as loader:
            for number, batch in enumerate(loader):
                if number == self._batches:
                    return
                yield batch


def leaves(batch: Mapping[str, Any]) -> list[Any]:
    return [value for value in batch.values() if hasattr(value, "shape")]


def resize_with_pad(images: np.ndarray, height: int, width: int) -> np.ndarray:
    out = np.empty((len(images), 3, height, width), np.uint8)
    for image, square in zip(images, out):
        write_letterbox(image.transpose(2, 0, 1), square)
    return out.transpose(0, 2, 3, 1)


def module(name: str, **members: Any) -> None:
    parent, _, child = name.rpartition(".")
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__dict__.update(members)
    if parent:
        if parent not in sys.modules:
            module(parent)
        setattr(sys.modules[parent], child, sys.modules[name])


zeros = SimpleNamespace(initializers=SimpleNamespace(zeros=None))
random = SimpleNamespace(key=lambda seed: seed, normal=lambda key, shape: torch.randn(shape))
module("jax", random=random, tree=SimpleNamespace(leaves=leaves))
module("jax.numpy", allclose=np.allclose)
module("flax.linen", **vars(zeros))
module(
    "openpi.shared.normalize",
    RunningStats=RunningStats,
    serialize_json=serialize_json,
    deserialize_json=deserialize_json,
)
module("openpi.models.tokenizer")
module("openpi.models.pi0_config", Pi0Config=SimpleNamespace)
module("openpi.models.lora", Einsum=einsum, FeedForward=feed_forward, LoRAConfig=SimpleNamespace)
module("openpi.transforms", DeltaActions=delta_actions, AbsoluteActions=absolute_actions)
module("openpi.training.config")
module("openpi.training.data_loader", FakeDataset=FakeDataset, TorchDataLoader=TorchDataLoader)
module("openpi_client.msgpack_numpy", packb=encode, unpackb=decode)
module("openpi_client.image_tools", resize_with_pad=resize_with_pad)

DICTIONARIES = (
    "samples are flat dictionaries of LeRobot's keys; there are no transforms of nested ones"
)
TOKENIZER = "needs the tokenizer of PaliGemma from the network"
SKIPS = {
    **dict.fromkeys(
        ("test_repack_transform", "test_transform_dict", "test_make_bool_mask"), DICTIONARIES
    ),
    **dict.fromkeys(
        ("test_delta_actions_noop", "test_absolute_actions_noop"),
        "a policy without actions is refused",
    ),
    **dict.fromkeys(("test_tokenize_prompt", "test_tokenize_no_prompt"), TOKENIZER),
    "test_extract_prompt_from_task": "a sample has its task as text; nothing maps numbers to texts",
    "test_with_fake_dataset": "needs a training configuration of openpi",
    "test_with_real_dataset": "needs a dataset from the network",
}
SHAPES = (
    "parameters of an einsum in flax; an adapter here is [rank, in] and [out, rank] of a "
    "linear layer"
)
FAILURES = {
    **dict.fromkeys(("test_lora_einsum_params_shape", "test_lora_ffn_params_shape"), SHAPES),
    "test_resize_with_pad_shapes": "images are resized to squares alone; the last case is 60 x 80",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES, SKIPS)
