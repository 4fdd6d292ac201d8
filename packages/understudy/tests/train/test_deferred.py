"""A policy that is built on the meta device, sharded and filled starts equal to one that is built
whole.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, EmaConfig, OptimConfig, ParallelConfig, TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.policies import policy_folder, weight_files
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.weight_files import FILE, TensorReader, WeightFiles
from understudy.testing import policies
from understudy.testing.checkpoint_ranks import digest
from understudy.testing.pi05 import SMALL
from understudy.testing.pi05_policy import NORMALISATION
from understudy.testing.pi05_policy import policy as pi05
from understudy.testing.ranks import in_ranks
from understudy.train.checkpoint.export import read_initial_policy
from understudy.train.memory_check import (
    check_filled_weights,
    check_gpu_memory,
    check_whole_weights,
)
from understudy.train.state import TrainState, init_train_state
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused

WHOLE = policies.policy(seed=5)


def rows(self: FlowPolicy, seed: int) -> Any:
    """The weights of `WHOLE`."""
    assert sum(parameter.is_meta for parameter in self.parameters()) > 10
    return lambda name, start, stop: dict(WHOLE.named_parameters())[name][start:stop].detach()


def start(
    precision: str, shards: int, deferred: bool, resumed: bool = False, rank: int = 0
) -> tuple[str, float, str]:
    """Digests of the state of a run before and after a step, and its loss."""
    FlowPolicy.fills_weights = deferred
    FlowPolicy.first_weights = rows  # type: ignore[method-assign]
    weight_files.LARGE = 8
    config = TrainConfig(
        data=DataConfig(root="d"),
        device="cpu",
        batch_size=4,
        micro_batch_size=1,
        precision=precision,  # type: ignore[arg-type]
        parallel=ParallelConfig(dp_shard=shards),
        optim=OptimConfig(ema=EmaConfig(decay=0.5), freeze=("vision.*",)),
        lora=LoraConfig(rank, targets=("*",)),
    )
    with join_mesh(config.mesh) as mesh:
        given = None if deferred else WHOLE.state_dict()
        state = init_train_state(
            config,
            policies.run_data(policies.config()),
            policies.NORMALIZATION,
            mesh,
            given,
            {} if resumed else None,
        )
        assert not any(parameter.is_meta for parameter in state.policy.parameters())
        before = digest(state.tensors())
        loss = step(state) if not resumed else 0.0
        return before, loss, digest(state.tensors())


def step(state: TrainState) -> float:
    count = 4 // state.mesh.world_size
    own = slice(state.mesh.rank * count, (state.mesh.rank + 1) * count)
    batch = {
        **policies.batch(4),
        "position": torch.arange(4),
        "source": torch.zeros(4, dtype=torch.int64),
    }
    return float(state.train_step({key: value[own] for key, value in batch.items()}).loss)


@pytest.mark.short("fp32")
@pytest.mark.parametrize("precision", ["fp32", "bf16-split"])
def test_deferred_state_equals_a_whole_one(precision: str) -> None:
    (whole,) = in_ranks(1, start, precision, 1, False)
    assert in_ranks(1, start, precision, 1, True) == [whole]
    (empty,) = in_ranks(1, start, precision, 1, True, True)
    assert empty[0] != whole[0], "a resumed run waits for its checkpoint"


@pytest.mark.long
@pytest.mark.parametrize(("world", "shards"), [(2, 2), (2, 1)])
def test_deferred_state_is_the_same_on_every_mesh(world: int, shards: int) -> None:
    (whole,) = in_ranks(1, start, "fp32", 1, False)
    assert in_ranks(world, start, "fp32", shards, True) == [whole] * world


@pytest.mark.long
@pytest.mark.parametrize(
    ("world", "shards", "precision"), [(1, 1, "fp32"), (1, 1, "bf16-split"), (2, 2, "fp32")]
)
def test_deferred_adapters_equal_those_of_a_whole_policy(
    world: int, shards: int, precision: str
) -> None:
    (whole,) = in_ranks(1, start, precision, 1, False, False, 4)
    assert in_ranks(world, start, precision, shards, True, False, 4) == [whole] * world
    (full,) = in_ranks(1, start, precision, 1, False)
    assert whole[2] != full[2], "the control: without adapters the step is another one"


def shared(deferred: bool) -> set[str]:
    """Names of the parameters of which policy and average have one memory."""
    FlowPolicy.fills_weights = deferred
    FlowPolicy.first_weights = rows  # type: ignore[method-assign]
    weight_files.LARGE = 8
    optim = OptimConfig(ema=EmaConfig(decay=0.5), freeze=("vision.*",))
    with join_mesh(
        (config := TrainConfig(data=DataConfig(root="d"), device="cpu", optim=optim)).mesh
    ) as mesh:
        state = init_train_state(
            config,
            policies.run_data(policies.config()),
            policies.NORMALIZATION,
            mesh,
            None if deferred else WHOLE.state_dict(),
        )
        assert state.average is not None
        mine, theirs = (dict(module.named_parameters()) for module in (state.policy, state.average))
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        return {name for name in mine if mine[name].data_ptr() == theirs[name].data_ptr()}


@pytest.mark.long
@pytest.mark.parametrize("deferred", [False, True])
def test_average_shares_the_memory_of_frozen_weights(deferred: bool) -> None:
    (found,) = in_ranks(1, shared, deferred)
    assert found == {name for name, _ in WHOLE.named_parameters() if name.startswith("vision.")}


@pytest.mark.parametrize(
    ("changes", "per_weight"),
    [
        ({}, 16),
        ({"precision": "bf16-split"}, 14),
        ({"optim": OptimConfig(ema=EmaConfig(decay=0.5))}, 20),
        ({"optim": OptimConfig(freeze=("*",))}, 4),
    ],
)
def test_state_that_exceeds_a_gpu_is_an_error_before_the_run(
    changes: dict[str, Any], per_weight: int
) -> None:
    config = TrainConfig(data=DataConfig(root="d"), **changes)
    made = policies.policy()
    if config.optim.freeze:
        made.requires_grad_(False)
    count = sum(parameter.numel() for parameter in made.parameters())
    for shards in (1, 2):
        mesh: Any = SimpleNamespace(shape=(1, shards))
        needed = per_weight * count // shards
        check_gpu_memory(made, config.precision, config.optim.ema, mesh, needed)
        check_gpu_memory(made, config.precision, config.optim.ema, mesh, None)
        with pytest.raises(ConfigError):
            check_gpu_memory(made, config.precision, config.optim.ema, mesh, needed - 1)


def test_weights_that_exceed_the_machine_are_an_error_before_the_run() -> None:
    made = policies.policy()
    count = sum(p.numel() for p in made.parameters())
    half = 0
    for name, parameter in made.named_parameters():
        if name.startswith("vision."):
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(torch.bfloat16)
            half += parameter.numel()
    assert half > 0
    for shards, processes in ((1, 1), (2, 4)):
        mesh: Any = SimpleNamespace(
            shape=(1, shards), local_world_size=processes, device=torch.device("cpu")
        )
        checks: Any = (
            (check_whole_weights, 4 * count),
            (check_filled_weights, (4 * count - 2 * half) // shards),
        )
        for check, size in checks:
            check(made, mesh, processes * size)
            with refused("policy", processes, kind=ConfigError):
                check(made, mesh, processes * size - 1)
    mesh.device = torch.device("cuda")
    check_filled_weights(made, mesh, 0)  # a GPU has them


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TensorReader]:
    """Weights of a policy with a buffer, changed, in a file; runs fill the policy from files."""
    plain = FlowPolicy.__init__

    def with_buffer(self: FlowPolicy, *args: Any) -> None:
        plain(self, *args)
        self.register_buffer("seen", torch.zeros(10))

    monkeypatch.setattr(FlowPolicy, "__init__", with_buffer)
    monkeypatch.setattr(FlowPolicy, "fills_weights", True)
    monkeypatch.setattr(weight_files, "LARGE", 8)

    def write(**changes: Tensor | None) -> TensorReader:
        tensors = {**WHOLE.state_dict(), "seen": torch.arange(10.0), **changes}
        save_file(
            {name: tensor for name, tensor in tensors.items() if tensor is not None},
            tmp_path / FILE,
        )
        return WeightFiles(tmp_path, floats_only=False)

    return write


def started(weights: TensorReader) -> dict[str, Tensor]:
    with join_mesh((config := TrainConfig(data=DataConfig(root="d"), device="cpu")).mesh) as mesh:
        return init_train_state(
            config, policies.run_data(policies.config()), policies.NORMALIZATION, mesh, weights
        ).policy.state_dict()


def test_filled_policy_has_the_stored_buffers(stored: Callable[..., TensorReader]) -> None:
    found = started(stored())
    assert found.keys() == {*WHOLE.state_dict(), "seen"}
    assert found["seen"].tolist() == [*range(10)]
    assert all(torch.equal(found[name], tensor) for name, tensor in WHOLE.state_dict().items())


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("seen", None),
        ("out_proj.bias", None),
        ("out_proj.bias", torch.zeros(policies.config().action_dim, dtype=torch.int32)),
        ("of_another_network", torch.zeros(2)),
    ],
)
def test_file_of_another_network_fills_no_policy(
    stored: Callable[..., TensorReader], name: str, tensor: Tensor | None
) -> None:
    weights = stored(**{name: tensor})
    with pytest.raises(ConfigError) as caught:
        started(weights)
    assert name in str(caught.value)


# -- a run of pi0.5 starts from the same bits on one and two ranks, fresh or from a released file --


NO_TOKENIZER: Any = ""
MOMENTS = ("exp_avg", "exp_avg_sq")


def start_pi05(folder: str, shards: int, init_from: bool = False) -> str:
    """Digest of the weights and moments of a run before its first step."""
    weight_files.LARGE = 256
    network = replace(pi05(NO_TOKENIZER).config, weights="" if init_from else folder)
    given = read_initial_policy(folder, network).weights if init_from else None
    data = policies.run_data(network)
    config = TrainConfig(
        data=DataConfig(root="d"), device="cpu", parallel=ParallelConfig(dp_shard=shards)
    )
    with join_mesh(config.mesh) as mesh:
        return digest(init_train_state(config, data, NORMALISATION, mesh, given).tensors())


@pytest.mark.long
@pytest.mark.parametrize("released", [True, False])
def test_pi05_starts_from_the_same_bits_on_each_mesh(tmp_path: Path, released: bool) -> None:
    made = pi05(NO_TOKENIZER)
    made.save(tmp_path / "policy")
    folder = str(tmp_path / "policy") if released else ""
    (alone,) = in_ranks(1, start_pi05, folder, 1)
    assert in_ranks(2, start_pi05, folder, 2) == [alone] * 2
    weights = {f"weights/{name}": tensor for name, tensor in made.state_dict().items()}
    zeros = {
        f"{kind}/{name}": torch.zeros_like(p)
        for name, p in made.named_parameters()
        for kind in MOMENTS
    }
    steps = {f"step/{name}": torch.zeros(()) for name, _ in made.named_parameters()}
    assert (digest(weights | zeros | steps) == alone) == released
    if released:
        assert in_ranks(2, start_pi05, folder, 2, True) == [alone] * 2, "init_from"


def wide() -> Pi05Policy:
    """A policy with an embedding of 144 MB."""
    sizes = asdict(replace(SMALL, vocab=36_000_000 // SMALL.vlm.width))
    return pi05(NO_TOKENIZER, dimensions=sizes)


def growths(folder: str) -> dict[str, int]:
    return {
        setting: growth(folder, setting)
        for setting in ("policy.weights", "init_from", "a whole copy")
    }


def growth(folder: str, setting: str) -> int:
    """Bytes by which the largest memory of this process grows from a start with frozen weights of
    `folder`.
    """

    def memory(name: str) -> int:
        (line,) = [
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith(name)
        ]
        return int(line.split()[1]) * 1024

    saved = policy_folder.load(folder)
    network = replace(saved.config, weights=folder if setting == "policy.weights" else "")
    data = policies.run_data(network)
    lora = LoraConfig(2).resolved(network.LORA_TARGETS)
    with join_mesh(
        (config := TrainConfig(data=DataConfig(root="d"), device="cpu", lora=lora)).mesh
    ) as mesh:
        # the peak starts again from the present memory
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        given = None
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
        start_pi05(str(tmp_path), 1)
