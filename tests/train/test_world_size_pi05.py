"""pi0.5 on any mesh: with one `micro_batch_size` the same bits, without it the same numbers up to rounding."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from support.pi05_policy import batch, policy
from support.ranks import in_ranks
from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, OptimConfig, ParallelConfig, TrainConfig
from understudy.distributed.mesh import Mesh, join_mesh
from understudy.distributed.torch_release import has_gradient_sum
from understudy.train.state import assemble

pytestmark = pytest.mark.skipif(not has_gradient_sum(), reason="torch < 2.8: FSDP2 cannot sum gradients through gloo")

COUNT, STEPS = 4, 2
ADAPTERS = LoraConfig(4, targets=("vlm.*", "expert.*"))
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "flow and text": ({"response_tokens": 8, "max_delay": 2}, {"activation_checkpoint": "full"}),
    "pi0, whole share at once": ({"adaptive": False}, {"micro_batch_size": None}),
    "bf16": ({"compute": "bfloat16"}, {"precision": "bf16"}),
    "bf16, adapters": ({"compute": "bfloat16"}, {"precision": "bf16", "lora": ADAPTERS}),
}
"""Changes of the policy and of the run. Micro-batches have two samples where the case says nothing else."""
Result = tuple[list[float], dict[str, Tensor]]


def run_case(tokenizer: Path, name: str, mesh: Mesh, parallel: ParallelConfig) -> Result:
    """Losses of two steps, and all tensors after them."""
    changes, options = CASES[name]
    made = policy(tokenizer, **changes)
    given: dict[str, Any] = {"batch_size": COUNT, "micro_batch_size": 2, "optim": OptimConfig(lr=1e-2)} | options
    config = TrainConfig(data=DataConfig(root="d"), device="cpu", parallel=parallel, **given)
    state = assemble(config, made, mesh)
    share = COUNT // mesh.world_size
    own = slice(mesh.rank * share, (mesh.rank + 1) * share)
    whole = batch(COUNT, response="response_tokens" in changes)
    whole |= {"position": torch.arange(COUNT), "source": torch.zeros(COUNT, dtype=torch.int64)}
    losses = [float(state.train_step({key: value[own] for key, value in whole.items()}).loss) for _ in range(STEPS)]
    tensors = {n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in state.tensors().items()}
    return losses, {name: tensor.detach().clone() for name, tensor in tensors.items()}


def run_cases(tokenizer: Path, shards: int) -> tuple[dict[str, Result], list[str]]:
    """Results by case, and the warnings about views."""
    parallel = ParallelConfig(timeout=300, dp_shard=shards)
    with (
        join_mesh(TrainConfig(device="cpu", micro_batch_size=2, parallel=parallel)) as mesh,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        found = {name: run_case(tokenizer, name, mesh, parallel) for name in CASES}
    return found, [str(each.message) for each in caught if "view" in str(each.message)]


@pytest.fixture(scope="module")
def alone(tokenizer: Path) -> dict[str, Result]:
    (found,) = in_ranks(1, run_cases, tokenizer, 1)
    return dict(found[0])


def differing(one: Result, two: Result) -> list[str]:
    assert one[1].keys() == two[1].keys()
    return [name for name in one[1] if not torch.equal(one[1][name], two[1][name])]


def test_micro_batches_of_one_size_compute_the_same_on_a_sharded_mesh(
    tokenizer: Path, alone: dict[str, Result]
) -> None:
    """`test_lora_pi05.py` has the other meshes."""
    for found, views in in_ranks(2, run_cases, tokenizer, 2):
        assert views == [], "FSDP2 warns that operations in place would lose its hooks"
        assert found["flow and text"][0] == alone["flow and text"][0]
        assert differing(found["flow and text"], alone["flow and text"]) == []
        for name in ("bf16", "bf16, adapters"):  # the same function: no norm and no table has more bits in one process
            assert found[name][0][0] == pytest.approx(alone[name][0][0], rel=1e-6)
            assert found[name][0] == pytest.approx(alone[name][0], rel=1e-4)
        # The control: products of more rows are rounded otherwise.
        name = "pi0, whole share at once"
        assert found[name][0] == pytest.approx(alone[name][0], rel=1e-6)
        assert differing(found[name], alone[name]) != []
