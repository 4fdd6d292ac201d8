"""pi0.5 with split weights follows float32 weights to the bit, where both show the arithmetic the same weights."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from support.pi05_policy import CAMERAS, batch, policy
from understudy.config.train import DataConfig, OptimConfig, ParallelConfig, TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.distributed.torch_release import has_grad_dtype
from understudy.policies.pi05.policy import Pi05Policy
from understudy.train.state import TrainState, assemble

pytestmark = pytest.mark.skipif(not has_grad_dtype(), reason="torch < 2.10: gradients of bfloat16 weights are bfloat16")

COUNT, STEPS = 4, 20
HALF = 0x8000
"""Low half of a float32 word that lies in the middle between two bfloat16 values."""


def leave_middle(state: TrainState) -> int:
    """Move each weight that is in the middle between two bfloat16 values by its last bit; returns their number.

    The cast of float32 weights rounds those to even and the split rounds them away from zero: 16 bits beside the usual
    rounding cannot hold all float32 values. It is 1 of 131,072 values that becomes another bfloat16.
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


def small(tokenizer: Path) -> Pi05Policy:
    return policy(tokenizer, cameras=CAMERAS[:1], compute="bfloat16", response_tokens=8, max_delay=2)


def run(tokenizer: Path, precision: str) -> tuple[list[float], dict[str, Tensor], int]:
    """Losses, tensors after the last step, and number of weights that were in the middle."""
    config = TrainConfig(
        data=DataConfig(root="d"),
        device="cpu",
        batch_size=COUNT,
        micro_batch_size=2,
        precision=precision,  # type: ignore[arg-type]
        optim=OptimConfig(lr=1e-5),
    )
    with join_mesh(TrainConfig(device="cpu", parallel=ParallelConfig(timeout=300))) as mesh:
        made = small(tokenizer)
        state = assemble(config, made, mesh)
        losses, moved = [], 0
        for step in range(STEPS):
            moved += leave_middle(state)
            whole = batch(COUNT, seed=step, response=True)
            whole |= {
                "position": torch.arange(COUNT) + step * COUNT,
                "source": torch.zeros(COUNT, dtype=torch.int64),
            }
            losses.append(float(state.train_step(whole).loss))
        moved += leave_middle(state)
        return losses, {name: tensor.detach().clone() for name, tensor in state.tensors().items()}, moved


def test_split_weights_follow_float32_weights_to_the_bit(tokenizer: Path) -> None:
    """Two micro-batches a step, words that occur many times in each, a clipped gradient."""
    truth, split = (run(tokenizer, precision) for precision in ("bf16", "bf16-split"))
    assert split[0] == truth[0]
    assert split[1].keys() == truth[1].keys()
    assert [name for name in truth[1] if not torch.equal(split[1][name], truth[1][name])] == []
    assert split[2] == truth[2] > 0
    first = dict(small(tokenizer).named_parameters())
    assert sum(not torch.equal(truth[1][f"weights/{name}"], p) for name, p in first.items()) == len(first)
