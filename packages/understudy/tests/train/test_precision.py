"""The setting `precision`: dtypes of all tensors, before and after all that could change them, on
any mesh.
"""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

from understudy.config.train import DataConfig, OptimConfig, ParallelConfig, TrainConfig
from understudy.distributed.torch_release import has_grad_dtype, has_gradient_sum
from understudy.optim.adamw import Float32AdamW
from understudy.optim.moving_average import make_average, update_average
from understudy.optim.state import check_moments, clip_factor, grad_norm
from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.losses import scalar
from understudy.testing import policies
from understudy.testing.ranks import in_ranks
from understudy.train.precision import (
    compute_dtype,
    make_optimizer,
    named_tensors,
    restore,
    store,
    table,
)
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import complete

SETTINGS = ("fp32", "bf16", "bf16-split")
KEPT = {"fp32": torch.float32, "bf16": torch.float32, "bf16-split": torch.bfloat16}


def kept_in(model: Any, precision: str) -> dict[nn.Parameter, torch.dtype]:
    """The dtype that each parameter should have."""
    whole = {p for module in model.float32_modules() for p in module.parameters()}
    return {p: torch.float32 if p in whole else KEPT[precision] for p in model.parameters()}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def setting(precision: Any, **parallel: int) -> TrainConfig:
    return TrainConfig(
        precision=precision, optim=OptimConfig(lr=1e-2), parallel=ParallelConfig(**parallel)
    )


def built(precision: str, seed: int = 0) -> tuple[nn.Module, Float32AdamW]:
    policy = policies.policy(seed, compute=compute_dtype(precision))
    masters = store(policy, precision)
    optim = setting(precision).optim
    return policy, make_optimizer(policy, optim, masters, accumulates=False)


def trained(policy: nn.Module, optimizer: Float32AdamW, steps: range) -> list[float]:
    losses = []
    for step in steps:
        optimizer.zero_grad()
        drawn = policies.batch(4, step), *policies.draws(4, seed=step)
        loss = scalar(policy.flow_losses(*drawn))  # type: ignore[operator]
        loss.backward()
        norm = grad_norm(list(policy.parameters()))
        optimizer.step(scale=clip_factor(norm, 1.0))
        losses.append(float(loss.detach()))
    return losses


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a
    )


@pytest.mark.parametrize("precision", SETTINGS)
def test_what_is_kept_in_which_dtype(precision: str) -> None:
    policy, optimizer = built(precision)
    for _ in range(2):
        assert {p: p.dtype for p in policy.parameters()} == kept_in(policy, precision)
        assert {b.dtype for b in policy.buffers()} == {torch.float32}, "statistics are no weights"
        moments = [
            s[k] for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq", "step")
        ]
        assert {m.dtype for m in moments} == {torch.float32}
        assert {t.dtype for t in named_tensors(policy, optimizer).values()} == {torch.float32}
        trained(policy, optimizer, range(3))
        assert all(p.grad.dtype == p.dtype for p in policy.parameters() if p.grad is not None)
    report = table(policy, optimizer, None, compute_dtype(precision))
    header, matrices, vectors = report.splitlines()
    words = (
        "parameters",
        "kept in",
        "computes in",
        "gradients",
        "optimizer state",
        "B/param",
        "MiB",
    )
    assert all(word in header for word in words)
    for line, p in ((matrices, "14.0" if precision == "bf16-split" else "16.0"), (vectors, "")):
        assert compute_dtype(precision) in line
        assert str(KEPT[precision]).removeprefix("torch.") in line
        assert p in line
    assert ("float32 + int16" in matrices) == (precision == "bf16-split")


def test_all_settings_start_from_the_same_truth_and_the_bits_below_bfloat16_are_kept() -> None:
    first = [copied(named_tensors(*built(precision))) for precision in SETTINGS]
    assert equal(first[0], first[1])
    assert equal(first[0], first[2])
    # The negative control: cast first, and store the rest.
    policy = policies.policy(0)
    for p in policy.parameters():
        p.data = p.data.bfloat16()
    with refused("torch.bfloat16", "float32", kind=ValueError):
        store(policy, "bf16-split")
    lost = named_tensors(policy, Float32AdamW(policy.named_parameters()))
    assert not equal(first[0], {k: v for k, v in lost.items() if k in first[0]})


@pytest.mark.parametrize("into", SETTINGS)
@pytest.mark.parametrize("precision", SETTINGS)
def test_a_checkpoint_of_any_storage_fills_any_other_bit_for_bit(precision: str, into: str) -> None:
    policy, optimizer = built(precision)
    trained(policy, optimizer, range(4))
    saved = copied(named_tensors(policy, optimizer))
    other, resumed = built(into, seed=1)
    tensors = named_tensors(other, resumed)
    assert not equal(tensors, saved)
    for name, tensor in tensors.items():  # as a checkpoint does: fill in place
        with torch.no_grad():
            tensor.copy_(saved[name])
    restore(other, resumed, tensors)
    assert equal(named_tensors(other, resumed), saved)
    # And it continues: the same bits where arithmetic and storage are the same, the same training
    # otherwise.
    here, there = (trained(p, o, range(4, 8)) for p, o in ((policy, optimizer), (other, resumed)))
    if precision == into:
        assert here == there
        assert equal(named_tensors(policy, optimizer), named_tensors(other, resumed))
    assert there == pytest.approx(here, rel=0.05)


def test_a_moment_of_fewer_bits_fails_the_run_at_once() -> None:
    policy, optimizer = built("bf16-split")
    tensors = named_tensors(policy, optimizer)
    p = next(policy.parameters())
    optimizer.state[p]["exp_avg_sq"] = optimizer.state[p]["exp_avg_sq"].bfloat16()
    with refused("exp_avg_sq", "torch.bfloat16", "float32", kind=ValueError):
        restore(policy, optimizer, tensors)


def test_frozen_parameters_keep_float32_and_have_no_state() -> None:
    policy = policies.policy(0, compute="bfloat16")
    frozen = policy.text.embed.weight.requires_grad_(False)
    before = frozen.clone()
    masters = store(policy, "bf16-split")
    optimizer = make_optimizer(policy, setting("bf16-split").optim, masters, accumulates=False)
    trained(policy, optimizer, range(2))
    assert frozen.dtype == torch.float32
    assert torch.equal(frozen, before)
    tensors = named_tensors(policy, optimizer)
    assert torch.equal(tensors["weights/text.embed.weight"], before)
    assert "exp_avg/text.embed.weight" not in tensors
    assert table(policy, optimizer, None, "bfloat16").splitlines()[-1].startswith("frozen")


def test_split_is_refused_where_it_saves_nothing(alone: None) -> None:
    config = setting("bf16-split", dp_shard=2)
    with refused("precision", "bf16-split", "parallel.dp_shard=2", kind=ConfigError):
        complete(replace(config, data=DataConfig(root="somewhere")))
    # And by the optimizer, however it is built: two ranks' worth of shards, of which this process
    # has one.
    mesh = init_device_mesh("cpu", (1,))
    weight = DTensor.from_local(
        torch.zeros(2, 4).bfloat16(), mesh, [Shard(0)], shape=(4, 4), stride=(4, 1)
    )
    with refused("w", "bfloat16", "float32", kind=TypeError):
        Float32AdamW([("w", nn.Parameter(weight))])


# Other ways to lose digits


@pytest.mark.skipif(not has_grad_dtype(), reason="torch < 2.10: no gradients of another dtype")
def test_micro_batches_are_summed_in_float32() -> None:
    """In one process (FSDP2 does so by itself): 32 gradients of one bfloat16 weight, against
    float64.
    """
    gradients = [
        torch.randn(4096, generator=torch.Generator().manual_seed(k)).bfloat16() for k in range(32)
    ]
    exact = torch.stack([g.double() for g in gradients]).sum(0)

    def error(micro_batch: int | None) -> float:
        policy = policies.policy(0, compute="bfloat16", width=64)
        config = replace(setting("bf16-split"), micro_batch_size=micro_batch)
        masters = store(policy, config.precision)
        accumulates = config.batching.accumulates()
        optimizer = make_optimizer(policy, config.optim, masters, accumulates=accumulates)
        p = policy.layers[0].grow.weight  # 128 x 64
        for g in gradients:
            (p.flatten()[:4096] * g).sum().backward()
        assert p.grad is not None
        header, line, *_ = table(policy, optimizer, None, "bfloat16").splitlines()
        gradients_in = line[header.index("gradients") : header.index("optimizer state")].strip()
        assert gradients_in == ("float32" if micro_batch else "bfloat16 + float32")
        return float((p.grad.flatten()[:4096].double() - exact).norm() / exact.norm())

    assert error(2) < 1e-6
    assert error(None) > 1e-3, "the cost of bfloat16 sums"


def test_an_average_in_bfloat16_never_moves_and_ours_is_of_the_float32_truth() -> None:
    low = torch.ones(8, dtype=torch.bfloat16)
    truth = torch.full((8,), 1.5, dtype=torch.bfloat16)
    for _ in range(2000):
        low.lerp_(truth, 0.001)
    assert torch.equal(low, torch.ones(8, dtype=torch.bfloat16)), (
        "the trap: were this not so, bfloat16 would do"
    )

    policy = policies.policy(0, compute="bfloat16")
    average = make_average(policy)
    masters = store(policy, "bf16-split")
    optimizer = make_optimizer(policy, setting("bf16-split").optim, masters, accumulates=False)
    exact = {name: p.detach().double() for name, p in average.named_parameters()}
    for step in range(20):
        trained(policy, optimizer, range(step, step + 1))
        update_average(average, policy, optimizer, 0.999)
        for name, p in policy.named_parameters():
            exact[name].lerp_(optimizer.master(p).double(), 0.001)
    for name, p in average.named_parameters():
        torch.testing.assert_close(p.detach().double(), exact[name], rtol=1e-6, atol=1e-7)
        assert p.dtype == torch.float32
        assert not p.requires_grad


# On every mesh


class Network(nn.Sequential):
    """Linear, norm, linear; the norm computes in float32."""

    config = FlowPolicyConfig(1)

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3))

    def float32_modules(self) -> list[nn.Module]:
        return [self[1]]

    def forward(self, x: Tensor) -> Tensor:
        h = self[0](x)
        return self[2](self[1](h.float()).to(h.dtype))


def spread(kind: str, precision: str) -> tuple[nn.Module, nn.Module, Float32AdamW]:
    """The network on two ranks, whom to call, and the optimizer: `ddp` is torch's own wrapper, the
    others FSDP2.
    """
    model: Any = Network()
    shape = {"ddp": (2, 1), "hsdp (2, 1)": (2, 1), "fsdp2 (1, 2)": (1, 2)}[kind]
    config = setting(precision, dp_shard=shape[1])
    masters = store(model, config.precision)
    called: nn.Module = model
    if kind == "ddp":
        called = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp_replicate", "dp_shard"))
        low = torch.bfloat16 if precision == "bf16" else None
        for part in (*model.children(), model):
            computed = None if part is model[1] else low
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(computed, torch.float32))
    accumulates = config.batching.accumulates()
    return model, called, make_optimizer(model, config.optim, masters, accumulates=accumulates)


def check_dtypes(model: nn.Module, optimizer: Float32AdamW, precision: str, when: str) -> None:
    for p, kept in kept_in(model, precision).items():
        wanted = {"step": torch.float32, "exp_avg": torch.float32, "exp_avg_sq": torch.float32}
        wanted |= {"lo": torch.int16} if kept == torch.bfloat16 else {}
        assert p.dtype == kept, when
        assert {kind: t.dtype for kind, t in optimizer.state[p].items()} == wanted, when
    check_moments(optimizer)


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        k: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for k, t in tensors.items()
    }


def check_broadcast_after_the_optimizer(rank: int) -> None:
    """DDP sends rank 0's weights and not their low bits: a rank that began elsewhere must not step
    with its own.
    """
    torch.manual_seed(rank)
    model = nn.Linear(6, 3)
    masters = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.bfloat16()
    optimizer = Float32AdamW(model.named_parameters(), masters=masters)
    called = DistributedDataParallel(model)
    called(torch.ones(2, 6, dtype=torch.bfloat16)).float().sum().backward()
    if rank:
        with refused("set_master", "weight", kind=RuntimeError):
            optimizer.step()


def dtypes_on_two_ranks() -> None:
    """Every mesh and storage: dtypes after construction, step and loading of a state dict."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    try:
        cases = [
            ("ddp", "fp32"),
            ("ddp", "bf16-split"),
            ("hsdp (2, 1)", "bf16"),
            ("hsdp (2, 1)", "bf16-split"),
        ]
        for kind, precision in [*cases, ("fsdp2 (1, 2)", "fp32"), ("fsdp2 (1, 2)", "bf16")]:
            model, called, optimizer = spread(kind, precision)
            case = f"{kind} {precision}"
            reference = built_alone(precision)

            def step(
                seed: int, called: nn.Module = called, optimizer: Float32AdamW = optimizer
            ) -> None:
                optimizer.zero_grad()
                generator = torch.Generator().manual_seed(10 * seed + rank)
                x = torch.randn(8, 6, generator=generator).to(next(called.parameters()).dtype)
                called(x).float().square().mean().backward()
                optimizer.step()

            check_dtypes(model, optimizer, precision, f"{case}: constructed")
            assert equal(whole(named_tensors(model, optimizer)), reference), (
                f"{case}: the truth it starts from"
            )
            for k in range(3):
                step(k)
            check_dtypes(model, optimizer, precision, f"{case}: stepped")
            state = optimizer.state_dict()
            optimizer.load_state_dict(state)
            check_dtypes(model, optimizer, precision, f"{case}: loaded")

            before = whole(named_tensors(model, optimizer))
            step(3)  # the loaded state continues
            after = whole(named_tensors(model, optimizer))
            assert not torch.equal(after["weights/0.weight"], before["weights/0.weight"]), case

            both: list[Any] = [None, None]
            dist.all_gather_object(both, after)
            assert equal(*both), (
                f"{case}: ranks drifted apart, in weights or in the digits of the masters"
            )

            if case == "ddp bf16-split":
                check_broadcast_after_the_optimizer(rank)

            other, _, fresh = spread(kind, precision)
            # Another storage's truth, put back.
            tensors = named_tensors(other, fresh)
            with torch.no_grad():
                for name, tensor in named_tensors(model, optimizer).items():
                    tensors[name].copy_(tensor)
            restore(other, fresh, tensors)
            assert equal(whole(named_tensors(other, fresh)), after), f"{case}: restored"
    finally:
        dist.destroy_process_group()


def built_alone(precision: str) -> dict[str, Tensor]:
    model = Network()
    masters = store(model, precision)
    optim = setting(precision).optim
    return copied(named_tensors(model, make_optimizer(model, optim, masters, accumulates=False)))


@pytest.mark.skipif(
    not has_gradient_sum(), reason="torch < 2.8: FSDP2 cannot sum gradients through gloo"
)
def test_dtypes_on_every_mesh() -> None:
    in_ranks(2, dtypes_on_two_ranks)


def test_restore_gives_an_average_of_its_own_the_frozen_weights() -> None:
    """Sharding ends the sharing of frozen parameters between policy and average; a checkpoint has
    them once.
    """
    policy = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    policy[0].requires_grad_(False)
    average = copy.deepcopy(policy)
    with torch.no_grad():
        average[0].weight.zero_()
        average[1].weight.zero_()
    optimizer = Float32AdamW([p for p in policy.parameters() if p.requires_grad])
    restore(
        policy, optimizer, {f"weights/{name}": p for name, p in policy.named_parameters()}, average
    )
    assert torch.equal(average[0].weight, policy[0].weight)
    assert not average[1].weight.any()
