"""One step and what it is made of: schedule, optimizer, draws, the loss of a batch, held-out losses."""

import copy
import math
from collections import defaultdict
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

from support.datasets import Spec, edit_json, write_dataset
from support.runs import tiny_config, tiny_dataset
from understudy.data.errors import DatasetError
from understudy.policies.flow_policy import FlowPolicy
from understudy.train.config import AugmentConfig, OptimConfig, ScheduleConfig
from understudy.train.data import RunData, fingerprint, first_batch, normalisation, open_data
from understudy.train.optim import adamw, average_of, named_tensors, table, update_average
from understudy.train.schedule import rate
from understudy.train.step import Draws, augmented, optimizer_step
from understudy.train.validate import DRAWS, sample_identity, validation


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
    made = FlowPolicy(data.policy_config(config), normalisation(data, "mean_std"))
    for parameter in made.parameters():  # the last layers start at zero, which would hide much
        torch.nn.init.normal_(parameter, std=0.2)
    return made


@pytest.fixture(scope="module")
def batch(root: Path) -> dict[str, Any]:
    return first_batch(tiny_config(root, root, batch=8))[0]


def drawn(batch: dict[str, Any], draws: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return Draws(7, draws, 3, 2).noise_and_time(batch["position"])


def snapshot(policy: FlowPolicy, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in named_tensors(policy, optimizer, None).items()}


# -- schedule


def test_the_schedule_at_its_corners() -> None:
    cosine = ScheduleConfig(kind="cosine", warmup=4, final=0.1)
    assert [rate(k, cosine, 20) for k in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert rate(4, cosine, 20) == 1.0
    assert rate(12, cosine, 20) == pytest.approx(0.55)
    assert rate(20, cosine, 20) == rate(99, cosine, 20) == pytest.approx(0.1)
    assert rate(12, ScheduleConfig(kind="linear", warmup=4, final=0.0), 20) == pytest.approx(0.5)
    assert rate(12, ScheduleConfig(kind="constant", warmup=4), 20) == 1.0
    assert rate(5, ScheduleConfig(warmup=0, steps=5), 100) == 0.0
    assert rate(0, ScheduleConfig(warmup=10), 5) == 0.1  # a run shorter than its warm-up


@given(
    st.integers(0, 300), st.integers(0, 50), st.floats(0, 1), st.integers(1, 200), st.sampled_from(["cosine", "linear"])
)
def test_the_schedule_never_leaves_its_bounds_and_never_rises_again(
    step: int, warmup: int, final: float, steps: int, kind: Any
) -> None:
    schedule = ScheduleConfig(kind=kind, warmup=warmup, final=final)
    here, there = rate(step, schedule, steps), rate(step + 1, schedule, steps)
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
    assert len(noise.reshape(16, -1).unique(dim=0)) == 16  # none has what another has
    assert len(time.unique()) == 16
    assert ((time >= 0) & (time <= 1)).all()
    assert not torch.equal(noise, Draws(8, 2, 3, 2).noise_and_time(batch["position"])[0])


def test_augmentation_is_one_samples_affair(root: Path) -> None:
    plain, cameras = first_batch(tiny_config(root, root, batch=8, augment=AugmentConfig(shift=0, text_dropout=0)))
    some = AugmentConfig(shift=3, text_dropout=0.5)
    changed = augmented(plain, cameras, some, seed=1)
    assert plain["task"].count("") == 0 < changed["task"].count("")
    assert not torch.equal(changed[cameras[0]], plain[cameras[0]])
    same = {k: v[[0] * 8] if isinstance(v, torch.Tensor) else [v[0]] * 8 for k, v in plain.items()}
    moved = augmented(same | {"position": plain["position"]}, cameras, some, seed=1)[cameras[0]]
    assert len(moved.flatten(1).unique(dim=0)) > 4  # one picture, moved differently at each position
    rows = [6, 1]
    part = {k: v[rows] if isinstance(v, torch.Tensor) else [v[i] for i in rows] for k, v in plain.items()}
    alone = augmented(part, cameras, some, seed=1)
    assert torch.equal(alone[cameras[0]], changed[cameras[0]][rows])
    assert alone["task"] == [changed["task"][i] for i in rows]


# -- the step


def test_the_gradient_is_that_of_sum_over_count(policy: FlowPolicy, batch: dict[str, Any]) -> None:
    """By hand, sample by sample: one sum, one count. A mean of per-sample means is another number (the control)."""
    batch = dict(batch, action_is_pad=torch.rand(8, 3, generator=torch.Generator().manual_seed(1)) < 0.5)
    noise, time = drawn(batch)
    other = copy.deepcopy(policy)
    total, count, means = torch.zeros(()), 0, []
    for i in range(8):
        one = {k: v[i : i + 1] for k, v in batch.items()}
        loss = other.losses(one, noise[i : i + 1], time[i : i + 1])["flow"]
        total, count = total + loss.sum.sum(), count + int(loss.count.sum())
        if int(loss.count.sum()):
            means.append(loss.sum.sum().item() / int(loss.count.sum()))
    (total / count).backward()
    result = optimizer_step(policy, adamw(policy, OptimConfig()), batch, noise, time, lr=0.0, clip=1e9)
    assert float(result.loss) == pytest.approx(total.item() / count, rel=1e-5)
    assert abs(float(result.loss) - float(np.mean(means))) > 1e-3
    for (name, mine), theirs in zip(policy.named_parameters(), other.parameters()):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_clipping_bounds_the_global_norm(policy: FlowPolicy, batch: dict[str, Any]) -> None:
    noise, time = drawn(batch)
    result = optimizer_step(policy, adamw(policy, OptimConfig()), batch, noise, time, lr=0.0, clip=0.01)
    norm = math.sqrt(sum(float(p.grad.double().square().sum()) for p in policy.parameters() if p.grad is not None))
    assert float(result.grad_norm) > 0.1
    assert norm == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_no_bit(policy: FlowPolicy, batch: dict[str, Any], poison: float) -> None:
    optimizer = adamw(policy, OptimConfig(weight_decay=0.1))
    noise, time = drawn(batch)
    good = optimizer_step(policy, optimizer, batch, noise, time, lr=1e-2, clip=1.0)
    before = snapshot(policy, optimizer)
    spoilt = noise.clone()
    spoilt[0, 0, 0, 0] = poison
    bad = optimizer_step(policy, optimizer, batch, spoilt, time, lr=1e-2, clip=1.0)
    assert (float(good.skipped), float(bad.skipped)) == (0.0, 1.0)
    after = snapshot(policy, optimizer)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []
    optimizer_step(policy, optimizer, batch, noise, time, lr=1e-2, clip=1.0)  # and the next one counts again
    moved = snapshot(policy, optimizer)
    assert all(float(moved[name]) == 2 for name in moved if name.startswith("step/"))
    assert any(not torch.equal(moved[name], after[name]) for name in moved if name.startswith("weights/"))


# -- the optimizer


def test_the_whole_state_is_there_from_the_start(policy: FlowPolicy, batch: dict[str, Any]) -> None:
    fresh = adamw(policy, OptimConfig())
    names = {name: tuple(tensor.shape) for name, tensor in snapshot(policy, fresh).items()}
    assert all(float(t) == 0 for n, t in snapshot(policy, fresh).items() if n.startswith("step/"))
    optimizer_step(policy, fresh, batch, *drawn(batch), lr=1e-3, clip=1.0)
    used = snapshot(policy, fresh)
    assert names == {name: tuple(tensor.shape) for name, tensor in used.items()}
    assert {tensor.dtype for tensor in used.values()} == {torch.float32}
    assert all(float(t) == 1 for n, t in used.items() if n.startswith("step/"))


def test_equal_to_the_stock_optimizer(policy: FlowPolicy, batch: dict[str, Any]) -> None:
    """Making the state early changes nothing: against a stock fused AdamW that makes its own."""
    other = copy.deepcopy(policy)
    config = OptimConfig(weight_decay=0.05)
    optimizer = adamw(policy, config)
    split = [[p for p in other.parameters() if p.ndim >= 2], [p for p in other.parameters() if p.ndim < 2]]
    stock = torch.optim.AdamW(
        [{"params": split[0], "weight_decay": 0.05}, {"params": split[1], "weight_decay": 0.0}],
        lr=1e-2,
        betas=(config.beta1, config.beta2),
        fused=True,
    )
    for _ in range(3):
        optimizer_step(policy, optimizer, batch, *drawn(batch), lr=1e-2, clip=1.0)
        optimizer_step(other, stock, batch, *drawn(batch), lr=1e-2, clip=1.0)
    assert all(torch.equal(a, b) for a, b in zip(policy.parameters(), other.parameters()))


def test_half_precision_weights_are_refused(policy: FlowPolicy) -> None:
    with pytest.raises(ValueError, match="float32"):
        adamw(policy.bfloat16(), OptimConfig())


def test_the_average_follows_its_formula(policy: FlowPolicy) -> None:
    average = average_of(policy)
    start = policy.fuse.weight.detach().clone()
    expected = start.double()
    for step in (1, 2, 50, 10_000):
        with torch.no_grad():
            policy.fuse.weight.add_(1.0)
        update_average(average, policy, 0.99, step)
        decay = min(0.99, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * policy.fuse.weight.detach().double()
    torch.testing.assert_close(average.fuse.weight.double(), expected, rtol=1e-5, atol=1e-5)
    assert not any(p.requires_grad for p in average.parameters())


def test_the_table_adds_up(policy: FlowPolicy) -> None:
    text = table(policy, adamw(policy, OptimConfig()), average_of(policy), "float32")
    count = sum(p.numel() for p in policy.parameters())
    assert f"{count:,} parameters" in text
    assert all(kind in text for kind in ("parameters", "gradients", "optimizer state", "average", "float32"))


# -- data


def test_normalisation_ignores_held_out_episodes(root: Path, data: RunData) -> None:
    assert data.held_out is not None
    maps = normalisation(data, "mean_std")
    trained, held = (set(part.segments[:, 0].tolist()) for part in (data.training, data.held_out))
    assert trained
    assert held
    assert not trained & held
    rows = [data.training.sample(e, f)["action"][0] for e, a, b in data.training.segments for f in range(a, b)]
    actions = torch.stack(rows).double()
    np.testing.assert_allclose(maps["action"]["offset"], actions.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(maps["action"]["spread"], actions.std(0, correction=0), rtol=1e-5)
    assert maps["observation.state"]["spread"][2] == 0  # a constant dimension


@pytest.mark.filterwarnings("ignore:.*not finite")
def test_a_value_that_is_not_finite_is_told_wherever_it_is_and_can_be_left_out(tmp_path: Path) -> None:
    """Held-out episodes included: their NaN would be the only held-out loss that the run ever showed."""
    write_dataset(tmp_path / "d", Spec(lengths=(6, 9, 4, 5), per_data_file=1))
    config = tiny_config(tmp_path / "d", tmp_path)
    held = open_data(config).held_out
    assert held is not None
    bad = int(held.segments[0, 0])
    path = sorted((tmp_path / "d/data").glob("chunk-*/file-*.parquet"))[bad]
    rows = pq.read_table(path)
    state = np.stack(rows["observation.state"].to_numpy())
    state[1, 0] = np.nan
    column = pa.FixedSizeListArray.from_arrays(pa.array(state.ravel(), pa.float32()), state.shape[1])
    at = rows.schema.get_field_index("observation.state")
    pq.write_table(rows.set_column(at, "observation.state", column), path)
    with pytest.raises(DatasetError, match=rf"episode {bad}: observation.state\[0\] is nan.*exclude_episodes"):
        normalisation(open_data(config), "mean_std")
    config = replace(config, data=replace(config.data, exclude_episodes=(bad,)))
    data = open_data(config)
    normalisation(data, "mean_std")
    assert data.held_out is not None
    assert bad not in [*data.training.segments[:, 0], *data.held_out.segments[:, 0]]
    with pytest.raises(DatasetError, match="no episode 99 to exclude"):
        open_data(replace(config, data=replace(config.data, exclude_episodes=(99,))))


def test_the_fingerprint_names_what_changed(root: Path, data: RunData) -> None:
    again = open_data(tiny_config(root, root))
    assert fingerprint(again) == fingerprint(data)
    config = tiny_config(root, root)
    other = open_data(replace(config, data=replace(config.data, val_fraction=0.6)))
    changed = {k for k, v in fingerprint(other).items() if v != fingerprint(data)[k]}
    assert changed == {"held-out episodes"}


def test_what_a_policy_cannot_use_is_told_early(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(images=("observation.images.still",)))
    config = tiny_config(tmp_path / "d", tmp_path)

    def opened(**changes: Any) -> RunData:
        return open_data(replace(config, data=replace(config.data, **changes)))

    assert opened().cameras == ("observation.images.top", "observation.images.still")
    assert opened(cameras=("observation.images.still",)).cameras == ("observation.images.still",)
    with pytest.raises(DatasetError, match=r"no camera .*hand.*its cameras: observation.images.top"):
        opened(cameras=("observation.images.hand",))
    write_dataset(tmp_path / "one", Spec(lengths=(5,)))
    with pytest.raises(DatasetError, match="cannot be split"):
        opened(root=str(tmp_path / "one"))
    grey = {"dtype": "image", "shape": [1, 64, 64], "names": ["channels", "height", "width"]}
    edit_json(tmp_path / "d/meta/info.json", lambda info: info["features"].update({"observation.images.still": grey}))
    with pytest.raises(DatasetError, match=r"1 channels.*data\.cameras"):
        opened()
    edit_json(tmp_path / "d/meta/info.json", lambda info: info["features"].pop("action"))
    with pytest.raises(DatasetError, match="needs 'action' as a vector: there is no such feature"):
        opened()


# -- validation


def test_validation_is_sum_over_count_per_task(policy: FlowPolicy, data: RunData) -> None:
    """Against a slow, obvious computation: one sample at a time."""
    assert data.held_out is not None
    draws = Draws(7, DRAWS, 3, 2)
    result = validation(policy, data.held_out, draws)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for episode, start, stop in data.held_out.segments.tolist():
        for frame in range(start, stop):
            at = np.array([episode]), np.array([frame])
            one = data.held_out.batch(*at)
            with torch.no_grad():
                loss = policy.losses(one, *draws.noise_and_time(sample_identity(*at)))["flow"]
            entry = sums[one["task"][0]]
            entry[0] += float(loss.sum)
            entry[1] += float(loss.count)
            entry[2] += 1
    assert set(result["tasks"]) == set(sums)
    for task, (total, count, samples) in sums.items():
        assert result["tasks"][task]["samples"] == samples
        assert result["tasks"][task]["loss"] == pytest.approx(total / count, rel=1e-5)
    everything = np.array(list(sums.values())).sum(0)
    assert result["loss"] == pytest.approx(everything[0] / everything[1], rel=1e-5)
    assert result["macro"] == pytest.approx(np.mean([t / c for t, c, _ in sums.values()]), rel=1e-5)
    assert sum(entry["samples"] for entry in result["tasks"].values()) == len(data.held_out)


def test_validation_repeats_to_the_bit_and_leaves_no_trace(policy: FlowPolicy, data: RunData) -> None:
    assert data.held_out is not None
    policy.train()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = validation(policy, data.held_out, Draws(7, DRAWS, 3, 2))
    torch.manual_seed(6)
    assert validation(policy, data.held_out, Draws(7, DRAWS, 3, 2)) == first
    torch.manual_seed(5)
    assert torch.equal(torch.get_rng_state(), state)
    assert policy.training
    assert all(p.grad is None for p in policy.parameters())
    assert validation(policy, data.held_out, Draws(8, DRAWS, 3, 2)) != first
