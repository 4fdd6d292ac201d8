"""A run of pi0.5 starts from the same bits on one and two ranks, fresh or from a released file."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support.checkpoint_ranks import digest
from support.pi05_policy import NORMALISATION, policy
from support.ranks import in_ranks
from understudy import meta_device
from understudy.config.train import DataConfig, ParallelConfig, TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.errors import ConfigError
from understudy.train.state import init_train_state

NO_TOKENIZER: Any = ""
MOMENTS = ("exp_avg", "exp_avg_sq")


def start(folder: str, shards: int) -> str:
    """Digest of the weights and moments of a run before its first step."""
    meta_device.LARGE = 256
    network = replace(policy(NO_TOKENIZER).config, weights=folder)
    data: Any = SimpleNamespace(policy_config=lambda _: network, heads=("",), head_of_source=np.zeros(1, np.int64))
    config = TrainConfig(data=DataConfig(root="d"), device="cpu", parallel=ParallelConfig(dp_shard=shards))
    with join_mesh(config) as mesh:
        return digest(init_train_state(config, data, NORMALISATION, mesh).tensors())


@pytest.mark.slow
@pytest.mark.parametrize("released", [True, False])
def test_pi05_starts_from_the_same_bits_on_each_mesh(tmp_path: Path, released: bool) -> None:
    made = policy(NO_TOKENIZER)
    made.save(tmp_path / "policy")
    folder = str(tmp_path / "policy") if released else ""
    (alone,) = in_ranks(1, start, folder, 1)
    assert in_ranks(2, start, folder, 2) == [alone] * 2
    weights = {f"weights/{name}": tensor for name, tensor in made.state_dict().items()}
    zeros = {f"{kind}/{name}": torch.zeros_like(p) for name, p in made.named_parameters() for kind in MOMENTS}
    steps = {f"step/{name}": torch.zeros(()) for name, _ in made.named_parameters()}
    assert (digest(weights | zeros | steps) == alone) == released


def test_pi05_refuses_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.weights"):
        start(str(tmp_path), 1)
