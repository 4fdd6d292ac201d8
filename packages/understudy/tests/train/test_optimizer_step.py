"""One step and its parts: schedule, optimizer, draws, the loss of a batch, validation losses."""

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from understudy.config.train import (
    AugmentConfig,
    EmaConfig,
    OptimConfig,
    ScheduleConfig,
)
from understudy.distributed import mesh as parallel
from understudy.distributed.mesh import Mesh
from understudy.optim.adamw import Float32AdamW
from understudy.optim.lr_schedule import lr_factor
from understudy.optim.moving_average import ema_decay, make_average, update_average
from understudy.optim.param_groups import freeze, loss_weights, parameter_groups
from understudy.policies.draws import RandomSpec, make_draws
from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.losses import Loss, scalar
from understudy.testing.policies import as_draws, micro_batches
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train.augment_batch import apply_augmentation
from understudy.train.data.run_data import RunData, first_batch, open_data
from understudy.train.data.run_normalization import compute_normalization
from understudy.train.optimizer_step import Float64GradAccumulator, StepResult, optimizer_step
from understudy.train.precision import make_optimizer, named_tensors
from understudy.train.state import init_train_state
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.datasets import Spec, edit_json, write_dataset


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("step") / "dataset")


@pytest.fixture(scope="module")
def data(root: Path) -> RunData:
    return open_data(tiny_config(root, root))


@pytest.fixture
def policy(root: Path, data: RunData) -> FlowPolicy:
    config = tiny_config(root, root)
    torch.manual_seed(0)
    made = FlowPolicy(data.policy_config(config), compute_normalization(data, "mean_std"))
    for parameter in made.parameters():  # the last layers start at zero, which would hide much
        torch.nn.init.normal_(parameter, std=0.2)
    return made


@pytest.fixture(scope="module")
def batch(root: Path) -> dict[str, Any]:
    return first_batch(tiny_config(root, root, batch_size=8))[0]


def spec(draws: int = 2, chunk: int = 3, **more: Any) -> dict[str, RandomSpec]:
    config = FlowPolicyConfig(2, 2, chunk=chunk, noise_samples=draws, **more)
    unit = {"offset": [0.0, 0.0], "spread": [1.0, 1.0]}
    return FlowPolicy(config, {"action": unit, "observation.state": unit}).random_spec("train")


def drawn(batch: dict[str, Any], draws: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    noise, time = make_draws(spec(draws), 7, batch["position"]).values()
    return noise, time


def snapshot(policy: FlowPolicy, optimizer: Float32AdamW) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in named_tensors(policy, optimizer, None).items()}


def adamw(policy: FlowPolicy, config: OptimConfig) -> Float32AdamW:
    return make_optimizer(policy, config, {}, accumulates=False)


def stepped(
    mesh: Mesh,
    policy: FlowPolicy,
    optimizer: Float32AdamW,
    batch: dict[str, Any],
    noise: torch.Tensor,
    time: torch.Tensor,
    *,
    lr: float,
    clip: float = 1.0,
    accumulate: int = 1,
    **other: Any,
) -> StepResult:
    parts = micro_batches(batch, as_draws(noise, time), accumulate)
    return optimizer_step(
        policy, optimizer, parts, mesh, lr=lr, clip=clip, weights={"flow": 1.0}, **other
    )


# -- schedule


def test_the_schedule_at_its_corners() -> None:
    cosine = ScheduleConfig(kind="cosine", warmup_steps=4, final_lr_ratio=0.1)
    assert [lr_factor(k, cosine, 20) for k in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert lr_factor(4, cosine, 20) == 1.0
    assert lr_factor(12, cosine, 20) == pytest.approx(0.55)
    assert lr_factor(20, cosine, 20) == lr_factor(99, cosine, 20) == pytest.approx(0.1)
    assert lr_factor(
        12, ScheduleConfig(kind="linear", warmup_steps=4, final_lr_ratio=0.0), 20
    ) == pytest.approx(0.5)
    assert lr_factor(12, ScheduleConfig(kind="constant", warmup_steps=4), 20) == 1.0
    assert lr_factor(5, ScheduleConfig(warmup_steps=0, decay_steps=5), 100) == 0.0
    assert lr_factor(0, ScheduleConfig(warmup_steps=10), 5) == 0.1  # a run shorter than its warm-up


@given(
    st.integers(0, 300),
    st.integers(0, 50),
    st.floats(0, 1),
    st.integers(1, 200),
    st.sampled_from(["cosine", "linear"]),
)
def test_the_schedule_never_leaves_its_bounds_and_never_rises_again(
    step: int, warmup: int, final: float, steps: int, kind: Any
) -> None:
    schedule = ScheduleConfig(kind=kind, warmup_steps=warmup, final_lr_ratio=final)
    here = lr_factor(step, schedule, steps)
    there = lr_factor(step + 1, schedule, steps)
    assert 0 <= here <= 1 + 1e-12
    assert there >= here if step + 1 < warmup else there <= here + 1e-12 or step + 1 == warmup


# -- draws


def test_draws_belong_to_the_position_alone(batch: dict[str, Any]) -> None:
    noise, time = drawn(batch)
    shuffled = torch.tensor([5, 0, 3])
    again, times = drawn({"position": batch["position"][shuffled]})
    assert torch.equal(noise[shuffled], again)
    assert torch.equal(time[shuffled], times)
    assert noise.shape == (8, 2, 3, 2)
    assert len(noise.reshape(16, -1).unique(dim=0)) == 16  # no two are equal
    assert len(time.unique()) == 16
    assert ((time >= 0) & (time <= 1)).all()
    assert not torch.equal(noise, make_draws(spec(), 8, batch["position"])["flow noise"])


@pytest.mark.parametrize("future", [False, True])
def test_a_draw_is_the_same_to_the_bit_whatever_is_drawn_with_it(future: bool) -> None:
    """Any share of a batch: sizes that fill no vector of the machine were rounded otherwise."""
    drawing = spec(3, 2, future=future)
    whole = make_draws(drawing, 7, torch.arange(600))
    for size in (1, 2, 3, 5, 7, 11, 64):
        parts = [
            make_draws(drawing, 7, torch.arange(low, min(low + size, 600)))
            for low in range(0, 600, size)
        ]
        for name, all_of_it in whole.items():
            assert torch.equal(torch.cat([part[name] for part in parts]), all_of_it), (size, name)


def test_the_first_batch_is_that_of_the_recorded_order(root: Path, data: RunData) -> None:
    config = tiny_config(root, root, batch_size=8)
    chosen = Order.from_datasets(data.training, batch_size=8, seed=3, clip=2, lanes=5)
    samples = first_batch(config, order=json.loads(chosen.to_json()))[0]
    _, episodes, frames = chosen.locate(range(8))
    assert samples["episode_index"].tolist() == episodes.tolist()
    assert samples["frame_index"].tolist() == frames.tolist()
    assert first_batch(config)[0]["frame_index"].tolist() != frames.tolist()


def test_augmentation_is_one_samples_affair(root: Path) -> None:
    plain, cameras = first_batch(
        tiny_config(root, root, batch_size=8, augment=AugmentConfig(shift=0, text_dropout=0))
    )
    some = AugmentConfig(shift=3, text_dropout=0.5)
    changed = apply_augmentation(plain, cameras, some, seed=1)
    assert plain["task"].count("") == 0 < changed["task"].count("")
    assert not torch.equal(changed[cameras[0]], plain[cameras[0]])
    same = {k: v[[0] * 8] if isinstance(v, torch.Tensor) else [v[0]] * 8 for k, v in plain.items()}
    moved = apply_augmentation(same | {"position": plain["position"]}, cameras, some, seed=1)[
        cameras[0]
    ]
    assert len(moved.flatten(1).unique(dim=0)) > 4  # one image, moved differently at each position
    rows = [6, 1]
    part = {
        k: v[rows] if isinstance(v, torch.Tensor) else [v[i] for i in rows]
        for k, v in plain.items()
    }
    alone = apply_augmentation(part, cameras, some, seed=1)
    assert torch.equal(alone[cameras[0]], changed[cameras[0]][rows])
    assert alone["task"] == [changed["task"][i] for i in rows]


# -- the step


def test_the_gradient_is_that_of_sum_over_count(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any]
) -> None:
    """By hand, sample by sample: one sum, one count. A mean of per-sample means is another number
    (the control).
    """
    batch = dict(
        batch, action_is_pad=torch.rand(8, 3, generator=torch.Generator().manual_seed(1)) < 0.5
    )
    noise, time = drawn(batch)
    other = copy.deepcopy(policy)
    total = torch.zeros(())
    count = 0
    means = []
    for i in range(8):
        one = {k: v[i : i + 1] for k, v in batch.items()}
        loss = other.flow_losses(one, noise[i : i + 1], time[i : i + 1])["flow"]
        total = total + loss.sum.sum()
        count = count + int(loss.count.sum())
        if int(loss.count.sum()):
            means.append(loss.sum.sum().item() / int(loss.count.sum()))
    (total / count).backward()
    result = stepped(
        mesh, policy, adamw(policy, OptimConfig()), batch, noise, time, lr=0.0, clip=1e9
    )
    assert float(result.loss) == pytest.approx(total.item() / count, rel=1e-5)
    assert abs(float(result.loss) - float(np.mean(means))) > 1e-3
    for (name, mine), theirs in zip(policy.named_parameters(), other.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_gradients_of_micro_batches_are_summed_in_float64(mesh: Mesh) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    accumulator = Float64GradAccumulator(Float32AdamW([weight]), mesh, 3)
    for gradient in (1.0, 2**-24, 2**-24):  # each of the small ones is lost beside 1 in float32
        weight.grad = torch.tensor([gradient])
        accumulator.add()
    accumulator.finish()
    assert weight.grad is not None
    assert weight.grad.item() == 1 + 2**-23


def test_a_loss_that_is_not_finite_affects_its_own_group_alone(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any]
) -> None:
    noise, time = drawn(batch)
    noise[0] = float("nan")
    batch = dict(batch, source=torch.arange(8) % 3)
    result = stepped(
        mesh, policy, adamw(policy, OptimConfig()), batch, noise, time, lr=0.0, groups={"source": 4}
    )
    assert result.groups is not None
    sums, counts = result.groups[..., 0]
    assert torch.isnan(sums).tolist() == [True, False, False, False]
    assert (counts.sum(), counts[3]) == (result.terms[1, 0], 0)


def test_clipping_bounds_the_global_norm(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any]
) -> None:
    noise, time = drawn(batch)
    result = stepped(
        mesh, policy, adamw(policy, OptimConfig()), batch, noise, time, lr=0.0, clip=0.01
    )
    norm = math.sqrt(
        sum(
            float(p.grad.double().square().sum()) for p in policy.parameters() if p.grad is not None
        )
    )
    assert float(result.grad_norm) > 0.1
    assert norm == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_no_bit(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any], poison: float
) -> None:
    optimizer = adamw(policy, OptimConfig(weight_decay=0.1))
    noise, time = drawn(batch)
    good = stepped(mesh, policy, optimizer, batch, noise, time, lr=1e-2, clip=1.0)
    before = snapshot(policy, optimizer)
    spoilt = noise.clone()
    spoilt[0, 0, 0, 0] = poison
    bad = stepped(mesh, policy, optimizer, batch, spoilt, time, lr=1e-2, clip=1.0)
    assert (float(good.skipped), float(bad.skipped)) == (0.0, 1.0)
    after = snapshot(policy, optimizer)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    # and the next one counts again
    stepped(mesh, policy, optimizer, batch, noise, time, lr=1e-2, clip=1.0)
    moved = snapshot(policy, optimizer)
    assert all(float(moved[name]) == 2 for name in moved if name.startswith("step/"))
    assert any(
        not torch.equal(moved[name], after[name]) for name in moved if name.startswith("weights/")
    )


class Asks(TorchDispatchMode):
    """Counts how often a value is asked of the device: `item`, `if tensor:`, and copies to the host
    that wait.
    """

    count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        self.count += operation in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.equal.default,
        )
        return operation(*arguments, **(keywords or {}))


def test_a_step_never_waits_for_the_device(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any]
) -> None:
    optimizer = adamw(policy, OptimConfig())
    average = make_average(policy)
    noise, time = drawn(batch)
    with Asks() as asks:
        groups = {"source": 2}
        result = stepped(
            mesh, policy, optimizer, batch, noise, time, lr=1e-2, accumulate=2, groups=groups
        )
        update_average(average, policy, optimizer, 0.9)
        assert asks.count == 0
        assert result.groups is not None
        assert bool(result.loss > 0)  # the control
        assert asks.count == 1


def test_a_process_on_its_own_does_not_talk_to_itself(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective of one costs as much CPU as a layer of a small network."""

    def talks(*_: object, **__: object) -> None:
        raise AssertionError("a collective")

    monkeypatch.setattr(torch.distributed, "all_reduce", talks)
    stepped(mesh, policy, adamw(policy, OptimConfig()), batch, *drawn(batch), lr=1e-2, accumulate=2)
    assert mesh.votes(True, False) == [True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-split"])
def test_a_step_never_waits_for_a_gpu(root: Path, precision: Any) -> None:
    """As the driver counts it: from the batch at the host to the average of the weights."""
    config = tiny_config(
        root, root, device="cuda", batch_size=8, micro_batch_size=4, precision=precision
    )
    data = open_data(config)
    with (
        parallel.join_mesh(config.mesh) as mesh,
        Loader(data.training, order=data.order(config), num_threads=1) as loader,
    ):
        training = init_train_state(config, data, compute_normalization(data, "mean_std"), mesh)
        training.sources = ("one", "two")  # so that losses are summed per source
        training.train_step(next(loader))  # objects made once may wait
        later = next(loader)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(2):
                result = training.train_step(later)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert math.isfinite(result.loss.item())


# -- the optimizer


def test_equal_to_the_stock_optimizer(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any]
) -> None:
    """The whole step against plain torch: its own scalar loss, its norm, its clipping, a stock
    fused AdamW.
    """
    other = copy.deepcopy(policy)
    config = OptimConfig(weight_decay=0.05)
    optimizer = adamw(policy, config)
    split = [
        [p for p in other.parameters() if p.ndim >= 2],
        [p for p in other.parameters() if p.ndim < 2],
    ]
    stock = torch.optim.AdamW(
        [{"params": split[0], "weight_decay": 0.05}, {"params": split[1], "weight_decay": 0.0}],
        lr=1e-2,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
    for _ in range(3):
        result = stepped(mesh, policy, optimizer, batch, *drawn(batch), lr=1e-2)
        stock.zero_grad()
        loss = scalar(other.flow_losses(batch, *drawn(batch)))
        loss.backward()
        assert float(result.loss) == pytest.approx(loss.item(), rel=1e-6)
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 1.0)
        assert float(result.grad_norm) == pytest.approx(norm.item(), rel=1e-5)
        stock.step()
    for (name, mine), theirs in zip(policy.named_parameters(), other.parameters()):
        # the norm behind it takes it out: its gradient is rounding, which Adam enlarges
        if name.endswith("conv.bias"):
            continue
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_groups_follow_patterns_and_dimensions(policy: FlowPolicy) -> None:
    config = OptimConfig(
        weight_decay=0.1,
        lr_scale={"layers.0.grow.*": 0.5, "layers.*": 0.25},
        weight_decay_of={"text.embed.weight": 0.0, "layers.0.grow.bias": 0.3},
    )
    groups = parameter_groups(policy.named_parameters(), config)
    found = {name: (g["weight_decay"], g["lr_scale"]) for g in groups for name, _ in g["params"]}
    assert len(found) == len(list(policy.parameters()))
    assert found["layers.0.grow.weight"] == (0.1, 0.5)  # the first pattern that fits
    assert found["layers.0.grow.bias"] == (0.3, 0.5)
    assert found["layers.0.shrink.weight"] == (0.1, 0.25)
    assert found["layers.0.shrink.bias"] == (0.0, 0.25)
    assert found["text.embed.weight"] == found["fuse.bias"] == (0.0, 1.0)
    assert len(groups) == len({(g["weight_decay"], g["lr_scale"]) for g in groups})


def test_each_group_is_stepped_at_its_own_rate(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any]
) -> None:
    before = copy.deepcopy(policy)
    config = OptimConfig(weight_decay=0.0, lr_scale={"fuse.weight": 0.0, "in_proj.weight": 0.5})
    stepped(mesh, policy, adamw(policy, config), batch, *drawn(batch), lr=1e-2)
    moved = {
        n: (p - q).abs().max().item()
        for (n, p), q in zip(policy.named_parameters(), before.parameters())
    }
    assert moved["fuse.weight"] == 0.0
    # Adam's first step is one learning rate long
    assert moved["in_proj.weight"] == pytest.approx(0.5e-2, rel=1e-2)
    assert moved["out_proj.weight"] == pytest.approx(1e-2, rel=1e-2)


class TwoTerms(FlowPolicy):
    """Also wants its first weights to be small: per sample their squares' sum, over three
    elements.
    """

    asked: list[list[str]]

    @property
    def loss_terms(self) -> tuple[str, ...]:
        return ("flow", "size")

    def counts(self, batch: Any, draws: Any) -> dict[str, torch.Tensor]:
        return {**super().counts(batch, draws), "size": torch.tensor(3 * len(batch["action"]))}

    def losses(
        self, batch: Any, draws: Any, terms: Any = None, detail: bool = False
    ) -> dict[str, Loss]:
        self.asked.append(list(terms))
        found = super().losses(batch, draws, terms)
        ones = torch.ones(len(draws["flow noise"]), dtype=torch.float64)
        size = next(self.parameters()).square().sum() * ones.float()
        return {**found, "size": Loss(size, 3 * ones)} if "size" in terms else found


@pytest.mark.parametrize("parts", [1, 2])
def test_terms_are_weighed_each_over_its_own_count_and_those_that_weigh_nothing_are_not_computed(
    mesh: Mesh, policy: FlowPolicy, batch: dict[str, Any], parts: int
) -> None:
    policy.__class__, policy.asked = TwoTerms, []  # type: ignore[assignment]
    first = next(policy.parameters())
    found = {}
    value = first.detach().clone()
    for factor in (0.0, 0.5):
        weights = loss_weights(policy.loss_terms, {"size": factor})
        micro = micro_batches(batch, as_draws(*drawn(batch)), parts)
        optimizer = adamw(policy, OptimConfig(weight_decay=0.0))
        result = optimizer_step(
            policy, optimizer, micro, mesh, lr=0.0, clip=math.inf, weights=weights
        )
        assert first.grad is not None
        found[factor] = result.loss, first.grad.clone()
    assert policy.asked == [["flow"]] * parts + [["flow", "size"]] * parts
    assert torch.allclose(found[0.5][0] - found[0.0][0], 0.5 * value.square().sum() / 3, rtol=1e-4)
    assert torch.allclose(found[0.5][1] - found[0.0][1], 0.5 * 2 * value / 3, rtol=1e-4, atol=1e-5)


def test_patterns_and_terms_that_fit_nothing_are_told(policy: FlowPolicy) -> None:
    with refused("optim.freeze", "'layer.*'", kind=ConfigError):
        freeze(policy, OptimConfig(freeze=("text.*", "layer.*")))
    with pytest.raises(ConfigError, match=r"optim.lr_scale: 'x'"):
        freeze(policy, OptimConfig(lr_scale={"x": 1.0}))
    with refused("optim.freeze", "*", kind=ConfigError):
        freeze(policy, OptimConfig(freeze=("*",)))
    with refused("optim.loss_weights", "'flwo'", "flow", kind=ConfigError):
        loss_weights(policy.loss_terms, {"flwo": 1.0})
    with refused("optim.loss_weights", 0, kind=ConfigError):
        loss_weights(policy.loss_terms, {"flow": 0.0})
    assert loss_weights(["a", "b", "c"], {"a": 0.0, "c": 0.5}) == {"b": 1.0, "c": 0.5}


def test_the_decay_of_the_average_at_its_corners() -> None:
    constant = EmaConfig(0.99)
    power = EmaConfig(0.99, kind="power", power=0.75)
    assert [ema_decay(1, constant), ema_decay(10_000, constant)] == [pytest.approx(2 / 11), 0.99]
    assert [ema_decay(1, power), ema_decay(10_000, power)] == [pytest.approx(1 - 2**-0.75), 0.99]
    assert ema_decay(99, power) == pytest.approx(1 - 100**-0.75)


# -- data


def test_normalization_ignores_held_out_episodes(root: Path, data: RunData) -> None:
    assert data.validation[0] is not None
    maps = compute_normalization(data, "mean_std")
    trained, held = (
        set(part.segments[:, 0].tolist()) for part in (data.training[0], data.validation[0])
    )
    assert trained
    assert held
    assert not trained & held
    rows = [
        data.training[0].sample(e, f)["action"][0]
        for e, a, b in data.training[0].segments
        for f in range(a, b)
    ]
    actions = torch.stack(rows).double()
    np.testing.assert_allclose(maps["action"]["offset"][0], actions.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(maps["action"]["spread"][0], actions.std(0, correction=0), rtol=1e-5)
    assert maps["observation.state"]["spread"][0][2] == 0  # a constant dimension


@pytest.mark.filterwarnings("ignore:.*not finite")
def test_a_value_that_is_not_finite_is_told_wherever_it_is_and_can_be_left_out(
    tmp_path: Path,
) -> None:
    """Validation episodes included: their NaN would be the only validation loss of the run."""
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4, 5), per_data_file=1))
    config = tiny_config(tmp_path / "d", tmp_path)
    held = open_data(config).validation[0]
    assert held is not None
    bad = int(held.segments[0, 0])
    path = sorted((tmp_path / "d/data").glob("chunk-*/file-*.parquet"))[bad]
    rows = pq.read_table(path)
    state = np.stack(rows["observation.state"].to_numpy())
    state[1, 0] = np.nan
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(state.ravel(), pa.float32()), state.shape[1]
    )
    at = rows.schema.get_field_index("observation.state")
    pq.write_table(rows.set_column(at, "observation.state", column), path)
    with refused("observation.state[0]", "nan", where=f"episode {bad}", fix="exclude_episodes"):
        compute_normalization(open_data(config), "mean_std")
    config = replace(config, data=replace(config.data, exclude_episodes=(bad,)))
    data = open_data(config)
    compute_normalization(data, "mean_std")
    assert data.validation[0] is not None
    assert bad not in [*data.training[0].segments[:, 0], *data.validation[0].segments[:, 0]]
    with refused(99, where=str(tmp_path / "d")):
        open_data(replace(config, data=replace(config.data, exclude_episodes=(99,))))


def test_what_a_policy_cannot_use_is_told_early(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(images=("observation.images.still",)))
    config = tiny_config(tmp_path / "d", tmp_path)

    def opened(**changes: Any) -> RunData:
        return open_data(replace(config, data=replace(config.data, **changes)))

    assert opened().cameras == ("observation.images.top", "observation.images.still")
    assert opened(cameras=("observation.images.still",)).cameras == ("observation.images.still",)
    with refused(
        "'observation.images.hand'", where=str(tmp_path / "d"), fix="observation.images.top"
    ):
        opened(cameras=("observation.images.hand",))
    write_dataset(tmp_path / "one", Spec(lengths=(5,)))
    with refused(1, where=str(tmp_path / "one"), fix="--data.val-fraction 0"):
        opened(root=str(tmp_path / "one"))
    gray = {"dtype": "image", "shape": [1, 64, 64], "names": ["channels", "height", "width"]}
    edit_json(
        tmp_path / "d/meta/info.json",
        lambda info: info["features"].update({"observation.images.still": gray}),
    )
    with refused("'observation.images.still'", 1, where=str(tmp_path / "d"), fix="data.cameras"):
        opened()
    edit_json(tmp_path / "d/meta/info.json", lambda info: info["features"].pop("action"))
    with refused("'action'", where=str(tmp_path / "d")):
        opened()
