"""Task modes: drawn by position, in the requested shares, and logged under the names of the
losses.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.config.train import TrainConfig
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy.policies.draws import make_draws
from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.registry import own_type_names, policy_type
from understudy.testing.runs import series, tiny_config
from understudy.train import run
from understudy.train.augment_batch import draw_modes
from understudy.train.startup_summary import describe_modes
from understudy_base.testing.refusals import refused


@given(st.integers(0, 2**63 - 1), st.lists(st.floats(0, 5), min_size=3, max_size=3).filter(any))
def test_draw_modes_depends_on_the_position_and_skips_zero_weights(
    seed: int, weights: list[float]
) -> None:
    shares = TrainConfig(mode=dict(zip(TaskMode.ALL, weights))).modes.weights()  # type: ignore[arg-type]
    positions = torch.arange(5000)
    drawn = draw_modes(seed, positions, shares)
    assert drawn.dtype == torch.int64
    for number, (mode, share) in enumerate(shares.items()):
        part = (drawn == number).double().mean()
        # the normal law is no bound for shares of a few samples
        few = 10 / 5000 if 0 < share < 1 else 0
        assert abs(part - share) <= 5 * (share * (1 - share) / 5000) ** 0.5 + few + 1e-12, mode
    some = torch.tensor([4999, 0, 17])
    assert torch.equal(draw_modes(seed, some, shares), drawn[some])
    if max(shares.values()) < 0.9:
        assert not torch.equal(draw_modes(seed ^ 1, positions, shares), drawn)


def test_describe_modes_lists_the_loss_of_future_images_where_there_is_one() -> None:
    shares = TrainConfig(mode="joint").modes.weights()
    with_images = describe_modes("joint", shares, images=True)
    assert len(with_images) == 1 + len(describe_modes("joint", shares))
    assert "images" in with_images[-1]
    assert "2/3" in with_images[-1]
    always = describe_modes("joint", shares, images=True, always=(LossTerm.FLOW,))
    assert always == with_images[1:]
    alone = TrainConfig(mode="forward_dynamics").modes.weights()
    assert describe_modes("forward_dynamics", alone, always=(LossTerm.FLOW,)) == describe_modes(
        "forward_dynamics", alone
    )


def test_describe_modes_lists_partly_trained_losses() -> None:
    def lines(mode: Any) -> list[str]:
        return describe_modes(mode, TrainConfig(mode=mode).modes.weights())

    assert lines("policy") == []
    assert lines("joint") == [
        "joint trains the action loss on 2/3 of the samples",
        "joint trains the dynamics loss on 2/3 of the samples",
    ]
    assert lines("forward_dynamics") == ["forward_dynamics trains the action loss on no sample"]
    assert lines({"policy": 3.0, "inverse_dynamics": 1.0}) == [
        "3 policy + 1 inverse_dynamics trains the dynamics loss on 3/4 of the samples"
    ]


@pytest.mark.parametrize("name", own_type_names())
def test_no_recipe_trains_joint_unless_it_says_so(name: str) -> None:
    """By default every sample trains the actions. The control: `joint` leaves out a third, and the
    summary says it.
    """
    plain = TrainConfig(policy=policy_type(name).settings())
    joint = replace(plain, mode="joint")
    found = {}
    for config in (plain, joint):
        modes = [
            TaskMode.ALL[number]
            for number in draw_modes(3, torch.arange(3000), config.modes.weights()).tolist()
        ]
        trained = sum(LossTerm.FLOW in TaskMode.TRAINS[mode] for mode in modes) / len(modes)
        found[config.mode] = (
            trained,
            config.modes.learn_dynamics(),
            bool(describe_modes(config.mode, config.modes.weights())),
        )
    assert found["policy"] == (1, False, False)
    assert found["joint"] == (pytest.approx(2 / 3, abs=0.03), True, True)


def random_spec(future: bool) -> Any:
    unit = {"offset": [0.0, 0.0], "spread": [1.0, 1.0]}
    config = FlowPolicyConfig(2, 2, chunk=3, noise_samples=4, future=future)
    return FlowPolicy(config, {"action": unit, "observation.state": unit}).random_spec("train")


def test_draws_give_future_states_their_own_noise_and_times() -> None:
    """Those of the actions stay as they are without; each stream has one time per stratum; nothing
    is shared.
    """
    at = torch.arange(4000)
    plain = make_draws(random_spec(future=False), 7, at)
    found = make_draws(random_spec(future=True), 7, at)
    noise = torch.cat([found["flow noise"], found["future noise"]], dim=3)
    time = torch.stack(
        [found["flow time"], found["future time"].gather(1, found["future stratum"])], dim=2
    )
    assert (noise.shape, time.shape) == ((4000, 4, 3, 4), (4000, 4, 2))
    assert torch.equal(noise[..., :2], plain["flow noise"])
    assert torch.equal(time[..., 0], plain["flow time"])
    strata = (time.pow(1.5) * 4).long()
    assert torch.equal(strata[..., 1].sort(dim=1).values, torch.arange(4).expand(4000, 4))
    for one, other in ((noise[..., :2], noise[..., 2:]), (time[..., 0], time[..., 1])):
        assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 0.03
    assert abs(noise[..., 2:].mean()) < 0.02
    some = torch.tensor([3999, 5])
    again = make_draws(random_spec(future=True), 7, some)
    assert all(torch.equal(again[name], values[some]) for name, values in found.items())


@pytest.mark.long
def test_train_counts_the_losses_of_drawn_modes(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    joint = tiny_config(
        data, tmp_path / "r", mode="joint", batch_size=8, micro_batch_size=2, device="cpu", steps=8
    )
    seen: dict[str, int] = dict.fromkeys(
        (LossTerm.FLOW, LossTerm.DYNAMICS, "should flow", "should dynamics"), 0
    )
    plain = FlowPolicy.losses

    def losses(self: FlowPolicy, batch: Any, *rest: Any, **more: Any) -> Any:
        found = plain(self, batch, *rest, **more)
        if self.training:
            modes = [TaskMode.ALL[number] for number in batch["mode"].tolist()]
            # nothing follows an episode's last frame
            follows = ~batch["observation.state_is_pad"][:, 1:].all(dim=1)
            assert torch.equal(
                batch["mode"], draw_modes(7, batch["position"], joint.modes.weights())
            )
            for term in (LossTerm.FLOW, LossTerm.DYNAMICS):
                seen[term] += int((found[term].count > 0).sum())
                lessons = torch.tensor([term in TaskMode.TRAINS[mode] for mode in modes])
                seen[f"should {term}"] += int(
                    (lessons & follows if term == LossTerm.DYNAMICS else lessons).sum()
                )
        return found

    with monkeypatch.context() as patch:
        patch.setattr(FlowPolicy, "losses", losses)
        assert run.train(joint) == run.DONE
    said = capsys.readouterr().err
    assert "joint trains the action loss on 2/3 of the samples" in said
    assert FlowPolicy.load(tmp_path / "r/policy").modes == TaskMode.ALL
    assert 0 < seen[LossTerm.FLOW] == seen["should flow"] < 64
    assert 0 < seen[LossTerm.DYNAMICS] == seen["should dynamics"] < 64
    assert len(series(tmp_path / "r", "val")) == 2


def test_train_refuses_a_mode_without_data(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path / "r", mode="forward_dynamics")
    with refused("mode", "'observation.state'", where=str(data), fix="state"):
        run.train(replace(config, data=replace(config.data, state="")))
