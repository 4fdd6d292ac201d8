"""pi0.5 and the world-action model on any mesh, pi0.5 in any precision.

With one `micro_batch_size` it has the same bits on each mesh, without it the same numbers up to
rounding. Split weights follow float32 weights to the bit, where both show the arithmetic the same
weights.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, OptimConfig, ParallelConfig, TrainConfig
from understudy.distributed.mesh import Mesh, join_mesh
from understudy.distributed.torch_release import has_grad_dtype, has_gradient_sum
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.pi05.policy import Pi05Policy
from understudy.testing.pi05_policy import CAMERAS, batch, policy
from understudy.testing.ranks import in_ranks
from understudy.train.state import TrainState, assemble
from understudy_zoo.world_action.config import WorldActionConfig
from understudy_zoo.world_action.policy import WorldActionPolicy

COUNT = 4
STEPS = 2
LONG = 20
WORLD_ACTION = {"network": WorldActionPolicy, "make": WorldActionConfig}
ADAPTERS = LoraConfig(4, targets=("vlm.*", "expert.*"))
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "flow and text": ({"response_tokens": 8, "max_delay": 2}, {"activation_checkpoint": "full"}),
    "pi0, whole share at once": ({"adaptive": False}, {"micro_batch_size": None}),
    "world_action": (
        {"future": True, "future_images": 2, "future_patch": 4} | WORLD_ACTION,
        {"mode": "joint", "activation_checkpoint": "full"},
    ),
    "bf16": ({"compute": "bfloat16"}, {"precision": "bf16"}),
    "adapters": ({}, {"lora": ADAPTERS}),
    "bf16, adapters": ({"compute": "bfloat16"}, {"precision": "bf16", "lora": ADAPTERS}),
}
"""Changes of the policy and of the run. Micro-batches have one sample where the case says nothing
else.
"""
Result = tuple[list[float], dict[str, Tensor]]


def run_case(tokenizer: Path, name: str, mesh: Mesh, parallel: ParallelConfig) -> Result:
    """Losses of two steps, and all tensors after them."""
    changes, options = CASES[name]
    made = policy(tokenizer, **changes)
    given: dict[str, Any] = {
        "batch_size": COUNT,
        "micro_batch_size": 1,
        "optim": OptimConfig(lr=1e-2),
    } | options
    config = TrainConfig(data=DataConfig(root="d"), device="cpu", parallel=parallel, **given)
    state = assemble(config, made, mesh)
    share = COUNT // mesh.world_size
    own = slice(mesh.rank * share, (mesh.rank + 1) * share)
    whole = batch(
        COUNT, response="response_tokens" in changes, future=changes.get("future_images", 0)
    )
    whole |= {"position": torch.arange(COUNT), "source": torch.zeros(COUNT, dtype=torch.int64)}
    losses = [
        float(state.train_step({key: value[own] for key, value in whole.items()}).loss)
        for _ in range(STEPS)
    ]
    tensors = {
        n: t.full_tensor() if hasattr(t, "full_tensor") else t for n, t in state.tensors().items()
    }
    return losses, {name: tensor.detach().clone() for name, tensor in tensors.items()}


def run_cases(tokenizer: Path, shards: int) -> tuple[dict[str, Result], list[str]]:
    """Results by case, and the warnings about views."""
    parallel = ParallelConfig(timeout=300, dp_shard=shards)
    with (
        join_mesh(TrainConfig(device="cpu", micro_batch_size=1, parallel=parallel).mesh) as mesh,
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


@pytest.mark.long
@pytest.mark.skipif(
    not has_gradient_sum(), reason="torch < 2.8: FSDP2 cannot sum gradients through gloo"
)
@pytest.mark.parametrize(
    ("world", "shards"),
    [(2, 2), *(pytest.param(*mesh, marks=pytest.mark.long) for mesh in ((2, 1), (4, 2)))],
)
def test_micro_batches_of_one_size_compute_the_same_on_any_mesh(
    tokenizer: Path, alone: dict[str, Result], world: int, shards: int
) -> None:
    for found, views in in_ranks(world, run_cases, tokenizer, shards):
        assert views == [], "FSDP2 warns that operations in place would lose its hooks"
        for name in ("flow and text", "adapters", "world_action"):
            assert found[name][0] == alone[name][0]
            assert differing(found[name], alone[name]) == []
        # the same function: no norm and no table has more bits in one process
        for name in ("bf16", "bf16, adapters"):
            assert found[name][0][0] == pytest.approx(alone[name][0][0], rel=1e-6)
            assert found[name][0] == pytest.approx(alone[name][0], rel=1e-4)
        # The control: products of more rows are rounded otherwise.
        name = "pi0, whole share at once"
        assert found[name][0] == pytest.approx(alone[name][0], rel=1e-6)
        assert differing(found[name], alone[name]) != []


# -- loss terms of weight 0 ---------------------------------------------------


def run_without(tokenizer: Path, fast: str, left_out: tuple[str, ...], shards: int) -> Result:
    """Losses of three steps of two micro-batches or more without some loss terms, and all tensors
    after them.
    """
    parallel = ParallelConfig(timeout=300, dp_shard=shards)
    optim = OptimConfig(lr=1e-2, loss_weights=dict.fromkeys(left_out, 0.0))
    given: dict[str, Any] = {
        "batch_size": COUNT,
        "micro_batch_size": 1,
        "optim": optim,
        "parallel": parallel,
    }
    config = TrainConfig(data=DataConfig(root="d"), device="cpu", **given)
    with join_mesh(config.mesh) as mesh:
        made = policy(tokenizer, response_tokens=8, fast=fast, action_tokens=40)
        state = assemble(config, made, mesh)
        share = COUNT // mesh.world_size
        own = slice(mesh.rank * share, (mesh.rank + 1) * share)
        losses = []
        for step in range(3):
            whole = batch(COUNT, seed=step, response=True)
            whole |= {
                "position": torch.arange(COUNT) + step * COUNT,
                "source": torch.zeros(COUNT, dtype=torch.int64),
            }
            losses.append(
                float(state.train_step({key: value[own] for key, value in whole.items()}).loss)
            )
        tensors = {
            n: t.full_tensor() if hasattr(t, "full_tensor") else t
            for n, t in state.tensors().items()
        }
        return losses, {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.long
@pytest.mark.skipif(
    not has_gradient_sum(), reason="torch < 2.8: FSDP2 cannot sum gradients through gloo"
)
@pytest.mark.parametrize(
    "left_out",
    [
        ("text", "fast"),
        *(pytest.param(terms, marks=pytest.mark.long) for terms in (("flow",), ("flow", "text"))),
    ],
    ids=", ".join,
)
def test_terms_of_weight_0_leave_the_same_weights_on_sharded_ranks(
    tokenizer: Path, tmp_path: Path, left_out: tuple[str, ...]
) -> None:
    """Flow alone trains the expert alone, and the tower keeps every bit; without it no pass enters
    the expert.
    """
    time = np.linspace(0, 1, 4)[:, None]
    waves = [np.sin(time * rate + np.arange(3)) for rate in np.linspace(0, 3, 100)]
    FastTokenizer.fit(waves, vocab_size=60).save(tmp_path / "fast")
    arguments = (tokenizer, str(tmp_path / "fast"), left_out)
    (expected,) = in_ranks(1, run_without, *arguments, 1)
    for found in in_ranks(2, run_without, *arguments, 2):
        assert found[0] == expected[0]
        assert differing(found, expected) == []


# -- split weights ------------------------------------------------------------

HALF = 0x8000
"""Low half of a float32 word that lies in the middle between two bfloat16 values."""


def leave_middle(state: TrainState) -> int:
    """Move each weight that is in the middle between two bfloat16 values by its last bit; returns
    their number.

    The cast of float32 weights rounds those to even and the split rounds them away from zero: 16
    bits beside the usual rounding cannot hold all float32 values. It is 1 of 131,072 values that
    becomes another bfloat16.
    """
    moved = 0
    for parameter in state.policy.parameters():
        master = state.optimizer.master(parameter).clone()
        bits = master.view(torch.int32)
        middle = (bits & 0xFFFF) == HALF
        if middle.any():
            bits[middle] += 1
            state.optimizer.set_master(parameter, master)
            moved += int(middle.sum())
    return moved


def small_policy(tokenizer: Path) -> Pi05Policy:
    return policy(
        tokenizer, cameras=CAMERAS[:1], compute="bfloat16", response_tokens=8, max_delay=2
    )


def run_split(tokenizer: Path, precision: str) -> tuple[list[float], dict[str, Tensor], int]:
    """Losses, tensors after the last step, and number of weights that were in the middle."""
    config = TrainConfig(
        data=DataConfig(root="d"),
        device="cpu",
        batch_size=COUNT,
        micro_batch_size=2,
        precision=precision,  # type: ignore[arg-type]
        optim=OptimConfig(lr=1e-5),
    )
    with join_mesh(TrainConfig(device="cpu", parallel=ParallelConfig(timeout=300)).mesh) as mesh:
        made = small_policy(tokenizer)
        state = assemble(config, made, mesh)
        losses = []
        moved = 0
        for step in range(LONG):
            moved += leave_middle(state)
            whole = batch(COUNT, seed=step, response=True)
            whole |= {
                "position": torch.arange(COUNT) + step * COUNT,
                "source": torch.zeros(COUNT, dtype=torch.int64),
            }
            losses.append(float(state.train_step(whole).loss))
        moved += leave_middle(state)
        return (
            losses,
            {name: tensor.detach().clone() for name, tensor in state.tensors().items()},
            moved,
        )


@pytest.mark.skipif(
    not has_grad_dtype(), reason="torch < 2.10: gradients of bfloat16 weights are bfloat16"
)
def test_split_weights_follow_float32_weights_to_the_bit(tokenizer: Path) -> None:
    """Two micro-batches a step, words that occur many times in each, a clipped gradient."""
    truth, split = (run_split(tokenizer, precision) for precision in ("bf16", "bf16-split"))
    assert split[0] == truth[0]
    assert split[1].keys() == truth[1].keys()
    assert [name for name in truth[1] if not torch.equal(split[1][name], truth[1][name])] == []
    assert split[2] == truth[2] > 0
    first = dict(small_policy(tokenizer).named_parameters())
    assert sum(not torch.equal(truth[1][f"weights/{name}"], p) for name, p in first.items()) == len(
        first
    )
