"""The run's optimizer: float32 AdamW bit for bit, over weights that are stored in float32 or
split.
"""

import copy
import io
import pickle

import pytest
import torch
from torch import Tensor, nn

from understudy.optim.adamw import Float32AdamW
from understudy.optim.bf16_split import split
from understudy.optim.state import check_moments, clip_factor, grad_norm
from understudy_base.testing.refusals import refused


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def bits(x: Tensor) -> Tensor:
    return x.view(torch.int32)


def model_like(dtype: torch.dtype) -> tuple[dict[str, Tensor], nn.ParameterDict]:
    """float32 values and parameters of `dtype` (the vector stays float32, as norms and biases
    do).
    """
    generator = torch.Generator().manual_seed(1)
    values = {
        "matrix": torch.randn(31, 17, generator=generator) * 0.02,
        "kernel": torch.randn(4, 3, 3, 3, generator=generator),
        "bias": torch.randn(13, generator=generator),
    }
    cast = {k: v.clone() if k == "bias" else v.to(dtype) for k, v in values.items()}
    return values, nn.ParameterDict({k: nn.Parameter(v) for k, v in cast.items()})


def gradients(shapes: dict[str, torch.Size], step: int) -> dict[str, Tensor]:
    """Random bfloat16 gradients over six decades (float32 for the bias)."""
    generator = torch.Generator().manual_seed(100 + step)
    size = 10 ** (torch.rand((), generator=generator) * 6 - 4)
    made = {k: torch.randn(shape, generator=generator) * size for k, shape in shapes.items()}
    return {k: v if k == "bias" else v.to(torch.bfloat16) for k, v in made.items()}


def padded(x: Tensor) -> Tensor:
    """Flat, with zeros up to a multiple of 64."""
    return nn.functional.pad(x.detach().flatten(), (0, -x.numel() % 64))


KINDS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


@pytest.mark.parametrize(
    ("stored", "kind", "steps"),
    [
        *((torch.bfloat16, kind, 1000 if kind == "fused" else 150) for kind in KINDS),
        (torch.float32, "fused", 150),
    ],
    ids=[*KINDS, "whole weights, fused"],
)
def test_master_equals_float32_adamw_with_clip_and_schedule(
    stored: torch.dtype, kind: str, steps: int
) -> None:
    """Bit for bit with the fused kernel; torch's other two implementations round elsewhere.

    The reference is flat and padded to full vector registers: on a CPU the fused kernel itself
    treats the end of a tensor by other instructions, which round differently, and ours must not
    depend on where a tensor ends.
    """
    values, live = model_like(stored)
    truth = nn.ParameterDict({k: nn.Parameter(padded(v)) for k, v in values.items()})
    ours = Float32AdamW(live.items(), lr=3e-4, masters=values)
    theirs = torch.optim.AdamW(truth.parameters(), lr=3e-4, **KINDS[kind])

    def rule(k: int) -> float:
        return min(1.0, (k + 1) / 100) * (1 - k / 2000)

    schedules = [torch.optim.lr_scheduler.LambdaLR(o, rule) for o in (ours, theirs)]
    shapes = {k: v.shape for k, v in values.items()}
    for step in range(steps):
        for name, grad in gradients(shapes, step).items():
            live[name].grad = grad.to(live[name].dtype)
            truth[name].grad = padded(grad.float())
        norm = grad_norm(list(live.values()))
        torch.testing.assert_close(norm, nn.utils.get_total_norm([p.grad for p in truth.values()]))
        nn.utils.clip_grads_with_norm_(truth.parameters(), 1.0, norm)
        ours.step(scale=clip_factor(norm, 1.0))
        theirs.step()
        for schedule in schedules:
            schedule.step()
    for name, p in truth.items():
        pairs = [(ours.master(live[name]), p.detach())]
        pairs += [
            (ours.state[live[name]][k], theirs.state[p][k]) for k in ("exp_avg", "exp_avg_sq")
        ]
        for mine, reference in pairs:
            reference = reference[: mine.numel()].view(mine.shape)
            torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-9)
            assert kind != "fused" or torch.equal(bits(mine), bits(reference)), name
        assert float(ours.state[live[name]]["step"]) == steps
        if kind == "fused" and live[name].dtype == torch.bfloat16:
            assert torch.equal(
                live[name].detach(),
                split(p.detach())[0][: live[name].numel()].view(live[name].shape),
            )
    check_moments(ours)


def test_pure_bfloat16_adamw_leaves_most_weights_where_they_were_and_split_does_not() -> None:
    """The failure this exists for: at a fine-tuning rate most updates are below half a unit in the
    last place.
    """
    generator = torch.Generator().manual_seed(0)
    start = (torch.randn(20000, generator=generator) * 0.05).to(torch.bfloat16)
    pure = nn.Parameter(start.clone())
    live = nn.Parameter(start.clone())
    ours = Float32AdamW([live], lr=2.5e-5, weight_decay=0.0)
    theirs = torch.optim.AdamW([pure], lr=2.5e-5, weight_decay=0.0)
    drift = torch.randn(20000, generator=generator)
    for _ in range(100):
        grad = (drift + torch.randn(20000, generator=generator)).to(torch.bfloat16)
        pure.grad = live.grad = grad
        ours.step()
        theirs.step()
    assert (ours.master(live) != start.float()).float().mean() > 0.99
    moved, moved_pure = (float((p.detach() != start).float().mean()) for p in (live, pure))
    assert moved > 0.8
    assert moved_pure < 0.2
    with refused("exp_avg", "torch.bfloat16", "float32", kind=ValueError):
        check_moments(theirs)


def stepped(optimizer: Float32AdamW, live: nn.ParameterDict, steps: range) -> None:
    for step in steps:
        for name, grad in gradients({k: p.shape for k, p in live.items()}, step).items():
            live[name].grad = grad.to(live[name].dtype)
        optimizer.step()


def fresh(order: list[str], live: nn.ParameterDict) -> Float32AdamW:
    return Float32AdamW([(name, live[name]) for name in order], lr=1e-3)


def through_a_file(state: object) -> dict:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def test_resume_is_bit_exact_by_name_and_nothing_is_cast() -> None:
    values, live = model_like(torch.bfloat16)
    ours = Float32AdamW(live.items(), lr=1e-3, masters=values)
    stepped(ours, live, range(20))
    weights, state = through_a_file((live.state_dict(), ours.state_dict()))

    _, other = model_like(torch.bfloat16)
    other.load_state_dict(weights)
    resumed = fresh(["matrix", "bias", "kernel"], other)  # another order
    resumed.load_state_dict(state_dict=state)
    for name in values:
        assert {k: v.dtype for k, v in resumed.state[other[name]].items()} == {
            k: v.dtype for k, v in ours.state[live[name]].items()
        }
    lost = copy.deepcopy((other, resumed))
    stepped(ours, live, range(20, 40))
    stepped(resumed, other, range(20, 40))
    for name in values:
        assert torch.equal(resumed.master(other[name]), ours.master(live[name]))

    # The negative control: the same resume without the low bits goes elsewhere.
    for state in lost[1].state.values():
        if "lo" in state:
            state["lo"].zero_()
    stepped(lost[1], lost[0], range(20, 40))
    assert not torch.equal(lost[1].master(lost[0]["matrix"]), ours.master(live["matrix"]))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32], ids=["split", "whole"])
def test_where_a_tensor_ends_decides_no_bit(stored: torch.dtype) -> None:
    """The beginnings of one vector, of all lengths, step to the same bits. By torch's kernel alone
    they do not: the last places of some are rounded otherwise.
    """
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(130, generator=generator).to(stored)
    params = [nn.Parameter(whole[:size].clone()) for size in range(1, 131)]
    optimizer = Float32AdamW(params)
    for _ in range(30):
        grad = torch.randn(130, generator=generator).to(stored)
        for p in params:
            p.grad = grad[: len(p)].clone()
        optimizer.step()
    longest = bits(optimizer.master(params[-1]))
    assert all(torch.equal(bits(optimizer.master(p)), longest[: len(p)]) for p in params)


def test_a_state_of_another_kind_is_refused_by_name() -> None:
    _, live = model_like(torch.bfloat16)
    plain = torch.optim.AdamW(live.items())
    stepped(plain, live, range(1))  # type: ignore[arg-type]
    ours = Float32AdamW(live.items())
    with refused("kernel", "exp_avg", "torch.bfloat16", "torch.float32", kind=ValueError):
        ours.load_state_dict(plain.state_dict())


def test_masters_given_before_the_cast_are_kept() -> None:
    values, live = model_like(torch.bfloat16)
    kept = Float32AdamW(live.items(), masters=values)
    dropped = Float32AdamW(live.items())
    assert torch.equal(kept.master(live["matrix"]), values["matrix"])
    assert not torch.equal(dropped.master(live["matrix"]), values["matrix"])
    with refused("kernel", "bfloat16", kind=ValueError):
        Float32AdamW(live.items(), masters={"matrix": values["matrix"]})
    with refused("masters", "model.named_parameters()", kind=ValueError):
        Float32AdamW(live.values(), masters=values)
    with refused("matrix", "torch.bfloat16", "float32", kind=ValueError):
        Float32AdamW(live.items(), masters={**values, "matrix": live["matrix"]})


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32], ids=["split", "whole"])
def test_a_skipped_step_leaves_every_bit_as_it_was(stored: torch.dtype) -> None:
    values, live = model_like(stored)
    ours = Float32AdamW(live.items(), masters=values)
    stepped(ours, live, range(3))
    before = copy.deepcopy((live.state_dict(), ours.state_dict()["state"]))
    for p in live.values():
        p.grad = torch.full_like(p, float("nan"))
    ours.step(scale=torch.tensor(float("nan")), skip=torch.ones(()))
    after = (live.state_dict(), ours.state_dict()["state"])
    for name in values:
        assert torch.equal(after[0][name], before[0][name])
    for i in range(3):
        for kind, value in before[1][i].items():
            assert torch.equal(after[1][i][kind], value)
    ours.step(skip=torch.zeros(()))
    assert live["matrix"].isnan().any(), "the flag kept it"


def test_parameters_without_gradient_stay_and_their_steps_are_not_counted() -> None:
    _, live = model_like(torch.bfloat16)
    ours = Float32AdamW(live.items())
    stepped(ours, live, range(1))
    before = live["kernel"].detach().clone()
    live["kernel"].grad = None
    ours.step()
    assert torch.equal(live["kernel"].detach(), before)
    assert [int(ours.state[live[k]]["step"]) for k in ("matrix", "kernel", "bias")] == [2, 1, 2]


def test_a_weight_written_by_others_is_refused_until_its_truth_is_told() -> None:
    values, live = model_like(torch.bfloat16)
    ours = Float32AdamW(live.items(), masters=values)
    stepped(ours, live, range(2))
    live.load_state_dict(model_like(torch.bfloat16)[1].state_dict())
    with refused("kernel", "set_master", kind=RuntimeError):
        stepped(ours, live, range(2, 3))
    for name, value in values.items():
        ours.set_master(live[name], value)
    stepped(ours, live, range(2, 3))
    for writes in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        other, twin = writes((live, ours))
        stepped(twin, other, range(3, 5))  # a copy is no stranger's write
    live["bias"].data.add_(1)
    with torch.no_grad():
        live["bias"].add_(1)  # a float32 weight is its own truth
    stepped(ours, live, range(3, 4))


def test_closures_copies_and_added_groups() -> None:
    _, live = model_like(torch.bfloat16)
    ours = Float32AdamW([("matrix", live["matrix"])], lr=1e-3)
    ours.add_param_group({"params": [("kernel", live["kernel"])], "weight_decay": 0.0})
    assert set(ours.state[live["kernel"]]) == {"step", "exp_avg", "exp_avg_sq", "lo"}

    def closure() -> Tensor:
        ours.zero_grad()
        loss = (live["matrix"].float() ** 2).sum()
        loss.backward()
        return loss

    first = ours.step(closure)
    assert ours.step(closure) < first
    twin = copy.deepcopy(ours)
    for one, other in zip(ours.state.values(), twin.state.values()):
        assert all(torch.equal(one[kind], other[kind]) for kind in one)


def test_what_it_cannot_split_is_refused() -> None:
    with refused("float16", "bfloat16", kind=TypeError):
        Float32AdamW([nn.Parameter(torch.zeros(2, dtype=torch.float16))])
    with refused("compiled=False", kind=TypeError):
        Float32AdamW([nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16).t())], compiled=True)
    sharded = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    sharded.ds_id = 0  # type: ignore[attr-defined]
    with refused("DeepSpeed", "float32", kind=TypeError):
        Float32AdamW([sharded])


def test_a_master_can_be_set() -> None:
    live = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
    ours = Float32AdamW([live])
    truth = torch.tensor([0.1, -0.2, 1 / 3, 1e-40, 3e38])
    ours.set_master(live, truth)
    assert torch.equal(ours.master(live), truth)
    assert torch.equal(live.detach(), split(truth)[0])
    with refused("torch.bfloat16", "float32", kind=ValueError):
        ours.set_master(live, truth.bfloat16())
