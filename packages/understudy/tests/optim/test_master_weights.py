"""MasterWeights: float32 AdamW underneath, and an ordinary optimizer to everything around it."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from understudy import MasterWeights
from understudy.optim.state import check_moments
from understudy.testing.ranks import in_ranks
from understudy_base.testing.refusals import refused


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def network(seed: int = 0) -> nn.Sequential:
    """Linear, norm, linear in float32."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3))


def adamw(params: Any, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, **{"lr": 1e-3, **options})


def wrapped(**options: Any) -> tuple[nn.Sequential, MasterWeights]:
    model = network().bfloat16()
    return model, MasterWeights(adamw(model.named_parameters(), **options))


def gradients(model: nn.Module, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator).bfloat16() for p in model.parameters()]


def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        for p, grad in zip(model.parameters(), gradients(model, step)):
            p.grad = grad.to(p.dtype)
        optimizer.step()


def backward(model: nn.Module) -> Tensor:
    torch.manual_seed(0)
    p = next(model.parameters())
    loss = model(torch.randn(8, 6).to(p.dtype)).float().square().mean()
    loss.backward()
    return loss


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def same(
    model: nn.Module, optimizer: MasterWeights, other: nn.Module, second: MasterWeights
) -> bool:
    pairs = list(zip(model.parameters(), other.parameters()))
    return all(
        torch.equal(p, q) and torch.equal(optimizer.master(p), second.master(q)) for p, q in pairs
    )


# Exact


@pytest.mark.parametrize("kind", ["single", "foreach", "fused", "sgd", "adagrad"])
def test_master_equals_the_float32_optimizer_bit_for_bit(kind: str) -> None:
    def build(params: Any) -> torch.optim.Optimizer:
        if kind == "sgd":
            return torch.optim.SGD(params, lr=1e-2, momentum=0.9, nesterov=True)
        # makes its state in its constructor, in the dtype of the live weights
        if kind == "adagrad":
            return torch.optim.Adagrad(params, lr=1e-2, initial_accumulator_value=0.125)
        return adamw(params, foreach=kind == "foreach", fused=kind == "fused")

    truth = network()
    live = network()
    masters = {name: p.detach().clone() for name, p in live.named_parameters()}
    live.bfloat16()
    ours = MasterWeights(build(live.named_parameters()), masters=masters)
    theirs = build(truth.parameters())
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 1000) for o in (ours, theirs)]
    for step in range(1000 if kind == "fused" else 200):
        for p, q, grad in zip(live.parameters(), truth.parameters(), gradients(live, step)):
            p.grad, q.grad = grad, grad.float()
        assert torch.equal(
            ours.clip_grad_norm_(5.0), nn.utils.clip_grad_norm_(truth.parameters(), 5.0)
        )
        ours.step()
        theirs.step()
        for schedule in schedules:
            schedule.step()
    for p, q in zip(live.parameters(), truth.parameters()):
        assert p.dtype == torch.bfloat16
        assert torch.equal(ours.master(p), q.detach())
        assert torch.equal(p.detach(), q.detach().bfloat16())
        for name, value in theirs.state[q].items():
            assert torch.equal(ours.state[p][name], value)
    check_moments(ours)


def test_masters_taken_before_the_cast_keep_the_pretrained_bits() -> None:
    values = {name: p.detach().clone() for name, p in network().named_parameters()}
    model = network().bfloat16()
    kept = MasterWeights(
        adamw(model.named_parameters()), masters={**values, "a buffer": torch.zeros(1)}
    )
    assert all(torch.equal(kept.master(p), values[name]) for name, p in model.named_parameters())
    other, dropped = wrapped()
    assert not torch.equal(dropped.master(other[0].weight), values["0.weight"])

    with refused("masters", "model.named_parameters()", kind=ValueError):
        MasterWeights(adamw(model.parameters()), masters=values)
    with refused("2.bias", "bfloat16", kind=ValueError):
        MasterWeights(
            adamw(model.named_parameters()),
            masters={k: v for k, v in values.items() if k != "2.bias"},
        )
    cast = {k: v.bfloat16() for k, v in values.items()}
    with refused("0.weight", "torch.bfloat16", "float32", kind=ValueError):
        MasterWeights(adamw(model.named_parameters()), masters=cast)
    turned = {**values, "2.weight": values["2.weight"].t()}
    with refused("2.weight", (16, 3), (3, 16), kind=ValueError):
        MasterWeights(adamw(model.named_parameters()), masters=turned)


def test_other_dtypes_are_stepped_as_they_are() -> None:
    model = network()
    truth = network()
    model[0].bfloat16()
    truth[0].load_state_dict({k: v.float() for k, v in model[0].state_dict().items()})
    ours = MasterWeights(adamw(model.parameters()))
    theirs = adamw(truth.parameters())
    for step in range(20):
        for p, q, grad in zip(model.parameters(), truth.parameters(), gradients(model, step)):
            p.grad, q.grad = grad.to(p.dtype, copy=True), grad.float()
        ours.clip_grad_norm_(1.0)
        nn.utils.clip_grad_norm_(truth.parameters(), 1.0)
        ours.step()
        theirs.step()
    for p, q in zip(model.parameters(), truth.parameters()):
        assert torch.equal(ours.master(p), q.detach())
    assert ours.master(model[2].weight).data_ptr() == model[2].weight.data_ptr(), "no second copy"


def test_clipping_is_in_float32_and_leaves_the_live_gradients() -> None:
    model, ours = wrapped()
    backward(model)
    before = [p.grad.clone() for p in model.parameters()]
    exact = torch.cat([g.double().flatten() for g in before]).norm()
    norm = ours.clip_grad_norm_(1e-3)
    assert norm.dtype == torch.float32
    torch.testing.assert_close(norm.double(), exact, rtol=1e-6, atol=0)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before))
    usual = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    assert usual.dtype == torch.bfloat16, "the trap: were this float32, the docstring should change"
    ours.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    run(model, ours, range(1))  # the forgotten clip does not touch this step
    plain_model, plain = wrapped()
    run(plain_model, plain, range(1))
    assert same(model, ours, plain_model, plain)


@pytest.mark.parametrize("clip", [True, False])
def test_a_clip_in_bfloat16_is_noticed_once(clip: bool) -> None:
    model, ours = wrapped()
    for step in range(2):
        with warnings.catch_warnings(record=True) as noticed:
            warnings.simplefilter("always")
            ours.zero_grad()
            for _ in range(2):  # accumulated
                backward(model)
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            else:
                ours.clip_grad_norm_(1e-3)
            ours.step()
        assert [one.category for one in noticed] == [UserWarning] * (clip and step == 0)
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


# An ordinary optimizer to others


@pytest.mark.filterwarnings("error")
def test_schedulers_hooks_and_groups_see_one_optimizer() -> None:
    model = network().bfloat16()
    inner = adamw(model.parameters())
    groups = inner.param_groups
    # made before wrapping, as many scripts do
    early = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.1)
    ours = MasterWeights(inner)
    assert isinstance(ours, torch.optim.Optimizer)
    assert ours.param_groups is groups
    assert ours.param_groups is inner.param_groups
    seen: list[str] = []
    ours.register_step_pre_hook(
        lambda *_: seen.append(f"before {ours.param_groups[0]['params'][0].dtype}")
    )
    ours.register_step_post_hook(lambda *_: seen.append("after"))
    run(model, ours, range(1))
    early.step()
    assert ours.param_groups[0]["lr"] == pytest.approx(1e-4)
    assert seen == ["before torch.bfloat16", "after"]
    assert ours.param_groups[0]["params"][0] is model[0].weight
    late = torch.optim.lr_scheduler.OneCycleLR(ours, max_lr=1.0, total_steps=10)
    run(model, ours, range(1))
    late.step()
    assert inner.param_groups[0]["lr"] == ours.param_groups[0]["lr"] == late.get_last_lr()[0]


def test_the_wrapped_optimizer_cannot_be_stepped_behind_it() -> None:
    model, ours = wrapped()
    backward(model)
    with refused("MasterWeights", "step()", kind=RuntimeError):
        ours.optimizer.step()
    ours.step()


def test_closure_is_called_once_before_the_step() -> None:
    model, ours = wrapped(lr=1e-2)
    losses = []

    def closure() -> Tensor:
        ours.zero_grad()
        losses.append(backward(model))
        return losses[-1]

    for _ in range(30):
        assert ours.step(closure) is losses[-1]
    assert len(losses) == 30
    assert losses[-1] < losses[0] / 2


def test_zero_grad_and_no_gradient_kept_beside() -> None:
    model, ours = wrapped()
    backward(model)
    ours.step()
    assert all(m.grad is None for m in ours._masters.values())
    ours.zero_grad(set_to_none=False)
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())
    ours.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    before = copy.deepcopy(model.state_dict())
    ours.step()  # without gradients nothing moves
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_added_groups_get_masters() -> None:
    model = network().bfloat16()
    ours = MasterWeights(adamw(model[0].named_parameters()))
    ours.add_param_group(
        {"params": [("2." + k, p) for k, p in model[2].named_parameters()], "lr": 1e-2}
    )
    assert len(ours.param_groups) == len(ours.optimizer.param_groups) == 2
    backward(model)
    ours.step()
    assert (
        ours.master(model[2].weight).dtype
        == ours.state[model[2].weight]["exp_avg"].dtype
        == torch.float32
    )


@pytest.mark.parametrize(
    "twin_of", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
def test_a_copy_goes_on_alone_with_the_same_bits(twin_of: Callable[[Any], Any]) -> None:
    model, ours = wrapped()
    run(model, ours, range(5))
    other, twin = twin_of((model, ours))
    assert twin.param_groups is twin.optimizer.param_groups
    run(model, ours, range(5, 10))
    assert not same(model, ours, other, twin)
    run(other, twin, range(5, 10))
    assert same(model, ours, other, twin)
    with refused("MasterWeights", "step()", kind=RuntimeError):
        twin.optimizer.step()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_can_be_skipped_bit_for_bit(bad: float) -> None:
    model = network().bfloat16()
    ours = MasterWeights(adamw(model.parameters()), skip_nonfinite=True)
    run(model, ours, range(3))
    before = copy.deepcopy((model, ours))
    for p in model.parameters():
        p.grad = torch.full_like(p, bad)
    ours.clip_grad_norm_(1.0)
    ours.step()
    assert ours.skipped == 1
    assert same(model, ours, *before)
    run(model, ours, range(3, 6))  # the clip of the skipped step is gone too
    run(*before, range(3, 6))
    assert same(model, ours, *before)

    off, plain = wrapped()
    for p in off.parameters():
        p.grad = torch.full_like(p, bad)
    plain.step()
    assert off[0].weight.isnan().any()


# State


def test_resume_is_bit_exact_and_without_the_masters_it_is_not() -> None:
    model, ours = wrapped()
    run(model, ours, range(10))
    weights, state = saved((model.state_dict(), ours.state_dict()))
    assert all(
        s["master"].dtype == s["exp_avg"].dtype == torch.float32 for s in state["state"].values()
    )

    other, resumed = wrapped()
    resumed.load_state_dict(state_dict=state)
    assert same(model, ours, other, resumed), (
        "the weights come from the masters, whatever the model held"
    )
    assert other[0].weight.dtype == torch.bfloat16

    forgetful = network().bfloat16()
    forgetful.load_state_dict(weights)
    # masters from bfloat16, moments right
    lost = MasterWeights(adamw(forgetful.named_parameters()))
    rebuilt = saved(state)
    for (_, p), s in zip(forgetful.named_parameters(), rebuilt["state"].values()):
        s["master"] = p.detach().float()
    lost.load_state_dict(rebuilt)

    for m, o in ((model, ours), (other, resumed), (forgetful, lost)):
        run(m, o, range(10, 40))
    assert same(model, ours, other, resumed)
    assert not same(model, ours, forgetful, lost)


def test_names_decide_and_not_the_order() -> None:
    def build(model: nn.Module, turned: bool) -> MasterWeights:
        named = list(model.named_parameters())
        matrices = [(k, p) for k, p in named if p.ndim == 2]
        vectors = [(k, p) for k, p in named if p.ndim < 2]
        groups = [
            {"params": matrices[::-1] if turned else matrices, "weight_decay": 0.1},
            {"params": vectors[::-1] if turned else vectors, "weight_decay": 0.0, "lr": 5e-4},
        ]
        return MasterWeights(adamw(groups[::-1] if turned else groups))

    model = network().bfloat16()
    other = network(1).bfloat16()
    ours = build(model, False)
    turned = build(other, True)
    run(model, ours, range(5))
    turned.load_state_dict(saved(ours.state_dict()))
    assert same(model, ours, other, turned)
    assert [g["weight_decay"] for g in turned.param_groups] == [0.0, 0.1]
    run(model, ours, range(5, 10))
    run(other, turned, range(5, 10))
    assert same(model, ours, other, turned)

    fewer = MasterWeights(adamw(other[0].named_parameters()))
    with refused("'0.bias'", ["bias", "weight"], kind=ValueError):
        fewer.load_state_dict(ours.state_dict())
    regrouped = MasterWeights(adamw(other.named_parameters()))
    with refused("group", 0, "'0.weight'", kind=ValueError):
        regrouped.load_state_dict(ours.state_dict())


def test_without_names_order_and_shape_must_agree() -> None:
    model = network().bfloat16()
    other = network(1).bfloat16()
    ours = MasterWeights(adamw(model.parameters()))
    theirs = MasterWeights(adamw(other.parameters()))
    run(model, ours, range(2))
    theirs.load_state_dict(saved(ours.state_dict()))
    assert same(model, ours, other, theirs)
    turned = MasterWeights(adamw(list(other.parameters())[::-1]))
    with refused("parameter 0", "group 0", kind=ValueError):
        turned.load_state_dict(ours.state_dict())
    with refused([6], [2], kind=ValueError):
        MasterWeights(adamw(other[0].parameters())).load_state_dict(ours.state_dict())


def test_a_plain_optimizers_state_is_refused_and_can_be_taken_over_by_wrapping() -> None:
    model = network().bfloat16()
    plain = adamw(model.named_parameters())
    run(model, plain, range(3))
    _, ours = wrapped()
    with refused("0.weight", "flatten_optimizer_state_dict=False", kind=ValueError):
        ours.load_state_dict(plain.state_dict())
    over = MasterWeights(plain)
    check_moments(over)
    run(model, over, range(3, 5))
    assert int(over.state[model[0].weight]["step"]) == 5


def test_state_dict_hooks_and_distributed_checkpoints() -> None:
    from torch.distributed.checkpoint.state_dict import (
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    model, ours = wrapped()
    run(model, ours, range(3))
    state = saved(get_optimizer_state_dict(model, ours))
    assert state["state"]["0.weight"]["master"].dtype == torch.float32
    other, resumed = wrapped()
    set_optimizer_state_dict(other, resumed, state)
    assert same(model, ours, other, resumed)
    assert torch.equal(
        resumed.state[other[0].weight]["exp_avg"], ours.state[model[0].weight]["exp_avg"]
    )

    from torch.distributed.checkpoint.state_dict import StateDictOptions

    # torch unflattens by the keys of an optimizer's `state`
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    with refused("0.weight", "flatten_optimizer_state_dict=False", kind=ValueError):
        set_optimizer_state_dict(
            other, resumed, get_optimizer_state_dict(model, ours, options=flat), options=flat
        )

    calls: list[str] = []
    ours.register_state_dict_pre_hook(lambda o: calls.append("saving"))
    ours.register_state_dict_post_hook(lambda o, s: {**s, "extra": 1})
    ours.register_load_state_dict_pre_hook(lambda o, s: calls.append(f"loading {s['extra']}"))
    ours.register_load_state_dict_post_hook(lambda o: calls.append("loaded"))
    ours.load_state_dict(ours.state_dict())
    assert calls == ["saving", "loading 1", "loaded"]


# Refused, with the reason


def test_weights_written_by_others_are_refused_until_someone_says_which_is_true() -> None:
    model, ours = wrapped()
    run(model, ours, range(2))
    ours.load_state_dict(saved(ours.state_dict()))
    model.load_state_dict(saved(model.state_dict()))  # the same weights: fine
    run(model, ours, range(2, 3))
    assert all(ours._versions[p] == p._version for p in model.parameters()), (
        "an ordinary step compares no weights"
    )
    model.load_state_dict(network(7).bfloat16().state_dict())
    with refused("0.weight", "reset_masters()", "set_master", kind=RuntimeError):
        run(model, ours, range(3, 4))
    ours.reset_masters()
    assert torch.equal(ours.master(model[0].weight), model[0].weight.float())
    run(model, ours, range(3, 4))
    truth = torch.full((3,), 1 / 3)
    ours.set_master(model[2].bias, truth)
    assert torch.equal(ours.master(model[2].bias), truth)
    assert torch.equal(model[2].bias.detach(), truth.bfloat16())
    run(model, ours, range(4, 5))


def test_what_cannot_work_is_refused() -> None:
    model, ours = wrapped()
    with refused("LBFGS", "float32", kind=TypeError):
        MasterWeights(torch.optim.LBFGS(model.parameters()))
    with refused("MasterWeights", kind=TypeError):
        MasterWeights(ours)
    with refused("0.weight", "float16", "bfloat16", kind=TypeError):
        MasterWeights(adamw(network().half().named_parameters()))
    late = network()
    uncast = MasterWeights(adamw(late.named_parameters()))
    late.bfloat16()
    with refused("0.weight", "bfloat16", "MasterWeights", kind=RuntimeError):
        run(late, uncast, range(1))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_are_those_of_the_bare_model(prefix: str) -> None:
    model = network().bfloat16()
    other = network(1).bfloat16()
    ours = MasterWeights(adamw([(prefix + name, p) for name, p in model.named_parameters()]))
    run(model, ours, range(3))
    bare = MasterWeights(adamw(other.named_parameters()))
    bare.load_state_dict(saved(ours.state_dict()))
    assert same(model, ours, other, bare)
    assert bare.param_groups[0]["param_names"][0] == "0.weight"
    given = {name: bare.master(p).clone() for name, p in other.named_parameters()}
    again = network(2).bfloat16()
    wrapped_again = MasterWeights(
        adamw([(prefix + name, p) for name, p in again.named_parameters()]), masters=given
    )
    assert same(again, wrapped_again, other, bare)


def test_names_that_would_coincide_stay_as_they_are() -> None:
    p, q = (nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)) for _ in range(2))
    ours = MasterWeights(adamw([("w", p), ("module.w", q)]))
    ours.set_master(q, torch.ones(2))
    state = saved(ours.state_dict())
    turned = MasterWeights(adamw([("module.w", p), ("w", q)]))
    turned.load_state_dict(state)
    assert torch.equal(turned.master(p), torch.ones(2))


class KeepsItsOwn(torch.optim.SGD):
    """Steps the weights that it was built with, whatever its groups say, as ZeroRedundancyOptimizer
    does.
    """

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=1.0)
        self.own = [p for group in self.param_groups for p in group["params"]]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for p in self.own:
                p.sub_(1)


def test_an_optimizer_that_steps_weights_of_its_own_is_refused(alone: None) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    for build in (KeepsItsOwn, lambda ps: ZeroRedundancyOptimizer(ps, torch.optim.AdamW, lr=1e-2)):
        model = network().bfloat16()
        ours = MasterWeights(build(list(model.parameters())))
        with refused(type(ours.optimizer).__name__, "param_groups", "float32", kind=RuntimeError):
            run(model, ours, range(1))


def test_a_wrapper_goes_around_and_not_inside() -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState

    try:
        prepared = accelerate.Accelerator(cpu=True).prepare(
            adamw(network().bfloat16().parameters())
        )
        with refused("AcceleratedOptimizer", "MasterWeights", kind=TypeError):
            MasterWeights(prepared)
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_clipping_spares_a_live_gradient_that_is_float32_already() -> None:
    """torch 2.13 lets a bfloat16 weight have one (`grad_dtype`)."""
    live = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    if not hasattr(live, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    live.grad_dtype = torch.float32
    live.grad = torch.full((4,), 3.0)
    ours = MasterWeights(torch.optim.SGD([live], lr=1.0))
    ours.clip_grad_norm_(1.0)
    ours.step()
    assert torch.equal(live.grad, torch.full((4,), 3.0))
    torch.testing.assert_close(ours.master(live), torch.full((4,), 0.5), rtol=1e-5, atol=0)


def test_deepspeed_is_refused() -> None:
    model, ours = wrapped()
    # as its engine does: one flat float32 tensor
    ours.param_groups[0]["params"] = [nn.Parameter(torch.zeros(50))]
    with refused("DeepSpeed", "add_param_group", kind=RuntimeError):
        ours.step()
    model[0].weight.ds_id = 0  # as ZeRO-3 leaves on a weight
    with refused("DeepSpeed", "float32", kind=TypeError):
        MasterWeights(adamw(model.named_parameters()))


def test_fsdp_is_refused(alone: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    _, ours = wrapped()
    sharded = fully_shard(network().bfloat16(), mesh=init_device_mesh("cpu", (1,)))
    with refused("DTensor", "MixedPrecisionPolicy", kind=TypeError):
        MasterWeights(adamw(sharded.named_parameters()))
    ours.param_groups[0]["params"] = list(sharded.parameters())  # as Accelerate does in `prepare`
    with refused("DTensor", kind=TypeError):
        ours.step()
    for whole in (True, False):
        old = FullyShardedDataParallel(
            network().bfloat16(), device_id=torch.device("cpu"), use_orig_params=whole
        )
        with refused("FullyShardedDataParallel", kind=TypeError):
            MasterWeights(adamw(old.parameters()))


# With others' loops


def on_two_ranks() -> None:
    """DistributedDataParallel by hand, then Accelerate's over accumulated gradients."""
    dist.init_process_group("gloo")
    try:
        by_hand(dist.get_rank())
        with_accelerate(dist.get_rank())
    finally:
        dist.destroy_process_group()


def check_equal_on_both(ours: MasterWeights, when: str) -> None:
    """Each rank has other data, so masters agree only while gradients are still reduced."""
    masters = torch.cat(
        [ours.master(p).flatten() for group in ours.param_groups for p in group["params"]]
    )
    both = [torch.empty_like(masters) for _ in range(2)]
    dist.all_gather(both, masters)
    assert torch.equal(both[0], both[1]), f"ranks drifted apart: {when}"


def by_hand(rank: int) -> None:
    """Eight steps on this rank's own data; at the fifth, rank 1's loss is not finite."""
    model = DistributedDataParallel(network(seed=rank).bfloat16())  # broadcasts rank 0's weights
    ours = MasterWeights(adamw(model.named_parameters(), lr=1e-2), skip_nonfinite=True)
    p = model.module[0].weight
    for step in range(8):
        ours.zero_grad()
        torch.manual_seed(10 * step + rank)
        loss = model(torch.randn(8, 6).bfloat16()).float().square().mean()
        (loss * float("nan") if (rank, step) == (1, 4) else loss).backward()
        ours.clip_grad_norm_(1.0)
        before = ours.master(p).clone()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # the reduction is no clip
            ours.step()
        assert torch.equal(ours.master(p), before) == (step == 4)
        check_equal_on_both(ours, f"DDP, step {step}")
    assert ours.skipped == 1

    # Its state, with names that begin with "module.", loads without the wrapper.
    alone = network(seed=5).bfloat16()
    resumed = MasterWeights(adamw(alone.named_parameters(), lr=1e-2))
    resumed.load_state_dict(saved(ours.state_dict()))
    assert same(model.module, ours, alone, resumed)


def with_accelerate(rank: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == 2
    model = network().bfloat16()
    masters = {name: p.float() for name, p in model.named_parameters()}
    ours = MasterWeights(adamw(model.named_parameters(), lr=1e-2), masters=masters)
    model, optimizer = accelerator.prepare(model, ours)
    for step in range(6):
        with accelerator.accumulate(model):
            torch.manual_seed(10 * step + rank)
            accelerator.backward(model(torch.randn(8, 6).bfloat16()).float().square().mean())
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            with pytest.warns(UserWarning, match="MasterWeights") if step == 1 else nullcontext():
                optimizer.step()
            optimizer.zero_grad()
        check_equal_on_both(ours, f"Accelerate, step {step}")
    assert int(ours.state[model.module[0].weight]["step"]) == 3


@pytest.mark.long
def test_ranks_of_ddp_and_accelerate_stay_together_and_skip_together() -> None:
    in_ranks(2, on_two_ranks)


def test_accelerate_accumulates_schedules_saves_and_resumes(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState

    def prepared(seed: int) -> tuple[Any, MasterWeights, Any, Any, Any]:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = network(seed).bfloat16()
        ours = MasterWeights(adamw(model.named_parameters(), lr=1e-2))
        schedule = torch.optim.lr_scheduler.StepLR(ours, 1, gamma=0.9)
        return accelerator, ours, *accelerator.prepare(model, ours, schedule)

    def train(
        accelerator: Any,
        ours: MasterWeights,
        model: Any,
        optimizer: Any,
        schedule: Any,
        steps: range,
    ) -> None:
        for step in steps:
            with accelerator.accumulate(model):
                torch.manual_seed(step)
                accelerator.backward(model(torch.randn(8, 6).bfloat16()).float().square().mean())
                if accelerator.sync_gradients:
                    ours.clip_grad_norm_(1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    try:
        first = prepared(0)
        train(*first, range(10))
        model = first[2]
        ours = first[1]
        assert int(ours.state[model[0].weight]["step"]) == 5, "every second call is a step"
        assert ours.param_groups[0]["lr"] == pytest.approx(1e-2 * 0.9**5)
        check_moments(ours)
        first[0].save_state(str(tmp_path))
        second = prepared(1)
        second[0].load_state(str(tmp_path))
        assert same(model, ours, second[2], second[1])
        for run_ in (first, second):
            train(*run_, range(10, 20))
        assert same(model, ours, second[2], second[1])
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.gpu
def test_masters_follow_the_weights_to_a_device() -> None:
    model, ours = wrapped(fused=True)
    run(model, ours, range(3))
    model.cuda()
    for p, grad in zip(model.parameters(), gradients(model, 3)):
        p.grad = grad.cuda()
    ours.step()
    state = ours.state[model[0].weight]
    assert {t.device.type for t in [ours.master(model[0].weight), *state.values()]} == {"cuda"}
    assert int(state["step"]) == 4
