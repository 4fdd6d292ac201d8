"""A run of pi0.5 starts from the same bits on one and two ranks, fresh or from a released file."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from support.checkpoint_ranks import digest
from support.pi05 import SMALL
from support.pi05_policy import NORMALISATION, policy
from support.ranks import in_ranks
from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, ParallelConfig, TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.errors import ConfigError
from understudy.policies import policy_folder, weight_files
from understudy.policies.pi05.policy import Pi05Policy
from understudy.train.checkpoint.export import read_initial_policy
from understudy.train.state import init_train_state

NO_TOKENIZER: Any = ""
MOMENTS = ("exp_avg", "exp_avg_sq")


def start(folder: str, shards: int, init_from: bool = False) -> str:
    """Digest of the weights and moments of a run before its first step."""
    weight_files.LARGE = 256
    network = replace(policy(NO_TOKENIZER).config, weights="" if init_from else folder)
    given = read_initial_policy(folder, network).weights if init_from else None
    data: Any = SimpleNamespace(
        policy_config=lambda _: network, names=("",), heads=("",), head_of_source=np.zeros(1, np.int64)
    )
    config = TrainConfig(data=DataConfig(root="d"), device="cpu", parallel=ParallelConfig(dp_shard=shards))
    with join_mesh(config) as mesh:
        return digest(init_train_state(config, data, NORMALISATION, mesh, given).tensors())


@pytest.mark.long
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
    if released:
        assert in_ranks(2, start, folder, 2, True) == [alone] * 2, "init_from"


def wide() -> Pi05Policy:
    """A policy with an embedding of 144 MB."""
    sizes = asdict(replace(SMALL, vocab=36_000_000 // SMALL.vlm.width))
    return policy(NO_TOKENIZER, dimensions=sizes)


def growths(folder: str) -> dict[str, int]:
    return {setting: growth(folder, setting) for setting in ("policy.weights", "init_from", "a whole copy")}


def growth(folder: str, setting: str) -> int:
    """Bytes by which the largest memory of this process grows from a start with frozen weights of `folder`."""

    def memory(name: str) -> int:
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
        return int(line.split()[1]) * 1024

    saved = policy_folder.load(folder)
    network = replace(saved.config, weights=folder if setting == "policy.weights" else "")
    data: Any = SimpleNamespace(
        policy_config=lambda _: network, names=("",), heads=("",), head_of_source=np.zeros(1, np.int64)
    )
    lora = LoraConfig(2).resolved(network.LORA_TARGETS)
    with join_mesh(config := TrainConfig(data=DataConfig(root="d"), device="cpu", lora=lora)) as mesh:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from the present memory
        before, given = memory("VmRSS"), None
        if setting == "init_from":
            given = read_initial_policy(folder, network).weights
        elif setting == "a whole copy":
            given = {name: tensor.float() for name, tensor in saved.weights.items()}
        state = init_train_state(config, data, NORMALISATION, mesh, given)
        assert float(state.policy.embedding.weight[-1].abs().sum()) > 0
        return memory("VmHWM") - before


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads /proc of Linux")
def test_start_from_files_needs_one_copy_of_the_weights(tmp_path: Path) -> None:
    wide().save(tmp_path / "policy")
    size = (tmp_path / "policy/model.safetensors").stat().st_size
    (found,) = in_ranks(1, growths, str(tmp_path / "policy"))
    needed = {setting: count / size for setting, count in found.items()}
    assert 0.9 < needed["policy.weights"] < 1.5
    assert 0.9 < needed["init_from"] < 1.5
    assert needed["a whole copy"] > 1.9, "the control"


def test_pi05_refuses_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.weights"):
        start(str(tmp_path), 1)
