"""Activation checkpointing changes memory and no bit; compiled blocks agree to rounding; impossible
settings raise.
"""

import copy
import random
import shutil
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from understudy import compile as compiling
from understudy.compile import compile_blocks, missing_compiler
from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed import mesh as parallel
from understudy.distributed.activation_checkpoint import (
    CheckpointMode,
    apply_activation_checkpointing,
    without_checkpointing,
)
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.losses import scalar
from understudy.testing.policies import as_draws, batch, draws, policy
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused

CPU = torch.device("cpu")


class Calls(TorchDispatchMode):
    """Counts the operations that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def built(kept: CheckpointMode, **changes: Any) -> FlowPolicy:
    model = policy(**changes)
    apply_activation_checkpointing(model.blocks(), kept)
    return model


def loss_and_gradients(model: FlowPolicy) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    loss = scalar(model.losses(batch(5), as_draws(*draws(5))))
    loss.backward()
    return loss.detach(), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


def computed(kept: CheckpointMode) -> Counter[str]:
    model = built(kept)
    with Calls() as calls:
        loss_and_gradients(model)
    return calls.count


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("kept", ["selective", "full"])
def test_losses_and_gradients_are_the_same_bits(kept: CheckpointMode, compute: str) -> None:
    loss, gradients = loss_and_gradients(built("none", compute=compute))
    other, others = loss_and_gradients(built(kept, compute=compute))
    assert torch.equal(loss, other)
    assert gradients.keys() == others.keys()
    assert [name for name in gradients if not torch.equal(gradients[name], others[name])] == []


class Noisy(nn.Module):
    """Multiplies by numbers that it draws from each of the global generators."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        drawn = np.random.rand(4).astype(np.float32)  # noqa: NPY002
        return torch.sin(self.layer(x) * torch.from_numpy(drawn) * random.random() * torch.rand(4))


@pytest.mark.parametrize("kept", ["selective", "full"])
def test_recomputed_blocks_draw_the_numbers_of_their_forward_pass(kept: CheckpointMode) -> None:
    found = []
    for mode in ("none", kept):
        torch.manual_seed(0)
        blocks = nn.Sequential(Noisy(), Noisy(), Noisy())
        apply_activation_checkpointing(blocks, mode)
        np.random.seed(1)  # noqa: NPY002
        random.seed(1)
        for _ in range(2):
            blocks(torch.ones(2, 4)).sum().backward()
        gradients = [parameter.grad for parameter in blocks.parameters()]
        found.append((gradients, np.random.rand(), random.random()))  # noqa: NPY002
    (plain, *later), (again, *later_again) = found
    assert all(torch.equal(one, two) for one, two in zip(plain, again, strict=True))
    assert later == later_again  # the backward pass moves no generator


def test_selective_computes_again_what_is_cheap_and_full_all() -> None:
    none = computed("none")
    selective = computed("selective")
    full = computed("full")
    dear = ("addmm", "convolution")
    assert all(none[name] > 0 for name in dear)
    assert [selective[name] for name in dear] == [none[name] for name in dear]
    assert all(full[name] > none[name] for name in dear)
    assert selective["gelu"] > none["gelu"] > 0
    assert selective["native_group_norm"] > none["native_group_norm"] > 0


def test_remembered_computes_once_and_only_meanwhile() -> None:
    model = built("full")
    with without_checkpointing(model), Calls() as calls:
        loss_and_gradients(model)
    assert calls.count["addmm"] == computed("none")["addmm"]
    with Calls() as calls:
        loss_and_gradients(model)
    assert calls.count["addmm"] == computed("full")["addmm"]


def test_names_stay_and_a_copy_has_weights_of_its_own() -> None:
    model = built("full")
    assert list(model.state_dict()) == list(policy().state_dict())
    assert [name for name, _ in model.named_modules()] == [
        name for name, _ in policy().named_modules()
    ]
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    loss, _ = loss_and_gradients(other)
    assert torch.equal(loss, loss_and_gradients(policy())[0])


def test_what_cannot_be_is_refused() -> None:
    with refused("activation_checkpoint", "full", kind=ConfigError):
        apply_activation_checkpointing([], "full")
    with refused("compile", kind=ConfigError):
        compile_blocks([], CPU)
    apply_activation_checkpointing([], "none")
    model = built("full")
    with refused(type(model.blocks()[0]).__name__, kind=ValueError):
        apply_activation_checkpointing(model.blocks(), "full")
    with refused(type(model).__name__, kind=ValueError):
        apply_activation_checkpointing([model], "full")
    compiled = nn.Linear(2, 2)
    compiled.compile()
    with refused("Linear", kind=ValueError):
        apply_activation_checkpointing([compiled], "full")


def test_a_sharded_block_is_refused(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "missing_compiler", lambda device: None)
    sharded = fully_shard(nn.Linear(2, 2), mesh=init_device_mesh("cpu", (1,)))
    with refused("sharded", kind=ValueError):
        apply_activation_checkpointing([sharded], "full")
    with refused("sharded", kind=ValueError):
        compile_blocks([sharded], CPU)


def test_compiling_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -x")
    model = policy()
    with refused("compile", "no-such-compiler", kind=ConfigError):
        compile_blocks(model.blocks(), CPU)
    assert all(block._compiled_call_impl is None for block in model.blocks())
    monkeypatch.setenv("CXX", "python")  # anything that is there
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert missing_compiler(CPU) is None


@pytest.mark.long
def test_compiled_blocks_agree_to_rounding() -> None:
    if reason := missing_compiler(CPU):
        pytest.skip(reason)
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    loss, gradients = loss_and_gradients(policy())
    model = built("selective")
    compile_blocks(model.layers, CPU)
    assert list(model.state_dict()) == list(policy().state_dict())
    other, others = loss_and_gradients(model)
    torch.testing.assert_close(other, loss, rtol=1e-5, atol=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-5)
    # something was compiled, and once for both layers
    assert counters["stats"]["unique_graphs"] - before == 1


def sharded(shards: int) -> list[bool]:
    """On each rank: whether a sharded policy with forgetful blocks has the bits of one without."""
    config = TrainConfig(device="cpu", parallel=ParallelConfig(dp_shard=shards, timeout=300))
    with parallel.join_mesh(config.mesh) as mesh:
        seen = []
        for kept in ("none", "selective", "full"):
            model = built(kept)
            parallel.shard(
                model,
                mesh,
                config.precision,
                model.blocks(),
                model.float32_modules(),
                model.forward_methods,
            )
            seen.append(loss_and_gradients(model))
            with refused("sharded", kind=ValueError):
                apply_activation_checkpointing(model.blocks(), "full")
            with refused("sharded", kind=ValueError):
                compile_blocks(model.blocks(), CPU) if missing_compiler(CPU) is None else raises()
        (loss, gradients), *others = seen

        def local(tensor: Any) -> Tensor:
            return tensor.to_local() if hasattr(tensor, "to_local") else tensor

        return [
            torch.equal(loss, other)
            and all(torch.equal(local(gradients[name]), local(got[name])) for name in gradients)
            for other, got in others
        ]


def raises() -> None:
    raise ValueError("sharded already")


# -- compilation of blocks (`compile.py`) ----------


class Block(nn.Module):
    """One compiled variant for each value of `variant`."""

    def forward(self, x: torch.Tensor, variant: str) -> torch.Tensor:
        return x + len(variant)


@pytest.mark.long
def test_a_block_with_many_variants_stays_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    if problem := missing_compiler(torch.device("cpu")):
        pytest.skip(problem)
    graphs: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled_variants(block: Block) -> int:
        torch._dynamo.reset()
        graphs.clear()
        assert [block(torch.zeros(1), "v" * count).item() for count in range(20)] == list(range(20))
        return len(graphs)

    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_module(self, backend=backend))
    plain = Block()
    block = Block()
    # pytest's monkeypatch would hide the setting afterwards
    with torch._dynamo.config.patch(recompile_limit=8):
        plain.compile()
        assert compiled_variants(plain) < 20  # torch's limit: it runs the others uncompiled
        compile_blocks([block], torch.device("cpu"))
        assert compiled_variants(block) == 20
        # other code of the process keeps its limit
        assert torch._dynamo.config.recompile_limit == 8
        assert compiled_variants(plain) < 20
